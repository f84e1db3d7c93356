//! Nodes that are slow, stopped, killed, restarted, quarantined or lose replies.

use std::time::Duration;

use redislock_client::{Error, Moment, Redlock, Released, Verdict};
use redislock_testkit::lock::sole_holder;
use redislock_testkit::{Flow, Proxy, Server};

use crate::{
    NODE_TIMEOUT, TTL, builder, connect, freed_before_the_lease_ends, is_busy, patient, until,
};

async fn behind(servers: &[Server], proxy: &Proxy) -> Redlock {
    let urls = servers[1..].iter().map(Server::url);
    let urls = std::iter::once(proxy.url()).chain(urls);
    Redlock::builder()
        .nodes(urls)
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn one_slow_node_stalls_nobody() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    // Its replies come only when the test is over, so whatever succeeds did not wait for them.
    proxy.replies(Flow::Hold);
    for _ in 0..10 {
        let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
    proxy.replies(Flow::Pass);

    // Nobody waits for its timeout: neither a client that acquires, nor one that learns that
    // another client holds the lock.
    let patience = Duration::from_secs(100);
    let urls = [proxy.url(), servers[1].url(), servers[2].url()];
    let patient = Redlock::builder().nodes(urls).node_timeout(patience);
    let patient = patient.connect().await.unwrap();
    proxy.replies(Flow::Hold);
    let lock = patient.lock("y").ttl(patience * 4);
    let both = async {
        let guard = lock.try_acquire().await.unwrap();
        assert!(is_busy(lock.try_acquire().await));
        guard
    };
    let guard = tokio::time::timeout(patience / 2, both).await;
    drop(guard.expect("no one waited for the slow node"));
}

#[tokio::test]
async fn a_minority_that_is_stopped_costs_no_acquire_and_is_used_again_afterwards() {
    let servers = Server::start_many::<5>();
    let client = connect(&servers).await;
    servers[0].pause();
    servers[2].pause();
    for _ in 0..20 {
        let guard = client.lock("x").ttl(TTL).wait(TTL).acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
    servers[0].resume();
    servers[2].resume();
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(20)).await;
    let before = servers[0].calls("lock.acquire");
    for _ in 0..1_000 {
        client
            .lock("y")
            .ttl(TTL)
            .acquire()
            .await
            .unwrap()
            .release()
            .await;
        if servers[0].calls("lock.acquire") > before {
            return;
        }
    }
    panic!("the node was never asked again");
}

#[tokio::test]
async fn no_quorum_names_every_node_with_its_reason() {
    let mut servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    servers[0].kill();
    servers[1].pause();
    let error = client.lock("x").ttl(TTL).try_acquire().await.unwrap_err();
    servers[1].resume();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let verdicts: Vec<&Verdict> = error.nodes().iter().map(|report| &report.verdict).collect();
    assert!(matches!(verdicts[0], Verdict::Unreachable(_)), "{error}");
    assert!(matches!(verdicts[1], Verdict::TimedOut(_)), "{error}");
    assert!(matches!(verdicts[2], Verdict::Granted { .. }), "{error}");
    freed_before_the_lease_ends(&servers[2..], "x", TTL / 2).await;
}

#[tokio::test]
async fn no_quorum_names_the_owner_where_a_node_that_answers_holds_the_lock() {
    let mut servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let words = ["LOCK.ACQUIRE", "x", "t", "600000", "OWNER", "somebody"];
    let _: u64 = servers[2].run(&words);
    servers[0].kill();
    servers[1].kill();
    let error = client.lock("x").ttl(TTL).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(
        error.nodes()[2]
            .to_string()
            .contains("held by \"somebody\" for another")
    );
}

#[tokio::test]
async fn a_reply_that_is_lost_and_asked_for_again_counts_once_and_has_the_same_fence() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    proxy.replies(Flow::Lose);
    let guard = client.lock("x").ttl(TTL * 2).acquire().await.unwrap();
    until("the request has arrived", || !servers[0].is_free("x")).await;
    let hold = |server: &Server| {
        let holder = sole_holder(&mut server.connect(), "x");
        (holder.number("holds"), holder.number("fence"))
    };
    let (count, fence) = hold(&servers[0]);
    assert_eq!(count, 1);
    proxy.close_connections();
    proxy.replies(Flow::Pass);
    // Nothing is known of the grant, so renewal asks for it: ONCE.
    let asked = servers[0].calls("lock.acquire");
    until("it was asked again", || {
        servers[0].calls("lock.acquire") > asked
    })
    .await;
    assert_eq!(hold(&servers[0]), (count, fence));
    assert_eq!(guard.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "x", TTL).await;
}

#[tokio::test]
async fn busy_no_quorum_lost_and_refused_are_different_errors() {
    let servers = Server::start_many::<3>();
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let guard = one.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(matches!(
        other.lock("x").try_acquire().await,
        Err(Error::Busy { .. })
    ));

    for server in &servers {
        let _: () = server.run(&["SET", "string", "value"]);
    }
    let error = one.lock("string").ttl(TTL).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(
        error
            .nodes()
            .iter()
            .filter(|report| report.verdict == Verdict::WrongType)
            .count()
            >= 2,
        "{error}"
    );

    for server in &servers {
        let _: u64 = server.run(&["LOCK.FORCE", "x"]);
    }
    assert!(matches!(guard.extend().await, Err(Error::Lost { .. })));

    servers[0].pause();
    servers[1].pause();
    let error = other.lock("x").ttl(TTL).try_acquire().await.unwrap_err();
    servers[0].resume();
    servers[1].resume();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
}

/// It is unknown whether anybody holds the lock: one node is no majority.
#[tokio::test]
async fn a_lock_that_one_node_holds_is_not_busy_while_the_others_do_not_answer() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    for holder in [0, 2] {
        let _: u64 = servers[holder].run(&["LOCK.ACQUIRE", "x", "somebody", "600000"]);
        let others = || {
            (0..3)
                .filter(|other| *other != holder)
                .map(|other| &servers[other])
        };
        others().for_each(Server::pause);
        let error = client.lock("x").ttl(TTL).try_acquire().await.unwrap_err();
        others().for_each(Server::resume);
        assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
        let _: u64 = servers[holder].run(&["LOCK.RELEASE", "x", "somebody"]);
        until("all of them answer again", || {
            error.nodes().len() == servers.iter().filter(|one| one.is_free("x")).count()
        })
        .await;
    }
}

#[tokio::test]
async fn an_extension_beyond_the_nodes_limit_is_refused_and_the_lock_stays_held() {
    for servers in [1, 3] {
        let start = |_| Server::with(["lock.max-ttl 5000"]);
        let servers: Vec<Server> = (0..servers).map(start).collect();
        let client = connect(&servers).await;
        let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
        let error = guard.extend_to(TTL * 20).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("LOCKLIMIT"), "{error}");
        assert!(guard.is_valid());
        guard.extend().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn a_ttl_beyond_the_nodes_limit_is_refused_with_their_words() {
    let servers = [Server::with(["lock.max-ttl 5000"])];
    let client = connect(&servers).await;
    let error = client
        .lock("x")
        .ttl(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let Verdict::Refused(refusal) = &error.nodes()[0].verdict else {
        panic!("{error}");
    };
    assert_eq!(refusal.code(), Some("LOCKLIMIT"), "{error}");
}

#[tokio::test]
async fn a_lost_reply_leaves_no_orphan() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    proxy.replies(Flow::Lose);
    let guard = client
        .lock("x")
        .ttl(Duration::from_secs(600))
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    proxy.close_connections();
    proxy.replies(Flow::Pass);
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_grant_that_comes_after_the_failure_is_released() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    for server in &servers[1..] {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "x", "somebody", "600000"]);
    }
    proxy.requests(Flow::Hold);
    let error = client
        .lock("x")
        .ttl(Duration::from_secs(600))
        .try_acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    proxy.requests(Flow::Pass);
    until("the late request has arrived", || {
        servers[0].calls("lock.release") > 0
    })
    .await;
    freed_before_the_lease_ends(&servers[..1], "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_release_that_cannot_be_delivered_is_delivered_when_the_node_is_back() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    let guard = client
        .lock("x")
        .ttl(Duration::from_secs(600))
        .acquire()
        .await
        .unwrap();
    until("all three hold it", || {
        servers.iter().all(|server| !server.is_free("x"))
    })
    .await;
    proxy.requests(Flow::Lose);
    assert_eq!(guard.release().await, Released::WasHeld);
    assert!(!servers[0].is_free("x"));
    proxy.close_connections();
    proxy.requests(Flow::Pass);
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn a_retry_is_not_blocked_by_its_own_partial_lock() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    for server in &servers[..2] {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "x", "somebody", "600000"]);
    }
    assert!(
        client
            .lock("x")
            .ttl(Duration::from_secs(600))
            .try_acquire()
            .await
            .is_err()
    );
    freed_before_the_lease_ends(&servers[2..], "x", Duration::from_secs(30)).await;
    for server in &servers[..2] {
        let _: u64 = server.run(&["LOCK.RELEASE", "x", "somebody"]);
    }
    let guard = client
        .lock("x")
        .ttl(Duration::from_secs(600))
        .try_acquire()
        .await
        .unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_restarted_node_that_forgot_is_asked_again_and_counts() {
    let mut servers = Server::start_many::<3>();
    let client = patient(&servers).await;
    let guard = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    let fence = guard.fence();
    // A grant that came late counts as kept from the next round on.
    guard.extend().await.unwrap();
    // One after the other, each of them forgets; a majority always remembers.
    for server in &mut servers {
        server.kill();
        server.start_again();
        until("the node holds it again", || {
            assert!(guard.is_valid(), "the hold is lost");
            !server.is_free("x")
        })
        .await;
        // The node holds the lock before its reply arrives.
        guard.extend().await.unwrap();
    }
    assert_eq!(guard.fence(), fence);
    let now = Moment::now();
    assert!(guard.extend().await.unwrap() > now);
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_node_that_did_not_grant_at_first_is_asked_again_by_renewal() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let _: u64 = servers[1].run(&["LOCK.ACQUIRE", "x", "somebody", "600000"]);
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let _: u64 = servers[1].run(&["LOCK.RELEASE", "x", "somebody"]);
    until("renewal has asked it", || !servers[1].is_free("x")).await;
    assert_eq!(guard.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "x", TTL / 2).await;
}

#[tokio::test]
async fn a_node_that_was_down_at_first_is_released_when_renewal_has_asked_it() {
    let mut servers = Server::start_many::<3>();
    servers[1].kill();
    let client = patient(&servers).await;
    // Nothing renews the lease while the server starts, because that blocks the runtime.
    let guard = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    servers[1].start_again();
    let renewed = async {
        while servers[1].is_free("x") {
            guard.extend().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let renewed = tokio::time::timeout(TTL * 10, renewed).await;
    renewed.expect("renewal has asked it");
    assert_eq!(guard.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "x", TTL * 10).await;
}

#[tokio::test]
async fn a_quarantined_node_says_so_and_is_waited_for() {
    let mut servers = [Server::with(["lock.quarantine 2000"])];
    until("its first quarantine is over", || {
        let reply: Result<Option<u64>, _> = {
            let client = redis::Client::open(servers[0].url()).unwrap();
            redis::cmd("LOCK.ACQUIRE")
                .arg("y")
                .arg("t")
                .arg(10)
                .query(&mut client.get_connection().unwrap())
        };
        reply.is_ok()
    })
    .await;
    let client = builder(&servers).connect().await.unwrap();
    let ttl = NODE_TIMEOUT * 3 + Duration::from_millis(100);
    let guard = client.lock("x").ttl(ttl).acquire().await.unwrap();
    servers[0].kill();
    servers[0].start_again();
    let other = builder(&servers).connect().await.unwrap();
    let error = other.lock("x").ttl(ttl).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(
        matches!(
            error.nodes()[0].verdict,
            Verdict::Quarantined { retry_in: Some(_) }
        ),
        "{error}"
    );
    let end = guard.valid_until();
    let next = other
        .lock("x")
        .ttl(ttl)
        .wait(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    assert!(
        Moment::now() >= end,
        "the node that forgot granted while the first window was open"
    );
    assert!(next.fence() > guard.fence());
}

#[tokio::test]
async fn a_client_reconnects_by_itself() {
    let servers = [Server::start()];
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    for _ in 0..5 {
        proxy.close_connections();
        let guard = client
            .lock("x")
            .ttl(TTL)
            .wait(Duration::from_secs(20))
            .acquire()
            .await
            .unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn a_guard_survives_a_connection_that_breaks() {
    let servers = [Server::start()];
    let proxy = Proxy::to(servers[0].port());
    let client = behind(&servers, &proxy).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let first = guard.valid_until();
    proxy.close_connections();
    until("it was renewed over a new connection", || {
        guard.valid_until() > first
    })
    .await;
    assert!(guard.is_valid());
    proxy.delay_replies(Duration::from_millis(5));
    assert_eq!(guard.release().await, Released::WasHeld);
}
