//! Code of the caller that panics in the background of the client: nothing ends with it that
//! others depend on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redislock_client::{Credentials, Loss, Redlock, Released, blocking};
use redislock_testkit::{Proxy, Server};

use crate::{TTL, log, until};

/// The client reaches the server again.
async fn works(client: &Redlock) {
    let guard = client.lock("x").wait(TTL * 10).acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_provider_of_credentials_that_panics_is_asked_again() {
    let mut server = Server::start();
    let left = Arc::new(AtomicUsize::new(0));
    let panics = Arc::clone(&left);
    let builder = Redlock::builder().node(server.url()).node_timeout(TTL);
    let builder = builder.credentials(move || {
        let count = |left: usize| left.checked_sub(1);
        let asked = panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count);
        assert!(asked.is_err(), "the vault is on fire");
        async { Ok::<_, std::io::Error>(Credentials::new("default", "any")) }
    });
    let client = builder.clone().connect().await.unwrap();
    works(&client).await;
    left.store(2, Ordering::SeqCst);
    server.restart();
    until("it has panicked", || left.load(Ordering::SeqCst) == 0).await;
    works(&client).await;
    left.store(1, Ordering::SeqCst);
    let error = builder.connect().await.unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}

#[tokio::test]
async fn a_log_that_panics_does_not_end_the_watch_over_a_node() {
    log::start();
    let mut server = Server::start();
    let builder = Redlock::builder().node(server.url()).node_timeout(TTL);
    let client = builder.connect().await.unwrap();
    let port = server.port();
    log::panic_once_at("node was restarted", port);
    server.restart();
    works(&client).await;
    until("it has panicked", || !log::will_panic_at(port)).await;
    server.restart();
    works(&client).await;
}

#[tokio::test]
async fn a_renewal_that_panics_notifies_the_holder_that_the_lock_is_lost() {
    log::start();
    let server = Server::start();
    let link = Proxy::to(server.port());
    let client = Redlock::connect([link.url()]).await.unwrap();
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let mut loss = None;
    // The watch over the node may be the first to say so, and then the renewal does not panic.
    for _ in 0..10 {
        log::panic_once_at("node believed down", link.port());
        link.silence("LOCK.EXTEND");
        loss = tokio::time::timeout(TTL, guard.lost()).await.ok();
        if loss.is_some() {
            break;
        }
        link.heal();
    }
    assert!(matches!(loss, Some(Loss::Expired { .. })), "{loss:?}");
    assert!(!log::will_panic_at(link.port()));
}

#[test]
fn a_blocking_guard_that_is_dropped_does_not_panic() {
    log::start();
    let server = Server::start();
    let link = Proxy::to(server.port());
    let client = blocking::Redlock::connect([link.url()]).unwrap();
    let guard = client.lock("x").ttl(TTL * 10).acquire().unwrap();
    log::panic_once_at("node believed down", link.port());
    link.stall();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(guard))).is_ok());
    link.heal();
    redislock_testkit::wait_until("it is released", || server.is_free("x"));
}
