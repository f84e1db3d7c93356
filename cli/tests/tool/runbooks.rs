//! The runbooks of docs/OPERATIONS.md: their commands are run as they stand there, and what they
//! print is compared. Numbers, and the width of columns, may differ.

use std::process::{Command, Stdio};
use std::time::Duration;

use redislock_testkit::process::Running;
use redislock_testkit::sentinel::Deployment;
use redislock_testkit::{Server, SteppedServer, info_field, wait_patiently, wait_until};

use crate::doctor::{SOUND, wait_until_it_grants};
use crate::masters;
use crate::tool::{NODE_TIMEOUT, holder, redlock, sentinel_url};

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
    // redis-cli prints an empty line after an error.
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(normal_line).collect()
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

/// The commands of a block, each with what it prints.
fn commands(block: &str) -> Vec<(&str, &str)> {
    let parts = block.split("$ ").skip(1);
    parts
        .map(|part| part.split_once('\n').expect("a command"))
        .collect()
}

/// Runs the block: `$ command`, then what it prints.
#[track_caller]
fn prints_as_written(block: &str, servers: &[Server]) {
    let nodes: Vec<String> = servers.iter().map(Server::url).collect();
    for (command, expected) in commands(block) {
        let mut command = command.to_owned();
        for (place, server) in servers.iter().enumerate() {
            let theirs = format!("-h 10.0.0.{} ", place + 1);
            command = command.replace(&theirs, &format!("-h 127.0.0.1 -p {} ", server.port()));
        }
        let printed = printed(shell(&command, &nodes.join(",")));
        assert_eq!(
            normal(&printed, servers),
            normal(expected, servers),
            "{printed}"
        );
    }
}

fn printed(mut shell: Command) -> String {
    let ended = shell.output().expect("a shell");
    String::from_utf8_lossy(&ended.stdout).replace('\r', "")
}

/// A shell that runs a command of the page, for these nodes.
fn shell(command: &str, nodes: &str) -> Command {
    let mut command = command.to_owned();
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
    let tool = redlock(&[]);
    let folder = std::path::Path::new(tool.get_program()).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    // Both streams in their order, as on a terminal.
    shell.args(["-c", &format!("{{ {command}; }} 2>&1")]);
    shell
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("NO_COLOR", "1")
        .env("REDLOCK_NODES", nodes)
        .envs([NODE_TIMEOUT])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    shell
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
    servers.iter().for_each(wait_until_it_grants);
    servers
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
fn a_server_that_refuses_new_locks() {
    let blocks = blocks("A server that refuses new locks");
    let [refused] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let servers = sound();
    let _: () = servers[0].run(&["CONFIG", "SET", "maxmemory", "1"]);
    prints_as_written(refused, &servers);
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
    wait_until_it_grants(&ahead.server);
    wait_until_it_grants(&behind.server);
    let servers = [behind.server, ahead.server, third];
    prints_as_written(doctor, &servers);
}

#[test]
fn a_failover_drill() {
    // The page has a lease of 30 s; here, it is as long as the quarantine.
    let options = Server::options().configs([
        "lock.quarantine 10000",
        "lock.max-waiters 100",
        "min-replicas-to-write 1",
        "min-replicas-max-lag 1",
    ]);
    let deployment = Deployment::start(&options);
    wait_until_it_grants(&deployment.master);
    let sentinel = deployment.sentinels[0].port();
    let nodes = sentinel_url(&deployment.sentinels[0]);
    let here = |command: &str| {
        let command = command.replace("-h 10.0.0.1 -p 26379", &format!("-p {sentinel}"));
        let mut shell = shell(&command.replace("--ttl 30s", "--ttl 10s"), &nodes);
        shell.env(NODE_TIMEOUT.0, "2s"); // the lease is longer than three of these
        shell
    };
    let agrees = |block: &str| {
        for (command, expected) in commands(block) {
            let printed = printed(here(command));
            assert_eq!(normal(&printed, &[]), normal(expected, &[]), "{printed}");
        }
    };
    let blocks = blocks("A failover drill");
    let [sound, hold, fail_over, quarantined, granted] = blocks[..] else {
        panic!("{blocks:?}")
    };
    agrees(sound);
    let [(hold, message)] = commands(hold)[..] else {
        panic!("{hold}")
    };
    let mut holder = Running::start(here(hold));
    wait_until("the lock is held", || {
        assert!(holder.is_running(), "it did not get the lock");
        !deployment.master.is_free("drill")
    });
    let replica = &deployment.replicas[0];
    let [status, promote] = &commands(fail_over)[..] else {
        panic!("{fail_over}")
    };
    agrees(&format!("$ {}\n{}", status.0, status.1));
    // A new master without a replica stays in quarantine until the test has looked at it.
    deployment.master.pause();
    agrees(&format!("$ {}\n{}", promote.0, promote.1));
    wait_patiently("the replica is promoted", || {
        deployment.master_port() == Some(replica.port())
    });
    agrees(quarantined);
    let ended = holder.end();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    // On a busy machine, the last thing that the holder sees may be the old master's silence.
    let silence = "redlock: lock drill was lost and the command stopped: too few nodes reply \
         (master locks of Sentinel #:#: unreachable: timed out)";
    let ended = normal(&ended.out, &[]);
    assert!(
        ended == normal(message, &[]) || ended == [silence],
        "{ended:?}"
    );
    deployment.master.resume();
    wait_until_it_grants(replica);
    agrees(granted);
}

/// A node whose AOF grows no longer: the device behind it is always full.
#[cfg(target_os = "linux")]
fn with_a_full_disk() -> Server {
    let mut server = Server::options()
        .configs(SOUND)
        .appendonly("everysec")
        .start();
    server.kill();
    let file = server.growing_aof();
    std::fs::remove_file(&file).expect("it is replaced");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    server.start_again();
    let mut c = server.connect();
    c.call("SET fills the-disk");
    wait_until("a write has failed", || {
        info_field(&mut c, "persistence", "aof_last_write_status") == "err"
    });
    server
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let blocks = blocks("A full disk");
    let [full] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let [_, second, third] = sound();
    let servers = [with_a_full_disk(), second, third];
    wait_until_it_grants(&servers[0]);
    prints_as_written(full, &servers);
}
