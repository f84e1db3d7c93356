//! What operators see: INFO, MEMORY, OBJECT, DEBUG DIGEST, MONITOR, SLOWLOG, the log.

use std::time::Duration;

use redislock_testkit::lock::{wait_for_waiters, wait_until_gone};
use redislock_testkit::{Connection, Server, granted, info_number, wait_patiently, wait_until};

fn counter(c: &mut Connection, name: &str) -> i64 {
    info_number(c, "lock", &format!("lock_{name}"))
}

#[test]
fn info_counts_what_happened() {
    let server = Server::start();
    let mut c = server.connect();
    for (line, name) in [
        ("LOCK.ACQUIRE job me 600000", "grants"),
        ("LOCK.ACQUIRE job me 600000", "reentries"),
        ("LOCK.ACQUIRE job you 600000", "denials"),
        ("LOCK.EXTEND job me 600000", "extends"),
        ("LOCK.RELEASE job me ALL", "releases"),
        ("LOCK.ACQUIRE other me 600000", "grants"),
        ("LOCK.FORCE other", "forced"),
    ] {
        let before = counter(&mut c, name);
        c.ok(line);
        assert_eq!(counter(&mut c, name), before + 1, "{line}");
    }
    c.ok("LOCK.ACQUIRE short me 20");
    wait_until_gone(&mut c, "short");
    assert_eq!(counter(&mut c, "expiries"), 1);
    for name in ["deadlocks", "quarantined", "evicted"] {
        assert_eq!(counter(&mut c, name), 0, "{name}");
    }
}

#[test]
fn info_has_gauges_of_locks_and_waiters() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(
        (counter(&mut c, "locks"), counter(&mut c, "waiters")),
        (0, 0)
    );
    c.ok("LOCK.ACQUIRE job me 600000");
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    assert_eq!(
        (counter(&mut c, "locks"), counter(&mut c, "waiters")),
        (1, 1)
    );
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    assert_eq!(
        (counter(&mut c, "locks"), counter(&mut c, "waiters")),
        (1, 0)
    );
}

#[test]
fn info_shows_wait_and_hold_times() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 600000");
    std::thread::sleep(std::time::Duration::from_millis(20));
    c.ok("LOCK.RELEASE job me");
    let info = c.call("INFO lock");
    let text = info.text();
    for word in ["hold", "wait", "p50", "p99"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    assert_eq!(counter(&mut c, "hold_count"), 1);
    c.ok("LOCK.ACQUIRE job me 600000");
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(counter(&mut c, "wait_count"), 0);
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    assert_eq!(counter(&mut c, "wait_count"), 1);
    for what in ["hold", "wait"] {
        for percentile in ["p50", "p99", "p999"] {
            let told = counter(&mut c, &format!("{what}_{percentile}_us"));
            assert!(told >= 20_000 - 20_000 / 8, "{what} {percentile}: {told}");
        }
    }
}

#[test]
fn evicted_locks_are_counted() {
    let server = Server::options()
        .config("maxmemory-policy allkeys-random")
        .start();
    let mut c = server.connect();
    let lines: Vec<String> = (0..1000)
        .map(|n| format!("LOCK.ACQUIRE job-{n} me 600000"))
        .collect();
    c.pipeline(&lines);
    c.ok("CONFIG SET maxmemory 1");
    wait_until("locks were evicted", || {
        c.call("SET string value");
        counter(&mut c, "evicted") > 0
    });
    c.ok("CONFIG SET maxmemory 0");
    let evicted = counter(&mut c, "evicted");
    assert_eq!(evicted + counter(&mut c, "locks"), 1000);
}

#[test]
fn memory_usage_grows_with_the_holders() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 600000");
    let one = c.call("MEMORY USAGE job").integer();
    assert!(one > 0);
    for reader in 0..100 {
        c.ok(&format!(
            "LOCK.ACQUIRE room reader-{reader:0>36} 600000 SHARED"
        ));
    }
    let hundred = c.call("MEMORY USAGE room").integer();
    assert!(hundred > one + 99 * 36, "{one} and {hundred}");
}

#[test]
fn object_commands_work_on_a_lock() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 600000");
    for subcommand in ["ENCODING", "REFCOUNT", "IDLETIME"] {
        c.ok(&format!("OBJECT {subcommand} job"));
    }
    c.ok("CONFIG SET maxmemory-policy allkeys-lfu");
    c.ok("OBJECT FREQ job");
    c.ok("TOUCH job");
}

#[test]
fn the_digest_follows_what_is_held_and_nothing_else() {
    let server = Server::start();
    let mut c = server.connect();
    let digest = |c: &mut Connection| c.ok("DEBUG DIGEST-VALUE job").items()[0].text().to_owned();
    let mut seen = Vec::new();
    for line in [
        "LOCK.ACQUIRE job me 600000",
        "LOCK.ACQUIRE job me 600000",
        "LOCK.FORCE job",
        "LOCK.ACQUIRE job you 600000 OWNER label",
    ] {
        granted(&c.call(line));
        seen.push(digest(&mut c));
    }
    for (n, one) in seen.iter().enumerate() {
        assert!(!seen[n + 1..].contains(one), "{seen:?}");
    }
    let before = digest(&mut c);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(
        digest(&mut c),
        before,
        "the time that remains is no part of it"
    );
}

#[test]
fn the_log_shows_version_and_configuration_at_load() {
    let server = Server::options().module_arguments("max-ttl 12345").start();
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("<lock>")).collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains(env!("CARGO_PKG_VERSION"))),
        "{log}"
    );
    assert!(lines.iter().any(|line| line.contains("12345")), "{log}");
}

#[test]
fn the_log_warns_when_locks_could_be_evicted() {
    let warned = |policy: &str| {
        let server = Server::options()
            .config("maxmemory 100mb")
            .config(&format!("maxmemory-policy {policy}"))
            .start();
        let log = server.log();
        log.lines().any(|line| {
            line.contains("<lock>") && line.contains("maxmemory-policy") && line.contains(" # ")
        })
    };
    assert!(warned("allkeys-lru"));
    assert!(warned("allkeys-random"));
    assert!(!warned("noeviction"));
}

/// Locks are not reached through the values of their keys, so there is nothing to move there.
#[test]
fn active_defragmentation_leaves_locks_as_they_are() {
    let server = Server::start();
    let mut c = server.connect();
    // Not every build of a server can.
    if c.call("CONFIG SET activedefrag yes").is_error() {
        return;
    }
    c.ok("CONFIG SET active-defrag-ignore-bytes 1");
    c.ok("CONFIG SET active-defrag-threshold-lower 0");
    c.ok("CONFIG SET active-defrag-cycle-min 50");
    let acquire: Vec<String> = (0..20_000)
        .map(|n| format!("LOCK.ACQUIRE job-{n} token-{n:0>36} 600000"))
        .collect();
    c.pipeline(&acquire);
    let release: Vec<String> = (0..20_000)
        .filter(|n| n % 10 != 0)
        .map(|n| format!("LOCK.RELEASE job-{n} token-{n:0>36}"))
        .collect();
    c.pipeline(&release);
    let before = redislock_testkit::lock::all_locks(&mut c);
    wait_until("the server has looked for what to move", || {
        info_number(&mut c, "stats", "active_defrag_key_hits")
            + info_number(&mut c, "stats", "active_defrag_key_misses")
            > 0
    });
    assert_eq!(redislock_testkit::lock::all_locks(&mut c), before);
}

#[test]
fn config_resetstat_resets_what_the_module_counts() {
    let server = Server::start();
    let mut c = server.connect();
    for n in 0..50 {
        granted(&c.call(&format!("LOCK.ACQUIRE job-{n} me 60000")));
        c.ok(&format!("LOCK.RELEASE job-{n} me"));
    }
    let mut waiting = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    waiting.send("LOCK.ACQUIRE job you 60000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("LOCK.RELEASE job me");
    granted(&waiting.receive());
    assert!(counter(&mut c, "grants") > 0 && counter(&mut c, "wait_count") > 0);
    c.ok("CONFIG RESETSTAT");
    wait_until("the counters are reset", || counter(&mut c, "grants") == 0);
    for name in ["releases", "wait_count", "hold_count", "hold_p99_us"] {
        assert_eq!(counter(&mut c, name), 0, "{name}");
    }
    // What is not a count stays.
    assert_eq!(counter(&mut c, "locks"), 1);
    assert!(counter(&mut c, "fence") > 0);
}

#[test]
fn slices_of_background_work_are_counted_with_their_cpu_time() {
    let server = Server::start();
    let mut c = server.connect();
    wait_patiently("leases end", || {
        c.call("LOCK.ACQUIRE job me 20");
        counter(&mut c, "expiry_slices") >= 5
    });
    // Each is read after what cannot be more than it, because slices go on.
    let longest = counter(&mut c, "longest_expiry_slice_cpu_us");
    let total = counter(&mut c, "expiry_slices_cpu_us");
    assert!(longest <= total, "{longest} us at most, {total} us in all");
    let long = counter(&mut c, "long_expiry_slices");
    let slices = counter(&mut c, "expiry_slices");
    assert!(long <= slices && slices > 0, "{long} of {slices}");
    c.ok("CONFIG RESETSTAT");
    wait_until("they are reset", || counter(&mut c, "grants") == 0);
    assert!(counter(&mut c, "expiry_slices") < slices);
}

#[test]
fn a_refused_config_resetstat_resets_nothing() {
    let server = Server::start();
    let (mut c, mut other) = (server.connect(), server.connect());
    c.ok("ACL SETUSER other on nopass ~* +ping");
    other.ok("AUTH other any");
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    // The module checks the server about once a second.
    let looked = || std::thread::sleep(Duration::from_millis(2500));
    looked();
    for (caller, command) in [
        (&mut other, "CONFIG RESETSTAT"),
        (&mut c, "CONFIG RESETSTAT more"),
    ] {
        assert!(caller.call(command).is_error());
        looked();
    }
    assert_eq!(counter(&mut c, "grants"), 1);
}

/// What the module asks the server for its own ends is not what a client did.
#[test]
fn the_calls_of_the_module_do_not_show_in_monitor_and_slowlog() {
    let server = Server::options()
        .config("slowlog-log-slower-than 0")
        .config("slowlog-max-len 10000")
        .start();
    let mut monitor = server.connect();
    monitor.ok("MONITOR");
    let (mut c, mut waiting) = (server.connect(), server.connect());
    granted(&c.call("LOCK.ACQUIRE job me 300"));
    waiting.send("LOCK.ACQUIRE job you 60000 BLOCK 0");
    granted(&waiting.receive());
    // Longer than the interval between two checks of the server.
    std::thread::sleep(Duration::from_millis(1500));
    c.ok("PING last");
    let mut seen = Vec::new();
    while !seen
        .last()
        .is_some_and(|line: &String| line.contains("last"))
    {
        seen.push(monitor.receive().text().to_lowercase());
    }
    let others: Vec<_> = seen
        .iter()
        .filter(|line| !line.contains("\"lock.acquire\"") && !line.contains("\"ping\""))
        .collect();
    assert_eq!(others, Vec::<&String>::new());
    let slow = c.call("SLOWLOG GET 10000");
    for entry in slow.items() {
        let command = entry.items()[3].items()[0].text().to_lowercase();
        let by_a_client = ["lock.acquire", "ping", "monitor", "client"];
        // The server of a test is asked where it is until it answers; the module asks for settings
        // at the start.
        let at_the_start = ["config"];
        assert!(
            by_a_client
                .iter()
                .chain(&at_the_start)
                .any(|known| *known == command),
            "{entry:?}"
        );
    }
}
