//! LOCK.EXTEND.

use redislock_testkit::lock::{counter, sole_holder, wall_micros};
use redislock_testkit::{Server, Value, granted, refused};

#[test]
fn an_extension_makes_the_lease_the_later_of_its_end_and_now_plus_ttl() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.EXTEND job me 6000000"), Value::Integer(fence));
    let ttl = sole_holder(&mut c, "job").number("ttl");
    assert!((3_000_000..=6_000_000).contains(&ttl), "{ttl}");
    assert_eq!(c.call("LOCK.EXTEND job me 1"), Value::Integer(fence));
    assert!(sole_holder(&mut c, "job").number("ttl") > 3_000_000);
}

#[test]
fn an_extension_does_not_count_as_a_hold() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    granted(&c.call("LOCK.EXTEND job me 60000"));
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[test]
fn a_token_that_does_not_hold_the_lock_extends_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.EXTEND job you 6000000"), Value::Null);
    assert!(sole_holder(&mut c, "job").number("ttl") <= 60_000);
    assert_eq!(c.call("LOCK.EXTEND other me 60000"), Value::Null);
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
}

#[test]
fn fence_raises_the_fence_of_the_hold_and_the_counter() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let ahead = wall_micros() + 5_000_000;
    for _ in 0..2 {
        assert_eq!(
            c.call(&format!("LOCK.EXTEND job me 60000 fence {ahead}")),
            Value::Integer(ahead)
        );
    }
    assert_eq!(sole_holder(&mut c, "job").number("fence"), ahead);
    assert_eq!(counter(&mut c), ahead);
    assert_eq!(c.call("LOCK.ACQUIRE job me 60000"), Value::Integer(ahead));
    assert!(granted(&c.call("LOCK.ACQUIRE other me 60000")) > ahead);
}

#[test]
fn a_lower_fence_leaves_the_fence_of_the_hold() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    for lower in [0, 1, fence - 1, fence] {
        assert_eq!(
            c.call(&format!("LOCK.EXTEND job me 60000 FENCE {lower}")),
            Value::Integer(fence)
        );
    }
    assert_eq!(counter(&mut c), fence);
}

#[test]
fn fence_is_taken_only_from_a_holder() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let ahead = wall_micros() + 5_000_000;
    assert_eq!(
        c.call(&format!("LOCK.EXTEND job you 60000 FENCE {ahead}")),
        Value::Null
    );
    assert_eq!(
        c.call(&format!("LOCK.EXTEND other me 60000 FENCE {ahead}")),
        Value::Null
    );
    assert_eq!(counter(&mut c), fence);
}

#[test]
fn a_fence_more_than_ten_seconds_ahead_is_refused_and_the_lease_stays() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    for ahead in [wall_micros() + 60_000_000, (1 << 53) - 1] {
        refused(
            &c.call(&format!("LOCK.EXTEND job me 6000000 FENCE {ahead}")),
            "LOCKFENCE",
        );
    }
    let holder = sole_holder(&mut c, "job");
    assert_eq!(holder.number("fence"), fence);
    assert!(holder.number("ttl") <= 60_000);
    assert_eq!(counter(&mut c), fence);
}
