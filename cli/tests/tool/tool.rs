//! Starting the tool and reading its output.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{self, SigHandler};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::server::Server;

/// How long a test waits for an event; far longer than a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `redlock` with these nodes and no other settings.
pub fn redlock(servers: &[Server]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlock"));
    let nodes: Vec<String> = servers.iter().map(Server::url).collect();
    for name in ["KEY", "TOKEN", "FENCE", "NODE_TIMEOUT", "CA_CERT"] {
        command.env_remove(format!("REDLOCK_{name}"));
    }
    command
        .env("REDLOCK_NODES", nodes.join(","))
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `redlock run --key KEY OPTIONS -- sh -c SCRIPT`.
pub fn run(servers: &[Server], key: &str, options: &[&str], script: &str) -> Command {
    let mut command = redlock(servers);
    command.args(["run", "--key", key]).args(options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// A tool that holds the lock until it is dropped: then it is killed, and its lease must end.
pub fn holder(servers: &[Server], key: &str, options: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let script = format!("echo yes > {}; exec sleep 1000", started.display());
    let running = Running::start(run(servers, key, options, &script));
    written(&started);
    running
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs the command to its end.
#[track_caller]
pub fn outcome(command: Command) -> Outcome {
    Running::start(command).end()
}

/// Starts it with every signal at its default: what ignores them (`nohup`, a shell's `&`) would
/// otherwise pass that on to the tool under test.
#[track_caller]
pub fn spawn(mut command: Command) -> Child {
    let defaults = || {
        for signal in IGNORED {
            // SAFETY: no handler of ours is replaced: the child has none yet.
            unsafe { signal::signal(signal, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: signal(2) is async-signal-safe, nothing is allocated.
    unsafe { command.pre_exec(defaults) };
    command.spawn().unwrap()
}

/// What may be ignored where the tests run.
const IGNORED: [nix::sys::signal::Signal; 5] = [
    signal::Signal::SIGHUP,
    signal::Signal::SIGINT,
    signal::Signal::SIGQUIT,
    signal::Signal::SIGTERM,
    signal::Signal::SIGPIPE,
];

/// A tool that runs, ended when dropped.
pub struct Running(Option<Child>);

impl Running {
    #[track_caller]
    pub fn start(command: Command) -> Self {
        Self(Some(spawn(command)))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub fn pid(&mut self) -> Pid {
        Pid::from_child(self.child())
    }

    pub fn signal(&mut self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child().try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Outcome {
        let mut child = self.0.take().unwrap();
        // Read in threads, so that a full pipe does not block the tool.
        let read = |stream: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                if let Some(mut stream) = stream {
                    let _ = stream.read_to_end(&mut text);
                }
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let out = read(child.stdout.take().map(|stream| Box::new(stream) as _));
        let err = read(child.stderr.take().map(|stream| Box::new(stream) as _));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the tool did not end: {:?}", err.join());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Outcome {
            code: status.code(),
            out: out.join().unwrap(),
            err: err.join().unwrap(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = kill_process(Pid::from_child(child), Signal::CONT);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until the condition is true.
#[track_caller]
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "it did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a file with a complete line, and returns it.
#[track_caller]
pub fn written(path: &Path) -> String {
    let mut text = String::new();
    until("the command writes its file", || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim_end().to_owned()
}

/// Whether the process still runs: neither gone nor a zombie.
pub fn is_alive(pid: i32) -> bool {
    let there = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok());
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    there && !matches!(state, Some('Z' | 'X'))
}

/// No key is left on any server.
#[track_caller]
pub fn nothing_is_held(servers: &[Server]) {
    for server in servers {
        let keys: Vec<String> = server.run(&["KEYS", "*"]);
        assert!(keys.is_empty(), "left held: {keys:?}");
    }
}
