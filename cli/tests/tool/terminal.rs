//! On a terminal: who reads it, ctrl-C, ctrl-Z, rewritten lines, questions, colors. In a log: none
//! of these.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use redislock_testkit::process::outcome;
use redislock_testkit::pty::Pty;
use redislock_testkit::{Server, wait_until};

use crate::masters;
use crate::tool::{holder, nothing_is_held, redlock, run};

/// An interactive shell in which `redlock` is `$R`.
fn shell(servers: &[Server]) -> Pty {
    let mut command = Command::new("sh");
    let nodes: Vec<String> = servers.iter().map(Server::url).collect();
    command
        .arg("-i")
        .env("REDLOCK_NODES", nodes.join(","))
        .env("R", env!("CARGO_BIN_EXE_redlock"))
        .env("PS1", "ready> ")
        .env_remove("ENV");
    let pty = Pty::start(command);
    pty.shows("ready> ");
    pty
}

#[test]
fn the_command_reads_the_terminal_and_the_shell_has_it_back_afterwards() {
    let servers = masters::<1>();
    let mut pty = shell(&servers);
    pty.type_in("$R run --key job -- sh -c 'echo as\"\"k; read answer; echo \"heard $answer\"'\n");
    pty.shows("ask");
    pty.type_in("hello\n");
    pty.shows("heard hello");
    pty.type_in("echo code=$?; echo again\n");
    pty.shows("code=0");
    // In a pipeline it gets the terminal when it asks for it.
    pty.type_in(
        "$R run --key job -- sh -c 'echo as\"\"k2; read answer; echo \"heard $answer\"' | cat\n",
    );
    pty.shows("ask2");
    pty.type_in("bye\n");
    pty.shows("heard bye");
    pty.type_in("exit 0\n");
    assert_eq!(pty.end(), Some(0));
    nothing_is_held(&servers);
}

#[test]
fn ctrl_c_ends_the_command_and_releases() {
    let servers = masters::<1>();
    let mut pty = shell(&servers);
    for (pipe, code) in [("", "130"), (" </dev/null", "130")] {
        let line = format!(
            "$R run --key job -- sh -c 'echo be\"\"gun; exec sleep 1000'{pipe}; echo code=$?\n"
        );
        let before = pty.screen().matches("begun").count();
        pty.type_in(&line);
        wait_until("it has begun", || {
            pty.screen().matches("begun").count() > before
        });
        pty.type_in("\x03");
        wait_until("it has ended", || servers[0].is_free("job"));
        pty.type_in("echo code=$?.\n");
        pty.shows(&format!("code={code}"));
    }
}

#[test]
fn ctrl_c_reaches_the_script_that_started_the_tool() {
    let servers = masters::<1>();
    let mut pty = shell(&servers);
    pty.type_in(
        "sh -c '$R run --key job -- sh -c \"echo be\\\"\\\"gun; exec sleep 1000\"; echo \
                 went\"\" on'\n",
    );
    pty.shows("begun");
    pty.type_in("\x03");
    wait_until("it has ended", || servers[0].is_free("job"));
    pty.type_in("echo code=$?.\n");
    pty.shows("code=130.");
    assert!(!pty.screen().contains("went on"), "{}", pty.screen());
}

#[test]
fn a_pager_at_the_end_of_a_pipeline_keeps_the_terminal() {
    let servers = masters::<1>();
    let mut pty = shell(&servers);
    pty.type_in(
        "$R run --key job -- sh -c 'echo page; exec sleep 1000' | sh -c 'read page; echo \
                 \"sh\"\"ows $page\"; read key </dev/tty; echo \"key $key\"'\n",
    );
    pty.shows("shows page");
    pty.type_in("down\n");
    pty.shows("key down");
    pty.type_in("\x03");
    wait_until("it has ended", || servers[0].is_free("job"));
}

#[test]
fn a_job_in_the_background_waits_with_one_line() {
    let servers = masters::<1>();
    let mut holder = holder(&servers, "job", &["--owner", "ada"]);
    let mut pty = shell(&servers);
    pty.type_in("$R run --key job -- echo ran & wait; echo al\"\"l\n");
    pty.shows("held by ada");
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
    pty.shows("ran");
    pty.shows("all");
    assert!(!pty.screen().contains("\x1b[2K"), "{:?}", pty.screen());
    assert_eq!(pty.screen().matches("held by ada").count(), 1);
}

#[test]
fn ctrl_z_stops_and_fg_continues_both() {
    let servers = masters::<1>();
    let mut pty = shell(&servers);
    pty.type_in(
        "$R run --key job --ttl 5m -- sh -c 'echo be\"\"gun; read one; echo \"one $one\"; \
                 read two; echo \"two $two\"'\n",
    );
    pty.shows("begun");
    pty.type_in("\x1a");
    pty.shows("Stopped");
    assert!(!servers[0].is_free("job"));
    pty.type_in("fg\n");
    pty.type_in("1\n");
    pty.shows("one 1");
    pty.type_in("2\n");
    pty.shows("two 2");
    pty.type_in("echo code=$?.\n");
    pty.shows("code=0.");
    nothing_is_held(&servers);
}

#[test]
fn a_command_that_was_stopped_beyond_its_lease_is_not_continued() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let (pipe, went_on) = (folder.path().join("pipe"), folder.path().join("went-on"));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut pty = shell(&servers);
    // A loop around sleep would not do: a shell that is stopped while it starts one is not seen to
    // have stopped.
    pty.type_in(&format!(
        "$R run --key job --ttl 1s -- sh -c 'echo be\"\"gun; read word < {}; echo yes > {}'\n",
        pipe.display(),
        went_on.display()
    ));
    pty.shows("begun");
    pty.type_in("\x1a");
    pty.shows("Stopped");
    wait_until("the lease has ended", || servers[0].is_free("job"));
    // What the command waits for is there: it would go on at once.
    let mut end = File::options().read(true).write(true).open(&pipe).unwrap();
    end.write_all(b"go\n").unwrap();
    pty.type_in("fg\n");
    pty.shows("was lost");
    pty.type_in("echo code=$?.\n");
    pty.shows("code=70.");
    assert!(!went_on.exists());
}

#[test]
fn waiting_is_one_line_that_is_rewritten_on_a_terminal() {
    let servers = masters::<3>();
    let mut holder = holder(&servers, "job", &["--owner", "ada"]);
    let mut command = run(&servers, "job", &["--wait", "5m"], "echo ran");
    command.env_remove("NO_COLOR");
    let mut pty = Pty::start(command);
    pty.shows("held by ada");
    wait_until("it is rewritten", || {
        pty.screen().matches("\r\x1b[2K").count() > 3
    });
    assert!(!pty.screen().contains('\n'), "{:?}", pty.screen());
    assert!(pty.screen().contains(" of 5m)"), "{:?}", pty.screen());
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
    assert_eq!(pty.end(), Some(0));
    wait_until("the output is read", || pty.screen().contains("ran"));
    // The line was taken away before the command wrote its own.
    assert!(
        pty.screen().ends_with("\r\x1b[2Kran\r\n"),
        "{:?}",
        pty.screen()
    );
}

#[test]
fn waiting_is_one_line_in_a_log() {
    let servers = masters::<3>();
    let _holder = holder(&servers, "job", &["--owner", "ada"]);
    let ended = outcome(run(&servers, "job", &["--wait", "2s"], "echo ran"));
    assert_eq!(ended.code, Some(75));
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(lines.len(), 2, "{ended:?}");
    assert!(lines[0].contains("waiting for lock job"), "{ended:?}");
    assert!(
        lines[0].contains(" of 2.0 s): held by ada for another "),
        "{ended:?}"
    );
    assert!(!ended.err.contains(['\x1b', '\r']), "{ended:?}");
}

#[test]
fn force_asks_on_a_terminal() {
    let servers = masters::<3>();
    let _holder = holder(&servers, "job", &["--owner", "ada"]);
    for (answer, code) in [("n\n", 1), ("\n", 1), ("y\n", 0)] {
        let mut command = redlock(&servers);
        command.args(["force", "job"]);
        let mut pty = Pty::start(command);
        pty.shows("held by ada");
        pty.shows("[y/N]");
        assert!(!servers[0].is_free("job"));
        pty.type_in(answer);
        assert_eq!(pty.end(), Some(code), "{}", pty.screen());
    }
    nothing_is_held(&servers);
}

#[test]
fn force_says_before_it_asks_that_too_few_nodes_reply() {
    let mut servers = masters::<3>();
    for server in &mut servers[1..] {
        server.kill();
    }
    let mut command = redlock(&servers);
    command.args(["force", "job"]);
    let mut pty = Pty::start(command);
    pty.shows("job: too few nodes reply");
    pty.shows("[y/N]");
    pty.type_in("n\n");
    assert_eq!(pty.end(), Some(1), "{}", pty.screen());
}

#[test]
fn colors_are_only_for_terminals_and_respect_no_color() {
    let servers = masters::<1>();
    let screen = |no_color: Option<&str>| {
        let mut command = redlock(&servers);
        command.arg("nodes");
        if let Some(value) = no_color {
            command.env("NO_COLOR", value);
        }
        let mut pty = Pty::start(command);
        assert_eq!(pty.end(), Some(0));
        wait_until("the output is read", || pty.screen().contains("master"));
        pty.screen()
    };
    assert!(screen(None).contains('\x1b'));
    assert!(!screen(Some("1")).contains('\x1b'));
    let mut command = redlock(&servers);
    command.arg("nodes");
    assert!(!outcome(command).out.contains('\x1b'));
}
