//! Idle connections that the server has closed: `timeout`, CLIENT KILL.

use std::time::Duration;

use redislock_client::{Loss, Redlock, Released};
use redislock_testkit::Server;

use crate::{TTL, patient, until};

/// Closes every connection of clients but the one that asks for it.
fn close_connections(servers: &[Server]) {
    for server in servers {
        server.run::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
}

async fn uses_it_again(client: &Redlock, servers: &[Server]) {
    let lock = client.lock("x").ttl(TTL * 10);
    for round in 0..10 {
        close_connections(servers);
        let guard = lock.try_acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("round {round}: {error}"));
        close_connections(servers);
        guard.extend().await.unwrap();
        close_connections(servers);
        assert_eq!(guard.release().await, Released::WasHeld, "round {round}");
    }
}

#[tokio::test]
async fn the_first_request_after_the_connection_was_closed_succeeds() {
    let servers = Server::start_many::<1>();
    uses_it_again(&patient(&servers).await, &servers).await;
}

#[tokio::test]
async fn the_first_request_after_all_connections_were_closed_succeeds() {
    let servers = Server::start_many::<3>();
    uses_it_again(&patient(&servers).await, &servers).await;
}

#[tokio::test]
async fn all_requests_that_meet_a_closed_connection_succeed() {
    let servers = Server::start_many::<1>();
    let client = patient(&servers).await;
    for _ in 0..10 {
        close_connections(&servers);
        let requests = (0..20).map(|number| {
            let lock = client.lock(format!("x{number}")).ttl(TTL * 10);
            tokio::spawn(async move { lock.try_acquire().await })
        });
        let requests: Vec<_> = requests.collect();
        for request in requests {
            assert_eq!(
                request.await.unwrap().unwrap().release().await,
                Released::WasHeld
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_costs_no_request() {
    let servers = [Server::with(["timeout 1"])];
    let client = patient(&servers).await;
    let clients = || servers[0].run::<String>(&["CLIENT", "LIST"]);
    for _ in 0..2 {
        // One line is for the connection that asks.
        until("the connection is closed", || clients().lines().count() < 2).await;
        let guard = client.lock("x").ttl(TTL * 10).try_acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn an_ephemeral_lock_is_bound_to_the_connection_that_is_there() {
    let servers = Server::start_many::<1>();
    let client = patient(&servers).await;
    let lock = client.lock("x").ttl(TTL * 10).ephemeral();
    for _ in 0..10 {
        close_connections(&servers);
        let guard = lock.try_acquire().await.unwrap();
        guard.extend().await.unwrap();
        assert!(guard.is_valid() && !servers[0].is_free("x"));
        close_connections(&servers);
        // A question of the background, or any request, shows that the connection has ended.
        assert_eq!(guard.lost().await, Loss::Disconnected);
        assert!(!guard.is_valid());
        until("it is free", || servers[0].is_free("x")).await;
        // A connection that is cut while it is opened is another matter.
        let connected = client.lock("y").ttl(TTL * 10).acquire().await;
        assert_eq!(connected.unwrap().release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn a_grant_is_confirmed_by_replicas_even_after_an_idle_connection_was_closed() {
    let servers = [Server::with(["repl-diskless-sync-delay 0"])];
    let client = patient(&servers).await;
    let _replica = Server::options().replica_of(&servers[0]).start();
    let info = || servers[0].run::<String>(&["INFO", "replication"]);
    until("the replica is in step", || info().contains("state=online")).await;
    let lock = client.lock("x").ttl(TTL * 10).replicas(1);
    for _ in 0..5 {
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
        let list: String = servers[0].run(&["CLIENT", "LIST", "TYPE", "normal"]);
        let waited = list.lines().filter(|line| line.contains("cmd=wait "));
        for id in waited.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()) {
            let _: u64 = servers[0].run(&["CLIENT", "KILL", "ID", id]);
        }
    }
}

#[tokio::test]
async fn the_leader_is_reported_even_after_the_connection_was_closed() {
    let servers = Server::start_many::<3>();
    let client = patient(&servers).await;
    let election = client.election("office").candidate("a").ttl(TTL * 10);
    let _leads = election
        .campaign_for(Duration::from_secs(30))
        .await
        .unwrap();
    for _ in 0..10 {
        close_connections(&servers);
        let leader = election.leader().await.unwrap().expect("somebody leads");
        assert_eq!(leader.candidate.as_deref(), Some("a"));
    }
}
