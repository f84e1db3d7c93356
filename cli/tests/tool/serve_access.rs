//! Who may read what `redlock serve` serves: headers, host names, the token, TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use redislock_testkit::process::outcome;
use redislock_testkit::tls::Certificate;
use redislock_testkit::wait_until;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::masters;
use crate::serve::{Serving, acquire};
use crate::tool::redlock;

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
    // A client that does not trust the certificate does not send the token.
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
