//! LOCK.MACQUIRE, LOCK.MRELEASE, LOCK.MEXTEND: several keys in one step.

use redislock_testkit::lock::{all_locks, counter, wait_for_waiters, waiters, wall_micros};
use redislock_testkit::{Connection, Server, Value, granted, info_number, refused, wait_for_sync};

/// The fences of a granted MACQUIRE or MEXTEND.
#[track_caller]
fn fences(reply: &Value) -> Vec<i64> {
    reply.items().iter().map(granted).collect()
}

fn is_held(c: &mut Connection, key: &str, token: &str) -> bool {
    c.call(&format!("LOCK.INFO {key} {token}")) != Value::Null
}

/// A connection whose request waits for its keys when this returns.
#[track_caller]
fn waiter(server: &Server, line: &str) -> Connection {
    let mut c = server.connect();
    let mut waiter = server.connect();
    let before = c.call("LOCK.NODE").number("waiters");
    waiter.send(line);
    redislock_testkit::wait_until("the request waits", || {
        c.call("LOCK.NODE").number("waiters") == before + 1
    });
    waiter
}

#[test]
fn all_keys_are_granted_with_one_new_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let last = granted(&c.call("LOCK.ACQUIRE other me 600000"));
    let granted = fences(&c.call("LOCK.MACQUIRE 3 a b c me 600000 OWNER label"));
    assert_eq!(granted, [granted[0]; 3]);
    assert!(granted[0] > last);
    assert_eq!(counter(&mut c), granted[0]);
    for key in ["a", "b", "c"] {
        assert_eq!(
            c.call(&format!("LOCK.INFO {key} me")).number("fence"),
            granted[0]
        );
    }
}

#[test]
fn a_key_that_the_token_holds_already_is_reentered_and_keeps_its_fence() {
    let server = Server::start();
    let mut c = server.connect();
    let old = granted(&c.call("LOCK.ACQUIRE b me 600000"));
    let reply = fences(&c.call("LOCK.MACQUIRE 3 a b c me 600000"));
    assert_eq!(reply[1], old);
    assert!(reply[0] > old && reply[0] == reply[2]);
    assert_eq!(c.call("LOCK.INFO b me").number("holds"), 2);
    assert_eq!(
        fences(&c.call("LOCK.MACQUIRE 3 a b c me 600000 ONCE")),
        reply
    );
    assert_eq!(c.call("LOCK.INFO b me").number("holds"), 2);
}

#[test]
fn one_key_that_is_held_denies_them_all() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b you 600000"));
    let before = all_locks(&mut c);
    let last = counter(&mut c);
    assert_eq!(c.call("LOCK.MACQUIRE 3 a b c me 600000"), Value::Null);
    assert_eq!((all_locks(&mut c), counter(&mut c)), (before, last));
}

#[test]
fn a_star_makes_one_token_for_all_keys() {
    let server = Server::start();
    let mut c = server.connect();
    let reply = c.call("LOCK.MACQUIRE 2 a b * 600000");
    let [token, granted] = reply.items() else {
        panic!("{reply:?}")
    };
    assert_eq!(fences(granted).len(), 2);
    let token = token.text().to_owned();
    assert!(is_held(&mut c, "a", &token) && is_held(&mut c, "b", &token));
    let mut waiter = waiter(&server, "LOCK.MACQUIRE 2 b c * 600000 BLOCK 0");
    c.ok(&format!("LOCK.RELEASE b {token}"));
    let reply = waiter.receive();
    assert_eq!(fences(&reply.items()[1]).len(), 2);
    let token = reply.items()[0].text().to_owned();
    assert!(is_held(&mut c, "b", &token) && is_held(&mut c, "c", &token));
}

#[test]
fn a_waiting_request_holds_nothing_meanwhile() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b you 600000"));
    let mut waiter = waiter(&server, "LOCK.MACQUIRE 2 a b me 600000 BLOCK 0");
    let info = c.call("LOCK.INFO a");
    assert_eq!(info.field("mode").text(), "free");
    assert_eq!(info.number("waiters"), 1);
    assert_eq!(info.field("holders").items(), []);
    assert_eq!(c.call("EXISTS a"), Value::Integer(0));
    assert_eq!(c.call("LOCK.INFO b").number("waiters"), 1);
    c.ok("LOCK.RELEASE b you");
    let granted = fences(&waiter.receive());
    assert_eq!(granted[0], granted[1]);
    assert!(is_held(&mut c, "a", "me") && is_held(&mut c, "b", "me"));
}

#[test]
fn arrival_order_is_kept_on_every_key() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b you 600000"));
    let mut first = waiter(&server, "LOCK.MACQUIRE 2 a b first 600000 BLOCK 0");
    assert_eq!(c.call("LOCK.ACQUIRE a newcomer 600000"), Value::Null);
    assert_eq!(c.call("LOCK.MACQUIRE 2 a c newcomer 600000"), Value::Null);
    let mut second = waiter(&server, "LOCK.ACQUIRE a second 600000 BLOCK 0");
    c.ok("LOCK.RELEASE b you");
    fences(&first.receive());
    assert_eq!(waiters(&mut c, "a"), 1);
    c.ok("LOCK.MRELEASE 2 a b first");
    granted(&second.receive());
}

#[test]
fn crossed_requests_do_not_block_each_other_forever() {
    let server = Server::start();
    let mut c = server.connect();
    fences(&c.call("LOCK.MACQUIRE 2 a b me 600000"));
    let mut one = waiter(&server, "LOCK.MACQUIRE 2 a b one 600000 BLOCK 0");
    let mut two = waiter(&server, "LOCK.MACQUIRE 2 b a two 600000 BLOCK 0");
    let mut three = waiter(&server, "LOCK.MACQUIRE 3 c b a three 600000 BLOCK 0");
    c.ok("LOCK.RELEASE b me");
    c.ok("LOCK.RELEASE a me");
    fences(&one.receive());
    c.ok("LOCK.MRELEASE 2 a b one");
    fences(&two.receive());
    c.ok("LOCK.MRELEASE 2 a b two");
    fences(&three.receive());
}

#[test]
fn a_waiter_that_waits_for_what_the_requester_holds_is_not_ahead_of_it() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b me 600000"));
    let mut waiter = waiter(&server, "LOCK.MACQUIRE 2 a b other 600000 BLOCK 0");
    granted(&c.call("LOCK.ACQUIRE a me 600000"));
    c.ok("LOCK.RELEASE a me");
    c.ok("LOCK.RELEASE b me");
    fences(&waiter.receive());
}

#[test]
fn a_waiter_that_gives_up_leaves_every_queue() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b you 600000"));
    let gone = waiter(&server, "LOCK.MACQUIRE 2 a b me 600000 BLOCK 0");
    let mut next = waiter(&server, "LOCK.ACQUIRE a next 600000 BLOCK 0");
    drop(gone);
    granted(&next.receive());
    wait_for_waiters(&mut c, "b", 0);
    assert_eq!(
        server
            .connect()
            .call("LOCK.MACQUIRE 2 c b me 600000 BLOCK 10"),
        Value::Null
    );
    assert_eq!(c.call("LOCK.INFO c"), Value::Null);
}

#[test]
fn shared_and_limit_count_for_every_key() {
    let server = Server::start();
    let mut c = server.connect();
    fences(&c.call("LOCK.MACQUIRE 2 a b one 600000 SHARED"));
    fences(&c.call("LOCK.MACQUIRE 2 b c two 600000 SHARED"));
    assert_eq!(c.call("LOCK.MACQUIRE 2 c d three 600000"), Value::Null);
    refused(
        &c.call("LOCK.MACQUIRE 2 d a three 600000 SHARED LIMIT 3"),
        "LOCKMODE",
    );
    refused(&c.call("LOCK.MACQUIRE 2 d a one 600000"), "LOCKMODE");
    assert_eq!(c.call("EXISTS d"), Value::Integer(0));
}

#[test]
fn release_and_extension_act_on_each_key_by_itself() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = fences(&c.call("LOCK.MACQUIRE 2 a b me 600000"))[0];
    granted(&c.call("LOCK.ACQUIRE c you 600000"));
    c.ok("LOCK.ACQUIRE b me 600000");
    assert_eq!(
        c.call("LOCK.MEXTEND 3 a c b me 6000000"),
        Value::Array(vec![
            Value::Integer(fence),
            Value::Null,
            Value::Integer(fence)
        ])
    );
    assert!(c.call("LOCK.INFO a me").number("ttl") > 600_000);
    assert_eq!(
        c.call("LOCK.MRELEASE 4 c b a d me ALL"),
        Value::Array(vec![
            Value::Null,
            Value::Integer(2),
            Value::Integer(1),
            Value::Null
        ])
    );
    assert_eq!(c.call("EXISTS a b c"), Value::Integer(1));
}

#[test]
fn an_extension_may_raise_the_fences() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("LOCK.MACQUIRE 2 a b me 600000");
    let ahead = wall_micros() + 5_000_000;
    assert_eq!(
        fences(&c.call(&format!("LOCK.MEXTEND 2 a b me 600000 FENCE {ahead}"))),
        [ahead; 2]
    );
    assert_eq!(counter(&mut c), ahead);
}

#[test]
fn a_deadlock_through_several_keys_is_reported() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE a one 600000"));
    granted(&c.call("LOCK.ACQUIRE b two 600000"));
    let mut two = waiter(&server, "LOCK.MACQUIRE 2 a c two 600000 BLOCK 0");
    refused(
        &server
            .connect()
            .call("LOCK.MACQUIRE 2 d b one 600000 BLOCK 0"),
        "DEADLOCK",
    );
    assert_eq!(waiters(&mut c, "d"), 0);
    c.ok("LOCK.RELEASE a one");
    fences(&two.receive());
}

/// One holder of a semaphore may overtake a waiter for it until another holder releases its place.
#[test]
fn a_deadlock_that_a_release_causes_is_reported_to_a_waiter() {
    let server = Server::start();
    let mut c = server.connect();
    for request in [
        "p o 600000 SHARED LIMIT 2",
        "p x 600000 SHARED LIMIT 2",
        "e o 600000",
    ] {
        granted(&c.call(&format!("LOCK.ACQUIRE {request}")));
    }
    for request in ["r y 600000", "q z 600000"] {
        granted(&c.call(&format!("LOCK.ACQUIRE {request}")));
    }
    let mut w = waiter(
        &server,
        "LOCK.MACQUIRE 3 p q r w 600000 SHARED LIMIT 2 BLOCK 0",
    );
    let mut o = waiter(&server, "LOCK.ACQUIRE q o 600000 SHARED LIMIT 2 BLOCK 0");
    let mut y = waiter(&server, "LOCK.ACQUIRE e y 600000 BLOCK 0");
    c.ok("LOCK.RELEASE p x");
    refused(&o.receive(), "DEADLOCK");
    c.ok("LOCK.RELEASE q z");
    c.ok("LOCK.RELEASE e o");
    granted(&y.receive());
    c.ok("LOCK.RELEASE r y");
    fences(&w.receive());
}

#[test]
fn a_thousand_keys_are_allowed() {
    let server = Server::start();
    let mut c = server.connect();
    let keys: Vec<String> = (0..1001).map(|n| format!("key-{n}")).collect();
    let thousand = keys[..1000].join(" ");
    assert_eq!(
        fences(&c.call(&format!("LOCK.MACQUIRE 1000 {thousand} me 600000"))).len(),
        1000
    );
    assert_eq!(
        c.call(&format!("LOCK.MRELEASE 1000 {thousand} me")),
        Value::Array(vec![Value::Integer(1); 1000])
    );
    refused(
        &c.call(&format!("LOCK.MACQUIRE 1001 {} me 600000", keys.join(" "))),
        "ERR",
    );
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

#[test]
fn bad_input_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    granted(&c.call("LOCK.ACQUIRE held me 600000"));
    let before = all_locks(&mut c);
    let dirty = info_number(&mut c, "persistence", "rdb_changes_since_last_save");
    for (line, class) in [
        ("LOCK.MACQUIRE", "ERR"),
        ("LOCK.MACQUIRE 0 me 1000", "ERR"),
        ("LOCK.MACQUIRE 0 a me 1000", "ERR"),
        ("LOCK.MACQUIRE -1 a me 1000", "ERR"),
        ("LOCK.MACQUIRE few a me 1000", "ERR"),
        ("LOCK.MACQUIRE 3 a me 1000", "ERR"),
        ("LOCK.MACQUIRE 1000 a me 1000", "ERR"),
        ("LOCK.MACQUIRE 9223372036854775807 a me 1000", "ERR"),
        ("LOCK.MACQUIRE 18446744073709551617 a me 1000", "ERR"),
        ("LOCK.MACQUIRE 2 a a me 1000", "ERR"),
        ("LOCK.MACQUIRE 3 a held a me 1000 BLOCK 0", "ERR"),
        ("LOCK.MACQUIRE 2 a b me 0", "ERR"),
        ("LOCK.MACQUIRE 2 a b me 1000 NONSENSE", "ERR"),
        ("LOCK.MACQUIRE 2 a b me 1000 LIMIT 2", "ERR"),
        ("LOCK.MACQUIRE 2 a b * 1000 ONCE", "ERR"),
        ("LOCK.MACQUIRE 3 a string b me 1000", "WRONGTYPE"),
        ("LOCK.MACQUIRE 3 a string b me 1000 BLOCK 0", "WRONGTYPE"),
        (
            "LOCK.MACQUIRE 2 a b me 1000 FENCE 9007199254740991",
            "LOCKFENCE",
        ),
        ("LOCK.MRELEASE", "ERR"),
        ("LOCK.MRELEASE 0 me", "ERR"),
        ("LOCK.MRELEASE 2 held held me", "ERR"),
        ("LOCK.MRELEASE 5 held me", "ERR"),
        ("LOCK.MRELEASE 1 held *", "ERR"),
        ("LOCK.MRELEASE 1 held me SOME", "ERR"),
        ("LOCK.MEXTEND 0 me 1000", "ERR"),
        ("LOCK.MEXTEND 2 held held me 1000", "ERR"),
        ("LOCK.MEXTEND 1 held me 0", "ERR"),
        ("LOCK.MEXTEND 1 held * 1000", "ERR"),
    ] {
        refused(&c.call(line), class);
        assert_eq!(all_locks(&mut c), before, "{line}");
    }
    assert_eq!(
        info_number(&mut c, "persistence", "rdb_changes_since_last_save"),
        dirty
    );
    assert_eq!(c.call("LOCK.NODE").number("waiters"), 0);
}

#[test]
fn several_keys_reach_replica_and_aof_as_one() {
    let mut master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    m.ok("LOCK.MACQUIRE 5 a b c d e me 600000 OWNER label");
    m.ok("LOCK.MACQUIRE 2 e f me 600000");
    m.ok("LOCK.MEXTEND 2 a b me 6000000");
    m.ok("LOCK.MRELEASE 2 c e me");
    let mut waiter = waiter(&master, "LOCK.MACQUIRE 2 d g you 600000 BLOCK 0");
    m.ok("LOCK.RELEASE d me");
    fences(&waiter.receive());
    wait_for_sync(&mut m, &mut r);
    let before = all_locks(&mut m);
    assert_eq!(all_locks(&mut r), before);
    assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"));
    master.kill();
    master.start_again();
    assert_eq!(all_locks(&mut master.connect()), before);
}

#[test]
fn every_key_counts_for_routing_and_acl() {
    let server = Server::start();
    let mut c = server.connect();
    for line in [
        "LOCK.MACQUIRE 2 a b me 1000",
        "LOCK.MRELEASE 2 a b me",
        "LOCK.MEXTEND 2 a b me 1000",
    ] {
        let keys = c.call(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(
            keys.items().iter().map(Value::text).collect::<Vec<_>>(),
            ["a", "b"],
            "{line}"
        );
    }
    c.ok("ACL SETUSER app reset on >secret ~a +@all");
    let mut app = server.connect();
    app.ok("AUTH app secret");
    fences(&app.call("LOCK.MACQUIRE 1 a me 600000"));
    refused(&app.call("LOCK.MACQUIRE 2 a b me 600000"), "NOPERM");
    refused(&app.call("LOCK.MRELEASE 2 a b me"), "NOPERM");
}

#[test]
fn the_cap_of_one_hold_refuses_them_all() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b me 60000 MAXHOLD 90000"));
    refused(&c.call("LOCK.MACQUIRE 2 a b me 120000"), "LOCKLIMIT");
    refused(
        &c.call("LOCK.MACQUIRE 2 a c me 120000 MAXHOLD 90000"),
        "LOCKLIMIT",
    );
    assert_eq!(c.call("EXISTS a c"), Value::Integer(0));
    assert_eq!(c.call("LOCK.INFO b me").number("holds"), 1);
    fences(&c.call("LOCK.MACQUIRE 2 a b me 60000"));
    let reply = c.call("LOCK.MEXTEND 2 a b me 120000");
    granted(&reply.items()[0]);
    refused(&reply.items()[1], "LOCKLIMIT");
    assert!(c.call("LOCK.INFO b me").number("ttl") <= 90_000);
}

#[test]
fn fence_counts_for_all_new_keys() {
    let server = Server::start();
    let mut c = server.connect();
    let old = granted(&c.call("LOCK.ACQUIRE b me 600000"));
    let ahead = wall_micros() + 5_000_000;
    let told = c.call(&format!("LOCK.MACQUIRE 3 a b c me 600000 FENCE {ahead}"));
    assert_eq!(fences(&told), [ahead, old, ahead]);
    assert_eq!(counter(&mut c), ahead);
}

#[test]
fn where_blocking_is_denied_several_keys_are_not_waited_for() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE b you 600000"));
    let replies = c.pipeline(&[
        "MULTI",
        "LOCK.MACQUIRE 2 a b me 600000 BLOCK 0",
        "LOCK.MACQUIRE 2 c d me 600000 BLOCK 0",
        "EXEC",
    ]);
    let replies = replies[3].items();
    assert_eq!(replies[0], Value::Null);
    assert_eq!(fences(&replies[1]).len(), 2);
    let script =
        "return redis.call('LOCK.MACQUIRE', 2, KEYS[1], KEYS[2], 'me', 600000, 'BLOCK', 0)";
    assert_eq!(c.call_args(&["EVAL", script, "2", "a", "b"]), Value::Null);
    assert_eq!(c.call("LOCK.NODE").number("waiters"), 0);
    assert_eq!(c.call("EXISTS a"), Value::Integer(0));
}

#[test]
fn to_release_all_of_any_of_its_keys_cancels_a_waiting_request() {
    for cancel in [
        "LOCK.RELEASE a me ALL",
        "LOCK.RELEASE b me ALL",
        "LOCK.MRELEASE 2 b elsewhere me ALL",
    ] {
        let server = Server::start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE b you 600000"));
        let mut waiter = waiter(&server, "LOCK.MACQUIRE 2 a b me 600000 BLOCK 0");
        c.ok(cancel);
        assert_eq!(waiter.receive(), Value::Null, "{cancel}");
        assert_eq!((waiters(&mut c, "a"), waiters(&mut c, "b")), (0, 0));
        c.ok("LOCK.RELEASE b you");
        assert_eq!(c.call("DBSIZE"), Value::Integer(0));
    }
}

#[test]
fn a_key_of_another_type_has_its_error_in_its_place_and_the_others_are_done() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    let fence = fences(&c.call("LOCK.MACQUIRE 2 a b me 600000"))[0];
    let told = c.call("LOCK.MEXTEND 4 a string free b me 6000000");
    let [a, string, free, b] = told.items() else {
        panic!("{told:?}")
    };
    refused(string, "WRONGTYPE");
    assert_eq!([a, free, b], [&Value::Integer(fence), &Value::Null, a]);
    assert!(c.call("LOCK.INFO b me").number("ttl") > 600_000);
    let told = c.call("LOCK.MRELEASE 4 a string free b me");
    let [a, string, free, b] = told.items() else {
        panic!("{told:?}")
    };
    refused(string, "WRONGTYPE");
    assert_eq!([a, free, b], [&Value::Integer(1), &Value::Null, a]);
    refused(&c.call("LOCK.MRELEASE 1 string me").items()[0], "WRONGTYPE");
    assert_eq!(c.call("EXISTS a b string"), Value::Integer(1));
}
