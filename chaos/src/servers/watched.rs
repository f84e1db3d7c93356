//! A master with two replicas and three Sentinels. All connections to a data node go through its
//! link; replicas and Sentinels use another address than clients, so that they can be cut off
//! separately.

use std::net::Ipv4Addr;

use redislock_testkit::sentinel::{NAME, master_by, wait_until_it_knows};
use redislock_testkit::{Options, Proxy, Server, wait_for_sync, wait_patiently};

use super::deployment::{Deployment, is_master};
use super::plan::Kind;
use super::worker::Reach;

/// The address that replicas and Sentinels connect from.
const SERVERS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;

/// Described at the top of this file.
pub struct Watched {
    nodes: Vec<Server>,
    links: Vec<Proxy>,
    sentinels: Vec<Server>,
    /// The node that the current fault affects.
    hit: Option<usize>,
}

impl Watched {
    /// All nodes have these options.
    pub fn start(options: Options) -> Self {
        let links: Vec<Proxy> = (0..=REPLICAS).map(|_| Proxy::new()).collect();
        let source = format!("bind-source-addr {SERVERS}");
        let nodes = links.iter().enumerate().map(|(at, link)| {
            let announced = format!("replica-announce-port {}", link.port());
            let options = options.clone().configs([
                source.as_str(),
                announced.as_str(),
                "replica-announce-ip 127.0.0.1",
            ]);
            let server = match at {
                0 => options.start(),
                _ => options
                    .config(&format!("replicaof 127.0.0.1 {}", links[0].port()))
                    .start(),
            };
            link.lead_to(server.port());
            server
        });
        let nodes: Vec<Server> = nodes.collect();
        let sentinel = Options::sentinel(&format!(
            "bind 127.0.0.1
{source}
sentinel monitor {NAME} 127.0.0.1 {} 2
sentinel down-after-milliseconds {NAME} 1000
sentinel failover-timeout {NAME} 5000",
            links[0].port()
        ));
        let sentinels = sentinel.end_with_this_process().start_many::<SENTINELS>();
        let watched = Self {
            nodes,
            links,
            sentinels: sentinels.into(),
            hit: None,
        };
        let mut master = watched.nodes[0].connect();
        for replica in &watched.nodes[1..] {
            wait_for_sync(&mut master, &mut replica.connect());
        }
        for sentinel in &watched.sentinels {
            wait_until_it_knows(sentinel, REPLICAS, SENTINELS - 1);
        }
        watched
    }

    /// The node that a majority of the sentinels names.
    fn master(&self) -> Option<usize> {
        let named = |at: &usize| {
            let port = Some(self.links[*at].port());
            let votes = self.sentinels.iter();
            votes.filter(|it| master_by(it.port()) == port).count() > SENTINELS / 2
        };
        (0..self.nodes.len()).find(named)
    }
}

impl Deployment for Watched {
    fn reach(&self, _worker: usize) -> Reach {
        let sentinels = self.sentinels.iter().map(Server::url).collect();
        Reach::Sentinel(NAME.to_owned(), sentinels)
    }

    fn begin(&mut self, kind: &Kind) {
        let hit = self.master().filter(|at| is_master(&self.nodes[*at]));
        let Some(at) = hit else {
            return;
        };
        match kind {
            Kind::KillMaster { .. } => self.nodes[at].kill(),
            Kind::PauseMaster { .. } => self.nodes[at].pause(),
            Kind::IsolateMaster => self.links[at].stall_from(SERVERS),
            _ => return,
        }
        self.hit = Some(at);
    }

    fn end(&mut self, kind: &Kind) -> bool {
        let Some(at) = self.hit.take() else {
            return false;
        };
        match kind {
            Kind::KillMaster { .. } => self.nodes[at].start_again(),
            Kind::PauseMaster { .. } => self.nodes[at].resume(),
            _ => self.links[at].heal(),
        }
        true
    }

    fn heal(&mut self) {
        self.links.iter().for_each(Proxy::heal);
        wait_patiently("the sentinels agree on a master with replicas", || {
            let master = self.master();
            master.is_some_and(|at| {
                let info = self.nodes[at].try_run::<String>(&["INFO", "replication"]);
                let connected = format!("connected_slaves:{REPLICAS}");
                info.is_ok_and(|info| info.contains("role:master") && info.contains(&connected))
            })
        });
    }

    fn servers(&mut self) -> Vec<&mut Server> {
        self.nodes.iter_mut().collect()
    }
}
