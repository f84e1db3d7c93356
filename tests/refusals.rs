//! Requests that are well formed, on a server that cannot grant them.

use redislock_testkit::cluster::{Cluster, node_options};
use redislock_testkit::lock::all_locks;
use redislock_testkit::{Connection, Server, Value, granted, info_field, refused, wait_until};

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

/// What a node says about a server that refuses new locks, in LOCK.NODE and in INFO.
fn refusal(c: &mut Connection) -> (String, String) {
    let node = c.call("LOCK.NODE").field("refusal").text().to_owned();
    (node, info_field(c, "lock", "lock_refusal_code"))
}

fn told(name: &str, code: &str) -> (String, String) {
    (name.to_owned(), code.to_owned())
}

#[test]
fn a_node_tells_that_its_server_lacks_memory() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(refusal(&mut c), told("none", "0"));
    // Locks have no time to live: nothing can be evicted.
    for policy in ["noeviction", "volatile-lru"] {
        c.ok(&format!("CONFIG SET maxmemory-policy {policy}"));
        c.ok("CONFIG SET maxmemory 1");
        refused(&c.call("LOCK.ACQUIRE job me 60000"), "OOM");
        assert_eq!(refusal(&mut c), told("memory", "1"), "{policy}");
        assert_eq!(refusal(&mut server.connect().resp3()), told("memory", "1"));
        c.ok("CONFIG SET maxmemory 0");
        assert_eq!(refusal(&mut c), told("none", "0"), "{policy}");
    }
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
}

/// A full cache is above its limit before each eviction.
#[test]
fn a_server_that_evicts_lacks_no_memory() {
    let server = Server::start();
    let mut c = server.connect();
    for number in 0..3_000 {
        c.ok(&format!("SETEX cached:{number} 6000 {}", "x".repeat(1_000)));
    }
    let used: u64 = info_field(&mut c, "memory", "used_memory").parse().unwrap();
    c.ok("CONFIG SET maxmemory-policy volatile-lru");
    c.ok(&format!("CONFIG SET maxmemory {}", used - 500_000));
    for number in 0..200 {
        c.ok(&format!("SETEX more:{number} 6000 {}", "x".repeat(1_000)));
        assert_eq!(refusal(&mut c), told("none", "0"), "{number}");
    }
    let evicted = info_field(&mut c, "stats", "evicted_keys");
    assert_ne!(evicted, "0");
}

#[test]
fn a_node_tells_that_its_server_cannot_save() {
    let server = Server::with(["save 3600 1"]);
    let mut c = server.connect();
    let file = c.call("CONFIG GET dbfilename");
    let Value::Array(file) = &file else {
        panic!("{file:?}")
    };
    let in_the_way = server.folder().join(file[1].text());
    std::fs::create_dir(&in_the_way).unwrap();
    let mut save_until = |status: &str| {
        c.ok("BGSAVE");
        wait_until("it was tried", || {
            info_field(&mut c, "persistence", "rdb_last_bgsave_status") == status
        });
        refusal(&mut c)
    };
    assert_eq!(save_until("err"), told("disk", "2"));
    refused(
        &server.connect().call("LOCK.ACQUIRE job me 60000"),
        "MISCONF",
    );
    std::fs::remove_dir(&in_the_way).unwrap();
    assert_eq!(save_until("ok"), told("none", "0"));
}

#[test]
fn a_node_tells_that_replicas_are_missing_unless_it_is_one() {
    let master = Server::start();
    let mut c = master.connect();
    c.ok("CONFIG SET min-replicas-to-write 1");
    refused(&c.call("LOCK.ACQUIRE job me 60000"), "NOREPLICAS");
    assert_eq!(refusal(&mut c), told("replicas", "3"));
    let replica = Server::options().replica_of(&master).start();
    wait_until("the replica counts", || {
        refusal(&mut c) == told("none", "0")
    });
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    // Its role says enough.
    assert_eq!(refusal(&mut replica.connect()), told("none", "0"));
}

#[test]
fn a_node_tells_that_writes_are_paused() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("CLIENT PAUSE 600000 WRITE");
    assert_eq!(refusal(&mut c), told("paused", "4"));
    c.ok("CLIENT UNPAUSE");
    assert_eq!(refusal(&mut c), told("none", "0"));
}

#[test]
fn a_node_tells_that_the_cluster_is_down() {
    let cluster = Cluster::start(1, 0, &Server::options());
    let mut c = cluster.nodes[0].connect();
    assert_eq!(refusal(&mut c), told("none", "0"));
    // One of the slots that it would ask about is among them.
    c.ok("CLUSTER DELSLOTS 0 15495");
    wait_until("the cluster is down", || {
        let state = c.call("CLUSTER INFO").text().to_owned();
        state.contains("cluster_state:fail")
    });
    refused(&c.call("LOCK.ACQUIRE job me 60000"), "CLUSTERDOWN");
    assert_eq!(refusal(&mut c), told("cluster", "5"));
}

/// Asking changes nothing: neither data nor what replicas get.
#[test]
fn asking_for_the_refusal_leaves_no_trace() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut c = master.connect();
    let mut trace = || {
        let changes = info_field(&mut c, "persistence", "rdb_changes_since_last_save");
        let errors = c.call("INFO errorstats").text().to_owned();
        (changes, errors, c.call("DBSIZE"))
    };
    let before = trace();
    for _ in 0..100 {
        refusal(&mut master.connect());
        refusal(&mut replica.connect());
    }
    assert_eq!(trace(), before);
}

/// Such a node of a large cluster has no slot of which the server would say anything.
#[test]
fn a_node_with_few_slots_tells_what_its_server_lacks() {
    let options = node_options(&Server::options());
    let server = options.config("cluster-require-full-coverage no").start();
    let mut c = server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 3276");
    wait_until("the cluster is up", || {
        let state = c.call("CLUSTER INFO").text().to_owned();
        state.contains("cluster_state:ok")
    });
    assert_eq!(refusal(&mut c), told("none", "0"));
    c.ok("CONFIG SET maxmemory 1");
    assert_eq!(refusal(&mut c), told("memory", "1"));
    c.ok("CONFIG SET maxmemory 0");
    c.ok("CONFIG SET min-replicas-to-write 1");
    assert_eq!(refusal(&mut c), told("replicas", "3"));
    c.ok("CONFIG SET min-replicas-to-write 0");
    assert_eq!(refusal(&mut c), told("none", "0"));
}
