//! Programs that tests start: their signals, their output, and their end, also if a test fails.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{PATIENCE, wait_until};

/// Signals that may be ignored where the tests run (`nohup`, a shell's `&`).
const IGNORED: [i32; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGPIPE,
];

/// The result of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed on standard output, if that was a pipe.
    pub out: String,
    /// What it printed on standard error, if that was a pipe.
    pub err: String,
}

/// Runs the command to its end.
#[track_caller]
pub fn outcome(command: Command) -> Outcome {
    Running::start(command).end()
}

/// Starts it with every signal at its default: otherwise the program would ignore what the tests
/// ignore.
#[track_caller]
pub fn spawn(mut command: Command) -> Child {
    let defaults = || {
        for signal in IGNORED {
            // SAFETY: no handler of ours is replaced: the child has none yet.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: signal(2) is async-signal-safe, nothing is allocated.
    unsafe { command.pre_exec(defaults) };
    command.spawn().expect("the program starts")
}

/// A program that runs, ended when dropped.
pub struct Running(Option<Child>);

impl Running {
    /// Starts the command.
    #[track_caller]
    pub fn start(command: Command) -> Running {
        Running(Some(spawn(command)))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it has not been waited for")
    }

    /// Its process id.
    pub fn pid(&mut self) -> Pid {
        Pid::from_child(self.child())
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the signal is sent");
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        let status = self.child().try_wait().expect("a child of ours");
        status.is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Outcome {
        let mut child = self.0.take().expect("it has not been waited for");
        // Read in threads, so that a full pipe does not block the program.
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
            if let Some(status) = child.try_wait().expect("a child of ours") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the program did not end: {:?}", err.join());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Outcome {
            code: status.code(),
            out: out.join().expect("a thread that reads"),
            err: err.join().expect("a thread that reads"),
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

/// Waits for a file with a complete line, and returns it.
#[track_caller]
pub fn written(path: &Path) -> String {
    let mut text = String::new();
    wait_until("the command writes its file", || {
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

/// The command gets no signals from the terminal, and the kernel kills it when the thread that
/// starts it ends (on Linux).
pub fn end_with_this_process(command: &mut Command) {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = rustix::process::getpid();
        let bind = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have been killed before the kernel knew.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        };
        // SAFETY: prctl and getppid are async-signal-safe, nothing is allocated.
        unsafe { command.pre_exec(bind) };
    }
}
