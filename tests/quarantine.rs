//! lock.quarantine: a node that may have forgotten grants gives none until they have ended.

use std::time::Duration;

use crate::replication::wait_for_sync;
use crate::resp::{Connection, Value, granted, refused};
use crate::server::{Server, info_number, wait_until};
use crate::waiting::waiter;

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
    for line in [
        "LOCK.ACQUIRE job me 1000",
        "LOCK.ACQUIRE job me 1000 BLOCK 0",
        "LOCK.EXTEND job me 1000",
        "LOCK.MACQUIRE 2 a b me 1000",
        "LOCK.MEXTEND 2 a b me 1000",
        "LOCK.GUARD job me SET a b",
    ] {
        let wait = retry_in(&c.call(line));
        assert!(wait > 0 && wait <= now, "{line}: {wait}");
    }
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
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
fn waiters_are_served_when_the_quarantine_ends() {
    let server = Server::options().config("lock.quarantine 2000").start();
    let mut c = server.connect();
    wait_for_the_end(&mut c);
    granted(&c.call("LOCK.ACQUIRE job me 2000"));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 2000 BLOCK 0");
    crate::lock::wait_for_waiters(&mut c, "job", 1);
    c.ok("FLUSHALL");
    if left(&mut c) > 500 {
        assert!(waiter.is_silent_for(Duration::from_millis(50)));
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
        crate::clock::SteppedServer::start(Server::options().config("lock.quarantine 60000"));
    let mut c = stepped.server.connect();
    for seconds in [86_400, -86_400] {
        stepped.step(seconds);
        let now = left(&mut c);
        assert!(now > 0 && now <= 60_000 + 600 + 10, "{now}");
        refused(&c.call("LOCK.ACQUIRE job me 1000"), "QUARANTINE");
    }
}

#[test]
fn the_log_says_when_it_begins_and_ends() {
    let server = Server::options().config("lock.quarantine 200").start();
    wait_for_the_end(&mut server.connect());
    wait_until("the log tells both", || {
        let log = server.log().to_lowercase();
        log.lines()
            .filter(|line| line.contains("<lock>") && line.contains("quarantine"))
            .count()
            >= 2
    });
}
