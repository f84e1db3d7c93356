//! The users that docs/OPERATIONS.md recommends, with the tool: each can do its work.

use redislock_testkit::Server;
use redislock_testkit::cluster::Cluster;
use redislock_testkit::process::{Outcome, outcome};

use crate::exporter::Exporter;
use crate::masters;
use crate::tool::{Json, NODE_TIMEOUT, redlock};

const PAGE: &str = include_str!("../../../docs/OPERATIONS.md");

/// Creates the user on the server; its URL.
fn login(server: &Server, name: &str) -> String {
    let start = format!("user {name} ");
    let rules = PAGE.lines().find_map(|line| line.strip_prefix(&start));
    let rules = rules.expect("the user").replace("choose-a-password", "pw");
    let mut words: Vec<&str> = vec!["ACL", "SETUSER", name];
    words.extend(rules.split(' '));
    if name == "operator" && !server.kind().gives_modules_acl_categories() {
        words.push("+flushall");
    }
    let _: () = server.run(&words);
    format!("redis://{name}:pw@127.0.0.1:{}", server.port())
}

fn ask(url: &str, words: &[&str]) -> Outcome {
    let mut command = redlock(&[]);
    command.env("REDLOCK_NODES", url).envs([NODE_TIMEOUT]);
    command.args(words);
    outcome(command)
}

#[track_caller]
fn works(url: &str, words: &[&str]) -> Outcome {
    let ended = ask(url, words);
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended
}

#[test]
fn an_application_can_run_commands_under_its_locks() {
    let [server] = masters::<1>();
    let url = login(&server, "app");
    works(&url, &["run", "--key", "lock:a", "--", "true"]);
    works(&url, &["acquire", "--key", "lock:a"]);
    works(&url, &["status", "lock:a"]);
    let other = ask(&url, &["run", "-n", "--key", "other", "--", "true"]);
    assert_ne!(other.code, Some(0), "{other:?}");
    assert!(other.err.contains("NOPERM"), "{other:?}");
    let forced = ask(&url, &["force", "lock:a", "--yes"]);
    assert_ne!(forced.code, Some(0), "{forced:?}");
    assert!(!server.is_free("lock:a"));
}

#[test]
fn an_operator_can_look_check_and_force() {
    let [server] = masters::<1>();
    let url = login(&server, "operator");
    let _: i64 = server.run(&["LOCK.ACQUIRE", "lock:a", "secret", "60000"]);
    let listed = works(&url, &["ls", "--json"]).json();
    assert_eq!(listed["locks"][0]["key"], "lock:a", "{listed}");
    works(&url, &["status", "lock:a"]);
    works(&url, &["nodes"]);
    // The server has a real problem: it is neither durable nor quarantined.
    let doctor = ask(&url, &["doctor", "--key", "lock:a", "--json"]).json();
    let checks = doctor["findings"].as_array().unwrap().iter();
    let checks: Vec<&str> = checks.map(|one| one["check"].as_str().unwrap()).collect();
    assert!(checks.contains(&"persistence"), "{doctor}");
    assert!(!checks.contains(&"permissions"), "{doctor}");
    works(&url, &["force", "lock:a", "--yes"]);
    assert!(server.is_free("lock:a"));
}

#[test]
fn monitoring_can_export() {
    let [server] = masters::<1>();
    let exporter = Exporter::start(&login(&server, "monitoring"));
    let page = exporter.scrape();
    let names = page.names();
    for name in [
        "redislock_locks",
        "redislock_warnings",
        "redislock_wait_seconds_count",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(!names.contains("redislock_problem"), "{names:?}");
}

#[test]
fn applications_operators_and_monitoring_work_in_a_cluster() {
    let cluster = Cluster::start(1, 0, &Server::options());
    let login = |name| login(&cluster.nodes[0], name).replace("redis://", "redis+cluster://");
    works(&login("app"), &["run", "--key", "lock:a", "--", "true"]);
    works(&login("operator"), &["nodes"]);
    let exporter = Exporter::start(&login("monitoring"));
    let page = exporter.scrape();
    assert_eq!(page.value("redislock_nodes_granting"), Some(1.0));
    assert!(!page.names().contains("redislock_problem"));
}
