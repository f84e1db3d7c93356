//! A Redis TTL that a client sets on the key of a lock: it ends the holds of that time, and no
//! later one.

use std::thread::sleep;
use std::time::Duration;

use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{
    Connection, Server, Value, granted, info_number, wait_for_sync, wait_until,
};

/// A master that deletes a key whose TTL is over only when a command accesses it, and its replica.
fn servers() -> (Server, Server) {
    let master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let mut c = master.connect();
    c.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    wait_for_sync(&mut c, &mut replica.connect());
    (master, replica)
}

/// Master, replica and the reloaded master have the same locks, and no key has a TTL.
fn assert_alike(master: &Server, replica: &Server, key: &str) {
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    let digest = m.ok("DEBUG DIGEST");
    assert_eq!(r.ok("DEBUG DIGEST"), digest, "master and replica");
    let ttl = format!("PTTL {key}");
    let exists = m.ok(&format!("EXISTS {key}")) == Value::Integer(1);
    let without = Value::Integer(if exists { -1 } else { -2 });
    assert_eq!((m.ok(&ttl), r.ok(&ttl)), (without.clone(), without.clone()));
    m.ok("DEBUG LOADAOF");
    assert_eq!((m.ok("DEBUG DIGEST"), m.ok(&ttl)), (digest, without));
}

/// The waiter holds the lock: nobody else gets it, and it can be extended.
fn assert_holds(c: &mut Connection, key: &str, token: &str) {
    assert_eq!(
        c.call(&format!("LOCK.ACQUIRE {key} other 600000")),
        Value::Null
    );
    granted(&c.call(&format!("LOCK.EXTEND {key} {token} 600000")));
}

#[test]
fn a_lock_that_is_handed_over_after_its_ttl_is_over_stays_with_the_new_holder() {
    let (master, replica) = servers();
    let (mut c, mut waiter) = (master.connect(), master.connect());
    granted(&c.call("LOCK.ACQUIRE job me 400"));
    c.ok("PEXPIRE job 100");
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    granted(&waiter.receive());
    assert_alike(&master, &replica, "job");
    assert_holds(&mut c, "job", "you");
}

#[test]
fn the_same_when_the_connection_of_an_ephemeral_holder_closes() {
    let (master, replica) = servers();
    let (mut c, mut holder, mut waiter) = (master.connect(), master.connect(), master.connect());
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("PEXPIRE job 20");
    sleep(Duration::from_millis(40));
    drop(holder);
    granted(&waiter.receive());
    assert_alike(&master, &replica, "job");
    assert_holds(&mut c, "job", "you");
}

#[test]
fn a_permit_that_is_granted_after_the_ttl_is_over_is_kept_with_the_others() {
    let (master, replica) = servers();
    let (mut c, mut waiter) = (master.connect(), master.connect());
    granted(&c.call("LOCK.ACQUIRE pool long 600000 SHARED LIMIT 2"));
    granted(&c.call("LOCK.ACQUIRE pool short 400 SHARED LIMIT 2"));
    c.ok("PEXPIRE pool 100");
    waiter.send("LOCK.ACQUIRE pool next 600000 SHARED LIMIT 2 BLOCK 0");
    granted(&waiter.receive());
    assert_alike(&master, &replica, "pool");
    assert_eq!(
        c.call("LOCK.ACQUIRE pool other 600000 SHARED LIMIT 2"),
        Value::Null
    );
    granted(&c.call("LOCK.EXTEND pool next 600000"));
}

#[test]
fn a_ttl_that_is_over_ends_the_other_holds_when_one_of_them_ends() {
    let (master, replica) = servers();
    let mut c = master.connect();
    granted(&c.call("LOCK.ACQUIRE pool long 600000 SHARED"));
    granted(&c.call("LOCK.ACQUIRE pool short 300 SHARED"));
    c.ok("PEXPIRE pool 50");
    wait_until("the lease has ended", || {
        info_number(&mut c, "lock", "lock_locks") == 0
    });
    wait_until("the removal is counted", || {
        info_number(&mut c, "lock", "lock_removed") == 1
    });
    assert_eq!(c.call("LOCK.EXTEND pool long 600000"), Value::Null);
    assert_alike(&master, &replica, "pool");
}

#[test]
fn a_ttl_that_was_set_before_a_hand_over_does_not_end_the_next_hold() {
    let (master, replica) = servers();
    let (mut c, mut waiter) = (master.connect(), master.connect());
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("PEXPIRE job 300000");
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    assert_alike(&master, &replica, "job");
    assert_holds(&mut c, "job", "you");
}

#[test]
fn an_extension_does_not_remove_a_ttl() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("PEXPIRE job 300000");
    granted(&c.call("LOCK.EXTEND job me 600000"));
    assert_ne!(c.ok("PTTL job"), Value::Integer(-1));
}
