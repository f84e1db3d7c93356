//! EXEC, WATCH and scripts.

use redislock_testkit::lock::{all_locks, sole_holder};
use redislock_testkit::{Server, Value, granted, refused, wait_for_sync, wait_until};

#[test]
fn a_transaction_runs_lock_commands() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("MULTI");
    for line in [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job you 60000",
        "LOCK.INFO job you",
        "LOCK.EXTEND job me 60000",
        "LOCK.RELEASE job me",
        "LOCK.ACQUIRE free me 0",
        "LOCK.ACQUIRE star * 60000",
    ] {
        assert_eq!(c.call(line), Value::Status("QUEUED".into()));
    }
    let replies = c.call("EXEC");
    let replies = replies.items();
    let fence = granted(&replies[0]);
    assert_eq!(replies[1], Value::Integer(fence));
    assert_eq!(replies[2..4], [Value::Null, Value::Null]);
    assert_eq!(replies[4..6], [Value::Integer(fence), Value::Integer(1)]);
    refused(&replies[6], "ERR");
    assert_eq!(replies[7].items().len(), 2);
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[test]
fn a_transaction_and_a_script_reach_replica_and_aof_as_effects() {
    let mut master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    for line in [
        "MULTI",
        "LOCK.ACQUIRE job me 600000",
        "SET string value",
        "LOCK.ACQUIRE job me 600000",
        "LOCK.ACQUIRE gone me 600000",
        "LOCK.RELEASE gone me",
        "EXEC",
    ] {
        m.ok(line);
    }
    let script = "redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 600000) \
                  redis.call('SET', KEYS[2], 'value') \
                  return redis.call('LOCK.ACQUIRE', KEYS[1], '*', 600000)";
    assert_eq!(
        m.call_args(&["EVAL", script, "2", "scripted", "string-2", "me"]),
        Value::Null
    );
    wait_for_sync(&mut m, &mut r);
    let before = all_locks(&mut m);
    assert_eq!(before.len(), 2);
    assert_eq!(all_locks(&mut r), before);
    assert_eq!(
        r.call("MGET string string-2"),
        m.call("MGET string string-2")
    );
    master.kill();
    master.start_again();
    assert_eq!(all_locks(&mut master.connect()), before);
}

#[test]
fn a_script_sees_what_a_client_sees() {
    let server = Server::start();
    let mut c = server.connect();
    let eval = |c: &mut redislock_testkit::Connection, body: &str| {
        c.call_args(&["EVAL", body, "1", "job"])
    };
    let fence = granted(&eval(
        &mut c,
        "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', 60000)",
    ));
    assert_eq!(
        eval(
            &mut c,
            "return redis.call('LOCK.EXTEND', KEYS[1], 'me', 60000)"
        ),
        Value::Integer(fence)
    );
    let no = "if redis.call('LOCK.RELEASE', KEYS[1], 'you') == false then return 'no' end";
    assert_eq!(eval(&mut c, no).text(), "no");
    let error = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'me', 0)['err']";
    assert!(eval(&mut c, error).text().starts_with("ERR"));
    let mode = "return redis.call('LOCK.INFO', KEYS[1])[2]";
    assert_eq!(eval(&mut c, mode).text(), "exclusive");
    let mode = "redis.setresp(3) return redis.call('LOCK.INFO', KEYS[1])['map']['mode']";
    assert_eq!(eval(&mut c, mode).text(), "exclusive");
    let star = "return redis.call('LOCK.ACQUIRE', 'star', '*', 60000)[1]";
    assert_eq!(c.call_args(&["EVAL", star, "1", "star"]).bytes().len(), 36);
    let read_only = c.call_args(&[
        "EVAL_RO",
        "return redis.call('LOCK.RELEASE', KEYS[1], 'me')",
        "1",
        "job",
    ]);
    assert!(read_only.is_error(), "{read_only:?}");
    assert_eq!(
        c.call_args(&[
            "EVAL_RO",
            "return redis.call('LOCK.INFO', KEYS[1])[2]",
            "1",
            "job"
        ])
        .text(),
        "exclusive"
    );
    assert_eq!(
        eval(&mut c, "return redis.call('LOCK.RELEASE', KEYS[1], 'me')"),
        Value::Integer(1)
    );
}

#[test]
fn watch_sees_every_change_of_a_lock() {
    let server = Server::start();
    let mut c = server.connect();
    let mut other = server.connect();
    for change in [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000",
        "LOCK.EXTEND job me 90000",
        "LOCK.RELEASE job me",
        "LOCK.FORCE job",
    ] {
        c.ok("WATCH job");
        granted(&other.call(change));
        c.ok("MULTI");
        c.ok("PING");
        assert_eq!(c.call("EXEC"), Value::NullArray, "{change}");
    }
}

#[test]
fn watch_sees_the_end_of_a_lease() {
    let server = Server::start();
    let mut c = server.connect();
    let mut other = server.connect();
    c.ok("LOCK.ACQUIRE job me 200");
    c.ok("WATCH job");
    wait_until("the lease has ended", || {
        other.call("EXISTS job") == Value::Integer(0)
    });
    c.ok("MULTI");
    c.ok("PING");
    assert_eq!(c.call("EXEC"), Value::NullArray);
}

#[test]
fn watch_ignores_requests_that_change_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    let mut other = server.connect();
    c.ok("LOCK.ACQUIRE job me 600000");
    c.ok("WATCH job");
    for line in [
        "LOCK.ACQUIRE job you 60000",
        "LOCK.RELEASE job you",
        "LOCK.EXTEND job you 60000",
        "LOCK.INFO job",
        "LOCK.ACQUIRE job me 0",
    ] {
        other.call(line);
    }
    c.ok("MULTI");
    c.ok("PING");
    assert_eq!(
        c.call("EXEC"),
        Value::Array(vec![Value::Status("PONG".into())])
    );
}

#[test]
fn a_syntax_error_in_a_transaction_fails_alone() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("MULTI");
    c.ok("LOCK.ACQUIRE job me 60000 NONSENSE");
    c.ok("LOCK.ACQUIRE job me 60000");
    let replies = c.call("EXEC");
    refused(&replies.items()[0], "ERR");
    granted(&replies.items()[1]);
}

#[test]
fn while_a_script_runs_all_other_requests_get_busy() {
    let server = Server::options().config("busy-reply-threshold 1").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let mut busy = server.connect();
    busy.send_args(&["EVAL", "while true do end", "0"]);
    wait_until("the server is busy", || c.call("PING").is_error());
    for line in [
        "LOCK.ACQUIRE free me 1000",
        "LOCK.ACQUIRE job you 1000 BLOCK 0",
        "LOCK.EXTEND job me 1000",
        "LOCK.RELEASE job me",
        "LOCK.INFO job",
    ] {
        refused(&c.call(line), "BUSY");
    }
    c.ok("SCRIPT KILL");
    assert!(busy.receive().is_error());
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}
