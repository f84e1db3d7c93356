//! LOCK.RELEASE.

use redislock_testkit::lock::sole_holder;
use redislock_testkit::{Server, Value, granted};

#[test]
fn a_release_takes_one_hold_off() {
    let server = Server::start();
    let mut c = server.connect();
    for _ in 0..3 {
        granted(&c.call("LOCK.ACQUIRE job me 60000"));
    }
    for left in [2, 1] {
        assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
        assert_eq!(sole_holder(&mut c, "job").number("holds"), left);
    }
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
}

#[test]
fn release_all_takes_every_hold_off() {
    let server = Server::start();
    let mut c = server.connect();
    for _ in 0..7 {
        granted(&c.call("LOCK.ACQUIRE job me 60000"));
    }
    assert_eq!(c.call("LOCK.RELEASE job me all"), Value::Integer(7));
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    assert_eq!(c.call("LOCK.RELEASE job me ALL"), Value::Null);
}

#[test]
fn a_token_that_does_not_hold_the_lock_releases_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.RELEASE job you"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE job you ALL"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE other me"), Value::Null);
    let holder = sole_holder(&mut c, "job");
    assert_eq!((holder.number("fence"), holder.number("holds")), (fence, 1));
}

#[test]
fn a_released_lock_is_free_for_a_higher_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let mut last = 0;
    for token in ["one", "two", "one", "three"] {
        let fence = granted(&c.call(&format!("LOCK.ACQUIRE job {token} 60000")));
        assert!(fence > last);
        last = fence;
        assert_eq!(
            c.call(&format!("LOCK.RELEASE job {token}")),
            Value::Integer(1)
        );
    }
}

#[test]
fn a_partial_release_leaves_fence_and_lease() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000 OWNER label"));
    granted(&c.call("LOCK.ACQUIRE job me 1000"));
    c.ok("LOCK.RELEASE job me");
    let holder = sole_holder(&mut c, "job");
    assert_eq!(holder.number("fence"), fence);
    assert_eq!(holder.field("owner").text(), "label");
    assert!(holder.number("ttl") > 300_000);
}
