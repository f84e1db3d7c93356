//! Bad input: one sentence that says what to change, the right exit code, and no lock left held.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use redislock_testkit::process::{Outcome, outcome};
use redislock_testkit::tls::Certificate;
use redislock_testkit::{Server, free_port};

use crate::masters;
use crate::tool::{nothing_is_held, redlock};

#[track_caller]
fn one_sentence(ended: &Outcome, code: i32, words: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.out, "");
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    assert!(ended.err.starts_with("redlock: "), "{ended:?}");
    assert!(ended.err.contains(words), "{words:?} is not in {ended:?}");
}

#[test]
fn every_mistake_gets_one_sentence_that_says_what_to_change() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let plain = plain.to_str().unwrap();
    let inside = folder.path().to_str().unwrap();
    let cases: [(&[&str], i32, &str); 22] = [
        (&["--key", "k"], 64, "after --"),
        (&["--key", "k", "--"], 64, "after --"),
        (&["--key", "k", "true"], 64, "after --"),
        (&["--key", "k", "sh", "-c", "true"], 64, "after --"),
        (&["--", "true"], 64, "--key"),
        (&["--key", "", "--", "true"], 64, "--key"),
        (&["--key", "k", "--", "no-such-command"], 127, "PATH"),
        (&["--key", "k", "--", "./no/such/file"], 127, "check"),
        (&["--key", "k", "--", plain], 126, "chmod +x"),
        (&["--key", "k", "--", inside], 126, "not executable"),
        (
            &["--key", "k", "--ttl", "0", "--", "true"],
            64,
            "100ms or more",
        ),
        (
            &["--key", "k", "--ttl", "0s", "--", "true"],
            64,
            "100ms or more",
        ),
        (&["--key", "k", "--ttl", "30", "--", "true"], 64, "30s"),
        (&["--key", "k", "--ttl", "soon", "--", "true"], 64, "30s"),
        (&["--key", "k", "--ttl", "1y", "--", "true"], 64, "7 days"),
        (&["--key", "k", "--wait", "-1s", "--", "true"], 64, "-1"),
        (&["--key", "k", "--wait", "soon", "--", "true"], 64, "30s"),
        (
            &["--key", "k", "--wait", "ever", "--", "true"],
            64,
            "forever",
        ),
        (
            &["--key", "k", "--grace", "20s", "--", "true"],
            64,
            "third of the ttl",
        ),
        (
            &["--key", "k", "--node-timeout", "20s", "--", "true"],
            64,
            "too short",
        ),
        (
            &["--key", "k", "--conflict-exit-code", "300", "--", "true"],
            64,
            "0..=255",
        ),
        (&["--key", "k", "--colour", "--", "true"], 64, "--colour"),
    ];
    for (words, code, hint) in cases {
        let mut command = redlock(&servers);
        command.arg("run").args(words);
        one_sentence(&outcome(command), code, hint);
        nothing_is_held(&servers);
    }
}

#[test]
fn nodes_must_be_given_exist_and_be_listed_once() {
    let servers = masters::<1>();
    let port = servers[0].port();
    let here = format!("redis://127.0.0.1:{port}");
    let here_too = format!("redis://localhost:{port}");
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let cases: [(&[&str], i32, &str); 9] = [
        (&[""], 64, "REDLOCK_NODES"),
        (&[&nowhere], 69, "check --node"),
        (&[&here, &here], 64, "list each once"),
        (&[&here, &here_too], 64, "list each once"),
        (&["http://127.0.0.1"], 64, "redis://host:port"),
        (&["redis://127.0.0.1:port"], 64, "redis://host:port"),
        (&["redis+sentinel://127.0.0.1"], 64, "name of the master"),
        (&["redis+cluster://127.0.0.1/1"], 64, "no databases"),
        (
            &[&here, "redis+cluster://127.0.0.1"],
            64,
            "must be the only node",
        ),
    ];
    for (nodes, code, hint) in cases {
        for by_environment in [false, true] {
            let mut command = redlock(&servers);
            command.args(["run", "--key", "k", "-n"]);
            if by_environment {
                command.env("REDLOCK_NODES", nodes.join(" "));
            } else {
                command.env_remove("REDLOCK_NODES");
                command.arg("--node").args(nodes);
            }
            command.args(["--", "true"]);
            one_sentence(&outcome(command), code, hint);
        }
    }
    nothing_is_held(&servers);
}

#[test]
fn nodes_are_separated_by_commas_or_blanks_and_an_invalid_one_is_named_by_its_position() {
    let servers = masters::<3>();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let ask = |nodes: &OsStr| {
        let mut command = redlock(&servers);
        command.env("REDLOCK_NODES", nodes);
        command.args(["run", "--key", "k", "--", "echo", "ran"]);
        outcome(command)
    };
    let odd = format!("\r\n ,,{}\r\n{} ,\t{}\u{a0}", urls[0], urls[1], urls[2]);
    let ended = ask(OsStr::new(&odd));
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(0), "ran\n"),
        "{ended:?}"
    );
    let wrong = format!("{},{};{}", urls[0], urls[1], urls[2]);
    one_sentence(&ask(OsStr::new(&wrong)), 64, "node 2 of 2");
    one_sentence(&ask(OsStr::from_bytes(b"redis://\xff")), 64, "UTF-8");
    nothing_is_held(&servers);
}

#[test]
fn a_low_limit_on_open_files_is_one_sentence() {
    let servers = masters::<1>();
    for files in 4..=24 {
        let mut shell = Command::new("sh");
        let script = "ulimit -n $1; shift; exec \"$@\"";
        shell.args(["-c", script, "sh", &files.to_string()]);
        shell.arg(env!("CARGO_BIN_EXE_redlock"));
        shell.args(["run", "-n", "--node", &servers[0].url(), "--key", "k"]);
        shell.args(["--", "true"]);
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = outcome(shell);
        match ended.code {
            Some(0) => assert_eq!(ended.err, "", "{files} files"),
            Some(code) => one_sentence(&ended, code, "open files"),
            None => panic!("{files} files: {ended:?}"),
        }
        nothing_is_held(&servers);
    }
}

#[test]
fn a_script_whose_interpreter_is_missing_is_not_executable() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = redlock(&servers);
    command.args(["run", "--key", "k", "--"]).arg(script);
    one_sentence(&outcome(command), 126, "interpreter in its first line");
    nothing_is_held(&servers);
}

#[test]
fn with_json_every_error_is_json() {
    let servers = masters::<1>();
    let cases: [&[&str]; 10] = [
        &["--json"],
        &["--json", "no-such-verb"],
        &["run", "--json"],
        &["acquire", "--json"],
        &["extend", "--json"],
        &["release", "--json", "--key", "a\nb"],
        &["status", "--json"],
        &["force", "--json"],
        &["nodes", "--json", "--node", "redis://127.0.0.1:port"],
        &["man", "--json", "no-such-page"],
    ];
    for words in cases {
        let mut command = redlock(&servers);
        command.args(words);
        let ended = outcome(command);
        let said: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        assert_eq!(ended.code, Some(64), "{words:?}: {ended:?}");
        assert_eq!(said["exit_code"], 64, "{words:?}: {ended:?}");
    }
}

#[test]
fn servers_that_cannot_serve_are_named_with_the_reason() {
    let bare = [Server::options().without_module().start()];
    let mut command = redlock(&bare);
    command.args(["run", "--key", "k", "--", "true"]);
    one_sentence(&outcome(command), 69, "module");
    let servers = masters::<1>();
    let _: String = servers[0].run(&["SET", "text", "x"]);
    let mut command = redlock(&servers);
    command.args(["run", "--key", "text", "--", "true"]);
    one_sentence(&outcome(command), 64, "another type");
}

#[test]
fn a_quarantine_is_named_while_waiting() {
    let servers = [Server::with(["lock.quarantine 600000"])];
    let mut command = redlock(&servers);
    command.args(["run", "--key", "k", "--wait", "2s", "--", "true"]);
    let ended = outcome(command);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    let lines: Vec<&str> = ended.err.lines().collect();
    assert!(
        lines[0].contains("1 of 1 nodes are quarantined"),
        "{ended:?}"
    );
    assert!(lines[1].contains("quarantined"), "{ended:?}");
}

#[test]
fn masters_with_tls_are_verified_with_the_given_ca() {
    let certificate = Certificate::new();
    let port = free_port();
    let _server = Server::with(certificate.config(port, "no"));
    let run = |options: &[&str]| {
        let mut command = redlock(&[]);
        command.args([
            "run",
            "-n",
            "--key",
            "k",
            "--node",
            &format!("rediss://localhost:{port}"),
        ]);
        if !options.is_empty() {
            command.arg("--ca-cert").args(options);
        }
        command.args(["--", "echo", "ran"]);
        outcome(command)
    };
    let reached = run(&[&certificate.path("cert.pem")]);
    assert_eq!(
        (reached.code, reached.out.as_str()),
        (Some(0), "ran\n"),
        "{reached:?}"
    );
    one_sentence(&run(&[]), 69, "ertificate");
    one_sentence(&run(&[&certificate.path("none")]), 64, "cannot be read");
}

#[test]
fn passwords_of_nodes_are_not_repeated() {
    let servers = masters::<1>();
    let port = free_port();
    for (url, code) in [
        (format!("redis://user:hunter2@127.0.0.1:{port}"), 69),
        ("redis://user:hunter2@127.0.0.1:port".to_owned(), 64),
        (format!("redis+sentinel://u:hunter2@127.0.0.1:{port}/m"), 69),
        (format!("redis+cluster://u:hunter2@127.0.0.1:{port}"), 69),
        ("redis+cluster://u:hunter2@127.0.0.1:port".to_owned(), 64),
    ] {
        for verb in [&["nodes"][..], &["run", "-n", "--key", "k", "--", "true"]] {
            let mut command = redlock(&servers);
            command.env("REDLOCK_NODES", &url).args(verb);
            let ended = outcome(command);
            assert_eq!(ended.code, Some(code), "{ended:?}");
            assert!(!ended.err.contains("hunter2"), "{ended:?}");
        }
    }
}

#[test]
fn help_explains_with_examples_and_every_verb_has_a_page() {
    let help = |words: &[&str]| {
        let mut command = redlock(&[]);
        command.args(words);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended.out
    };
    assert!(help(&["--help"]).contains("Examples:"));
    for verb in [
        "run",
        "acquire",
        "extend",
        "release",
        "status",
        "ls",
        "force",
        "nodes",
        "doctor",
        "completions",
        "man",
    ] {
        assert!(help(&["--help"]).contains(verb));
        assert!(help(&[verb, "--help"]).contains("Examples:"), "{verb}");
        let page = help(&["man", verb]);
        assert!(page.contains(".TH") && page.contains(".SH EXAMPLES"));
        assert!(!page.contains(".SH EXTRA"));
        let notes = page.split(".SH EXAMPLES AND NOTES").nth(1).unwrap();
        assert!(notes.starts_with("\n.nf\n") && notes.contains(".fi"));
    }
    assert!(help(&["man"]).contains("REDLOCK_NODES"));
    for shell in ["bash", "zsh", "fish"] {
        let script = help(&["completions", shell]);
        assert!(script.contains("redlock") && script.contains("conflict-exit-code"));
    }
    assert!(help(&["--version"]).starts_with("redlock "));
}
