//! A Redis Cluster as the one place of the locks: slots move and masters fail while a lock is held
//! and waited for.

use std::time::Duration;

use redislock_client::{Error, Guard, Redlock, Released};

use crate::contention::waiters;
use crate::history::Contention;
use crate::server::{Server, free_port};
use crate::{NODE_TIMEOUT, is_busy, until};

pub(crate) const MASTERS: usize = 3;
/// The slot of `job`: the first master's.
const JOB: &str = "2906";
/// Renewed every few seconds.
const LEASE: Duration = Duration::from_secs(8);
/// Longer than any failover here.
const LONG: Duration = Duration::from_secs(60);

/// Masters first, then their replicas in the same order.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) async fn start(nodes: usize, options: &[&str]) -> Self {
        let start = |_| {
            let bus = format!("cluster-port {}", free_port());
            let mut all = vec![
                "cluster-enabled yes",
                "cluster-node-timeout 1000",
                // However long it has not heard of its master, a replica may be elected.
                "cluster-replica-validity-factor 0",
                "cluster-require-full-coverage no",
                "repl-diskless-sync-delay 0",
                &bus,
            ];
            all.extend(options);
            Server::start(&all)
        };
        let cluster = Self {
            nodes: (0..nodes).map(start).collect(),
        };
        cluster.form().await;
        cluster
    }

    async fn form(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            let _: () = node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
        }
        let slots = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];
        for (node, [first, last]) in self.nodes.iter().zip(slots) {
            let _: () = node.run(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        for node in &self.nodes[1..] {
            let bus: Vec<String> = node.run(&["CONFIG", "GET", "cluster-port"]);
            let port = node.port.to_string();
            let _: () = self.nodes[0].run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
        }
        until("everybody knows everybody", || {
            self.nodes.iter().all(|node| {
                let nodes: String = node.run(&["CLUSTER", "NODES"]);
                nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake")
            })
        })
        .await;
        for (place, replica) in self.nodes[MASTERS..].iter().enumerate() {
            let master: String = self.nodes[place].run(&["CLUSTER", "MYID"]);
            until("it replicates", || {
                replica
                    .try_run::<()>(&["CLUSTER", "REPLICATE", &master])
                    .is_ok()
            })
            .await;
        }
        until("the cluster is ready", || {
            self.nodes.iter().all(|node| {
                let nodes: String = node.run(&["CLUSTER", "NODES"]);
                let info: String = node.run(&["CLUSTER", "INFO"]);
                nodes.matches("slave").count() == self.nodes.len() - MASTERS
                    && info.contains("cluster_state:ok")
            })
        })
        .await;
        for replica in &self.nodes[MASTERS..] {
            until("it is in step", || {
                let info: String = replica.run(&["INFO", "replication"]);
                info.contains("master_link_status:up")
            })
            .await;
        }
        until("no node is quarantined", || {
            !self.nodes[..MASTERS].iter().any(is_quarantined)
        })
        .await;
    }

    /// Patient enough for redirections on a busy machine.
    pub(crate) async fn client(&self) -> Redlock {
        self.client_with(Duration::from_secs(2)).await
    }

    async fn client_with(&self, node_timeout: Duration) -> Redlock {
        Redlock::builder()
            .cluster(self.nodes.iter().map(Server::url))
            .node_timeout(node_timeout)
            .connect()
            .await
            .unwrap()
    }

    /// Moves the slot of `job` key by key, as tools do.
    fn move_the_slot(&self, from: usize, to: usize) {
        let id = |place: usize| self.nodes[place].run::<String>(&["CLUSTER", "MYID"]);
        let (source, target) = (id(from), id(to));
        let set = |place: usize, words: [&str; 2]| {
            let _: () = self.nodes[place].run(&["CLUSTER", "SETSLOT", JOB, words[0], words[1]]);
        };
        set(to, ["IMPORTING", &source]);
        set(from, ["MIGRATING", &target]);
        let port = self.nodes[to].port.to_string();
        loop {
            let keys: Vec<String> = self.nodes[from].run(&["CLUSTER", "GETKEYSINSLOT", JOB, "10"]);
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let words = ["MIGRATE", "127.0.0.1", &port, &key, "0", "10000"];
                let _: String = self.nodes[from].run(&words);
            }
        }
        set(to, ["NODE", &target]);
        set(from, ["NODE", &target]);
    }

    /// Has the replica take over in agreement with its master.
    async fn fail_over_to(&self, replica: usize) {
        until("the replica is the master", || {
            // Refused while the nodes do not all know of the last change yet.
            let _ = self.nodes[replica].try_run::<()>(&["CLUSTER", "FAILOVER"]);
            std::thread::sleep(Duration::from_millis(200));
            self.is_master(replica)
        })
        .await;
    }

    fn is_master(&self, place: usize) -> bool {
        let info: String = self.nodes[place].run(&["INFO", "replication"]);
        info.contains("role:master")
    }
}

fn is_quarantined(node: &Server) -> bool {
    let reply: redis::Value = node.run(&["LOCK.NODE"]);
    let redis::Value::Array(items) = reply else {
        panic!("{reply:?}");
    };
    let name = redis::Value::BulkString(b"quarantine".to_vec());
    let at = items.iter().position(|item| *item == name).unwrap();
    items[at + 1] != redis::Value::Int(0)
}

#[tokio::test]
async fn a_cluster_is_one_node_and_keys_find_their_slots() {
    let cluster = Cluster::start(MASTERS, &[]).await;
    let client = cluster.client().await;
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

/// A guard that was renewed since, and then gives way to those who waited.
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
    let cluster = Cluster::start(MASTERS, &[]).await;
    let (one, other) = (cluster.client().await, cluster.client().await);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let guard = one.lock("job").ttl(LEASE).acquire().await.unwrap();
        let waiting = Contention::start(vec![
            other.lock("job").ttl(LEASE),
            one.lock("job").ttl(LEASE),
            other.lock("job").ttl(LEASE),
        ]);
        until("three wait", || waiters(&cluster.nodes[from], "job") == 3).await;
        cluster.move_the_slot(from, to);
        is_still_held(guard).await;
        waiting.go_on(6).await;
        waiting.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_both_agree_on_takes_holder_and_waiters_along() {
    let cluster = Cluster::start(2 * MASTERS, &[]).await;
    let (one, other) = (cluster.client().await, cluster.client().await);
    let guard = one.lock("job").ttl(LONG).acquire().await.unwrap();
    let waiting = Contention::start(vec![
        other.lock("job").ttl(LEASE),
        one.lock("job").ttl(LEASE),
    ]);
    cluster.fail_over_to(MASTERS).await;
    let fence = guard.fence();
    assert!(guard.extend().await.is_ok(), "the new master knows it");
    assert_eq!(guard.fence(), fence);
    assert_eq!(guard.release().await, Released::WasHeld);
    waiting.go_on(6).await;
    waiting.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_killed_lets_nobody_overlap_over_its_failover() {
    let mut cluster = Cluster::start(2 * MASTERS, &["lock.quarantine 3000"]).await;
    let clients = [
        cluster.client_with(NODE_TIMEOUT).await,
        cluster.client_with(NODE_TIMEOUT).await,
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
async fn the_others_serve(cluster: &Cluster, client: &Redlock, held: Guard) {
    let error = client
        .lock("job")
        .ttl(LEASE)
        .try_acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let lock = client.lock("elsewhere").ttl(LONG);
    for _ in 0..10 {
        assert!(held.extend().await.is_ok());
        assert!(is_busy(lock.try_acquire().await));
    }
    assert_eq!(held.release().await, Released::WasHeld);
    // A client that comes while it is so, too.
    let late = cluster.client().await.lock("elsewhere").ttl(LONG);
    for lock in [lock, late] {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_dead_costs_the_locks_of_the_others_nothing() {
    let mut cluster = Cluster::start(MASTERS, &[]).await;
    let client = cluster.client().await;
    let held = client.lock("elsewhere").ttl(LONG).acquire().await.unwrap();
    cluster.nodes[0].kill();
    the_others_serve(&cluster, &client, held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_stands_still_costs_the_locks_of_the_others_nothing() {
    let cluster = Cluster::start(MASTERS, &[]).await;
    let client = cluster.client().await;
    let held = client.lock("elsewhere").ttl(LONG).acquire().await.unwrap();
    cluster.nodes[0].stop();
    the_others_serve(&cluster, &client, held).await;
}
