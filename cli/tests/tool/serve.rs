//! `redlock serve` without a browser: its addresses, who is let in, what it refuses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use redislock_testkit::process::{Running, outcome};
use redislock_testkit::tls::Certificate;
use redislock_testkit::{Server, wait_patiently, wait_until};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use crate::masters;
use crate::tool::{NODE_TIMEOUT, redlock};

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
        let mut url = String::new();
        wait_until("the page is served", || {
            let text = std::fs::read_to_string(&log).unwrap();
            let told = text.split("serving ").nth(1);
            let told = told.and_then(|rest| rest.split_once("/\n"));
            url = told.map_or("", |(url, _)| url).to_owned();
            !url.is_empty()
        });
        Self {
            running,
            url,
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

fn acquire(server: &Server, key: &str) {
    let _: u64 = server.run(&["LOCK.ACQUIRE", key, "me", "600000", "OWNER", "ada"]);
}

pub fn json(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Waits until every lock was asked about.
fn complete(serving: &Serving) -> Value {
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
fn every_reply_has_the_headers_that_protect_the_page() {
    let servers = masters::<1>();
    let serving = Serving::start(&servers, &[]);
    for path in [
        "/",
        "/app.js",
        "/app.css",
        "/api/locks",
        "/metrics",
        "/else",
    ] {
        let (head, body) = serving.get(path, "");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
        assert!(!head.contains("unsafe"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(head.contains("cache-control: no-store"), "{head}");
        assert!(
            !body.contains("<script>") && !body.contains("http://"),
            "{path}"
        );
    }
}

#[test]
fn a_page_of_another_site_cannot_read_the_locks() {
    let servers = masters::<1>();
    let serving = Serving::start(&servers, &[]);
    let of = |host: &str| {
        let request = format!("GET /api/locks HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        serving.request(&request).0
    };
    assert!(of("Host: 127.0.0.1:80\r\n").starts_with("http/1.1 200"));
    assert!(of("Host: [::1]\r\n").starts_with("http/1.1 200"));
    for other in [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "",
    ] {
        let head = of(other);
        assert!(head.starts_with("http/1.1 403"), "{other}: {head}");
    }
}

#[test]
fn other_hosts_need_a_token_and_tls() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token").display().to_string();
    std::fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    let certificate = Certificate::new();
    let (cert, key) = (certificate.path("cert.pem"), certificate.path("key.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let refused = |options: &[&str]| {
        let mut command = redlock(&servers);
        command.args(["serve"]).args(options);
        let ended = outcome(command);
        assert_eq!(ended.code, Some(64), "{options:?}: {ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
        assert!(!ended.err.contains("0123456789abcdef"), "{ended:?}");
        ended.err
    };
    let everywhere = ["--listen", "0.0.0.0:0"];
    let with = |more: &[&'static str]| [&everywhere[..], more].concat();
    assert!(refused(&with(&[])).contains("other hosts"));
    assert!(refused(&[&everywhere[..], &["--token-file", &token]].concat()).contains("--tls-cert"));
    assert!(refused(&[&everywhere[..], &tls].concat()).contains("--token-file"));
    assert!(refused(&["--tls-cert", &cert]).contains("belong together"));
    assert!(refused(&["--token-file", "/no/such/file"]).contains("cannot be read"));
    assert!(refused(&["--tls-cert", &key, "--tls-key", &cert]).contains("cannot be used"));
    std::fs::write(folder.path().join("short"), "abc").unwrap();
    let short = folder.path().join("short").display().to_string();
    assert!(refused(&["--token-file", &short]).contains("openssl rand"));
    let options = [&["--token-file", &token][..], &tls].concat();
    let serving = Serving::start(&servers, &options);
    assert!(
        serving.url.starts_with("https://127.0.0.1:"),
        "{}",
        serving.url
    );
    let log = std::fs::read_to_string(&serving.log).unwrap();
    assert!(!log.contains("0123456789abcdef"), "{log}");
}

/// A request over TLS by a client that trusts only this certificate: the head in lower case, and
/// the body; or why there is no reply.
fn https(serving: &Serving, trusted: &Certificate, headers: &str) -> Result<String, String> {
    let mut roots = rustls::RootCertStore::empty();
    let trusted = CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap();
    roots.add(trusted).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let session = rustls::ClientConnection::new(Arc::new(settings), name).unwrap();
    let tcp = TcpStream::connect(serving.address()).unwrap();
    let mut stream = rustls::StreamOwned::new(session, tcp);
    let request = format!("GET /api/locks HTTP/1.1\r\nHost: any\r\n{headers}\r\n");
    let failed = |error: std::io::Error| error.to_string();
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).map_err(failed)?;
    Ok(String::from_utf8(reply).unwrap().to_ascii_lowercase())
}

#[test]
fn over_https_the_token_is_needed_and_enough() {
    let servers = masters::<1>();
    acquire(&servers[0], "nightly");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token").display().to_string();
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&file, token).unwrap();
    let own = Certificate::new();
    let (cert, key) = (own.path("cert.pem"), own.path("key.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    // The address that other hosts can reach, which needs all of this.
    let options = [&["--token-file", &file, "--listen", "0.0.0.0:0"][..], &tls].concat();
    let serving = Serving::start(&servers, &options);
    assert!(serving.url.starts_with("https://0.0.0.0:"));
    let close = "Connection: close\r\n";
    let denied = https(&serving, &own, close).unwrap();
    assert!(denied.starts_with("http/1.1 401"), "{denied}");
    assert!(!denied.contains("nightly"), "{denied}");
    let bearer = format!("Authorization: Bearer {token}\r\n{close}");
    wait_until("the lock is shown", || {
        let reply = https(&serving, &own, &bearer).unwrap();
        assert!(reply.starts_with("http/1.1 200"), "{reply}");
        reply.contains("nightly")
    });
    // Who does not know the certificate does not send the token.
    let unknown = https(&serving, &Certificate::new(), &bearer).unwrap_err();
    assert!(unknown.contains("certificate"), "{unknown}");
    // Without TLS there is no reply at all.
    let mut plain = TcpStream::connect(serving.address()).unwrap();
    let request = format!("GET /api/locks HTTP/1.1\r\nHost: any\r\n{bearer}\r\n");
    plain.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    // The connection may be reset instead of closed.
    let _ = plain.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
}

#[test]
fn with_a_token_nothing_is_shown_without_it() {
    let servers = masters::<1>();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token").display().to_string();
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let serving = Serving::start(&servers, &["--token-file", &file]);
    for path in ["/api/locks", "/api/nodes", "/events", "/metrics"] {
        for headers in [
            "",
            "Authorization: Bearer wrong\r\n",
            "Cookie: redlock=wrong\r\n",
        ] {
            let (head, body) = serving.get(path, headers);
            assert!(head.starts_with("http/1.1 401"), "{path}: {head}");
            assert!(!body.contains("127.0.0.1"), "{body}");
        }
    }
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert!(
        serving
            .get("/api/locks", &bearer)
            .0
            .starts_with("http/1.1 200")
    );
    let login = |token: &str| {
        let length = token.len();
        serving.request(&format!(
            "POST /login HTTP/1.1\r\nHost: any\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{token}"
        ))
    };
    assert!(login("wrong").0.starts_with("http/1.1 401"));
    assert!(login(&"x".repeat(10_000)).0.starts_with("http/1.1 413"));
    let (head, _) = login(token);
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        cookie.contains("httponly") && cookie.contains("samesite=strict"),
        "{cookie}"
    );
    assert!(!cookie.contains(token), "{cookie}");
    let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert!(
        serving
            .get("/api/nodes", &cookie)
            .0
            .starts_with("http/1.1 200")
    );
}

#[test]
fn a_port_that_is_taken_is_told() {
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
    // The longest name is not asked about, and that is told.
    assert_eq!(value["matching"], 2);
    assert_eq!(value["overview"]["too_long_names"], 1);
}

/// Opens the stream of events and reads nothing.
fn open_page(serving: &Serving) -> TcpStream {
    let mut stream = TcpStream::connect(serving.address()).unwrap();
    stream
        .write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    stream
}

pub fn resident_kib(serving: &mut Serving) -> u64 {
    let pid = serving.running.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn two_hundred_pages_are_served_in_bounded_memory() {
    let servers = masters::<1>();
    for lock in 0..60 {
        acquire(&servers[0], &format!("lock:{lock}"));
    }
    let mut serving = Serving::start(&servers, &[]);
    complete(&serving);
    let mut pages: Vec<TcpStream> = (0..200).map(|_| open_page(&serving)).collect();
    let before = resident_kib(&mut serving);
    // All of them get news, twice, while some of them do not read.
    for page in pages.iter_mut().skip(100) {
        let mut text = Vec::new();
        let mut some = [0; 65_536];
        while text.windows(6).filter(|bytes| bytes == b"data: ").count() < 2 {
            let count = page.read(&mut some).unwrap();
            assert!(count > 0, "a page was closed");
            text.extend_from_slice(&some[..count]);
        }
    }
    let grown = resident_kib(&mut serving).saturating_sub(before);
    assert!(grown < 100 * 1024, "{grown} KiB for 200 pages");
    assert_eq!(serving.get("/healthz", "").1, "ok\n");
}

/// The status of a page that was opened.
fn status(page: &mut TcpStream) -> String {
    let mut head = [0; 12];
    page.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn too_many_pages_are_told() {
    let servers = masters::<1>();
    let serving = Serving::start(&servers, &["--interval", "10s"]);
    let mut pages: Vec<TcpStream> = (0..256).map(|_| open_page(&serving)).collect();
    for page in &mut pages {
        assert_eq!(status(page), "HTTP/1.1 200");
    }
    let (head, body) = serving.get("/events", "");
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(body, "256 pages are open already: close one\n");
    drop(pages);
    wait_until("there is room again", || {
        status(&mut open_page(&serving)) == "HTTP/1.1 200"
    });
}

#[test]
fn a_browser_that_does_not_read_is_dropped() {
    let servers = masters::<1>();
    for lock in 0..60 {
        let _: u64 = servers[0].run(&[
            "LOCK.ACQUIRE",
            &format!("{lock}{}", "x".repeat(100)),
            "t",
            "600000",
        ]);
    }
    let serving = Serving::start(&servers, &["--interval", "100ms"]);
    complete(&serving);
    let _silent = open_page(&serving);
    let mut connection = String::new();
    let port = serving
        .address()
        .rsplit_once(':')
        .unwrap()
        .1
        .parse::<u16>()
        .unwrap();
    // The kernel's table of connections: those of the server that are established.
    wait_patiently("the connection is closed", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{port:04X}");
        let is_open = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            words
                .next()
                .is_some_and(|address| address.ends_with(&local))
                && words.nth(1) == Some("01")
        };
        connection = table.lines().find(is_open).unwrap_or_default().to_owned();
        connection.is_empty()
    });
    assert_eq!(serving.get("/healthz", "").1, "ok\n");
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
