//! Redis Cluster: locks follow their slots, and nobody is granted what moved away.

use std::time::{Duration, Instant};

use crate::lock::{counter, sole_holder, wait_for_waiters, waiters};
use crate::resp::{Connection, Value, granted, refused};
use crate::server::{Server, free_port, info_number, wait_until};

/// The slot of `job`.
const JOB: u16 = 2906;

fn node() -> Server {
    Server::options()
        .config("cluster-enabled yes")
        .config("cluster-node-timeout 5000")
        .config(&format!("cluster-port {}", free_port()))
        .start()
}

fn id(c: &mut Connection) -> String {
    c.call("CLUSTER MYID").text().to_owned()
}

fn cluster_port(c: &mut Connection) -> String {
    c.call("CONFIG GET cluster-port")
        .field("cluster-port")
        .text()
        .to_owned()
}

#[track_caller]
fn wait_until_ready(c: &mut Connection, nodes: usize) {
    wait_until("the cluster is ready", || {
        let info = c.call("CLUSTER INFO").text().to_owned();
        info.contains("cluster_state:ok")
            && info.contains(&format!("cluster_known_nodes:{nodes}\r"))
    });
}

/// Two masters; the first has every slot up to 8191, `job` among them.
fn two_masters() -> (Server, Server) {
    let (one, two) = (node(), node());
    let (mut a, mut b) = (one.connect(), two.connect());
    a.ok("CLUSTER ADDSLOTSRANGE 0 8191");
    b.ok("CLUSTER ADDSLOTSRANGE 8192 16383");
    b.ok("CLUSTER SET-CONFIG-EPOCH 2");
    let bus = cluster_port(&mut b);
    a.ok(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", two.port()));
    wait_until_ready(&mut a, 2);
    wait_until_ready(&mut b, 2);
    (one, two)
}

/// Moves the slot of `job` with everything in it.
fn migrate(one: &Server, two: &Server) {
    let (mut a, mut b) = (one.connect(), two.connect());
    let (source, target) = (id(&mut a), id(&mut b));
    b.ok(&format!("CLUSTER SETSLOT {JOB} IMPORTING {source}"));
    a.ok(&format!("CLUSTER SETSLOT {JOB} MIGRATING {target}"));
    let keys = a.ok(&format!("CLUSTER GETKEYSINSLOT {JOB} 1000"));
    for key in keys.items().iter().map(Value::text) {
        a.ok(&format!("MIGRATE 127.0.0.1 {} {key} 0 10000", two.port()));
    }
    for c in [&mut b, &mut a] {
        c.ok(&format!("CLUSTER SETSLOT {JOB} NODE {target}"));
    }
}

#[test]
fn a_request_for_a_slot_of_another_node_is_redirected() {
    let (_one, two) = two_masters();
    let mut b = two.connect();
    for line in [
        "LOCK.ACQUIRE job me 60000",
        "LOCK.ACQUIRE job me 60000 BLOCK 0",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 60000",
        "LOCK.INFO job",
        "LOCK.MACQUIRE 1 job me 60000",
        "LOCK.MRELEASE 2 job {job}other me",
        "LOCK.MEXTEND 2 job {job}other me 60000",
        "LOCK.GUARD job me SET {job}data value",
        "LOCK.FORCE job",
    ] {
        refused(&b.call(line), "MOVED");
    }
}

/// A slot on the move: who asks for what has not come yet, or has gone already, is told where to
/// ask once.
#[test]
fn a_request_for_a_key_of_a_slot_on_the_move_is_sent_on_once() {
    let (one, two) = two_masters();
    let (mut a, mut b) = (one.connect(), two.connect());
    let fence = granted(&a.call("LOCK.ACQUIRE job me 600000"));
    let (source, target) = (id(&mut a), id(&mut b));
    b.ok(&format!("CLUSTER SETSLOT {JOB} IMPORTING {source}"));
    a.ok(&format!("CLUSTER SETSLOT {JOB} MIGRATING {target}"));
    // What is still here is served here, and what is not yet there is not granted there unasked.
    assert_eq!(a.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    refused(&b.call("LOCK.ACQUIRE {job}new me 600000"), "MOVED");
    for line in [
        "LOCK.ACQUIRE {job}new me 600000",
        "LOCK.ACQUIRE {job}new me 600000 BLOCK 0",
    ] {
        refused(&a.call(line), "ASK");
    }
    b.ok("ASKING");
    granted(&b.call("LOCK.ACQUIRE {job}new me 600000"));
    a.ok(&format!("MIGRATE 127.0.0.1 {} job 0 10000", two.port()));
    refused(&a.call("LOCK.EXTEND job me 600000"), "ASK");
    b.ok("ASKING");
    assert_eq!(b.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
}

#[test]
fn several_keys_share_a_slot() {
    let (one, _two) = two_masters();
    let mut a = one.connect();
    for line in [
        "LOCK.MACQUIRE 2 job other me 60000",
        "LOCK.MRELEASE 2 job other me",
        "LOCK.MEXTEND 2 job other me 60000",
    ] {
        refused(&a.call(line), "CROSSSLOT");
    }
    assert_eq!(a.call("DBSIZE"), Value::Integer(0));
    assert_eq!(
        a.call("LOCK.MACQUIRE 2 {job}a {job}b me 60000")
            .items()
            .len(),
        2
    );
    refused(
        &a.call("LOCK.GUARD job me SET elsewhere value"),
        "CROSSSLOT",
    );
}

#[test]
fn a_held_lock_moves_with_its_slot_and_its_waiters_come_again() {
    let (one, two) = two_masters();
    let (mut a, mut b) = (one.connect(), two.connect());
    let fence = granted(&a.call("LOCK.ACQUIRE job me 600000 OWNER label"));
    let mut waiter = one.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "job", 1);
    migrate(&one, &two);
    let told = waiter.receive();
    let class = told.error_class();
    assert!(["UNBLOCKED", "MOVED", "ASK"].contains(&class), "{told:?}");
    let holder = sole_holder(&mut b, "job");
    assert_eq!(holder.number("fence"), fence);
    assert_eq!(holder.field("owner").text(), "label");
    refused(&a.call("LOCK.EXTEND job me 600000"), "MOVED");
    assert_eq!(b.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
    let mut again = two.connect();
    again.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut b, "job", 1);
    b.ok("LOCK.RELEASE job me");
    assert!(granted(&again.receive()) > fence);
    assert_eq!(a.call("LOCK.NODE").number("waiters"), 0);
    assert_eq!(a.call("LOCK.NODE").number("locks"), 0);
}

#[test]
fn a_slot_that_is_taken_over_grants_nobody_at_the_old_node() {
    let (one, two) = two_masters();
    let (mut a, mut b) = (one.connect(), two.connect());
    granted(&a.call("LOCK.ACQUIRE job me 600000"));
    let mut waiter = one.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "job", 1);
    let target = id(&mut b);
    b.ok(&format!("CLUSTER SETSLOT {JOB} NODE {target}"));
    b.ok("CLUSTER BUMPEPOCH");
    let told = waiter.receive();
    assert!(told.is_error(), "{told:?}");
    wait_until("nobody waits", || {
        a.call("LOCK.NODE").number("waiters") == 0
    });
}

/// The server tells those who wait about it within a second. Leases end in that second, too.
#[test]
fn nobody_is_granted_anything_while_the_cluster_is_down() {
    let (one, _two) = two_masters();
    let mut a = one.connect();
    let mut waiting: Vec<Connection> = (0..100)
        .map(|n| {
            let ttl = 1000 + 20 * n;
            granted(&a.call(&format!("LOCK.ACQUIRE {{job}}{n} me {ttl}")));
            let mut waiter = one.connect();
            waiter.send(&format!("LOCK.ACQUIRE {{job}}{n} you 600000 BLOCK 0"));
            waiter
        })
        .collect();
    wait_until("the first lease is over", || {
        a.call("LOCK.INFO {job}0 me") == Value::Null
    });
    // Nobody serves the slot 0 any more.
    a.ok("CLUSTER DELSLOTS 0");
    wait_until("the cluster is down", || {
        let state = a.call("CLUSTER INFO").text().to_owned();
        state.contains("cluster_state:fail")
    });
    let last = counter(&mut a);
    let told: Vec<Value> = waiting.iter_mut().map(Connection::receive).collect();
    assert!(told.iter().any(Value::is_error), "{told:?}");
    for told in told.iter().filter(|told| !told.is_error()) {
        assert!(granted(told) <= last, "granted while the cluster is down");
    }
}

#[test]
fn a_failover_keeps_the_locks() {
    let (one, two) = two_masters();
    let mut a = one.connect();
    let replica = node();
    let mut r = replica.connect();
    let bus = cluster_port(&mut a);
    r.ok(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", one.port()));
    wait_until_ready(&mut r, 3);
    wait_until_ready(&mut two.connect(), 3);
    let master = id(&mut a);
    wait_until("it replicates", || {
        !r.call(&format!("CLUSTER REPLICATE {master}")).is_error()
    });
    let fence = granted(&a.call("LOCK.ACQUIRE job me 600000"));
    let mut waiter = one.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "job", 1);
    crate::replication::wait_for_sync(&mut a, &mut r);
    for c in [&mut a, &mut two.connect()] {
        wait_until("everybody knows the replica", || {
            let replicas = c.call(&format!("CLUSTER REPLICAS {master}"));
            replicas.items().len() == 1
        });
    }
    let is_master = |r: &mut Connection| r.call("LOCK.NODE").field("role").text() == "master";
    while !is_master(&mut r) {
        // A busy machine may let the server's own five seconds for it pass: then it is asked again.
        r.call("CLUSTER FAILOVER");
        let asked = Instant::now();
        while !is_master(&mut r) && asked.elapsed() < Duration::from_secs(6) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(waiter.receive().is_error());
    wait_until("it serves", || {
        r.call("LOCK.EXTEND job me 600000") == Value::Integer(fence)
    });
    assert_eq!(waiters(&mut r, "job"), 0);
}

#[test]
fn while_the_cluster_is_down_requests_are_refused() {
    let server = node();
    let mut c = server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until_ready(&mut c, 1);
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("CLUSTER DELSLOTS 0");
    wait_until("the cluster is down", || {
        let state = c.call("CLUSTER INFO").text().to_owned();
        state.contains("cluster_state:fail")
    });
    for line in [
        "LOCK.ACQUIRE {job}other me 600000",
        "LOCK.ACQUIRE job you 600000 BLOCK 0",
        "LOCK.EXTEND job me 600000",
        "LOCK.RELEASE job me",
        "LOCK.MACQUIRE 1 {job}other me 600000",
    ] {
        refused(&c.call(line), "CLUSTERDOWN");
    }
    // A node always tells about itself.
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
}

/// A lock that moves with its slot is not lost.
#[test]
fn a_lock_that_moves_away_is_not_counted_as_removed() {
    let (one, two) = two_masters();
    let (mut a, mut b) = (one.connect(), two.connect());
    granted(&a.call("LOCK.ACQUIRE job me 600000"));
    granted(&a.call("LOCK.ACQUIRE {job}other me 600000"));
    // Its slot stays.
    granted(&a.call("LOCK.ACQUIRE b me 600000"));
    migrate(&one, &two);
    granted(&b.call("LOCK.EXTEND job me 600000"));
    a.ok("DEL b");
    let removed = |c: &mut Connection| info_number(c, "lock", "lock_removed");
    wait_until("the other one is counted", || removed(&mut a) > 0);
    assert_eq!((removed(&mut a), removed(&mut b)), (1, 0));
    assert_eq!(one.log().matches("held lock").count(), 1, "{}", one.log());
}
