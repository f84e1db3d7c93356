//! Requests that may have been sent on two connections, or on none, because the first one ended.

use std::time::Duration;

use redislock_client::{Loss, Redlock, Released};
use redislock_testkit::cluster::{Cluster, MASTERS, node_options};
use redislock_testkit::lock::waiters;
use redislock_testkit::{Flow, Proxy, Server};

use crate::cluster::options;
use crate::{TTL, is_busy, until};

/// Longer than any step of these tests.
const LONG: &str = "600000";

fn run(server: &Server, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let _: () = server.run(&words);
}

/// A waiter that queues at the second node releases the last one. That release is still in transit
/// on a connection that has ended, although its repetition got a reply: it would end a later grant
/// of the node.
#[tokio::test]
async fn a_node_whose_release_may_still_arrive_is_not_counted() {
    let servers = Server::start_many::<5>();
    let [a, b, c, d, e] = &servers;
    let to_last = Proxy::to(e.port());
    let urls = [a, b, c, d].map(Server::url);
    let client = Redlock::builder().nodes(urls).node(to_last.url());
    let client = client.node_timeout(TTL * 4).connect().await.unwrap();
    for server in [a, b, c, d] {
        run(server, &format!("LOCK.ACQUIRE x first {LONG}"));
    }
    let request = client.lock("x").ttl(TTL * 40);
    let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    let queue = |server: &Server| waiters(&mut server.connect(), "x");
    until("it waits at the first node", || queue(a) == 1).await;
    until("the first attempt has released", || e.is_free("x")).await;
    to_last.hold_back_request("LOCK.RELEASE");
    run(a, "LOCK.RELEASE x first");
    until("it waits at the second node", || queue(b) == 1).await;
    assert!(to_last.has_held_back() && e.is_free("x"));
    run(b, "LOCK.RELEASE x first");
    until("it goes on", || queue(c) == 1 || waiting.is_finished()).await;
    assert!(!waiting.is_finished(), "it counts the last node");
    run(c, "LOCK.RELEASE x first");
    let guard = waiting.await.unwrap();
    guard.extend().await.unwrap();
    assert!(e.is_free("x"), "a renewal asks the last node");
    to_last.heal();
    until("the first release has arrived", || {
        e.calls("lock.release") == 3
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
}

/// The first request may reach the server after the second one was refused.
#[tokio::test]
async fn a_refused_request_that_was_sent_twice_is_followed_by_a_release() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL * 4);
    let client = client.connect().await.unwrap();
    run(&server, &format!("LOCK.ACQUIRE x first {LONG}"));
    proxy.hold_back_request("LOCK.ACQUIRE");
    assert!(is_busy(client.lock("x").ttl(TTL * 40).try_acquire().await));
    assert!(proxy.has_held_back());
    until("it releases", || server.calls("lock.release") == 1).await;
    // A request that was sent once owes nothing when it is refused.
    assert!(is_busy(client.lock("x").ttl(TTL * 40).try_acquire().await));
    client.close(TTL * 10).await;
    assert_eq!(server.calls("lock.release"), 1);
}

/// The server has carried out a release whose reply is lost: it says no to the repetition, and that
/// does not mean that the lock was lost before.
async fn a_release_whose_reply_is_lost_is_no_loss(client: Redlock, server: &Server, link: &Proxy) {
    let guard = client.lock("job").ttl(TTL * 40).acquire().await.unwrap();
    let (held, breaking) = (guard.held(), async {
        until("it is released", || server.is_free("job")).await;
        link.close_connections();
        link.heal();
    });
    link.silence("LOCK.RELEASE");
    let (released, ()) = tokio::join!(guard.release(), breaking);
    assert_eq!(server.calls("lock.release"), 2);
    assert_eq!(released, Released::Unknown);
    assert_eq!(held.lost().await, Loss::Released);
}

#[tokio::test]
async fn a_release_that_was_sent_twice_does_not_say_that_the_lock_was_lost() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL * 4);
    let client = client.connect().await.unwrap();
    a_release_whose_reply_is_lost_is_no_loss(client, &server, &proxy).await;
}

/// There the shared connection repeats it.
#[tokio::test]
async fn a_release_that_a_cluster_was_sent_twice_does_not_say_that_the_lock_was_lost() {
    let nodes = |_| node_options(&options());
    let (cluster, link) = Cluster::start_behind_a_link(MASTERS, 0, nodes);
    let client = Redlock::builder().cluster([link.url()]);
    let client = client.node_timeout(TTL * 4).connect().await.unwrap();
    a_release_whose_reply_is_lost_is_no_loss(client, &cluster.nodes[0], &link).await;
}

/// A server that accepts no connections gets no releases later for the requests that failed: none
/// of them was sent.
#[tokio::test]
async fn what_was_never_sent_is_not_released() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url());
    let client = client.node_timeout(Duration::from_millis(200));
    let client = client.connect_timeout(TTL * 100).connect().await.unwrap();
    proxy.requests(Flow::Hold);
    proxy.close_connections();
    let lock = client.lock("x").ttl(TTL * 20);
    // The first one notices that the connection has ended, and may have been sent on it.
    for _ in 0..6 {
        lock.try_acquire().await.unwrap_err();
    }
    drop(lock);
    proxy.heal();
    client.close(TTL * 10).await;
    let releases = server.calls("lock.release");
    assert!(releases <= 1, "{releases} releases");
}
