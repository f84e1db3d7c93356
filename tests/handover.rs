//! The hand-over: what ends a hold serves the waiters, in place, and only where a command could.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{all_locks, sole_holder, waiters};
use redislock_testkit::{
    Connection, Server, Value, granted, info_number, refused, wait_for_sync, wait_until,
};

use crate::waiting::{assert_holds, held, waiter};

#[test]
fn the_end_of_a_lease_serves_the_waiter() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 400"));
    let mut waiter = server.connect();
    let fence = granted(&waiter.call("LOCK.ACQUIRE job you 600000 BLOCK 0"));
    assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
}

#[test]
fn leases_of_waiters_that_end_pass_the_lock_on_and_on() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 50"));
    let mut queue: Vec<Connection> = (0..20).map(|_| server.connect()).collect();
    for (n, waiter) in queue.iter_mut().enumerate() {
        waiter.send(&format!("LOCK.ACQUIRE job token-{n} 20 BLOCK 0"));
    }
    let mut fences: Vec<i64> = queue
        .iter_mut()
        .map(|waiter| granted(&waiter.receive()))
        .collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 20);
    redislock_testkit::lock::wait_until_gone(&mut c, "job");
}

#[test]
fn whatever_removes_the_lock_serves_the_waiter() {
    for removal in [
        "LOCK.FORCE job",
        "LOCK.RELEASE job me ALL",
        "DEL job",
        "UNLINK job",
        "RENAME job elsewhere",
        "MOVE job 1",
        "FLUSHDB",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "PEXPIRE job 1",
        "EXPIREAT job 1",
        "LOCK.GUARD job me DEL job",
        "LOCK.MRELEASE 1 job me",
    ] {
        let (server, mut c) = held();
        let mut waiter = waiter(&server, "you", "BLOCK 0");
        let mut second = self::waiter(&server, "third", "BLOCK 0");
        c.ok(removal);
        let reply = waiter.receive();
        assert!(matches!(reply, Value::Integer(1..)), "{removal}: {reply:?}");
        let holder = sole_holder(&mut c, "job");
        assert_eq!(Value::Integer(holder.number("fence")), reply, "{removal}");
        c.ok("LOCK.RELEASE job you");
        granted(&second.receive());
    }
}

#[test]
fn an_overwritten_lock_leaves_no_waiter_stuck() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("SET job value");
    c.ok("DEL job");
    match waiter.receive() {
        Value::Integer(1..) => assert_holds(&mut c, "you"),
        reply => refused(&reply, "WRONGTYPE"),
    }
}

#[test]
fn a_lock_renamed_over_another_keeps_the_queue_of_the_name() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    granted(&c.call("LOCK.ACQUIRE source other 600000"));
    c.ok("RENAME source job");
    // Whether the waiter was served in between or not, one token holds the lock and none is stuck.
    if c.call("LOCK.INFO job other") != Value::Null {
        c.ok("LOCK.RELEASE job other");
    }
    granted(&waiter.receive());
    assert_holds(&mut c, "you");
}

#[test]
fn the_lock_is_handed_over_in_place() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("CONFIG SET notify-keyspace-events KEA");
    let mut listener = server.connect();
    listener.ok("PSUBSCRIBE __keyspace@0__:job");
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    let mut event = || listener.receive().items()[3].text().to_owned();
    assert_eq!(event(), "lock.released");
    assert_eq!(event(), "lock.acquired");
    c.ok("DEL job");
    assert_eq!(event(), "del");
}

#[test]
fn grants_to_waiters_reach_replica_and_aof() {
    let mut master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    wait_for_sync(&mut m, &mut r);
    let mut waiter = waiter(&master, "you", "BLOCK 0 OWNER label");
    m.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    granted(&m.call("LOCK.ACQUIRE short me 300"));
    let mut late = master.connect();
    granted(&late.call("LOCK.ACQUIRE short you 600000 BLOCK 0"));
    wait_for_sync(&mut m, &mut r);
    let before = all_locks(&mut m);
    assert_eq!(all_locks(&mut r), before);
    assert_holds(&mut r, "you");
    master.kill();
    master.start_again();
    assert_eq!(all_locks(&mut master.connect()), before);
}

#[test]
fn nothing_is_granted_while_clients_are_paused() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 1500"));
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("CLIENT PAUSE 60000 WRITE");
    assert!(waiter.is_silent_for(Duration::from_millis(1800)));
    c.ok("CLIENT UNPAUSE");
    granted(&waiter.receive());
    assert_holds(&mut c, "you");
}

#[test]
fn a_grant_by_a_timer_obeys_min_replicas_to_write() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 1500"));
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("CONFIG SET min-replicas-to-write 1");
    assert!(waiter.is_silent_for(Duration::from_millis(1800)));
    assert_eq!(c.call("LOCK.INFO job you"), Value::Null);
    c.ok("CONFIG SET min-replicas-to-write 0");
    granted(&waiter.receive());
}

#[test]
fn a_reload_grants_nobody_what_is_still_held() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("DEBUG RELOAD");
    assert_holds(&mut c, "me");
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    match waiter.receive() {
        Value::Integer(1..) => assert_holds(&mut c, "you"),
        reply => refused(&reply, "UNBLOCKED"),
    }
}

#[test]
fn in_a_cluster_a_removed_key_grants_nobody() {
    let server = Server::options()
        .config("cluster-enabled yes")
        .config(&format!("cluster-port {}", redislock_testkit::free_port()))
        .start();
    let mut c = server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("the cluster is ready", || {
        c.call("CLUSTER INFO").text().contains("cluster_state:ok")
    });
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let mut first = waiter(&server, "first", "BLOCK 0");
    c.ok("LOCK.RELEASE job me");
    granted(&first.receive());
    let mut second = waiter(&server, "second", "BLOCK 0");
    c.ok("DEL job");
    refused(&second.receive(), "UNBLOCKED");
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    granted(&second.call("LOCK.ACQUIRE job second 600000 BLOCK 0"));
}

#[test]
fn a_waiter_is_granted_inside_the_release() {
    let (server, mut c) = held();
    let first = sole_holder(&mut c, "job").number("fence");
    let mut waiter = waiter(&server, "you", "BLOCK 0 OWNER label");
    let replies = c.pipeline(&["LOCK.RELEASE job me", "LOCK.INFO job you", "LOCK.INFO job"]);
    assert_eq!(replies[0], Value::Integer(1));
    assert_eq!(replies[1].field("owner").text(), "label");
    assert_eq!(replies[2].number("waiters"), 0);
    let fence = granted(&waiter.receive());
    assert_eq!(replies[1].number("fence"), fence);
    assert!(fence > first);
}

#[test]
fn a_partial_release_hands_nothing_over() {
    let (server, mut c) = held();
    c.ok("LOCK.ACQUIRE job me 600000");
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("LOCK.RELEASE job me");
    assert_eq!(waiters(&mut c, "job"), 1);
    assert_holds(&mut c, "me");
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
}

#[test]
fn an_evicted_lock_serves_the_waiter() {
    let server = Server::options()
        .config("maxmemory-policy allkeys-random")
        .start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    c.ok("CONFIG SET maxmemory 1");
    wait_until("the lock was evicted", || {
        // What needs memory makes the server evict first.
        c.call("SET string value");
        c.call("LOCK.INFO job me") == Value::Null
    });
    c.ok("CONFIG SET maxmemory 0");
    granted(&waiter.receive());
}

/// Repeats a round until one takes less than half a second. With `hz 1` the server sleeps for up to
/// a second. An answer that waits for the end of that sleep comes when the next sleep begins, so
/// that every later round waits for a whole second; a busy machine makes some rounds slow, not all.
#[track_caller]
pub fn assert_some_round_is_quick(mut round: impl FnMut() -> Duration) {
    // The first one may be quick because the server is about to wake up.
    round();
    let mut rounds = (0..30).map(|_| round());
    let quick = rounds.any(|took| took < Duration::from_millis(500));
    assert!(quick, "every answer waited for the server to wake up");
}

/// How long an answer takes to arrive.
fn wait_for_answer(mut waiter: Connection) -> Duration {
    let start = Instant::now();
    waiter.receive();
    start.elapsed()
}

/// Sends commands behind a BLPOP and lets them run: the server is about to sleep then.
fn run_before_sleep(c: &mut Connection, blocked: &mut Connection, commands: &[&str]) {
    let before = info_number(c, "clients", "blocked_clients");
    blocked.send("BLPOP queue 0");
    commands.iter().for_each(|command| blocked.send(command));
    wait_until("it is blocked", || {
        info_number(c, "clients", "blocked_clients") == before + 1
    });
    c.ok("RPUSH queue go");
    assert_eq!(blocked.receive().items().len(), 2);
}

#[test]
fn a_release_behind_a_blocked_command_answers_the_waiter_before_the_server_sleeps() {
    let server = Server::options().config("hz 1").start();
    let (mut holder, mut c) = (server.connect(), server.connect());
    assert_some_round_is_quick(|| {
        holder.ok("LOCK.FORCE job");
        granted(&holder.call("LOCK.ACQUIRE job me 600000"));
        let waiter = waiter(&server, "you", "BLOCK 0");
        run_before_sleep(&mut c, &mut holder, &["LOCK.RELEASE job me"]);
        assert_eq!(holder.receive(), Value::Integer(1));
        wait_for_answer(waiter)
    });
}

#[test]
fn a_wait_that_begins_behind_a_blocked_command_ends_in_time() {
    let server = Server::options().config("hz 1").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    assert_some_round_is_quick(|| {
        let mut blocked = server.connect();
        let wait = ["LOCK.ACQUIRE job you 1000 BLOCK 20"];
        run_before_sleep(&mut c, &mut blocked, &wait);
        wait_for_answer(blocked)
    });
}
