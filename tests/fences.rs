//! Fences: one counter a node, never backwards. Tests put the counter ahead of the clock, so that
//! the clock cannot hide a counter that was forgotten.

use redislock_testkit::lock::{counter, wait_until_gone, wall_micros};
use redislock_testkit::{
    Connection, Server, granted, info_field, info_number, wait_for_sync, wait_until,
};

/// Raises the counter above a clock that is nine seconds ahead, by a lock that is released again;
/// where it is then. It starts ahead of the clock where an AOF may be without it.
fn run_ahead(c: &mut Connection) -> i64 {
    let before = counter(c);
    let ahead = wall_micros() + 9_000_000;
    let fence = granted(&c.call(&format!("LOCK.ACQUIRE ahead me 60000 FENCE {ahead}")));
    assert_eq!(fence, ahead.max(before + 1));
    c.ok("LOCK.RELEASE ahead me");
    fence
}

#[track_caller]
fn assert_still_ahead(c: &mut Connection, ahead: i64) {
    assert!(counter(c) >= ahead, "the counter fell to {}", counter(c));
    let fence = granted(&c.call("LOCK.ACQUIRE next me 60000"));
    assert!(fence > ahead, "{fence} after {ahead}");
}

#[test]
fn a_fence_is_at_least_the_wall_clock_and_below_two_to_the_53() {
    let server = Server::start();
    let mut c = server.connect();
    for key in ["a", "b", "c"] {
        let before = wall_micros();
        let fence = granted(&c.call(&format!("LOCK.ACQUIRE {key} me 60000")));
        assert!(fence >= before, "{fence} < {before}");
        assert!(fence < 1 << 53);
    }
}

#[test]
fn fences_grow_with_every_grant_whatever_the_key() {
    let server = Server::start();
    let mut c = server.connect();
    let lines: Vec<String> = (0..10_000)
        .map(|n| format!("LOCK.ACQUIRE job-{n} token-{n} 60000"))
        .collect();
    let fences: Vec<i64> = c.pipeline(&lines).iter().map(granted).collect();
    assert!(fences.is_sorted_by(|a, b| a < b));
}

#[test]
fn a_counter_ahead_of_the_clock_grows_by_one() {
    let server = Server::start();
    let mut c = server.connect();
    let ahead = run_ahead(&mut c);
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert!(fence == ahead + 1 || wall_micros() > ahead);
}

#[test]
fn nothing_in_the_keyspace_resets_the_counter() {
    let server = Server::start();
    let mut c = server.connect();
    let ahead = run_ahead(&mut c);
    for line in [
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "FLUSHDB",
        "SWAPDB 0 1",
        "DEBUG RELOAD",
    ] {
        c.ok("LOCK.ACQUIRE job me 60000");
        c.ok(line);
        assert_still_ahead(&mut c, ahead);
        c.ok("DEL next");
    }
    c.ok("FLUSHALL");
    c.ok("LOCK.ACQUIRE job me 20");
    wait_until_gone(&mut c, "job");
    assert_still_ahead(&mut c, ahead);
}

#[test]
fn the_counter_survives_a_restart_from_rdb_without_a_single_lock() {
    let mut server = Server::options().config("save 3600 1").start();
    let ahead = run_ahead(&mut server.connect());
    server.restart();
    assert_still_ahead(&mut server.connect(), ahead);
}

#[test]
fn the_counter_survives_a_crash_with_the_aof() {
    let mut server = Server::options().appendonly("always").start();
    let ahead = run_ahead(&mut server.connect());
    server.kill();
    server.start_again();
    assert_still_ahead(&mut server.connect(), ahead);
}

#[test]
fn the_counter_survives_a_rewrite_of_the_aof_with_and_without_preamble() {
    for preamble in ["yes", "no"] {
        let mut server = Server::options()
            .appendonly("always")
            .config(&format!("aof-use-rdb-preamble {preamble}"))
            .start();
        let mut c = server.connect();
        let ahead = run_ahead(&mut c);
        crate::persistence::rewrite_aof(&mut c);
        server.kill();
        server.start_again();
        assert_still_ahead(&mut server.connect(), ahead);
    }
}

#[test]
fn the_counter_survives_when_the_aof_is_switched_on_later() {
    for preamble in ["yes", "no"] {
        let mut server = Server::options()
            .config(&format!("aof-use-rdb-preamble {preamble}"))
            .start();
        let mut c = server.connect();
        let ahead = run_ahead(&mut c);
        c.ok("CONFIG SET appendfsync always");
        c.ok("CONFIG SET appendonly yes");
        crate::persistence::wait_for_rewrite(&mut c);
        server.kill();
        server.reconfigure(|options| options.appendonly("always"));
        server.start_again();
        assert_still_ahead(&mut server.connect(), ahead);
    }
}

/// A replica cannot add the counter to an AOF that it rewrites while it holds no lock.
#[test]
fn the_counter_survives_a_rewrite_of_the_aof_of_a_replica_with_and_without_preamble() {
    for preamble in ["yes", "no"] {
        let master = Server::start();
        let mut m = master.connect();
        let mut replica = Server::options()
            .appendonly("always")
            .config(&format!("aof-use-rdb-preamble {preamble}"))
            .start();
        let mut r = replica.connect();
        r.ok(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
        wait_for_sync(&mut m, &mut r);
        crate::persistence::wait_for_rewrite(&mut r);
        let ahead = run_ahead(&mut m);
        wait_until("the replica has the counter", || counter(&mut r) >= ahead);
        crate::persistence::rewrite_aof(&mut r);
        replica.kill();
        replica.start_again();
        assert_still_ahead(&mut replica.connect(), ahead);
    }
}

/// An effect without keys belongs to no slot: Valkey 9 gives up the migration of a slot that meets
/// one.
#[test]
fn a_child_that_saves_brings_no_effect_into_the_stream() {
    let master = Server::start();
    let mut m = master.connect();
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    m.ok("LOCK.ACQUIRE before me 60000");
    wait_until("the stream is there", || counter(&mut r) == counter(&mut m));
    let effects = |r: &mut Connection| info_field(r, "commandstats", "cmdstat_lock._apply");
    let calls = |stats: String| stats.split(',').next().map(str::to_owned);
    let before = calls(effects(&mut r));
    // The one that saved for the replica may still be there.
    let no_child = |m: &mut Connection| {
        wait_until("no child saves", || {
            info_number(m, "persistence", "rdb_bgsave_in_progress") == 0
        });
    };
    no_child(&mut m);
    m.ok("BGSAVE");
    no_child(&mut m);
    assert_eq!(m.call("WAIT 1 10000").integer(), 1);
    assert_eq!(calls(effects(&mut r)), before);
}

#[test]
fn the_counter_reaches_replicas_and_survives_promotion() {
    let master = Server::start();
    let mut m = master.connect();
    let before_sync = run_ahead(&mut m);
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_until("the full sync brought the counter", || {
        counter(&mut r) >= before_sync
    });
    let after_sync = before_sync + 500_000;
    let grant = m.call(&format!("LOCK.ACQUIRE job me 60000 FENCE {after_sync}"));
    let last = granted(&grant);
    wait_until("the stream brought the counter", || counter(&mut r) == last);
    r.ok("REPLICAOF NO ONE");
    assert_still_ahead(&mut r, last);
}

#[test]
fn an_extension_with_a_fence_reaches_replicas_and_the_aof() {
    let mut master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    granted(&m.call("LOCK.ACQUIRE job me 60000"));
    let ahead = wall_micros() + 9_000_000;
    assert_eq!(
        granted(&m.call(&format!("LOCK.EXTEND job me 60000 FENCE {ahead}"))),
        ahead
    );
    wait_until("the stream brought the counter", || {
        counter(&mut r) >= ahead
    });
    wait_until("the stream brought the fence", || {
        r.call("LOCK.INFO job me").number("fence") == ahead
    });
    master.kill();
    master.start_again();
    let mut m = master.connect();
    assert_eq!(m.call("LOCK.INFO job me").number("fence"), ahead);
    assert_still_ahead(&mut m, ahead);
}

#[test]
fn a_restored_fence_raises_the_counter() {
    let source = Server::start();
    let target = Server::start();
    let mut s = source.connect();
    let mut t = target.connect();
    let ahead = wall_micros() + 9_000_000;
    granted(&s.call(&format!("LOCK.ACQUIRE job me 60000 FENCE {ahead}")));
    let payload = s.call("DUMP job");
    let restored = t.call_args(&[b"RESTORE", &b"job"[..], b"0", payload.bytes()]);
    assert!(!restored.is_error(), "{restored:?}");
    assert_still_ahead(&mut t, ahead);
}
