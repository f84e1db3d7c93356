//! LOCK.INFO.

use std::time::Duration;

use redislock_testkit::lock::{sole_holder, wait_until_gone};
use redislock_testkit::{Server, Value, granted, refused, wait_until};

const FIELDS: [&str; 5] = ["mode", "limit", "waiters", "oldest-wait", "holders"];
const HOLDER_FIELDS: [&str; 6] = ["owner", "fingerprint", "holds", "fence", "ttl", "age"];

#[test]
fn every_field_is_always_there() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    c.ok("LOCK.ACQUIRE room reader 60000 SHARED");
    for mut client in [server.connect(), server.connect().resp3()] {
        for key in ["job", "room"] {
            let info = client.call(&format!("LOCK.INFO {key}"));
            assert_eq!(info.fields(), FIELDS);
            for holder in info.field("holders").items() {
                assert_eq!(holder.fields(), HOLDER_FIELDS);
            }
        }
        assert_eq!(client.call("LOCK.INFO job me").fields(), HOLDER_FIELDS);
    }
}

#[test]
fn count_limits_the_holders_that_are_shown() {
    let server = Server::start();
    let mut c = server.connect();
    for holder in ["a", "b", "c"] {
        c.ok(&format!("LOCK.ACQUIRE room {holder} 60000 SHARED"));
    }
    for (count, shown) in [("1", 1), ("3", 3), ("1000", 3)] {
        let info = c.call(&format!("LOCK.INFO room COUNT {count}"));
        assert_eq!(info.fields(), FIELDS);
        assert_eq!(info.field("holders").items().len(), shown);
        assert_eq!(info.field("mode").text(), "shared");
    }
    assert_eq!(c.call("LOCK.INFO nothing COUNT 1"), Value::Null);
    for wrong in ["COUNT 0", "COUNT x", "LIMIT 1"] {
        let reply = c.call(&format!("LOCK.INFO room {wrong}"));
        refused(&reply, "ERR");
    }
    // A token that is called like the option is a token.
    c.ok("LOCK.ACQUIRE room count 60000 SHARED");
    assert_eq!(c.call("LOCK.INFO room count").fields(), HOLDER_FIELDS);
}

#[test]
fn waiters_shows_the_queue_in_order_and_no_token() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job secret-0 60000 OWNER ada");
    let mut waiters = Vec::new();
    for (number, words) in ["OWNER ben", "SHARED", "OWNER cyd"].into_iter().enumerate() {
        let mut waiter = server.connect();
        let number = number + 1;
        waiter.send(&format!(
            "LOCK.ACQUIRE job secret-{number} 60000 BLOCK 0 {words}"
        ));
        waiters.push(waiter);
        wait_until("it waits", || {
            c.call("LOCK.INFO job").number("waiters") == number as i64
        });
    }
    let info = c.call("LOCK.INFO job COUNT 1 waiters 10");
    assert_eq!(info.fields(), [&FIELDS[..], &["queue"]].concat());
    let queue = info.field("queue");
    let shown = |name: &str| -> Vec<String> {
        let waiters = queue.items().iter();
        waiters
            .map(|one| one.field(name).text().to_owned())
            .collect()
    };
    for one in queue.items() {
        assert_eq!(one.fields(), ["owner", "fingerprint", "mode", "wait"]);
        assert!(one.number("wait") >= 0);
    }
    assert_eq!(shown("owner"), ["ben", "", "cyd"]);
    assert_eq!(shown("mode"), ["exclusive", "shared", "exclusive"]);
    assert!(!format!("{info:?}").contains("secret"), "{info:?}");
    // The fingerprint of a waiter is that of the holder that it becomes.
    let first = shown("fingerprint").remove(0);
    c.ok("LOCK.RELEASE job secret-0");
    granted(&waiters[0].receive());
    assert_eq!(
        c.call("LOCK.INFO job secret-1").field("fingerprint").text(),
        first
    );
    let rest = c
        .call("LOCK.INFO job WAITERS 1")
        .field("queue")
        .items()
        .len();
    assert_eq!(rest, 1, "of two");
    assert_eq!(c.call("LOCK.INFO nothing WAITERS 1"), Value::Null);
    // A key that is free and waited for together with another one.
    let mut both = server.connect();
    both.send("LOCK.MACQUIRE 2 job other secret-9 60000 BLOCK 0 OWNER dan");
    wait_until("it waits", || c.call("LOCK.INFO other") != Value::Null);
    let info = c.call("LOCK.INFO other WAITERS 5");
    assert_eq!(info.field("queue").items()[0].field("owner").text(), "dan");
    for wrong in [
        "WAITERS 0",
        "WAITERS 1001",
        "WAITERS x",
        "WAITERS 1 WAITERS 1",
        "COUNT 1 WAITERS",
        "me WAITERS 1",
        "COUNT 1 WAITERS 1 COUNT 1",
    ] {
        refused(&c.call(&format!("LOCK.INFO job {wrong}")), "ERR");
    }
}

#[test]
fn the_reply_is_a_map_in_resp3_and_a_flat_array_in_resp2() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    let Value::Array(_) = c.call("LOCK.INFO job") else {
        panic!("no array")
    };
    let Value::Array(_) = c.call("LOCK.INFO job me") else {
        panic!("no array")
    };
    let mut c = c.resp3();
    let info = c.call("LOCK.INFO job");
    let Value::Map(_) = info else {
        panic!("no map: {info:?}")
    };
    let Value::Map(_) = info.field("holders").items()[0] else {
        panic!("no map: {info:?}")
    };
    let Value::Map(_) = c.call("LOCK.INFO job me") else {
        panic!("no map")
    };
}

#[test]
fn info_shows_mode_limit_waiters_and_holders() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000 OWNER label"));
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let info = c.call("LOCK.INFO job");
    assert_eq!(info.field("mode").text(), "exclusive");
    assert_eq!(info.number("limit"), 0);
    assert_eq!(info.number("waiters"), 0);
    assert_eq!(info.number("oldest-wait"), 0);
    let holder = sole_holder(&mut c, "job");
    assert_eq!(holder.field("owner").text(), "label");
    assert_eq!(holder.number("holds"), 2);
    assert_eq!(holder.number("fence"), fence);
    assert!((1..=60_000).contains(&holder.number("ttl")));
    assert!(holder.number("age") >= 0);
}

#[test]
fn ttl_falls_and_age_grows() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    let before = sole_holder(&mut c, "job");
    std::thread::sleep(Duration::from_millis(30));
    let after = sole_holder(&mut c, "job");
    assert!(after.number("age") >= before.number("age") + 29);
    assert!(after.number("ttl") <= before.number("ttl") - 29);
}

#[test]
fn age_counts_from_the_grant_and_not_from_the_last_reentry() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    std::thread::sleep(Duration::from_millis(30));
    c.ok("LOCK.ACQUIRE job me 60000");
    c.ok("LOCK.EXTEND job me 60000");
    assert!(sole_holder(&mut c, "job").number("age") >= 29);
}

#[test]
fn with_a_token_info_shows_that_holder_alone() {
    let server = Server::start();
    let mut c = server.connect();
    for reader in ["one", "two", "three"] {
        c.ok(&format!(
            "LOCK.ACQUIRE room {reader} 60000 SHARED OWNER label-{reader}"
        ));
    }
    let holder = c.call("LOCK.INFO room two");
    assert_eq!(holder.field("owner").text(), "label-two");
    assert_eq!(c.call("LOCK.INFO room four"), Value::Null);
    assert_eq!(c.call("LOCK.INFO nothing one"), Value::Null);
}

#[test]
fn fingerprints_distinguish_tokens_and_change_at_each_start() {
    let mut server = Server::start();
    let mut c = server.connect();
    let fingerprint = |info: Value| info.field("fingerprint").text().to_owned();
    for line in [
        "LOCK.ACQUIRE room one 60000 SHARED",
        "LOCK.ACQUIRE room two 60000 SHARED",
        "LOCK.ACQUIRE job one 60000",
    ] {
        c.ok(line);
    }
    let one = fingerprint(c.call("LOCK.INFO room one"));
    assert_eq!(fingerprint(c.call("LOCK.INFO job one")), one);
    assert_ne!(fingerprint(c.call("LOCK.INFO room two")), one);
    assert!(
        one.len() >= 4 && one.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{one}"
    );
    server.restart();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job one 60000");
    assert_ne!(fingerprint(c.call("LOCK.INFO job one")), one);
}

#[test]
fn info_never_shows_a_token() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job SECRET-TOKEN 60000 OWNER label");
    for line in [
        "LOCK.INFO job",
        "LOCK.INFO job SECRET-TOKEN",
        "LOCK.NODE",
        "INFO everything",
    ] {
        let reply = format!("{:?}", c.call(line));
        assert!(!reply.contains("SECRET"), "{line}: {reply}");
    }
    assert!(!server.log().contains("SECRET"));
}

#[test]
fn info_is_a_read_that_works_on_a_replica() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    let fence = granted(&m.call("LOCK.ACQUIRE job me 60000 OWNER label"));
    redislock_testkit::wait_until("the replica has the lock", || {
        r.call("LOCK.INFO job") != Value::Null
    });
    let holder = sole_holder(&mut r, "job");
    assert_eq!(holder.number("fence"), fence);
    assert_eq!(holder.field("owner").text(), "label");
    assert_eq!(r.call("LOCK.INFO job me").number("fence"), fence);
    assert_eq!(r.call("LOCK.INFO job you"), Value::Null);
}

#[test]
fn info_changes_nothing_in_the_dataset() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 60000");
    let digest = c.ok("DEBUG DIGEST");
    let dirty =
        redislock_testkit::info_number(&mut c, "persistence", "rdb_changes_since_last_save");
    for line in [
        "LOCK.INFO job",
        "LOCK.INFO job me",
        "LOCK.INFO job you",
        "LOCK.INFO nothing",
        "LOCK.NODE",
    ] {
        c.ok(line);
    }
    assert_eq!(
        redislock_testkit::info_number(&mut c, "persistence", "rdb_changes_since_last_save"),
        dirty
    );
    assert_eq!(c.ok("DEBUG DIGEST"), digest);
}

#[test]
fn info_is_null_once_the_lease_is_over() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.ACQUIRE job me 20");
    std::thread::sleep(Duration::from_millis(25));
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    assert_eq!(c.call("LOCK.INFO job me"), Value::Null);
    wait_until_gone(&mut c, "job");
}

#[test]
fn a_key_of_another_type_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    refused(&c.call("LOCK.INFO string"), "WRONGTYPE");
    refused(&c.call("LOCK.INFO string me"), "WRONGTYPE");
}
