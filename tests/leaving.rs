//! Waiters that go away: disconnected, killed, unblocked, cancelled, or told that the master is one
//! no more.

use std::time::Duration;

use redislock_testkit::lock::{wait_for_waiters, waiters};
use redislock_testkit::{
    Connection, Server, Value, granted, info_number, refused, wait_for_sync, wait_until,
};

use crate::waiting::{assert_holds, held, waiter};

#[test]
fn a_waiter_that_disconnects_leaves_the_queue() {
    let (server, mut c) = held();
    let gone = waiter(&server, "gone", "BLOCK 0");
    let mut next = waiter(&server, "next", "BLOCK 0");
    drop(gone);
    wait_for_waiters(&mut c, "job", 1);
    c.ok("LOCK.RELEASE job me");
    granted(&next.receive());
}

#[test]
fn a_waiter_whose_connection_is_reset_leaves_the_queue() {
    let (server, mut c) = held();
    let mut gone = server.connect();
    gone.send("PING");
    gone.send("LOCK.ACQUIRE job gone 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    let mut next = waiter(&server, "next", "BLOCK 0");
    gone.reset();
    wait_for_waiters(&mut c, "job", 1);
    c.ok("LOCK.RELEASE job me");
    granted(&next.receive());
}

#[test]
fn a_killed_waiter_leaves_the_queue_at_once() {
    let (server, mut c) = held();
    let mut gone = server.connect();
    let id = gone.client_id();
    gone.send("LOCK.ACQUIRE job gone 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    let mut next = waiter(&server, "next", "BLOCK 0");
    let replies = c.pipeline(&[format!("CLIENT KILL ID {id}"), "LOCK.RELEASE job me".into()]);
    assert_eq!(replies, [Value::Integer(1), Value::Integer(1)]);
    granted(&next.receive());
    assert!(gone.is_closed());
}

#[test]
fn an_unblocked_waiter_leaves_the_queue_at_once() {
    for how in ["TIMEOUT", "ERROR"] {
        let (server, mut c) = held();
        let mut gone = server.connect();
        let id = gone.client_id();
        gone.send("LOCK.ACQUIRE job gone 600000 BLOCK 0");
        wait_for_waiters(&mut c, "job", 1);
        let mut next = waiter(&server, "next", "BLOCK 0");
        let replies = c.pipeline(&[
            format!("CLIENT UNBLOCK {id} {how}"),
            "LOCK.RELEASE job me".into(),
        ]);
        assert_eq!(replies, [Value::Integer(1), Value::Integer(1)]);
        granted(&next.receive());
        let reply = gone.receive();
        if how == "TIMEOUT" {
            assert_eq!(reply, Value::Null);
        } else {
            refused(&reply, "UNBLOCKED");
        }
        assert_eq!(gone.call("PING"), Value::Status("PONG".into()));
        assert_eq!(gone.call("LOCK.RELEASE job gone"), Value::Null);
    }
}

#[test]
fn a_grant_to_a_client_that_is_killed_in_the_same_step_is_passed_on() {
    let (server, mut c) = held();
    let mut gone = server.connect();
    let id = gone.client_id();
    gone.send("LOCK.ACQUIRE job gone 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    let mut next = waiter(&server, "next", "BLOCK 0");
    c.pipeline(&[
        "MULTI",
        "LOCK.RELEASE job me",
        &format!("CLIENT KILL ID {id}"),
        "EXEC",
    ]);
    granted(&next.receive());
    assert_eq!(c.call("LOCK.RELEASE job gone"), Value::Null);
}

#[test]
fn a_grant_that_another_request_of_the_token_confirmed_stays() {
    let (server, mut c) = held();
    let mut gone = server.connect();
    let id = gone.client_id();
    gone.send("LOCK.ACQUIRE job shown 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    let replies = c.pipeline(&[
        "MULTI",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job shown 600000",
        &format!("CLIENT KILL ID {id}"),
        "EXEC",
    ]);
    let fence = granted(&replies[4].items()[1]);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        c.call("LOCK.EXTEND job shown 600000"),
        Value::Integer(fence)
    );
}

#[test]
fn release_all_cancels_waiting_requests_of_the_token() {
    let (server, mut c) = held();
    let mut cancelled = [
        waiter(&server, "you", "BLOCK 0"),
        waiter(&server, "you", "BLOCK 0"),
    ];
    let mut other = waiter(&server, "other", "BLOCK 0");
    assert_eq!(c.call("LOCK.RELEASE job you"), Value::Null);
    assert_eq!(waiters(&mut c, "job"), 3);
    assert_eq!(c.call("LOCK.RELEASE job you ALL"), Value::Null);
    assert_eq!(waiters(&mut c, "job"), 1);
    for waiter in &mut cancelled {
        assert_eq!(waiter.receive(), Value::Null);
    }
    c.ok("LOCK.RELEASE job me");
    granted(&other.receive());
}

#[test]
fn a_replica_lets_nobody_wait() {
    let (master, mut m) = held();
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    refused(&r.call("LOCK.ACQUIRE job you 60000 BLOCK 0"), "READONLY");
}

#[test]
fn waiters_are_unblocked_when_their_node_stops_being_the_master() {
    let (server, mut c) = held();
    let other = Server::start();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    refused(&waiter.receive(), "UNBLOCKED");
    wait_until("nobody waits", || {
        c.call("LOCK.NODE").number("waiters") == 0
    });
}

#[test]
fn waiters_survive_a_failover_without_a_stuck_one() {
    let (master, mut m) = held();
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    wait_until("the replica is online", || {
        m.call("INFO replication").text().contains("state=online")
    });
    granted(&m.call("LOCK.ACQUIRE short me 300"));
    let mut waiter = waiter(&master, "you", "BLOCK 0");
    let mut short = master.connect();
    short.send("LOCK.ACQUIRE short you 600000 BLOCK 0");
    m.ok(&format!(
        "FAILOVER TO 127.0.0.1 {} TIMEOUT 20000",
        replica.port()
    ));
    refused(&waiter.receive(), "UNBLOCKED");
    let reply = short.receive();
    assert!(
        matches!(reply, Value::Error(_) | Value::Integer(_)),
        "{reply:?}"
    );
    wait_until("the replica is the master", || {
        r.call("LOCK.NODE").field("role").text() == "master"
    });
    assert_holds(&mut r, "me");
    assert_eq!(r.call("LOCK.RELEASE job me"), Value::Integer(1));
}

#[test]
fn the_memory_of_waiters_with_very_many_keys_comes_back() {
    const KEYS: usize = 1_000;
    let server = Server::start();
    let mut c = server.connect();
    let used = |c: &mut Connection| info_number(c, "memory", "used_memory");
    let before = used(&mut c);
    let waiters: Vec<Connection> = (0..20)
        .map(|number| {
            let mut waiter = server.connect();
            c.ok(&format!("LOCK.ACQUIRE held:{number} holder 600000"));
            let keys: Vec<_> = (1..KEYS).map(|key| format!("k:{number}:{key}")).collect();
            let keys = keys.join(" ");
            waiter.send(&format!(
                "LOCK.MACQUIRE {KEYS} held:{number} {keys} waiter:{number} 600000 BLOCK 0"
            ));
            waiter
        })
        .collect();
    let waiting = |c: &mut Connection| info_number(c, "lock_state", "lock_waiters");
    wait_until("all wait", || waiting(&mut c) == waiters.len() as i64);
    let mut stays = server.connect();
    stays.send("LOCK.ACQUIRE held:0 other 600000 BLOCK 0");
    wait_until("one more waits", || waiting(&mut c) > waiters.len() as i64);
    drop(waiters);
    wait_until("all others have left", || waiting(&mut c) == 1);
    // The queues of 20,000 keys take about 6 MB.
    wait_until("the memory is free", || used(&mut c) < before + 3_000_000);
}
