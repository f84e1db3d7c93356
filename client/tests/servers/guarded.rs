//! Commands under a lock whose reply is lost: each runs once at most, and the caller is told that
//! it may have run.

use std::time::Duration;

use redislock_client::{Error, Guard, Redlock, redis};
use redislock_testkit::cluster::{Cluster, MASTERS, node_options};
use redislock_testkit::{Proxy, Server};

use crate::cluster::options;
use crate::until;

/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);

/// The server has carried the command out when its connection breaks.
async fn runs_once_though_its_reply_is_lost(guard: &Guard, server: &Server, link: &Proxy) {
    let added = |key: &str| server.run::<u64>(&["LLEN", key]);
    link.hold_replies_once_asked("LOCK.GUARD");
    let add = redis::cmd("RPUSH").arg("{job}one").arg("x").to_owned();
    let breaking = async {
        until("it has run", || added("{job}one") > 0).await;
        link.close_connections();
        link.heal();
    };
    let (result, ()) = tokio::join!(guard.command::<u64>(&add), breaking);
    assert!(matches!(result, Err(Error::NoQuorum { .. })), "{result:?}");
    // A later one does run, behind anything that was sent again.
    let mut asked = 0;
    let add = redis::cmd("RPUSH").arg("{job}two").arg("x").to_owned();
    loop {
        match guard.command::<u64>(&add).await {
            Ok(_) => break,
            Err(Error::NoQuorum { .. }) if asked < 300 => asked += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((added("{job}one"), added("{job}two")), (1, 1));
}

#[tokio::test]
async fn a_command_whose_connection_breaks_may_have_run() {
    let server = Server::start();
    let link = Proxy::to(server.port());
    let client = Redlock::builder()
        .node(link.url())
        .node_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("{job}").ttl(LONG).acquire().await.unwrap();
    runs_once_though_its_reply_is_lost(&guard, &server, &link).await;
}

#[tokio::test]
async fn a_command_whose_connection_breaks_is_not_repeated_in_a_cluster() {
    let nodes = |_| node_options(&options());
    let (cluster, link) = Cluster::start_behind_a_link(MASTERS, 0, nodes);
    let client = Redlock::builder()
        .cluster([link.url()])
        .node_timeout(Duration::from_secs(2))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("{job}").ttl(LONG).acquire().await.unwrap();
    runs_once_though_its_reply_is_lost(&guard, &cluster.nodes[0], &link).await;
}

/// A cluster, a guard there, and a command that has run once under it.
async fn counting_in_a_cluster() -> (Cluster, Guard, redis::Cmd) {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let client = crate::cluster::client(&cluster).await;
    let guard = client.lock("job").ttl(LONG).acquire().await.unwrap();
    let add = redis::cmd("INCR").arg("{job}n").to_owned();
    assert_eq!(guard.command::<u64>(&add).await.unwrap(), 1);
    (cluster, guard, add)
}

#[tokio::test]
async fn a_command_follows_the_slot_in_a_cluster() {
    let (cluster, guard, add) = counting_in_a_cluster().await;
    cluster.move_slot(crate::cluster::JOB, 0, 1);
    assert_eq!(guard.command::<u64>(&add).await.unwrap(), 2);
}

#[tokio::test]
async fn a_command_runs_though_the_server_has_closed_an_idle_connection() {
    let (cluster, guard, add) = counting_in_a_cluster().await;
    let master = &cluster.nodes[0];
    let list: String = master.run(&["CLIENT", "LIST", "TYPE", "normal"]);
    let used = list.lines().filter(|line| line.contains("cmd=lock.guard "));
    let ids: Vec<_> = used
        .filter_map(|line| line.strip_prefix("id=")?.split(' ').next())
        .collect();
    assert_eq!(ids.len(), 1, "{list}");
    // Longer than a connection is trusted without a reply.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _: u64 = master.run(&["CLIENT", "KILL", "ID", ids[0]]);
    assert_eq!(guard.command::<u64>(&add).await.unwrap(), 2);
}
