//! lock.quarantine: a node that may have lost grants pauses granting until they have ended.

use std::time::{Duration, Instant};

use redislock_testkit::{
    Connection, Server, Value, granted, info_field, info_number, refused, wait_for_sync, wait_until,
};

use crate::waiting::waiter;

/// A request of each kind that a quarantine refuses.
pub const REFUSED: [&str; 6] = [
    "LOCK.ACQUIRE job me 1000",
    "LOCK.ACQUIRE job me 1000 BLOCK 0",
    "LOCK.EXTEND job me 1000",
    "LOCK.MACQUIRE 2 a b me 1000",
    "LOCK.MEXTEND 2 a b me 1000",
    "LOCK.GUARD job me SET a b",
];

fn left(c: &mut Connection) -> i64 {
    c.call("LOCK.NODE").number("quarantine")
}

#[track_caller]
fn wait_for_the_end(c: &mut Connection) {
    wait_until("the quarantine is over", || left(c) == 0);
}

/// The N of `-QUARANTINE … retry in N ms`.
#[track_caller]
fn retry_in(reply: &Value) -> i64 {
    refused(reply, "QUARANTINE");
    let words: Vec<&str> = reply.error().split(' ').collect();
    let [.., "retry", "in", number, "ms"] = words[..] else {
        panic!("{reply:?}")
    };
    number.parse().expect("a number of milliseconds")
}

#[test]
fn after_a_start_nothing_is_granted_until_the_quarantine_is_over() {
    let server = Server::options().config("lock.quarantine 60000").start();
    let mut c = server.connect();
    let now = left(&mut c);
    assert!(now > 0 && now <= 60_000 + 600 + 10, "{now}");
    for line in REFUSED {
        let wait = retry_in(&c.call(line));
        assert!(wait > 0 && wait <= now, "{line}: {wait}");
    }
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
    let released = c.call("LOCK.MRELEASE 2 a b me");
    assert_eq!(released, Value::Array(vec![Value::Null; 2]));
    assert_eq!(c.call("LOCK.FORCE job"), Value::Null);
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
    assert!(info_number(&mut c, "lock", "lock_quarantined") > 0);
}

#[test]
fn when_it_is_over_locks_are_granted_again() {
    let server = Server::options().config("lock.quarantine 300").start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    granted(&c.call("LOCK.ACQUIRE job me 300"));
}

#[test]
fn the_quarantine_is_the_longest_lease() {
    let server = Server::options().config("lock.quarantine 300").start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    refused(&c.call("LOCK.ACQUIRE job me 301"), "LOCKLIMIT");
    granted(&c.call("LOCK.ACQUIRE job me 300"));
    refused(&c.call("LOCK.EXTEND job me 301"), "LOCKLIMIT");
    refused(&c.call("LOCK.MACQUIRE 1 other me 301"), "LOCKLIMIT");
    assert_eq!(c.call("LOCK.NODE").number("max-ttl"), 300);
}

#[test]
fn it_lasts_a_hundredth_and_ten_milliseconds_longer_than_the_longest_lease() {
    let before = Instant::now();
    let server = Server::options().config("lock.quarantine 60000").start();
    let now = left(&mut server.connect());
    let since = i64::try_from(before.elapsed().as_millis()).expect("a short time") + 1;
    assert!(now + since >= 60_000 + 600 + 10, "{now} after {since} ms");
}

#[test]
fn a_flush_asks_for_no_more_than_the_leases_that_it_ended() {
    let server = Server::options().config("lock.quarantine 3000").start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    // All in one write, so that no lease ends in between.
    let told = c.pipeline(&[
        "LOCK.ACQUIRE short me 100",
        "LOCK.ACQUIRE long me 1000",
        "FLUSHALL",
        "LOCK.NODE",
        "LOCK.ACQUIRE other me 1000",
    ]);
    let left = told[3].number("quarantine");
    assert!((1..=1000 + 10 + 10).contains(&left), "{left}");
    assert!(retry_in(&told[4]) <= left);
}

#[test]
fn what_was_restored_stays_held_and_can_be_released() {
    let mut server = Server::options().appendonly("always").start();
    granted(&server.connect().call("LOCK.ACQUIRE job me 600000"));
    granted(&server.connect().call("LOCK.ACQUIRE kept me 600000"));
    server.kill();
    server.reconfigure(|options| options.config("lock.quarantine 60000"));
    server.start_again();
    let mut c = server.connect();
    assert_ne!(c.call("LOCK.INFO kept me"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    refused(&c.call("LOCK.ACQUIRE job me 1000"), "QUARANTINE");
    assert_ne!(c.call("LOCK.INFO kept me"), Value::Null);
}

#[test]
fn a_promotion_begins_a_quarantine() {
    let mut master = Server::start();
    let replica = Server::options()
        .replica_of(&master)
        .config("lock.quarantine 500")
        .start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    granted(&m.call("LOCK.ACQUIRE job me 500"));
    wait_for_sync(&mut m, &mut r);
    wait_for_the_end(&mut r);
    master.kill();
    r.ok("REPLICAOF NO ONE");
    refused(&r.call("LOCK.ACQUIRE other me 100"), "QUARANTINE");
    wait_for_the_end(&mut r);
    granted(&r.call("LOCK.ACQUIRE other me 100"));
}

#[test]
fn a_flush_of_held_locks_begins_a_quarantine_until_they_would_have_ended() {
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        let server = Server::options().config("lock.quarantine 1000").start();
        let mut c = server.connect();
        wait_for_the_end(&mut c);
        c.ok(flush);
        granted(&c.call("LOCK.ACQUIRE job me 1000"));
        c.ok(flush);
        refused(&c.call("LOCK.ACQUIRE job you 1000"), "QUARANTINE");
        assert!(left(&mut c) <= 1000 + 10 + 10);
        wait_for_the_end(&mut c);
        granted(&c.call("LOCK.ACQUIRE job you 1000"));
    }
}

#[test]
fn no_waiter_is_granted_meanwhile_and_all_are_served_when_it_ends() {
    let server = Server::options().config("lock.quarantine 2000").start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    granted(&c.call("LOCK.ACQUIRE job me 2000"));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 2000 BLOCK 0");
    redislock_testkit::lock::wait_for_waiters(&mut c, "job", 1);
    c.ok("FLUSHALL");
    let granted_while_left = |waiter: &mut Connection, c: &mut Connection| {
        let silent = waiter.is_silent_for(Duration::from_millis(1));
        !silent && left(c) > 0
    };
    while left(&mut c) > 0 {
        assert!(!granted_while_left(&mut waiter, &mut c));
    }
    granted(&waiter.receive());
}

#[test]
fn the_higher_of_the_configured_and_the_saved_value_counts() {
    let mut server = Server::options()
        .config("save 3600 1")
        .config("lock.quarantine 60000")
        .start();
    server.connect().ok("SET string value");
    server.stop();
    server.reconfigure(|options| options.config("lock.quarantine 100"));
    server.start_again();
    assert!(left(&mut server.connect()) > 30_000);
}

#[test]
fn a_second_restart_does_not_shorten_it() {
    let mut server = Server::options().config("lock.quarantine 60000").start();
    std::thread::sleep(Duration::from_millis(200));
    server.kill();
    server.start_again();
    assert!(left(&mut server.connect()) > 30_000);
}

#[test]
fn a_node_without_it_has_none() {
    let mut server = Server::start();
    assert_eq!(left(&mut server.connect()), 0);
    granted(&server.connect().call("LOCK.ACQUIRE job me 600000"));
    let mut c = server.connect();
    let mut next = waiter(&server, "you", "BLOCK 0");
    c.ok("FLUSHALL");
    granted(&next.receive());
    server.kill();
    server.start_again();
    granted(&server.connect().call("LOCK.ACQUIRE job me 1000"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_clock_step_does_not_shorten_it() {
    let stepped =
        redislock_testkit::SteppedServer::start(Server::options().config("lock.quarantine 60000"));
    let mut c = stepped.server.connect();
    for seconds in [86_400, -86_400] {
        stepped.step(seconds);
        let now = left(&mut c);
        assert!(now > 0 && now <= 60_000 + 600 + 10, "{now}");
        refused(&c.call("LOCK.ACQUIRE job me 1000"), "QUARANTINE");
    }
}

/// What LOCK.NODE, INFO and the log say about a quarantine.
#[track_caller]
fn assert_told(server: &Server, c: &mut Connection, reason: &str) {
    assert!(left(c) > 0);
    assert!(info_number(c, "lock", "lock_quarantine_ms") > 0);
    assert_eq!(info_field(c, "lock", "lock_quarantine_reason"), reason);
    let begins = format!(" ms after a {reason}: no lock is granted until then");
    assert!(server.log().contains(&begins), "{}", server.log());
    wait_for_the_end(c);
    assert_eq!(info_number(c, "lock", "lock_quarantine_ms"), 0);
    assert_eq!(info_field(c, "lock", "lock_quarantine_reason"), "none");
    wait_until("the log says that it has ended", || {
        let log = server.log();
        let begun = log.rfind(&begins).expect("it has begun");
        log[begun..].contains("the quarantine has ended: locks are granted again")
    });
}

#[test]
fn node_info_and_the_log_say_how_long_it_lasts_and_why() {
    let server = Server::options().config("lock.quarantine 3000").start();
    let mut c = server.connect();
    assert_told(&server, &mut c, "start");
    granted(&c.call("LOCK.ACQUIRE job me 3000"));
    c.ok("FLUSHALL");
    assert_told(&server, &mut c, "flush");
    let master = Server::start();
    c.ok(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let mut c = server.connect();
    wait_for_sync(&mut master.connect(), &mut c);
    c.ok("REPLICAOF NO ONE");
    assert_told(&server, &mut c, "promotion");
}

/// A replica without the option follows a master that has it: it keeps what it was told, over a
/// restart too.
#[test]
fn a_replica_without_the_option_saves_the_quarantine_of_its_master() {
    let mut master = Server::options().config("lock.quarantine 60000").start();
    let mut replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    r.ok("SAVE");
    replica.kill();
    master.kill();
    replica.start_again();
    let mut r = replica.connect();
    r.ok("REPLICAOF NO ONE");
    assert!(left(&mut r) > 30_000);
}

/// A node of a cluster that was paused may have been replaced. Where replicas confirm that it is
/// the only master, they are asked instead (`replication_lease.rs`).
#[test]
fn a_standstill_in_a_cluster_without_min_replicas_begins_a_quarantine() {
    let server = Server::options()
        .config("cluster-enabled yes")
        .config(&format!("cluster-port {}", redislock_testkit::free_port()))
        .config("lock.quarantine 3000")
        .start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    server.pause();
    std::thread::sleep(Duration::from_millis(1600));
    server.resume();
    assert_told(&server, &mut c, "standstill");
}

/// What the log says about the end of a quarantine is true: other rules may keep the node from
/// granting.
#[test]
fn the_end_of_a_quarantine_is_not_logged_as_the_end_of_another_rule() {
    let server = Server::options()
        .config("lock.quarantine 300")
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1")
        .start();
    wait_until("the log says that it has ended", || {
        server.log().contains("the quarantine has ended")
    });
    let mut c = server.connect();
    refused(&c.call("LOCK.ACQUIRE job me 100"), "NOREPLICAS");
    assert!(!server.log().contains("granted again"), "{}", server.log());
}
