//! A cluster of three masters with two replicas each.

use std::io;
use std::time::Duration;

use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::{Connection, Options, Server, Value, wait_patiently};

use super::deployment::{Deployment, is_master};
use super::name_of;
use super::plan::Kind;
use super::worker::Reach;

const REPLICAS: usize = 2;

/// Described at the top of this file.
pub struct Clustered {
    cluster: Cluster,
    /// The node that the current fault affects.
    hit: Option<usize>,
    /// Whether the slot of the current fault has moved.
    has_moved: bool,
    problems: Vec<String>,
}

impl Clustered {
    /// All nodes have these options.
    pub fn start(options: Options) -> Self {
        let options = options.config("cluster-allow-replica-migration no");
        Self {
            cluster: Cluster::start(MASTERS, MASTERS * REPLICAS, &options),
            hit: None,
            has_moved: false,
            problems: Vec::new(),
        }
    }

    /// The nodes of the shard that this node belongs to: one master, and its replicas.
    fn shard_of(node: usize) -> impl Iterator<Item = usize> {
        (0..=REPLICAS).map(move |at| node % MASTERS + at * MASTERS)
    }

    fn masters(&self) -> Vec<usize> {
        let masters = (0..MASTERS).filter_map(|shard| {
            let mut nodes = Self::shard_of(shard);
            nodes.find(|at| is_master(&self.cluster.nodes[*at]))
        });
        masters.collect()
    }

    fn slot(&self, lock: &str) -> io::Result<i64> {
        let mut any = self.cluster.nodes[0].try_connect()?;
        Ok(any.try_call(&["CLUSTER", "KEYSLOT", lock])?.integer())
    }

    /// The master that has this lock now. None if there is none during an election.
    fn owner(&self, lock: usize) -> Option<usize> {
        let slot = self.slot(&name_of(lock)).ok()?;
        let mut masters = self.masters().into_iter();
        masters.find(|at| self.owns(*at, slot).unwrap_or(false))
    }

    fn wait_until_ready(&self) {
        wait_patiently("the cluster is ready", || {
            self.cluster.nodes.iter().all(|node| {
                let info = node.try_run::<String>(&["CLUSTER", "INFO"]);
                info.is_ok_and(|info| info.contains("cluster_state:ok"))
            })
        });
    }

    /// Asks a replica to take over, and returns it. Each refuses until all nodes know the last
    /// change.
    fn hand_over(&self, master: usize) -> Option<usize> {
        let mut replicas = Self::shard_of(master).filter(|at| *at != master);
        replicas.find(|at| {
            let asked = self.cluster.nodes[*at].try_run::<Value>(&["CLUSTER", "FAILOVER"]);
            asked.is_ok()
        })
    }

    /// Moves the slot of a lock to the next shard while the clients continue. Whether it moved.
    fn move_slot(&mut self, lock: &str) -> bool {
        self.wait_until_ready();
        let mut last = String::new();
        for _ in 0..50 {
            match self.try_move(lock) {
                Ok(()) => return true,
                Err(error) => last = error.to_string(),
            }
            if last.contains("BUSYKEY") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.problems.push(format!("{lock} does not move: {last}"));
        false
    }

    fn try_move(&self, lock: &str) -> io::Result<()> {
        let slot = self.slot(lock)?;
        let masters = self.masters();
        let owns = |at: &usize| self.owns(*at, slot).unwrap_or(false);
        let source = masters.iter().position(owns);
        let source = source.ok_or_else(|| io::Error::other("nobody has the slot"))?;
        let target = masters[(source + 1) % masters.len()];
        let source = masters[source];
        self.migrate(&slot.to_string(), source, target)
    }

    fn owns(&self, at: usize, slot: i64) -> io::Result<bool> {
        let server = &self.cluster.nodes[at];
        let ranges = server.try_connect()?.try_call(&["CLUSTER", "SLOTS"])?;
        let port = i64::from(server.port());
        Ok(ranges.items().iter().any(|range| {
            let range = range.items();
            let master = range[2].items();
            range[0].integer() <= slot && slot <= range[1].integer() && master[1].integer() == port
        }))
    }

    fn migrate(&self, slot: &str, source: usize, target: usize) -> io::Result<()> {
        let port = self.cluster.nodes[target].port().to_string();
        let mut from = self.cluster.nodes[source].try_connect()?;
        let mut to = self.cluster.nodes[target].try_connect()?;
        let id = |c: &mut Connection| -> io::Result<String> {
            Ok(c.try_call(&["CLUSTER", "MYID"])?.text().to_owned())
        };
        let (here, there) = (id(&mut from)?, id(&mut to)?);
        to.try_call(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &here])?;
        from.try_call(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &there])?;
        loop {
            let keys = from.try_call(&["CLUSTER", "GETKEYSINSLOT", slot, "10"])?;
            if keys.items().is_empty() {
                break;
            }
            for key in keys.items().iter().map(Value::text) {
                from.try_call(&["MIGRATE", "127.0.0.1", &port, key, "0", "10000"])?;
            }
        }
        to.try_call(&["CLUSTER", "SETSLOT", slot, "NODE", &there])?;
        from.try_call(&["CLUSTER", "SETSLOT", slot, "NODE", &there])?;
        Ok(())
    }
}

impl Deployment for Clustered {
    fn reach(&self, _worker: usize) -> Reach {
        Reach::Cluster(self.cluster.nodes.iter().map(Server::url).collect())
    }

    fn begin(&mut self, kind: &Kind) {
        self.hit = match *kind {
            Kind::KillMaster { lock } | Kind::PauseMaster { lock } | Kind::HandOver { lock } => {
                self.owner(lock)
            }
            _ => None,
        };
        match (kind, self.hit) {
            (Kind::KillMaster { .. }, Some(at)) => self.cluster.nodes[at].kill(),
            (Kind::PauseMaster { .. }, Some(at)) => self.cluster.nodes[at].pause(),
            (Kind::HandOver { .. }, Some(at)) => self.hit = self.hand_over(at),
            (Kind::MoveSlot { lock }, _) => self.has_moved = self.move_slot(&name_of(*lock)),
            _ => {}
        }
    }

    fn end(&mut self, kind: &Kind) -> bool {
        match (kind, self.hit.take()) {
            (Kind::KillMaster { .. }, Some(at)) => self.cluster.nodes[at].start_again(),
            (Kind::PauseMaster { .. }, Some(at)) => self.cluster.nodes[at].resume(),
            (Kind::HandOver { .. }, Some(at)) => return is_master(&self.cluster.nodes[at]),
            (Kind::MoveSlot { .. }, _) => return self.has_moved,
            _ => return false,
        }
        true
    }

    fn heal(&mut self) {
        self.wait_until_ready();
    }

    fn servers(&mut self) -> Vec<&mut Server> {
        self.cluster.nodes.iter_mut().collect()
    }

    fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }
}
