//! What monitoring reads: INFO lock, and the script for redis_exporter in packaging/.

use std::collections::BTreeMap;

use redislock_testkit::{Connection, Server, Value, free_port, granted, refused};

const SCRIPT: &str = include_str!("../packaging/redis_exporter.lua");
const REFERENCE: &str = include_str!("../docs/COMMANDS.md");

/// The fields of `INFO lock`.
fn info(c: &mut Connection) -> BTreeMap<String, String> {
    let text = c.call("INFO lock").text().to_owned();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

#[test]
fn every_field_of_info_is_a_number_or_has_one_and_is_documented() {
    let server = Server::start();
    let info = info(&mut server.connect());
    let (_, section) = REFERENCE.split_once("\n## INFO\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    assert!(info.len() > 30, "{info:?}");
    for (name, value) in &info {
        let twin = info.get(&format!("{name}_code"));
        let numeric = is_number(value) || twin.is_some_and(|twin| is_number(twin));
        assert!(numeric, "{name} is {value}");
        let short = name.strip_prefix("lock_").expect("the prefix");
        assert!(section.contains(&format!("`{short}`")), "{name}");
        assert!(section.contains(&format!("\n{name}:")), "{name}");
    }
}

#[test]
fn each_reason_of_a_quarantine_has_its_documented_number() {
    let server = Server::start();
    let calm = info(&mut server.connect());
    assert_eq!(calm["lock_quarantine_reason"], "none");
    assert_eq!(calm["lock_quarantine_reason_code"], "0");
    let server = Server::options().config("lock.quarantine 600000").start();
    let paused = info(&mut server.connect());
    assert_eq!(paused["lock_quarantine_reason"], "start");
    assert_eq!(paused["lock_quarantine_reason_code"], "1");
    assert!(REFERENCE.contains("1 `start`"));
}

#[test]
fn info_shows_the_current_limit_of_waiters() {
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(info(&mut c)["lock_max_waiters"], "10000");
    c.ok("CONFIG SET lock.max-waiters 7");
    assert_eq!(info(&mut c)["lock_max_waiters"], "7");
}

/// Runs the script as redis_exporter does, which reads pairs of strings and parses the second ones
/// as numbers.
fn run_script(c: &mut Connection) -> BTreeMap<String, f64> {
    let reply = c.call_args(&[b"EVAL", SCRIPT.as_bytes(), b"0", b"0"]);
    let items = reply.items();
    assert!(
        items.len().is_multiple_of(2) && !items.is_empty(),
        "{reply:?}"
    );
    let value = |item: &Value| item.text().parse().expect("a number");
    let pairs = items.chunks(2);
    pairs
        .map(|pair| (pair[0].text().to_owned(), value(&pair[1])))
        .collect()
}

#[test]
fn the_script_for_redis_exporter_returns_every_number() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let told = run_script(&mut c);
    for (name, value) in info(&mut c).iter().filter(|(_, value)| is_number(value)) {
        let value: f64 = value.parse().expect("a number");
        // What time changes is there.
        let moves = name.contains("slice") || name.contains("hold");
        assert!(moves || told[name] == value, "{name}: {told:?}");
    }
    for (name, value) in [
        ("lock_up", 1.0),
        ("lock_grants", 1.0),
        ("node_locks", 1.0),
        ("node_durable", 0.0),
        ("node_warnings", 1.0),
        ("node_max_ttl", 86_400_000.0),
        ("node_failed", 0.0),
        ("node_replicas_needed", 0.0),
    ] {
        assert_eq!(told[name], value, "{name}: {told:?}");
    }
    assert!(told["node_time"] > 1.7e15, "{told:?}");
    assert_eq!(told["lock_refusal_code"], 0.0);
    c.ok("CONFIG SET maxmemory 1");
    assert_eq!(run_script(&mut c)["lock_refusal_code"], 1.0);
}

/// Nothing ends the pause: a script that waits for its end gets no reply.
#[test]
fn the_script_for_redis_exporter_replies_while_writes_are_paused() {
    let server = Server::start();
    let mut admin = server.connect();
    admin.ok("CLIENT PAUSE 600000 WRITE");
    let told = run_script(&mut server.connect());
    assert_eq!(told["lock_up"], 1.0, "{told:?}");
    // 4 is `paused`: the pause is still on.
    assert_eq!(told["lock_refusal_code"], 4.0, "{told:?}");
    admin.ok("CLIENT UNPAUSE");
}

#[test]
fn the_script_for_redis_exporter_replies_on_a_replica_that_serves_no_stale_data() {
    let nobody = format!("replicaof 127.0.0.1 {}", free_port());
    let server = Server::with(["replica-serve-stale-data no", &nobody]);
    let mut c = server.connect();
    refused(&c.call("GET key"), "MASTERDOWN");
    assert_eq!(run_script(&mut c)["lock_up"], 1.0);
}

#[test]
fn without_the_module_or_the_permission_the_script_says_so() {
    let bare = Server::options().without_module().start();
    let nothing = BTreeMap::from([("lock_up".to_owned(), 0.0)]);
    assert_eq!(run_script(&mut bare.connect()), nothing);
    let server = Server::start();
    let mut admin = server.connect();
    admin.ok("ACL SETUSER watcher reset on >secret +eval +info");
    let mut watcher = server.connect();
    watcher.ok("AUTH watcher secret");
    assert_eq!(run_script(&mut watcher), nothing);
    admin.ok("ACL SETUSER watcher +lock.node");
    assert_eq!(run_script(&mut watcher)["lock_up"], 1.0);
}
