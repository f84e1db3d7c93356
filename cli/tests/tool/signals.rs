//! Signals to the tool, and what happens to the command when the tool is killed.

use redislock_testkit::process::{Running, is_alive, outcome, written};
use redislock_testkit::{Server, Value, wait_until};
use rustix::process::Signal;

use crate::masters;
use crate::tool::{holder, nothing_is_held, run};

#[test]
fn signals_reach_the_command() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let signals = [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ];
    for (name, signal) in signals {
        let ready = folder.path().join(name);
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo yes > {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let mut running = Running::start(run(&servers, "job", &[], &script));
        written(&ready);
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(5), "{name}: {ended:?}");
        assert_eq!(ended.out, format!("got {name}\n"));
        nothing_is_held(&servers);
    }
}

/// As under `nohup … &`.
#[test]
fn signals_reach_the_command_where_the_tests_themselves_ignore_them() {
    let tests = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .arg("-c")
        .arg("trap '' HUP INT QUIT PIPE; exec \"$0\" --exact signals::signals_reach_the_command")
        .arg(tests);
    command.stdout(std::process::Stdio::piped());
    let ended = outcome(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("1 passed"), "{ended:?}");
}

#[test]
fn a_signal_that_ends_the_command_gives_128_plus_its_number() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("echo yes > {}; exec sleep 1000", ready.display());
    let mut running = Running::start(run(&servers, "job", &[], &script));
    written(&ready);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(143));
    nothing_is_held(&servers);
}

/// Elsewhere there are no real-time signals.
#[cfg(target_os = "linux")]
#[test]
fn a_real_time_signal_gives_128_plus_its_number_too() {
    let servers = masters::<1>();
    for number in [9, 34, 64] {
        let ended = outcome(run(&servers, "job", &[], &format!("kill -{number} $$")));
        assert_eq!(ended.code, Some(128 + number), "{ended:?}");
        assert_eq!(ended.err, "");
    }
    nothing_is_held(&servers);
}

#[test]
fn a_signal_ends_the_wait_and_leaves_the_queue() {
    let servers = masters::<3>();
    let mut holder = holder(&servers, "job", &[]);
    let waiters = || {
        let waiting = |server: &Server| server.run::<Value>(&["LOCK.NODE"]).number("waiters");
        servers.iter().map(waiting).sum::<i64>()
    };
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let options = ["--wait", "forever"];
        let mut waiter = Running::start(run(&servers, "job", &options, "echo ran"));
        wait_until("it waits", || waiters() == 1);
        waiter.signal(signal);
        let ended = waiter.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""));
        wait_until("it has left the queue", || waiters() == 0);
    }
    holder.signal(Signal::TERM);
    holder.end();
    nothing_is_held(&servers);
}

#[test]
fn ignored_signals_stay_ignored() {
    let servers = masters::<1>();
    let tool = env!("CARGO_BIN_EXE_redlock");
    let mut command = std::process::Command::new("sh");
    command.env("REDLOCK_NODES", servers[0].url()).args([
        "-c",
        "trap '' HUP; exec \"$0\" run --key job -- sh -c 'kill -HUP $$; kill -HUP $PPID; echo \
         alive'",
        tool,
    ]);
    command.stdout(std::process::Stdio::piped());
    let ended = outcome(command);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "alive\n"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_tool_ends_the_command() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let mut running = Running::start(run(&servers, "job", &[], &script));
    let command: i32 = written(&ready).parse().unwrap();
    assert!(is_alive(command));
    running.signal(Signal::KILL);
    wait_until("the command is gone", || !is_alive(command));
}

#[test]
fn a_command_that_is_paused_alone_keeps_its_lock() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let mut running = Running::start(run(&servers, "job", &["--ttl", "2s"], &script));
    let command = rustix::process::Pid::from_raw(written(&ready).parse().unwrap()).unwrap();
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    let before = servers[0].calls("LOCK.EXTEND");
    wait_until("it was renewed for longer than the ttl", || {
        servers[0].calls("LOCK.EXTEND") > before + 4
    });
    assert!(running.is_running());
    assert!(!servers[0].is_free("job"));
    rustix::process::kill_process(command, Signal::CONT).unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(143));
}
