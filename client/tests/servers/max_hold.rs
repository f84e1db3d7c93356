//! A lock whose holds may last no longer than one lease: nodes refuse an extension by the whole
//! ttl, and nothing that the client extends on the way to a guard may need one.

use std::slice::from_ref;
use std::time::Duration;

use redislock_client::{Lock, Owner, Redlock, Released};
use redislock_testkit::{Flow, Proxy, Server};

use crate::acquire::{ahead, once_replicas_confirm};
use crate::contention::waiters;
use crate::{TTL, builder, connect, patient, until};

/// Waits for so long that the client extends the lease before it relies on the lock.
async fn waits_for_more_than_half_of_its_ttl(client: &Redlock, lock: Lock, server: &Server) {
    let first = client.lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { lock.wait(TTL * 10).acquire().await });
    until("it waits", || waiters(server, "x") == 1).await;
    tokio::time::sleep(TTL * 3 / 4).await;
    first.release().await;
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_wait_for_longer_than_half_of_it_succeeds() {
    let server = Server::start();
    let client = connect(from_ref(&server)).await;
    let lock = client.lock("x").ttl(TTL).max_hold(TTL);
    waits_for_more_than_half_of_its_ttl(&client, lock, &server).await;
}

#[tokio::test]
async fn a_wait_succeeds_where_the_node_has_the_limit() {
    let server = Server::with([format!("lock.max-hold {}", TTL.as_millis())]);
    let client = builder(from_ref(&server)).node_timeout(TTL / 10);
    let client = client.connect().await.unwrap();
    let holder = client.lock("x").ttl(TTL / 2).renew(false);
    let _first = holder.acquire().await.unwrap();
    let guard = client.lock("x").ttl(TTL).wait(TTL * 10).acquire().await;
    assert_eq!(guard.unwrap().release().await, Released::WasHeld);
    // One that waits for longer than half of its ttl.
    let lock = client.lock("x").ttl(TTL);
    let _first = lock.clone().renew(false).acquire().await.unwrap();
    let guard = lock.wait(TTL * 10).acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn fences_that_differ_are_raised() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    ahead(&servers[0], 3_000_000);
    ahead(&servers[1], 4_000_000);
    let lock = client.lock("x").ttl(TTL).max_hold(TTL);
    let guard = lock.try_acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn replicas_confirm_it() {
    let servers = [Server::with(["repl-diskless-sync-delay 0"])];
    let client = patient(&servers).await;
    let replica = Server::options().replica_of(&servers[0]).start();
    until("the replica is in step", || {
        let info = servers[0].run::<String>(&["INFO", "replication"]);
        info.contains("state=online")
    })
    .await;
    let ttl = Duration::from_secs(20);
    let lock = client.lock("x").ttl(ttl).replicas(1);
    once_replicas_confirm(&lock).await.release().await;
    let guard = lock.max_hold(ttl).acquire().await.unwrap();
    assert!(!replica.is_free("x"), "the replica has what was confirmed");
    assert_eq!(guard.release().await, Released::WasHeld);
}

/// The end of a hold, as its node has it, is not known to the client to the millisecond: a request
/// takes longer at one time than at another.
#[tokio::test]
async fn the_last_extension_succeeds_though_it_takes_longer_than_the_grant() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url());
    let client = client.node_timeout(TTL).connect().await.unwrap();
    let lock = client.lock("x").ttl(TTL * 4).max_hold(TTL * 4);
    let guard = lock.acquire().await.unwrap();
    let before = guard.valid_until();
    proxy.requests(Flow::Hold);
    let passing = async {
        tokio::time::sleep(TTL / 50).await;
        proxy.heal();
    };
    let (extended, ()) = tokio::join!(guard.extend(), passing);
    assert!(extended.unwrap() >= before);
}

#[tokio::test]
async fn an_extension_that_the_node_refuses_is_followed_by_a_shorter_one() {
    let limit = TTL * 4 / 3;
    let server = Server::with([format!("lock.max-hold {}", limit.as_millis())]);
    let client = connect(from_ref(&server)).await;
    let lock = client.lock("x").ttl(TTL).renew(false);
    let guard = lock.acquire().await.unwrap();
    let before = guard.valid_until();
    tokio::time::sleep(TTL / 2).await;
    let extended = guard.extend().await.unwrap();
    assert!(extended > before && extended < before + TTL / 3);
    assert_eq!(server.calls("lock.extend"), 2);
}

/// The owner holds the lock, so nothing but the end of the hold may stop it.
#[tokio::test]
async fn an_owner_that_tries_once_enters_again_where_the_node_has_the_limit() {
    let limit = TTL * 4 / 3;
    let server = Server::with([format!("lock.max-hold {}", limit.as_millis())]);
    let client = connect(from_ref(&server)).await;
    let owner = Owner::new();
    let lock = client.lock("x").owner(&owner).ttl(TTL).renew(false);
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(TTL / 2).await;
    let again = lock.try_acquire().await.unwrap();
    assert!(again.is_valid());
    assert_eq!(again.fence(), guard.fence());
    assert_eq!(again.release().await, Released::StillHeld);
    assert_eq!(guard.release().await, Released::WasHeld);
}

/// Each node counts the time of a hold by its own limit; a majority without one can go on.
#[tokio::test]
async fn a_limit_of_one_node_does_not_end_what_the_others_carry_on() {
    let limit = TTL * 4 / 3;
    let limited = Server::with([format!("lock.max-hold {}", limit.as_millis())]);
    let servers = [Server::start(), Server::start(), limited];
    let client = connect(&servers).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let begun = guard.valid_until();
    until("it lasts for longer", || {
        assert!(guard.is_valid(), "a majority would extend it");
        guard.valid_until() > begun + limit
    })
    .await;
    until("the third one has granted it again", || {
        assert!(guard.is_valid());
        !servers[2].is_free("x")
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
}
