//! The ways to reach a node that are features: TLS, Sentinel, Cluster; and the API without async.

use std::time::Duration;

use redislock_client::{Redlock, Released};

use crate::server::{Server, free_port};
use crate::{NODE_TIMEOUT, TTL, is_busy, until};

#[tokio::test]
async fn rediss_is_a_node_like_any_and_an_unknown_authority_is_refused() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert_file, key_file) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, signing_key.serialize_pem()).unwrap();
    let port = free_port();
    let _server = Server::start(&[
        &format!("tls-port {port}"),
        &format!("tls-cert-file {}", cert_file.display()),
        &format!("tls-key-file {}", key_file.display()),
        &format!("tls-ca-cert-file {}", cert_file.display()),
        "tls-auth-clients no",
    ]);
    let url = format!("rediss://localhost:{port}");
    let client = Redlock::builder()
        .node(&url)
        .root_certificate(cert.pem())
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    assert!(Redlock::connect([&url]).await.is_err());
}

#[tokio::test]
async fn a_master_that_sentinel_names_is_followed_over_a_failover() {
    let mut master = Server::start(&[]);
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", master.port)]);
    let sentinel = Server::start_sentinel("mymaster", &master);
    until("Sentinel knows the replica", || {
        sentinel
            .run::<String>(&["INFO", "sentinel"])
            .contains("slaves=1")
    })
    .await;
    let client = Redlock::builder()
        .sentinel("mymaster", [sentinel.url()])
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let fence = guard.fence();
    assert_eq!(guard.release().await, Released::WasHeld);
    master.kill();
    let guard = client
        .lock("x")
        .ttl(TTL)
        .wait(Duration::from_secs(40))
        .acquire()
        .await
        .unwrap();
    assert!(guard.fence() > fence);
    assert!(!replica.is_free("x"), "the new master holds it");
}

#[tokio::test]
async fn a_cluster_is_one_node_and_keys_find_their_slots() {
    let servers = Server::start_many::<3>(&["cluster-enabled yes", "cluster-node-timeout 2000"]);
    for (server, slots) in
        servers
            .iter()
            .zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]])
    {
        let _: () = server.run(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
        let _: () = server.run(&["CLUSTER", "MEET", "127.0.0.1", &servers[0].port.to_string()]);
    }
    until("the cluster is up", || {
        servers.iter().all(|server| {
            let info: String = server.run(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
    })
    .await;
    let client = Redlock::builder()
        .cluster([servers[0].url()])
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    for key in 0..12 {
        let lock = client.lock(format!("key-{key}")).ttl(TTL);
        let guard = lock.acquire().await.unwrap();
        assert!(is_busy(lock.try_acquire().await));
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap().release().await }
        });
        guard.extend().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
        assert_eq!(waiter.await.unwrap(), Released::WasHeld);
    }
    assert!(
        servers
            .iter()
            .all(|server| server.calls("lock.acquire") > 0),
        "every slot range was used"
    );
    let both = client
        .lock_all(["{same}a", "{same}b"])
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    assert_eq!(both.release().await, Released::WasHeld);
}

#[test]
fn the_blocking_names_do_the_same() {
    use redislock_client::blocking::Redlock;
    use redislock_client::{Error, Owner};

    let servers = Server::start_many::<3>(&[]);
    let client = Redlock::builder()
        .nodes(servers.iter().map(Server::url))
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .unwrap();
    let lock = client.lock("x").ttl(TTL).owner(&Owner::named("thread"));
    let guard = lock.acquire().unwrap();
    assert!(guard.is_valid() && guard.fence() > 0);
    assert!(matches!(
        client.lock("x").try_acquire(),
        Err(Error::Busy { .. })
    ));
    assert!(guard.extend().unwrap() <= guard.valid_until());
    assert_eq!(lock.acquire().unwrap().release(), Released::StillHeld);
    let waiter = std::thread::spawn({
        let client = client.clone();
        move || client.lock("x").ttl(TTL).acquire().unwrap().release()
    });
    assert_eq!(guard.release(), Released::WasHeld);
    assert_eq!(waiter.join().unwrap(), Released::WasHeld);
    assert!(client.lock("x").run(|held| held.fence()).unwrap() > 0);
    drop(
        client
            .lock("x")
            .ttl(Duration::from_secs(600))
            .acquire()
            .unwrap(),
    );
    drop(lock);
    drop(client);
    assert!(
        servers.iter().all(|server| server.is_free("x")),
        "the drop has released before it returned"
    );
}
