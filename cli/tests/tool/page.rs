//! The page of `redlock serve` in a real browser. With `REDLOCK_PICTURES=folder`, the pictures of
//! the docs are written there.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use redislock_testkit::browser::{Browser, Screen};
use redislock_testkit::{Connection, Server, wait_until};
use rustix::process::Signal;

use crate::masters;
use crate::serve::Serving;

const DESK: Screen = Screen {
    width: 1_180,
    height: 760,
    scale: 1,
    dark: false,
};
const PHONE: Screen = Screen {
    width: 390,
    height: 844,
    scale: 1,
    dark: true,
};

/// Where the pictures of the docs go, if they are wanted.
pub fn picture(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("REDLOCK_PICTURES")?);
    Some(folder.join(name))
}

/// The rows of the page, as text.
fn rows(browser: &mut Browser) -> String {
    browser
        .value("document.getElementById('locks').innerText")
        .to_string()
}

/// Which round the page shows.
fn round(browser: &mut Browser) -> u64 {
    let round = browser.value("Number(document.body.dataset.round)");
    round.as_f64().unwrap_or(0.0) as u64
}

fn acquire(servers: &[Server], key: &str, owner: &str) {
    for server in servers {
        let words = ["LOCK.ACQUIRE", key, owner, "600000", "OWNER", owner];
        let _: u64 = server.run(&words);
    }
}

fn release(servers: &[Server], key: &str, owner: &str) {
    for server in servers {
        let _: u64 = server.run(&["LOCK.RELEASE", key, owner]);
    }
}

#[test]
fn a_lock_that_is_taken_waited_for_and_handed_over_appears() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let servers = masters::<3>();
    let serving = Serving::start(&servers, &[]);
    browser.screen(DESK);
    browser.open(&serving.url);
    browser.shows("Locks are granted: 3 of 3 nodes");
    browser.shows("Nobody holds a lock");
    // Each step is on the page two rounds later at most: a second, at two rounds in a second.
    let appears = |browser: &mut Browser, step: &dyn Fn(), text: &str| {
        step();
        let before = round(browser);
        wait_until(text, || {
            let rows = rows(browser);
            assert!(
                rows.contains(text) || round(browser) <= before + 2,
                "{text}: {rows}"
            );
            rows.contains(text)
        });
    };
    appears(&mut browser, &|| acquire(&servers, "nightly", "ada"), "ada");
    let mut waiter = servers[0].connect();
    waiter.send("LOCK.ACQUIRE nightly ben 600000 BLOCK 0 OWNER ben");
    appears(&mut browser, &|| {}, "1 waiting");
    let hand_over = || {
        release(&servers, "nightly", "ada");
        acquire(&servers[1..], "nightly", "ben");
    };
    appears(&mut browser, &hand_over, "ben");
    let marks = "document.querySelectorAll('#locks .timeline i:not(.waits)').length";
    assert_eq!(browser.value(marks), 2, "ada's and ben's hold");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Notes when a worker's name is on the page for the first time, as the page changes.
const NOTE_WORKERS: &str = "window.noted = {};
    new MutationObserver(() => {
        const rows = document.getElementById('locks').innerText;
        for (const [name] of rows.matchAll(/worker-[0-9]+/g)) noted[name] ??= Date.now();
    }).observe(document.getElementById('locks'),
        { subtree: true, childList: true, characterData: true });";
const HAND_OVERS: usize = 9;

/// How long each of several hand-overs takes until it is on the page, in ms, sorted.
fn delays(browser: &mut Browser, servers: &[Server], first: usize) -> Vec<f64> {
    let mut delays: Vec<f64> = (first..first + HAND_OVERS)
        .map(|turn| {
            let (last, next) = (format!("worker-{turn}"), format!("worker-{}", turn + 1));
            release(servers, "nightly", &last);
            acquire(servers, "nightly", &next);
            let command = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            browser.wait_for(&format!("noted['{next}'] > 0"));
            let noted = browser.value(&format!("noted['{next}']"));
            noted.as_f64().unwrap() - command.as_secs_f64() * 1_000.0
        })
        .collect();
    delays.sort_unstable_by(f64::total_cmp);
    delays
}

/// The promise is a time, so this test measures one: by the clock of the browser at the change of
/// the page, against that of the command. The median of several, as one may meet a busy machine.
#[test]
fn a_hand_over_is_on_the_page_within_a_second() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let servers = masters::<3>();
    let serving = Serving::start(&servers, &[]);
    acquire(&servers, "nightly", "worker-0");
    browser.screen(DESK);
    browser.open(&serving.url);
    browser.shows("worker-0");
    browser.value(NOTE_WORKERS);
    let mut medians = Vec::new();
    // A machine that is busy all the time gets three chances.
    for attempt in 0..3 {
        let delays = delays(&mut browser, &servers, attempt * HAND_OVERS);
        println!("on the page after {delays:.0?} ms");
        medians.push(delays[HAND_OVERS / 2]);
        if medians[attempt] <= 1_000.0 {
            return;
        }
    }
    panic!("the medians of {HAND_OVERS} hand-overs are {medians:?} ms");
}

#[test]
fn a_node_that_is_down_and_a_page_that_is_old_say_so() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let mut servers: [Server; 3] = masters();
    acquire(&servers, "nightly", "ada");
    let mut serving = Serving::start(&servers, &[]);
    browser.screen(DESK);
    browser.open(&serving.url);
    browser.shows("ada");
    servers[1].kill();
    browser.shows("DOWN for");
    browser.shows("Locks are granted: 2 of 3 nodes");
    browser.shows("2 of 3 nodes");
    servers[1].start_again();
    browser.shows("Locks are granted: 3 of 3 nodes");
    // The page itself does not hear anything any more.
    serving.running.signal(Signal::STOP);
    browser.shows("Old data: this was");
    browser.wait_for("document.body.classList.contains('old')");
    serving.running.signal(Signal::CONT);
    browser.wait_for("!document.body.classList.contains('old')");
    serving.running.signal(Signal::KILL);
    browser.shows("Old data: this was");
    browser.shows("redlock serve cannot be reached.");
}

#[test]
fn hostile_names_do_nothing_on_the_page() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let servers = masters::<1>();
    let mut connection = servers[0].connect();
    let name = "<img src=x onerror=alert(1)><script>document.title='owned'</script>\u{202e}";
    let owner = "\"><svg onload=alert(2)>שלום";
    let words = ["LOCK.ACQUIRE", name, "t", "600000", "OWNER", owner];
    connection.call_args(&words);
    let serving = Serving::start(&servers, &[]);
    browser.screen(DESK);
    browser.open(&serving.url);
    browser.shows("<img src=x onerror=alert(1)>");
    browser.shows("\\u{202e}");
    browser.shows("\"><svg onload=alert(2)>");
    assert_eq!(
        browser.value("document.querySelectorAll('img, svg, main script').length"),
        0
    );
    assert!(
        browser
            .value("document.title")
            .to_string()
            .contains("redlock")
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_page_is_used_by_keyboard_and_on_a_phone() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let servers = masters::<5>();
    busy(&servers);
    let _waiters: Vec<Connection> = ["orders:eu", "orders:eu", "report:weekly"]
        .map(|key| {
            let mut waiter = servers[0].connect();
            waiter.send(&format!(
                "LOCK.ACQUIRE {key} {} 600000 BLOCK 0 OWNER eva@host-5:31",
                waiter_name(key)
            ));
            waiter
        })
        .into();
    let serving = Serving::start(&servers, &[]);
    browser.screen(DESK);
    browser.open(&serving.url);
    browser.shows("2 waiting");
    if let Some(file) = picture("page.png") {
        past(&servers);
        browser.picture(&file);
    }
    browser.press("ArrowDown");
    browser.press("ArrowDown");
    browser.wait_for("document.activeElement.className.includes('lock')");
    let focused = browser.value("document.activeElement.querySelector('.key').textContent");
    assert_eq!(focused, "report:weekly");
    browser.press("Enter");
    browser.wait_for("document.getElementById('detail').open");
    browser.shows("History since redlock serve was started");
    browser.shows("1 waiting, the first for");
    let queue = "document.getElementById('detail-queue').innerText";
    browser.wait_for(&format!(
        "/eva@host-5:31 · waiting for [0-9]/.test({queue})"
    ));
    browser.press("Escape");
    browser.wait_for("!document.getElementById('detail').open");
    let sorted = "document.getElementById('sort').value";
    browser.press("s");
    assert_eq!(browser.value(sorted), "waiters");
    browser.press("/");
    browser.type_in("BACKUP");
    browser.wait_for("document.querySelectorAll('.lock').length == 1");
    browser.shows("backup:nightly");
    // On a phone nothing is wider than the screen.
    browser.screen(PHONE);
    browser.open(&serving.url);
    browser.shows("2 waiting");
    let fits = "document.documentElement.scrollWidth <= window.innerWidth";
    browser.wait_for(fits);
    let dark = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.value(dark), "rgb(18, 20, 26)");
    if let Some(file) = picture("page-phone.png") {
        browser.picture(&file);
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

fn waiter_name(key: &str) -> String {
    format!("{key}-{}", redislock_testkit::free_port())
}

/// Locks as a team has them.
fn busy(servers: &[Server]) {
    for (key, owner) in [
        ("orders:eu", "checkout@web-3:4211"),
        ("report:weekly", "ben@host-2:9120"),
        ("backup:nightly", "ada@host-7:812"),
        ("cache:prices", "prices@worker-1:77"),
    ] {
        acquire(servers, key, owner);
    }
}

/// Gives the timeline of the picture something to show.
fn past(servers: &[Server]) {
    let holders = ["prices@worker-1:77", "prices@worker-2:78"];
    for turn in 0..12 {
        release(servers, "cache:prices", holders[turn % 2]);
        acquire(servers, "cache:prices", holders[(turn + 1) % 2]);
        std::thread::sleep(std::time::Duration::from_millis(1_500));
    }
}

#[test]
fn a_browser_logs_in_with_the_token_and_keeps_only_a_cookie() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let servers = masters::<1>();
    acquire(&servers, "nightly", "ada");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token").display().to_string();
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&file, token).unwrap();
    let serving = Serving::start(&servers, &["--token-file", &file]);
    browser.open(&serving.url);
    browser.shows("A token is required");
    browser.wait_for("document.activeElement.id == 'token'");
    browser.type_in("wrong");
    browser.press("Enter");
    browser.shows("Wrong token.");
    browser.type_in(token);
    browser.press("Enter");
    browser.shows("nightly");
    assert_eq!(browser.value("document.cookie"), "");
    let url = browser.value("location.href").to_string();
    assert!(!url.contains(token), "{url}");
}
