//! `redlock serve` without a browser: what it serves. Access and limits are in `serve_access` and
//! `serve_limits`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use redislock_testkit::process::{Running, outcome};
use redislock_testkit::{Server, wait_until};
use serde_json::Value;

use crate::masters;
use crate::tool::{NODE_TIMEOUT, logged, redlock};

/// A page on a free port, ended when dropped.
pub struct Serving {
    pub running: Running,
    pub url: String,
    pub log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Serving {
    pub fn start(servers: &[Server], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = redlock(servers);
        command
            .envs([NODE_TIMEOUT])
            .env_remove("REDLOCK_SERVE_LISTEN");
        command.arg("serve").args(options);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.stderr(std::fs::File::create(&log).unwrap());
        let running = Running::start(command);
        Self {
            running,
            url: logged(&log, "serving ", "/\n"),
            log,
            _folder: folder,
        }
    }

    pub fn address(&self) -> &str {
        self.url.split_once("//").unwrap().1
    }

    /// Sends a request and reads the reply to its end: head in lower case, and body.
    pub fn request(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let reply = String::from_utf8(reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").expect("a reply");
        (head.to_ascii_lowercase(), body.to_owned())
    }

    pub fn get(&self, path: &str, headers: &str) -> (String, String) {
        self.request(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"
        ))
    }
}

pub fn acquire(server: &Server, key: &str) {
    let _: u64 = server.run(&["LOCK.ACQUIRE", key, "me", "600000", "OWNER", "ada"]);
}

pub fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Waits until every lock has been queried.
pub fn complete(serving: &Serving) -> Value {
    let mut value = Value::Null;
    wait_until("all locks are known", || {
        value = json(&serving.get("/api/locks?sort=name", "").1);
        value["overview"]["complete"] == true
    });
    value
}

#[test]
fn locks_and_nodes_are_json() {
    let servers = masters::<3>();
    for server in &servers {
        acquire(server, "nightly");
    }
    let serving = Serving::start(&servers, &[]);
    let value = complete(&serving);
    let lock = &value["locks"][0];
    assert_eq!(lock["key"], "nightly");
    assert_eq!(lock["state"], "held");
    assert_eq!(lock["holders"][0]["owner"], "ada");
    assert_eq!(lock["holders"][0]["nodes"], 3);
    let (head, body) = serving.get("/api/nodes", "");
    assert!(head.contains("content-type: application/json"), "{head}");
    let nodes = json(&body);
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(3));
    assert_eq!(nodes["overview"]["granting"], 3);
    assert!(serving.get("/metrics", "").1.ends_with("# EOF\n"));
    assert_eq!(serving.get("/healthz", "").1, "ok\n");
    for wrong in ["sort=else", "page=x", "lock=-1", "what=1"] {
        let (head, _) = serving.get(&format!("/api/locks?{wrong}"), "");
        assert!(head.starts_with("http/1.1 400"), "{wrong}: {head}");
    }
    for path in [
        "/../etc/passwd",
        "/%2e%2e/etc/passwd",
        "/app.js/..",
        "//",
        "/login",
    ] {
        let (head, _) = serving.get(path, "");
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
    }
    let post = "POST /api/locks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(serving.request(post).0.starts_with("http/1.1 405"));
}

#[test]
fn a_port_in_use_is_reported() {
    let servers = masters::<1>();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = redlock(&servers);
    command.args([
        "serve",
        "--listen",
        &taken.local_addr().unwrap().to_string(),
    ]);
    let ended = outcome(command);
    assert_eq!(ended.code, Some(74), "{ended:?}");
    assert!(
        ended.err.contains("another program uses this port"),
        "{ended:?}"
    );
}

#[test]
fn hostile_names_are_text() {
    let servers = masters::<1>();
    let mut connection = servers[0].connect();
    let long = vec![b'x'; 1_000_000];
    for name in [
        b"a\xff<b>\x1b[2J\xe2\x80\xae\"\n",
        &long[..],
        &long[..4_000],
    ] {
        let words: [&[u8]; 4] = [b"LOCK.ACQUIRE", name, b"t", b"600000"];
        connection.call_args(&words);
    }
    let serving = Serving::start(&servers, &[]);
    let value = complete(&serving);
    assert_eq!(
        value["locks"][0]["key"],
        "a\\xff<b>\\u{1b}[2J\\u{202e}\"\\n"
    );
    let shortened = value["locks"][1]["key"].as_str().unwrap();
    assert!(
        shortened.ends_with("… (4000 bytes)") && shortened.len() < 200,
        "{shortened}"
    );
    // The lock with the longest name is not queried, and the page reports that.
    assert_eq!(value["matching"], 2);
    assert_eq!(value["overview"]["too_long_names"], 1);
}

/// Opens the stream of events and reads nothing.
pub fn open_page(serving: &Serving) -> TcpStream {
    let mut stream = TcpStream::connect(serving.address()).unwrap();
    stream
        .write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    stream
}

#[test]
fn notes_are_followed() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes");
    std::fs::write(&file, "# Log\n! refused <b>\n").unwrap();
    let serving = Serving::start(&servers, &["--notes", &file.display().to_string()]);
    let mut page = open_page(&serving);
    let mut text = String::new();
    let mut read_until = |wanted: &str| {
        let mut some = [0; 65_536];
        while !text.contains(wanted) {
            let count = page.read(&mut some).unwrap();
            text.push_str(&String::from_utf8_lossy(&some[..count]));
        }
    };
    read_until(r#"{"kind":"alarm","text":"refused <b>"}"#);
    std::fs::write(&file, "later\n").unwrap();
    read_until(r#"{"kind":"text","text":"later"}"#);
}
