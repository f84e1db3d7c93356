//! MAXHOLD and lock.max-hold: how long a hold may last in all.

use redislock_testkit::lock::sole_holder;
use redislock_testkit::{Server, Value, granted, refused};

#[test]
fn maxhold_refuses_a_later_end_and_leaves_the_lease() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 90000"));
    for line in [
        "LOCK.ACQUIRE job me 120000",
        "LOCK.ACQUIRE job me 120000 ONCE",
        "LOCK.EXTEND job me 120000",
    ] {
        let reply = c.call(line);
        refused(&reply, "LOCKLIMIT");
        let left = milliseconds_left(reply.error());
        assert!((1..=90_000).contains(&left), "{reply:?}");
        let holder = sole_holder(&mut c, "job");
        assert_eq!(holder.number("holds"), 1, "{line}");
        assert!(holder.number("ttl") <= 60_000, "{line}");
    }
    granted(&c.call("LOCK.EXTEND job me 61000"));
    granted(&c.call("LOCK.ACQUIRE job me 61000"));
}

/// The N of `-LOCKLIMIT … N ms left`.
fn milliseconds_left(error: &str) -> i64 {
    let words: Vec<&str> = error.split(' ').collect();
    let [.., number, "ms", "left"] = words[..] else {
        panic!("{error}")
    };
    number.parse().expect("a number of milliseconds")
}

#[test]
fn a_ttl_that_maxhold_would_cut_short_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    refused(
        &c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 59999"),
        "LOCKLIMIT",
    );
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 60000"));
}

#[test]
fn max_hold_caps_every_hold() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE free me 60000"));
    c.ok("CONFIG SET lock.max-hold 90000");
    refused(&c.call("LOCK.ACQUIRE job me 90001"), "LOCKLIMIT");
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    for line in ["LOCK.ACQUIRE job me 120000", "LOCK.EXTEND job me 120000"] {
        let reply = c.call(line);
        refused(&reply, "LOCKLIMIT");
        assert!(
            (1..=90_000).contains(&milliseconds_left(reply.error())),
            "{reply:?}"
        );
    }
    let holder = sole_holder(&mut c, "job");
    assert_eq!(holder.number("holds"), 1);
    assert!(holder.number("ttl") <= 60_000);
}

#[test]
fn the_smaller_of_maxhold_and_max_hold_counts() {
    let server = Server::options().config("lock.max-hold 90000").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE wide me 60000 MAXHOLD 600000"));
    refused(&c.call("LOCK.EXTEND wide me 120000"), "LOCKLIMIT");
    granted(&c.call("LOCK.ACQUIRE narrow me 60000 MAXHOLD 60000"));
    refused(&c.call("LOCK.EXTEND narrow me 80000"), "LOCKLIMIT");
}

#[test]
fn a_cap_on_the_hold_counts_from_the_grant_and_ends_with_it() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 60000"));
    c.ok("LOCK.RELEASE job me");
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    granted(&c.call("LOCK.EXTEND job me 120000"));
}

#[test]
fn reentry_may_tighten_the_cap_and_change_the_label() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 600000 OWNER first"));
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 90000"));
    assert_eq!(sole_holder(&mut c, "job").field("owner").text(), "first");
    granted(&c.call("LOCK.ACQUIRE job me 60000 MAXHOLD 600000 OWNER second"));
    assert_eq!(sole_holder(&mut c, "job").field("owner").text(), "second");
    refused(&c.call("LOCK.EXTEND job me 120000"), "LOCKLIMIT");
}
