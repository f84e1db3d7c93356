//! TLS on every way to a node: a server, Sentinels and their master, a cluster; client
//! certificates.

use std::time::Duration;

use redislock_client::{Builder, Error, Redlock, Released};
use tempfile::TempDir;

use crate::server::{Server, free_port};
use crate::until;

/// Long enough for several handshakes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A certificate for this machine; it signs itself, so it is its own authority.
struct Certificate {
    folder: TempDir,
    pem: String,
    key: String,
}

impl Certificate {
    fn new() -> Self {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let own = rcgen::generate_simple_self_signed(names).unwrap();
        let (pem, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cert.pem"), &pem).unwrap();
        std::fs::write(folder.path().join("key.pem"), &key).unwrap();
        Self { folder, pem, key }
    }

    /// Options of a server that also listens on `port` for TLS.
    fn options(&self, port: u16, auth_clients: &str) -> Vec<String> {
        let path = |name| self.folder.path().join(name).display().to_string();
        vec![
            format!("tls-port {port}"),
            format!("tls-cert-file {}", path("cert.pem")),
            format!("tls-key-file {}", path("key.pem")),
            format!("tls-ca-cert-file {}", path("cert.pem")),
            format!("tls-auth-clients {auth_clients}"),
        ]
    }

    /// A server with a second port for TLS, and that port.
    fn server(&self, auth_clients: &str, more: &[&str]) -> (Server, u16) {
        let port = free_port();
        let options = self.options(port, auth_clients);
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        options.extend(more);
        (Server::start(&options), port)
    }

    /// A Sentinel with a second port for TLS that names the master at `master`, and that port.
    fn sentinel(&self, master: u16) -> (Server, u16) {
        let port = free_port();
        let mut lines = self.options(port, "no");
        lines.push("tls-replication yes".to_owned());
        (Server::start_sentinel_at("m", master, &lines), port)
    }

    fn builder(&self) -> Builder {
        Redlock::builder()
            .root_certificate(self.pem.clone())
            .connect_timeout(PATIENCE)
    }
}

async fn works(builder: Builder) {
    let client = builder.connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = client.lock("x");
        async move { lock.acquire().await.unwrap().release().await }
    });
    assert_eq!(guard.release().await, Released::WasHeld);
    assert_eq!(waiter.await.unwrap(), Released::WasHeld);
}

async fn fails(builder: Builder) -> Error {
    // A server that does not speak TLS lets the client wait.
    let builder = builder.connect_timeout(PATIENCE / 10);
    builder.connect().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn the_root_certificate_is_used_for_sentinels_and_for_their_master() {
    let certificate = Certificate::new();
    let (_server, master) = certificate.server("no", &[]);
    let (_sentinel, port) = certificate.sentinel(master);
    let url = format!("rediss://127.0.0.1:{port}");
    works(certificate.builder().sentinel("m", [&url])).await;
    let plain = Server::start_sentinel_at("m", master, &[]);
    works(certificate.builder().sentinel("m", [&plain.url(), &url])).await;
    fails(Redlock::builder().sentinel("m", [&url])).await;
}

#[tokio::test]
async fn sentinels_that_are_reached_through_tls_never_lead_to_a_plaintext_master() {
    let certificate = Certificate::new();
    let server = Server::start(&[]);
    let (_sentinel, port) = certificate.sentinel(server.port);
    let url = format!("rediss://127.0.0.1:{port}");
    let before = server.calls("lock.node");
    fails(certificate.builder().sentinel("m", [&url])).await;
    // One of them is enough.
    let plain = Server::start_sentinel_at("m", server.port, &[]);
    fails(certificate.builder().sentinel("m", [&plain.url(), &url])).await;
    assert_eq!(server.calls("lock.node"), before);
}

#[tokio::test]
async fn sentinels_without_tls_may_name_a_master_with_it() {
    let certificate = Certificate::new();
    let (server, master) = certificate.server("no", &[]);
    let sentinel = Server::start_sentinel_at("m", master, &[]);
    let builder = certificate.builder().sentinel("m", [sentinel.url()]);
    let before = server.calls("lock.acquire");
    works(builder.sentinel_master_tls()).await;
    assert!(server.calls("lock.acquire") > before);
    fails(certificate.builder().sentinel("m", [sentinel.url()])).await;
}

#[tokio::test]
async fn the_root_certificate_is_used_for_a_cluster() {
    let certificate = Certificate::new();
    let bus = format!("cluster-port {}", free_port());
    let more = ["cluster-enabled yes", "tls-cluster yes", &bus];
    let (server, port) = certificate.server("no", &more);
    let _: () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster is up", || {
        let info: String = server.run(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    })
    .await;
    let url = format!("rediss://127.0.0.1:{port}");
    works(certificate.builder().cluster([&url])).await;
    fails(Redlock::builder().cluster([&url])).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_of_the_client_gets_it() {
    let certificate = Certificate::new();
    let (_server, port) = certificate.server("yes", &[]);
    let url = format!("rediss://127.0.0.1:{port}");
    let (pem, key) = (certificate.pem.clone(), certificate.key.clone());
    let builder = certificate.builder().client_certificate(pem, key);
    works(builder.node(&url)).await;
    fails(certificate.builder().node(&url)).await;
}

#[tokio::test]
async fn certificates_of_the_settings_of_redis_rs_are_kept() {
    let certificate = Certificate::new();
    let (_server, port) = certificate.server("no", &[]);
    works(Redlock::builder().node_client(&{
        let certificates = redis::TlsCertificates {
            client_tls: None,
            root_cert: Some(certificate.pem.clone().into_bytes()),
        };
        let url = format!("rediss://127.0.0.1:{port}");
        redis::Client::build_with_tls(url, certificates).unwrap()
    }))
    .await;
}

#[tokio::test]
async fn a_certificate_that_is_none_is_named_before_anything_is_connected() {
    let builder = Redlock::builder().node("rediss://127.0.0.1:1");
    let error = fails(builder.client_certificate("no PEM", "no PEM")).await;
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}
