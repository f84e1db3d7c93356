//! Links that stall or break, and pauses, while leases end and clients wait: nothing is granted
//! that could not be replicated, everything continues afterwards, and master and replica agree.

use std::time::Duration;

use redislock_testkit::load::{Plan, always_to, rounds};
use redislock_testkit::lock::{all_locks, counter, wait_for_waiters};
use redislock_testkit::{
    Connection, Options, Proxy, Server, Value, granted, info_field, info_number, refused,
    wait_for_sync, wait_patiently, wait_until,
};

/// Long enough for the set-up around it on a busy machine.
const SOON: i64 = 1000;

/// A replica behind a link.
fn replica_behind(link: &Proxy, options: Options) -> Server {
    options
        .config(&format!("replicaof 127.0.0.1 {}", link.port()))
        .config("repl-timeout 5")
        .start()
}

/// When the leases of the load are over, master and replica have the same locks, at least one.
#[track_caller]
fn agree_after_the_load(m: &mut Connection, r: &mut Connection) {
    granted(&m.call("LOCK.ACQUIRE kept me 600000"));
    wait_until("all leases are over", || {
        m.call("DBSIZE") == Value::Integer(1)
    });
    wait_for_sync(m, r);
    assert_eq!(all_locks(r), all_locks(m));
    assert_eq!(counter(r), counter(m));
}

/// Holds `job` for a short while; another owner waits for it.
fn hold_and_wait(server: &Server, c: &mut Connection) -> Connection {
    granted(&c.call(&format!("LOCK.ACQUIRE job holder {SOON}")));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
    wait_for_waiters(c, "job", 1);
    waiter
}

/// A replica can take over once its master counts it as online, a little after the replica itself
/// does.
#[track_caller]
pub fn wait_until_online(m: &mut Connection) {
    wait_until("the replica is online", || {
        info_field(m, "replication", "slave0").contains("state=online")
    });
}

#[track_caller]
fn assert_not_granted_when_the_lease_is_over(c: &mut Connection, waiter: &mut Connection) {
    wait_until("the lease is over", || {
        c.call("LOCK.INFO job holder") == Value::Null
    });
    assert!(waiter.is_silent_for(Duration::from_millis(300)));
}

#[test]
fn nothing_is_granted_while_writes_are_paused() {
    // No client can end a pause of all commands, so that one ends by itself.
    for (mode, millis) in [("WRITE", 600_000), ("ALL", 5 * SOON)] {
        let server = Server::start();
        let mut c = server.connect();
        let mut waiter = hold_and_wait(&server, &mut c);
        let mut briefly = server.connect();
        briefly.send("LOCK.ACQUIRE job brief 600000 BLOCK 1");
        assert_eq!(briefly.receive(), Value::Null);
        let mut bound = server.connect();
        granted(&bound.call("LOCK.ACQUIRE bound me 600000 EPHEMERAL"));
        c.ok(&format!("CLIENT PAUSE {millis} {mode}"));
        drop(bound);
        std::thread::sleep(Duration::from_millis(SOON.unsigned_abs()));
        assert!(waiter.is_silent_for(Duration::from_millis(300)));
        if mode == "WRITE" {
            assert_not_granted_when_the_lease_is_over(&mut c, &mut waiter);
            c.ok("CLIENT UNPAUSE");
        }
        granted(&waiter.receive());
        wait_until("the hold of the closed connection is over", || {
            c.call("LOCK.INFO bound") == Value::Null
        });
    }
}

#[test]
fn nobody_is_granted_anything_during_a_failover_and_grants_continue_when_it_is_aborted() {
    let master = Server::start();
    let link = Proxy::to(master.port());
    let replica = replica_behind(&link, Server::options());
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    wait_until_online(&mut m);
    let mut waiter = hold_and_wait(&master, &mut m);
    link.stall();
    granted(&m.call("LOCK.ACQUIRE unsent me 600000"));
    m.ok(&format!("FAILOVER TO 127.0.0.1 {}", replica.port()));
    assert_not_granted_when_the_lease_is_over(&mut m, &mut waiter);
    m.ok("FAILOVER ABORT");
    granted(&waiter.receive());
    link.heal();
    wait_for_sync(&mut m, &mut r);
    assert_eq!(all_locks(&mut r), all_locks(&mut m));
}

#[test]
fn a_failover_takes_the_locks_along_and_sends_waiters_to_the_new_master() {
    for _ in rounds(1) {
        let master = Server::start();
        let replica = Server::options().replica_of(&master).start();
        let (mut m, mut r) = (master.connect(), replica.connect());
        wait_for_sync(&mut m, &mut r);
        wait_until_online(&mut m);
        let kept = granted(&m.call("LOCK.ACQUIRE kept me 600000"));
        let mut waiter = hold_and_wait(&master, &mut m);
        let load = Plan::new(&["one", "two"], Duration::from_millis(200));
        let load = load.start(always_to(master.port()));
        load.wait_for_grants(20);
        m.ok(&format!("FAILOVER TO 127.0.0.1 {}", replica.port()));
        wait_patiently("the replica is the master", || {
            r.call("LOCK.NODE").field("role").text() == "master"
        });
        // Refused, unless the lease had ended before the failover began.
        let told = waiter.receive();
        assert!(told.is_error() || told.integer() > kept, "{told:?}");
        let mut history = load.stop();
        assert_eq!(r.call("LOCK.INFO kept me").number("fence"), kept);
        assert_eq!(r.call("LOCK.EXTEND kept me 600000"), Value::Integer(kept));
        let load = Plan::new(&["one", "two"], Duration::from_millis(200));
        let load = load.start(always_to(replica.port()));
        load.wait_for_grants(20);
        history.events.extend(load.stop().events);
        history.assert_safe();
        wait_patiently("the old master follows", || {
            let mut m = master.connect();
            info_field(&mut m, "replication", "role") == "slave"
                && all_locks(&mut m) == all_locks(&mut r)
        });
    }
}

#[test]
fn waiters_are_served_only_while_enough_replicas_are_connected() {
    let master = Server::options()
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1")
        .start();
    let link = Proxy::to(master.port());
    let replica = replica_behind(&link, Server::options());
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    let good = |c: &mut Connection| info_number(c, "replication", "min_slaves_good_slaves");
    wait_until("the master counts its replica", || good(&mut m) == 1);
    granted(&m.call("LOCK.ACQUIRE job holder 4000"));
    let mut waiter = master.connect();
    waiter.send("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
    wait_for_waiters(&mut m, "job", 1);
    link.stall();
    wait_until("the replica is missed", || good(&mut m) == 0);
    refused(&m.call("LOCK.EXTEND job holder 600000"), "NOREPLICAS");
    assert_not_granted_when_the_lease_is_over(&mut m, &mut waiter);
    link.heal();
    granted(&waiter.receive());
    wait_for_sync(&mut m, &mut r);
    assert_eq!(all_locks(&mut r), all_locks(&mut m));
}

#[test]
fn a_replica_that_lost_its_master_says_so_or_shows_its_last_state() {
    for serves in ["yes", "no"] {
        let master = Server::start();
        let link = Proxy::to(master.port());
        let options = Server::options().config(&format!("replica-serve-stale-data {serves}"));
        let replica = replica_behind(&link, options);
        let (mut m, mut r) = (master.connect(), replica.connect());
        granted(&m.call("LOCK.ACQUIRE kept me 600000"));
        granted(&m.call(&format!("LOCK.ACQUIRE short me {}", 3 * SOON)));
        wait_for_sync(&mut m, &mut r);
        link.cut();
        wait_until("the link is down", || {
            info_field(&mut r, "replication", "master_link_status") == "down"
        });
        // LOCK.NODE always works.
        assert_eq!(r.call("LOCK.NODE").number("locks"), 2);
        if serves == "no" {
            refused(&r.call("LOCK.INFO kept"), "MASTERDOWN");
            assert!(r.call("LOCK.ACQUIRE kept me 1000").is_error());
        } else {
            refused(&r.call("LOCK.ACQUIRE kept me 1000"), "READONLY");
            assert_ne!(r.call("LOCK.INFO kept me"), Value::Null);
            // A lease that is over is over; the key stays until the master says so.
            wait_until("the lease is over", || {
                r.call("LOCK.INFO short") == Value::Null
            });
            assert_eq!(r.call("EXISTS short"), Value::Integer(1));
        }
        wait_until("the master has ended the lease", || {
            m.call("EXISTS short") == Value::Integer(0)
        });
        link.heal();
        wait_for_sync(&mut m, &mut r);
        assert_eq!(all_locks(&mut r), all_locks(&mut m));
        assert_eq!(r.call("EXISTS short"), Value::Integer(0));
    }
}

#[test]
fn a_partition_under_load_ends_with_a_partial_resync() {
    let master = Server::options().config("repl-backlog-size 64mb").start();
    let link = Proxy::to(master.port());
    let replica = replica_behind(&link, Server::options());
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    let plan = Plan::new(&["one", "two", "three"], Duration::from_millis(100));
    let load = plan.start(always_to(master.port()));
    for _ in rounds(2) {
        load.wait_for_grants(20);
        link.stall();
        load.wait_for_grants(20);
        link.cut();
        load.wait_for_grants(20);
        link.heal();
        wait_for_sync(&mut m, &mut r);
    }
    load.stop().assert_safe();
    assert!(info_number(&mut m, "stats", "sync_partial_ok") > 0);
    assert_eq!(info_number(&mut m, "stats", "sync_full"), 1);
    agree_after_the_load(&mut m, &mut r);
}

/// Nobody listened before, and nothing is lost between the moment at which the copy is made and the
/// first effect after it.
#[test]
fn a_replica_or_an_aof_that_comes_under_load_misses_nothing() {
    for _ in rounds(1) {
        let mut server = Server::start();
        let mut m = server.connect();
        let plan = Plan::new(&["one", "two", "three"], Duration::from_millis(100));
        let load = plan.start(always_to(server.port()));
        load.wait_for_grants(20);
        let replica = Server::options().replica_of(&server).start();
        let mut r = replica.connect();
        wait_for_sync(&mut m, &mut r);
        m.ok("CONFIG SET appendfsync always");
        m.ok("CONFIG SET appendonly yes");
        load.wait_for_grants(20);
        crate::persistence::wait_for_rewrite(&mut m);
        load.stop().assert_safe();
        agree_after_the_load(&mut m, &mut r);
        let before = all_locks(&mut m);
        server.kill();
        server.reconfigure(|options| options.appendonly("always"));
        server.start_again();
        assert_eq!(all_locks(&mut server.connect()), before);
    }
}

/// A sync that ends in the middle leaves the replica with what it had, with nothing, or with a
/// part, as the server does with any data; the module's books agree with the keyspace each time,
/// and the next sync brings everything.
#[test]
fn a_diskless_sync_that_is_cut_in_the_middle_leaves_the_replica_whole() {
    for load in ["disabled", "on-empty-db", "swapdb"] {
        let master = Server::options().config("repl-diskless-sync yes").start();
        let mut m = master.connect();
        let label = "x".repeat(200);
        let lines: Vec<String> = (0..20_000)
            .map(|n| format!("LOCK.ACQUIRE job-{n} me 600000 OWNER {label}-{n}"))
            .collect();
        m.pipeline(&lines);
        let link = Proxy::to(master.port());
        let replica = Server::options()
            .config(&format!("repl-diskless-load {load}"))
            .start();
        let mut r = replica.connect();
        if load != "on-empty-db" {
            granted(&r.call("LOCK.ACQUIRE old me 600000"));
        }
        link.cut_after(500_000);
        r.ok(&format!("REPLICAOF 127.0.0.1 {}", link.port()));
        wait_until("the sync is cut", || link.is_cut());
        wait_until("the replica has noticed", || {
            info_field(&mut r, "replication", "master_sync_in_progress") == "0"
                && info_field(&mut r, "persistence", "loading") == "0"
        });
        if load == "on-empty-db" {
            // Or else it was not the load that was cut.
            let log = replica.log();
            assert!(log.contains("with EOF to parser"), "{log}");
        }
        let locks = r.call("LOCK.NODE").number("locks");
        assert_eq!(r.call("DBSIZE"), Value::Integer(locks), "{load}");
        assert!(locks <= 1, "{load}: half a dataset is none");
        link.heal();
        wait_for_sync(&mut m, &mut r);
        assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"), "{load}");
        assert_eq!(
            r.call("LOCK.NODE").number("locks"),
            m.call("LOCK.NODE").number("locks")
        );
        assert!(counter(&mut r) >= counter(&mut m));
        // And as a master it works with them.
        r.ok("REPLICAOF NO ONE");
        assert_eq!(r.call("LOCK.ACQUIRE job-7 you 1000"), Value::Null);
        assert_eq!(r.call("LOCK.RELEASE job-7 me"), Value::Integer(1));
        granted(&r.call("LOCK.ACQUIRE job-7 you 1000"));
    }
}
