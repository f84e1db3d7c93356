//! A cluster of three masters and three replicas: slots move and masters fail while locks are held
//! and waited for. No lock is lost by a migration, none is granted twice, and those who wait are
//! told to come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::history::{History, Outcome, Violation};
use crate::load::{Client, Plan, Route, always_to, rounds, wait_patiently};
use crate::lock::wait_for_waiters;
use crate::proxy::Proxy;
use crate::replication::wait_for_sync;
use crate::resp::{Connection, Value, granted, refused};
use crate::server::{Options, Server, free_port, wait_until};

/// The slot of `job` and of every `{job}…`: the first master's.
const JOB: u16 = 2906;
pub const MASTERS: usize = 3;
const QUARANTINE: Duration = Duration::from_millis(1500);
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn quarantined() -> Options {
    Server::options().config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
}

/// What is recommended for a cluster, with shorter times.
fn protected() -> Options {
    quarantined()
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1")
        .config("cluster-allow-replica-migration no")
}

/// Masters first, then their replicas in the same order. The first master's data port is reached
/// through a link.
pub struct Cluster {
    pub nodes: Vec<Server>,
    pub link: Proxy,
}

impl Cluster {
    fn start(options: &Options) -> Cluster {
        Cluster::of(2 * MASTERS, options)
    }

    fn without_replicas(options: &Options) -> Cluster {
        Cluster::of(MASTERS, options)
    }

    fn of(nodes: usize, options: &Options) -> Cluster {
        Cluster::formed_of(nodes, |_| {
            options
                .clone()
                .config("cluster-enabled yes")
                .config("cluster-node-timeout 2000")
                // However long it has not heard of its master, a replica may be elected.
                .config("cluster-replica-validity-factor 0")
                .config("cluster-migration-barrier 9")
                .config(&format!("cluster-port {}", free_port()))
        })
    }

    /// Of so many nodes, each with options of its own.
    pub fn formed_of(nodes: usize, options: impl Fn(usize) -> Options) -> Cluster {
        let link = Proxy::new();
        let nodes: Vec<Server> = (0..nodes)
            .map(|n| match n {
                0 => options(n).config(&format!("cluster-announce-port {}", link.port())),
                _ => options(n),
            })
            .map(Options::start)
            .collect();
        link.lead_to(nodes[0].port());
        let cluster = Cluster { nodes, link };
        cluster.form();
        cluster
    }

    fn form(&self) {
        let mut connections: Vec<Connection> = self.nodes.iter().map(Server::connect).collect();
        for (n, c) in connections.iter_mut().enumerate() {
            c.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
        }
        for (n, range) in ["0 5460", "5461 10922", "10923 16383"].iter().enumerate() {
            connections[n].ok(&format!("CLUSTER ADDSLOTSRANGE {range}"));
        }
        let (first, others) = connections.split_first_mut().expect("a first node");
        for (other, node) in others.iter_mut().zip(&self.nodes[1..]) {
            let bus = ["cluster-announce-bus-port", "cluster-port"]
                .map(|name| other.call(&format!("CONFIG GET {name}")).field(name));
            let bus = bus.iter().map(Value::text).find(|port| *port != "0");
            let bus = bus.expect("a port of the bus");
            first.ok(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()));
        }
        for c in &mut connections {
            wait_patiently("everybody knows everybody", || {
                let nodes = c.call("CLUSTER NODES").text().to_owned();
                nodes.lines().count() == self.nodes.len() && !nodes.contains("handshake")
            });
        }
        for n in 0..self.nodes.len() - MASTERS {
            let master = &mut connections[n % MASTERS];
            let master = master.call("CLUSTER MYID").text().to_owned();
            let replica = &mut connections[MASTERS + n];
            wait_patiently("it replicates", || {
                !replica
                    .call(&format!("CLUSTER REPLICATE {master}"))
                    .is_error()
            });
        }
        for c in &mut connections {
            wait_patiently("the cluster is ready", || {
                let nodes = c.call("CLUSTER NODES").text().to_owned();
                let state = c.call("CLUSTER INFO").text().to_owned();
                nodes.matches("slave").count() == self.nodes.len() - MASTERS
                    && state.contains("cluster_state:ok")
            });
        }
        for n in 0..self.nodes.len() - MASTERS {
            let (masters, replicas) = connections.split_at_mut(MASTERS);
            wait_for_sync(&mut masters[n % MASTERS], &mut replicas[n]);
        }
        for master in &mut connections[..MASTERS] {
            wait_patiently("the quarantine is over", || {
                master.call("LOCK.NODE").number("quarantine") == 0
            });
        }
    }

    /// Any node: it knows where to go on.
    pub fn route(&self) -> Route {
        let ports: Vec<u16> = self.nodes.iter().map(Server::port).collect();
        let next = AtomicUsize::new(0);
        Arc::new(move |_| {
            let next = next.fetch_add(1, Ordering::Relaxed);
            ports.get(next % ports.len()).copied()
        })
    }

    fn id(&self, node: usize) -> String {
        let id = self.nodes[node].connect().call("CLUSTER MYID");
        id.text().to_owned()
    }

    /// Moves the slot key by key, as every tool does up to Valkey 8.
    pub fn move_by_keys(&self, from: usize, to: usize) {
        let (mut a, mut b) = (self.nodes[from].connect(), self.nodes[to].connect());
        let (source, target) = (self.id(from), self.id(to));
        b.ok(&format!("CLUSTER SETSLOT {JOB} IMPORTING {source}"));
        a.ok(&format!("CLUSTER SETSLOT {JOB} MIGRATING {target}"));
        loop {
            let keys = a.ok(&format!("CLUSTER GETKEYSINSLOT {JOB} 10"));
            if keys.items().is_empty() {
                break;
            }
            for key in keys.items().iter().map(Value::text) {
                let port = self.nodes[to].port();
                a.ok(&format!("MIGRATE 127.0.0.1 {port} {key} 0 10000"));
            }
        }
        b.ok(&format!("CLUSTER SETSLOT {JOB} NODE {target}"));
        a.ok(&format!("CLUSTER SETSLOT {JOB} NODE {target}"));
    }

    /// Moves the slot as a whole.
    fn move_by_slot(&self, from: usize, to: usize) {
        let (mut a, target) = (self.nodes[from].connect(), self.id(to));
        a.ok(&format!(
            "CLUSTER MIGRATESLOTS SLOTSRANGE {JOB} {JOB} NODE {target}"
        ));
        wait_patiently("the slot has moved", || {
            let jobs = a.ok("CLUSTER GETSLOTMIGRATIONS");
            let state = jobs.items()[0].field("state").text().to_owned();
            assert!(!["failed", "canceled"].contains(&&*state), "{jobs:?}");
            state == "success"
        });
    }

    pub fn is_master(&self, node: usize) -> bool {
        let node = self.nodes[node].connect().call("LOCK.NODE");
        node.field("role").text() == "master"
    }

    /// Has the replica take over in agreement with its master.
    fn fail_over_to(&self, replica: usize) {
        let mut r = self.nodes[replica].connect();
        wait_patiently("the replica is the master", || {
            // Refused while the nodes do not all know of the last change yet.
            r.call("CLUSTER FAILOVER");
            std::thread::sleep(Duration::from_millis(200));
            self.is_master(replica)
        });
    }
}

/// Holders and waiters, while the slot goes from master to master.
fn move_a_slot_under_load(cluster: &Cluster, step: impl Fn(&Cluster, usize, usize)) {
    move_a_slot_held_for(cluster, LONG, step);
}

/// The same with a lease of this length, which is extended after each move.
fn move_a_slot_held_for(cluster: &Cluster, ttl: Duration, step: impl Fn(&Cluster, usize, usize)) {
    let plan = Plan::new(&["{job}a", "{job}b", "job"], Duration::from_millis(300));
    let load = plan.start(cluster.route());
    let mut holder = Client::new(cluster.route());
    let (owner, fence) = holder.acquire("{job}held", ttl, None);
    assert!(matches!(fence, Outcome::Ok(_)), "{fence:?}");
    for round in rounds(4) {
        let (from, to) = (round % MASTERS, (round + 1) % MASTERS);
        load.wait_for_grants(20);
        assert_eq!(holder.extend(&owner), fence);
        let mut waiter = cluster.nodes[from].connect();
        waiter.send("LOCK.ACQUIRE {job}held waiter 1000 BLOCK 0");
        wait_for_waiters(&mut cluster.nodes[from].connect(), "{job}held", 1);
        step(cluster, from, to);
        let told = waiter.receive();
        let class = told.error_class();
        assert!(["UNBLOCKED", "MOVED"].contains(&class), "{told:?}");
        assert_eq!(holder.extend(&owner), fence);
        let Some(replica) = cluster.nodes.get(MASTERS + to) else {
            continue;
        };
        let mut replica = replica.connect();
        replica.ok("READONLY");
        wait_until("the replica knows of the lock", || {
            let hold = replica.call(&format!("LOCK.INFO {{job}}held {}", owner.token));
            matches!((&hold, &fence), (Value::Array(_), Outcome::Ok(fence)) if hold.number("fence") == *fence)
        });
    }
    load.wait_for_grants(20);
    assert_eq!(holder.release(&owner), Outcome::Ok(1));
    let mut history = load.stop();
    history.events.extend(holder.history.events);
    history.assert_safe();
    for node in &cluster.nodes[..MASTERS] {
        let mut c = node.connect();
        wait_until("nobody waits any more", || {
            c.call("LOCK.NODE").number("waiters") == 0
        });
    }
}

#[test]
fn a_slot_that_moves_key_by_key_under_load_loses_and_doubles_nothing() {
    let options = Server::options();
    move_a_slot_under_load(&Cluster::start(&options), Cluster::move_by_keys);
    move_a_slot_under_load(&Cluster::without_replicas(&options), Cluster::move_by_keys);
}

/// Valkey has it from version 9 on.
#[test]
fn a_slot_that_moves_as_a_whole_under_load_loses_and_doubles_nothing() {
    let kind = Server::start().kind();
    if kind.valkey && kind.major >= 9 {
        let options = Server::options();
        move_a_slot_under_load(&Cluster::start(&options), Cluster::move_by_slot);
        move_a_slot_under_load(&Cluster::without_replicas(&options), Cluster::move_by_slot);
    }
}

/// Masters write heartbeats into the stream, which no slot owns.
#[test]
fn a_slot_moves_while_masters_ask_their_replicas() {
    let kind = Server::start().kind();
    let ttl = Duration::from_secs(15);
    let options = Server::options()
        .config(&format!("lock.quarantine {}", ttl.as_millis()))
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 2");
    move_a_slot_held_for(&Cluster::start(&options), ttl, Cluster::move_by_keys);
    if kind.valkey && kind.major >= 9 {
        move_a_slot_held_for(&Cluster::start(&options), ttl, Cluster::move_by_slot);
    }
}

#[test]
fn several_keys_of_a_slot_on_the_move_are_all_granted_or_none() {
    let cluster = Cluster::start(&Server::options());
    let (mut a, mut b) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
    granted(&a.call("LOCK.ACQUIRE {job}a me 600000"));
    granted(&a.call("LOCK.ACQUIRE {job}b me 600000"));
    let mut waiter = cluster.nodes[0].connect();
    waiter.send("LOCK.MACQUIRE 2 {job}a {job}b you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "{job}b", 1);
    b.ok(&format!(
        "CLUSTER SETSLOT {JOB} IMPORTING {}",
        cluster.id(0)
    ));
    a.ok(&format!(
        "CLUSTER SETSLOT {JOB} MIGRATING {}",
        cluster.id(1)
    ));
    let port = cluster.nodes[1].port();
    a.ok(&format!("MIGRATE 127.0.0.1 {port} {{job}}a 0 10000"));
    assert!(waiter.receive().is_error());
    refused(
        &a.call("LOCK.MACQUIRE 2 {job}a {job}b me 600000"),
        "TRYAGAIN",
    );
    b.ok("ASKING");
    refused(
        &b.call("LOCK.MACQUIRE 2 {job}a {job}b me 600000"),
        "TRYAGAIN",
    );
    a.ok("LOCK.RELEASE {job}b me");
    assert_eq!(a.call("LOCK.NODE").number("waiters"), 0);
    for c in [&mut b, &mut a] {
        c.ok(&format!("CLUSTER SETSLOT {JOB} NODE {}", cluster.id(1)));
    }
    assert_eq!(
        b.call("LOCK.MACQUIRE 2 {job}a {job}b you 600000"),
        Value::Null
    );
    assert_eq!(b.call("LOCK.RELEASE {job}a me"), Value::Integer(1));
    let fences = b.call("LOCK.MACQUIRE 2 {job}a {job}b you 600000");
    assert_eq!(fences.items().len(), 2);
}

/// Half of the locks have moved when the target, or the source, is killed; back again, it goes on
/// from there.
#[test]
fn a_node_that_is_killed_in_the_middle_of_a_migration_loses_and_doubles_nothing() {
    for killed in [0, 1] {
        let options = Server::options().appendonly("always");
        let mut cluster = Cluster::without_replicas(&options);
        let (source, target) = (cluster.id(0), cluster.id(1));
        let port = cluster.nodes[1].port();
        let names: Vec<String> = (0..20).map(|n| format!("{{job}}{n}")).collect();
        let (mut a, mut b) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
        let fences: Vec<i64> = names
            .iter()
            .map(|name| granted(&a.call(&format!("LOCK.ACQUIRE {name} me 600000"))))
            .collect();
        b.ok(&format!("CLUSTER SETSLOT {JOB} IMPORTING {source}"));
        a.ok(&format!("CLUSTER SETSLOT {JOB} MIGRATING {target}"));
        for name in &names[..10] {
            a.ok(&format!("MIGRATE 127.0.0.1 {port} {name} 0 10000"));
        }
        cluster.nodes[killed].kill();
        cluster.nodes[killed].start_again();
        let locks = [10, 10];
        for (node, locks) in cluster.nodes.iter().zip(locks) {
            let mut c = node.connect();
            assert_eq!(c.call("LOCK.NODE").number("locks"), locks);
            wait_patiently("the cluster is up again", || {
                let state = c.call("CLUSTER INFO").text().to_owned();
                state.contains("cluster_state:ok")
            });
        }
        cluster.move_by_keys(0, 1);
        let mut b = cluster.nodes[1].connect();
        for (name, fence) in names.iter().zip(fences) {
            let extended = b.call(&format!("LOCK.EXTEND {name} me 600000"));
            assert_eq!(extended, Value::Integer(fence));
        }
        let left = cluster.nodes[0].connect().call("LOCK.NODE");
        assert_eq!(left.number("locks"), 0);
    }
}

/// The master agrees, so nothing is lost, and no quarantine is needed.
#[test]
fn a_failover_that_both_agree_on_loses_and_doubles_nothing() {
    let cluster = Cluster::start(&Server::options());
    let plan = Plan::new(&["{job}a", "{job}b"], Duration::from_millis(300));
    let load = plan.start(cluster.route());
    let mut holder = Client::new(cluster.route());
    let (owner, fence) = holder.acquire("{job}held", LONG, None);
    assert!(matches!(fence, Outcome::Ok(_)), "{fence:?}");
    for round in rounds(2) {
        let (old, new) = if round % 2 == 0 {
            (0, MASTERS)
        } else {
            (MASTERS, 0)
        };
        load.wait_for_grants(20);
        let mut waiter = cluster.nodes[old].connect();
        waiter.send("LOCK.ACQUIRE {job}held waiter 1000 BLOCK 0");
        wait_for_waiters(&mut cluster.nodes[old].connect(), "{job}held", 1);
        cluster.fail_over_to(new);
        assert!(waiter.receive().is_error());
        wait_patiently("the new master serves", || holder.extend(&owner) == fence);
    }
    load.wait_for_grants(20);
    let mut history = load.stop();
    history.events.extend(holder.history.events);
    history.assert_safe();
}

#[test]
fn a_master_that_is_killed_under_load_is_replaced_without_a_double_grant() {
    for _ in rounds(1) {
        let mut cluster = Cluster::start(&quarantined());
        let plan = Plan::new(&["{job}a", "{job}b"], QUARANTINE / 2);
        let load = plan.start(cluster.route());
        load.wait_for_grants(30);
        cluster.nodes[0].kill();
        load.wait_for_grants(30);
        assert!(cluster.is_master(MASTERS));
        let history = load.stop();
        history.assert_safe();
        assert!(history.refusals("QUARANTINE") > 0);
    }
}

/// The replica that is elected grants only after the other one has followed it for the lease and
/// the lag.
#[test]
fn a_master_that_needs_replicas_is_replaced_under_load_without_a_double_grant() {
    for _ in rounds(1) {
        let mut cluster = Cluster::of(2 * MASTERS + 1, &protected());
        let plan = Plan::new(&["{job}a", "{job}b"], QUARANTINE / 2);
        let load = plan.start(cluster.route());
        load.wait_for_grants(30);
        cluster.nodes[0].kill();
        load.wait_for_grants(30);
        let history = load.stop();
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("QUARANTINE") > 0);
    }
}

/// A grant that the replica has not seen; then the master is killed, and the replica elected.
fn elect_a_lagging_replica(options: &Options, ttl: Duration) -> History {
    let mut cluster = Cluster::start(options);
    let mut client = Client::new(always_to(cluster.nodes[0].port()));
    cluster.link.stall();
    let (_, outcome) = client.acquire("job", ttl, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    cluster.nodes[0].kill();
    let mut next = Client::new(cluster.route());
    wait_patiently("the new master grants", || {
        matches!(next.acquire("job", ttl, None).1, Outcome::Ok(_))
    });
    client.history.events.extend(next.history.events);
    client.history
}

#[test]
fn a_lagging_replica_that_is_elected_gives_nobody_what_it_has_not_heard_of() {
    for _ in rounds(1) {
        let history = elect_a_lagging_replica(&quarantined(), QUARANTINE);
        history.assert_safe();
        assert!(history.refusals("QUARANTINE") > 0);
    }
}

#[test]
fn without_a_quarantine_a_lagging_replica_that_is_elected_grants_twice() {
    let violations = elect_a_lagging_replica(&Server::options(), LONG).violations();
    assert!(
        matches!(violations[..], [Violation::Overlap(..)]),
        "{violations:?}"
    );
}

/// The first master stands still until its replica has been elected and grants; then it finds what
/// was sent to it meanwhile.
#[test]
fn a_master_that_was_paused_while_it_was_replaced_grants_nothing_when_it_runs_again() {
    for _ in rounds(1) {
        let cluster = Cluster::start(&quarantined());
        let mut old = Client::new(always_to(cluster.nodes[0].port()));
        let mut new = Client::new(always_to(cluster.nodes[MASTERS].port()));
        // Its connection is there already.
        let (owner, _) = old.acquire("job", QUARANTINE, None);
        assert_eq!(old.release(&owner), Outcome::Ok(1));
        cluster.nodes[0].pause();
        wait_patiently("the new master grants", || {
            matches!(new.acquire("job", QUARANTINE, None).1, Outcome::Ok(_))
        });
        std::thread::scope(|scope| {
            let late = scope.spawn(|| old.acquire("job", QUARANTINE, None));
            std::thread::sleep(Duration::from_millis(20));
            cluster.nodes[0].resume();
            late.join().expect("a client that works");
        });
        new.history.events.extend(old.history.events);
        new.history.assert_safe();
    }
}
