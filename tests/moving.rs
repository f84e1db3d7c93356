//! Commands of the server that move, copy or remove keys, and what becomes of locks.

use redislock_testkit::lock::wait_until_gone;
use redislock_testkit::{Server, Value, granted, info_number, wait_until};

#[test]
fn rename_takes_the_lock_along() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    granted(&c.call("LOCK.ACQUIRE occupied you 600000"));
    c.ok("RENAME job moved");
    assert_eq!(c.call("LOCK.EXTEND moved me 600000"), Value::Integer(fence));
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Null);
    c.ok("RENAME moved occupied");
    assert_eq!(
        c.call("LOCK.EXTEND occupied me 600000"),
        Value::Integer(fence)
    );
    assert_eq!(c.call("LOCK.EXTEND occupied you 600000"), Value::Null);
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
    assert_eq!(c.call("LOCK.RELEASE occupied me"), Value::Integer(1));
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

#[test]
fn move_takes_the_lock_along() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    assert_eq!(c.call("MOVE job 1"), Value::Integer(1));
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    granted(&c.call("LOCK.ACQUIRE job you 600000"));
    c.ok("SELECT 1");
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 2);
}

#[test]
fn a_lock_that_a_transaction_moves_ends_where_it_is() {
    let server = Server::start();
    let mut c = server.connect();
    for commands in [
        &["LOCK.ACQUIRE job me 100", "MOVE job 1"][..],
        &["SELECT 1", "LOCK.ACQUIRE job me 100", "MOVE job 2"],
    ] {
        c.ok("SELECT 0");
        c.ok("MULTI");
        for command in commands {
            c.call(command);
        }
        c.call("EXEC");
        wait_until("no key is left", || {
            (0..3).all(|db| {
                c.ok(&format!("SELECT {db}"));
                c.call("DBSIZE") == Value::Integer(0)
            })
        });
        assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
    }
}

#[test]
fn a_key_whose_lock_is_unknown_is_never_left_behind() {
    let server = Server::start();
    let mut c = server.connect();
    // Whatever a transaction does with a lock, the dataset can be saved and loaded again.
    c.ok("MULTI");
    for command in [
        "LOCK.ACQUIRE job me 100",
        "MOVE job 1",
        "SELECT 1",
        "RENAME job moved",
        "MOVE moved 2",
    ] {
        c.call(command);
    }
    c.call("EXEC");
    c.ok("SELECT 2");
    wait_until("the lease has ended", || {
        c.call("LOCK.INFO moved") == Value::Null
    });
    let fence = granted(&c.call("LOCK.ACQUIRE moved you 600000"));
    assert_eq!(c.call("LOCK.ACQUIRE moved her 600000"), Value::Null);
    c.ok("DEBUG RELOAD");
    assert_eq!(
        c.call("LOCK.EXTEND moved you 600000"),
        Value::Integer(fence)
    );
}

#[test]
fn swapdb_takes_the_locks_along() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("SELECT 1");
    let other = granted(&c.call("LOCK.ACQUIRE job you 600000"));
    c.ok("SWAPDB 0 1");
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    assert_eq!(c.call("LOCK.EXTEND job you 600000"), Value::Null);
    c.ok("SELECT 0");
    assert_eq!(c.call("LOCK.EXTEND job you 600000"), Value::Integer(other));
    assert_eq!(c.call("LOCK.RELEASE job you"), Value::Integer(1));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
}

#[test]
fn a_lease_ends_by_itself_wherever_its_key_was_moved() {
    let server = Server::start();
    let mut c = server.connect();
    // Long enough that the moves happen first, on a busy machine too; what counts is that it ends
    // at all.
    for line in ["renamed", "moved", "swapped"] {
        granted(&c.call(&format!("LOCK.ACQUIRE {line} me 1500")));
    }
    c.ok("RENAME renamed other-name");
    c.ok("MOVE moved 1");
    c.ok("SWAPDB 0 2");
    wait_until("all leases have ended", || {
        c.pipeline(&[
            "SELECT 0", "DBSIZE", "SELECT 1", "DBSIZE", "SELECT 2", "DBSIZE",
        ])
        .iter()
        .all(|reply| !matches!(reply, Value::Integer(1..)))
    });
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
    assert_eq!(info_number(&mut c, "lock", "lock_expiries"), 3);
}

#[test]
fn copy_is_refused() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    for line in [
        "COPY job twin",
        "COPY job job DB 1",
        "COPY job twin REPLACE",
    ] {
        let reply = c.call(line);
        assert!(reply.is_error() || reply == Value::Integer(0), "{reply:?}");
        assert_eq!(c.call("EXISTS twin"), Value::Integer(0));
    }
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
}

#[test]
fn removal_by_other_commands_is_the_administrators_force() {
    let server = Server::start();
    let mut c = server.connect();
    for line in [
        "DEL job",
        "UNLINK job",
        "SET job value",
        "GETDEL job",
        "RENAME job elsewhere",
        "MOVE job 5",
        "FLUSHDB",
        "FLUSHALL",
        "FLUSHALL ASYNC",
        "SWAPDB 0 7",
        "PEXPIRE job 1",
        "EXPIREAT job 1",
    ] {
        let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
        c.call(line);
        if line.starts_with("GETDEL") {
            // Of another type for GETDEL: it must leave the lock alone.
            assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
        }
        if line.starts_with("SET") {
            assert_eq!(
                c.call("LOCK.EXTEND job me 600000").error_class(),
                "WRONGTYPE"
            );
        }
        if !line.starts_with("GETDEL") && !line.starts_with("SET") {
            wait_until_gone(&mut c, "job");
            assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Null, "{line}");
            assert!(
                granted(&c.call("LOCK.ACQUIRE job me 600000")) > fence,
                "{line}"
            );
        }
        c.ok("FLUSHALL");
        assert_eq!(c.call("LOCK.NODE").number("locks"), 0, "{line}");
    }
}

#[test]
fn a_flush_of_one_database_leaves_the_locks_of_the_others() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("SELECT 1");
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("SELECT 0");
    c.ok("FLUSHDB");
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    c.ok("SELECT 1");
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
}

/// The module is told of each evicted key, whatever its database. Valkey 8.1 runs what it is told
/// on the client that runs a command, if there is one.
#[test]
fn evictions_leave_clients_in_their_database() {
    let server = Server::options()
        .config("maxmemory-policy allkeys-random")
        .start();
    let (mut c, value) = (server.connect(), "x".repeat(1000));
    c.ok("SELECT 1");
    for n in 0..1000 {
        c.ok(&format!("SET old-{n} {value}"));
    }
    c.ok("SELECT 2");
    let used = info_number(&mut c, "memory", "used_memory");
    c.ok(&format!("CONFIG SET maxmemory {}", used - 200_000));
    for n in 0..100 {
        c.call(&format!("SET new-{n} {value}"));
        c.call_args(&[
            "EVAL",
            "return redis.call('SET', KEYS[1], ARGV[1])",
            "1",
            "script",
            &value,
        ]);
        let lines = [
            "MULTI".to_owned(),
            format!("SET transaction {value}"),
            "EXEC".to_owned(),
        ];
        c.pipeline(&lines);
        let info = c.call("CLIENT INFO");
        assert!(info.text().contains(" db=2 "), "{info:?}");
    }
    assert!(info_number(&mut c, "stats", "evicted_keys") > 0);
    let keyspace = c.call("INFO keyspace");
    assert!(!keyspace.text().contains("db0:"), "{keyspace:?}");
}
