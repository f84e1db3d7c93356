//! TLS, and the API without async.

use std::time::Duration;

use redislock_client::{Redlock, Released};
use redislock_testkit::tls::Certificate;
use redislock_testkit::{Server, free_port};

use crate::{NODE_TIMEOUT, TTL};

#[tokio::test]
async fn rediss_is_a_node_like_any_other_and_an_unknown_authority_is_refused() {
    let certificate = Certificate::new();
    let port = free_port();
    let _server = Server::with(certificate.config(port, "no"));
    let url = format!("rediss://localhost:{port}");
    let client = Redlock::builder()
        .node(&url)
        .root_certificate(certificate.pem.clone())
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    assert!(Redlock::connect([&url]).await.is_err());
}

#[test]
fn the_blocking_names_do_the_same() {
    use redislock_client::blocking::Redlock;
    use redislock_client::{Error, Owner};

    let servers = Server::start_many::<3>();
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
