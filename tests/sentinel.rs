//! A master, two replicas and three Sentinels: a client of Sentinel sees the quarantine and then
//! grants; no two owners rely on one lock, and fences grow.
//!
//! Sentinels, replicas and clients of Sentinel reach the master through a proxy. When the proxy
//! stalls, only clients with a direct connection still reach the old master: a partition.

use std::sync::Arc;
use std::time::Duration;

use redislock_testkit::history::{History, Outcome, Violation};
use redislock_testkit::load::{Client, Plan, Route, always_to, rounds};
use redislock_testkit::lock::all_locks;
use redislock_testkit::sentinel::{Deployment, master_by};
use redislock_testkit::{
    Connection, Options, Proxy, Server, encode, info_field, info_number, wait_for_sync,
    wait_patiently, wait_until,
};

pub const QUARANTINE: Duration = Duration::from_millis(1500);
/// No longer than any election.
const LONG: Duration = Duration::from_secs(300);

/// The settings that make a failover safe.
pub fn protected() -> Options {
    without_quarantine().config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
}

pub fn without_quarantine() -> Options {
    Server::options()
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1")
}

fn without_min_replicas() -> Options {
    Server::options().config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
}

/// A deployment whose master grants, and the link to the master.
struct Watched {
    deployment: Deployment,
    link: Proxy,
}

impl Watched {
    fn start(options: &Options) -> Watched {
        let (deployment, link) = Deployment::start_behind_a_link(options);
        let mut m = deployment.master.connect();
        wait_until("the master grants", || {
            let node = m.call("LOCK.NODE");
            node.number("quarantine") == 0 && !m.call("LOCK.RELEASE nothing me").is_error()
        });
        Watched { deployment, link }
    }

    /// Where Sentinel says that the master is.
    fn by_sentinel(&self) -> Route {
        let sentinels = self.deployment.sentinels.iter();
        let ports: Vec<u16> = sentinels.map(Server::port).collect();
        Arc::new(move |_| ports.iter().find_map(|port| master_by(*port)))
    }

    fn directly(&self) -> Route {
        always_to(self.deployment.master.port())
    }

    /// The lock's next owner, by Sentinel, after the failover.
    fn acquire_at_the_new_master(&self, ttl: Duration) -> History {
        let mut client = Client::new(self.by_sentinel());
        let old = [self.link.port(), self.deployment.master.port()];
        wait_patiently("Sentinel names another master", || {
            let is_new = |port: u16| !old.contains(&port);
            let mut sentinels = self.deployment.sentinels.iter();
            sentinels.all(|sentinel| master_by(sentinel.port()).is_some_and(is_new))
        });
        wait_patiently("the new master grants", || {
            matches!(client.acquire("job", ttl, None).1, Outcome::Ok(_))
        });
        client.history
    }
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
        let mut watched = Watched::start(&protected());
        let plan = Plan::new(&["job", "report"], QUARANTINE / 2);
        let load = plan.start(watched.by_sentinel());
        load.wait_for_grants(30);
        watched.deployment.master.kill();
        load.wait_for_grants(30);
        let history = load.stop();
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("QUARANTINE") > 0);
    }
}

/// A grant that no replica has seen; then the master is gone.
fn promote_a_lagging_replica(options: Options, ttl: Duration) -> History {
    let mut watched = Watched::start(&options);
    let mut client = Client::new(watched.directly());
    watched.link.stall();
    let (_, outcome) = client.acquire("job", ttl, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    watched.deployment.master.kill();
    let after = watched.acquire_at_the_new_master(ttl);
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
fn leave_the_old_master_alive(options: Options) -> (Watched, History) {
    let watched = Watched::start(&options);
    let mut client = Client::new(watched.directly());
    watched.link.stall();
    let (owner, outcome) = client.acquire("job", QUARANTINE, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    let after = std::thread::scope(|scope| {
        let new = scope.spawn(|| watched.acquire_at_the_new_master(QUARANTINE));
        while !new.is_finished() {
            client.extend(&owner);
            std::thread::sleep(Duration::from_millis(10));
        }
        new.join().expect("the new master grants")
    });
    (watched, together([client.history, after]))
}

#[test]
fn an_old_master_that_lives_on_for_some_stops_extending_before_the_new_one_grants() {
    for _ in rounds(1) {
        let (watched, history) = leave_the_old_master_alive(protected());
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert!(history.refusals("NOREPLICAS") > 0);
        // When the partition ends it becomes a replica, and those who wait there are told.
        watched.link.heal();
        wait_patiently("the old master is a replica", || {
            // A master that becomes a replica closes its connections.
            role(watched.deployment.master.port()).is_some_and(|role| role == "replica")
        });
        let new = master_by(watched.deployment.sentinels[0].port()).expect("a master");
        let new = watched
            .deployment
            .replicas
            .iter()
            .find(|one| one.port() == new);
        let mut new = new.expect("a replica was promoted").connect();
        wait_patiently("both know the same locks", || {
            info_field(
                &mut watched.deployment.master.connect(),
                "replication",
                "master_link_status",
            ) == "up"
                && all_locks(&mut watched.deployment.master.connect()) == all_locks(&mut new)
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
