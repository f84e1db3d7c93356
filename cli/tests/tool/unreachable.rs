//! Masters that cannot be reached: the tool waits for them, and its exit code is not that of a
//! usage error.

use std::time::{Duration, Instant};

use redislock_testkit::process::{Running, outcome};
use redislock_testkit::{Server, free_port};

use crate::masters;
use crate::tool::{redlock, run};

fn nowhere() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

#[test]
fn unreachable_masters_are_waited_for_and_then_reported_with_69() {
    let nodes = [nowhere(), nowhere(), nowhere()].join(",");
    for words in [
        &["run", "--key", "k", "--wait", "2s", "--", "true"][..],
        &["acquire", "--key", "k", "--wait", "2s"],
    ] {
        let start = Instant::now();
        let mut command = redlock(&[]);
        command.env("REDLOCK_NODES", &nodes).args(words);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(start.elapsed() >= Duration::from_secs(2), "{ended:?}");
        let lines: Vec<&str> = ended.err.lines().collect();
        assert_eq!(lines.len(), 2, "{ended:?}");
        assert!(lines[0].contains("too few nodes reply"), "{ended:?}");
        assert!(
            lines[1].contains("too few nodes can be reached"),
            "{ended:?}"
        );
    }
}

#[test]
fn a_master_that_starts_while_the_tool_waits_is_used() {
    let port = free_port();
    let mut command = redlock(&[]);
    command.env("REDLOCK_NODES", format!("redis://127.0.0.1:{port}"));
    command.args([
        "run", "--key", "k", "--wait", "forever", "--", "echo", "ran",
    ]);
    let mut running = Running::start(command);
    std::thread::sleep(Duration::from_millis(500));
    assert!(running.is_running());
    let _server = Server::options().port(port).start();
    let ended = running.end();
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "ran\n"),
        "{ended:?}"
    );
}

#[test]
fn masters_that_vanish_while_the_tool_waits_for_the_lock_give_69() {
    let mut servers = masters::<3>();
    for server in &servers {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "job", "somebody-else", "600000"]);
    }
    let waiting = Running::start(run(&servers, "job", &["--wait", "4s"], "echo ran"));
    std::thread::sleep(Duration::from_millis(500));
    servers.iter_mut().for_each(Server::kill);
    let ended = waiting.end();
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(69), ""),
        "{ended:?}"
    );
}

#[test]
fn a_node_that_refuses_the_user_is_unavailable() {
    let server = Server::start();
    let _: () = server.run(&["CONFIG", "SET", "requirepass", "secret"]);
    for url in [
        server.url(),
        format!("redis://:wrong@127.0.0.1:{}", server.port()),
    ] {
        let mut command = redlock(&[]);
        command.env("REDLOCK_NODES", url);
        command.args(["run", "--key", "k", "--", "true"]);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert!(ended.err.contains("password"), "{ended:?}");
    }
}

#[test]
fn extend_and_release_without_a_quorum_give_69() {
    let nodes = nowhere();
    for words in [
        &["extend", "--key", "k", "--fence", "1"][..],
        &["release", "--key", "k"],
    ] {
        let mut command = redlock(&[]);
        command
            .env("REDLOCK_NODES", &nodes)
            .env("REDLOCK_TOKEN", "t")
            .args(words);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(69), "{words:?}: {ended:?}");
    }
}
