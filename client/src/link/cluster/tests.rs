//! Waiters do not storm a server of a cluster.

use std::time::Duration;

use futures_util::future::join_all;
use redis::IntoConnectionInfo;
use redislock_testkit::{Flow, Proxy};

use super::super::own::OPENING_CONNECTIONS;
use super::*;

const MANY: usize = 50;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);

fn cluster_at(url: String) -> (Arc<Cluster>, Server) {
    let server = Server::new(url.into_connection_info().unwrap(), None, None);
    let cluster = Cluster::new(vec![server.clone()], Settings::default(), LONG).unwrap();
    (Arc::new(cluster), server)
}

fn number(server: &redislock_testkit::Server, name: &str) -> usize {
    let info: String = server.run(&["INFO", "everything"]);
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_few_waiters_open_a_connection_at_the_same_time() {
    let node = redislock_testkit::Server::start();
    let proxy = Proxy::to(node.port());
    let (cluster, server) = cluster_at(proxy.url());
    proxy.requests(Flow::Hold);
    // The question itself is a connection, and those before it may still be closing.
    let before = 1;
    while number(&node, "connected_clients") > before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut waiters = Vec::new();
    for _ in 0..MANY {
        let (cluster, server) = (Arc::clone(&cluster), server.clone());
        let opening = async move { cluster.open_at(&server, LONG, true).await };
        waiters.push(tokio::spawn(opening));
    }
    while number(&node, "connected_clients") < before + OPENING_CONNECTIONS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let opening = number(&node, "connected_clients") - before;
    assert!(opening <= OPENING_CONNECTIONS + 1, "{opening} at once");
    proxy.heal();
    for opened in join_all(waiters).await {
        opened.unwrap().unwrap();
    }
}

/// The first waiters find out, and no other one tries.
#[tokio::test]
async fn a_server_that_opens_no_connection_in_time_is_tried_last() {
    let (hanging, node) = (
        redislock_testkit::Server::start(),
        redislock_testkit::Server::start(),
    );
    let proxy = Proxy::to(hanging.port());
    proxy.requests(Flow::Hold);
    let seed = |url: String| Server::new(url.into_connection_info().unwrap(), None, None);
    let seeds = vec![seed(proxy.url()), seed(node.url())];
    let patience = Duration::from_secs(8);
    let cluster = Cluster::new(seeds, Settings::default(), patience).unwrap();
    let before = number(&hanging, "total_connections_received");
    let opened = join_all((0..MANY).map(|_| cluster.open_for(Slot::for_key(b"x"), true))).await;
    for opened in opened {
        assert_eq!(opened.unwrap().0.address(), cluster.seeds[1].address());
    }
    // One is for the question.
    let tried = number(&hanging, "total_connections_received") - before - 1;
    assert!(tried <= OPENING_CONNECTIONS, "{tried} were opened in vain");
}

#[tokio::test]
async fn waiters_that_ask_at_the_same_time_whether_a_server_answers_share_the_answer() {
    let node = redislock_testkit::Server::start();
    let (cluster, server) = cluster_at(node.url());
    let before = number(&node, "total_connections_received");
    let asked = join_all((0..MANY).map(|_| cluster.is_served(&server))).await;
    assert!(asked.into_iter().all(|served| served));
    let opened = number(&node, "total_connections_received") - before;
    assert!(opened <= 3, "{opened} connections");
}
