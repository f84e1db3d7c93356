//! The demonstration ends by itself, and leaves nothing behind however it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use redislock_testkit::browser::Browser;
use redislock_testkit::process::Running;
use redislock_testkit::pty::Pty;
use redislock_testkit::wait_until;
use rustix::process::Signal;

/// Every process of a demonstration inherits this variable; its value tells two tests apart.
const MARK: &str = "DEMO_OF_TEST";

fn demo(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redislock-demo"));
    command
        .env("TMPDIR", folder)
        .env(MARK, folder)
        .stdout(File::create(folder.join("out")).unwrap())
        .stderr(File::create(folder.join("err")).unwrap());
    command
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// Processes that the demonstration has started and that still run.
fn left_running(folder: &Path) -> Vec<String> {
    let mark = format!("{MARK}={}", folder.display());
    let mut left = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let marked = variables.any(|variable| variable == mark.as_bytes());
        // Servers write their title over their environment, but work in the folder of the
        // demonstration.
        let inside = std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| {
            cwd.to_string_lossy()
                .starts_with(&*folder.to_string_lossy())
        });
        if marked || inside {
            left.push(process.path().display().to_string());
        }
    }
    left
}

#[test]
fn the_demo_refuses_a_late_write_loses_no_update_and_leaves_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    let mut command = demo(folder.path());
    command.arg("--picture").arg(&picture);
    let ended = Running::start(command).end();
    let (out, err) = (read(folder.path(), "out"), read(folder.path(), "err"));
    assert_eq!(ended.code, Some(0), "{out}{err}");
    assert_eq!(err, "");
    assert!(!out.contains('\x1b'), "{out}");
    for wanted in [
        "holds the lock, fence",
        "is killed (SIGKILL)",
        "is started again",
        "is paused (SIGSTOP)",
        "REFUSED",
        "no update was lost",
    ] {
        assert!(out.contains(wanted), "{wanted:?} is not in {out}");
    }
    assert!(read(folder.path(), "picture.svg").contains("REFUSED"));
    assert_eq!(left_running(folder.path()), [""; 0]);
    std::fs::remove_file(picture).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["err", "out"]);
}

#[test]
fn a_terminal_sees_who_holds_who_waits_and_which_masters_are_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut pty = Pty::start(demo(folder.path()));
    for wanted in [
        "quarantined for",
        "held by ",
        "waiting",
        "holds the lock, fence",
        "highest fence seen",
    ] {
        pty.shows(wanted);
    }
    pty.type_in("\x03");
    assert_eq!(pty.end(), Some(130));
    wait_until("the cursor is back", || pty.screen().contains("\x1b[?25h"));
    wait_until("all have ended", || left_running(folder.path()).is_empty());
}

/// `redlock` of the same build; none, with a line that says so, if only this crate was built.
fn redlock() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_redislock-demo")).with_file_name("redlock");
    if path.exists() {
        return Some(path);
    }
    let must = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!must, "redlock is not built: cargo build -p redlock-cli");
    eprintln!("redlock is not built: the demo on the page is not tested");
    None
}

#[test]
fn the_page_shows_who_holds_who_waits_which_master_is_down_and_the_refused_write() {
    let (Some(redlock), Some(mut browser)) = (redlock(), Browser::start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = demo(folder.path());
    command.arg("--web").arg(redlock);
    let running = Running::start(command);
    let mut url = String::new();
    wait_until("the page is served", || {
        let out = read(folder.path(), "out");
        let line = out.lines().find_map(|line| line.strip_prefix("The page: "));
        url = line.unwrap_or_default().to_owned();
        !url.is_empty()
    });
    browser.open(&url);
    // In the order in which it happens.
    browser.wait_for("/\\b(ada|ben|cyd|dan)\\b/.test(document.querySelector('.who')?.innerText)");
    browser.shows(" waiting");
    browser.shows("DOWN for");
    browser.shows("Locks are granted: 4 of 5 nodes");
    browser.shows("REFUSED");
    assert_eq!(browser.complaints(), [""; 0]);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", read(folder.path(), "err"));
    assert!(read(folder.path(), "out").contains("no update was lost"));
    wait_until("all have ended", || left_running(folder.path()).is_empty());
}

#[test]
fn an_interrupted_or_killed_demo_leaves_nothing_running() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let folder = tempfile::tempdir().unwrap();
        let mut running = Running::start(demo(folder.path()));
        wait_until("the lock is held", || {
            read(folder.path(), "out").contains("holds the lock")
        });
        // Itself, five masters, four workers.
        assert_eq!(left_running(folder.path()).len(), 10);
        running.signal(signal);
        assert_eq!(running.end().code, code);
        wait_until("all have ended", || left_running(folder.path()).is_empty());
    }
}

#[test]
fn without_the_module_or_a_server_the_error_says_what_to_do() {
    for (variable, hint) in [("REDISLOCK_SO", "make build"), ("REDIS_SERVER", "install")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redislock-demo"));
        command.env(variable, "/no/such/file");
        command.stderr(std::process::Stdio::piped());
        let ended = Running::start(command).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.err.contains(hint), "{ended:?}");
    }
}
