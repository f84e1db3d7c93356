//! Leases: they end by the monotonic clock alone, on the master alone, and leave nothing behind.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{counter, sole_holder, wait_until_gone};
use redislock_testkit::{
    Connection, Server, Value, granted, info_number, refused, wait_for_sync, wait_until,
};

#[test]
fn the_key_goes_away_by_itself_when_the_lease_ends() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 50"));
    wait_until_gone(&mut c, "job");
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
}

#[test]
fn after_its_lease_a_token_holds_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 20"));
    std::thread::sleep(Duration::from_millis(22));
    // All in one write, so that the key may still be there when they run.
    let replies = c.pipeline(&[
        "LOCK.INFO job",
        "LOCK.EXTEND job me 60000",
        "LOCK.RELEASE job me",
        "LOCK.FORCE job",
        "LOCK.MEXTEND 1 job me 60000",
        "LOCK.MRELEASE 1 job me",
        "LOCK.GUARD job me PING",
        "LOCK.ACQUIRE job you 60000",
    ]);
    assert_eq!(replies[..4], vec![Value::Null; 4]);
    assert_eq!(replies[4..6], vec![Value::Array(vec![Value::Null]); 2]);
    refused(&replies[6], "NOTHELD");
    assert!(granted(&replies[7]) > fence);
    assert_eq!(c.call("LOCK.EXTEND job me 60000"), Value::Null);
}

#[test]
fn a_new_hold_by_the_same_token_after_the_lease_is_no_reentry() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 20"));
    std::thread::sleep(Duration::from_millis(22));
    assert!(granted(&c.call("LOCK.ACQUIRE job me 60000")) > fence);
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[test]
fn a_lease_never_ends_early() {
    let server = Server::start();
    let mut c = server.connect();
    for ttl in [1, 2, 5, 20, 50, 100] {
        granted(&c.call(&format!("LOCK.ACQUIRE job me {ttl}")));
        // Only what was sent before the end of the lease counts: the server may be slow, we measure
        // first.
        let granted_at = Instant::now();
        wait_until("another token gets the lock", || {
            c.call("LOCK.ACQUIRE job you 60000") != Value::Null
        });
        let held = granted_at.elapsed();
        assert!(
            held + Duration::from_millis(1)
                >= Duration::from_millis(ttl).saturating_sub(round_trip(&mut c)),
            "{held:?} of {ttl} ms"
        );
        c.ok("LOCK.RELEASE job you");
    }
}

/// The grant happened up to a round trip before its reply was read.
fn round_trip(c: &mut Connection) -> Duration {
    let start = Instant::now();
    c.ok("PING");
    start.elapsed() + Duration::from_millis(5)
}

#[test]
fn an_extended_lease_outlives_its_first_end() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = loop {
        let fence = granted(&c.call("LOCK.ACQUIRE job me 200"));
        if c.call("LOCK.EXTEND job me 600000") != Value::Null {
            break fence;
        }
    };
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
    assert_eq!(c.call("EXISTS job"), Value::Integer(1));
}

#[test]
fn a_lock_acquired_again_is_not_ended_by_its_former_lease() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 100"));
    c.ok("LOCK.RELEASE job me");
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
}

#[test]
fn no_redis_ttl_is_set_on_the_key() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("LOCK.EXTEND job me 90000");
    assert_eq!(c.call("PTTL job"), Value::Integer(-1));
    assert_eq!(info_number(&mut c, "stats", "expired_keys"), 0);
}

#[test]
fn many_leases_end_together() {
    let server = Server::start();
    let mut c = server.connect();
    let lines: Vec<String> = (0..20_000)
        .map(|n| format!("LOCK.ACQUIRE job-{n} me 500"))
        .collect();
    for reply in c.pipeline(&lines) {
        granted(&reply);
    }
    wait_until("all keys are gone", || {
        c.call("DBSIZE") == Value::Integer(0)
    });
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
    assert_eq!(info_number(&mut c, "lock", "lock_expiries"), 20_000);
}

#[test]
fn the_holders_of_a_shared_lock_end_one_by_one() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room short 50 SHARED"));
    granted(&c.call("LOCK.ACQUIRE room long 600000 SHARED"));
    wait_until("the short lease has ended", || {
        c.call("LOCK.INFO room short") == Value::Null
    });
    assert_ne!(c.call("LOCK.INFO room long"), Value::Null);
    wait_until("the expiry is counted", || {
        info_number(&mut c, "lock", "lock_expiries") == 1
    });
    assert_eq!(c.call("EXISTS room"), Value::Integer(1));
}

#[test]
fn a_lease_ends_although_its_predecessor_was_flushed() {
    let server = Server::start();
    let mut c = server.connect();
    for _ in 0..300 {
        // The flushed value is freed on another thread, at any moment after this.
        let replies = c.pipeline(&[
            "LOCK.ACQUIRE job me 600000",
            "FLUSHALL ASYNC",
            "LOCK.ACQUIRE job me 1",
        ]);
        granted(&replies[2]);
        wait_until_gone(&mut c, "job");
    }
}

#[test]
fn a_release_leaves_nothing_behind() {
    let server = Server::start();
    let mut c = server.connect();
    let rounds = |c: &mut Connection| {
        for round in 0..20 {
            let lines: Vec<String> = (0..1000)
                .flat_map(|n| {
                    let key = format!("job-{}", round * 1000 + n);
                    [
                        format!("LOCK.ACQUIRE {key} me 30000"),
                        format!("LOCK.RELEASE {key} me"),
                    ]
                })
                .collect();
            c.pipeline(&lines);
        }
        info_number(c, "memory", "used_memory")
    };
    rounds(&mut c);
    let before = rounds(&mut c);
    let after = rounds(&mut c);
    // 20,000 leases of 30 s that leave even 16 bytes each would show.
    assert!(after - before < 320_000, "{before} -> {after}");
}

#[test]
fn a_replica_never_ends_a_lease_by_itself() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    loop {
        granted(&m.call("LOCK.ACQUIRE job me 500"));
        wait_for_sync(&mut m, &mut r);
        master.pause();
        // On a busy machine the lease may have ended before the pause: then this round shows
        // nothing.
        let left = r.call("LOCK.INFO job me");
        if left != Value::Null && left.number("ttl") > 100 {
            break;
        }
        master.resume();
        wait_until_gone(&mut r, "job");
    }
    wait_until("the lease is over on the replica", || {
        r.call("LOCK.INFO job") == Value::Null
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(r.call("EXISTS job"), Value::Integer(1));
    assert_eq!(r.call("LOCK.INFO job me"), Value::Null);
    master.resume();
    wait_until_gone(&mut r, "job");
    wait_until_gone(&mut m, "job");
    assert_eq!(info_number(&mut r, "lock", "lock_expiries"), 0);
}

#[test]
fn a_promoted_replica_ends_leases_from_then_on() {
    let mut master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    granted(&master.connect().call("LOCK.ACQUIRE short me 300"));
    granted(&master.connect().call("LOCK.ACQUIRE long me 600000"));
    wait_until("the replica has the locks", || {
        r.call("EXISTS long") == Value::Integer(1)
    });
    master.kill();
    wait_until("the lease is over", || {
        r.call("LOCK.INFO short") == Value::Null
    });
    r.ok("REPLICAOF NO ONE");
    wait_until_gone(&mut r, "short");
    assert_ne!(r.call("LOCK.INFO long me"), Value::Null);
}

#[cfg(target_os = "linux")]
mod with_a_stepped_wall_clock {
    use super::*;
    use redislock_testkit::SteppedServer;

    use crate::handover::assert_some_round_is_quick;

    #[test]
    fn a_step_forward_ends_no_lease() {
        let stepped = SteppedServer::start(Server::options());
        let mut c = stepped.server.connect();
        let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
        for seconds in [3600, 86_400 * 30, 86_400 * 365 * 10] {
            stepped.step(seconds);
            assert_eq!(c.call("LOCK.ACQUIRE job you 60000"), Value::Null);
            std::thread::sleep(Duration::from_millis(150));
            let holder = sole_holder(&mut c, "job");
            assert_eq!(holder.number("fence"), fence);
            assert!((1..=600_000).contains(&holder.number("ttl")), "{holder:?}");
            assert!((0..=600_000).contains(&holder.number("age")), "{holder:?}");
            assert_eq!(c.call("EXISTS job"), Value::Integer(1));
            assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
        }
    }

    #[test]
    fn a_step_back_lengthens_no_lease() {
        let stepped = SteppedServer::start(Server::options());
        let mut c = stepped.server.connect();
        for seconds in [-3600, -86_400 * 30, -86_400 * 365 * 10] {
            stepped.step(0);
            granted(&c.call("LOCK.ACQUIRE job me 300"));
            stepped.step(seconds);
            wait_until_gone(&mut c, "job");
            granted(&c.call("LOCK.ACQUIRE job me 300"));
            wait_until_gone(&mut c, "job");
        }
    }

    /// The server's timers follow its wall clock. One that a step back has made late is set again
    /// by the cron.
    #[test]
    fn after_a_step_back_leases_end_on_time_again() {
        // The cron runs only once a second, so that it does not hide a late timer.
        let options = Server::options().config("hz 1").config("dynamic-hz no");
        let stepped = SteppedServer::start(options);
        let mut c = stepped.server.connect();
        granted(&c.call("LOCK.ACQUIRE pending me 500"));
        stepped.step(-3600);
        wait_until_gone(&mut c, "pending");
        // A lease of 100 ms that begins when the cron runs ends long before its next run.
        assert_some_round_is_quick(|| {
            let asked = Instant::now();
            granted(&c.call("LOCK.ACQUIRE job me 100"));
            granted(&c.call("LOCK.ACQUIRE job you 60000 BLOCK 0"));
            let took = asked.elapsed();
            c.ok("LOCK.RELEASE job you");
            took
        });
    }

    #[test]
    fn a_step_back_and_forth_during_a_lease_does_not_matter() {
        let stepped = SteppedServer::start(Server::options());
        let mut c = stepped.server.connect();
        granted(&c.call("LOCK.ACQUIRE long me 600000"));
        granted(&c.call("LOCK.ACQUIRE short me 300"));
        let mut seconds = 3600;
        wait_until("the short lease has ended", || {
            stepped.step(seconds);
            seconds = -seconds;
            c.call("EXISTS short") == Value::Integer(0)
        });
        assert_ne!(c.call("LOCK.INFO long me"), Value::Null);
        assert!((1..=600_000).contains(&sole_holder(&mut c, "long").number("ttl")));
    }

    #[test]
    fn fences_grow_whatever_the_wall_clock_does() {
        let stepped = SteppedServer::start(Server::options());
        let mut c = stepped.server.connect();
        let mut last = 0;
        for seconds in [0, 3600, -3600, 7200, 0, -86_400 * 365] {
            stepped.step(seconds);
            for _ in 0..10 {
                let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
                assert!(fence > last, "{fence} after {last}");
                last = fence;
                c.ok("LOCK.RELEASE job me");
            }
            assert_eq!(counter(&mut c), last);
        }
    }
}
