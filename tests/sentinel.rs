//! A master, two replicas and three sentinels: whoever follows Sentinel is told of the quarantine,
//! then granted; no two owners rely on one lock, and fences grow.
//!
//! The master is reached through a proxy, by sentinels, replicas and those who follow Sentinel.
//! Stalling the proxy leaves the old master to those who talk to it directly: a partition.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::history::{History, Outcome, Violation};
use crate::load::{Client, Plan, Route, always_to, rounds, wait_patiently};
use crate::lock::all_locks;
use crate::proxy::Proxy;
use crate::replication::wait_for_sync;
use crate::resp::{Connection, encode};
use crate::server::{
    Options, Server, free_port, info_field, info_number, server_binary, wait_until,
};

const QUARANTINE: Duration = Duration::from_millis(1500);
/// No longer than any election.
const LONG: Duration = Duration::from_secs(300);

/// The settings that make a failover safe.
fn protected() -> Options {
    without_quarantine().config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
}

fn without_quarantine() -> Options {
    Server::options()
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1")
}

fn without_min_replicas() -> Options {
    Server::options().config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
}

/// How three sentinels watch this master.
fn watching(master: u16) -> String {
    format!(
        "bind 127.0.0.1
sentinel monitor locks 127.0.0.1 {master} 2
sentinel down-after-milliseconds locks 1000
sentinel failover-timeout locks 10000"
    )
}

/// One sentinel; dropping it ends it.
pub struct Sentinel {
    process: Child,
    pub port: u16,
    folder: TempDir,
}

impl Sentinel {
    /// With these settings and, beside them, only where it is.
    pub fn start(block: &str) -> Sentinel {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let settings = folder.path().join("sentinel.conf");
        let place = format!("port {port}\ndir {}", folder.path().display());
        fs::write(&settings, format!("{place}\n{block}\n")).expect("the settings are written");
        let log = File::create(folder.path().join("log")).expect("a log file");
        let process = Command::new(server_binary())
            .arg(&settings)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log file"))
            .stdout(log)
            .spawn()
            .expect("a sentinel starts");
        Sentinel {
            process,
            port,
            folder,
        }
    }

    /// Two replicas and two other sentinels.
    #[track_caller]
    pub fn wait_until_it_knows_all(&self) {
        wait_patiently("the sentinel knows everybody", || {
            self.knows("num-slaves") == 2 && self.knows("num-other-sentinels") == 2
        });
    }

    /// What it knows about the master.
    fn knows(&self, field: &str) -> i64 {
        let Ok(mut c) = Connection::try_open(self.port) else {
            return -1;
        };
        let master = c.call("SENTINEL MASTER locks");
        if master.is_error() {
            return -1;
        }
        let value = master.field(field);
        value.text().parse().expect("a number")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // Both fail only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of the sentinel {} ---\n{log}", self.port);
        }
    }
}

struct Deployment {
    master: Server,
    link: Proxy,
    replicas: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Deployment {
    fn start(options: Options) -> Deployment {
        let master = options.clone().start();
        let link = Proxy::to(master.port());
        let replica = options.config(&format!("replicaof 127.0.0.1 {}", link.port()));
        let replicas: Vec<Server> = (0..2).map(|_| replica.clone().start()).collect();
        let mut m = master.connect();
        for replica in &replicas {
            wait_for_sync(&mut m, &mut replica.connect());
        }
        let sentinels: Vec<Sentinel> = (0..3)
            .map(|_| Sentinel::start(&watching(link.port())))
            .collect();
        sentinels.iter().for_each(Sentinel::wait_until_it_knows_all);
        let deployment = Deployment {
            master,
            link,
            replicas,
            sentinels,
        };
        wait_until("the master grants", || {
            let node = m.call("LOCK.NODE");
            node.number("quarantine") == 0 && !m.call("LOCK.RELEASE nothing me").is_error()
        });
        deployment
    }

    /// Where Sentinel says that the master is.
    fn by_sentinel(&self) -> Route {
        let ports: Vec<u16> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.port)
            .collect();
        Arc::new(move |_| ports.iter().find_map(|port| master_by(*port)))
    }

    fn directly(&self) -> Route {
        always_to(self.master.port())
    }

    /// The lock's next owner, by Sentinel, after the failover.
    fn acquire_at_the_new_master(&self, ttl: Duration) -> History {
        let mut client = Client::new(self.by_sentinel());
        let old = [self.link.port(), self.master.port()];
        wait_patiently("Sentinel names another master", || {
            self.sentinels
                .iter()
                .all(|sentinel| master_by(sentinel.port).is_some_and(|port| !old.contains(&port)))
        });
        wait_patiently("the new master grants", || {
            matches!(client.acquire("job", ttl, None).1, Outcome::Ok(_))
        });
        client.history
    }
}

pub fn master_by(sentinel: u16) -> Option<u16> {
    let mut c = Connection::try_open(sentinel).ok()?;
    let address = c.call("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
    address.items().get(1)?.text().parse().ok()
}

fn role(port: u16) -> Option<String> {
    let mut c = Connection::try_open(port).ok()?;
    c.try_send_raw(&encode(&["LOCK.NODE"])).ok()?;
    let node = c.try_receive().ok()?;
    Some(node.field("role").text().to_owned())
}

fn together(histories: impl IntoIterator<Item = History>) -> History {
    let histories = histories.into_iter();
    History {
        events: histories.flat_map(|history| history.events).collect(),
    }
}

#[track_caller]
fn assert_overlap(history: &History) {
    let violations = history.violations();
    assert!(
        matches!(violations[..], [Violation::Overlap(..), ..]),
        "{violations:?}"
    );
}

#[test]
fn a_master_that_is_killed_under_load_is_replaced_without_a_double_grant() {
    for _ in rounds(1) {
        let mut deployment = Deployment::start(protected());
        let plan = Plan::new(&["job", "report"], QUARANTINE / 2);
        let load = plan.start(deployment.by_sentinel());
        load.wait_for_grants(30);
        deployment.master.kill();
        load.wait_for_grants(30);
        let history = load.stop();
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("QUARANTINE") > 0);
    }
}

/// A grant that no replica has seen; then the master is gone.
fn promote_a_lagging_replica(options: Options, ttl: Duration) -> History {
    let mut deployment = Deployment::start(options);
    let mut client = Client::new(deployment.directly());
    deployment.link.stall();
    let (_, outcome) = client.acquire("job", ttl, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    deployment.master.kill();
    let after = deployment.acquire_at_the_new_master(ttl);
    together([client.history, after])
}

#[test]
fn a_lagging_replica_that_is_promoted_gives_nobody_what_it_has_not_heard_of() {
    for _ in rounds(1) {
        let history = promote_a_lagging_replica(protected(), QUARANTINE);
        history.assert_safe();
        assert!(history.refusals("QUARANTINE") > 0);
        assert_eq!(history.violations_of_one_counter(), []);
    }
}

#[test]
fn without_a_quarantine_a_lagging_replica_that_is_promoted_grants_twice() {
    assert_overlap(&promote_a_lagging_replica(without_quarantine(), LONG));
}

/// The old master lives on for one client, which extends for as long as it is let, while the others
/// go on with the new one.
fn leave_the_old_master_alive(options: Options) -> (Deployment, History) {
    let deployment = Deployment::start(options);
    let mut client = Client::new(deployment.directly());
    deployment.link.stall();
    let (owner, outcome) = client.acquire("job", QUARANTINE, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    let after = std::thread::scope(|scope| {
        let new = scope.spawn(|| deployment.acquire_at_the_new_master(QUARANTINE));
        while !new.is_finished() {
            client.extend(&owner);
            std::thread::sleep(Duration::from_millis(10));
        }
        new.join().expect("the new master grants")
    });
    (deployment, together([client.history, after]))
}

#[test]
fn an_old_master_that_lives_on_for_some_stops_extending_before_the_new_one_grants() {
    for _ in rounds(1) {
        let (deployment, history) = leave_the_old_master_alive(protected());
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("NOREPLICAS") > 0);
        // When the partition ends it becomes a replica, and those who wait there are told.
        deployment.link.heal();
        wait_patiently("the old master is a replica", || {
            // A master that becomes a replica closes its connections.
            role(deployment.master.port()).is_some_and(|role| role == "replica")
        });
        let new = master_by(deployment.sentinels[0].port).expect("a master");
        let new = deployment.replicas.iter().find(|one| one.port() == new);
        let mut new = new.expect("a replica was promoted").connect();
        wait_patiently("both know the same locks", || {
            info_field(
                &mut deployment.master.connect(),
                "replication",
                "master_link_status",
            ) == "up"
                && all_locks(&mut deployment.master.connect()) == all_locks(&mut new)
        });
    }
}

#[test]
fn without_min_replicas_an_old_master_that_lives_on_extends_what_the_new_one_grants() {
    let (_, history) = leave_the_old_master_alive(without_min_replicas());
    assert_overlap(&history);
}

/// The longest lease that may be out there is the old master's, whatever the new one is configured
/// for.
#[test]
fn a_promoted_replica_waits_for_the_leases_that_its_master_allowed() {
    let master = Server::options().config("lock.quarantine 60000").start();
    let replica = Server::options()
        .replica_of(&master)
        .config("lock.quarantine 100")
        .start();
    let mut r = replica.connect();
    wait_for_sync(&mut master.connect(), &mut r);
    r.ok("REPLICAOF NO ONE");
    let left = r.call("LOCK.NODE").number("quarantine");
    assert!(left > 30_000, "{left}");
}

/// A master, and a replica in step with it whose link can be stalled.
fn linked() -> (Server, Proxy, Server) {
    let master = protected().start();
    let link = Proxy::to(master.port());
    let replica = protected()
        .config(&format!("replicaof 127.0.0.1 {}", link.port()))
        .start();
    wait_for_sync(&mut master.connect(), &mut replica.connect());
    (master, link, replica)
}

/// The worst case: promoted at the very moment at which its link stalls, while the old master still
/// counts it.
#[test]
fn a_replica_that_is_promoted_at_once_waits_for_as_long_as_the_old_master_may_extend() {
    for _ in rounds(1) {
        let (master, link, replica) = linked();
        let (mut m, mut r) = (master.connect(), replica.connect());
        wait_until("the master counts its replica", || {
            info_number(&mut m, "replication", "min_slaves_good_slaves") == 1
        });
        let mut old = Client::new(always_to(master.port()));
        let mut new = Client::new(always_to(replica.port()));
        let mut owner = None;
        wait_until("the master grants", || {
            let (granted, outcome) = old.acquire("job", QUARANTINE, None);
            owner = Some(granted);
            matches!(outcome, Outcome::Ok(_))
        });
        let owner = owner.expect("an owner");
        link.stall();
        r.ok("REPLICAOF NO ONE");
        r.ok("CONFIG SET min-replicas-to-write 0");
        wait_until("the new master grants", || {
            old.extend(&owner);
            matches!(new.acquire("job", QUARANTINE, None).1, Outcome::Ok(_))
        });
        old.extend(&owner);
        together([old.history, new.history]).assert_safe();
    }
}

/// A master that stood still while it was replaced: when it runs again it finds what clients have
/// sent it meanwhile.
#[test]
fn a_master_that_was_paused_while_it_was_replaced_grants_nothing_when_it_runs_again() {
    for _ in rounds(1) {
        let (master, link, replica) = linked();
        let (mut m, mut r) = (master.connect(), replica.connect());
        wait_until("the master grants", || {
            info_number(&mut m, "replication", "min_slaves_good_slaves") == 1
                && m.call("LOCK.NODE").number("quarantine") == 0
        });
        link.stall();
        master.pause();
        r.ok("REPLICAOF NO ONE");
        r.ok("CONFIG SET min-replicas-to-write 0");
        let mut new = Client::new(always_to(replica.port()));
        wait_until("the new master grants", || {
            matches!(new.acquire("job", QUARANTINE, None).1, Outcome::Ok(_))
        });
        let mut old = Client::new(always_to(master.port()));
        std::thread::scope(|scope| {
            let late = scope.spawn(|| old.acquire("job", QUARANTINE, None));
            std::thread::sleep(Duration::from_millis(20));
            master.resume();
            late.join().expect("a client that works");
        });
        together([old.history, new.history]).assert_safe();
    }
}
