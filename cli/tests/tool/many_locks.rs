//! `redlock top` and `redlock serve` with 100,000 locks: paged, within the budget of questions, in
//! bounded memory, and with a word about what is not known yet.

use std::time::{Duration, Instant};

use redislock_testkit::{Server, wait_until};
use serde_json::Value;

use crate::masters;
use crate::serve::{Serving, json};
use crate::serve_limits::resident_kib;
use crate::top::terminal;

const LOCKS: usize = 100_000;
const BATCH: usize = 2_000;
/// What docs/CLI.md promises, for a second.
const LOOKS: f64 = 500.0;
const KEYS: f64 = 2_000.0;
/// What SCAN is asked for at once.
const KEYS_OF_A_SCAN: f64 = 500.0;

fn fill(server: &Server) {
    let mut connection = server.connect();
    for first in (0..LOCKS).step_by(BATCH) {
        let line = |n| format!("LOCK.ACQUIRE lock:{n:05} token 86400000 OWNER ada@host-7:812");
        let lines: Vec<String> = (first..first + BATCH).map(line).collect();
        let replies = connection.pipeline(&lines);
        assert!(replies.iter().all(|reply| !reply.is_error()));
    }
}

fn page(serving: &Serving, query: &str) -> Value {
    json(&serving.get(&format!("/api/locks?{query}"), "").1)
}

/// The figures of all locks. They cost much less than a page, so they can be asked for often.
fn overview(serving: &Serving) -> Value {
    json(&serving.get("/api/nodes", "").1)["overview"].take()
}

fn gaps(overview: &Value) -> &str {
    overview["gaps"].as_str().unwrap_or_default()
}

/// The budget spreads the list over a minute, and a busy machine may need several: this waits as
/// long as the list grows.
fn wait_until_all_are_listed(mut listed: impl FnMut() -> Option<u64>) {
    let mut now = 0;
    while now < LOCKS as u64 {
        let before = now;
        wait_until("more locks are listed", || {
            // To ask costs time that the list needs.
            std::thread::sleep(Duration::from_millis(200));
            now = listed().unwrap_or(before);
            now > before
        });
    }
}

/// The server was asked no more than in this time it may be.
fn is_within_the_budget(server: &Server, start: Instant, watchers: f64) {
    // One round may fall on the start, another one on the end.
    let (looks, scans) = (server.calls("lock.info"), server.calls("scan"));
    let seconds = start.elapsed().as_secs_f64() + 1.0;
    assert!(
        looks as f64 <= watchers * LOOKS * seconds,
        "{looks} in {seconds} s"
    );
    let visited = scans as f64 * KEYS_OF_A_SCAN;
    assert!(
        visited <= watchers * KEYS * seconds,
        "{visited} in {seconds} s"
    );
    assert!(looks > 0 && scans > 0, "nothing was asked");
}

#[test]
fn a_hundred_thousand_locks_are_paged_within_the_budget() {
    let servers = masters::<1>();
    fill(&servers[0]);
    let start = Instant::now();
    let mut serving = Serving::start(&servers, &[]);
    let tmux = terminal(&servers, 160, 24);
    if let Some(tmux) = &tmux {
        tmux.type_in("$R top --sort name\n");
        tmux.shows("locks listed so far");
    }
    wait_until("the page says that the list is not complete", || {
        gaps(&overview(&serving)).contains("of 100000 locks listed so far")
    });
    wait_until_all_are_listed(|| overview(&serving)["locks"].as_u64());
    // All are listed; the page says that most were not asked about, and how old the list is.
    let value = page(&serving, "sort=name&page=1999");
    assert_eq!(
        (value["pages"].as_u64(), value["page"].as_u64()),
        (Some(2_000), Some(1_999))
    );
    assert_eq!(value["locks"][49]["key"], "lock:99999");
    assert_eq!(value["overview"]["complete"], false);
    assert!(
        gaps(&value["overview"]).contains("of 100000 queried so far"),
        "{value}"
    );
    // What is on the page is asked about first, and is shown as new.
    wait_until("the last page is new", || {
        let value = page(&serving, "sort=name&page=1999");
        let locks = value["locks"].as_array().unwrap();
        locks
            .iter()
            .all(|lock| lock["stale"] == false && lock["state"] == "held")
    });
    // A part of the name finds one of them.
    let value = page(&serving, "filter=LOCK:77777");
    assert_eq!(
        (value["matching"].as_u64(), value["pages"].as_u64()),
        (Some(1), Some(1))
    );
    if let Some(tmux) = tmux {
        wait_until_all_are_listed(|| {
            let screen = tmux.screen();
            let before = screen.split(" of 100000 locks listed so far").next()?;
            if before.len() < screen.len() {
                return before.rsplit(' ').next()?.parse().ok();
            }
            screen.contains(" of 100000  order").then_some(LOCKS as u64)
        });
        tmux.press(&["End"]);
        tmux.wait("the last lock is on the screen", |screen| {
            screen.contains("100000 of 100000") && screen.contains("lock:99999")
        });
        tmux.press(&["Home"]);
        tmux.shows("lock:00000");
        tmux.press(&["q"]);
    }
    is_within_the_budget(&servers[0], start, 2.0);
    let resident = resident_kib(&mut serving);
    assert!(resident < 200 * 1024, "{resident} KiB for {LOCKS} locks");
}
