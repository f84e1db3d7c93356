//! LOCK.GUARD: a command that runs only while the token holds the lock.

use std::time::Duration;

use redislock_testkit::{Connection, Server, Value, granted, info_number, refused, wait_for_sync};

fn held() -> (Server, Connection) {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    (server, c)
}

#[test]
fn the_holder_gets_what_the_command_replies() {
    let (_server, mut c) = held();
    assert_eq!(
        c.call("LOCK.GUARD job me SET counter 5"),
        Value::Status("OK".into())
    );
    assert_eq!(c.call("LOCK.GUARD job me INCR counter"), Value::Integer(6));
    assert_eq!(
        c.call("lock.guard job me get counter"),
        Value::Bulk(b"6".to_vec())
    );
    assert_eq!(c.call("LOCK.GUARD job me GET nothing"), Value::Null);
    assert_eq!(
        c.call("LOCK.GUARD job me MGET counter counter")
            .items()
            .len(),
        2
    );
    let mut c = c.resp3();
    c.ok("LOCK.GUARD job me HSET hash field value");
    let Value::Map(_) = c.call("LOCK.GUARD job me HGETALL hash") else {
        panic!("no map")
    };
}

#[test]
fn without_the_lock_nothing_happens() {
    let (_server, mut c) = held();
    c.ok("SET counter 5");
    for line in [
        "LOCK.GUARD job you INCR counter",
        "LOCK.GUARD free me INCR counter",
        "LOCK.GUARD free me GET counter",
    ] {
        refused(&c.call(line), "NOTHELD");
    }
    assert_eq!(c.call("GET counter").text(), "5");
}

#[test]
fn a_stale_holder_can_no_longer_write() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job stale 20"));
    std::thread::sleep(Duration::from_millis(22));
    refused(&c.call("LOCK.GUARD job stale INCR counter"), "NOTHELD");
    granted(&c.call("LOCK.ACQUIRE job fresh 600000"));
    refused(&c.call("LOCK.GUARD job stale INCR counter"), "NOTHELD");
    assert_eq!(
        c.call("LOCK.GUARD job fresh INCR counter"),
        Value::Integer(1)
    );
}

#[test]
fn errors_of_the_inner_command_are_passed_on() {
    let (_server, mut c) = held();
    c.ok("SET string text");
    refused(&c.call("LOCK.GUARD job me LPUSH string x"), "WRONGTYPE");
    refused(&c.call("LOCK.GUARD job me INCR string"), "ERR");
}

#[test]
fn what_may_not_run_inside_is_refused() {
    let (_server, mut c) = held();
    let dirty = info_number(&mut c, "persistence", "rdb_changes_since_last_save");
    for line in [
        "LOCK.GUARD job me",
        "LOCK.GUARD job me NOSUCHCOMMAND x",
        "LOCK.GUARD job me SET",
        "LOCK.GUARD job me GET a b c",
        "LOCK.GUARD job me BLPOP list 0",
        "LOCK.GUARD job me LOCK.RELEASE job me",
        "LOCK.GUARD job me LOCK.ACQUIRE other me 1000",
        "LOCK.GUARD job me LOCK.GUARD job me SET a b",
        "LOCK.GUARD job me lock.info job",
        "LOCK.GUARD job me LOCK._APPLY effect job",
        "LOCK.GUARD job me SUBSCRIBE channel",
        "LOCK.GUARD job me MULTI",
        "LOCK.GUARD job me SHUTDOWN NOSAVE",
        "LOCK.GUARD job * SET a b",
    ] {
        let reply = c.call(line);
        assert!(reply.is_error(), "{line}: {reply:?}");
        assert_eq!(c.call("LOCK.INFO job me").number("holds"), 1, "{line}");
    }
    assert_eq!(
        info_number(&mut c, "persistence", "rdb_changes_since_last_save"),
        dirty
    );
    assert_eq!(c.call("DBSIZE"), Value::Integer(1));
}

#[test]
fn a_key_of_another_type_is_refused() {
    let (_server, mut c) = held();
    c.ok("SET string value");
    refused(&c.call("LOCK.GUARD string me SET a b"), "WRONGTYPE");
    assert_eq!(c.call("EXISTS a"), Value::Integer(0));
}

#[test]
fn the_effect_is_replicated_once() {
    let mut master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    for _ in 0..10 {
        m.ok("LOCK.GUARD job me INCR counter");
    }
    m.ok("LOCK.GUARD job me RPUSH list a b");
    wait_for_sync(&mut m, &mut r);
    assert_eq!(r.call("GET counter").text(), "10");
    assert_eq!(r.call("LLEN list"), Value::Integer(2));
    assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"));
    master.kill();
    master.start_again();
    let mut m = master.connect();
    assert_eq!(m.call("GET counter").text(), "10");
    assert_eq!(m.call("LLEN list"), Value::Integer(2));
}

#[test]
fn the_callers_acl_applies_to_the_inner_command_and_its_keys() {
    let (server, mut c) = held();
    c.ok("ACL SETUSER app reset on >secret ~job ~mine:* +lock.guard +set +get");
    let mut app = server.connect();
    app.ok("AUTH app secret");
    app.ok("LOCK.GUARD job me SET mine:1 value");
    for line in [
        "LOCK.GUARD job me SET other value",
        "LOCK.GUARD job me GET other",
        "LOCK.GUARD job me DEL mine:1",
        "LOCK.GUARD job me FLUSHALL",
    ] {
        refused(&app.call(line), "NOPERM");
    }
    assert_eq!(c.call("EXISTS other mine:1"), Value::Integer(1));
}

#[test]
fn the_inner_keys_count_for_routing() {
    let (_server, mut c) = held();
    for (line, expected) in [
        ("LOCK.GUARD job me SET a value", &["job", "a"][..]),
        ("LOCK.GUARD job me MSET a 1 b 2", &["job", "a", "b"]),
        ("LOCK.GUARD job me PING", &["job"]),
    ] {
        let keys = c.call(&format!("COMMAND GETKEYS {line}"));
        assert_eq!(
            keys.items().iter().map(Value::text).collect::<Vec<_>>(),
            expected,
            "{line}"
        );
    }
}

#[test]
fn a_guarded_write_is_a_write_for_the_server() {
    let master = Server::start();
    let mut m = master.connect();
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    refused(&r.call("LOCK.GUARD job me SET a b"), "READONLY");
    m.ok("CONFIG SET maxmemory 1");
    refused(&m.call("LOCK.GUARD job me SET a b"), "OOM");
    assert_eq!(m.call("EXISTS a"), Value::Integer(0));
}

#[test]
fn a_transaction_and_a_script_may_guard() {
    let (_server, mut c) = held();
    let replies = c.pipeline(&[
        "MULTI",
        "LOCK.GUARD job me INCR counter",
        "LOCK.GUARD job you INCR counter",
        "EXEC",
    ]);
    assert_eq!(replies[3].items()[0], Value::Integer(1));
    refused(&replies[3].items()[1], "NOTHELD");
    let script = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'INCR', KEYS[2])";
    let mut eval = |token| c.call_args(&["EVAL", script, "2", "job", "counter", token]);
    assert_eq!(eval("me"), Value::Integer(2));
    assert!(eval("you").error().contains("NOTHELD"));
}

#[test]
fn a_guard_within_a_guard_within_a_guard_is_refused_and_harmless() {
    let (_server, mut c) = held();
    let nested = |times: usize| {
        let guard = ["LOCK.GUARD", "job", "me"].iter().copied();
        let mut args: Vec<_> = std::iter::repeat_n(guard, times).flatten().collect();
        args.extend(["GET", "a"]);
        args
    };
    for times in [2, 1_000, 50_000] {
        refused(&c.call_args(&nested(times)), "ERR");
        let mut asked = vec!["COMMAND", "GETKEYS"];
        asked.extend(nested(times));
        assert_eq!(c.call_args(&asked).items().len(), 1);
    }
    c.ok("PING");
}

/// Valkey gives a module no reply to some of these, and the client must not wait for it.
#[test]
fn every_guarded_command_gets_a_reply() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("RPUSH list item");
    for command in ["GETDEL list", "GETSET list value", "GETEX list", "GET list"] {
        let replies = c.pipeline(&[&format!("LOCK.GUARD job me {command}"), "PING"]);
        assert!(replies[0].is_error(), "{command}: {replies:?}");
        assert_eq!(replies[1], Value::Status("PONG".into()), "{command}");
    }
    assert_eq!(c.call("LLEN list"), Value::Integer(1));
}
