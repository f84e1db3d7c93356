//! Requests that are well formed, on a server that cannot grant them.

use redislock_testkit::lock::all_locks;
use redislock_testkit::{Server, Value, granted, refused, wait_until};

#[test]
fn a_replica_refuses_to_change_locks() {
    let master = Server::start();
    let mut m = master.connect();
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    let replica = Server::options().replica_of(&master).start();
    let mut r = replica.connect();
    wait_until("the replica has the lock", || {
        r.call("LOCK.INFO job") != Value::Null
    });
    let before = all_locks(&mut r);
    for line in [
        "LOCK.ACQUIRE job me 1000",
        "LOCK.ACQUIRE free me 1000",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 1000",
        "LOCK.FORCE job",
        "LOCK.MACQUIRE 2 job free me 1000",
        "LOCK.MRELEASE 2 job free me",
        "LOCK.MEXTEND 2 job free me 1000",
        "LOCK.GUARD job me GET string",
    ] {
        refused(&r.call(line), "READONLY");
        assert_eq!(all_locks(&mut r), before, "{line}");
    }
}

#[test]
fn without_memory_nobody_acquires_but_holders_extend_and_release() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET string value");
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("LOCK.ACQUIRE job me 60000");
    c.ok("LOCK.ACQUIRE forced me 60000");
    c.ok("CONFIG SET maxmemory 1");
    refused(&c.call("LOCK.ACQUIRE other me 60000"), "OOM");
    refused(&c.call("LOCK.ACQUIRE job me 60000"), "OOM");
    refused(&c.call("LOCK.MACQUIRE 2 job other me 60000"), "OOM");
    assert_eq!(c.call("LOCK.INFO job me").number("holds"), 2);
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
    assert_eq!(c.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    assert!(c.call("LOCK.INFO job me").number("ttl") > 60_000);
    let each = |reply| Value::Array(vec![Value::Integer(reply), Value::Null]);
    let extended = c.call("LOCK.MEXTEND 2 job other me 600000");
    assert_eq!(extended, each(fence));
    assert_eq!(c.call("LOCK.RELEASE job me"), Value::Integer(1));
    let released = c.call("LOCK.MRELEASE 2 job other me ALL");
    assert_eq!(released, each(1));
    assert_eq!(c.call("LOCK.FORCE forced"), Value::Integer(1));
    c.ok("LOCK.NODE");
}
