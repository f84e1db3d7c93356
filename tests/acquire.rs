//! LOCK.ACQUIRE without waiting: grants, denials, re-entry, tokens, FENCE, OWNER.

use redislock_testkit::lock::{counter, sole_holder, wall_micros};
use redislock_testkit::{Server, Value, granted, refused};

#[test]
fn a_free_lock_is_granted_with_a_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
    assert_eq!(c.call("TYPE job"), Value::Status("redislock".into()));
}

#[test]
fn a_lock_that_another_token_holds_is_denied_with_null() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.ACQUIRE job you 60000"), Value::Null);
    let holder = sole_holder(&mut c, "job");
    assert_eq!((holder.number("fence"), holder.number("holds")), (fence, 1));
    assert_eq!(c.call("LOCK.INFO job you"), Value::Null);
}

#[test]
fn the_token_alone_makes_the_owner_whatever_the_connection() {
    let server = Server::start();
    let fence = granted(&server.connect().call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(
        server.connect().call("LOCK.ACQUIRE job me 60000"),
        Value::Integer(fence)
    );
    assert_eq!(
        server.connect().call("LOCK.RELEASE job me ALL"),
        Value::Integer(2)
    );
}

#[test]
fn a_denial_is_a_null_bulk_in_resp2_and_a_null_in_resp3() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    for (mut client, null) in [
        (server.connect(), "$-1\r\n"),
        (server.connect().resp3(), "_\r\n"),
    ] {
        for line in [
            "LOCK.ACQUIRE job you 60000",
            "LOCK.ACQUIRE job * 60000",
            "LOCK.RELEASE job you",
            "LOCK.RELEASE nothing you ALL",
            "LOCK.EXTEND job you 60000",
            "LOCK.EXTEND nothing you 60000",
            "LOCK.INFO nothing",
            "LOCK.INFO nothing me",
            "LOCK.INFO job you",
            "LOCK.FORCE nothing",
        ] {
            client.send(line);
            let reply = client.raw(null.len());
            assert_eq!(String::from_utf8_lossy(&reply), null, "{line}");
        }
    }
}

#[test]
fn the_key_exists_exactly_while_somebody_holds_the_lock() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("EXISTS job"), Value::Integer(1));
    c.ok("LOCK.RELEASE job me");
    assert_eq!(c.call("EXISTS job"), Value::Integer(1));
    c.ok("LOCK.RELEASE job me");
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}

#[test]
fn scan_lists_locks_by_their_type() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    c.ok("LOCK.ACQUIRE job me 60000");
    assert_eq!(redislock_testkit::lock::keys(&mut c), [b"job".to_vec()]);
}

#[test]
fn a_lock_belongs_to_one_database() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("SELECT 1");
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    granted(&c.call("LOCK.ACQUIRE job you 60000"));
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
}

#[test]
fn reentry_counts_and_keeps_the_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    for holds in 2..=5 {
        assert_eq!(c.call("LOCK.ACQUIRE job me 60000"), Value::Integer(fence));
        assert_eq!(sole_holder(&mut c, "job").number("holds"), holds);
    }
}

#[test]
fn reentry_makes_the_lease_the_later_of_the_old_end_and_now_plus_ttl() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    granted(&c.call("LOCK.ACQUIRE job me 1"));
    assert!(sole_holder(&mut c, "job").number("ttl") > 300_000);
    granted(&c.call("LOCK.ACQUIRE job me 6000000"));
    let ttl = sole_holder(&mut c, "job").number("ttl");
    assert!((3_000_000..=6_000_000).contains(&ttl), "{ttl}");
}

#[test]
fn reentry_ignores_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let ahead = wall_micros() + 5_000_000;
    assert_eq!(
        c.call(&format!("LOCK.ACQUIRE job me 60000 FENCE {ahead}")),
        Value::Integer(fence)
    );
    assert_eq!(counter(&mut c), fence);
}

#[test]
fn once_keeps_the_count_but_moves_the_lease() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000 ONCE"));
    for _ in 0..3 {
        assert_eq!(
            c.call("LOCK.ACQUIRE job me 6000000 ONCE"),
            Value::Integer(fence)
        );
    }
    let holder = sole_holder(&mut c, "job");
    assert_eq!(holder.number("holds"), 1);
    assert!(holder.number("ttl") > 60_000);
    assert_eq!(c.call("LOCK.ACQUIRE job you 60000 ONCE"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}

#[test]
fn a_star_makes_the_server_choose_a_uuid_as_the_token() {
    let server = Server::start();
    for mut c in [server.connect(), server.connect().resp3()] {
        c.ok("FLUSHALL");
        let first = c.call("LOCK.ACQUIRE a * 60000");
        let second = c.call("LOCK.ACQUIRE b * 60000");
        assert_ne!(first.items()[0], second.items()[0]);
        for (key, reply) in [("a", first), ("b", second)] {
            let [token, fence] = reply.items() else {
                panic!("{reply:?}")
            };
            let token = token.text();
            assert!(is_uuid_v4(token), "{token}");
            assert_eq!(c.call(&format!("LOCK.EXTEND {key} {token} 60000")), *fence);
            granted(fence);
            assert_eq!(
                c.call(&format!("LOCK.RELEASE {key} {token}")),
                Value::Integer(1)
            );
        }
    }
}

fn is_uuid_v4(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
        && groups[2].starts_with('4')
        && groups[3].starts_with(['8', '9', 'a', 'b'])
}

#[test]
fn a_star_asked_for_a_held_lock_is_denied() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(c.call("LOCK.ACQUIRE job * 60000"), Value::Null);
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[test]
fn two_stars_are_an_ordinary_token() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job ** 60000"));
    assert_eq!(c.call("LOCK.EXTEND job ** 60000"), Value::Integer(fence));
}

#[test]
fn options_come_in_any_order_and_in_any_case() {
    let server = Server::start();
    let mut c = server.connect();
    for (n, options) in [
        "ONCE FENCE 1 MAXHOLD 70000 OWNER label",
        "owner label maxhold 70000 fence 1 once",
        "OwNeR label OnCe FeNcE 1 MaXhOlD 70000",
    ]
    .iter()
    .enumerate()
    {
        granted(&c.call(&format!("lock.acquire job-{n} me 60000 {options}")));
        let holder = sole_holder(&mut c, &format!("job-{n}"));
        assert_eq!(holder.field("owner").text(), "label");
        refused(
            &c.call(&format!("Lock.Extend job-{n} me 80000")),
            "LOCKLIMIT",
        );
    }
}

#[test]
fn the_name_of_an_option_may_be_a_token_and_a_label() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE ONCE ONCE 60000 OWNER OWNER ONCE"));
    assert_eq!(sole_holder(&mut c, "ONCE").field("owner").text(), "OWNER");
    assert_eq!(c.call("LOCK.RELEASE ONCE ONCE"), Value::Integer(1));
}

#[test]
fn keys_tokens_and_labels_are_binary_safe() {
    let server = Server::start();
    let mut c = server.connect();
    let bytes: Vec<u8> = (0..=255).collect();
    let mut other = bytes.clone();
    other[255] = 0;
    let fence = granted(&c.call_args(&[
        b"LOCK.ACQUIRE",
        &bytes[..],
        &bytes,
        b"60000",
        b"OWNER",
        &bytes,
    ]));
    let info = c.call_args(&[b"LOCK.INFO", &bytes[..]]);
    assert_eq!(
        info.field("holders").items()[0].field("owner").bytes(),
        bytes
    );
    assert_eq!(
        c.call_args(&[b"LOCK.ACQUIRE", &bytes[..], &other, b"60000"]),
        Value::Null
    );
    assert_eq!(
        c.call_args(&[b"LOCK.EXTEND", &bytes[..], &bytes, b"60000"]),
        Value::Integer(fence)
    );
    assert_eq!(
        c.call_args(&[b"LOCK.RELEASE", &bytes[..], &other]),
        Value::Null
    );
    assert_eq!(
        c.call_args(&[b"LOCK.RELEASE", &bytes[..], &bytes]),
        Value::Integer(1)
    );
}

#[test]
fn tokens_that_share_a_beginning_are_different_owners() {
    let server = Server::start();
    let mut c = server.connect();
    let long = "t".repeat(256);
    granted(&c.call(&format!("LOCK.ACQUIRE job {long} 60000")));
    for length in [1, 35, 36, 37, 255] {
        assert_eq!(
            c.call(&format!("LOCK.RELEASE job {}", &long[..length])),
            Value::Null
        );
    }
    assert_eq!(c.call_args(&["LOCK.RELEASE", "job", "t\0"]), Value::Null);
    assert_eq!(
        c.call(&format!("LOCK.RELEASE job {long}")),
        Value::Integer(1)
    );
}

#[test]
fn an_empty_key_is_a_key() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call_args(&["LOCK.ACQUIRE", "", "me", "60000"]));
    assert_eq!(
        c.call_args(&["LOCK.ACQUIRE", "", "you", "60000"]),
        Value::Null
    );
    assert_eq!(c.call_args(&["LOCK.RELEASE", "", "me"]), Value::Integer(1));
}

#[test]
fn fence_raises_the_grant_and_the_counter() {
    let server = Server::start();
    let mut c = server.connect();
    let ahead = wall_micros() + 8_000_000;
    assert_eq!(
        c.call(&format!("LOCK.ACQUIRE a me 60000 FENCE {ahead}")),
        Value::Integer(ahead)
    );
    assert_eq!(counter(&mut c), ahead);
    assert!(granted(&c.call("LOCK.ACQUIRE b me 60000")) > ahead);
}

#[test]
fn a_fence_that_is_passed_already_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    let before = wall_micros();
    for (key, at_least) in [("a", 0), ("b", 1), ("c", before - 1)] {
        let fence = granted(&c.call(&format!("LOCK.ACQUIRE {key} me 60000 FENCE {at_least}")));
        assert!(fence >= before && fence <= wall_micros(), "{fence}");
    }
}

#[test]
fn a_fence_more_than_ten_seconds_ahead_of_the_clock_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    let last = granted(&c.call("LOCK.ACQUIRE other me 60000"));
    for ahead in [
        wall_micros() + 60_000_000,
        i64::from(u32::MAX) << 20,
        (1 << 53) - 1,
    ] {
        refused(
            &c.call(&format!("LOCK.ACQUIRE job me 60000 FENCE {ahead}")),
            "LOCKFENCE",
        );
        assert_eq!(c.call("EXISTS job"), Value::Integer(0));
        assert_eq!(counter(&mut c), last);
    }
}

#[test]
fn a_label_is_shown_to_humans_and_proves_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000 OWNER host-1"));
    assert_eq!(sole_holder(&mut c, "job").field("owner").text(), "host-1");
    assert_eq!(
        c.call("LOCK.ACQUIRE job you 60000 OWNER host-1"),
        Value::Null
    );
    assert_eq!(c.call("LOCK.RELEASE job host-1"), Value::Null);
    granted(&c.call_args(&[
        "LOCK.ACQUIRE",
        "long",
        "me",
        "60000",
        "OWNER",
        &"x".repeat(256),
    ]));
    assert_eq!(
        sole_holder(&mut c, "long").field("owner").bytes().len(),
        256
    );
    granted(&c.call("LOCK.ACQUIRE none me 60000"));
    assert_eq!(sole_holder(&mut c, "none").field("owner").text(), "");
}

#[test]
fn every_option_may_stand_anywhere_behind_the_lease() {
    let server = Server::start();
    let mut c = server.connect();
    let options = [
        "shared",
        "Limit 3",
        "BLOCK 10",
        "once",
        "FENCE 1",
        "maxHold 70000",
        "EPHEMERAL",
        "Owner label",
    ];
    for first in 0..options.len() {
        let mut turned = options;
        turned.rotate_left(first);
        for line in [
            format!("LOCK.ACQUIRE one-{first} me 60000"),
            format!("LOCK.MACQUIRE 1 two-{first} me 60000"),
        ] {
            let reply = c.call(&format!("{line} {}", turned.join(" ")));
            assert!(!reply.is_error() && reply != Value::Null, "{reply:?}");
        }
        for key in ["one", "two"] {
            let info = c.call(&format!("LOCK.INFO {key}-{first}"));
            assert_eq!(info.number("limit"), 3);
            let holder = sole_holder(&mut c, &format!("{key}-{first}"));
            assert_eq!(holder.field("owner").text(), "label");
        }
    }
}

#[test]
fn reentry_ignores_a_fence_that_would_be_refused() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let again = c.call("LOCK.ACQUIRE job me 60000 FENCE 9007199254740991");
    assert_eq!(again, Value::Integer(fence));
    assert_eq!(counter(&mut c), fence);
}
