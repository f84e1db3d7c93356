//! The runbooks of docs/OPERATIONS.md: their commands are run as they stand there, and what they
//! print is compared. Numbers, and the width of columns, may differ.

use std::process::{Command, Stdio};
use std::time::Duration;

use redislock_testkit::{Server, SteppedServer, Value, wait_until};

use crate::masters;
use crate::tool::{NODE_TIMEOUT, holder, redlock};

const PAGE: &str = include_str!("../../../docs/OPERATIONS.md");

/// The console blocks under a heading.
fn blocks(heading: &str) -> Vec<&'static str> {
    let (_, runbook) = PAGE
        .split_once(&format!("\n### {heading}\n"))
        .expect("the runbook");
    let runbook = runbook.split("\n##").next().expect("its text");
    let blocks = runbook.split("```console\n").skip(1);
    blocks
        .map(|block| block.split("```").next().expect("a block"))
        .collect()
}

/// The addresses of the page for the ports of the test, any number for a number, no widths.
fn normal(text: &str, servers: &[Server]) -> Vec<String> {
    let mut text = text.to_owned();
    for (place, server) in servers.iter().enumerate() {
        let ours = format!("127.0.0.1:{}", server.port());
        text = text.replace(&ours, &format!("10.0.0.{}:6379", place + 1));
    }
    let addresses = ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"];
    for (place, address) in addresses.iter().enumerate() {
        text = text.replace(address, ["node-a", "node-b", "node-c"][place]);
    }
    text.lines().map(normal_line).collect()
}

fn normal_line(line: &str) -> String {
    let mut normal = String::new();
    for c in line.chars() {
        let c = if c.is_ascii_digit() { '#' } else { c };
        let repeats = normal.ends_with(c) && (c == '#' || c == ' ');
        if !repeats {
            normal.push(c);
        }
    }
    // Any duration is like any other: `1.9 s`, `120 ms`, `10m 5s`. A clock may be behind.
    for (from, to) in [
        ("#.#", "#"),
        ("#.#", "#"),
        ("#m #s", "# s"),
        ("# ms", "# s"),
        (" -# s", " +# s"),
    ] {
        normal = normal.replace(from, to);
    }
    normal.trim_end().to_owned()
}

/// Runs the block: `$ command`, then what it prints.
#[track_caller]
fn prints_as_written(block: &str, servers: &[Server]) {
    for part in block.split("$ ").skip(1) {
        let (command, expected) = part.split_once('\n').expect("a command");
        let printed = run(command, servers);
        assert_eq!(
            normal(&printed, servers),
            normal(expected, servers),
            "{printed}"
        );
    }
}

/// Runs a command of the page, with the ports of the test.
fn run(command: &str, servers: &[Server]) -> String {
    let mut command = command.to_owned();
    for (place, server) in servers.iter().enumerate() {
        let theirs = format!("-h 10.0.0.{} ", place + 1);
        command = command.replace(&theirs, &format!("-h 127.0.0.1 -p {} ", server.port()));
    }
    let is_there = |name: &str| {
        let mut tried = Command::new(name);
        tried
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok()
    };
    if !is_there("redis-cli") {
        command = command.replace("redis-cli", "valkey-cli");
    }
    let tool = redlock(servers);
    let folder = std::path::Path::new(tool.get_program()).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    // Both streams in their order, as on a terminal.
    shell.args(["-c", &format!("{{ {command}; }} 2>&1")]);
    shell
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("NO_COLOR", "1")
        .envs([NODE_TIMEOUT]);
    for (name, value) in tool.get_envs().filter(|(name, _)| *name == "REDLOCK_NODES") {
        shell.env(name, value.unwrap());
    }
    let ended = shell.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&ended.stdout).replace('\r', "")
}

#[test]
fn a_stuck_lock() {
    let blocks = blocks("A stuck lock");
    let servers = masters::<3>();
    let _holder = holder(&servers, "nightly", &["--owner", "web-7"]);
    let [status, force] = blocks[..] else {
        panic!("{blocks:?}")
    };
    prints_as_written(status, &servers);
    prints_as_written(force, &servers);
    assert!(servers.iter().all(|server| server.is_free("nightly")));
}

/// Three nodes without any other problem.
fn sound() -> [Server; 3] {
    let servers = Server::options().configs(SOUND).start_many();
    servers.iter().for_each(wait_for_the_end_of_the_quarantine);
    servers
}

const SOUND: [&str; 2] = ["lock.quarantine 300", "lock.max-waiters 100"];

fn wait_for_the_end_of_the_quarantine(server: &Server) {
    wait_until("the quarantine is over", || {
        server.run::<Value>(&["LOCK.NODE"]).number("quarantine") == 0
    });
}

#[test]
fn a_node_does_not_reply() {
    let blocks = blocks("A node does not reply");
    let [doctor] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let mut servers = sound();
    servers[0].kill();
    prints_as_written(doctor, &servers);
}

#[test]
fn a_node_in_quarantine() {
    let blocks = blocks("A node in quarantine");
    let [nodes, reason] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let [_, second, third] = sound();
    let first = Server::with(["lock.quarantine 600000"]);
    let servers = [first, second, third];
    prints_as_written(nodes, &servers);
    prints_as_written(reason, &servers);
}

#[test]
fn clock_trouble() {
    let blocks = blocks("Clock trouble");
    let [doctor] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let [_, _, third] = sound();
    let options = || Server::options().configs(SOUND);
    let ahead = SteppedServer::start_ahead(options(), Duration::from_secs(2));
    let behind = SteppedServer::start(options());
    behind.step(-1);
    wait_for_the_end_of_the_quarantine(&ahead.server);
    wait_for_the_end_of_the_quarantine(&behind.server);
    let servers = [behind.server, ahead.server, third];
    prints_as_written(doctor, &servers);
}
