//! EPHEMERAL: the hold ends with the connection that last acquired or extended it.

use std::time::Duration;

use redislock_testkit::lock::{wait_for_waiters, wait_until_gone};
use redislock_testkit::{Server, Value, granted, info_number, refused, wait_for_sync, wait_until};

/// Long enough for a server to see that a connection was closed.
const A_WHILE: Duration = Duration::from_millis(150);

#[test]
fn an_ephemeral_hold_ends_with_its_connection() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    granted(&holder.call("LOCK.ACQUIRE ordinary me 600000"));
    drop(holder);
    wait_until_gone(&mut c, "job");
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Null);
    assert_ne!(c.call("LOCK.INFO ordinary me"), Value::Null);
}

#[test]
fn a_killed_or_reset_connection_counts_as_closed() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    let id = holder.client_id();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    c.ok(&format!("CLIENT KILL ID {id}"));
    wait_until_gone(&mut c, "job");
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    holder.send("PING");
    holder.reset();
    wait_until_gone(&mut c, "job");
}

#[test]
fn the_end_of_an_ephemeral_hold_serves_the_waiter() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0 EPHEMERAL");
    wait_for_waiters(&mut c, "job", 1);
    drop(holder);
    granted(&waiter.receive());
    drop(waiter);
    wait_until_gone(&mut c, "job");
}

#[test]
fn the_connection_that_last_extended_or_acquired_counts() {
    for line in [
        "LOCK.EXTEND job me 600000",
        "LOCK.ACQUIRE job me 600000 EPHEMERAL",
        "LOCK.ACQUIRE job me 600000 ONCE",
        "LOCK.MEXTEND 1 job me 600000",
        "LOCK.MACQUIRE 1 job me 600000",
    ] {
        let server = Server::start();
        let mut c = server.connect();
        let mut first = server.connect();
        let mut second = server.connect();
        granted(&first.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
        let told = second.call(line);
        assert!(!told.is_error() && told != Value::Null, "{line}: {told:?}");
        drop(first);
        std::thread::sleep(A_WHILE);
        assert_ne!(c.call("LOCK.INFO job me"), Value::Null, "{line}");
        drop(second);
        wait_until_gone(&mut c, "job");
    }
}

#[test]
fn an_unsuccessful_request_does_not_take_the_hold_over() {
    let server = Server::start();
    let mut c = server.connect();
    let mut first = server.connect();
    let mut second = server.connect();
    granted(&first.call("LOCK.ACQUIRE job me 600000 EPHEMERAL MAXHOLD 600000"));
    refused(&second.call("LOCK.EXTEND job me 86000000"), "LOCKLIMIT");
    refused(&second.call("LOCK.EXTEND job me 0"), "ERR");
    assert_eq!(
        second.call("LOCK.ACQUIRE job you 600000 EPHEMERAL"),
        Value::Null
    );
    drop(second);
    std::thread::sleep(A_WHILE);
    assert_ne!(c.call("LOCK.INFO job me"), Value::Null);
    drop(first);
    wait_until_gone(&mut c, "job");
}

#[test]
fn a_later_hold_is_not_ended_by_the_connection_of_an_earlier_one() {
    let server = Server::start();
    let mut c = server.connect();
    let mut first = server.connect();
    granted(&first.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    c.ok("LOCK.RELEASE job me");
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    drop(first);
    std::thread::sleep(A_WHILE);
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
}

#[test]
fn of_a_shared_lock_only_the_hold_of_the_closed_connection_ends() {
    let server = Server::start();
    let mut c = server.connect();
    let mut one = server.connect();
    let mut two = server.connect();
    granted(&one.call("LOCK.ACQUIRE room one 600000 SHARED EPHEMERAL"));
    granted(&two.call("LOCK.ACQUIRE room two 600000 SHARED EPHEMERAL"));
    granted(&c.call("LOCK.ACQUIRE room three 600000 SHARED"));
    drop(one);
    wait_until("the first hold has ended", || {
        c.call("LOCK.INFO room one") == Value::Null
    });
    assert_ne!(c.call("LOCK.INFO room two"), Value::Null);
    assert_ne!(c.call("LOCK.INFO room three"), Value::Null);
}

#[test]
fn one_connection_may_hold_many_locks() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    let lines: Vec<String> = (0..500)
        .map(|n| format!("LOCK.ACQUIRE job-{n} me 600000 EPHEMERAL"))
        .collect();
    holder.pipeline(&lines);
    holder.ok("SELECT 3");
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 501);
    drop(holder);
    wait_until("all holds have ended", || {
        c.call("LOCK.NODE").number("locks") == 0
    });
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

#[test]
fn the_grace_lets_a_client_come_back() {
    let server = Server::options()
        .config("lock.ephemeral-grace 2000")
        .start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    granted(&holder.call("LOCK.ACQUIRE left me 600000 EPHEMERAL"));
    drop(holder);
    let mut again = server.connect();
    let came_back = again.call("LOCK.EXTEND job me 600000");
    wait_until_gone(&mut c, "left");
    if came_back != Value::Null {
        assert_ne!(c.call("LOCK.INFO job me"), Value::Null);
    }
    drop(again);
    wait_until_gone(&mut c, "job");
}

#[test]
fn during_the_grace_the_lock_is_held() {
    let server = Server::options()
        .config("lock.ephemeral-grace 60000")
        .start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    drop(holder);
    std::thread::sleep(A_WHILE);
    assert_eq!(c.call("LOCK.ACQUIRE job you 600000"), Value::Null);
    assert_ne!(c.call("LOCK.INFO job me"), Value::Null);
}

#[test]
fn the_lease_of_an_ephemeral_hold_ends_too() {
    let server = Server::options()
        .config("lock.ephemeral-grace 60000")
        .start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 300 EPHEMERAL"));
    granted(&holder.call("LOCK.ACQUIRE left me 300 EPHEMERAL"));
    wait_until_gone(&mut c, "job");
    drop(holder);
    wait_until_gone(&mut c, "left");
}

#[test]
fn after_a_reload_it_is_an_ordinary_lease() {
    let mut server = Server::options().appendonly("always").start();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    server.kill();
    server.start_again();
    std::thread::sleep(A_WHILE);
    assert_ne!(server.connect().call("LOCK.INFO job me"), Value::Null);
}

#[test]
fn after_a_promotion_it_is_an_ordinary_lease() {
    let mut master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    granted(&m.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    wait_for_sync(&mut m, &mut r);
    master.kill();
    r.ok("REPLICAOF NO ONE");
    std::thread::sleep(A_WHILE);
    assert_ne!(r.call("LOCK.INFO job me"), Value::Null);
}

#[test]
fn after_a_migration_it_is_an_ordinary_lease() {
    let source = Server::start();
    let target = Server::start();
    let mut holder = source.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    let migrated = holder.call(&format!("MIGRATE 127.0.0.1 {} job 0 10000", target.port()));
    assert_eq!(migrated, Value::Status("OK".into()));
    drop(holder);
    std::thread::sleep(A_WHILE);
    assert_ne!(target.connect().call("LOCK.INFO job me"), Value::Null);
}

#[test]
fn the_end_of_an_ephemeral_hold_reaches_the_replica() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    let mut holder = master.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    wait_for_sync(&mut m, &mut r);
    assert_eq!(r.call("EXISTS job"), Value::Integer(1));
    drop(holder);
    wait_until_gone(&mut r, "job");
}

#[test]
fn a_renamed_ephemeral_hold_still_ends_with_its_connection() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    c.ok("RENAME job moved");
    granted(&c.call("LOCK.ACQUIRE job other 600000"));
    drop(holder);
    wait_until_gone(&mut c, "moved");
    assert_ne!(c.call("LOCK.INFO job other"), Value::Null);
}

#[test]
fn nothing_ends_while_clients_are_paused() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    c.ok("CLIENT PAUSE 60000 WRITE");
    drop(holder);
    std::thread::sleep(A_WHILE);
    assert_eq!(c.call("EXISTS job"), Value::Integer(1));
    c.ok("CLIENT UNPAUSE");
    wait_until_gone(&mut c, "job");
}

#[test]
fn ephemeral_given_twice_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    refused(
        &c.call("LOCK.ACQUIRE job me 1000 EPHEMERAL EPHEMERAL"),
        "ERR",
    );
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}

#[test]
fn an_extension_by_a_script_leaves_the_hold_tied_to_its_connection() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    let script = "return redis.call('LOCK.EXTEND', KEYS[1], 'me', '600000')";
    granted(&holder.call_args(&["EVAL", script, "1", "job"]));
    drop(holder);
    wait_until_gone(&mut c, "job");
}

#[test]
fn a_script_has_no_connection_to_end_with_and_a_transaction_has() {
    let server = Server::start();
    let mut c = server.connect();
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'me', '600000', 'EPHEMERAL')";
    let told = c.call_args(&["EVAL", script, "1", "job"]);
    assert!(told.error().contains("EPHEMERAL"), "{told:?}");
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    let mut holder = server.connect();
    let told = holder.pipeline(&["MULTI", "LOCK.ACQUIRE job me 600000 EPHEMERAL", "EXEC"]);
    granted(&told[2].items()[0]);
    assert_ne!(c.call("LOCK.INFO job me"), Value::Null);
    drop(holder);
    wait_until_gone(&mut c, "job");
}

#[test]
fn an_ordinary_hold_becomes_ephemeral_by_a_reentry_that_says_so() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    drop(holder);
    wait_until_gone(&mut c, "job");
}

#[test]
fn several_keys_may_be_held_ephemerally() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    let fences = holder.call("LOCK.MACQUIRE 2 a b me 600000 EPHEMERAL");
    assert_eq!(fences.items().len(), 2);
    let mut waiter = server.connect();
    waiter.send("LOCK.MACQUIRE 2 a b you 600000 BLOCK 0 EPHEMERAL");
    wait_for_waiters(&mut c, "b", 1);
    drop(holder);
    assert_eq!(waiter.receive().items().len(), 2);
    drop(waiter);
    wait_until_gone(&mut c, "a");
    wait_until_gone(&mut c, "b");
}

#[test]
fn the_end_of_an_ephemeral_hold_is_reported_and_counted_as_an_expiry() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    c.ok("CONFIG SET notify-keyspace-events KEd");
    let mut listener = server.connect();
    listener.ok("SUBSCRIBE __keyspace@0__:job");
    drop(holder);
    assert_eq!(listener.receive().items()[2].text(), "lock.expired");
    assert_eq!(info_number(&mut c, "lock", "lock_expiries"), 1);
}

#[test]
fn a_grant_by_a_disconnect_obeys_min_replicas_to_write() {
    let server = Server::start();
    let mut c = server.connect();
    let mut holder = server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("CONFIG SET min-replicas-to-write 1");
    drop(holder);
    assert!(waiter.is_silent_for(A_WHILE));
    assert_eq!(c.call("LOCK.INFO job you"), Value::Null);
    c.ok("CONFIG SET min-replicas-to-write 0");
    granted(&waiter.receive());
}
