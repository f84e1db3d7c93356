//! LOCK.NODE.

use redislock_testkit::lock::{counter, wall_micros};
use redislock_testkit::{Connection, Server, Value, granted, info_field, refused, wait_until};

const FIELDS: [&str; 17] = [
    "version",
    "incarnation",
    "role",
    "quarantine",
    "durable",
    "fence",
    "locks",
    "waiters",
    "max-ttl",
    "time",
    "warnings",
    "failed",
    "replicas-needed",
    "replicas-counted",
    "replicas-held-ms",
    "replicas-evidence-ms",
    "refusal",
];

#[test]
fn node_is_a_map_with_every_field() {
    let server = Server::start();
    let node = server.connect().call("LOCK.NODE");
    let Value::Array(_) = node else {
        panic!("no flat array in RESP2: {node:?}")
    };
    assert_eq!(node.fields(), FIELDS);
    let node = server.connect().resp3().call("LOCK.NODE");
    let Value::Map(_) = node else {
        panic!("no map in RESP3: {node:?}")
    };
    assert_eq!(node.fields(), FIELDS);
    assert_eq!(node.field("version").text(), env!("CARGO_PKG_VERSION"));
    assert_eq!(node.number("quarantine"), 0);
    assert_eq!(node.number("waiters"), 0);
}

#[test]
fn the_incarnation_is_new_with_each_start() {
    let mut server = Server::start();
    let incarnation = |server: &Server| {
        let node = server.connect().call("LOCK.NODE");
        node.field("incarnation").text().to_owned()
    };
    let first = incarnation(&server);
    assert!(!first.is_empty());
    assert_eq!(incarnation(&server), first);
    server.restart();
    assert_ne!(incarnation(&server), first);
}

#[test]
fn the_role_is_shown() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let role = |server: &Server| {
        server
            .connect()
            .call("LOCK.NODE")
            .field("role")
            .text()
            .to_owned()
    };
    assert_eq!(role(&master), "master");
    assert_eq!(role(&replica), "replica");
    replica.connect().ok("REPLICAOF NO ONE");
    assert_eq!(role(&replica), "master");
}

fn durable(c: &mut Connection) -> i64 {
    c.call("LOCK.NODE").number("durable")
}

#[test]
fn durable_needs_the_aof_with_fsync_always_even_during_a_rewrite() {
    let server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    assert_eq!(durable(&mut c), 1);
    for (change, back) in [
        ("appendfsync everysec", "appendfsync always"),
        (
            "no-appendfsync-on-rewrite yes",
            "no-appendfsync-on-rewrite no",
        ),
    ] {
        c.ok(&format!("CONFIG SET {change}"));
        assert_eq!(durable(&mut c), 0, "{change}");
        c.ok(&format!("CONFIG SET {back}"));
        assert_eq!(durable(&mut c), 1, "{back}");
    }
    c.ok("CONFIG SET appendonly no");
    assert_eq!(durable(&mut c), 0);
    assert_eq!(durable(&mut Server::start().connect()), 0);
}

/// What was acknowledged before `appendfsync always` took effect may not be on disk yet.
#[test]
fn durable_is_0_until_earlier_grants_are_on_disk() {
    let mut server = Server::options().appendonly("everysec").start();
    let mut c = server.connect();
    for (off, on) in [
        ("appendfsync everysec", "appendfsync always"),
        (
            "no-appendfsync-on-rewrite yes",
            "no-appendfsync-on-rewrite no",
        ),
    ] {
        c.ok(&format!("CONFIG SET {off}"));
        granted(&c.call("LOCK.ACQUIRE job me 600000"));
        let on = format!("CONFIG SET {on}");
        let told = c.pipeline(&["MULTI", &on, "LOCK.NODE", "EXEC"]);
        assert_eq!(told[3].items()[1].number("durable"), 0, "{on}");
        wait_until("the grants are on disk", || durable(&mut c) == 1);
    }
    // Another process has written what is loaded.
    server.kill();
    server.start_again();
    let mut c = server.connect();
    c.ok("CONFIG SET appendfsync always");
    wait_until("the grants are on disk", || durable(&mut c) == 1);
    assert_ne!(c.call("LOCK.INFO job me"), Value::Null);
}

/// An AOF that was just turned on has nothing to load in it before its first rewrite is done.
#[test]
fn durable_is_0_until_the_first_rewrite_is_done() {
    let server = Server::options().config("appendfsync always").start();
    let mut c = server.connect();
    for n in 0..600 {
        c.ok(&format!("SET key-{n} value"));
    }
    let rewrites = |c: &mut Connection| {
        info_field(c, "persistence", "aof_rewrite_in_progress") == "1"
            || info_field(c, "persistence", "aof_rewrite_scheduled") == "1"
    };
    // A rewrite takes a minute.
    c.ok("CONFIG SET rdb-key-save-delay 100000");
    for _ in 0..2 {
        c.ok("CONFIG SET appendonly yes");
        assert_eq!(durable(&mut c), 0);
        assert!(rewrites(&mut c));
        c.ok("CONFIG SET appendonly no");
        assert_eq!(durable(&mut c), 0);
    }
    c.ok("CONFIG SET rdb-key-save-delay 0");
    c.ok("CONFIG SET appendonly yes");
    wait_until("the first rewrite is done", || !rewrites(&mut c));
    assert_eq!(durable(&mut c), 1);
    // Later rewrites take nothing away.
    c.ok("CONFIG SET rdb-key-save-delay 100000");
    c.ok("BGREWRITEAOF");
    assert!(rewrites(&mut c));
    assert_eq!(durable(&mut c), 1);
}

#[test]
fn the_fence_is_the_counter() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 60000"));
    assert_eq!(counter(&mut c), fence);
    c.ok("LOCK.ACQUIRE job me 60000");
    c.ok("LOCK.ACQUIRE job you 60000");
    c.ok("LOCK.RELEASE job me ALL");
    assert_eq!(counter(&mut c), fence);
    let next = granted(&c.call("LOCK.ACQUIRE job you 60000"));
    assert_eq!(counter(&mut c), next);
}

#[test]
fn locks_are_counted_over_all_databases() {
    let server = Server::start();
    let mut c = server.connect();
    let count = |c: &mut Connection| c.call("LOCK.NODE").number("locks");
    assert_eq!(count(&mut c), 0);
    c.ok("LOCK.ACQUIRE a me 60000");
    c.ok("LOCK.ACQUIRE a me 60000");
    c.ok("LOCK.ACQUIRE b me 60000 SHARED");
    c.ok("LOCK.ACQUIRE b you 60000 SHARED");
    c.ok("SELECT 3");
    c.ok("LOCK.ACQUIRE a me 60000");
    assert_eq!(count(&mut c), 3);
    c.ok("LOCK.RELEASE a me");
    assert_eq!(count(&mut c), 2);
    c.ok("SELECT 0");
    c.ok("DEL a");
    assert_eq!(count(&mut c), 1);
    c.ok("LOCK.ACQUIRE a me 20");
    wait_until("the lease has ended", || count(&mut c) == 1);
    c.ok("FLUSHALL");
    assert_eq!(count(&mut c), 0);
}

#[test]
fn max_ttl_follows_the_configuration() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(c.call("LOCK.NODE").number("max-ttl"), 86_400_000);
    c.ok("CONFIG SET lock.max-ttl 5000");
    assert_eq!(c.call("LOCK.NODE").number("max-ttl"), 5000);
}

#[test]
fn time_is_the_wall_clock_in_microseconds() {
    let server = Server::start();
    let mut c = server.connect();
    let before = wall_micros();
    let time = c.call("LOCK.NODE").number("time");
    assert!((before..=wall_micros()).contains(&time), "{time}");
}

#[test]
fn node_works_while_loading() {
    let mut server = Server::options().config("rdbcompression no").start();
    let mut c = server.connect();
    c.ok("DEBUG POPULATE 20000");
    c.ok("SAVE");
    server.kill();
    server.reconfigure(|options| {
        options
            .config("key-load-delay 10000")
            .config("loading-process-events-interval-bytes 1024")
            .while_loading()
    });
    server.start_again();
    let mut c = server.connect();
    for line in [
        "LOCK.INFO job",
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000 BLOCK 0",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 60000",
        "LOCK.MACQUIRE 1 job me 60000",
        "LOCK.MRELEASE 1 job me",
        "LOCK.MEXTEND 1 job me 60000",
        "LOCK.GUARD job me GET string",
        "LOCK.FORCE job",
    ] {
        refused(&c.call(line), "LOADING");
    }
    c.ok("LOCK.HELP");
    // A valid effect, with the highest fence there is: what a client says is no effect, loading or
    // not.
    let forged = b"\x01\xff\xff\xff\xff\xff\xff\xff\x0f\x00";
    refused(&c.call_args(&[b"LOCK._APPLY", &forged[..]]), "ERR");
    let node = c.call("LOCK.NODE");
    assert_eq!(node.fields(), FIELDS);
    assert_eq!(node.field("role").text(), "master");
}

#[test]
fn node_works_on_a_stale_replica() {
    let replica = Server::options()
        .config(&format!(
            "replicaof 127.0.0.1 {}",
            redislock_testkit::free_port()
        ))
        .config("replica-serve-stale-data no")
        .start();
    let mut c = replica.connect();
    refused(&c.call("LOCK.INFO job"), "MASTERDOWN");
    let node = c.call("LOCK.NODE");
    assert_eq!(node.fields(), FIELDS);
    assert_eq!(node.field("role").text(), "replica");
}

/// What the node reports under `always`, in one step: a server that fails to write gives up at the
/// next attempt.
fn durable_under_always(c: &mut Connection) -> i64 {
    c.ok("MULTI");
    c.ok("CONFIG SET appendfsync always");
    c.ok("LOCK.NODE");
    c.ok("CONFIG SET appendfsync everysec");
    c.call("EXEC").items()[1].number("durable")
}

/// The node has granted nothing yet, so no earlier grant is a reason for this.
#[test]
fn a_node_whose_disk_is_full_is_not_durable() {
    let (server, disk) = crate::disk::on_a_small_disk("everysec");
    let mut c = server.connect();
    assert_eq!(durable_under_always(&mut c), 1);
    crate::disk::fill_until_a_write_fails(&disk, &mut c);
    assert_eq!(durable_under_always(&mut c), 0);
    disk.free();
    wait_until("writing works again", || {
        crate::disk::status(&mut c) == "ok"
    });
    assert_eq!(durable_under_always(&mut c), 1);
}
