//! The replication lease: a master grants only while replicas confirm that it is their only master,
//! so that two masters never do at the same time, whatever happens to clocks and links.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redislock_testkit::history::{History, Outcome};
use redislock_testkit::load::{Client, Owner, Plan, Route, always_to, rounds};
use redislock_testkit::lock::{wait_for_waiters, wait_until_gone};
use redislock_testkit::{
    Connection, Flow, Options, Proxy, Server, SteppedServer, Value, granted, info_field,
    info_number, refused, wait_for_sync, wait_patiently, wait_until,
};

const LEASE: Duration = Duration::from_millis(600);
/// Longer than the lease and the lag of a second, with the slack for clocks.
const WAIT: Duration = Duration::from_millis(1730);

/// Whatever could be counted from a promotion alone has passed: the lease, the lag, and what the
/// server takes to notice.
const LONG_AFTER_A_PROMOTION: Duration = Duration::from_secs(6);

fn protected() -> Options {
    needs_replicas(LEASE.as_millis(), 1)
}

fn needs_replicas(quarantine: u128, lag: u32) -> Options {
    Server::options()
        .config(&format!("lock.quarantine {quarantine}"))
        .config("min-replicas-to-write 1")
        .config(&format!("min-replicas-max-lag {lag}"))
        .config("repl-ping-replica-period 1")
}

fn follow(replica: &Server, port: u16) {
    let mut r = replica.connect();
    r.ok(&format!("REPLICAOF 127.0.0.1 {port}"));
}

#[track_caller]
fn wait_until_it_grants(server: &Server) {
    let mut c = server.connect();
    wait_patiently("the master grants", || {
        !c.call("LOCK.ACQUIRE probe me 50").is_error()
    });
}

/// A client that holds `job` for as long as its node lets it, and tries again when it has lost it.
struct Holder {
    client: Client,
    owner: Option<Owner>,
}

impl Holder {
    fn at(server: &Server) -> Holder {
        let client = Client::new(always_to(server.port()));
        Holder {
            client,
            owner: None,
        }
    }

    /// Extends or acquires once; whether it holds the lock.
    fn hold(&mut self) -> bool {
        if let Some(owner) = &self.owner {
            match self.client.extend(owner) {
                Outcome::Ok(_) => return true,
                Outcome::Fail(class) if class.is_empty() => self.owner = None,
                _ => return false,
            }
        }
        let (owner, outcome) = self.client.acquire("job", LEASE, None);
        let holds = matches!(outcome, Outcome::Ok(_));
        self.owner = holds.then_some(owner);
        holds
    }

    /// Continues until `done`.
    fn hold_until(mut self, done: &AtomicBool) -> History {
        while !done.load(Ordering::Relaxed) {
            self.hold();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.client.history
    }
}

/// An old master, the replica that takes its place, and a replica of that one. The link between the
/// two can fail.
struct Chain {
    old: SteppedServer,
    link: Proxy,
    new: Server,
    _other: Server,
}

impl Chain {
    fn start() -> Chain {
        let old = SteppedServer::start(protected());
        let link = Proxy::to(old.server.port());
        let (new, other) = (protected().start(), protected().start());
        follow(&new, link.port());
        wait_for_sync(&mut old.server.connect(), &mut new.connect());
        follow(&other, new.port());
        wait_for_sync(&mut new.connect(), &mut other.connect());
        wait_until_it_grants(&old.server);
        Chain {
            old,
            link,
            new,
            _other: other,
        }
    }

    /// Somebody holds the lock at the old master all the time. `fail` does what it does and
    /// promotes the replica; `and_then` comes when the new master has granted.
    fn fail_over(&self, fail: impl FnOnce(&Chain), and_then: impl FnOnce(&Chain)) {
        let done = AtomicBool::new(false);
        let mut old = Holder::at(&self.old.server);
        wait_until("the old master grants", || old.hold());
        let history = std::thread::scope(|scope| {
            let before = scope.spawn(|| old.hold_until(&done));
            std::thread::sleep(Duration::from_millis(300));
            fail(self);
            let mut new = Holder::at(&self.new);
            wait_patiently("the new master grants", || new.hold());
            let after = scope.spawn(|| new.hold_until(&done));
            and_then(self);
            done.store(true, Ordering::Relaxed);
            let before = before.join().expect("a client that works");
            let after = after.join().expect("a client that works");
            History {
                events: [before.events, after.events].concat(),
            }
        });
        history.assert_safe();
        assert!(history.refusals("QUARANTINE") > 0);
    }

    fn promote(&self) {
        self.new.connect().ok("REPLICAOF NO ONE");
    }
}

/// The server counts its replicas once every ten turns of its cron, which is rare in a server that
/// keeps stopping.
#[test]
fn an_old_master_that_keeps_stopping_stops_granting_in_time() {
    for _ in rounds(2) {
        let chain = Chain::start();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop_and_go = || {
                while !done.load(Ordering::Relaxed) {
                    chain.old.server.pause();
                    std::thread::sleep(Duration::from_millis(750));
                    chain.old.server.resume();
                    std::thread::sleep(Duration::from_millis(60));
                }
            };
            let fail = |chain: &Chain| {
                chain.link.stall();
                scope.spawn(stop_and_go);
                std::thread::sleep(Duration::from_millis(100));
                chain.promote();
            };
            chain.fail_over(fail, |_| {
                std::thread::sleep(LEASE);
                done.store(true, Ordering::Relaxed);
            });
        });
    }
}

#[test]
fn an_old_master_whose_clock_is_set_back_stops_granting_in_time() {
    for _ in rounds(1) {
        let chain = Chain::start();
        let fail = |chain: &Chain| {
            chain.link.stall();
            chain.old.step(-3600);
            std::thread::sleep(Duration::from_millis(300));
            chain.promote();
        };
        chain.fail_over(fail, |_| std::thread::sleep(LEASE));
    }
}

/// The replica's last acknowledgement arrives when it is a master itself, and the old master does
/// not see its end.
#[test]
fn an_acknowledgement_that_arrives_late_counts_for_nothing() {
    for _ in rounds(1) {
        let chain = Chain::start();
        let fail = |chain: &Chain| {
            chain.link.requests(Flow::Hold);
            std::thread::sleep(Duration::from_millis(1300));
            chain.link.hide_ends();
            chain.promote();
        };
        chain.fail_over(fail, |chain| {
            chain.link.requests(Flow::Pass);
            std::thread::sleep(LEASE * 2);
            chain.link.heal();
        });
    }
}

/// The promoted node has no replica. When one changes sides, the old master has just granted for
/// the whole lease.
#[test]
fn a_replica_that_changes_sides_does_not_count_at_once() {
    for _ in rounds(1) {
        let old = protected().start();
        let (new, other) = (protected().start(), protected().start());
        for replica in [&new, &other] {
            follow(replica, old.port());
            wait_for_sync(&mut old.connect(), &mut replica.connect());
        }
        let (mut holder, mut rival) = (Holder::at(&old), Holder::at(&new));
        wait_until_it_grants(&old);
        new.connect().ok("REPLICAOF NO ONE");
        std::thread::sleep(LONG_AFTER_A_PROMOTION);
        assert!(!rival.hold(), "a master without a replica grants");
        wait_until("the old master grants", || holder.hold());
        follow(&other, new.port());
        wait_patiently("the new master grants", || {
            holder.hold();
            rival.hold()
        });
        holder.hold();
        let events = [holder.client.history.events, rival.client.history.events];
        let history = History {
            events: events.concat(),
        };
        history.assert_safe();
    }
}

#[test]
fn a_lost_replica_out_of_two_stops_no_grants() {
    let options = needs_replicas(500, 5);
    let master = options.clone().start();
    let replica = options.replica_of(&master);
    let (mut one, _two) = (replica.clone().start(), replica.start());
    let mut c = master.connect();
    wait_patiently("both replicas count", || {
        c.call("LOCK.NODE").number("replicas-counted") == 2
    });
    one.kill();
    for n in 0..500 {
        granted(&c.call(&format!("LOCK.ACQUIRE job-{n} me 100")));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(c.call("LOCK.NODE").number("replicas-counted"), 1);
}

#[test]
fn a_replica_that_restarts_counts_again_after_the_wait_and_waiters_keep_their_places() {
    let master = protected().start();
    let mut replica = protected().replica_of(&master).start();
    let mut c = master.connect();
    wait_until_it_grants(&master);
    granted(&c.call("LOCK.ACQUIRE job me 600"));
    let mut waiters = ["first", "second"].map(|token| {
        let mut waiter = master.connect();
        waiter.send(&format!("LOCK.ACQUIRE job {token} 600 BLOCK 0"));
        waiter
    });
    wait_for_waiters(&mut c, "job", 2);
    replica.kill();
    let killed = Instant::now();
    replica.start_again();
    wait_until("the master misses its replica", || {
        info_field(&mut c, "lock", "lock_quarantine_reason") == "replicas"
    });
    let first = granted(&waiters[0].receive());
    assert!(killed.elapsed() >= WAIT, "{:?}", killed.elapsed());
    assert!(granted(&waiters[1].receive()) > first);
}

/// The replica is back, and has confirmed everything, before the list of replicas is read again,
/// two seconds later: only the event tells of it. If the list was read just then, the second try
/// shows it.
#[test]
fn a_replica_that_is_back_at_once_counts_again_after_the_wait() {
    let options = || needs_replicas(LEASE.as_millis(), 8);
    let master = options().start();
    let _replica = options().replica_of(&master).start();
    let mut c = master.connect();
    for _ in 0..2 {
        wait_until_it_grants(&master);
        c.ok("CLIENT KILL TYPE replica");
        wait_until("the replica is back", || !c.call("SET x 1").is_error());
        assert_eq!(c.call("WAIT 1 0"), Value::Integer(1));
        refused(&c.call("LOCK.ACQUIRE job me 50"), "QUARANTINE");
    }
}

/// What a node says that has a replica, but not for long enough.
#[test]
fn without_enough_replicas_locks_can_only_be_released() {
    let master = needs_replicas(60_000, 1).start();
    let _replica = needs_replicas(60_000, 1).replica_of(&master).start();
    let mut c = master.connect();
    wait_until("the server has a replica", || {
        !c.call("LOCK.RELEASE job me").is_error()
    });
    for line in crate::quarantine::REFUSED {
        let reply = c.call(line);
        refused(&reply, "QUARANTINE");
        let (text, rest) = reply.error().split_once(", retry in ").expect("a hint");
        assert!(text.contains("too few replicas"), "{reply:?}");
        let millis = rest.strip_suffix(" ms").expect("milliseconds");
        let millis: u64 = millis.parse().expect("a number");
        assert!((1..=62_400).contains(&millis), "{reply:?}");
    }
    let released = c.call("LOCK.MRELEASE 2 a b me");
    assert_eq!(released, Value::Array(vec![Value::Null; 2]));
    assert_eq!(c.call("LOCK.FORCE job"), Value::Null);
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
    let node = c.call("LOCK.NODE");
    assert_eq!(node.number("replicas-needed"), 1);
    assert_eq!(node.number("replicas-counted"), 0);
    assert_eq!(node.field("replicas-held-ms"), Value::Null);
    assert!(node.number("quarantine") > 0);
}

#[test]
fn node_and_info_show_how_many_replicas_count_and_since_when() {
    let alone = Server::start();
    let mut c = alone.connect();
    assert_eq!(c.call("LOCK.NODE").number("replicas-needed"), 0);
    assert_eq!(info_number(&mut c, "lock", "lock_replicas_needed"), 0);
    let master = protected().start();
    let _replica = protected().replica_of(&master).start();
    wait_until_it_grants(&master);
    let mut c = master.connect();
    wait_until("the rule has held for a while", || {
        let node = c.call("LOCK.NODE");
        assert_eq!(node.number("replicas-needed"), 1);
        node.field("replicas-held-ms") != Value::Null && node.number("replicas-held-ms") > 300
    });
    let node = c.call("LOCK.NODE");
    assert!(node.number("replicas-evidence-ms") >= 0);
    assert_eq!(info_number(&mut c, "lock", "lock_replicas_needed"), 1);
    for field in ["counted", "held_ms", "evidence_ms"] {
        assert!(info_number(&mut c, "lock", &format!("lock_replicas_{field}")) >= 0);
    }
}

fn warns(server: &Server, text: &str) -> bool {
    let node = server.connect().call("LOCK.NODE");
    let warnings = node.field("warnings");
    let mut warnings = warnings.items().iter();
    warnings.any(|warning| warning.text().contains(text)) && server.log().contains(text)
}

#[test]
fn more_replicas_than_a_majority_allows_are_reported() {
    let master = protected().start();
    let replica = protected().replica_of(&master);
    let replicas: Vec<Server> = (0..2).map(|_| replica.clone().start()).collect();
    let text = "more than 2 x min-replicas-to-write";
    for replica in &replicas {
        wait_for_sync(&mut master.connect(), &mut replica.connect());
    }
    assert!(!warns(&master, text));
    let _third = replica.start();
    wait_until("it is told", || warns(&master, text));
}

#[test]
fn a_lag_of_zero_turns_the_rule_off_and_a_higher_one_does_not_count() {
    let master = protected().start();
    let mut c = master.connect();
    assert_eq!(c.call("LOCK.NODE").number("replicas-needed"), 1);
    c.ok("CONFIG SET min-replicas-max-lag 0");
    assert_eq!(c.call("LOCK.NODE").number("replicas-needed"), 0);
    assert!(warns(&master, "min-replicas-max-lag is 0"));
    wait_until_it_grants(&master);
    c.ok("CONFIG SET min-replicas-max-lag 3600");
    assert_eq!(c.call("LOCK.NODE").number("replicas-needed"), 1);
    // The lag of the start counts: without a replica, the wait is what is left.
    let left = c.call("LOCK.NODE").number("quarantine");
    assert!(left <= 1740, "{left}");
}

/// A replica may have followed a master that granted such leases. The quarantine alone is shorter.
#[test]
fn a_lowered_quarantine_does_not_shorten_the_wait() {
    let mut master = needs_replicas(60_000, 1).start();
    master.connect().ok("SAVE");
    master.kill();
    master.reconfigure(|options| options.config("lock.quarantine 100"));
    master.start_again();
    let mut c = master.connect();
    wait_until("the wait covers the saved value", || {
        let left = c.call("LOCK.NODE").number("quarantine");
        assert!(left > 55_000, "{left}");
        left > 61_500
    });
}

#[test]
fn no_heartbeat_is_sent_while_writes_are_paused() {
    let master = protected().config("repl-ping-replica-period 3600").start();
    let _replica = protected().replica_of(&master).start();
    wait_until_it_grants(&master);
    let mut c = master.connect();
    wait_until_gone(&mut c, "probe");
    let sent = |c: &mut Connection| info_number(c, "replication", "master_repl_offset");
    let before = sent(&mut c);
    wait_until("a heartbeat is sent", || sent(&mut c) > before);
    // Longer than the test.
    c.ok("CLIENT PAUSE 600000 WRITE");
    let before = sent(&mut c);
    // Time for several heartbeats.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(sent(&mut c), before);
    c.ok("CLIENT UNPAUSE");
    wait_until("heartbeats are sent again", || sent(&mut c) > before);
}

/// A heartbeat is for replicas only. It counts as a change, though: docs/OPERATIONS.md says what
/// that means for `save`.
#[test]
fn heartbeats_are_not_in_the_aof_and_count_as_changes() {
    let master = protected().appendonly("always").start();
    let _replica = protected().replica_of(&master).start();
    wait_until_it_grants(&master);
    let mut c = master.connect();
    wait_until("the last lock is gone", || {
        c.call("LOCK.NODE").number("locks") == 0
    });
    let written = info_number(&mut c, "persistence", "aof_current_size");
    let changes = info_number(&mut c, "persistence", "rdb_changes_since_last_save");
    let sent = info_number(&mut c, "replication", "master_repl_offset");
    wait_until("some heartbeats were sent", || {
        info_number(&mut c, "persistence", "rdb_changes_since_last_save") >= changes + 4
    });
    assert!(info_number(&mut c, "replication", "master_repl_offset") > sent);
    let now = info_number(&mut c, "persistence", "aof_current_size");
    assert_eq!(now, written);
}

/// Where the master is now.
fn master_among(ports: Vec<u16>) -> Route {
    Arc::new(move |_| {
        let is_master = |port: &&u16| {
            let Ok(mut c) = Connection::try_open(**port) else {
                return false;
            };
            let words = redislock_testkit::encode(&["LOCK.NODE"]);
            let node = c.try_send_raw(&words).and_then(|()| c.try_receive());
            node.is_ok_and(|node| !node.is_error() && node.field("role").text() == "master")
        };
        ports.iter().find(is_master).copied()
    })
}

/// As an upgrade does it: the replicas first, then a failover, then the old master, all under load.
#[test]
fn a_rolling_restart_of_all_nodes_grants_nothing_twice() {
    let mut first = protected().start();
    let replica = protected().replica_of(&first);
    let (mut second, mut third) = (replica.clone().start(), replica.start());
    wait_until_it_grants(&first);
    let ports = [&first, &second, &third].map(Server::port).to_vec();
    let load = Plan::new(&["job", "report"], LEASE / 2).start(master_among(ports));
    load.wait_for_grants(10);
    for replica in [&mut second, &mut third] {
        replica.restart();
        wait_for_sync(&mut first.connect(), &mut replica.connect());
        load.wait_for_grants(10);
    }
    let mut old = first.connect();
    wait_patiently("the failover begins", || {
        let target = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 5000", second.port());
        !old.call(&target).is_error()
    });
    wait_patiently("the second node is the master", || {
        let node = second.connect().call("LOCK.NODE");
        node.field("role").text() == "master"
    });
    follow(&third, second.port());
    let port = second.port();
    first.reconfigure(|options| options.config(&format!("replicaof 127.0.0.1 {port}")));
    first.restart();
    load.wait_for_grants(10);
    let history = load.stop();
    history.assert_safe();
    assert_eq!(history.violations_of_one_counter(), []);
    assert!(history.refusals("QUARANTINE") > 0);
}

/// Heartbeats that nobody acknowledges would take the stream of an old master past the promotion.
#[test]
fn an_idle_old_master_rejoins_by_a_partial_resync() {
    let (old, new) = (protected().start(), protected().start());
    follow(&new, old.port());
    wait_until_it_grants(&old);
    wait_until_gone(&mut old.connect(), "probe");
    let mut n = new.connect();
    wait_for_sync(&mut old.connect(), &mut n);
    n.ok("REPLICAOF NO ONE");
    wait_until("the old master has no replica", || {
        info_number(&mut old.connect(), "replication", "connected_slaves") == 0
    });
    // Time for several heartbeats.
    std::thread::sleep(Duration::from_secs(2));
    let full = info_number(&mut n, "stats", "sync_full");
    follow(&old, new.port());
    wait_for_sync(&mut n, &mut old.connect());
    let syncs = |c: &mut Connection, kind: &str| info_number(c, "stats", kind);
    let after = (syncs(&mut n, "sync_full"), syncs(&mut n, "sync_partial_ok"));
    assert_eq!(after, (full, 1));
}
