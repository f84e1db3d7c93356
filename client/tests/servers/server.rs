//! Real servers, owned by a guard: a free port, a temporary folder, a log that is shown when a test
//! fails, and always an end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A server with the module, stopped when dropped.
pub struct Server {
    child: Child,
    folder: TempDir,
    pub port: u16,
    options: Vec<String>,
    environment: Vec<(String, PathBuf)>,
}

impl Server {
    /// Starts a server with these options of redis.conf, each `name value…`.
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(options, &[])
    }

    /// With these variables in its environment.
    pub fn start_in(options: &[&str], environment: &[(&str, PathBuf)]) -> Self {
        loop {
            // Another test may take the port between our look and the server's.
            if let Some(server) = Self::try_start_at(free_port(), options, environment) {
                return server;
            }
        }
    }

    /// On this port.
    pub fn start_at(port: u16, options: &[&str], environment: &[(&str, PathBuf)]) -> Self {
        Self::try_start_at(port, options, environment).expect("the port is free")
    }

    /// None if somebody else has the port.
    fn try_start_at(port: u16, options: &[&str], environment: &[(&str, PathBuf)]) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let variable = |(name, value): &(&str, PathBuf)| ((*name).to_owned(), value.clone());
        let environment: Vec<_> = environment.iter().map(variable).collect();
        let child = spawn(&folder, port, &options, &environment);
        let mut server = Self {
            child,
            folder,
            port,
            options,
            environment,
        };
        server.answers().then_some(server)
    }

    /// A Sentinel that watches this master, alone, and impatiently.
    pub fn start_sentinel(name: &str, master: &Server) -> Self {
        Self::start_sentinel_at(name, master.port, &[])
    }

    /// A Sentinel that watches the master at this port, with more lines of its configuration.
    pub fn start_sentinel_at(name: &str, master: u16, lines: &[String]) -> Self {
        let folder = TempDir::new().unwrap();
        let port = free_port();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nlogfile {}\ndir {}\nsentinel monitor {name} 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 2000\n{}\n",
            folder.path().join("log").display(),
            folder.path().display(),
            lines.join("\n")
        );
        std::fs::write(&file, text).unwrap();
        let mut command = server_command();
        command.arg(&file).arg("--sentinel").stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let mut server = Self {
            child,
            folder,
            port,
            options: Vec::new(),
            environment: Vec::new(),
        };
        server.wait_until_it_answers();
        server
    }

    pub fn start_many<const N: usize>(options: &[&str]) -> [Self; N] {
        std::array::from_fn(|_| Self::start(options))
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Any command, on a connection of its own.
    pub fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_run(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// A command that may fail.
    pub fn try_run<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection()?;
        redis::Cmd::new().arg(words).query(&mut connection)
    }

    /// Whether nobody holds the lock here.
    pub fn is_free(&self, key: &str) -> bool {
        self.run::<redis::Value>(&["LOCK.INFO", key]) == redis::Value::Nil
    }

    /// How often the command was called since the start.
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.run(&["INFO", "commandstats"]);
        let name = format!("cmdstat_{}:calls=", command.to_lowercase());
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix(name.as_str()));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// SIGSTOP: it neither answers nor closes anything.
    pub fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, with the same folder.
    pub fn restart(&mut self) {
        self.child = spawn(&self.folder, self.port, &self.options, &self.environment);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&mut self) {
        assert!(self.answers(), "somebody else has port {}", self.port);
    }

    /// Waits until this very server serves; false if another one has its port.
    fn answers(&mut self) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log = self.log();
                assert!(
                    log.contains("Address already in use"),
                    "the server ended at its start ({status}):\n{log}"
                );
                return false;
            }
            if self.process_that_answers() == Some(self.child.id()) {
                return true;
            }
            assert!(
                Instant::now() < end,
                "the server does not answer:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process that serves at our port, as far as one does.
    fn process_that_answers(&self) -> Option<u32> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let patience = Some(Duration::from_secs(1));
        stream.set_read_timeout(patience).ok()?;
        stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n").ok()?;
        let mut reply = Vec::new();
        // A Sentinel knows no QUIT: what it has said until the patience ends is all.
        let _ = stream.read_to_end(&mut reply);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let ready = reply.strip_prefix("+PONG")?;
        let process = ready.split("process_id:").nth(1)?;
        process.lines().next()?.trim().parse().ok()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- log of the server on port {} ---\n{}",
                self.port,
                self.log()
            );
        }
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// The module under test: REDISLOCK_SO, or redislock.so at the root of the workspace.
fn module() -> PathBuf {
    match std::env::var_os("REDISLOCK_SO") {
        Some(path) => path.into(),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../redislock.so")),
    }
}

/// The server under test: the path in REDIS_SERVER, or what the path of the shell has.
fn server_command() -> Command {
    if let Some(path) = std::env::var_os("REDIS_SERVER") {
        return Command::new(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
    let name = ["redis-server", "valkey-server"].into_iter().find(found);
    Command::new(name.expect("a server in the path, or REDIS_SERVER"))
}

fn spawn(
    folder: &TempDir,
    port: u16,
    options: &[String],
    environment: &[(String, PathBuf)],
) -> Child {
    let mut command = server_command();
    command
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .arg("--port")
        .arg(port.to_string())
        .args(["--bind", "127.0.0.1", "--save", "", "--dir"])
        .arg(folder.path())
        .arg("--logfile")
        .arg(folder.path().join("log"));
    if !options.iter().any(|option| option == "no-module") {
        command.arg("--loadmodule").arg(module());
    }
    for option in options.iter().filter(|option| *option != "no-module") {
        let mut words = option.split(' ');
        command
            .arg(format!("--{}", words.next().unwrap()))
            .args(words);
    }
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .stdin(Stdio::null());
    command.spawn().expect("the server can be started")
}
