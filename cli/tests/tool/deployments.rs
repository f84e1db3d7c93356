//! One master behind Sentinel, and a cluster: every verb works as with independent masters.

use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::process::{Outcome, outcome};
use redislock_testkit::sentinel::{Deployment, NAME, watch};
use redislock_testkit::{Server, free_port, wait_patiently, wait_until};
use serde_json::Value;

use crate::serve::{Serving, json};
use crate::tool::{Json, NODE_TIMEOUT, redlock, sentinel_url};

fn ask(url: &str, words: &[&str]) -> Outcome {
    let mut command = redlock(&[]);
    command
        .env("REDLOCK_NODES", url)
        .envs([NODE_TIMEOUT])
        .args(words);
    outcome(command)
}

/// Every verb, on a deployment of any kind.
fn every_verb_works(url: &str, key: &str) {
    let ran = ask(url, &["run", "--key", key, "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "ran\n"), "{ran:?}");
    let taken = ask(url, &["acquire", "--key", key, "--owner", "ada", "--json"]).json();
    let busy = ask(url, &["run", "--key", key, "-n", "--", "echo", "ran"]);
    assert_eq!((busy.code, busy.out.as_str()), (Some(75), ""), "{busy:?}");
    // A machine may be so busy that the reply at the end of the wait is late.
    let mut waited = busy;
    wait_patiently("the wait ends with a reply", || {
        waited = ask(url, &["run", "--key", key, "-w", "1", "--", "echo", "ran"]);
        !waited.err.contains("no reply within")
    });
    assert_eq!(waited.code, Some(75), "{waited:?}");
    assert!(waited.err.contains("held by ada"), "{waited:?}");
    let status = ask(url, &["status", key, "--json"]).json();
    assert_eq!(status["state"], "held", "{status}");
    assert_eq!(status["holders"][0]["owner"], "ada", "{status}");
    assert_eq!(ask(url, &["status", "--check", key]).code, Some(1));
    let listed = ask(url, &["ls", "--json"]).json();
    assert_eq!(listed["locks"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["locks"][0]["state"], "held", "{listed}");
    assert_eq!(listed["silent"].as_array().unwrap().len(), 0, "{listed}");
    let mut release = redlock(&[]);
    release
        .args(["release", "--key", key])
        .env("REDLOCK_NODES", url);
    release.env("REDLOCK_TOKEN", taken["token"].as_str().unwrap());
    assert_eq!(outcome(release).code, Some(0));
    assert_eq!(ask(url, &["status", "--check", key]).code, Some(0));
    let kept = ask(
        url,
        &["run", "--key", key, "--min-hold", "120s", "--", "true"],
    );
    assert_eq!(kept.code, Some(0), "{kept:?}");
    let forced = ask(url, &["force", key, "--yes", "--json"]).json();
    assert_eq!(forced["forced"], 1, "{forced}");
    let nodes = ask(url, &["nodes"]);
    assert_eq!(nodes.code, Some(0), "{nodes:?}");
}

/// What the page knows of a lock.
fn on_the_page(serving: &Serving, key: &str) -> Option<Value> {
    let value = json(&serving.get("/api/locks?sort=name", "").1);
    let locks = value["locks"].as_array().unwrap();
    locks.iter().find(|lock| lock["key"] == key).cloned()
}

/// `top` and the page show a lock that is held.
fn is_shown(url: &str, serving: &Serving, key: &str) {
    wait_until("the page shows the lock", || {
        on_the_page(serving, key).is_some_and(|lock| lock["state"] == "held")
    });
    let shown = ask(url, &["top", "--once", "--sort", "name", "--json"]).json();
    let locks = shown["locks"].as_array().unwrap();
    let lock = locks.iter().find(|lock| lock["key"] == key);
    assert_eq!(lock.unwrap()["holders"][0]["owner"], "ada", "{shown}");
    let text = ask(url, &["top", "--once"]);
    assert!(text.out.contains("Locks are granted: "), "{text:?}");
}

#[test]
fn top_and_the_page_follow_the_master_behind_sentinel() {
    let mut deployment = Deployment::start(&Server::options());
    let url = sentinel_url(&deployment.sentinels[0]);
    let serving = Serving::start(&[], &["--node", &url]);
    let take = |key| {
        ask(
            &url,
            &["acquire", "--key", key, "--owner", "ada", "--ttl", "10m"],
        )
    };
    assert_eq!(take("before").code, Some(0));
    is_shown(&url, &serving, "before");
    deployment.master.kill();
    wait_until("the page says that the master is down", || {
        let nodes = json(&serving.get("/api/nodes", "").1);
        nodes["overview"]["granting"] == 0
    });
    wait_patiently("the replica is promoted and grants", || {
        take("after").code == Some(0)
    });
    is_shown(&url, &serving, "after");
}

#[test]
fn top_and_the_page_follow_the_slots_of_a_cluster() {
    let cluster = Cluster::start(MASTERS, 0, &Server::options());
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].port());
    let serving = Serving::start(&[], &["--node", &url]);
    // These are on different masters.
    let keys = ["job", "other", "third"];
    for key in keys {
        let taken = ask(
            &url,
            &["acquire", "--key", key, "--owner", "ada", "--ttl", "10m"],
        );
        assert_eq!(taken.code, Some(0), "{taken:?}");
    }
    for key in keys {
        is_shown(&url, &serving, key);
    }
    let nodes = json(&serving.get("/api/nodes", "").1);
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(3), "{nodes}");
    // A lock whose slot moves is shown by its new master.
    let slot: u64 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", "job"]);
    let count = |node: &Server| node.run::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
    let from = cluster
        .nodes
        .iter()
        .position(|node| count(node) == 1)
        .unwrap();
    cluster.move_slot(u16::try_from(slot).unwrap(), from, (from + 1) % 3);
    wait_until("the page shows the lock again", || {
        on_the_page(&serving, "job").is_some_and(|lock| {
            lock["state"] == "held" && lock["stale"] == false && lock["nodes"] == 1
        })
    });
}

#[test]
fn a_master_behind_sentinel() {
    let master = Server::start();
    let sentinel = watch(master.port());
    let nobody = free_port();
    let sentinels = format!("127.0.0.1:{nobody},127.0.0.1:{}", sentinel.port());
    every_verb_works(&format!("redis+sentinel://{sentinels}/{NAME}"), "job");
    let other = ask(
        &format!("redis+sentinel://{sentinels}/other"),
        &["run", "-n", "--key", "job", "--", "true"],
    );
    assert_eq!(other.code, Some(69), "{other:?}");
}

/// A lock that ended before its release is reported in the exit code.
#[test]
fn a_lock_that_was_lost_in_a_cluster() {
    let cluster = Cluster::start(MASTERS, 0, &Server::options());
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].port());
    let tool = redlock(&[]).get_program().to_str().unwrap().to_owned();
    // One key for each of two masters.
    for key in ["job", "other"] {
        let force = [tool.as_str(), "force", key, "--yes"];
        let run = ["run", "--key", key, "--ttl", "5m", "--"];
        let ran = ask(&url, &[run.as_slice(), &force].concat());
        assert_eq!(ran.code, Some(70), "{ran:?}");
        let taken = ask(&url, &["acquire", "--key", key, "--ttl", "5m", "--json"]).json();
        assert_eq!(ask(&url, &["force", key, "--yes"]).code, Some(0));
        let mut release = redlock(&[]);
        release.args(["release", "--key", key]);
        release.env("REDLOCK_NODES", &url).envs([NODE_TIMEOUT]);
        release.env("REDLOCK_TOKEN", taken["token"].as_str().unwrap());
        let released = outcome(release);
        assert_eq!(released.code, Some(70), "{released:?}");
    }
}

#[test]
fn a_cluster() {
    let cluster = Cluster::start(MASTERS, 0, &Server::options());
    let nobody = free_port();
    let url = format!(
        "redis+cluster://127.0.0.1:{nobody},127.0.0.1:{}",
        cluster.nodes[0].port()
    );
    // One key for each of two masters.
    for key in ["job", "other"] {
        every_verb_works(&url, key);
    }
    let shown = ask(&url, &["nodes", "--json"]).json();
    assert_eq!(shown["nodes"].as_array().unwrap().len(), 3, "{shown}");
}
