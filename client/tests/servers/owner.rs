//! Re-entry through an owner's handle.

use std::time::Duration;

use redislock_client::{Error, Guard, Lock, Owner, Redlock, Released, Verdict};
use redislock_testkit::Server;
use redislock_testkit::lock::waiters;

use crate::{
    NODE_TIMEOUT, TTL, acquire_in_background, connect, freed_before_the_lease_ends, is_busy,
    patient, until,
};

#[tokio::test]
async fn the_same_owner_enters_again_and_the_last_guard_out_releases() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let owner = Owner::named("worker-7");
    let lock = client.lock("x").owner(&owner).ttl(TTL);
    let outer = lock.acquire().await.unwrap();
    let inner = lock.acquire().await.unwrap();
    let innermost = lock.try_acquire().await.unwrap();
    assert_eq!(outer.fence(), inner.fence());
    assert_eq!(outer.release().await, Released::StillHeld);
    assert!(
        is_busy(client.lock("x").try_acquire().await),
        "the others still hold it"
    );
    drop(inner);
    assert!(
        is_busy(client.lock("x").try_acquire().await),
        "one still holds it"
    );
    assert_eq!(innermost.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "x", TTL / 2).await;
    let next = lock.acquire().await.unwrap();
    assert_eq!(next.release().await, Released::WasHeld);
}

#[tokio::test]
async fn entering_again_with_a_shorter_ttl_does_not_shorten_the_lease() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let outer = client
        .lock("x")
        .owner(&owner)
        .ttl(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap();
    let before = outer.valid_until();
    let inner = client
        .lock("x")
        .owner(&owner)
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    assert!(outer.valid_until() >= before);
    inner.release().await;
    assert!(outer.valid_until() >= before);
    outer.release().await;
}

#[tokio::test]
async fn two_tasks_of_one_owner_share_the_hold_instead_of_waiting_for_each_other() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let owner = Owner::new();
    let lock = client.lock("x").owner(&owner).ttl(TTL);
    let (one, two) = tokio::join!(lock.acquire(), lock.acquire());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.fence(), two.fence());
    drop(one);
    assert_eq!(two.release().await, Released::WasHeld);
}

#[tokio::test]
async fn another_owner_is_another_owner() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let _guard = client
        .lock("x")
        .owner(&Owner::named("a"))
        .acquire()
        .await
        .unwrap();
    assert!(is_busy(
        client
            .lock("x")
            .owner(&Owner::named("a"))
            .try_acquire()
            .await
    ));
}

#[tokio::test]
async fn an_owner_whose_hold_was_lost_gets_a_new_one() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let first = client
        .lock("x")
        .owner(&owner)
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    let _: u64 = servers[0].run(&["LOCK.FORCE", "x"]);
    let second = client
        .lock("x")
        .owner(&owner)
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    assert!(second.fence() > first.fence());
    assert_eq!(first.release().await, Released::WasLost);
    assert_eq!(second.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_shared_hold_is_not_silently_taken_for_an_exclusive_one() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let _shared = client
        .lock("x")
        .owner(&owner)
        .shared()
        .acquire()
        .await
        .unwrap();
    let error = client.lock("x").owner(&owner).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[tokio::test]
async fn every_lock_is_entered_separately_in_any_order_and_combination() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let both = client.lock_all(["x", "y"]).owner(&owner);
    let both = both.try_acquire().await.unwrap();
    let turned = client.lock_all(["y", "x"]).owner(&owner);
    let turned = turned.try_acquire().await.unwrap();
    let one = client.lock("x").owner(&owner).try_acquire().await.unwrap();
    assert_eq!(both.fence(), turned.fence());
    assert_eq!(both.fence(), one.fence());
    // What it does not hold yet is acquired.
    let more = client.lock_all(["z", "y"]).owner(&owner);
    let more = more.try_acquire().await.unwrap();
    assert!(more.fence() > both.fence() && more.is_valid());
    assert!(is_busy(client.lock("z").try_acquire().await));
    assert_eq!(both.release().await, Released::StillHeld);
    assert_eq!(turned.release().await, Released::StillHeld);
    assert_eq!(one.release().await, Released::WasHeld);
    assert!(servers[0].is_free("x"));
    assert!(is_busy(client.lock("y").try_acquire().await));
    let (held, token) = (more.held(), more.lost_token());
    assert_eq!(more.release().await, Released::WasHeld);
    assert!(["x", "y", "z"].iter().all(|key| servers[0].is_free(key)));
    assert!(!held.is_valid());
    token.cancelled().await;
}

#[tokio::test]
async fn each_of_several_locks_is_released_by_the_last_one_in_it() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let owner = Owner::new();
    for dropped in [false, true] {
        let both = client.lock_all(["x", "y"]).owner(&owner).ttl(TTL * 10);
        let both = both.acquire().await.unwrap();
        let x = client.lock("x").owner(&owner).ttl(TTL * 10);
        let x = x.acquire().await.unwrap();
        let (held, fence) = (x.held(), both.fence());
        if dropped {
            drop(both)
        } else {
            assert_eq!(both.release().await, Released::StillHeld)
        }
        freed_before_the_lease_ends(&servers, "y", TTL * 5).await;
        assert!(is_busy(client.lock("x").try_acquire().await));
        // What is left of the hold is renewed without it, and what was left is acquired again.
        x.extend().await.unwrap();
        let y = client.lock("y").owner(&owner).try_acquire().await.unwrap();
        assert!(y.fence() > fence);
        assert_eq!(y.release().await, Released::WasHeld);
        assert!(held.is_valid());
        assert_eq!(x.release().await, Released::WasHeld);
        assert!(servers.iter().all(|server| server.is_free("x")));
    }
}

#[tokio::test]
async fn tokens_for_the_end_of_several_holds_cost_no_tasks() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let _x = client.lock("x").owner(&owner).acquire().await.unwrap();
    let both = client.lock_all(["x", "y"]).owner(&owner);
    let both = both.acquire().await.unwrap();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let tokens: Vec<_> = (0..1_000).map(|_| both.lost_token()).collect();
    assert!(tasks() < before + 100);
    assert!(!tokens[0].is_cancelled());
    // The hold of y ends, that of x does not.
    assert_eq!(both.release().await, Released::WasHeld);
    assert!(tokens.iter().all(|token| token.is_cancelled()));
}

#[tokio::test]
async fn two_owners_that_wait_for_each_other_stop_when_their_wait_is_over() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let (one, two) = (Owner::new(), Owner::new());
    let _x = client.lock("x").owner(&one).acquire().await.unwrap();
    let _y = client.lock("y").owner(&two).acquire().await.unwrap();
    let wait = Duration::from_millis(500);
    let y = client.lock("y").owner(&one).wait(wait);
    let x = client.lock("x").owner(&two).wait(wait);
    let crossed = tokio::join!(y.acquire(), x.acquire());
    assert!(is_busy(crossed.0) && is_busy(crossed.1));
}

#[tokio::test]
async fn an_owner_enters_what_it_holds_while_another_task_of_it_waits_for_more() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let other = client.lock("y").acquire().await.unwrap();
    let owner = Owner::new();
    let outer = client.lock("x").owner(&owner).acquire().await.unwrap();
    let both = client.lock_all(["x", "y"]).owner(&owner);
    let waiting = tokio::spawn(async move { both.acquire().await.unwrap() });
    until("the other task waits", || {
        waiters(&mut servers[0].connect(), "y") == 1
    })
    .await;
    let inner = client.lock("x").owner(&owner).try_acquire().await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
    other.release().await;
    let both = waiting.await.unwrap();
    for guard in [inner, outer] {
        assert_eq!(guard.release().await, Released::StillHeld);
    }
    assert_eq!(both.release().await, Released::WasHeld);
}

#[tokio::test]
async fn after_a_loss_the_release_of_a_part_says_so() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let owner = Owner::new();
    let lock = |name: &str| client.lock(name).owner(&owner).ttl(TTL).renew(false);
    let both = client.lock_all(["x", "y"]).owner(&owner).ttl(TTL);
    let both = both.renew(false).acquire().await.unwrap();
    let x = lock("x").acquire().await.unwrap();
    let y = lock("y").acquire().await.unwrap();
    assert_eq!(both.release().await, Released::StillHeld);
    x.lost().await;
    assert_eq!(x.release().await, Released::WasLost);
    assert_eq!(y.release().await, Released::WasLost);
}

/// A lock with an owner that holds it.
async fn held(client: &Redlock, ttl: Duration) -> (Lock, Guard) {
    let lock = client.lock("x").owner(&Owner::new()).ttl(ttl);
    let guard = lock.acquire().await.unwrap();
    (lock, guard)
}

#[tokio::test]
async fn entering_again_waits_for_the_requested_number_of_replicas() {
    let servers = [Server::start()];
    let client = patient(&servers).await;
    let (lock, outer) = held(&client, TTL * 6).await;
    let again = lock.clone().replicas(1).acquire().await;
    assert!(
        matches!(again, Err(Error::NotReplicated { .. })),
        "{again:?}"
    );
    assert!(outer.is_valid());
    assert_eq!(outer.release().await, Released::WasHeld);
}

/// One renewal is not enough for a caller that can wait.
#[tokio::test]
async fn entering_again_is_repeated_until_the_node_answers() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let (lock, outer) = held(&client, TTL * 40).await;
    servers[0].pause();
    let once = lock.try_acquire().await;
    assert!(matches!(once, Err(Error::NoQuorum { .. })), "{once:?}");
    let waiting = acquire_in_background(&lock.clone().wait(TTL * 20));
    tokio::time::sleep(NODE_TIMEOUT * 3).await;
    servers[0].resume();
    let inner = waiting.await.unwrap().unwrap();
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(outer.release().await, Released::StillHeld);
    assert_eq!(inner.release().await, Released::WasHeld);
}

/// It tries for as long as any request does, although extensions that hang are ahead of it.
#[tokio::test]
async fn entering_again_respects_the_limit_of_the_wait() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let (lock, outer) = held(&client, TTL * 20).await;
    let again = lock.clone().wait(Duration::ZERO);
    servers[0].pause();
    let (_, _, entered) = tokio::join!(outer.extend(), outer.extend(), again.acquire());
    servers[0].resume();
    let error = entered.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert_eq!(error.nodes()[0].verdict, Verdict::TimedOut(NODE_TIMEOUT));
}

/// A ttl that every node refuses. It was requested again and again, and put off the renewals of
/// the hold until the hold was lost.
#[tokio::test]
async fn entering_again_with_a_ttl_that_is_refused_fails_at_once_and_the_hold_is_renewed() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let (lock, outer) = held(&client, TTL).await;
    let too_long = lock.clone().ttl(Duration::from_secs(2 * 86_400));
    for entered in [too_long.acquire().await, too_long.try_acquire().await] {
        assert!(matches!(entered, Err(Error::Refused { .. })), "{entered:?}");
    }
    let end = outer.valid_until();
    while outer.valid_until() <= end + TTL {
        assert!(outer.is_valid(), "the hold was lost");
        let refused = outer.extend_to(Duration::from_secs(2 * 86_400)).await;
        assert!(refused.is_err(), "{refused:?}");
    }
    assert_eq!(outer.release().await, Released::WasHeld);
}
