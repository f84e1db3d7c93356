//! `redlock doctor`, on real deployments with real mistakes.

use redislock_testkit::cluster::{Cluster, node_options};
use redislock_testkit::process::{Outcome, outcome};
use redislock_testkit::sentinel::{Deployment, watch};
use redislock_testkit::{Options, Server, Value, wait_until};

use crate::masters;
use crate::tool::{Json, redlock, sentinel_url};

/// Settings under which a node has no problem; it grants soon after its start.
pub const SOUND: [&str; 2] = ["lock.quarantine 300", "lock.max-waiters 100"];

/// The name of a check, and its severity.
type Expected = (&'static str, &'static str);

pub fn ask(nodes: &[String], words: &[&str]) -> Outcome {
    let mut command = redlock(&[]);
    command
        .env("REDLOCK_NODES", nodes.join(","))
        .arg("doctor")
        .args(words);
    outcome(command)
}

pub fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

/// A server that grants locks.
pub fn sound() -> Server {
    let server = Server::with(SOUND);
    wait_until_it_grants(&server);
    server
}

pub fn wait_until_it_grants(server: &Server) {
    wait_until("the quarantine is over", || {
        server.run::<Value>(&["LOCK.NODE"]).number("quarantine") == 0
    });
}

/// Settings under which a master with replicas has no problem.
fn with_replicas() -> Options {
    Server::options()
        .configs(SOUND)
        .configs(["min-replicas-to-write 1", "min-replicas-max-lag 1"])
}

/// A master that grants locks, with its replicas and Sentinels, and its URL.
fn sound_deployment() -> (Deployment, [String; 1]) {
    let deployment = Deployment::start(&with_replicas());
    wait_until_it_grants(&deployment.master);
    let url = [sentinel_url(&deployment.sentinels[0])];
    (deployment, url)
}

/// Check and severity of each finding; notes are left out.
fn findings(ended: &Outcome) -> Vec<(String, String)> {
    let found = ended.json();
    let found = found["findings"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    found
        .map(|found| (text(&found["check"]), text(&found["severity"])))
        .filter(|(_, severity)| severity != "note")
        .collect()
}

#[track_caller]
pub fn found(nodes: &[String], words: &[&str], code: i32, expected: &[Expected]) -> Outcome {
    let ended = ask(nodes, &[words, &["--json"]].concat());
    let owned = |(check, severity): &Expected| ((*check).to_owned(), (*severity).to_owned());
    let expected: Vec<_> = expected.iter().map(owned).collect();
    assert_eq!(findings(&ended), expected, "{ended:?}");
    assert_eq!(ended.code, Some(code), "{ended:?}");
    ended
}

#[test]
fn a_sound_deployment_has_no_problems() {
    let servers = [sound(), sound(), sound()];
    found(&urls(&servers), &[], 0, &[]);
    let text = ask(&urls(&servers), &[]);
    assert_eq!(text.code, Some(0));
    assert!(text.out.ends_with("3 nodes: no problems\n"), "{text:?}");
    for server in &servers {
        let keys: Vec<String> = server.run(&["KEYS", "*"]);
        assert!(keys.is_empty(), "it left {keys:?}");
    }
}

#[test]
fn each_mistake_is_found_with_what_to_change() {
    let fine = [sound(), sound()];
    let [first, second] = [fine[0].url(), fine[1].url()];
    let replica = Server::with([
        &format!("replicaof 127.0.0.1 {}", fine[0].port()),
        SOUND[0],
        SOUND[1],
    ]);
    wait_until("it replicates", || {
        let info: String = replica.run(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    });
    let forgetful = Server::with([SOUND[1]]);
    let evicting = sound();
    let _: () = evicting.run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let quarantined = Server::with(["lock.quarantine 600000", SOUND[1]]);
    let bare = Server::options().without_module().start();
    let with = |other: &Server| vec![first.clone(), second.clone(), other.url()];
    let cases: [(Vec<String>, i32, &[Expected]); 6] = [
        (with(&bare), 2, &[("reachable", "error")]),
        (
            with(&forgetful),
            2,
            &[
                ("persistence", "error"),
                ("max-ttl", "warning"),
                ("quarantine", "warning"),
            ],
        ),
        (with(&evicting), 2, &[("maxmemory-policy", "error")]),
        (
            with(&quarantined),
            1,
            &[
                ("quarantine-running", "warning"),
                ("max-ttl", "warning"),
                ("quarantine", "warning"),
            ],
        ),
        (
            vec![second.clone(), evicting.url()],
            2,
            &[("maxmemory-policy", "error"), ("node-count", "warning")],
        ),
        (
            vec![
                second.clone(),
                format!("redis://localhost:{}", fine[1].port()),
                evicting.url(),
            ],
            2,
            &[("maxmemory-policy", "error"), ("same-server", "error")],
        ),
    ];
    // The first one has a replica, which is a problem of its own.
    let of_the_master = [("replicas", "warning"), ("min-replicas", "warning")];
    for (nodes, code, expected) in cases {
        let ended = ask(&nodes, &["--json"]);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let mut rest = findings(&ended);
        rest.retain(|(check, _)| !of_the_master.iter().any(|(own, _)| own == check));
        let rest: Vec<(&str, &str)> = rest
            .iter()
            .map(|(check, severity)| (check.as_str(), severity.as_str()))
            .collect();
        assert_eq!(rest, expected, "{ended:?}");
    }
    found(
        &[first, second, replica.url()],
        &[],
        2,
        &[("role", "error"), of_the_master[0], of_the_master[1]],
    );
}

#[test]
fn a_node_that_is_down_is_an_error_and_all_down_is_unavailable() {
    let mut servers = [sound(), sound(), sound()];
    servers[2].pause();
    found(&urls(&servers), &[], 2, &[("reachable", "error")]);
    servers[2].resume();
    servers[2].kill();
    let ended = found(&urls(&servers), &[], 2, &[("reachable", "error")]);
    assert!(
        ended.json()["findings"][0]["fix"]
            .as_str()
            .unwrap()
            .contains("server runs")
    );
    servers[1].kill();
    found(
        &urls(&servers),
        &[],
        2,
        &[
            ("reachable", "error"),
            ("reachable", "error"),
            ("quorum", "error"),
        ],
    );
    servers[0].kill();
    let ended = ask(&urls(&servers), &[]);
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (Some(69), ""),
        "{ended:?}"
    );
}

#[test]
fn missing_permissions_are_named() {
    let server = sound();
    let user = |rules: &[&str]| {
        let reset = ["ACL", "SETUSER", "app", "reset", "on", ">pw"];
        let _: () = server.run(&[&reset[..], rules].concat());
    };
    let url = [format!("redis://app:pw@127.0.0.1:{}", server.port())];
    // The user of redis.conf.
    let full = [
        "~lock:*",
        "+ping",
        "+lock.acquire",
        "+lock.release",
        "+lock.extend",
        "+lock.info",
        "+lock.node",
    ];
    user(&full);
    let ended = found(&url, &["--key", "lock:job"], 0, &[]);
    // It may not read the settings: that is a note.
    assert!(ended.out.contains("CONFIG GET cannot be run"), "{ended:?}");
    found(&url, &[], 0, &[]);
    let refused = [("permissions", "error"); 4];
    found(&url, &["--key", "other"], 2, &refused);
    // Every key is tried, and the one that is refused is named.
    let ended = found(&url, &["--key", "lock:job", "--key", "other"], 2, &refused);
    assert!(
        ended.out.contains("LOCK.ACQUIRE on the key other"),
        "{ended:?}"
    );
    user(&["~lock:*", "+lock.node", "+lock.info"]);
    let keys = ["--key", "lock:job", "--key", "lock:else"];
    let ended = found(&url, &keys, 2, &refused[..3]);
    assert!(ended.out.contains("LOCK.ACQUIRE"), "{ended:?}");
    user(&["~lock:*"]);
    let ended = ask(&url, &[]);
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.err.contains("NOPERM"), "{ended:?}");
}

#[test]
fn behind_sentinel_a_master_needs_replicas_and_min_replicas() {
    let master = sound();
    let sentinel = watch(master.port());
    let url = [sentinel_url(&sentinel)];
    found(
        &url,
        &[],
        2,
        &[("min-replicas", "error"), ("replicas", "warning")],
    );
}

#[test]
fn a_replica_with_other_settings_is_found_before_it_takes_over() {
    let (deployment, url) = sound_deployment();
    found(&url, &[], 0, &[]);
    let replica = &deployment.replicas[0];
    let _: () = replica.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let ended = found(&url, &[], 2, &[("replica-settings", "error")]);
    let fix = "set min-replicas-to-write 1 on the replica";
    assert!(ended.out.contains(fix), "{ended:?}");
}

#[test]
fn a_replica_whose_settings_cannot_be_read_is_named() {
    let (deployment, url) = sound_deployment();
    let replica = &deployment.replicas[0];
    let rule = ["ACL", "SETUSER", "default", "-config|get"];
    let _: () = replica.run(&rule);
    let ended = found(&url, &[], 0, &[]);
    let note = format!(
        "CONFIG GET cannot be run on its replica 127.0.0.1:{}",
        replica.port()
    );
    assert!(ended.out.contains(&note), "{ended:?}");
    let text = ask(&url, &[]);
    let summary = "1 node: no problems in what could be checked\n";
    assert!(text.out.ends_with(summary), "{text:?}");
}

#[test]
fn in_a_cluster_that_may_move_replicas_every_such_node_is_named() {
    let options = with_replicas();
    let nodes = || node_options(&options).start();
    let cluster = Cluster::form(1, vec![nodes(), nodes()]);
    let [master, replica] = &cluster.nodes[..] else {
        panic!("two nodes")
    };
    let url = [format!("redis+cluster://127.0.0.1:{}", master.port())];
    let named = |ended: &Outcome, server: &Server| {
        let problem = ended.json()["findings"][0]["problem"].to_string();
        problem.contains(&server.port().to_string())
    };
    let migration = [("replica-migration", "warning")];
    let ended = found(&url, &[], 1, &migration);
    assert!(named(&ended, master) && named(&ended, replica), "{ended:?}");
    // What it advises helps.
    let fix = ["CONFIG", "SET", "cluster-allow-replica-migration", "no"];
    let _: () = master.run(&fix);
    let ended = found(&url, &[], 1, &migration);
    assert!(
        !named(&ended, master) && named(&ended, replica),
        "{ended:?}"
    );
    let _: () = replica.run(&fix);
    found(&url, &[], 0, &[]);
    // Without the permission it is reported that this is not checked.
    for server in [master, replica] {
        let _: () = server.run(&["ACL", "SETUSER", "default", "-config|get"]);
    }
    let ended = found(&url, &[], 0, &[]);
    assert!(ended.out.contains("the migration of replicas"), "{ended:?}");
}

#[test]
fn in_a_cluster_keys_of_one_request_need_a_common_hash_tag() {
    let cluster = Cluster::start(1, 0, &Server::options().configs(SOUND));
    let url = [format!(
        "redis+cluster://127.0.0.1:{}",
        cluster.nodes[0].port()
    )];
    let usual = [("min-replicas", "error"), ("replicas", "warning")];
    found(&url, &["--key", "{a}:x", "--key", "{a}:y"], 2, &usual);
    let apart = [usual[0], usual[1], ("hash-tags", "warning")];
    found(&url, &["--key", "a:x", "--key", "a:y"], 2, &apart);
}

#[test]
fn nodes_of_a_cluster_that_are_listed_as_masters_are_reported() {
    let cluster = Cluster::start(3, 0, &Server::options().configs(SOUND));
    let listed: Vec<String> = cluster.nodes.iter().map(Server::url).collect();
    // One of them has the key that doctor tries, the others send it there.
    let expected = [
        ("refused", "error"),
        ("refused", "error"),
        ("cluster-mode", "warning"),
    ];
    let ended = found(&listed, &[], 2, &expected);
    assert!(ended.out.contains("redis+cluster:// URL"), "{ended:?}");
}

#[test]
fn servers_without_any_settings_get_the_risk_explained() {
    let servers = masters::<1>();
    let ended = ask(&urls(&servers), &[]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.out.contains("may grant a lock that is still held"),
        "{ended:?}"
    );
    assert!(ended.out.contains("fix: set lock.quarantine"), "{ended:?}");
    assert!(
        ended.out.ends_with("1 node: 1 error, 0 warnings\n"),
        "{ended:?}"
    );
}
