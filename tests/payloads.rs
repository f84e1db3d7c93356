//! What a saved lock may bring in: a client's payload within limits, the node's own files and its
//! master without.

use redislock_testkit::lock::{counter, wall_micros};
use redislock_testkit::{
    Connection, Options, Server, SteppedServer, Value, granted, refused, wait_for_sync, wait_until,
};

/// The highest fence that there can be.
const HIGHEST: u64 = (1 << 53) - 1;

/// A fence as it is saved.
fn saved(fence: u64) -> [u8; 7] {
    let [0, bytes @ ..] = fence.to_be_bytes() else {
        panic!("{fence} is above all fences");
    };
    bytes
}

/// The payload of a lock with another fence. The server is told not to check its checksum: anybody
/// could compute it.
fn forged(c: &mut Connection, key: &str, fence: u64) -> Vec<u8> {
    let own = granted(&c.call(&format!("LOCK.ACQUIRE {key} me 60000")));
    let payload = c.call(&format!("DUMP {key}")).bytes().to_vec();
    let own = saved(own.unsigned_abs());
    let at = payload.windows(own.len()).position(|bytes| bytes == own);
    let at = at.expect("the payload has the fence in it");
    c.ok("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    [&payload[..at], &saved(fence), &payload[at + own.len()..]].concat()
}

fn restore(c: &mut Connection, key: &str, payload: &[u8]) -> Value {
    c.call_args(&[b"RESTORE", key.as_bytes(), b"0", payload])
}

#[test]
fn a_payload_cannot_use_up_the_fence_counter() {
    let server = Server::start();
    let mut c = server.connect();
    for fence in [HIGHEST, (wall_micros() + 3_600_000_000).unsigned_abs()] {
        let payload = forged(&mut c, "mine", fence);
        refused(&restore(&mut c, "forged", &payload), "ERR");
        assert_eq!(c.call("EXISTS forged"), Value::Integer(0));
        c.ok("LOCK.RELEASE mine me");
    }
    granted(&c.call("LOCK.ACQUIRE other me 1000"));
    assert!(counter(&mut c) < wall_micros() + 11_000_000);
    assert!(server.log().contains("its fence is too far ahead"));
}

#[test]
fn a_payload_from_a_node_whose_clock_is_a_little_ahead_is_taken() {
    let server = Server::start();
    let mut c = server.connect();
    let ahead = (wall_micros() + 9_000_000).unsigned_abs();
    let payload = forged(&mut c, "mine", ahead);
    c.ok("LOCK.RELEASE mine me");
    assert_eq!(
        restore(&mut c, "mine", &payload),
        Value::Status("OK".into())
    );
    assert_eq!(counter(&mut c).unsigned_abs(), ahead);
    assert!(granted(&c.call("LOCK.ACQUIRE other me 1000")).unsigned_abs() > ahead);
}

#[test]
fn a_node_whose_clock_was_set_back_takes_its_own_locks_again() {
    let stepped = SteppedServer::start(Server::options());
    let mut c = stepped.server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let payload = c.call("DUMP job").bytes().to_vec();
    c.ok("DEL job");
    stepped.step(-3600);
    assert_eq!(restore(&mut c, "job", &payload), Value::Status("OK".into()));
    assert_eq!(c.call("LOCK.INFO job me").number("fence"), fence);
}

/// A payload of a lock with this lease.
fn lease(millis: u64) -> Vec<u8> {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call(&format!("LOCK.ACQUIRE job me {millis}")));
    c.call("DUMP job").bytes().to_vec()
}

fn quarantined(millis: u64) -> Options {
    Server::options().config(&format!("lock.quarantine {millis}"))
}

#[test]
fn a_payload_cannot_bring_in_a_lease_that_outlives_the_quarantine() {
    let server = quarantined(60_000).start();
    let mut c = server.connect();
    refused(&restore(&mut c, "job", &lease(600_000)), "ERR");
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    assert!(server.log().contains("longer than lock.quarantine"));
    let restored = restore(&mut c, "job", &lease(50_000));
    assert_eq!(restored, Value::Status("OK".into()));
    let ttl = c.call("LOCK.INFO job me").number("ttl");
    assert!((1..=50_000).contains(&ttl), "{ttl}");
}

#[test]
fn a_lock_with_too_long_a_lease_is_not_migrated_and_stays_where_it_is() {
    let (origin, target) = (Server::start(), quarantined(60_000).start());
    let mut c = origin.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let migrate = format!("MIGRATE 127.0.0.1 {} job 0 20000", target.port());
    assert!(c.call(&migrate).is_error());
    assert_eq!(c.call("EXISTS job"), Value::Integer(1));
    assert_eq!(target.connect().call("EXISTS job"), Value::Integer(0));
}

#[test]
fn the_nodes_own_files_may_bring_in_any_lease() {
    for options in [
        Server::options().config("save 3600 1"),
        Server::options().appendonly("always"),
    ] {
        let mut server = options.start();
        let mut c = server.connect();
        // RESTORE is in the AOF as it came.
        restore(&mut c, "restored", &lease(600_000));
        granted(&c.call("LOCK.ACQUIRE job me 600000"));
        server.reconfigure(|options| options.config("lock.quarantine 1000"));
        server.restart();
        let mut c = server.connect();
        for key in ["job", "restored"] {
            assert!(c.call(&format!("LOCK.INFO {key} me")).number("ttl") > 60_000);
        }
    }
}

#[test]
fn a_replica_takes_what_its_master_took() {
    let master = Server::start();
    let replica = quarantined(1000).replica_of(&master).start();
    let (mut c, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut c, &mut r);
    restore(&mut c, "job", &lease(600_000));
    wait_until("the replica has the lock", || {
        r.call("EXISTS job") == Value::Integer(1)
    });
    assert!(r.call("LOCK.INFO job me").number("ttl") > 60_000);
}

/// A client that restores a lock there must not be able to use up the counter that the replica has
/// after its promotion.
#[test]
fn a_payload_cannot_use_up_the_fence_counter_of_a_writable_replica() {
    let master = Server::start();
    let replica = Server::options()
        .config("replica-read-only no")
        .replica_of(&master)
        .start();
    let (mut c, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut c, &mut r);
    let payload = forged(&mut c, "mine", HIGHEST);
    r.ok("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    refused(&restore(&mut r, "forged", &payload), "ERR");
    assert!(replica.log().contains("its fence is too far ahead"));
    // What the master itself took is taken.
    let ahead = (wall_micros() + 9_000_000).unsigned_abs();
    let payload = forged(&mut c, "mine", ahead);
    restore(&mut c, "restored", &payload);
    wait_for_sync(&mut c, &mut r);
    assert_eq!(r.call("EXISTS restored"), Value::Integer(1));
    r.ok("REPLICAOF NO ONE");
    assert!(granted(&r.call("LOCK.ACQUIRE other me 1000")).unsigned_abs() > ahead);
}

/// The length of the header: the type of the value, and the id of the module's type.
const HEADER: usize = 10;
/// An opcode and a length come before each string. The first string has 20 bytes, the second 16.
const SECOND: usize = HEADER + 2 + 20;
const END: usize = SECOND + 2 + 16;

#[test]
fn a_payload_whose_second_string_is_missing_or_of_another_length_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    granted(&c.call(&format!("LOCK.ACQUIRE job {uuid} 60000")));
    let payload = c.call("DUMP job").bytes().to_vec();
    c.ok("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    // The end of the value, the version of RDB and the checksum.
    let (head, end) = (&payload[..SECOND], &payload[END..]);
    assert_eq!(end.len(), 1 + 2 + 8);
    let string = |length: u8| [&[5, length][..], &vec![7; length.into()]].concat();
    let as_one = [&payload[HEADER + 2..SECOND], &payload[SECOND + 2..END]].concat();
    let as_one = [&payload[..HEADER], &[5, 36], &as_one, end].concat();
    let with = |second: &[u8]| [head, second, end].concat();
    let fence = counter(&mut c);
    for (what, payload) in [
        ("no second string", with(&[])),
        ("an empty one", with(&string(0))),
        ("a short one", with(&string(15))),
        ("a long one", with(&string(17))),
        ("a number", with(&[2, 7])),
        ("a third one", with(&[string(16), string(16)].concat())),
        ("both as one", as_one),
    ] {
        for key in ["other", "job"] {
            let restore = [b"RESTORE", key.as_bytes(), b"0", &payload, b"REPLACE"];
            refused(&c.call_args(&restore), "ERR");
            assert_eq!(c.call("EXISTS other"), Value::Integer(0), "{what}");
            assert_ne!(c.call(&format!("LOCK.INFO job {uuid}")), Value::Null);
        }
    }
    let node = c.call("LOCK.NODE");
    assert_eq!((node.number("locks"), counter(&mut c)), (1, fence));
    let restored = restore(&mut c, "other", &with(&string(16)));
    assert_eq!(restored, Value::Status("OK".into()));
}
