//! Waiting in the queues of several nodes: what was given back stays given back.

use std::time::Duration;

use redislock_client::Redlock;
use redislock_testkit::Server;
use redislock_testkit::lock::waiters;
use tokio::time::sleep;

use crate::{connect, patient, until};

const LONG: &str = "600000";

fn run(server: &Server, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let _: () = server.run(&words);
}

/// A waiter that queues at the second node gives back the last one, which refuses that for a while.
/// When it accepts it, the waiter must not count what this node has granted in between.
#[tokio::test]
async fn a_release_that_arrives_late_does_not_end_what_the_waiter_counts() {
    let servers = Server::start_many::<5>();
    let [a, b, c, d, e] = &servers;
    let user = "ACL SETUSER waiter on >password ~* &* +@all";
    servers.iter().for_each(|server| run(server, user));
    let urls = servers.iter().map(|server| {
        let port = server.port();
        format!("redis://waiter:password@127.0.0.1:{port}")
    });
    let waiter = Redlock::builder().nodes(urls).connect().await.unwrap();
    let other = patient(&servers).await;
    for server in [a, b, c, d] {
        run(server, &format!("LOCK.ACQUIRE x first {LONG}"));
    }
    let ttl = Duration::from_secs(4);
    let request = waiter.lock("x").ttl(ttl).renew(false);
    let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    let queue = |server: &Server| waiters(&mut server.connect(), "x");
    until("it waits at the first node", || queue(a) == 1).await;
    run(e, "ACL SETUSER waiter -lock.release");
    run(a, "LOCK.RELEASE x first");
    until("it waits at the second node", || queue(b) == 1).await;
    // The first node does not hear the waiter any more.
    run(a, "ACL SETUSER waiter -lock.extend -lock.acquire");
    sleep(ttl / 2).await;
    run(c, "LOCK.RELEASE x first");
    run(b, "LOCK.RELEASE x first");
    sleep(ttl / 8).await;
    run(e, "ACL SETUSER waiter +lock.release");
    run(d, "LOCK.RELEASE x first");
    let guard = waiting.await.unwrap();
    while guard.is_valid() {
        if let Ok(second) = other.lock("x").ttl(ttl).try_acquire().await {
            assert!(!guard.is_valid(), "two valid guards");
            second.release().await;
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_time_in_the_queue_does_not_count_for_max_hold() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let max_hold = Duration::from_secs(4);
    let first = client.lock("x").acquire().await.unwrap();
    let request = client
        .lock("x")
        .ttl(Duration::from_secs(2))
        .max_hold(max_hold);
    let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    sleep(max_hold + Duration::from_millis(500)).await;
    first.release().await;
    let guard = waiting.await.unwrap();
    let first_end = guard.valid_until();
    until("it is renewed", || guard.valid_until() > first_end).await;
    guard.release().await;
}
