//! acquire, extend and release.

use std::io::Write;
use std::process::{Command, Stdio};

use redislock_testkit::process::outcome;

use crate::masters;
use crate::tool::{Json, nothing_is_held, redlock};

#[test]
fn a_script_acquires_extends_and_releases_through_its_environment() {
    let servers = masters::<3>();
    let nodes: Vec<String> = servers.iter().map(redislock_testkit::Server::url).collect();
    let mut script = Command::new("sh");
    script.env("REDLOCK_NODES", nodes.join(" ")).args([
        "-c",
        "set -e\n\
         eval \"$(\"$0\" acquire --key \"it's here\" --ttl 20s)\"\n\
         echo \"$REDLOCK_KEY $REDLOCK_FENCE\"\n\
         \"$0\" run --key \"$REDLOCK_KEY\" --wait 0 -- true || echo busy $?\n\
         \"$0\" extend --ttl 1m\n\
         \"$0\" release\n\
         \"$0\" run --key \"$REDLOCK_KEY\" --wait 0 -- echo free\n\
         \"$0\" release || echo lost $?\n\
         \"$0\" extend || echo lost $?",
        env!("CARGO_BIN_EXE_redlock"),
    ]);
    script.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = outcome(script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(lines[0].starts_with("it's here 1"), "{ended:?}");
    assert_eq!(lines[1..], ["busy 75", "free", "lost 70", "lost 70"]);
    nothing_is_held(&servers);
}

#[test]
fn the_token_can_be_read_from_standard_input_and_only_its_owner_can_release() {
    let servers = masters::<3>();
    let mut acquire = redlock(&servers);
    acquire.args(["acquire", "--key", "k", "--json"]);
    let taken = outcome(acquire).json();
    assert!(taken["fence"].as_u64().unwrap() > 0);
    assert!(taken["valid_ms"].as_u64().unwrap() > 0);
    let release = |token: &str| {
        let mut command = redlock(&servers);
        command.args(["release", "--key", "k", "--json"]);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{token}").unwrap();
        drop(input);
        child.wait_with_output().unwrap().status.code()
    };
    assert_eq!(release("somebody-elses"), Some(70));
    assert!(!servers[0].is_free("k"));
    assert_eq!(release(taken["token"].as_str().unwrap()), Some(0));
    nothing_is_held(&servers);
    assert_eq!(release(""), Some(64));
}

#[test]
fn a_lock_whose_token_cannot_be_printed_is_released() {
    let servers = masters::<3>();
    let mut acquire = redlock(&servers);
    acquire.args(["acquire", "--key", "k"]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    acquire.stdout(full);
    let ended = outcome(acquire);
    assert_eq!(ended.code, Some(74), "{ended:?}");
    nothing_is_held(&servers);
}

#[test]
fn a_lock_that_a_majority_granted_again_cannot_be_extended() {
    let servers = masters::<3>();
    let mut acquire = redlock(&servers);
    acquire.args(["acquire", "--key", "k", "--json"]);
    let taken = outcome(acquire).json();
    let token = taken["token"].as_str().unwrap();
    for server in &servers[..2] {
        let _: u64 = server.run(&["LOCK.FORCE", "k"]);
        let _: u64 = server.run(&["LOCK.ACQUIRE", "k", token, "30000"]);
    }
    let mut extend = redlock(&servers);
    extend
        .args(["extend", "--key", "k"])
        .args(["--fence", &taken["fence"].to_string()])
        .env("REDLOCK_TOKEN", token);
    let ended = outcome(extend);
    assert_eq!(ended.code, Some(70), "{ended:?}");
    assert!(!ended.err.contains(token));
}

#[test]
fn what_is_missing_is_named() {
    let servers = masters::<1>();
    for (words, hint) in [
        (&["release"][..], "REDLOCK_KEY"),
        (&["release", "--key", "k"], "REDLOCK_TOKEN"),
        (&["extend", "--key", "k"], "REDLOCK_FENCE"),
        (&["acquire"], "--key"),
        (&["status"], "name"),
        (&["force"], "name"),
    ] {
        let mut command = redlock(&servers);
        command.args(words);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(64), "{words:?}: {ended:?}");
        assert!(ended.err.contains(hint), "{words:?}: {ended:?}");
    }
}

/// Runs a script in which `redlock` is `$0`.
fn script(nodes: &str, text: &str) -> redislock_testkit::process::Outcome {
    let mut command = Command::new("sh");
    command.env("REDLOCK_NODES", nodes);
    command.args(["-c", text, env!("CARGO_BIN_EXE_redlock")]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    outcome(command)
}

#[test]
fn a_script_ends_if_the_lock_was_not_acquired() {
    let servers = masters::<1>();
    let _: u64 = servers[0].run(&["LOCK.ACQUIRE", "busy", "somebody-else", "60000"]);
    let url = servers[0].url();
    let nowhere = format!("redis://127.0.0.1:{}", redislock_testkit::free_port());
    for (nodes, options) in [
        (&url, "--key busy -n"),
        (&url, "--key busy -nq"),
        (&nowhere, "--key free -n"),
        (&url, "--kee free"),
        (&url, "--key free --ttl soon"),
        (&url, ""),
    ] {
        let line = format!("eval \"$(\"$0\" acquire {options})\"");
        for text in [
            format!("set -e\n{line}\necho UNLOCKED"),
            format!("{line} || exit\necho UNLOCKED"),
        ] {
            let ended = script(nodes, &text);
            assert_eq!(ended.out, "", "{text}: {ended:?}");
            assert_ne!(ended.code, Some(0), "{text}: {ended:?}");
        }
        // With an assignment the exit code survives.
        let kept = format!("held=$(\"$0\" acquire {options}) || exit; echo UNLOCKED");
        let ended = script(nodes, &kept);
        assert_eq!(ended.out, "");
        assert!(matches!(ended.code, Some(64 | 69 | 75)), "{ended:?}");
    }
    // Even where the exit code says nothing.
    for options in ["-n -E 0", "-nq -E 0"] {
        let text =
            format!("set -e\neval \"$(\"$0\" acquire --key busy {options})\"\necho UNLOCKED");
        let ended = script(&url, &text);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{ended:?}");
    }
    let held = "eval \"$(\"$0\" acquire --key free -n)\" || exit; echo \"held $REDLOCK_KEY\"";
    assert_eq!(script(&url, held).out, "held free\n");
}

#[test]
fn programs_that_read_json_get_no_shell_command() {
    let servers = masters::<1>();
    let _: u64 = servers[0].run(&["LOCK.ACQUIRE", "busy", "somebody-else", "60000"]);
    let mut command = redlock(&servers);
    command.args(["acquire", "--json", "--key", "busy", "-n"]);
    let ended = outcome(command);
    assert_eq!((ended.code, ended.out.as_str()), (Some(75), ""));
}
