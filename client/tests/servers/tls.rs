//! TLS on every way to a node: a server, Sentinels and their master, a cluster; client
//! certificates.

use std::time::Duration;

use redislock_client::{Builder, Error, Redlock, Released};
use redislock_testkit::cluster::Cluster;
use redislock_testkit::sentinel::{NAME, watch, watch_with};
use redislock_testkit::tls::Certificate;
use redislock_testkit::{Server, free_port};

use crate::NODE_TIMEOUT;

/// Long enough for several handshakes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with a second port for TLS, and that port.
fn server(certificate: &Certificate, auth_clients: &str) -> (Server, u16) {
    let port = free_port();
    let server = Server::with(certificate.config(port, auth_clients));
    (server, port)
}

/// A Sentinel with a second port for TLS that names the master at `master`, and that port.
fn sentinel(certificate: &Certificate, master: u16) -> (Server, u16) {
    let port = free_port();
    let mut lines = certificate.config(port, "no");
    lines.push("tls-replication yes".to_owned());
    (watch_with(master, &lines), port)
}

fn trusting(certificate: &Certificate) -> Builder {
    Redlock::builder()
        .root_certificate(certificate.pem.clone())
        .connect_timeout(PATIENCE)
}

async fn works(builder: Builder) {
    let client = builder.node_timeout(NODE_TIMEOUT).connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = client.lock("x");
        async move { lock.acquire().await.unwrap().release().await }
    });
    assert_eq!(guard.release().await, Released::WasHeld);
    assert_eq!(waiter.await.unwrap(), Released::WasHeld);
}

async fn fails(builder: Builder) -> Error {
    // A server that does not support TLS does not reply.
    let builder = builder.connect_timeout(PATIENCE / 10);
    builder.connect().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn the_root_certificate_is_used_for_sentinels_and_for_their_master() {
    let certificate = Certificate::new();
    let (_server, master) = server(&certificate, "no");
    let (_sentinel, port) = sentinel(&certificate, master);
    let url = format!("rediss://127.0.0.1:{port}");
    works(trusting(&certificate).sentinel(NAME, [&url])).await;
    let plain = watch(master);
    works(trusting(&certificate).sentinel(NAME, [&plain.url(), &url])).await;
    fails(Redlock::builder().sentinel(NAME, [&url])).await;
}

#[tokio::test]
async fn sentinels_that_are_reached_through_tls_never_lead_to_a_plaintext_master() {
    let certificate = Certificate::new();
    let server = Server::start();
    let (_sentinel, port) = sentinel(&certificate, server.port());
    let url = format!("rediss://127.0.0.1:{port}");
    let before = server.calls("lock.node");
    fails(trusting(&certificate).sentinel(NAME, [&url])).await;
    // One of them is enough.
    let plain = watch(server.port());
    fails(trusting(&certificate).sentinel(NAME, [&plain.url(), &url])).await;
    assert_eq!(server.calls("lock.node"), before);
}

#[tokio::test]
async fn sentinels_without_tls_may_name_a_master_with_it() {
    let certificate = Certificate::new();
    let (server, master) = server(&certificate, "no");
    let sentinel = watch(master);
    let builder = trusting(&certificate).sentinel(NAME, [sentinel.url()]);
    let before = server.calls("lock.acquire");
    works(builder.sentinel_master_tls()).await;
    assert!(server.calls("lock.acquire") > before);
    fails(trusting(&certificate).sentinel(NAME, [sentinel.url()])).await;
}

#[tokio::test]
async fn the_root_certificate_is_used_for_a_cluster() {
    let certificate = Certificate::new();
    let port = free_port();
    let options = Server::options()
        .configs(certificate.config(port, "no"))
        .config("tls-cluster yes");
    let _cluster = Cluster::start(1, 0, &options);
    let url = format!("rediss://127.0.0.1:{port}");
    works(trusting(&certificate).cluster([&url])).await;
    fails(Redlock::builder().cluster([&url])).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_of_the_client_gets_it() {
    let certificate = Certificate::new();
    let (_server, port) = server(&certificate, "yes");
    let url = format!("rediss://127.0.0.1:{port}");
    let (pem, key) = (certificate.pem.clone(), certificate.key.clone());
    let builder = trusting(&certificate).client_certificate(pem, key);
    works(builder.node(&url)).await;
    fails(trusting(&certificate).node(&url)).await;
}

#[tokio::test]
async fn certificates_of_the_settings_of_redis_rs_are_kept() {
    let certificate = Certificate::new();
    let (_server, port) = server(&certificate, "no");
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
async fn an_invalid_certificate_is_named_before_anything_is_connected() {
    let builder = Redlock::builder().node("rediss://127.0.0.1:1");
    let error = fails(builder.client_certificate("no PEM", "no PEM")).await;
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}
