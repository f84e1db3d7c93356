//! `redlock top` in a real terminal. With `REDLOCK_PICTURES=folder`, the picture of the docs is
//! written there.

use std::process::Command;

use redislock_testkit::process::outcome;
use redislock_testkit::tmux::Tmux;
use redislock_testkit::{Connection, Server, wait_until};

use crate::masters;
use crate::page::picture;
use crate::terminal_picture;
use crate::tool::{Json, NODE_TIMEOUT, redlock};

/// A terminal in which `redlock` is `$R`.
pub fn terminal(servers: &[Server], width: u16, height: u16) -> Option<Tmux> {
    let nodes: Vec<String> = servers.iter().map(Server::url).collect();
    let variables = [
        ("REDLOCK_NODES", nodes.join(",")),
        ("R", env!("CARGO_BIN_EXE_redlock").to_owned()),
        (NODE_TIMEOUT.0, NODE_TIMEOUT.1.to_owned()),
        ("REDLOCK_TEST_PANIC", "1".to_owned()),
        ("NO_COLOR", String::new()),
        ("RUST_BACKTRACE", "0".to_owned()),
    ];
    let variables: Vec<(&str, &str)> = variables
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    Tmux::start(&variables, width, height)
}

fn acquire(servers: &[Server], key: &str, owner: &str) {
    for server in servers {
        let words = ["LOCK.ACQUIRE", key, owner, "600000", "OWNER", owner];
        let _: u64 = server.run(&words);
    }
}

fn wait_for(server: &Server, key: &str) -> Connection {
    let mut waiter = server.connect();
    waiter.send(&format!(
        "LOCK.ACQUIRE {key} waiter 600000 BLOCK 0 OWNER eva@host-5:31"
    ));
    waiter
}

/// The shell has its terminal back: the screen from before, a cursor, a line editor, an echo.
fn is_clean(tmux: &Tmux, code: &str) {
    tmux.wait("the screen from before is back", |screen| {
        !screen.contains("LEASE LEFT") && screen.trim_end().ends_with("ready>")
    });
    assert_eq!(tmux.variable("alternate_on"), "0");
    assert_eq!(tmux.variable("cursor_flag"), "1");
    tmux.type_in(
        "echo co\"\"de=$?. $(stty -a | tr ' ;' '\\n\\n' | grep -cx -e icanon -e echo -e isig)\n",
    );
    tmux.shows(&format!("code={code}. 3"));
    tmux.type_in("clear\n");
    tmux.wait("the screen is empty", |screen| !screen.contains("code="));
}

#[test]
fn locks_are_shown_sorted_filtered_and_one_by_one() {
    let servers = masters::<3>();
    acquire(&servers, "backup:nightly", "ada@host-7:812");
    acquire(&servers, "report:weekly", "ben@host-2:9120");
    let _waiter = wait_for(&servers[0], "report:weekly");
    let Some(tmux) = terminal(&servers, 120, 24) else {
        return;
    };
    tmux.type_in("$R top\n");
    tmux.shows("Locks are granted: 3 of 3 nodes");
    let order = |screen: &str| {
        let place = |name: &str| screen.lines().position(|line| line.starts_with(name));
        place("report:weekly") < place("backup:nightly")
    };
    tmux.wait("what is waited for comes first", |screen| {
        screen.contains("backup:nightly") && screen.contains("ben@host-2:9120") && order(screen)
    });
    if let Some(file) = picture("top.svg") {
        tmux.shows("0.0");
        terminal_picture::save(&tmux.colored_screen(), 120, &file);
    }
    // By name.
    for sort in ["waiters", "held", "lease", "fence", "name"] {
        tmux.press(&["s"]);
        tmux.shows(&format!("order: {sort}"));
    }
    tmux.wait("the order is that of names", |screen| !order(screen));
    // Filter, and one lock.
    tmux.press(&["/"]);
    tmux.type_in("BEN@");
    tmux.press(&["Enter"]);
    tmux.wait("one lock is left", |screen| {
        !screen.contains("backup:nightly") && screen.contains("1 of 1")
    });
    tmux.press(&["Enter"]);
    tmux.shows("1 waiting, the first for");
    tmux.shows("eva@host-5:31  waiting for ");
    tmux.shows("HISTORY: 1 holds seen since the start");
    tmux.shows("held    ");
    tmux.press(&["Escape"]);
    tmux.shows("filter: BEN@");
    tmux.press(&["q"]);
    is_clean(&tmux, "0");
}

#[test]
fn force_asks_and_releases_on_all_nodes() {
    let servers = masters::<3>();
    acquire(&servers, "job", "ada");
    let Some(tmux) = terminal(&servers, 100, 24) else {
        return;
    };
    tmux.type_in("$R top\n");
    tmux.shows("ada");
    tmux.press(&["f"]);
    tmux.shows("Release by force?");
    tmux.shows("held by ada");
    tmux.press(&["n"]);
    tmux.shows("nothing was changed");
    assert!(!servers[0].is_free("job"));
    tmux.press(&["f"]);
    tmux.shows("Release by force?");
    tmux.press(&["y"]);
    tmux.shows("job was released on 3 of 3 nodes");
    assert!(servers.iter().all(|server| server.is_free("job")));
    tmux.press(&["q"]);
    is_clean(&tmux, "0");
}

#[test]
fn the_terminal_is_clean_after_every_end() {
    let servers = masters::<1>();
    acquire(&servers, "job", "ada");
    let Some(tmux) = terminal(&servers, 100, 20) else {
        return;
    };
    let begin = || {
        tmux.type_in("$R top\n");
        tmux.shows("ada");
    };
    begin();
    tmux.press(&["C-c"]);
    is_clean(&tmux, "130");
    begin();
    tmux.press(&["!"]);
    tmux.shows("asked for by a test");
    is_clean(&tmux, "101");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    for (signal, code) in [("TERM", "143"), ("HUP", "129")] {
        let file = file.display();
        tmux.type_in(&format!("sh -c 'echo $$ > {file}; exec $R top'\n"));
        tmux.shows("ada");
        let pid = std::fs::read_to_string(file.to_string()).unwrap();
        let killed = Command::new("kill")
            .args([&format!("-{signal}"), pid.trim()])
            .status();
        assert!(killed.unwrap().success());
        is_clean(&tmux, code);
    }
    // ctrl-Z gives the terminal back, fg takes it again.
    begin();
    tmux.press(&["C-z"]);
    tmux.shows("Stopped");
    assert_eq!(tmux.variable("alternate_on"), "0");
    tmux.type_in("fg\n");
    tmux.wait("it is back", |screen| {
        screen.contains("ada") && screen.contains("NODE")
    });
    tmux.press(&["q"]);
    is_clean(&tmux, "0");
}

#[test]
fn the_screen_follows_the_size_and_nodes_that_come_and_go() {
    let mut servers: [Server; 3] = masters();
    acquire(&servers, "job", "ada");
    let Some(tmux) = terminal(&servers, 140, 24) else {
        return;
    };
    tmux.type_in("$R top\n");
    tmux.shows("HELD FOR");
    tmux.resize(60, 14);
    tmux.wait("columns are left out", |screen| {
        screen.contains("ada") && !screen.contains("HELD FOR")
    });
    tmux.resize(20, 4);
    tmux.resize(140, 30);
    tmux.shows("HELD FOR");
    servers[2].kill();
    tmux.shows("DOWN for");
    tmux.shows("Locks are granted: 2 of 3 nodes");
    tmux.shows("2 of 3");
    servers[1].kill();
    tmux.shows("No locks are granted: only 1 of 3 nodes, 2 needed");
    servers[1].start_again();
    servers[2].start_again();
    tmux.shows("Locks are granted: 3 of 3 nodes");
    tmux.wait("nobody is down", |screen| !screen.contains("DOWN"));
    tmux.press(&["q"]);
    is_clean(&tmux, "0");
}

#[test]
fn once_prints_a_frame_and_needs_no_terminal() {
    let servers = masters::<3>();
    acquire(&servers, "nightly", "ada");
    let once = |more: &[&str]| {
        let mut command = redlock(&servers);
        command
            .args(["top", "--once"])
            .args(more)
            .envs([NODE_TIMEOUT]);
        outcome(command)
    };
    let ended = once(&[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.out.contains("Locks are granted: 3 of 3 nodes"),
        "{ended:?}"
    );
    assert!(
        ended.out.contains("nightly") && ended.out.contains("ada"),
        "{ended:?}"
    );
    assert!(!ended.out.contains('\x1b'), "{ended:?}");
    let value = once(&["--json"]).json();
    assert_eq!(value["locks"][0]["key"], "nightly");
    assert_eq!(value["nodes"].as_array().map(Vec::len), Some(3));
    assert!(once(&["--filter", "other"]).out.contains("no lock matches"));
    let mut command = redlock(&servers);
    command.arg("top");
    let refused = outcome(command);
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.err.contains("--once"), "{refused:?}");
    let mut command = redlock(&[]);
    command.args(["top", "--once", "--node", "redis://127.0.0.1:1"]);
    assert_eq!(outcome(command).code, Some(69));
}

#[test]
fn hostile_names_cannot_move_the_cursor_or_hide_text() {
    let servers = masters::<1>();
    let mut connection = servers[0].connect();
    let names: [&[u8]; 5] = [
        b"a\x1b[2J\x1b[31mred",
        "b\u{202e}drawkcab\u{200b}".as_bytes(),
        b"c\xff\xfe",
        b"d\r\n\tlines",
        "e<script>alert(1)</script>שלום".as_bytes(),
    ];
    for name in names {
        let owner: &[u8] = b"own\x1b]0;title\x07er";
        let words: [&[u8]; 6] = [b"LOCK.ACQUIRE", name, b"t", b"600000", b"OWNER", owner];
        connection.call_args(&words);
    }
    let Some(tmux) = terminal(&servers, 140, 24) else {
        return;
    };
    let title = tmux.variable("pane_title");
    tmux.type_in("$R top\n");
    for shown in [
        "a\\u{1b}[2J\\u{1b}[31mred",
        "b\\u{202e}drawkcab\\u{200b}",
        "c\\xff\\xfe",
        "d\\r\\n\\tlines",
        "e<script>alert(1)</script>",
        "own\\u{1b}]0;title\\u{7}er",
    ] {
        tmux.shows(shown);
    }
    assert_eq!(tmux.variable("pane_title"), title);
    tmux.press(&["q"]);
    is_clean(&tmux, "0");
}

#[test]
fn a_terminal_that_is_gone_is_an_end_by_signal() {
    let servers = masters::<1>();
    let Some(tmux) = terminal(&servers, 100, 30) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("code");
    // The shell goes on after the hang-up; what it starts gets the signal as usual.
    let script = format!("trap : HUP; $R top; echo $? > {}", code.display());
    tmux.type_in(&format!("sh -c '{script}'\n"));
    tmux.shows("Locks are granted: 1 of 1 node");
    drop(tmux);
    wait_until("it has ended", || code.exists());
    wait_until("by the signal", || {
        std::fs::read_to_string(&code).unwrap() == "129\n"
    });
}
