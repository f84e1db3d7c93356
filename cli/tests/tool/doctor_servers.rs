//! `redlock doctor`: checks of what a server does and has done, each on a real server.

use std::time::Duration;

use redislock_testkit::cluster::node_options;
use redislock_testkit::{Proxy, Server, SteppedServer, Value, wait_until};

use crate::doctor::{SOUND, ask, found, sound, urls, wait_until_it_grants};

#[test]
fn a_server_that_refuses_requests_is_reported_with_its_error() {
    let servers = [sound(), sound(), sound()];
    let set = |name: &str, value: &str| {
        let _: () = servers[0].run(&["CONFIG", "SET", name, value]);
    };
    let refused = [("refused", "error")];
    set("maxmemory", "1");
    let ended = found(&urls(&servers), &[], 2, &refused);
    assert!(ended.out.contains("raise maxmemory"), "{ended:?}");
    set("maxmemory", "0");
    set("min-replicas-to-write", "1");
    let nodes = urls(&servers);
    wait_until("too few replicas are reported", || {
        let ended = ask(&nodes, &["--json"]);
        let expected = ["NOREPLICAS", "too few replicas"];
        ended.code != Some(0) && expected.iter().any(|text| ended.out.contains(text))
    });
    set("min-replicas-to-write", "0");
    wait_until_it_grants(&servers[0]);
    found(&nodes, &[], 0, &[]);
    let _: () = servers[0].run(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let ended = found(&nodes, &[], 2, &refused);
    assert!(ended.out.contains("CLIENT UNPAUSE"), "{ended:?}");
    let _: () = servers[0].run(&["CLIENT", "UNPAUSE"]);
    found(&nodes, &[], 0, &[]);
}

#[test]
fn a_server_that_is_nearly_full_is_reported() {
    let server = sound();
    let nodes = [server.url()];
    let _: i64 = server.run(&["SETRANGE", "filler", "30000000", "x"]);
    let info: String = server.run(&["INFO", "memory"]);
    let used = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.unwrap().trim().parse().unwrap();
    let limit = |percent: u64| {
        let limit = (used / 100 * percent).to_string();
        let _: () = server.run(&["CONFIG", "SET", "maxmemory", &limit]);
    };
    limit(200);
    found(&nodes, &[], 0, &[]);
    // There is room for the connections of the check.
    limit(105);
    let ended = found(&nodes, &[], 1, &[("memory", "warning")]);
    assert!(ended.out.contains("refuses new locks"), "{ended:?}");
    // A cache is always full.
    let _: () = server.run(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    found(&nodes, &[], 0, &[]);
}

#[test]
fn a_server_that_cannot_save_is_reported() {
    let server = Server::with([SOUND[0], SOUND[1], "save 3600 1"]);
    wait_until_it_grants(&server);
    // A folder is in the way of the file.
    let names: Vec<String> = server.run(&["CONFIG", "GET", "dbfilename"]);
    let in_the_way = server.folder().join(&names[1]);
    std::fs::create_dir(&in_the_way).unwrap();
    let _: Value = server.run(&["BGSAVE"]);
    wait_until("the save has failed", || {
        let info: String = server.run(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    let ended = found(&[server.url()], &[], 2, &[("refused", "error")]);
    assert!(ended.out.contains("then BGSAVE"), "{ended:?}");
    // What it advises helps.
    std::fs::remove_dir(&in_the_way).unwrap();
    let _: Value = server.run(&["BGSAVE"]);
    wait_until("it is saved", || {
        let info: String = server.run(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:ok")
    });
    found(&[server.url()], &[], 0, &[]);
}

#[test]
fn locks_that_were_evicted_are_reported_until_the_server_is_restarted() {
    let server = sound();
    let set = |name: &str, value: &str| {
        let _: () = server.run(&["CONFIG", "SET", name, value]);
    };
    let _: u64 = server.run(&["LOCK.ACQUIRE", "job", "me", "100"]);
    set("maxmemory-policy", "allkeys-random");
    set("maxmemory", "1");
    wait_until("the lock is evicted", || {
        let info: String = server.run(&["INFO", "lock_stats"]);
        info.contains("lock_evicted:1")
    });
    set("maxmemory", "0");
    set("maxmemory-policy", "noeviction");
    found(&[server.url()], &[], 2, &[("evicted", "error")]);
}

#[test]
fn too_few_connections_are_reported() {
    let server = Server::with([SOUND[0], "lock.max-waiters 100", "maxclients 60"]);
    wait_until_it_grants(&server);
    let ended = found(&[server.url()], &[], 0, &[]);
    let note = "maxclients 60 leaves no connections beside lock.max-waiters 100";
    assert!(ended.out.contains(note), "{ended:?}");
    let _used: Vec<_> = (0..55).map(|_| server.connect()).collect();
    let ended = found(&[server.url()], &[], 1, &[("maxclients", "warning")]);
    assert!(
        ended.out.contains("of 60 connections are in use"),
        "{ended:?}"
    );
}

#[test]
fn a_clock_that_was_set_back_is_reported() {
    let stepped = SteppedServer::start(Server::options().configs(SOUND));
    wait_until_it_grants(&stepped.server);
    let _: u64 = stepped.server.run(&["LOCK.ACQUIRE", "job", "me", "100"]);
    stepped.step(-60);
    let nodes = [stepped.server.url()];
    found(&nodes, &[], 1, &[("fence-lead", "warning")]);
}

#[test]
fn versions_that_differ_and_slow_replies_are_reported() {
    let servers = [sound(), sound()];
    let third = sound();
    let proxy = Proxy::to(third.port());
    let mut nodes = urls(&servers);
    nodes.push(proxy.url());
    let node: Value = third.run(&["LOCK.NODE"]);
    let version = node.field("version").text().to_owned();
    let other = format!("{}9", &version[..version.len() - 1]);
    proxy.replace_in_replies(&version, &other);
    found(&nodes, &[], 1, &[("module-version", "warning")]);
    proxy.replace_in_replies("redis_version:7", "redis_version:6");
    let ended = ask(&nodes, &["--json"]);
    let kind = third.kind();
    if !kind.valkey && kind.major == 7 {
        let expected = ["server-version", "is older than the module supports"];
        assert!(
            expected.iter().all(|text| ended.out.contains(text)),
            "{ended:?}"
        );
    }
    proxy.replace_in_replies("failed\r\n:0", "failed\r\n:1");
    found(&nodes, &[], 2, &[("failed", "error")]);
    proxy.replace_in_replies("failed\r\n:0", "failed\r\n:0");
    proxy.delay_replies(Duration::from_millis(600));
    let words = ["--node-timeout", "1s"];
    found(&nodes, &words, 1, &[("round-trip", "warning")]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_password_in_plaintext_is_reported() {
    let server = sound();
    let _: () = server.run(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    // A name that leads to this host, but does not say so.
    let url = format!("redis://app:pw@127.1:{}", server.port());
    let ended = found(&[url], &[], 1, &[("tls", "warning")]);
    assert!(!ended.out.contains("app:pw"), "{ended:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_password_in_plaintext_to_nodes_that_a_cluster_names_is_reported() {
    // The URL names this host, but the nodes of the cluster are elsewhere, by their names.
    let options = Server::options()
        .configs(SOUND)
        .config("cluster-announce-ip 127.1");
    let server = node_options(&options).start();
    let _: () = server.run(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    let _: () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("it grants", || {
        let node: Value = server.run(&["LOCK.NODE"]);
        node.number("quarantine") == 0 && node.field("refusal").text() == "none"
    });
    let url = format!("redis+cluster://app:pw@127.0.0.1:{}", server.port());
    let expected = [
        ("min-replicas", "error"),
        ("replicas", "warning"),
        ("tls", "warning"),
    ];
    let ended = found(&[url], &[], 2, &expected);
    assert!(!ended.out.contains("app:pw"), "{ended:?}");
}

#[test]
fn nothing_that_a_server_says_controls_the_terminal() {
    let server = sound();
    let proxy = Proxy::to(server.port());
    let hostile = "\x1b[2J\x1b]";
    proxy.replace_in_replies("master", hostile);
    for verb in ["doctor", "nodes"] {
        let mut command = crate::tool::redlock(&[]);
        command.env("REDLOCK_NODES", proxy.url()).arg(verb);
        let ended = redislock_testkit::process::outcome(command);
        let printed = format!("{}{}", ended.out, ended.err);
        assert!(!printed.contains('\x1b'), "{verb}: {ended:?}");
        assert!(printed.contains("\\u{1b}[2J"), "{verb}: {ended:?}");
    }
}
