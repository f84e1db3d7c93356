//! A Redis Cluster as the one place of the locks: slots move and masters fail while a lock is held
//! and waited for.

use std::time::Duration;

use redislock_client::{Error, Guard, Redlock, Released};
use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::{Options, Server};

use crate::contention::waiters;
use crate::history::Contention;
use crate::{NODE_TIMEOUT, acquire_in_background, is_busy, until};

/// The slot of `job`: the first master's.
pub(crate) const JOB: u16 = 2906;
/// Renewed every few seconds.
const LEASE: Duration = Duration::from_secs(8);
/// Longer than any failover here.
const LONG: Duration = Duration::from_secs(60);

/// Replicas are elected soon, and the other masters serve while one is down.
pub(crate) fn options() -> Options {
    Server::options()
        .config("cluster-node-timeout 1000")
        .config("cluster-require-full-coverage no")
}

/// Patient enough for redirections on a busy machine.
pub(crate) async fn client(cluster: &Cluster) -> Redlock {
    client_with(cluster, Duration::from_secs(2)).await
}

async fn client_with(cluster: &Cluster, node_timeout: Duration) -> Redlock {
    Redlock::builder()
        .cluster(cluster.nodes.iter().map(Server::url))
        .node_timeout(node_timeout)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_cluster_is_one_node_and_keys_find_their_slots() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    for key in 0..12 {
        let lock = client.lock(format!("key-{key}")).ttl(LEASE);
        let guard = lock.acquire().await.unwrap();
        assert!(is_busy(lock.try_acquire().await));
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap().release().await }
        });
        guard.extend().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
        assert_eq!(waiter.await.unwrap(), Released::WasHeld);
    }
    assert!(
        cluster
            .nodes
            .iter()
            .all(|server| server.calls("lock.acquire") > 0),
        "every slot range was used"
    );
    let both = client
        .lock_all(["{same}a", "{same}b"])
        .ttl(LEASE)
        .acquire()
        .await
        .unwrap();
    assert_eq!(both.release().await, Released::WasHeld);
}

/// Only a release that was sent twice may find nothing without a loss.
#[tokio::test]
async fn a_lock_that_was_forced_away_is_reported_lost_by_its_release() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    // One for each of two masters.
    for (key, master) in [("job", 0), ("elsewhere", 1)] {
        let lock = client.lock(key).ttl(LONG);
        let force = || cluster.nodes[master].run::<u64>(&["LOCK.FORCE", key]);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(force(), 1);
        assert_eq!(guard.release().await, Released::WasLost);
        let ran = lock.run(async |_| force()).await;
        assert!(matches!(ran, Err(Error::Lost { .. })), "{ran:?}");
    }
}

/// A guard that was renewed since, and is then released to the waiters.
async fn is_still_held(guard: Guard) {
    let before = guard.valid_until();
    until("it is renewed where it is now", || {
        assert!(guard.is_valid(), "the guard says lost");
        guard.valid_until() > before
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_takes_holder_and_waiters_along() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let (one, other) = (client(&cluster).await, client(&cluster).await);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let guard = one.lock("job").ttl(LEASE).acquire().await.unwrap();
        let waiting = Contention::start(vec![
            other.lock("job").ttl(LEASE),
            one.lock("job").ttl(LEASE),
            other.lock("job").ttl(LEASE),
        ]);
        until("three wait", || waiters(&cluster.nodes[from], "job") == 3).await;
        cluster.move_slot(JOB, from, to);
        is_still_held(guard).await;
        waiting.go_on(6).await;
        waiting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_both_agree_on_takes_holder_and_waiters_along() {
    let cluster = Cluster::start(MASTERS, MASTERS, &options());
    let (one, other) = (client(&cluster).await, client(&cluster).await);
    let guard = one.lock("job").ttl(LONG).acquire().await.unwrap();
    let waiting = Contention::start(vec![
        other.lock("job").ttl(LEASE),
        one.lock("job").ttl(LEASE),
    ]);
    cluster.fail_over_to(MASTERS);
    let fence = guard.fence();
    assert!(guard.extend().await.is_ok(), "the new master knows it");
    assert_eq!(guard.fence(), fence);
    assert_eq!(guard.release().await, Released::WasHeld);
    waiting.go_on(6).await;
    waiting.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_killed_lets_nobody_overlap_over_its_failover() {
    let mut cluster = Cluster::start(MASTERS, MASTERS, &options().config("lock.quarantine 3000"));
    let clients = [
        client_with(&cluster, NODE_TIMEOUT).await,
        client_with(&cluster, NODE_TIMEOUT).await,
    ];
    let lock = |client: &Redlock| client.lock("job").ttl(NODE_TIMEOUT * 4).wait(LONG);
    let load = Contention::start(clients.iter().chain(&clients).map(lock).collect());
    load.go_on(20).await;
    cluster.nodes[0].kill();
    until("the replica is the master", || cluster.is_master(MASTERS)).await;
    load.go_on(20).await;
    load.end().await;
}

/// `elsewhere` is the second master's; nobody takes over from the first one.
async fn the_others_serve(cluster: &Cluster, early: &Redlock, held: Guard) {
    let error = early
        .lock("job")
        .ttl(LEASE)
        .try_acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let lock = early.lock("elsewhere").ttl(LONG);
    for _ in 0..10 {
        assert!(held.extend().await.is_ok());
        assert!(is_busy(lock.try_acquire().await));
    }
    assert_eq!(held.release().await, Released::WasHeld);
    // A client that comes while it is so, too.
    let late = client(cluster).await.lock("elsewhere").ttl(LONG);
    for lock in [lock, late] {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_dead_costs_the_locks_of_the_others_nothing() {
    let mut cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    let held = client.lock("elsewhere").ttl(LONG).acquire().await.unwrap();
    cluster.nodes[0].kill();
    the_others_serve(&cluster, &client, held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_costs_the_locks_of_the_others_nothing() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    let held = client.lock("elsewhere").ttl(LONG).acquire().await.unwrap();
    cluster.nodes[0].pause();
    the_others_serve(&cluster, &client, held).await;
}

/// One connection to it is opened in vain. If each was, they would take much longer than this test
/// waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_does_not_delay_connections_to_the_others() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = Redlock::builder()
        .cluster(cluster.nodes.iter().map(Server::url))
        .connect_timeout(Duration::from_secs(12))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("elsewhere").ttl(LONG * 5);
    let guard = guard.acquire().await.unwrap();
    cluster.nodes[0].pause();
    let add = redislock_client::redis::cmd("INCR");
    let add = add.clone().arg("{elsewhere}n").to_owned();
    let commands = async {
        for _ in 0..20 {
            guard.command::<u64>(&add).await.unwrap();
            // Longer than a connection is trusted without a reply.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(45), commands).await;
    assert!(done.is_ok(), "each command waits for the first master");
}

/// A master that does not answer keeps its connections open, so nothing else shows that another one
/// has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_is_left_for_the_one_that_takes_over() {
    let cluster = Cluster::start(MASTERS, MASTERS, &options());
    let client = client(&cluster).await;
    let lock = client.lock("job").ttl(LEASE);
    let held = lock.clone().renew(false).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("it waits", || waiters(&cluster.nodes[0], "job") == 1).await;
    cluster.nodes[0].pause();
    until("the replica is the master", || cluster.is_master(MASTERS)).await;
    drop(held);
    let guard = lock.wait(LONG).acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    let waited = tokio::time::timeout(LONG, waiting).await;
    waited.expect("the waiter goes to the new master").unwrap();
}

/// All processes have been met by then; that the connection leads to the wrong one shows only in
/// who answers on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_takes_over_again_is_found() {
    let cluster = Cluster::start(MASTERS, MASTERS, &options());
    let client = client_with(&cluster, NODE_TIMEOUT).await;
    let lock = client.lock("job").ttl(LEASE).wait(LONG);
    let pairs = [(0, MASTERS), (MASTERS, 0), (0, MASTERS)];
    for (master, replica) in pairs {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
        cluster.nodes[master].pause();
        until("the replica is the master", || cluster.is_master(replica)).await;
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
        cluster.nodes[master].resume();
        until("the other one is its replica", || {
            let info: String = cluster.nodes[master].run(&["INFO", "replication"]);
            info.contains("master_link_status:up")
        })
        .await;
    }
}

/// A master that is cut off from the others answers LOCK.NODE, and says that the cluster is down.
/// Nothing but this shows on its connections that another one has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_cut_off_is_left_for_the_one_that_takes_over() {
    let cluster = Cluster::start(MASTERS, MASTERS, &options());
    // So patient that no master seems to be silent because the machine is busy: this would show it,
    // too.
    let client = client_with(&cluster, Duration::from_secs(5)).await;
    let lock = client.lock("job").ttl(LONG).wait(LONG);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    let mut old = cluster.nodes[0].connect();
    // It does not serve alone.
    old.ok("CONFIG SET cluster-require-full-coverage yes");
    for other in 1..cluster.nodes.len() {
        old.ok(&format!("CLUSTER FORGET {}", cluster.id(other)));
    }
    let mut new = cluster.nodes[MASTERS].connect();
    new.ok("CLUSTER FAILOVER TAKEOVER");
    until("the replica is the master", || cluster.is_master(MASTERS)).await;
    until("the old one says that the cluster is down", || {
        old.call("LOCK.NODE").field("refusal").text() == "cluster"
    })
    .await;
    let guard = lock.acquire().await.unwrap();
    assert!(!cluster.nodes[MASTERS].is_free("job"));
    assert_eq!(guard.release().await, Released::WasHeld);
}

/// A server that was removed from the cluster still runs, and is still in the list of nodes. It
/// accepts connections and says that nobody serves the slot.
#[tokio::test]
async fn a_listed_server_that_left_the_cluster_is_not_asked_again() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let outside = options().config("cluster-enabled yes").start();
    let urls = std::iter::once(&outside).chain(&cluster.nodes);
    let client = Redlock::builder()
        .cluster(urls.map(Server::url))
        .node_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("job").ttl(LONG).acquire().await.unwrap();
    let add = redis::cmd("RPUSH").arg("{job}list").arg("x").to_owned();
    // The first one may find out that the server serves nothing.
    let mut length = u64::from(guard.command::<u64>(&add).await.is_ok());
    let asked = outside.calls("lock.guard");
    for _ in 0..5 {
        length += 1;
        assert_eq!(guard.command::<u64>(&add).await.unwrap(), length);
    }
    assert_eq!(outside.calls("lock.guard"), asked, "it was asked again");
    let waiter = acquire_in_background(&client.lock("job").ttl(LONG).wait(LONG));
    let mut master = cluster.nodes[0].connect();
    until("the request waits at the master", || {
        redislock_testkit::lock::waiters(&mut master, "job") == 1
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(next.release().await, Released::WasHeld);
}
