//! The guard: one real server a test, on a free port, in a folder of its own, always stopped.
//!
//! `REDIS_SERVER` names the server's binary (else redis-server or valkey-server from PATH),
//! `REDISLOCK_SO` the module (else `redislock.so` beside Cargo.toml). The log is printed when a
//! test fails.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::resp::{Connection, Value};

/// How long a test waits for what must come; far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What makes a server convenient to test, unless a test wants exactly its own settings.
const FOR_TESTS: [&str; 7] = [
    "bind 127.0.0.1",
    "daemonize no",
    "save \"\"",
    "appendonly no",
    "enable-debug-command yes",
    "enable-module-command yes",
    "repl-diskless-sync-delay 0",
];

/// Polls until it is so. The guard prints the server's log when this gives up.
#[track_caller]
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// What a server is started with.
#[derive(Clone, Default)]
pub struct Options {
    config: Vec<String>,
    nothing_else: bool,
    module: Option<PathBuf>,
    module_arguments: String,
    without_module: bool,
    while_loading: bool,
    environment: Vec<(String, String)>,
}

impl Options {
    /// One line of redis.conf.
    pub fn config(mut self, line: &str) -> Options {
        self.config.push(line.to_owned());
        self
    }

    /// These lines of redis.conf and, beside them, only where the server is: its port, its folder,
    /// its module.
    pub fn exactly(block: &str) -> Options {
        Options {
            config: block.lines().map(str::to_owned).collect(),
            nothing_else: true,
            ..Options::default()
        }
    }

    /// A server without this command.
    pub fn renamed(self, command: &str) -> Options {
        self.config(&format!("rename-command {command} \"\""))
    }

    pub fn appendonly(self, fsync: &str) -> Options {
        self.config("appendonly yes")
            .config(&format!("appendfsync {fsync}"))
    }

    pub fn replica_of(self, master: &Server) -> Options {
        self.config(&format!("replicaof 127.0.0.1 {}", master.port))
    }

    /// Another build of the module.
    pub fn module(mut self, module: &Path) -> Options {
        self.module = Some(module.to_owned());
        self
    }

    pub fn module_arguments(mut self, arguments: &str) -> Options {
        self.module_arguments = arguments.to_owned();
        self
    }

    pub fn without_module(mut self) -> Options {
        self.without_module = true;
        self
    }

    /// Does not wait for the end of loading.
    pub fn while_loading(mut self) -> Options {
        self.while_loading = true;
        self
    }

    pub fn environment(mut self, name: &str, value: &str) -> Options {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(log) => panic!("the server did not start:\n{log}"),
        }
    }

    /// The log, if the server ends before it answers.
    pub fn try_start(self) -> Result<Server, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder_path = folder
            .path()
            .canonicalize()
            .expect("the folder's real path");
        let mut server = Server {
            options: self,
            folder,
            folder_path,
            port: 0,
            process: None,
            earlier_logs: String::new(),
        };
        server.launch()?;
        Ok(server)
    }
}

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
    #[track_caller]
    pub fn start() -> Server {
        Options::default().start()
    }

    pub fn options() -> Options {
        Options::default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        &self.folder_path
    }

    #[track_caller]
    pub fn connect(&self) -> Connection {
        Connection::try_open(self.port).expect("the server accepts connections")
    }

    /// What the server has logged since its last start.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map_or(String::new(), |log| {
            String::from_utf8_lossy(&log).into_owned()
        })
    }

    pub fn kill(&mut self) {
        self.signal(Signal::Kill);
        self.wait();
    }

    /// Ends the server as an operator would: with a save if one is configured.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::Terminate);
        self.wait()
    }

    /// For a server that ends by itself.
    pub fn wait_for_the_end(&mut self) -> ExitStatus {
        self.wait()
    }

    /// Starts again what was stopped or killed, on the same data.
    #[track_caller]
    pub fn start_again(&mut self) {
        if let Err(log) = self.try_start_again() {
            panic!("the server did not start again:\n{log}");
        }
    }

    /// The log, if the server ends before it answers.
    pub fn try_start_again(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "it is still running");
        self.launch()
    }

    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Other options from the next start on.
    pub fn reconfigure(&mut self, change: impl FnOnce(Options) -> Options) {
        self.options = change(self.options.clone());
    }

    pub fn pause(&self) {
        self.signal(Signal::Stop);
    }

    pub fn resume(&self) {
        self.signal(Signal::Continue);
    }

    /// True while the process lives.
    pub fn is_alive(&mut self) -> bool {
        match &mut self.process {
            Some(process) => process.try_wait().expect("a child of ours").is_none(),
            None => false,
        }
    }

    pub fn kind(&self) -> Kind {
        Kind::of(&mut self.connect())
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            signal.send(process.id());
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("a running server");
        process.wait().expect("a child of ours")
    }

    fn log_path(&self) -> PathBuf {
        self.folder_path.join("server.log")
    }

    fn launch(&mut self) -> Result<(), String> {
        loop {
            if self.port == 0 {
                self.port = free_port();
            }
            match self.launch_on_port() {
                // Another test took the port between our look and the server's.
                Err(log) if log.contains("Address already in use") => self.port = 0,
                outcome => return outcome,
            }
        }
    }

    fn launch_on_port(&mut self) -> Result<(), String> {
        let settings = self.folder_path.join("redis.conf");
        fs::write(&settings, self.settings()).expect("the server's settings are written");
        self.earlier_logs += &self.log();
        let log = File::create(self.log_path()).expect("a log file");
        let child = Command::new(server_binary())
            .arg(&settings)
            .envs(self.options.environment.iter().cloned())
            .current_dir(&self.folder_path)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log file"))
            .stdout(log)
            .spawn();
        match child {
            Ok(child) => self.process = Some(child),
            Err(error) => panic!("{} does not start: {error}", server_binary().display()),
        }
        let start = Instant::now();
        loop {
            if !self.is_alive() {
                self.wait();
                return Err(self.log());
            }
            if self.answers() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("no answer to PING\n{}", self.log()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True once this very server serves: the port may have been taken by another one meanwhile, so
    /// its folder, or its own log, tells it apart.
    fn answers(&self) -> bool {
        let Ok(mut connection) = Connection::try_open(self.port) else {
            return false;
        };
        let mut ask = |line: &str| {
            connection.try_send_raw(&crate::resp::encode(&line.split(' ').collect::<Vec<_>>()))?;
            connection.try_receive()
        };
        let is_this_one = match ask("CONFIG GET dir") {
            Ok(Value::Array(dir)) => {
                let folder = self.folder_path.as_os_str().as_encoded_bytes();
                dir.len() == 2 && dir[1].bytes() == folder
            }
            // CONFIG is renamed. A server whose port is taken does not get as far as this.
            Ok(Value::Error(_)) => self
                .log()
                .to_lowercase()
                .contains("ready to accept connections"),
            _ => false,
        };
        if !is_this_one {
            return false;
        }
        match ask("PING") {
            Ok(Value::Error(error)) => self.options.while_loading || !error.starts_with("LOADING"),
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn settings(&self) -> String {
        let mut lines = vec![
            format!("port {}", self.port),
            format!("dir {}", self.folder_path.display()),
        ];
        if !self.options.nothing_else {
            lines.extend(FOR_TESTS.map(str::to_owned));
        }
        if !self.options.without_module {
            let module = self.options.module.clone().unwrap_or_else(module_path);
            lines.push(format!(
                "loadmodule {} {}",
                module.display(),
                self.options.module_arguments
            ));
        }
        lines.extend(self.options.config.iter().cloned());
        lines.join("\n") + "\n"
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Both fail only if it has ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let folder = self.folder.path().display();
            eprintln!(
                "--- log of the server in {folder} ---\n{}{}",
                self.earlier_logs,
                self.log()
            );
        }
    }
}

/// Which server runs: the one place that knows how they differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    pub valkey: bool,
    pub major: u32,
    pub minor: u32,
}

impl Kind {
    fn of(connection: &mut Connection) -> Kind {
        let info = connection.call("INFO server");
        let value = |name: &str| {
            info.text().lines().find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(':')
                    .map(str::to_owned)
            })
        };
        let valkey = value("valkey_version");
        let version = valkey
            .clone()
            .or_else(|| value("redis_version"))
            .expect("a version");
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        Kind {
            valkey: valkey.is_some(),
            major: numbers.next().unwrap_or(0),
            minor: numbers.next().unwrap_or(0),
        }
    }

    /// Redis 7.0 does not let a module call a command that waits.
    pub fn lets_modules_wait(self) -> bool {
        self.gives_modules_acl_categories()
    }

    /// Redis 7.0 gives module commands no ACL categories.
    pub fn gives_modules_acl_categories(self) -> bool {
        self.valkey || (self.major, self.minor) >= (7, 2)
    }
}

/// A field of `INFO section`, as a number.
#[track_caller]
pub fn info_number(connection: &mut Connection, section: &str, field: &str) -> i64 {
    let value = info_field(connection, section, field);
    value
        .parse()
        .unwrap_or_else(|_| panic!("{field} is no number: {value}"))
}

#[track_caller]
pub fn info_field(connection: &mut Connection, section: &str, field: &str) -> String {
    let info = connection.call(&format!("INFO {section}"));
    let found = info.text().lines().find_map(|line| {
        line.strip_prefix(field)?
            .strip_prefix(':')
            .map(str::to_owned)
    });
    found.unwrap_or_else(|| panic!("no {field} in INFO {section}:\n{}", info.text()))
}

pub fn server_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("REDIS_SERVER") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|candidate| candidate.is_file())
        .expect("redis-server or valkey-server in PATH, or REDIS_SERVER=path: `make setup` installs one")
}

pub fn module_path() -> PathBuf {
    let path = std::env::var_os("REDISLOCK_SO").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("redislock.so"),
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "{} is missing: `make build` makes it",
        path.display()
    );
    path
}

#[derive(Clone, Copy)]
enum Signal {
    Kill = 9,
    Terminate = 15,
    #[cfg(target_os = "linux")]
    Continue = 18,
    #[cfg(target_os = "linux")]
    Stop = 19,
    #[cfg(not(target_os = "linux"))]
    Stop = 17,
    #[cfg(not(target_os = "linux"))]
    Continue = 19,
}

impl Signal {
    fn send(self, process: u32) {
        // SAFETY: as the C library declares it.
        unsafe extern "C" {
            fn kill(process: i32, signal: i32) -> i32;
        }
        let process = i32::try_from(process).expect("a process id");
        // SAFETY: kill(2) takes two plain numbers; the process is a child that has not been waited
        // for, so its id is still its own.
        let outcome = unsafe { kill(process, self as i32) };
        assert_eq!(outcome, 0, "the signal was not sent");
    }
}
