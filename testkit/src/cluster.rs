//! A Redis Cluster of real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::load::Route;
use crate::{Connection, Options, Proxy, Server, Value, free_port, wait_for_sync, wait_patiently};

/// The usual number of masters: the fewest that can agree on a failover.
pub const MASTERS: usize = 3;
const SLOTS: usize = 16384;
/// A replica that was asked to take over gives up after five seconds.
const FAILOVER: Duration = Duration::from_secs(6);

/// Masters first, then their replicas in the same order. The masters share the slots equally.
pub struct Cluster {
    /// The servers.
    pub nodes: Vec<Server>,
    masters: usize,
}

/// What makes a server a node of a cluster. Elections are quick, and replicas stay where they are.
pub fn node_options(options: &Options) -> Options {
    let bus = format!("cluster-port {}", free_port());
    options.clone().configs([
        "cluster-enabled yes",
        "cluster-node-timeout 2000",
        // A replica may be elected, however long it has had no contact with its master.
        "cluster-replica-validity-factor 0",
        "cluster-migration-barrier 9",
        bus.as_str(),
    ])
}

impl Cluster {
    /// This many masters and replicas, all with these options and [`node_options`].
    pub fn start(masters: usize, replicas: usize, options: &Options) -> Cluster {
        let nodes = (0..masters + replicas).map(|_| node_options(options).start());
        Cluster::form(masters, nodes.collect())
    }

    /// The same with options for each node, and a link: all others reach the first master's data
    /// port through it.
    pub fn start_behind_a_link(
        masters: usize,
        replicas: usize,
        options: impl Fn(usize) -> Options,
    ) -> (Cluster, Proxy) {
        let link = Proxy::new();
        let announced = format!("cluster-announce-port {}", link.port());
        let mut nodes = vec![options(0).config(&announced).start()];
        link.lead_to(nodes[0].port());
        nodes.extend((1..masters + replicas).map(|node| options(node).start()));
        (Cluster::form(masters, nodes), link)
    }

    /// Joins servers with [`node_options`]; the first ones are masters.
    pub fn form(masters: usize, nodes: Vec<Server>) -> Cluster {
        let cluster = Cluster { nodes, masters };
        let mut connections: Vec<Connection> = cluster.nodes.iter().map(Server::connect).collect();
        cluster.share_slots(&mut connections);
        cluster.meet(&mut connections);
        cluster.replicate(&mut connections);
        for master in &mut connections[..masters] {
            wait_patiently("the quarantine is over", || {
                master.call("LOCK.NODE").number("quarantine") == 0
            });
        }
        cluster
    }

    fn share_slots(&self, connections: &mut [Connection]) {
        for (n, c) in connections.iter_mut().enumerate() {
            c.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
        }
        let first = |n: usize| SLOTS * n / self.masters;
        for (n, c) in connections[..self.masters].iter_mut().enumerate() {
            let (first, last) = (first(n), first(n + 1) - 1);
            c.ok(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        }
    }

    fn meet(&self, connections: &mut [Connection]) {
        let (first, others) = connections.split_first_mut().expect("a first node");
        for (other, node) in others.iter_mut().zip(&self.nodes[1..]) {
            let bus = ["cluster-announce-bus-port", "cluster-port"]
                .map(|name| other.call(&format!("CONFIG GET {name}")).field(name));
            let bus = bus.iter().map(Value::text).find(|port| *port != "0");
            let bus = bus.expect("a port of the bus");
            first.ok(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()));
        }
        for c in connections {
            wait_patiently("all nodes know each other", || {
                let nodes = c.call("CLUSTER NODES").text().to_owned();
                nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake")
            });
        }
    }

    fn replicate(&self, connections: &mut [Connection]) {
        let replicas = self.nodes.len() - self.masters;
        for n in 0..replicas {
            let master = id(&mut connections[n % self.masters]);
            let replica = &mut connections[self.masters + n];
            wait_patiently("it replicates", || {
                let reply = replica.call(&format!("CLUSTER REPLICATE {master}"));
                !reply.is_error()
            });
        }
        for c in connections.iter_mut() {
            // Without full coverage, a node is ok before it knows who has every slot.
            wait_patiently("the cluster is ready", || {
                let nodes = c.call("CLUSTER NODES").text().to_owned();
                let state = c.call("CLUSTER INFO").text().to_owned();
                nodes.matches("slave").count() == replicas
                    && state.contains("cluster_state:ok")
                    && state.contains(&format!("cluster_slots_ok:{SLOTS}\r"))
            });
        }
        for n in 0..replicas {
            let (masters, replicas) = connections.split_at_mut(self.masters);
            wait_for_sync(&mut masters[n % self.masters], &mut replicas[n]);
        }
    }

    /// The name that the cluster has for this node.
    pub fn id(&self, node: usize) -> String {
        id(&mut self.nodes[node].connect())
    }

    /// Whether this node is a master.
    pub fn is_master(&self, node: usize) -> bool {
        let node = self.nodes[node].connect().call("LOCK.NODE");
        node.field("role").text() == "master"
    }

    /// Any node: it redirects to the right one.
    pub fn route(&self) -> Route {
        let ports: Vec<u16> = self.nodes.iter().map(Server::port).collect();
        let next = AtomicUsize::new(0);
        Arc::new(move |_| {
            let next = next.fetch_add(1, Ordering::Relaxed);
            ports.get(next % ports.len()).copied()
        })
    }

    /// Makes the replica take over in agreement with its master.
    pub fn fail_over_to(&self, replica: usize) {
        let mut r = self.nodes[replica].connect();
        wait_patiently("the replica is the master", || {
            // It is refused until all nodes know the last change.
            if r.call("CLUSTER FAILOVER").is_error() {
                std::thread::sleep(Duration::from_millis(100));
                return false;
            }
            // On a busy machine, the server may run out of time for it. Then asking again starts it
            // again.
            let asked = Instant::now();
            while !self.is_master(replica) && asked.elapsed() < FAILOVER {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.is_master(replica)
        });
    }

    /// Moves the slot key by key, as all tools do up to Valkey 8.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        move_slot(slot, &self.nodes[from], &self.nodes[to]);
    }
}

fn id(c: &mut Connection) -> String {
    c.call("CLUSTER MYID").text().to_owned()
}

/// Announces that the slot is about to move. Keys that are no longer on the source are redirected
/// to the target.
pub fn begin_move(slot: u16, from: &mut Connection, to: &mut Connection) {
    let (source, target) = (id(from), id(to));
    to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
}

/// Announces that the slot has moved.
pub fn end_move(slot: u16, from: &mut Connection, to: &mut Connection) {
    let target = id(to);
    to.ok(&format!("CLUSTER SETSLOT {slot} NODE {target}"));
    from.ok(&format!("CLUSTER SETSLOT {slot} NODE {target}"));
}

/// Moves the slot key by key, as all tools do up to Valkey 8.
pub fn move_slot(slot: u16, from: &Server, to: &Server) {
    let (mut a, mut b) = (from.connect(), to.connect());
    begin_move(slot, &mut a, &mut b);
    loop {
        let keys = a.ok(&format!("CLUSTER GETKEYSINSLOT {slot} 10"));
        if keys.items().is_empty() {
            break;
        }
        for key in keys.items().iter().map(Value::text) {
            a.ok(&format!("MIGRATE 127.0.0.1 {} {key} 0 10000", to.port()));
        }
    }
    end_move(slot, &mut a, &mut b);
}
