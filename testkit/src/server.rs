//! A real server on a free port, in its own folder, stopped when the guard is dropped. Its log is
//! printed when a test fails.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::process::end_with_this_process;
use crate::{Connection, FromReply, Kind, Options, PATIENCE, Value, find_server};

/// A running server; dropping it ends it.
pub struct Server {
    options: Options,
    folder: TempDir,
    folder_path: PathBuf,
    port: u16,
    process: Option<Child>,
    earlier_logs: String,
}

impl Server {
    /// A server with the module and without persistence.
    #[track_caller]
    pub fn start() -> Server {
        Options::default().start()
    }

    /// The same with these lines of redis.conf.
    #[track_caller]
    pub fn with<L: AsRef<str>>(config: impl IntoIterator<Item = L>) -> Server {
        Options::default().configs(config).start()
    }

    /// Several servers.
    #[track_caller]
    pub fn start_many<const N: usize>() -> [Server; N] {
        Options::default().start_many()
    }

    /// What a server is started with.
    pub fn options() -> Options {
        Options::default()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its folder, where it writes its files.
    pub fn folder(&self) -> &Path {
        &self.folder_path
    }

    /// The file of the AOF that the server appends to.
    pub fn growing_aof(&self) -> PathBuf {
        let files = fs::read_dir(self.folder().join("appendonlydir"));
        let files = files.expect("the folder of the AOF");
        let paths = files.map(|file| file.expect("a file of the AOF").path());
        let growing = paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
        growing.max().expect("an incremental file of the AOF")
    }

    /// The process, which must be running.
    pub fn process_id(&self) -> u32 {
        self.process.as_ref().expect("a running server").id()
    }

    /// A connection.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        self.try_connect().expect("the server accepts connections")
    }

    /// A connection to a server that may be gone.
    pub fn try_connect(&self) -> io::Result<Connection> {
        Connection::try_open(self.port)
    }

    /// One command on its own connection.
    #[track_caller]
    pub fn run<T: FromReply>(&self, words: &[&str]) -> T {
        match self.try_run(words) {
            Ok(reply) => reply,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    /// One command that may fail.
    pub fn try_run<T: FromReply>(&self, words: &[&str]) -> io::Result<T> {
        let reply = self.try_connect()?.try_call(words)?;
        let shown = format!("unexpected reply {reply:?}");
        T::from_reply(reply).ok_or_else(|| io::Error::other(shown))
    }

    /// Whether nobody holds the lock here.
    #[track_caller]
    pub fn is_free(&self, key: &str) -> bool {
        self.run::<Value>(&["LOCK.INFO", key]) == Value::Null
    }

    /// How often the command was called since the start.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.connect().info("commandstats");
        let line = stats.field(&format!("cmdstat_{}", command.to_lowercase()));
        let calls = line.map_or("0", |line| {
            line.split(['=', ',']).nth(1).unwrap_or_default()
        });
        calls.parse().expect("a number of calls")
    }

    /// What the server has logged since its last start.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// What the server has logged since its first start.
    pub fn whole_log(&self) -> String {
        self.earlier_logs.clone() + &self.log()
    }

    /// SIGKILL: it saves nothing.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Ends the server as an operator would: with a save if one is configured. A server that cannot
    /// save does not end.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let start = Instant::now();
        while self.is_alive() {
            assert!(
                start.elapsed() < PATIENCE,
                "it does not end:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.wait()
    }

    /// Waits for a server that ends by itself.
    pub fn wait_for_the_end(&mut self) -> ExitStatus {
        self.wait()
    }

    /// Starts again what was stopped or killed, on the same port, with the same data.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(log) = self.try_start_again() {
            panic!("the server did not start again:\n{log}");
        }
    }

    /// Starts it again; the log, if the server ends before it replies.
    pub fn try_start_again(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            self.spawn_again()?;
            match self.wait_until_it_serves() {
                // For a moment, a connection of another process may have the port.
                Err(log) if is_port_taken(&log) && start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts it again, without waiting until it serves.
    pub fn spawn_again(&mut self) -> Result<(), String> {
        assert!(!self.is_alive(), "it is still running");
        self.spawn()
    }

    /// Stops it, and starts it again.
    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Other options from the next start on.
    pub fn reconfigure(&mut self, change: impl FnOnce(Options) -> Options) {
        self.options = change(self.options.clone());
    }

    /// SIGSTOP: it neither replies nor closes anything.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// True while the process lives.
    pub fn is_alive(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.try_wait().expect("a child of ours").is_none(),
            None => false,
        }
    }

    /// Which server runs.
    pub fn kind(&self) -> Kind {
        Kind::of(&mut self.connect())
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            kill_process(Pid::from_child(process), signal).expect("the signal is sent");
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("a running server");
        process.wait().expect("a child of ours")
    }

    fn log_path(&self) -> PathBuf {
        self.folder_path.join("server.log")
    }

    pub(crate) fn launch(options: Options) -> Result<Server, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder_path = folder.path().canonicalize();
        let mut server = Server {
            folder_path: folder_path.expect("the folder's real path"),
            port: 0,
            options,
            folder,
            process: None,
            earlier_logs: String::new(),
        };
        loop {
            server.port = server.options.port.unwrap_or_else(free_port);
            server.spawn()?;
            match server.wait_until_it_serves() {
                // Another process took the port after we found it free.
                Err(log) if server.options.port.is_none() && is_port_taken(&log) => {}
                outcome => return outcome.map(|()| server),
            }
        }
    }

    fn spawn(&mut self) -> Result<(), String> {
        let file = self.folder_path.join("redis.conf");
        let settings = self.options.settings(self.port, &self.folder_path)?;
        fs::write(&file, settings).expect("the server's settings are written");
        self.earlier_logs += &self.log();
        let log = File::create(self.log_path()).expect("a log file");
        let mut line = self.options.tool.clone();
        line.push(find_server()?.display().to_string());
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .arg(&file)
            .args(self.options.is_sentinel.then_some("--sentinel"))
            .envs(self.options.environment.iter().cloned())
            .current_dir(&self.folder_path)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log file"))
            .stdout(log);
        if self.options.ends_with_us {
            end_with_this_process(&mut command);
        }
        let child = command.spawn();
        let child = child
            .map_err(|error| format!("{} cannot be started: {error}; install a server", line[0]));
        self.process = Some(child?);
        Ok(())
    }

    fn wait_until_it_serves(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while !self.serves() {
            if !self.is_alive() {
                self.wait();
                return Err(self.log());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("no reply to PING\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// True once this server replies: another one may have the port, so its folder, or our
    /// log, distinguishes them.
    fn serves(&self) -> bool {
        let Ok(mut connection) = self.try_connect() else {
            return false;
        };
        let mut ask = |words: &[&str]| {
            connection.try_send_raw(&crate::encode(words))?;
            connection.try_receive()
        };
        let is_this_one = match ask(&["CONFIG", "GET", "dir"]) {
            Ok(Value::Array(dir)) => {
                let folder = self.folder_path.as_os_str().as_encoded_bytes();
                dir.len() == 2 && dir[1].bytes() == folder
            }
            // CONFIG is renamed, or this is a sentinel. A server whose port is taken does not log
            // this.
            Ok(Value::Error(_)) => {
                let log = self.log().to_lowercase();
                log.contains("ready to accept connections") || log.contains("sentinel id is")
            }
            _ => false,
        };
        is_this_one
            && match ask(&["PING"]) {
                Ok(Value::Error(error)) => {
                    self.options.while_loading || !error.starts_with("LOADING")
                }
                Ok(_) => true,
                Err(_) => false,
            }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            if std::env::var_os("REDISLOCK_LEAK_CHECK").is_some() {
                end_in_order(&mut process);
            }
            // Both fail only if it has ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let folder = self.folder.path().display();
            let log = self.whole_log();
            eprintln!("--- log of the server in {folder} ---\n{log}");
        }
    }
}

/// Asks the server to end, and gives it time: a sanitizer looks for leaks only at a normal end.
fn end_in_order(process: &mut Child) {
    for signal in [Signal::CONT, Signal::TERM] {
        // It fails only if it has ended by itself.
        let _ = kill_process(Pid::from_child(process), signal);
    }
    let start = Instant::now();
    while matches!(process.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_port_taken(log: &str) -> bool {
    log.contains("Address already in use")
}

/// A port that nobody uses at this moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
