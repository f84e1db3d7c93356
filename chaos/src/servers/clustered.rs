//! A cluster of three masters with two replicas each.

use std::io;
use std::time::Duration;

use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::{Connection, Options, Server, Value, wait_patiently};

use super::deployment::{Deployment, is_master};
use super::plan::Kind;
use super::worker::Reach;

const REPLICAS: usize = 2;

/// Described at the top of this file.
pub struct Clustered {
    cluster: Cluster,
    hit: Option<usize>,
    problems: Vec<String>,
}

impl Clustered {
    /// All nodes have these options.
    pub fn start(options: Options) -> Self {
        let options = options.config("cluster-allow-replica-migration no");
        Self {
            cluster: Cluster::start(MASTERS, MASTERS * REPLICAS, &options),
            hit: None,
            problems: Vec::new(),
        }
    }

    /// The nodes of a shard: its first master, and the first one's replicas.
    fn shard(shard: usize) -> impl Iterator<Item = usize> {
        (0..=REPLICAS).map(move |at| shard + at * MASTERS)
    }

    fn master(&self, shard: usize) -> Option<usize> {
        let mut nodes = Self::shard(shard);
        nodes.find(|at| is_master(&self.cluster.nodes[*at]))
    }

    fn wait_until_ready(&self) {
        wait_patiently("the cluster is ready", || {
            self.cluster.nodes.iter().all(|node| {
                let info = node.try_run::<String>(&["CLUSTER", "INFO"]);
                info.is_ok_and(|info| info.contains("cluster_state:ok"))
            })
        });
    }

    fn hand_over(&self, shard: usize) {
        let mut replicas = Self::shard(shard).filter(|at| !is_master(&self.cluster.nodes[*at]));
        if let Some(replica) = replicas.next() {
            // It is refused until all nodes know the last change; then nothing happens.
            let _ = self.cluster.nodes[replica].try_run::<Value>(&["CLUSTER", "FAILOVER"]);
        }
    }

    /// Moves the slot of a lock to the next shard while the clients continue.
    fn move_slot(&mut self, lock: &str) {
        self.wait_until_ready();
        let mut last = String::new();
        for _ in 0..50 {
            match self.try_move(lock) {
                Ok(()) => return,
                Err(error) => last = error.to_string(),
            }
            if last.contains("BUSYKEY") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.problems.push(format!("{lock} does not move: {last}"));
    }

    fn try_move(&self, lock: &str) -> io::Result<()> {
        let mut any = self.cluster.nodes[0].try_connect()?;
        let slot = any.try_call(&["CLUSTER", "KEYSLOT", lock])?.integer();
        let masters: Vec<usize> = (0..MASTERS).filter_map(|it| self.master(it)).collect();
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
        match *kind {
            Kind::KillMaster { shard } | Kind::PauseMaster { shard } => {
                self.hit = self.master(shard);
                if let Some(at) = self.hit {
                    match kind {
                        Kind::KillMaster { .. } => self.cluster.nodes[at].kill(),
                        _ => self.cluster.nodes[at].pause(),
                    }
                }
            }
            Kind::HandOver { shard } => self.hand_over(shard),
            Kind::MoveSlot { lock } => self.move_slot(&super::name_of(lock)),
            _ => {}
        }
    }

    fn end(&mut self, kind: &Kind) {
        match (kind, self.hit) {
            (Kind::KillMaster { .. }, Some(at)) => self.cluster.nodes[at].start_again(),
            (Kind::PauseMaster { .. }, Some(at)) => self.cluster.nodes[at].resume(),
            _ => return,
        }
        self.hit = None;
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
