//! Redis Cluster: locks follow their slots, and nobody is granted what moved away.

use redislock_testkit::cluster::{Cluster, begin_move, move_slot, node_options};
use redislock_testkit::lock::{counter, sole_holder, wait_for_waiters, waiters};
use redislock_testkit::{
    Connection, Options, Server, Value, granted, info_number, refused, wait_for_sync, wait_until,
};

/// The slot of `job`.
const JOB: u16 = 2906;

/// Failovers are not what these tests are about.
fn options() -> Options {
    node_options(&Server::options()).config("cluster-node-timeout 5000")
}

/// Two masters; the first has every slot up to 8191, `job` among them.
fn two_masters() -> (Server, Server) {
    let nodes = vec![options().start(), options().start()];
    let mut nodes = Cluster::form(2, nodes).nodes.into_iter();
    let two = (nodes.next(), nodes.next());
    (two.0.expect("a node"), two.1.expect("a node"))
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

/// While a slot moves, a request for a key that has not arrived yet, or has already left, is
/// redirected once (ASK).
#[test]
fn a_request_for_a_key_of_a_slot_on_the_move_is_sent_on_once() {
    let (one, two) = two_masters();
    let (mut a, mut b) = (one.connect(), two.connect());
    let fence = granted(&a.call("LOCK.ACQUIRE job me 600000"));
    begin_move(JOB, &mut a, &mut b);
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
    move_slot(JOB, &one, &two);
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
    let target = b.call("CLUSTER MYID").text().to_owned();
    b.ok(&format!("CLUSTER SETSLOT {JOB} NODE {target}"));
    b.ok("CLUSTER BUMPEPOCH");
    let told = waiter.receive();
    assert!(told.is_error(), "{told:?}");
    wait_until("nobody waits", || {
        a.call("LOCK.NODE").number("waiters") == 0
    });
}

/// The server unblocks the waiters within a second. Leases end in that second, too.
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
    // No node serves slot 0 any more.
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
    let nodes = (0..3).map(|_| options().start()).collect();
    let cluster = Cluster::form(2, nodes);
    let [one, two, replica] = &cluster.nodes[..] else {
        panic!("three nodes");
    };
    let (mut a, mut r) = (one.connect(), replica.connect());
    let master = cluster.id(0);
    let fence = granted(&a.call("LOCK.ACQUIRE job me 600000"));
    let mut waiter = one.connect();
    waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "job", 1);
    wait_for_sync(&mut a, &mut r);
    for c in [&mut a, &mut two.connect()] {
        wait_until("all nodes know the replica", || {
            let replicas = c.call(&format!("CLUSTER REPLICAS {master}"));
            replicas.items().len() == 1
        });
    }
    cluster.fail_over_to(2);
    assert!(waiter.receive().is_error());
    wait_until("it serves", || {
        r.call("LOCK.EXTEND job me 600000") == Value::Integer(fence)
    });
    assert_eq!(waiters(&mut r, "job"), 0);
}

#[test]
fn while_the_cluster_is_down_requests_are_refused() {
    let cluster = Cluster::start(1, 0, &Server::options());
    let mut c = cluster.nodes[0].connect();
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
    // LOCK.NODE always works.
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
    move_slot(JOB, &one, &two);
    granted(&b.call("LOCK.EXTEND job me 600000"));
    a.ok("DEL b");
    let removed = |c: &mut Connection| info_number(c, "lock", "lock_removed");
    wait_until("the other one is counted", || removed(&mut a) > 0);
    assert_eq!((removed(&mut a), removed(&mut b)), (1, 0));
    assert_eq!(one.log().matches("held lock").count(), 1, "{}", one.log());
}
