//! A cluster's master that is cut off from all other nodes while clients still reach it: one of its
//! replicas is elected. No two owners rely on one lock, fences grow, and waiters on the wrong side
//! are unblocked.
//!
//! Every node's bus is reached through a proxy. The first master speaks from an address of its own,
//! so that the proxies of the others can tell it apart.

use std::net::Ipv4Addr;
use std::time::Duration;

use redislock_testkit::cluster::{Cluster, MASTERS, node_options};
use redislock_testkit::history::{History, Outcome, Violation};
use redislock_testkit::load::{Client, always_to, rounds};
use redislock_testkit::lock::{counter, wait_for_waiters};
use redislock_testkit::{
    Connection, Options, Proxy, Server, free_port, info_field, info_number, wait_patiently,
    wait_until,
};

use crate::sentinel::{QUARANTINE, protected, without_quarantine};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// Two replicas for the first master: the one that is elected needs the other.
const NODES: usize = 2 * MASTERS + 1;
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A cluster whose first master can be cut off.
struct Partitioned {
    cluster: Cluster,
    link: Proxy,
    buses: Vec<Proxy>,
}

impl Partitioned {
    fn start(options: &Options) -> Partitioned {
        let buses: Vec<Proxy> = (0..NODES).map(|_| Proxy::new()).collect();
        let (cluster, link) = Cluster::start_behind_a_link(MASTERS, MASTERS + 1, |n| {
            let bus = free_port();
            buses[n].lead_to(bus);
            let options = node_options(options)
                .config("cluster-announce-ip 127.0.0.1")
                // Only 127.0.0.1 counts as this machine for it.
                .config("protected-mode no")
                .config(&format!("cluster-port {bus}"))
                .config(&format!("cluster-announce-bus-port {}", buses[n].port()));
            match n {
                0 => options.config(&format!("bind-source-addr {FIRST}")),
                _ => options,
            }
        });
        let partitioned = Partitioned {
            cluster,
            link,
            buses,
        };
        let mut c = partitioned.first().connect();
        wait_until("the first master counts its replicas", || {
            info_number(&mut c, "replication", "min_slaves_good_slaves") == 2
        });
        partitioned
    }

    fn first(&self) -> &Server {
        &self.cluster.nodes[0]
    }

    /// No other node hears of the first one any more, nor it of them.
    fn cut_off_the_first(&self, its_replicas_too: bool) {
        if its_replicas_too {
            self.link.stall();
        }
        self.buses[0].stall();
        for bus in &self.buses[1..] {
            bus.stall_from(FIRST);
        }
    }

    fn heal(&self) {
        self.link.heal();
        self.buses.iter().for_each(Proxy::heal);
    }

    /// Which of its replicas has taken the first master's place.
    fn elected(&self) -> &Server {
        let replicas = [MASTERS, 2 * MASTERS];
        let mut elected = None;
        wait_patiently("a replica is elected", || {
            elected = replicas.into_iter().find(|n| self.cluster.is_master(*n));
            elected.is_some()
        });
        &self.cluster.nodes[elected.expect("a replica")]
    }
}

/// One owner holds the lock at the cut-off master and extends it for as long as that is allowed,
/// one waits there, and the elected replica grants the lock to the next owner. Returns the history
/// of the owners, and the waiter.
fn hold_on_both_sides(nodes: &Partitioned, ttl: Duration) -> (History, Connection) {
    let mut old = Client::new(always_to(nodes.first().port()));
    let (owner, outcome) = old.acquire("job", ttl, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    let mut waiter = nodes.first().connect();
    waiter.send("LOCK.ACQUIRE job waiter 1000 BLOCK 0");
    wait_for_waiters(&mut nodes.first().connect(), "job", 1);
    let after = std::thread::scope(|scope| {
        let new = scope.spawn(|| {
            let mut new = Client::new(always_to(nodes.elected().port()));
            wait_patiently("the elected one grants", || {
                matches!(new.acquire("job", ttl, None).1, Outcome::Ok(_))
            });
            new.history
        });
        while !new.is_finished() {
            old.extend(&owner);
            std::thread::sleep(Duration::from_millis(10));
        }
        new.join().expect("the elected one grants")
    });
    old.history.events.extend(after.events);
    (old.history, waiter)
}

#[test]
fn a_master_that_only_clients_reach_stops_before_its_replacement_grants() {
    for round in rounds(1) {
        let nodes = Partitioned::start(&protected());
        nodes.cut_off_the_first(round % 2 == 0);
        let (history, mut waiter) = hold_on_both_sides(&nodes, QUARANTINE);
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("QUARANTINE") > 0);
        assert!(history.refusals("CLUSTERDOWN") + history.refusals("NOREPLICAS") > 0);
        nodes.heal();
        let told = waiter.receive();
        assert!(told.is_error(), "{told:?}");
        let mut new = nodes.elected().connect();
        wait_patiently("the old master follows the new one", || {
            let mut old = nodes.first().connect();
            info_field(&mut old, "replication", "role") == "slave"
                && info_field(&mut old, "replication", "master_link_status") == "up"
                && old.ok("DEBUG DIGEST") == new.ok("DEBUG DIGEST")
                && counter(&mut old) == counter(&mut new)
        });
    }
}

#[test]
fn without_a_quarantine_the_replacement_grants_what_the_cut_off_master_granted() {
    let nodes = Partitioned::start(&without_quarantine());
    nodes.cut_off_the_first(true);
    let violations = hold_on_both_sides(&nodes, LONG).0.violations();
    assert!(
        matches!(violations[..], [Violation::Overlap(..)]),
        "{violations:?}"
    );
}
