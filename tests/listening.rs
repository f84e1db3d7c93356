//! A master that nobody listens to makes no effects. After it has followed another node, it has a
//! backlog, and what it does reaches a replica that comes later and gets only what it has missed.

use redislock_testkit::cluster::{Cluster, node_options};
use redislock_testkit::lock::{all_locks, counter};
use redislock_testkit::{
    Connection, Server, Value, granted, info_field, info_number, wait_for_sync, wait_patiently,
    wait_until,
};

/// Waits until the module has checked whether somebody listens. A server that has granted a lock
/// shows it: in the same check, the module notices that the statistics were reset.
#[track_caller]
fn wait_for_a_check(c: &mut Connection) {
    c.ok("CONFIG RESETSTAT");
    wait_until("the module has checked", || {
        info_number(c, "lock", "lock_grants") == 0
    });
}

/// A server without a replica, a backlog or an AOF, whose module has noticed that nobody listens.
fn alone() -> Server {
    // What a master sends by itself would make its stream longer than that of its last replica.
    let server = Server::with(["repl-ping-replica-period 3600"]);
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE kept me 600000"));
    granted(&c.call("LOCK.ACQUIRE lost me 600000"));
    wait_for_a_check(&mut c);
    assert_eq!(
        info_field(&mut c, "replication", "repl_backlog_active"),
        "0"
    );
    server
}

/// Changes locks without a fork, which would count as a listener.
#[track_caller]
fn change_locks(m: &mut Connection) {
    granted(&m.call("LOCK.ACQUIRE new me 600000 OWNER label"));
    granted(&m.call("LOCK.EXTEND kept me 700000"));
    assert_eq!(m.call("LOCK.RELEASE lost me"), Value::Integer(1));
    granted(&m.call("LOCK.ACQUIRE shared one 600000 SHARED"));
    granted(&m.call("LOCK.ACQUIRE shared two 600000 SHARED"));
}

/// `replica` follows with a partial resync, and is equal to its master then.
#[track_caller]
fn follow_and_compare(master: &Server, replica: &Server) {
    let (mut m, mut r) = (master.connect(), replica.connect());
    r.ok(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    wait_for_sync(&mut m, &mut r);
    let syncs = |c: &mut Connection, kind: &str| info_number(c, "stats", kind);
    let of_master = (syncs(&mut m, "sync_full"), syncs(&mut m, "sync_partial_ok"));
    assert_eq!(of_master, (0, 1));
    assert_eq!(all_locks(&mut r), all_locks(&mut m));
    assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"));
    assert_eq!(counter(&mut r), counter(&mut m));
}

/// Two nodes change places: the second one loads what the first one has, and becomes the master.
#[test]
fn what_a_new_master_grants_before_its_old_master_follows_it_reaches_that_one() {
    let (old, new) = (alone(), alone());
    let (mut o, mut n) = (old.connect(), new.connect());
    n.ok(&format!("REPLICAOF 127.0.0.1 {}", old.port()));
    wait_for_sync(&mut o, &mut n);
    n.ok("REPLICAOF NO ONE");
    wait_until("the old master has no replica", || {
        info_number(&mut o, "replication", "connected_slaves") == 0
    });
    change_locks(&mut n);
    follow_and_compare(&new, &old);
}

/// While a slot moves as a whole, the target listens to the source, which the source shows nowhere.
/// Valkey has this migration from version 9 on.
#[test]
fn what_is_granted_while_a_slot_moves_as_a_whole_moves_with_it() {
    let kind = Server::start().kind();
    if !kind.valkey || kind.major < 9 {
        eprintln!("skipped: this server moves no slot as a whole");
        return;
    }
    let options = Server::options();
    let (cluster, link) = Cluster::start_behind_a_link(3, 0, |_| node_options(&options));
    let (mut target, mut source) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
    let slot = source.call("CLUSTER KEYSLOT {c}").integer();
    let kept = granted(&source.call("LOCK.ACQUIRE {c}kept me 600000"));
    granted(&source.call("LOCK.ACQUIRE {c}lost me 600000"));
    // The target has the snapshot, and cannot ask for the end of the migration.
    link.hold_replies_once_asked("SNAPSHOT-EOF");
    let id = cluster.id(0);
    source.ok(&format!(
        "CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"
    ));
    let job = |field: &str| {
        let jobs = cluster.nodes[1].connect().ok("CLUSTER GETSLOTMIGRATIONS");
        jobs.items()[0].field(field).text().to_owned()
    };
    wait_until("the snapshot was sent", || job("state") == "replicating");
    wait_for_a_check(&mut source);
    let new = granted(&source.call("LOCK.ACQUIRE {c}new me 600000"));
    assert_eq!(source.call("LOCK.RELEASE {c}lost me"), Value::Integer(1));
    link.heal();
    wait_patiently("the slot has moved", || job("state") == "success");
    // Without a hold, the target would give the lock to anybody.
    for (key, fence) in [("kept", kept), ("new", new)] {
        let extended = target.call(&format!("LOCK.EXTEND {{c}}{key} me 600000"));
        assert_eq!(extended, Value::Integer(fence), "{key}");
    }
    assert_eq!(target.call("LOCK.INFO {c}lost"), Value::Null);
}
