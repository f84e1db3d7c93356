//! Exit codes, what the command gets, and that no lock is left held.

use std::io::Write;
use std::process::Stdio;

use redislock_testkit::process::{Running, outcome, written};
use redislock_testkit::wait_until;

use crate::masters;
use crate::tool::{holder, nothing_is_held, redlock, run};

#[test]
fn the_commands_exit_code_is_passed_on_and_nothing_stays_held() {
    let servers = masters::<3>();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let ended = outcome(run(&servers, "job", &[], script));
        assert_eq!(ended.code, Some(code), "{script}: {ended:?}");
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""));
        nothing_is_held(&servers);
    }
}

#[test]
fn the_command_gets_key_and_fence_and_the_next_one_a_higher_fence() {
    let servers = masters::<3>();
    let mut last = 0;
    for _ in 0..3 {
        let ended = outcome(run(
            &servers,
            "a key",
            &[],
            "echo \"$REDLOCK_FENCE $REDLOCK_KEY\"",
        ));
        let (fence, key) = ended.out.trim_end().split_once(' ').unwrap();
        assert_eq!(key, "a key");
        let fence: u64 = fence.parse().unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn the_command_inherits_standard_input_output_and_error() {
    let servers = masters::<1>();
    let mut command = run(&servers, "job", &[], "cat; echo complaint >&2");
    command.stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n\0two").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"one\n\0two");
    assert_eq!(output.stderr, b"complaint\n");
}

#[test]
fn a_lock_that_another_client_holds_gives_75_or_the_chosen_code() {
    let servers = masters::<3>();
    let _holder = holder(&servers, "job", &["--owner", "the first"]);
    for (options, code) in [
        (&["--wait", "0"][..], 75),
        (&["--wait", "400ms"], 75),
        (&["--wait", "0", "--conflict-exit-code", "3"], 3),
        (&["--wait", "0", "--shared"], 75),
    ] {
        let ended = outcome(run(&servers, "job", options, "echo ran"));
        assert_eq!(ended.code, Some(code), "{options:?}: {ended:?}");
        assert_eq!(ended.out, "", "{options:?}");
        assert!(ended.err.contains("the first"), "{ended:?}");
    }
    let other = outcome(run(&servers, "other", &["--wait", "0"], "echo ran"));
    assert_eq!((other.code, other.out.as_str()), (Some(0), "ran\n"));
}

#[test]
fn shared_holders_run_together() {
    let servers = masters::<3>();
    let _holder = holder(&servers, "job", &["--shared"]);
    let options = ["--wait", "0", "--shared"];
    assert_eq!(outcome(run(&servers, "job", &options, "")).code, Some(0));
    let alone = ["--wait", "0"];
    assert_eq!(outcome(run(&servers, "job", &alone, "")).code, Some(75));
}

#[test]
fn two_of_five_may_be_dead() {
    let mut servers = masters::<5>();
    servers[0].kill();
    servers[3].kill();
    let ended = outcome(run(&servers, "job", &[], "echo ran"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("ran\n", ""));
    servers[4].kill();
    let ended = outcome(run(&servers, "job", &["-n"], "echo ran"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(69), ""));
    assert!(ended.err.contains("too few nodes"), "{ended:?}");
    nothing_is_held(&servers[1..3]);
}

#[test]
fn two_masters_may_die_while_the_command_runs() {
    let mut servers = masters::<5>();
    let folder = tempfile::tempdir().unwrap();
    let (started, go) = (folder.path().join("started"), folder.path().join("go"));
    let script = format!(
        "echo yes > {}; until [ -e {} ]; do sleep 0.05; done; echo done",
        started.display(),
        go.display()
    );
    let running = Running::start(run(&servers, "job", &["--ttl", "3s"], &script));
    written(&started);
    servers[0].kill();
    servers[1].kill();
    let renewals = |server: &redislock_testkit::Server| server.calls("LOCK.EXTEND");
    let before = renewals(&servers[2]);
    wait_until("it was renewed three times since", || {
        renewals(&servers[2]) >= before + 3
    });
    std::fs::write(&go, "").unwrap();
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "done\n"));
    assert_eq!(ended.err, "");
    nothing_is_held(&servers[2..]);
}

#[test]
fn messages_are_json_with_json() {
    let servers = masters::<1>();
    let mut command = redlock(&servers);
    command.args(["run", "--json", "--key", "k", "--", "no-such-command"]);
    let ended = outcome(command);
    assert_eq!(ended.code, Some(127));
    let message: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(message["exit_code"], 127);
    let mut command = redlock(&servers);
    command.args(["run", "--json", "--ttl", "soon", "--key", "k", "--", "true"]);
    let ended = outcome(command);
    let message: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(message["exit_code"], 64);
    let holding = outcome({
        let mut command = redlock(&servers);
        command.args(["acquire", "--key", "k", "--owner", "ada"]);
        command
    });
    assert_eq!(holding.code, Some(0), "{holding:?}");
    let ended = outcome(run(&servers, "k", &["--json", "--wait", "2s"], ""));
    let messages: Vec<serde_json::Value> = ended
        .err
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(messages[0]["event"], "waiting");
    assert_eq!(messages[0]["lock"]["holders"][0]["owner"], "ada");
    assert_eq!(messages[1]["exit_code"], 75);
}
