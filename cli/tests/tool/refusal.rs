//! Servers that refuse new locks, whatever the module would decide: `nodes`, `doctor`, `exporter`,
//! `top` and the page report it.

use redislock_testkit::cluster::Cluster;
use redislock_testkit::process::outcome;
use redislock_testkit::{Proxy, Server, Value, wait_until};

use crate::exporter::Exporter;
use crate::serve::{Serving, json};
use crate::tool::{Json, NODE_TIMEOUT, redlock};

/// Three nodes of which the first can be made to refuse, and what looks at them.
struct Watched {
    servers: [Server; 3],
    exporter: Exporter,
    page: Serving,
}

impl Watched {
    fn start() -> Self {
        let servers: [Server; 3] = Server::options().config("save 3600 1").start_many();
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        let exporter = Exporter::start(&urls.join(","));
        let page = Serving::start(&servers, &[]);
        Self {
            servers,
            exporter,
            page,
        }
    }

    fn set(&self, name: &str, value: &str) {
        let _: () = self.servers[0].run(&["CONFIG", "SET", name, value]);
    }

    fn ask(&self, words: &[&str]) -> redislock_testkit::process::Outcome {
        let mut command = redlock(&self.servers);
        command.envs([NODE_TIMEOUT]).args(words);
        outcome(command)
    }

    /// The first node refuses for this reason, and everything says so.
    #[track_caller]
    fn all_report(&self, reason: &str, text: &str) {
        let nodes = self.ask(&["nodes"]);
        assert_eq!(nodes.code, Some(69), "{nodes:?}");
        assert!(nodes.out.contains(text), "{nodes:?}");
        assert!(nodes.err.contains("1 of 3 nodes cannot grant"), "{nodes:?}");
        let first = self.ask(&["nodes", "--json"]).json()["nodes"][0].clone();
        assert_eq!(first["refusal"], reason, "{first}");
        assert!(first["problem"].as_str().unwrap().contains(text), "{first}");
        let doctor = self.ask(&["doctor", "--json"]);
        let refused = doctor.json()["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["check"] == "refused" && one["severity"] == "error");
        assert!(refused && doctor.code == Some(2), "{doctor:?}");
        self.is_exported(reason, 2.0);
        let top = self.ask(&["top", "--once"]);
        let cut = text.get(..38).unwrap_or(text);
        assert!(top.out.contains(cut), "{top:?}");
        wait_until("the page reports it", || {
            let node = json(&self.page.get("/api/nodes", "").1)["nodes"][0].clone();
            node["level"] == "bad" && node["state"].as_str().is_some_and(|state| state == text)
        });
    }

    #[track_caller]
    fn is_exported(&self, reason: &str, granting: f64) {
        let page = self.exporter.scrape();
        let first = format!("node=\"127.0.0.1:{}\"", self.servers[0].port());
        let labels = format!("redislock_refusal{{{first},reason=\"{reason}\"}}");
        assert_eq!(page.value(&labels), Some(1.0), "{reason}");
        assert_eq!(page.value("redislock_nodes_granting"), Some(granting));
        let grants = page.value(&format!("redislock_granting{{{first}}}"));
        assert_eq!(grants == Some(1.0), reason == "none");
    }

    #[track_caller]
    fn all_is_well(&self) {
        let nodes = self.ask(&["nodes"]);
        assert_eq!(nodes.code, Some(0), "{nodes:?}");
        self.is_exported("none", 3.0);
    }
}

#[test]
fn each_refusal_of_a_server_is_reported_by_every_tool() {
    let watched = Watched::start();
    watched.all_is_well();
    watched.set("maxmemory", "1");
    let text = "refuses new locks: OOM, out of memory";
    watched.all_report("memory", text);
    watched.set("maxmemory", "0");
    watched.all_is_well();

    watched.set("min-replicas-to-write", "1");
    let text = "refuses changes: NOREPLICAS, too few replicas";
    watched.all_report("replicas", text);
    watched.set("min-replicas-to-write", "0");
    watched.all_is_well();

    let first = &watched.servers[0];
    let _: () = first.run(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let text = "delays changes: writes are paused";
    watched.all_report("paused", text);
    let _: () = first.run(&["CLIENT", "UNPAUSE"]);
    watched.all_is_well();

    // A folder is in the way of the file.
    let names: Vec<String> = first.run(&["CONFIG", "GET", "dbfilename"]);
    std::fs::create_dir(first.folder().join(&names[1])).unwrap();
    let _: Value = first.run(&["BGSAVE"]);
    wait_until("the save has failed", || {
        let info: String = first.run(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    let text = "refuses changes: MISCONF, disk errors";
    watched.all_report("disk", text);
}

#[test]
fn a_cluster_that_is_down_is_reported() {
    let cluster = Cluster::start(1, 0, &Server::options());
    let node = &cluster.nodes[0];
    let _: () = node.run(&["CLUSTER", "DELSLOTS", "0"]);
    wait_until("the cluster is down", || {
        let state: String = node.run(&["CLUSTER", "INFO"]);
        state.contains("cluster_state:fail")
    });
    let mut command = redlock(&[]);
    command.env(
        "REDLOCK_NODES",
        format!("redis+cluster://127.0.0.1:{}", node.port()),
    );
    let ended = outcome({
        command.arg("nodes");
        command
    });
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(
        ended.out.contains("refuses changes: CLUSTERDOWN"),
        "{ended:?}"
    );
}

/// Modules of other versions: one that has not heard of refusals, and one that knows more reasons.
#[test]
fn what_an_older_or_a_newer_module_says_is_not_lost() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let exporter = Exporter::start(&proxy.url());
    let refusal = |reason: &str| {
        let labels = format!("node=\"127.0.0.1:{}\",reason=\"{reason}\"", proxy.port());
        exporter
            .scrape()
            .value(&format!("redislock_refusal{{{labels}}}"))
    };
    assert_eq!(refusal("none"), Some(1.0));
    proxy.replace_in_replies("refusal", "unknown");
    assert_eq!(refusal("none"), None);
    assert_eq!(
        exporter.scrape().value("redislock_nodes_granting"),
        Some(1.0)
    );
    proxy.replace_in_replies("refusal\r\n$4\r\nnone", "refusal\r\n$4\r\nheat");
    assert_eq!((refusal("none"), refusal("other")), (Some(0.0), Some(1.0)));
    assert_eq!(
        exporter.scrape().value("redislock_nodes_granting"),
        Some(0.0)
    );
}
