//! The completion scripts, loaded by the shells themselves. A shell that is not installed is
//! skipped.

use std::path::Path;
use std::process::Command;

use redislock_testkit::process::outcome;
use redislock_testkit::pty::Pty;

use crate::tool::redlock;

fn is_installed(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output().is_ok();
    if !found {
        eprintln!("{shell} is not installed: its completions are not tested");
    }
    found
}

fn script(folder: &Path, shell: &str, name: &str) -> String {
    let mut command = redlock(&[]);
    command.args(["completions", shell]);
    let file = folder.join(name);
    std::fs::write(&file, outcome(command).out).unwrap();
    file.display().to_string()
}

fn said(shell: &str, words: &[&str]) -> String {
    let ended = Command::new(shell).args(words).output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && error.is_empty(), "{error}");
    String::from_utf8(ended.stdout).unwrap()
}

#[test]
fn bash_completes_verbs_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let file = script(folder.path(), "bash", "redlock");
    let complete = |words: &str, last: &str| {
        let text = format!(
            "source {file}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _redlock redlock '{last}' ''; echo \"${{COMPREPLY[@]}}\""
        );
        said("bash", &["--norc", "-c", &text])
    };
    assert_eq!(complete("redlock sta", "sta"), "status\n");
    assert_eq!(complete("redlock run --min", "--min"), "--min-hold\n");
}

#[test]
fn fish_completes_verbs_and_options() {
    if !is_installed("fish") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = script(folder.path(), "fish", "redlock.fish");
    let complete = |line: &str| {
        let text = format!("source {file}; complete -C '{line}'");
        said("fish", &["--no-config", "-c", &text])
    };
    let verbs = complete("redlock sta");
    assert!(verbs.starts_with("status\t"), "{verbs}");
    assert_eq!(verbs.lines().count(), 1, "{verbs}");
    assert!(complete("redlock run --min").starts_with("--min-hold\t"));
}

#[test]
fn zsh_completes_verbs_and_options() {
    if !is_installed("zsh") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "zsh", "_redlock");
    let mut command = Command::new("zsh");
    command.args(["-f", "-i"]).env("PS1", "ready> ");
    let mut pty = Pty::start(command);
    pty.shows("ready> ");
    pty.type_in(&format!(
        "fpath=({} $fpath); autoload -Uz compinit; compinit -D -u; redlock() {{ echo \"got=$*\"; \
         }}; echo lo\"\"aded\n",
        folder.path().display()
    ));
    pty.shows("loaded");
    pty.type_in("redlock sta\t\n");
    pty.shows("got=status");
    pty.type_in("redlock run --min-h\t\n");
    pty.shows("got=run --min-hold");
}
