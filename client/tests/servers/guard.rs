//! Keeping a lock: renewal, loss, MAXHOLD, drop.

use std::time::Duration;

use redislock_client::{Error, Loss, Moment, Redlock, Released, Verdict};
use redislock_testkit::{Flow, Proxy, Server};

use crate::{
    NODE_TIMEOUT, TTL, builder, connect, freed_before_the_lease_ends, is_busy, patient, until,
};

#[tokio::test]
async fn renewal_keeps_the_lock_for_longer_than_its_ttl_and_ends_with_the_guard() {
    let servers = Server::start_many::<3>();
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let guard = one.lock("x").ttl(NODE_TIMEOUT * 4).acquire().await.unwrap();
    let first = guard.valid_until();
    until("the first validity is over", || {
        Moment::now() > first + NODE_TIMEOUT
    })
    .await;
    assert!(guard.is_valid());
    assert!(is_busy(other.lock("x").try_acquire().await));
    assert_eq!(guard.release().await, Released::WasHeld);
    let extends = |servers: &[Server]| -> u64 {
        servers
            .iter()
            .map(|server| server.calls("lock.extend"))
            .sum()
    };
    let before = extends(&servers);
    tokio::time::sleep(NODE_TIMEOUT * 4).await;
    assert_eq!(
        extends(&servers),
        before,
        "nothing is renewed after the release"
    );
}

#[tokio::test]
async fn renewal_comes_at_a_third_of_the_ttl() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let ttl = TTL * 2;
    let guard = client.lock("x").ttl(ttl).acquire().await.unwrap();
    let mut last = guard.valid_until();
    for _ in 0..2 {
        until("it is renewed", || guard.valid_until() > last).await;
        // Validity counts from the sending, so it moves by what lies between two of them.
        let step = guard.valid_until().since(last);
        assert!(step >= ttl / 3 && step < ttl * 2 / 3, "{step:?} of {ttl:?}");
        last = guard.valid_until();
    }
}

#[tokio::test]
async fn without_renewal_the_lock_is_lost_at_its_ttl_and_the_holder_is_notified_before() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(NODE_TIMEOUT * 4).renew(false);
    // On a busy machine this task may hear of it too late, but not every time.
    let mut told_before = false;
    for _ in 0..10 {
        let guard = lock.acquire().await.unwrap();
        let token = guard.lost_token();
        guard.lost().await;
        told_before = Moment::now() < guard.valid_until();
        assert!(token.is_cancelled());
        assert!(!guard.is_valid());
        let end = guard.valid_until();
        until("validity is over", || {
            Moment::now() > end + Duration::from_millis(100)
        })
        .await;
        assert_eq!(guard.release().await, Released::WasLost);
        if told_before {
            break;
        }
    }
    assert!(told_before, "told only when validity was over");
}

#[tokio::test]
async fn the_holder_is_notified_before_validity_ends_when_a_majority_stops_replying() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    // Long enough for the warning to come a second before the end, also on a busy machine.
    let guard = client.lock("x").ttl(TTL * 4).acquire().await.unwrap();
    servers[0].pause();
    servers[1].pause();
    guard.lost().await;
    let (now, end) = (Moment::now(), guard.valid_until());
    servers[0].resume();
    servers[1].resume();
    assert!(now < end, "told at {now:?}, valid until {end:?}");
}

#[tokio::test]
async fn a_lock_that_was_forced_away_is_reported_lost_by_the_next_renewal() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    for server in &servers {
        assert_eq!(server.run::<u64>(&["LOCK.FORCE", "x"]), 1);
        let _: u64 = server.run(&["LOCK.ACQUIRE", "x", "thief", "60000"]);
    }
    guard.lost().await;
    assert!(!guard.is_valid());
    assert!(matches!(guard.extend().await, Err(Error::Lost { .. })));
    assert_eq!(guard.release().await, Released::WasLost);
    assert!(
        servers.iter().all(|server| !server.is_free("x")),
        "the new holder is not disturbed"
    );
}

#[tokio::test]
async fn extending_moves_the_end_of_validity_and_a_longer_ttl_moves_it_further() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client
        .lock("x")
        .ttl(TTL)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    let first = guard.valid_until();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = guard.extend().await.unwrap();
    assert!(second > first);
    let third = guard.extend_to(TTL * 5).await.unwrap();
    assert!(third > second + TTL);
    assert_eq!(guard.valid_until(), third);
    assert!(matches!(
        guard.extend_to(Duration::ZERO).await,
        Err(Error::Invalid(_))
    ));
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn an_extension_that_is_refused_does_not_delay_the_renewal() {
    let servers = Server::start_many::<1>();
    let client = connect(&servers).await;
    let ttl = NODE_TIMEOUT * 4;
    let guard = client.lock("x").ttl(ttl).acquire().await.unwrap();
    servers[0].run::<String>(&["CONFIG", "SET", "lock.max-ttl", "60000"]);
    let refused = guard.extend_to(Duration::from_secs(3600)).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    let first = guard.valid_until();
    until("the first validity is over", || {
        Moment::now() > first + NODE_TIMEOUT
    })
    .await;
    assert!(guard.is_valid(), "it was not renewed");
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_release_is_repeated_for_as_long_as_the_longest_lease_that_was_asked_for() {
    let servers = Server::start_many::<1>();
    let client = connect(&servers).await;
    let (long, short) = (Duration::from_secs(60), NODE_TIMEOUT * 4);
    let lock = client.lock("x").ttl(long).renew(false);
    let guard = lock.acquire().await.unwrap();
    // A lease is never shortened: the node keeps the long one.
    guard.extend_to(short).await.unwrap();
    // During this time every release is refused.
    let replicas = |number| ["CONFIG", "SET", "min-replicas-to-write", number];
    servers[0].run::<String>(&replicas("1"));
    drop(guard);
    tokio::time::sleep(short * 3).await;
    servers[0].run::<String>(&replicas("0"));
    freed_before_the_lease_ends(&servers, "x", long - short * 5).await;
}

#[tokio::test]
async fn renewal_stops_at_max_hold() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let cap = TTL * 2;
    let started = Moment::now();
    let guard = client
        .lock("x")
        .ttl(TTL)
        .max_hold(cap)
        .acquire()
        .await
        .unwrap();
    let acquired = Moment::now();
    guard.lost().await;
    let told = Moment::now();
    assert!(told.since(started) > TTL, "it was renewed before");
    assert!(
        guard.valid_until() <= acquired + cap,
        "but not beyond the cap"
    );
    freed_before_the_lease_ends(&servers, "x", TTL).await;
}

#[tokio::test]
async fn dropping_a_guard_releases_at_once() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client
        .lock("x")
        .ttl(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap();
    drop(client);
    drop(guard);
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_on_a_thread_without_a_runtime_releases_too() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(600));
    let guard = lock.acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_release_during_a_renewal_comes_last() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[2].port());
    let client = Redlock::builder()
        .nodes([servers[0].url(), servers[1].url(), proxy.url()])
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    until("all hold it", || {
        servers.iter().all(|server| !server.is_free("x"))
    })
    .await;
    // Renewal will find that the third node has forgotten, and ask it again; its answer takes a
    // while.
    let _: u64 = servers[2].run(&["LOCK.FORCE", "x"]);
    proxy.delay_replies(Duration::from_millis(200));
    until("renewal is under way", || {
        servers[2].calls("lock.extend") > 0
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(
        servers.iter().all(|server| server.is_free("x")),
        "nothing was asked for after the release"
    );
}

#[tokio::test]
async fn the_closure_is_stopped_when_the_lock_is_lost() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(TTL);
    let running = tokio::spawn(async move { lock.run(|_| std::future::pending::<()>()).await });
    until("it is held", || !servers[0].is_free("x")).await;
    let _: u64 = servers[0].run(&["LOCK.FORCE", "x"]);
    assert!(matches!(running.await.unwrap(), Err(Error::Lost { .. })));
}

#[tokio::test]
async fn an_ephemeral_lock_is_free_as_soon_as_its_process_dies() {
    let servers = [Server::start()];
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let dying = builder(&servers);
    let guard = runtime.spawn(async move {
        let client = dying.connect().await.unwrap();
        client
            .lock("x")
            .ttl(Duration::from_secs(3600))
            .ephemeral()
            .acquire()
            .await
            .unwrap()
    });
    let guard = guard.await.unwrap();
    assert!(!servers[0].is_free("x"));
    // No destructor that could release runs in a process that dies; its connections close.
    std::mem::forget(guard);
    runtime.shutdown_background();
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

/// The token holds the lock again, but another client has held it in between.
#[tokio::test]
async fn an_extension_of_a_later_grant_does_not_count() {
    let servers = [Server::start()];
    let client = patient(&servers).await;
    let lock = client.lock("x").ttl(TTL * 20).renew(false);
    let guard = lock.acquire().await.unwrap();
    let token = std::str::from_utf8(guard.token().unwrap()).unwrap();
    let _: () = servers[0].run(&["LOCK.FORCE", "x"]);
    for owner in ["another", token] {
        let _: u64 = servers[0].run(&["LOCK.ACQUIRE", "x", owner, "600000"]);
        if owner != token {
            let _: u64 = servers[0].run(&["LOCK.RELEASE", "x", owner]);
        }
    }
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert_eq!(error.nodes()[0].verdict, Verdict::NotHeld);
    assert!(matches!(guard.lost().await, Loss::Gone { .. }));
}

/// The reply to an extension comes after the holder was told that the lease ends: what it was told
/// stays true.
#[tokio::test]
async fn an_extension_that_is_confirmed_after_the_loss_does_not_count() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url());
    let client = client.node_timeout(TTL / 3).connect().await.unwrap();
    let ttl = TTL * 4 / 3;
    let lock = client.lock("x").ttl(ttl).renew(false);
    let guard = lock.acquire().await.unwrap();
    let until = guard.valid_until();
    // The holder is told a tenth of the ttl before the end.
    tokio::time::sleep(until.remaining().saturating_sub(ttl / 6)).await;
    proxy.replies(Flow::Hold);
    let extending = guard.extend();
    let losing = async {
        let loss = guard.lost().await;
        proxy.heal();
        loss
    };
    let (extended, loss) = tokio::join!(extending, losing);
    assert!(matches!(loss, Loss::Expired { .. }), "{loss:?}");
    assert!(matches!(extended, Err(Error::Lost { .. })), "{extended:?}");
    assert!(!guard.is_valid() && guard.valid_until() <= until);
    assert_eq!(guard.release().await, Released::WasLost);
}
