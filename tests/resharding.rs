//! A cluster of three masters and three replicas: slots move and masters fail while locks are held
//! and waited for. No lock is lost by a migration, none is granted twice, and the waiters are
//! unblocked to send their requests again.

use std::time::Duration;

use redislock_testkit::cluster::{Cluster, MASTERS, begin_move, end_move, node_options};
use redislock_testkit::history::{History, Outcome, Violation};
use redislock_testkit::load::{Client, Plan, always_to, rounds};
use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{Options, Server, Value, granted, refused, wait_patiently, wait_until};

/// The slot of `job` and of every `{job}…`: the first master's.
const JOB: u16 = 2906;
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

fn cluster(options: &Options) -> Cluster {
    Cluster::start(MASTERS, MASTERS, options)
}

fn cluster_without_replicas(options: &Options) -> Cluster {
    Cluster::start(MASTERS, 0, options)
}

/// Moves the slot key by key, as all tools do up to Valkey 8.
fn move_by_keys(cluster: &Cluster, from: usize, to: usize) {
    cluster.move_slot(JOB, from, to);
}

/// Moves the slot as a whole.
fn move_by_slot(cluster: &Cluster, from: usize, to: usize) {
    let (mut a, target) = (cluster.nodes[from].connect(), cluster.id(to));
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
            let Outcome::Ok(fence) = fence else {
                panic!("{fence:?}");
            };
            hold != Value::Null && hold.number("fence") == fence
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
    move_a_slot_under_load(&cluster(&options), move_by_keys);
    move_a_slot_under_load(&cluster_without_replicas(&options), move_by_keys);
}

/// Valkey has it from version 9 on.
#[test]
fn a_slot_that_moves_as_a_whole_under_load_loses_and_doubles_nothing() {
    let kind = Server::start().kind();
    if kind.valkey && kind.major >= 9 {
        let options = Server::options();
        move_a_slot_under_load(&cluster(&options), move_by_slot);
        move_a_slot_under_load(&cluster_without_replicas(&options), move_by_slot);
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
    move_a_slot_held_for(&cluster(&options), ttl, move_by_keys);
    if kind.valkey && kind.major >= 9 {
        move_a_slot_held_for(&cluster(&options), ttl, move_by_slot);
    }
}

#[test]
fn several_keys_of_a_slot_on_the_move_are_all_granted_or_none() {
    let cluster = cluster(&Server::options());
    let (mut a, mut b) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
    granted(&a.call("LOCK.ACQUIRE {job}a me 600000"));
    granted(&a.call("LOCK.ACQUIRE {job}b me 600000"));
    let mut waiter = cluster.nodes[0].connect();
    waiter.send("LOCK.MACQUIRE 2 {job}a {job}b you 600000 BLOCK 0");
    wait_for_waiters(&mut a, "{job}b", 1);
    begin_move(JOB, &mut a, &mut b);
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
    end_move(JOB, &mut a, &mut b);
    assert_eq!(
        b.call("LOCK.MACQUIRE 2 {job}a {job}b you 600000"),
        Value::Null
    );
    assert_eq!(b.call("LOCK.RELEASE {job}a me"), Value::Integer(1));
    let fences = b.call("LOCK.MACQUIRE 2 {job}a {job}b you 600000");
    assert_eq!(fences.items().len(), 2);
}

/// `{job}b` is free and has waiters: one of them also waits for `{job}a`. While the slot moves, a
/// newcomer gets `{job}b` at the target. Whatever lets the waiters continue, the source must not
/// grant it to them.
#[test]
fn a_free_key_of_a_slot_on_the_move_is_not_granted_at_the_source() {
    for ends in [
        "LOCK.RELEASE {job}a holder",
        "MIGRATE 127.0.0.1 # {job}a 0 10000",
    ] {
        let cluster = cluster_without_replicas(&Server::options());
        let (mut a, mut b) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
        granted(&a.call("LOCK.ACQUIRE {job}a holder 600000"));
        let mut both = cluster.nodes[0].connect();
        both.send("LOCK.MACQUIRE 2 {job}a {job}b both 600000 BLOCK 0");
        wait_for_waiters(&mut a, "{job}b", 1);
        let mut behind = cluster.nodes[0].connect();
        behind.send("LOCK.ACQUIRE {job}b behind 600000 BLOCK 0");
        wait_for_waiters(&mut a, "{job}b", 2);
        begin_move(JOB, &mut a, &mut b);
        refused(&a.call("LOCK.ACQUIRE {job}b newcomer 600000"), "ASK");
        b.ok("ASKING");
        granted(&b.call("LOCK.ACQUIRE {job}b newcomer 600000"));
        a.ok(&ends.replace('#', &cluster.nodes[1].port().to_string()));
        for mut waiter in [both, behind] {
            refused(&waiter.receive(), "UNBLOCKED");
        }
        assert_eq!(a.call("LOCK.NODE").number("waiters"), 0, "{ends}");
        move_by_keys(&cluster, 0, 1);
        assert_eq!(b.call("LOCK.RELEASE {job}b newcomer"), Value::Integer(1));
    }
}

/// Half of the locks have moved when the target, or the source, is killed; back again, it goes on
/// from there.
#[test]
fn a_node_that_is_killed_in_the_middle_of_a_migration_loses_and_doubles_nothing() {
    for killed in [0, 1] {
        let options = Server::options().appendonly("always");
        let mut cluster = cluster_without_replicas(&options);
        let port = cluster.nodes[1].port();
        let names: Vec<String> = (0..20).map(|n| format!("{{job}}{n}")).collect();
        let (mut a, mut b) = (cluster.nodes[0].connect(), cluster.nodes[1].connect());
        let fences: Vec<i64> = names
            .iter()
            .map(|name| granted(&a.call(&format!("LOCK.ACQUIRE {name} me 600000"))))
            .collect();
        begin_move(JOB, &mut a, &mut b);
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
        move_by_keys(&cluster, 0, 1);
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
    let cluster = cluster(&Server::options());
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
        let mut cluster = cluster(&quarantined());
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
        let mut cluster = Cluster::start(MASTERS, MASTERS + 1, &protected());
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
    let (mut cluster, link) =
        Cluster::start_behind_a_link(MASTERS, MASTERS, |_| node_options(options));
    let mut client = Client::new(always_to(cluster.nodes[0].port()));
    link.stall();
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
        let cluster = cluster(&quarantined());
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
