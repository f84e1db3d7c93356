//! How the tool is started, and what its output says.

use std::path::Path;
use std::process::{Command, Stdio};

use redislock_testkit::process::{Outcome, Running, written};
use redislock_testkit::sentinel::NAME;
use redislock_testkit::{Server, wait_until};
use serde_json::Value;

/// How long a node may take to reply where a test is not about that: a busy machine is slow.
pub const NODE_TIMEOUT: (&str, &str) = ("REDLOCK_NODE_TIMEOUT", "5s");

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

/// The URL of the master that the Sentinel watches.
pub fn sentinel_url(sentinel: &Server) -> String {
    format!("redis+sentinel://127.0.0.1:{}/{NAME}", sentinel.port())
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

/// What a tool has written to its log between these texts; waits until it is there.
pub fn logged(log: &Path, before: &str, after: &str) -> String {
    let mut found = None;
    wait_until("the tool is ready", || {
        let text = std::fs::read_to_string(log).unwrap();
        let rest = text.split_once(before).map(|(_, rest)| rest);
        found = rest
            .and_then(|rest| rest.split_once(after))
            .map(|(between, _)| between.to_owned());
        found.is_some()
    });
    found.unwrap()
}

/// What the tool printed as JSON.
pub trait Json {
    fn json(&self) -> Value;
}

impl Json for Outcome {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// No key is left on any server.
#[track_caller]
pub fn nothing_is_held(servers: &[Server]) {
    for server in servers {
        let keys: Vec<String> = server.run(&["KEYS", "*"]);
        assert!(keys.is_empty(), "left held: {keys:?}");
    }
}
