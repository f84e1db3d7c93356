//! `redlock exporter`, with real nodes that come and go, users without permissions, taken ports.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redislock_testkit::cluster::node_options;
use redislock_testkit::process::{Outcome, Running, outcome};
use redislock_testkit::sentinel::{Deployment, watch};
use redislock_testkit::tls::Certificate;
use redislock_testkit::{Server, free_port, wait_patiently, wait_until};
use rustix::process::Signal;

use crate::masters;
use crate::tool::{NODE_TIMEOUT, logged, redlock, sentinel_url};

/// An exporter on a free port, ended when dropped.
pub struct Exporter {
    running: Running,
    address: String,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Exporter {
    pub fn start(nodes: &str) -> Self {
        Self::start_with(nodes, &[])
    }

    /// The same with more of the environment.
    fn start_with(nodes: &str, environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = redlock(&[]);
        command
            .env("REDLOCK_NODES", nodes)
            .envs([NODE_TIMEOUT])
            .envs(environment.iter().copied())
            .env_remove("REDLOCK_LISTEN");
        command.args(["exporter", "--listen", "127.0.0.1:0"]);
        command.stderr(std::fs::File::create(&log).unwrap());
        let running = Running::start(command);
        Self {
            running,
            address: logged(&log, "http://", "/metrics\n"),
            log,
            _folder: folder,
        }
    }

    /// Status line and headers, and the body.
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").expect("a reply");
        (head.to_ascii_lowercase(), body.to_owned())
    }

    pub fn scrape(&self) -> Scrape {
        let (head, body) = self.get("/metrics");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(body.ends_with("\n# EOF\n"), "{body}");
        Scrape(body)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

/// The text of `/metrics`.
pub struct Scrape(String);

impl Scrape {
    /// The value of a sample, written as in the page: `name{label="value"}`.
    pub fn value(&self, sample: &str) -> Option<f64> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
        Some(
            value
                .parse()
                .unwrap_or_else(|_| panic!("{sample}: {value}")),
        )
    }

    /// A value that belongs to a node.
    fn of(&self, metric: &str, node: &Server) -> Option<f64> {
        self.value(&format!("{metric}{{node=\"127.0.0.1:{}\"}}", node.port()))
    }

    /// The names of all samples.
    pub fn names(&self) -> BTreeSet<&str> {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect()
    }
}

fn urls(servers: &[Server]) -> String {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    urls.join(",")
}

#[test]
fn the_metrics_of_all_nodes_are_on_one_page() {
    let servers = masters::<3>();
    for key in ["a", "b"] {
        let _: u64 = servers[1].run(&["LOCK.ACQUIRE", key, "me", "60000"]);
    }
    let exporter = Exporter::start(&urls(&servers));
    let (head, _) = exporter.get("/metrics");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    let page = exporter.scrape();
    let locks = servers
        .each_ref()
        .map(|server| page.of("redislock_locks", server));
    assert_eq!(locks, [Some(0.0), Some(2.0), Some(0.0)]);
    for (sample, value) in [
        ("redislock_nodes", 3.0),
        ("redislock_nodes_granting", 3.0),
        ("redislock_quorum", 2.0),
    ] {
        assert_eq!(page.value(sample), Some(value), "{sample}");
    }
    for server in &servers {
        assert_eq!(page.of("redislock_up", server), Some(1.0));
        assert_eq!(page.of("redislock_master", server), Some(1.0));
        assert_eq!(page.of("redislock_max_ttl_seconds", server), Some(86_400.0));
        // Neither durable nor quarantined.
        assert_eq!(page.of("redislock_warnings", server), Some(1.0));
        let lead = page.of("redislock_clock_lead_seconds", server).unwrap();
        assert!(lead.abs() < 10.0, "{lead}");
    }
    assert_eq!(exporter.get("/healthz").1, "ok\n");
    assert!(exporter.get("/else").0.starts_with("http/1.1 404"));
}

#[test]
fn every_number_of_info_is_a_metric() {
    let [server] = masters::<1>();
    let exporter = Exporter::start(&server.url());
    let page = exporter.scrape();
    let names = page.names();
    let info: String = server.run(&["INFO", "lock"]);
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let mut compared = 0;
    for (field, value) in fields.filter(|(_, value)| value.parse::<u64>().is_ok()) {
        let short = field.strip_prefix("lock_").unwrap();
        let quantile = short
            .split_once("_p")
            .filter(|(_, rest)| rest.ends_with("9_us") || *rest == "50_us");
        let unit = short.strip_suffix("_ms").or(short.strip_suffix("_us"));
        let metric = match (quantile, unit, short.strip_suffix("_count")) {
            (Some((what, _)), _, _) => format!("redislock_{what}_seconds"),
            (_, Some(base), _) => format!("redislock_{base}_seconds"),
            (_, _, Some(base)) => format!("redislock_{base}_seconds_count"),
            _ => format!("redislock_{short}"),
        };
        let counter = format!("{metric}_total");
        let known = names.contains(metric.as_str()) || names.contains(counter.as_str());
        assert!(known, "{field} ({value}) is not on the page: {names:?}");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn a_node_that_goes_away_and_comes_back_is_reported() {
    let mut servers: [Server; 3] = masters();
    let exporter = Exporter::start(&urls(&servers));
    assert_eq!(exporter.scrape().of("redislock_up", &servers[2]), Some(1.0));
    let problem = |server: &Server, problem: &str| {
        format!(
            "redislock_problem{{node=\"127.0.0.1:{}\",problem=\"{problem}\"}}",
            server.port()
        )
    };
    servers[2].kill();
    let page = exporter.scrape();
    assert_eq!(page.of("redislock_up", &servers[2]), Some(0.0));
    assert_eq!(page.of("redislock_locks", &servers[2]), None);
    assert_eq!(page.value("redislock_nodes_granting"), Some(2.0));
    assert_eq!(page.value("redislock_nodes"), Some(3.0));
    wait_until("the port is refused", || {
        exporter
            .scrape()
            .value(&problem(&servers[2], "unreachable"))
            == Some(1.0)
    });
    assert_eq!(exporter.get("/healthz").1, "ok\n");
    servers[2].start_again();
    wait_until("it is back", || {
        exporter.scrape().of("redislock_up", &servers[2]) == Some(1.0)
    });
    let name = format!("127.0.0.1:{}: ", servers[2].port());
    let log = exporter.log();
    assert!(log.contains(&format!("{name}unreachable: ")), "{log}");
    assert!(
        log.contains("check the address, that the server runs"),
        "{log}"
    );
    assert!(log.contains(&format!("{name}it replies again")), "{log}");
    // One that hangs is also reported, and the others are served.
    servers[2].pause();
    let page = exporter.scrape();
    assert_eq!(
        page.value(&problem(&servers[2], "timeout")),
        Some(1.0),
        "{}",
        page.0
    );
    assert_eq!(page.of("redislock_up", &servers[0]), Some(1.0));
    servers[2].resume();
    wait_until("it is back", || {
        exporter.scrape().of("redislock_up", &servers[2]) == Some(1.0)
    });
}

#[test]
fn an_exporter_starts_before_its_nodes() {
    let port = free_port();
    let exporter = Exporter::start(&format!("redis://127.0.0.1:{port}"));
    let page = exporter.scrape();
    assert_eq!(
        page.value(&format!("redislock_up{{node=\"127.0.0.1:{port}\"}}")),
        Some(0.0)
    );
    assert_eq!(page.value("redislock_nodes_granting"), Some(0.0));
}

/// Each question to it would take the whole timeout, and Prometheus does not wait for long.
#[test]
fn a_node_that_accepts_and_says_nothing_is_asked_once() {
    let [server] = masters::<1>();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in silent.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    let exporter = Exporter::start(&format!("{},redis://{address}", server.url()));
    let page = exporter.scrape();
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    assert_eq!(page.of("redislock_up", &server), Some(1.0));
    let down = page.value(&format!("redislock_up{{node=\"{address}\"}}"));
    assert_eq!(down, Some(0.0));
}

#[test]
fn a_quarantine_and_its_reason_are_metrics() {
    let server = Server::with(["lock.quarantine 600000"]);
    let exporter = Exporter::start(&server.url());
    let page = exporter.scrape();
    let left = page.of("redislock_quarantine_seconds", &server).unwrap();
    assert!(left > 0.0 && left < 700.0, "{left}");
    let reason = |reason: &str| {
        let node = format!("node=\"127.0.0.1:{}\"", server.port());
        page.value(&format!(
            "redislock_quarantine_reason{{{node},reason=\"{reason}\"}}"
        ))
    };
    assert_eq!([reason("start"), reason("none")], [Some(1.0), Some(0.0)]);
    assert_eq!(page.of("redislock_granting", &server), Some(0.0));
    assert_eq!(page.value("redislock_nodes_granting"), Some(0.0));
}

#[test]
fn a_port_in_use_is_one_sentence() {
    let [server] = masters::<1>();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ask = |address: &str| -> Outcome {
        let mut command = redlock(std::slice::from_ref(&server));
        command.args(["exporter", "--listen", address]);
        outcome(command)
    };
    for (address, words) in [
        (address.as_str(), "choose another one with --listen"),
        ("192.0.2.1:1", "give an address of this host"),
        ("nonsense", "give an address of this host"),
    ] {
        let ended = ask(address);
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(74), ""),
            "{ended:?}"
        );
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        assert!(ended.err.contains(words), "{ended:?}");
    }
}

/// A copy of the module that calls itself by another version.
fn module_of_another_version(folder: &Path) -> PathBuf {
    let module = std::env::var_os("REDISLOCK_SO").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../redislock.so")),
        PathBuf::from,
    );
    let path = folder.join("redislock.so");
    // With its permissions: servers refuse a module that is not executable.
    std::fs::copy(module, &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let ours = env!("CARGO_PKG_VERSION").as_bytes();
    let places: Vec<usize> = bytes
        .windows(ours.len())
        .enumerate()
        .filter_map(|(place, bytes)| (bytes == ours).then_some(place))
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + ours.len()].copy_from_slice(b"0.1.7");
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn nodes_of_different_versions_are_reported_by_exporter_and_doctor() {
    let folder = tempfile::tempdir().unwrap();
    let module = module_of_another_version(folder.path());
    let quarantine = "lock.quarantine 300";
    let other = Server::options().module(&module).config(quarantine).start();
    let servers = [
        Server::with([quarantine]),
        other,
        Server::with([quarantine]),
    ];
    let exporter = Exporter::start(&urls(&servers));
    let page = exporter.scrape();
    for (server, version) in servers.iter().zip([env!("CARGO_PKG_VERSION"), "0.1.7"]) {
        let info = format!(
            "redislock_node_info{{node=\"127.0.0.1:{}\",version=\"{version}\"",
            server.port()
        );
        assert!(page.0.contains(&info), "{}", page.0);
    }
    let mut doctor = redlock(&servers);
    doctor.arg("doctor");
    let ended = outcome(doctor);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.out.contains("the version of the module differs"),
        "{ended:?}"
    );
    assert!(
        ended.out.contains("upgrade all nodes to the newest"),
        "{ended:?}"
    );
}

#[test]
fn missing_permissions_of_a_user_are_named() {
    let [server] = masters::<1>();
    let user = |rules: &[&str]| {
        let reset = ["ACL", "SETUSER", "watcher", "reset", "on", ">pw"];
        let _: () = server.run(&[&reset[..], rules].concat());
    };
    let url = format!("redis://watcher:pw@127.0.0.1:{}", server.port());
    let problem = format!(
        "redislock_problem{{node=\"127.0.0.1:{}\",problem=\"permission\"}}",
        server.port()
    );
    user(&["+ping"]);
    let exporter = Exporter::start(&url);
    let page = exporter.scrape();
    assert_eq!(page.value(&problem), Some(1.0), "{}", page.0);
    assert_eq!(page.of("redislock_up", &server), Some(0.0));
    assert!(
        exporter
            .log()
            .contains("the user needs the commands LOCK.NODE and INFO")
    );
    // With one of the two, half of the page is there.
    user(&["+lock.node"]);
    let exporter = Exporter::start(&url);
    let page = exporter.scrape();
    assert_eq!(page.value(&problem), Some(1.0), "{}", page.0);
    assert_eq!(page.of("redislock_up", &server), Some(1.0));
    assert_eq!(page.of("redislock_locks", &server), None);
    user(&["+lock.node", "+info"]);
    let page = exporter.scrape();
    assert_eq!(page.value(&problem), None, "{}", page.0);
    assert_eq!(page.of("redislock_locks", &server), Some(0.0));
    let exporter = Exporter::start(&url.replace(":pw@", ":wrong@"));
    assert_eq!(exporter.scrape().value(&problem), Some(1.0));
    assert!(!exporter.log().contains("wrong@"), "{}", exporter.log());
}

#[test]
fn a_master_behind_sentinel_and_a_cluster_are_served() {
    let [master] = masters::<1>();
    let sentinel = watch(master.port());
    let exporter = Exporter::start(&sentinel_url(&sentinel));
    let page = exporter.scrape();
    assert_eq!(page.value("redislock_quorum"), Some(1.0));
    assert_eq!(
        page.value("redislock_nodes_granting"),
        Some(1.0),
        "{}",
        page.0
    );
    let server = node_options(&Server::options()).start();
    let exporter = Exporter::start(&format!("redis+cluster://127.0.0.1:{}", server.port()));
    // No node serves a slot yet: the exporter reports it and continues.
    assert_eq!(exporter.scrape().value("redislock_nodes"), Some(0.0));
    assert!(
        exporter.log().contains("it knows no masters"),
        "{}",
        exporter.log()
    );
    let _: () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the master is found", || {
        exporter.scrape().value("redislock_nodes") == Some(1.0)
    });
}

#[test]
fn nodes_are_read_over_tls() {
    let certificate = Certificate::new();
    let port = free_port();
    let server = Server::with(certificate.config(port, "no"));
    let _: u64 = server.run(&["LOCK.ACQUIRE", "a", "me", "60000"]);
    let nodes = format!("rediss://localhost:{port}");
    let sample = |metric: &str| format!("{metric}{{node=\"localhost:{port}\"}}");
    let authority = certificate.path("cert.pem");
    let exporter = Exporter::start_with(&nodes, &[("REDLOCK_CA_CERT", &authority)]);
    let page = exporter.scrape();
    assert_eq!(page.value(&sample("redislock_up")), Some(1.0), "{}", page.0);
    assert_eq!(page.value(&sample("redislock_locks")), Some(1.0));
    // Without the authority, nothing is read, and the log says why.
    let exporter = Exporter::start(&nodes);
    assert_eq!(exporter.scrape().value(&sample("redislock_up")), Some(0.0));
    assert!(exporter.log().contains("ertificate"), "{}", exporter.log());
}

#[test]
fn a_failover_of_sentinel_is_followed() {
    let mut deployment = Deployment::start(&Server::options());
    let exporter = Exporter::start(&sentinel_url(&deployment.sentinels[0]));
    let grants = || exporter.scrape().value("redislock_nodes_granting");
    assert_eq!(grants(), Some(1.0));
    deployment.master.kill();
    assert_eq!(grants(), Some(0.0));
    wait_patiently("the promoted master is served", || grants() == Some(1.0));
}

#[test]
fn a_signal_ends_it() {
    let [server] = masters::<1>();
    let mut exporter = Exporter::start(&server.url());
    exporter.scrape();
    exporter.running.signal(Signal::TERM);
    assert_eq!(exporter.running.end().code, Some(0));
}
