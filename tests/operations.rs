//! The configurations that docs/OPERATIONS.md recommends, each used as it stands there: a block
//! that no test uses, or a test whose block is gone, is a failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::history::Outcome;
use redislock_testkit::load::{Client, always_to};
use redislock_testkit::lock::counter;
use redislock_testkit::sentinel::{master_by, wait_until_it_knows};
use redislock_testkit::{
    Connection, Options, Server, Value, free_port, granted, info_number, refused, wait_for_sync,
    wait_patiently, wait_until,
};

use crate::crash::{cut, length};

const PAGE: &str = include_str!("../docs/OPERATIONS.md");
/// The section whose blocks are for redis.conf and sentinel.conf.
const SECTION: &str = "Configurations";

/// Shows what the page says about the blocks under one heading.
type Scenario = fn(&[String]);

const SCENARIOS: [(&str, Scenario); 6] = [
    (
        "Single master, everything on disk",
        a_crash_loses_nothing_acknowledged,
    ),
    (
        "Single master, quarantined",
        a_forgotten_grant_is_not_given_twice,
    ),
    (
        "Master, replicas, WAIT",
        a_master_without_replicas_stops_and_a_promoted_one_waits,
    ),
    ("Sentinel", sentinel_promotes_a_replica_that_waits),
    ("Cluster", the_cluster_elects_a_replica_that_waits),
    (
        "N independent masters (Redlock)",
        a_majority_outlives_a_node_and_forgets_nothing,
    ),
];

/// The fenced blocks of a section, by the heading they stand under, in their order.
fn blocks(page: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut section, mut heading, mut block) = ("", "", None);
    for line in page.lines() {
        if let Some(text) = &mut block {
            if line == "```" {
                let text: Vec<&str> = std::mem::take(text);
                let under = blocks.entry(heading.to_owned()).or_default();
                under.push(text.join("\n"));
                block = None;
            } else {
                text.push(line);
            }
        } else if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(title) = line.strip_prefix("### ") {
            heading = title;
        } else if section == SECTION && line.starts_with("```") {
            assert_eq!(line, "```conf", "under {heading}");
            block = Some(Vec::new());
        }
    }
    blocks
}

/// A number that a block sets.
fn setting(block: &str, name: &str) -> i64 {
    let mut lines = block.lines().map(|line| line.split(' '));
    let value =
        lines.find_map(|mut words| words.next().filter(|word| *word == name).and(words.next()));
    let value = value.unwrap_or_else(|| panic!("{name} is not set by\n{block}"));
    value.parse().expect("a number")
}

/// The longest lease that a block allows.
fn longest_lease(block: &str) -> Duration {
    Duration::from_millis(setting(block, "lock.quarantine").unsigned_abs())
}

/// For how long after a promotion the page says that nothing is granted, at least.
fn wait_after_a_promotion(block: &str) -> Duration {
    let lag = setting(block, "min-replicas-max-lag").unsigned_abs();
    let span = longest_lease(block) + Duration::from_secs(lag);
    // Clocks whose rates differ by 1 %, and a tenth of a second.
    span * 101 / 99 + Duration::from_millis(100)
}

/// All at once: each of them waits for a quarantine of the length that is recommended.
#[test]
fn each_recommended_block_keeps_what_the_page_says_of_it() {
    let blocks = blocks(PAGE);
    let recommended: Vec<&str> = blocks.keys().map(String::as_str).collect();
    let mut tried = SCENARIOS.map(|(heading, _)| heading);
    tried.sort_unstable();
    assert_eq!(recommended, tried);
    std::thread::scope(|scope| {
        for (heading, scenario) in SCENARIOS {
            let blocks = &blocks[heading];
            std::thread::Builder::new()
                .name(heading.to_owned())
                .spawn_scoped(scope, move || scenario(blocks))
                .expect("a thread");
        }
    });
}

#[test]
fn a_block_that_is_not_for_redis_conf_is_not_overlooked() {
    let page =
        "## Other\n```\nx\n```\n## Configurations\n### One\n```conf\na 1\nb 2\n```\n### Two\n";
    let found = blocks(page);
    assert_eq!(found["One"], ["a 1\nb 2"]);
    assert_eq!(found.len(), 1);
    let unmarked = format!("{page}```\nc 3\n```\n");
    assert!(std::panic::catch_unwind(|| blocks(&unmarked)).is_err());
}

#[track_caller]
fn wait_for_the_end_of_the_quarantine(c: &mut Connection) {
    wait_patiently("the quarantine is over", || {
        c.call("LOCK.NODE").number("quarantine") == 0
    });
}

/// The quarantine that began after `since` lasts this long, and no lock is granted during it.
#[track_caller]
fn assert_quarantined(c: &mut Connection, since: Instant, span: Duration) {
    let left = c.call("LOCK.NODE").number("quarantine").unsigned_abs();
    let whole = Duration::from_millis(left) + since.elapsed();
    assert!(whole >= span, "{whole:?} instead of {span:?}");
    refused(&c.call("LOCK.ACQUIRE {job}other you 1000"), "QUARANTINE");
}

fn a_crash_loses_nothing_acknowledged(blocks: &[String]) {
    let [block] = blocks else {
        panic!("{blocks:?}")
    };
    let mut server = Options::exactly(block).start();
    let mut c = server.connect();
    assert_eq!(c.call("LOCK.NODE").number("durable"), 1);
    let names: Vec<String> = (0..50).map(|n| format!("job-{n}")).collect();
    let fences: Vec<i64> = names
        .iter()
        .map(|name| granted(&c.call(&format!("LOCK.ACQUIRE {name} me 600000"))))
        .collect();
    server.kill();
    server.start_again();
    let mut c = server.connect();
    for (name, fence) in names.iter().zip(&fences) {
        let hold = c.call(&format!("LOCK.INFO {name} me"));
        assert_eq!(hold.number("fence"), *fence);
        let intruder = c.call(&format!("LOCK.ACQUIRE {name} you 1000"));
        assert_eq!(intruder, Value::Null);
    }
    let next = granted(&c.call("LOCK.ACQUIRE after the-crash 1000"));
    assert!(next > fences[fences.len() - 1]);
}

fn a_forgotten_grant_is_not_given_twice(blocks: &[String]) {
    let [block] = blocks else {
        panic!("{blocks:?}")
    };
    let lease = longest_lease(block);
    let mut server = Options::exactly(block).start();
    let mut c = server.connect();
    assert_quarantined(&mut c, Instant::now(), Duration::ZERO);
    wait_for_the_end_of_the_quarantine(&mut c);
    let longer = lease.as_millis() + 1;
    refused(
        &c.call(&format!("LOCK.ACQUIRE job me {longer}")),
        "LOCKLIMIT",
    );
    let written = length(&server.growing_aof());
    let mut client = Client::new(always_to(server.port()));
    let (_, outcome) = client.acquire("job", lease, None);
    assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
    server.kill();
    cut(&server.growing_aof(), written);
    server.start_again();
    assert_eq!(server.connect().call("EXISTS job"), Value::Integer(0));
    wait_patiently("it is granted again", || {
        matches!(client.acquire("job", lease, None).1, Outcome::Ok(_))
    });
    client.history.assert_safe();
    assert!(client.history.refusals("QUARANTINE") > 0);
}

/// A master with two replicas that counts both and grants.
fn replicated(block: &str) -> (Server, Vec<Server>) {
    let options = Options::exactly(block);
    let master = options.clone().start();
    let replica = options.replica_of(&master);
    let replicas: Vec<Server> = (0..2).map(|_| replica.clone().start()).collect();
    let mut m = master.connect();
    for replica in &replicas {
        wait_for_sync(&mut m, &mut replica.connect());
    }
    wait_for_the_end_of_the_quarantine(&mut m);
    wait_until("the master counts its replicas", || {
        info_number(&mut m, "replication", "min_slaves_good_slaves") == 2
    });
    (master, replicas)
}

/// `job`, as `me` was told that it holds it.
struct Held {
    fence: i64,
    until: Instant,
}

/// Acquires `job` and waits until that many replicas have it.
fn acquire_on(replicas: i64, m: &mut Connection, lease: Duration) -> Held {
    let until = Instant::now() + lease;
    let fence = granted(&m.call(&format!("LOCK.ACQUIRE job me {}", lease.as_millis())));
    let have_it = m.call(&format!("WAIT {replicas} 20000"));
    assert_eq!(have_it, Value::Integer(replicas));
    Held { fence, until }
}

/// A new master counts its replicas once a second; without one it says so before anything else.
fn wait_for_its_replica(r: &mut Connection) {
    wait_patiently("it has another replica", || {
        info_number(r, "replication", "min_slaves_good_slaves") == 1
    });
}

/// A new master knows what the old one had acknowledged; unless an election took longer than the
/// lease.
#[track_caller]
fn assert_known(c: &mut Connection, held: &Held) {
    match c.call("LOCK.INFO job me") {
        Value::Null => assert!(Instant::now() >= held.until, "the lock is not known"),
        hold => assert_eq!(hold.number("fence"), held.fence),
    }
    assert!(counter(c) >= held.fence);
}

fn a_master_without_replicas_stops_and_a_promoted_one_waits(blocks: &[String]) {
    let [block] = blocks else {
        panic!("{blocks:?}")
    };
    let (mut master, replicas) = replicated(block);
    let mut m = master.connect();
    let held = acquire_on(2, &mut m, longest_lease(block));
    replicas.iter().for_each(Server::pause);
    wait_until("the replicas are missed", || {
        m.call("LOCK.EXTEND job me 1000").is_error()
    });
    for line in ["LOCK.EXTEND job me 1000", "LOCK.ACQUIRE other me 1000"] {
        // The module notices it first, then the server.
        let class = m.call(line).error_class().to_owned();
        assert!(["QUARANTINE", "NOREPLICAS"].contains(&&*class), "{class}");
    }
    master.kill();
    replicas.iter().for_each(Server::resume);
    let (mut r, promoted) = (replicas[0].connect(), Instant::now());
    r.ok("REPLICAOF NO ONE");
    replicas[1]
        .connect()
        .ok(&format!("REPLICAOF 127.0.0.1 {}", replicas[0].port()));
    wait_for_its_replica(&mut r);
    assert_quarantined(&mut r, promoted, wait_after_a_promotion(block));
    assert_known(&mut r, &held);
}

fn sentinel_promotes_a_replica_that_waits(blocks: &[String]) {
    let [block, watching] = blocks else {
        panic!("{blocks:?}")
    };
    let (mut master, replicas) = replicated(block);
    // The address is the reader's own.
    let here = format!("127.0.0.1 {}", master.port());
    assert!(watching.contains("10.0.0.1 6379"));
    let watching = watching.replace("10.0.0.1 6379", &here);
    let sentinels = Options::sentinel(&watching).start_many::<3>();
    for sentinel in &sentinels {
        wait_until_it_knows(sentinel, replicas.len(), 2);
    }
    let mut m = master.connect();
    let held = acquire_on(2, &mut m, longest_lease(block));
    let (old, killed) = (master.port(), Instant::now());
    master.kill();
    let mut promoted = None;
    wait_patiently("Sentinel names another master", || {
        let named = master_by(sentinels[0].port()).filter(|port| *port != old);
        promoted = replicas.iter().find(|one| Some(one.port()) == named);
        promoted.is_some()
    });
    let mut r = promoted.expect("a replica").connect();
    wait_for_its_replica(&mut r);
    assert_quarantined(&mut r, killed, wait_after_a_promotion(block));
    assert_known(&mut r, &held);
}

fn the_cluster_elects_a_replica_that_waits(blocks: &[String]) {
    let [block] = blocks else {
        panic!("{blocks:?}")
    };
    // The first master has two replicas.
    let node = |_| {
        let bus = format!("cluster-port {}", free_port());
        Options::exactly(block).config(&bus).start()
    };
    let nodes = (0..2 * MASTERS + 1).map(node).collect();
    let mut cluster = Cluster::form(MASTERS, nodes);
    let mut m = cluster.nodes[0].connect();
    wait_until("the master counts its replicas", || {
        info_number(&mut m, "replication", "min_slaves_good_slaves") == 2
    });
    let held = acquire_on(2, &mut m, longest_lease(block));
    let killed = Instant::now();
    cluster.nodes[0].kill();
    let mut elected = None;
    wait_patiently("a replica is the master", || {
        let mut replicas = [MASTERS, 2 * MASTERS].into_iter();
        elected = replicas.find(|node| cluster.is_master(*node));
        elected.is_some()
    });
    let mut r = cluster.nodes[elected.expect("a replica")].connect();
    wait_patiently("the cluster is up again", || {
        let state = r.call("CLUSTER INFO").text().to_owned();
        state.contains("cluster_state:ok")
    });
    wait_for_its_replica(&mut r);
    let left = r.call("LOCK.NODE").number("quarantine").unsigned_abs();
    let whole = Duration::from_millis(left) + killed.elapsed();
    assert!(whole >= wait_after_a_promotion(block), "{whole:?}");
    refused(&r.call("LOCK.ACQUIRE {job}other you 1000"), "QUARANTINE");
    assert_known(&mut r, &held);
}

/// Three nodes; the client's part is done by hand.
fn a_majority_outlives_a_node_and_forgets_nothing(blocks: &[String]) {
    let [block] = blocks else {
        panic!("{blocks:?}")
    };
    let lease = longest_lease(block).as_millis();
    let mut nodes: Vec<Server> = (0..3).map(|_| Options::exactly(block).start()).collect();
    let ask = |nodes: &[Server], line: &str| -> Vec<Value> {
        nodes.iter().map(|node| node.connect().call(line)).collect()
    };
    for node in &nodes {
        wait_for_the_end_of_the_quarantine(&mut node.connect());
    }
    let proposal = redislock_testkit::lock::wall_micros() + 100_000;
    let acquire = |lock: &str, token: &str| {
        format!("LOCK.ACQUIRE {lock} {token} {lease} ONCE FENCE {proposal}")
    };
    // All accept the same fence at once.
    let told = ask(&nodes, &acquire("early", "me"));
    assert_eq!(told, vec![Value::Integer(proposal); nodes.len()]);
    // One node fewer is still a majority.
    nodes[0].kill();
    let written: Vec<u64> = nodes[1..]
        .iter()
        .map(|node| length(&node.growing_aof()))
        .collect();
    let told = ask(&nodes[1..], &acquire("job", "me"));
    let fence = told.iter().map(granted).max().expect("a majority");
    assert!(fence > proposal);
    // One that took part forgets, and both are back at once: who else asks gets no majority while
    // the first may rely on it.
    nodes[1].kill();
    cut(&nodes[1].growing_aof(), written[0]);
    nodes[0].start_again();
    nodes[1].start_again();
    assert_eq!(nodes[1].connect().call("EXISTS job"), Value::Integer(0));
    let told = ask(&nodes, &acquire("job", "you"));
    refused(&told[0], "QUARANTINE");
    refused(&told[1], "QUARANTINE");
    assert_eq!(told[2], Value::Null);
    for node in &nodes[..2] {
        let left = node.connect().call("LOCK.NODE").number("quarantine");
        let ttl = nodes[2].connect().call("LOCK.INFO job me").number("ttl");
        assert!(left > ttl, "{left} {ttl}");
    }
}

#[test]
fn what_the_page_says_to_monitor_is_there() {
    let server = Server::start();
    let mut c = server.connect();
    let info = c.call("INFO everything").text().to_owned();
    let node = c.call("LOCK.NODE").fields();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let lock = c.call("LOCK.INFO job").fields();
    let holder = c.call("LOCK.INFO job me").fields();
    let (_, section) = PAGE.split_once("## What to monitor").expect("the section");
    let rows = section.lines().take_while(|line| !line.starts_with("## "));
    let (mut place, mut found) = ("", 0);
    for row in rows.filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        place = cells[1].split('`').nth(1).unwrap_or(place);
        for name in cells[2].split('`').skip(1).step_by(2) {
            let is_it = |field: &String| field == name;
            let there = match place {
                "LOCK.NODE" => node.iter().any(is_it),
                "LOCK.INFO key" => lock.iter().chain(&holder).any(is_it),
                _ => info.contains(&format!("\n{name}:")),
            };
            assert!(there, "{place} has no {name}");
            found += 1;
        }
    }
    assert!(found > 0);
}
