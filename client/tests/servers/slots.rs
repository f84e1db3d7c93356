//! A waiter in a cluster has one connection, to the master of its slot.

use std::time::Duration;

use redislock_client::{Error, Redlock, Released};
use redislock_testkit::Server;
use redislock_testkit::cluster::{Cluster, MASTERS};

use crate::cluster::{client, options};
use crate::contention::waiters;
use crate::settings;
#[cfg(target_os = "linux")]
use crate::settings::probed;
use crate::until;

const WAITERS: i64 = 20;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);

fn connections(cluster: &Cluster) -> i64 {
    let count = |node: &Server| {
        let info: String = node.run(&["INFO", "clients"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("connected_clients:"));
        line.unwrap().trim().parse::<i64>().unwrap()
    };
    cluster.nodes.iter().map(count).sum()
}

#[tokio::test]
async fn a_waiter_has_one_connection_to_the_master_of_its_slot() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    let guard = client.lock("job").ttl(LONG).acquire().await.unwrap();
    let before = connections(&cluster);
    let all: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = client.lock("job").ttl(LONG);
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    until("all wait", || waiters(&cluster.nodes[0], "job") == WAITERS).await;
    until("there is one connection for each waiter", || {
        connections(&cluster) <= before + WAITERS
    })
    .await;
    #[cfg(target_os = "linux")]
    until("all of them have a probe ahead", || {
        probed(cluster.nodes[0].port()) > all.len()
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
    for waiter in all {
        assert_eq!(waiter.await.unwrap(), Released::WasHeld);
    }
}

#[tokio::test]
async fn connections_to_every_master_have_the_name_of_the_client_also_those_opened_later() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = Redlock::builder()
        .cluster(cluster.nodes.iter().map(Server::url))
        .client_name("slots-7")
        .connect()
        .await
        .unwrap();
    let guard = client.lock("job").ttl(LONG).acquire().await.unwrap();
    let named = |node| settings::connections(node, "slots-7").len();
    let all_named = || cluster.nodes.iter().all(|node| named(node) == 1);
    until("every connection has the name", all_named).await;
    for node in &cluster.nodes {
        // All but this one.
        let _: i64 = node.run(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    until("their successors have it", all_named).await;
    let waiter = tokio::spawn({
        let lock = client.lock("job").ttl(LONG);
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("it waits", || waiters(&cluster.nodes[0], "job") == 1).await;
    let named = settings::connections(&cluster.nodes[0], "slots-7");
    let blocked = named.iter().filter(|line| line.contains(" flags=b "));
    assert_eq!(blocked.count(), 1, "{named:?}");
    drop(guard);
    waiter.await.unwrap();
}

/// Its guard would stay valid after the connection has ended and another client has the lock.
#[tokio::test]
async fn an_ephemeral_hold_is_refused_before_anything_is_sent() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = client(&cluster).await;
    let refused = client.lock("job").ttl(LONG).ephemeral().acquire().await;
    let Err(Error::Invalid(problem)) = refused else {
        panic!("{refused:?}");
    };
    assert!(problem.contains("cluster"), "{problem}");
    assert_eq!(cluster.nodes[0].calls("lock.acquire"), 0);
}
