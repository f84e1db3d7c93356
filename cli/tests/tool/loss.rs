//! The lock is lost: the command ends before another client can hold it.

use std::path::Path;

use redislock_testkit::process::{Running, is_alive, written};
use redislock_testkit::{Server, wait_until};
use rustix::process::Signal;

use crate::masters;
use crate::tool::run;

/// Seconds since the start of the host.
fn uptime(line: &str) -> f64 {
    line.split(' ').next().unwrap().parse().unwrap()
}

/// A script that writes the time every few milliseconds and ignores SIGTERM.
fn stubborn(folder: &Path) -> String {
    let (pid, alive) = (folder.join("pid"), folder.join("alive"));
    format!(
        "trap '' TERM; while :; do cat /proc/uptime >> {}; [ -e {pid} ] || echo $$ > {pid}; sleep \
         0.02; done",
        alive.display(),
        pid = pid.display()
    )
}

#[test]
fn if_masters_stop_replying_a_command_that_ignores_sigterm_is_killed_before_the_lease_ends() {
    let servers = masters::<5>();
    let folder = tempfile::tempdir().unwrap();
    const TTL: f64 = 9.0;
    let options = ["--ttl", "9s", "--grace", "3s"];
    let running = Running::start(run(&servers, "job", &options, &stubborn(folder.path())));
    let command: i32 = written(&folder.path().join("pid")).parse().unwrap();
    // Before the first renewal, so that the lease that began before the first sign of life is the
    // only one.
    servers[..3].iter().for_each(Server::pause);
    let ended = running.end();
    servers[..3].iter().for_each(Server::resume);
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(ended.err.contains("was lost"), "{ended:?}");
    assert!(ended.err.contains("too few nodes reply"), "{ended:?}");
    assert!(!is_alive(command));
    let signs = std::fs::read_to_string(folder.path().join("alive")).unwrap();
    let first = uptime(signs.lines().next().unwrap());
    let last = uptime(signs.lines().next_back().unwrap());
    assert!(last < first + TTL, "{first} to {last}");
}

#[test]
fn a_command_that_handles_sigterm_can_clean_up_and_its_children_end_with_it() {
    let servers = masters::<3>();
    let folder = tempfile::tempdir().unwrap();
    let (ready, cleaned) = (folder.path().join("ready"), folder.path().join("cleaned"));
    let script = format!(
        "trap 'echo yes > {}; exit 0' TERM; sh -c \"trap '' TERM; while :; do sleep 0.05; done\" & \
         echo $! > {}; while :; do sleep 0.05; done",
        cleaned.display(),
        ready.display()
    );
    let options = ["--ttl", "3s", "--lost-exit-code", "9"];
    let running = Running::start(run(&servers, "job", &options, &script));
    let grandchild: i32 = written(&ready).parse().unwrap();
    servers[..2].iter().for_each(Server::pause);
    let ended = running.end();
    servers[..2].iter().for_each(Server::resume);
    assert_eq!(ended.code, Some(9), "{ended:?}");
    assert_eq!(written(&cleaned), "yes");
    wait_until("its child has ended", || !is_alive(grandchild));
    wait_until("the lock is free", || {
        servers.iter().all(|server| server.is_free("job"))
    });
}

#[test]
fn a_command_that_got_sigterm_is_killed_even_if_the_masters_reply_again() {
    let servers = masters::<3>();
    let folder = tempfile::tempdir().unwrap();
    let (ready, signalled) = (folder.path().join("ready"), folder.path().join("signalled"));
    let script = format!(
        "trap 'echo yes > {}' TERM; echo $$ > {}; while :; do sleep 0.05; done",
        signalled.display(),
        ready.display()
    );
    let options = ["--ttl", "6s", "--grace", "2s"];
    let running = Running::start(run(&servers, "job", &options, &script));
    let command: i32 = written(&ready).parse().unwrap();
    servers[..2].iter().for_each(Server::pause);
    written(&signalled);
    servers[..2].iter().for_each(Server::resume);
    let ended = running.end();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(!is_alive(command));
}

#[test]
fn a_lock_that_an_administrator_released_ends_the_command() {
    let servers = masters::<3>();
    let folder = tempfile::tempdir().unwrap();
    let options = ["--ttl", "2s"];
    let running = Running::start(run(&servers, "job", &options, &stubborn(folder.path())));
    let command: i32 = written(&folder.path().join("pid")).parse().unwrap();
    for server in &servers {
        let _: u64 = server.run(&["LOCK.FORCE", "job"]);
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(ended.err.contains("an administrator"), "{ended:?}");
    assert!(!is_alive(command));
}

#[test]
fn a_tool_that_was_paused_beyond_its_lease_ends_the_command_when_it_continues() {
    let servers = masters::<3>();
    let folder = tempfile::tempdir().unwrap();
    let options = ["--ttl", "1s"];
    let mut running = Running::start(run(&servers, "job", &options, &stubborn(folder.path())));
    let command: i32 = written(&folder.path().join("pid")).parse().unwrap();
    running.signal(Signal::STOP);
    wait_until("the lease has ended everywhere", || {
        servers.iter().all(|server| server.is_free("job"))
    });
    assert!(is_alive(command));
    running.signal(Signal::CONT);
    let ended = running.end();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(!is_alive(command));
}

#[test]
fn a_command_that_ends_while_the_tool_is_paused_beyond_its_lease_is_reported_as_lost() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let (ready, go) = (folder.path().join("ready"), folder.path().join("go"));
    let script = format!(
        "echo $$ > {}; until [ -e {} ]; do sleep 0.05; done",
        ready.display(),
        go.display()
    );
    let mut running = Running::start(run(&servers, "job", &["--ttl", "1s"], &script));
    let command: i32 = written(&ready).parse().unwrap();
    running.signal(Signal::STOP);
    wait_until("the lease has ended", || servers[0].is_free("job"));
    std::fs::write(&go, "").unwrap();
    wait_until("the command has ended", || !is_alive(command));
    running.signal(Signal::CONT);
    let ended = running.end();
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(ended.err.contains("before the command ended"), "{ended:?}");
}
