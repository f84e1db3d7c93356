//! Getting a lock: one node, several, several keys, shared, permits, replicas.

use std::time::Duration;

use redislock_client::{Error, Guard, Lock, Redlock, Released, Verdict};
use redislock_testkit::lock::sole_holder;
use redislock_testkit::{Proxy, Server, Value};

use crate::contention::waiters;
use crate::{
    TTL, acquire_in_background, connect, freed_before_the_lease_ends, is_busy, patient, until,
};

#[tokio::test]
async fn a_lock_on_one_node_excludes_others_until_it_is_released() {
    let servers = [Server::start()];
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let guard = one.lock("x").acquire().await.unwrap();
    assert!(is_busy(other.lock("x").try_acquire().await));
    assert_eq!(guard.release().await, Released::WasHeld);
    assert_eq!(
        other.lock("x").try_acquire().await.unwrap().release().await,
        Released::WasHeld
    );
}

#[tokio::test]
async fn fences_grow_from_holder_to_holder_over_a_quorum() {
    let servers = Server::start_many::<5>();
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let mut last = 0;
    for round in 0..40 {
        let client = if round % 2 == 0 { &one } else { &other };
        let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

/// How often each server was asked to acquire, to extend, to release.
fn commands(servers: &[Server]) -> Vec<[u64; 3]> {
    let names = ["lock.acquire", "lock.extend", "lock.release"];
    let of = |server: &Server| names.map(|name| server.calls(name));
    servers.iter().map(of).collect()
}

#[tokio::test]
async fn one_round_trip_is_enough_when_the_nodes_clocks_agree() {
    let servers = Server::start_many::<5>();
    let client = patient(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(60));
    let mut write_backs = 0;
    for _ in 0..200 {
        let before = commands(&servers);
        // The grant of a node that was not waited for comes before the release there, which is
        // waited for.
        for _ in 0..5 {
            lock.acquire().await.unwrap().release().await;
        }
        let asked = commands(&servers);
        let by = |[a, e, r]: &[u64; 3], [b, f, s]: &[u64; 3]| [a - b, e - f, r - s];
        let asked: Vec<_> = asked.iter().zip(&before).map(|(a, b)| by(a, b)).collect();
        assert!(
            asked.iter().all(|[a, _, r]| [*a, *r] == [5, 5]),
            "one acquire and one release a node and a lock: {asked:?}"
        );
        // A machine that stands still for longer than the proposal's lead needs a second round trip
        // now and then.
        match asked.iter().map(|[_, extends, _]| extends).sum() {
            0 => return,
            some => write_backs += some,
        }
    }
    panic!("never five grants in a row without a write-back, but {write_backs} in all");
}

#[tokio::test]
async fn one_round_trip_is_enough_however_slow_it_is_while_counters_lead_the_clocks() {
    let servers = Server::start_many::<5>();
    // Nine seconds during which no clock overtakes the counters.
    let time: Vec<u64> = servers[0].run(&["TIME"]);
    let fence = ((time[0] + 9) * 1_000_000).to_string();
    for server in &servers {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "other", "t", "1", "FENCE", &fence]);
    }
    let client = patient(&servers).await;
    let before = commands(&servers);
    for _ in 0..20 {
        let lock = client.lock("x").ttl(Duration::from_secs(60));
        let guard = lock.acquire().await.unwrap();
        assert!(guard.fence() > fence.parse().unwrap());
        guard.release().await;
    }
    let after: Vec<_> = before
        .iter()
        .map(|[a, e, r]| [a + 20, *e, r + 20])
        .collect();
    assert_eq!(commands(&servers), after, "acquire, extend, release");
}

/// Puts the counter of a node ahead of anything that a client has seen.
pub fn ahead(server: &Server, micros: u64) -> u64 {
    let time: Vec<u64> = server.run(&["TIME"]);
    let fence = (time[0] * 1_000_000 + time[1] + micros).to_string();
    let _: u64 = server.run(&["LOCK.ACQUIRE", "other", "t", "1000", "FENCE", &fence]);
    fence.parse().unwrap()
}

#[tokio::test]
async fn a_quorum_whose_counters_differ_agrees_on_one_fence_by_write_back() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let low = ahead(&servers[0], 3_000_000);
    let high = ahead(&servers[1], 4_000_000);
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(
        guard.fence() > low && guard.fence() <= high + 10,
        "{} of {low} and {high}",
        guard.fence()
    );
    let accepted = |server: &&Server| {
        !server.is_free("x")
            && sole_holder(&mut server.connect(), "x").field("fence")
                == Value::Integer(guard.fence().cast_signed())
    };
    assert!(
        servers.iter().filter(accepted).count() >= 2,
        "a majority has accepted the fence"
    );
    let next = {
        guard.release().await;
        client.lock("x").ttl(TTL).acquire().await.unwrap()
    };
    assert!(next.fence() > low);
}

#[tokio::test]
async fn several_locks_are_taken_together_or_not_at_all() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let one = client.lock("{k}b").acquire().await.unwrap();
    assert!(is_busy(
        client.lock_all(["{k}a", "{k}b"]).try_acquire().await
    ));
    freed_before_the_lease_ends(&servers, "{k}a", TTL).await;
    one.release().await;
    let both = client.lock_all(["{k}a", "{k}b"]).acquire().await.unwrap();
    assert!(is_busy(client.lock("{k}a").try_acquire().await));
    assert!(is_busy(client.lock("{k}b").try_acquire().await));
    both.extend().await.unwrap();
    assert_eq!(both.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "{k}b", TTL).await;
}

#[tokio::test]
async fn opposite_orders_of_several_locks_do_not_deadlock() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let mut tasks = Vec::new();
    for task in 0..6 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let names = if task % 2 == 0 {
                    ["a", "b"]
                } else {
                    ["b", "a"]
                };
                let guard = client.lock_all(names).ttl(TTL).acquire().await.unwrap();
                assert_eq!(guard.release().await, Released::WasHeld);
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task)
            .await
            .expect("no deadlock")
            .unwrap();
    }
}

#[tokio::test]
async fn shared_holders_exclude_an_exclusive_one_only() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let first = client.lock("x").shared().acquire().await.unwrap();
    let second = client.lock("x").shared().acquire().await.unwrap();
    assert!(is_busy(client.lock("x").try_acquire().await));
    first.release().await;
    second.release().await;
    assert!(client.lock("x").try_acquire().await.is_ok());
}

#[tokio::test]
async fn permits_of_dropped_guards_come_back() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let permit = client
        .lock("x")
        .shared()
        .limit(2)
        .ttl(Duration::from_secs(60));
    for _ in 0..5 {
        let (one, two) = (
            permit.acquire().await.unwrap(),
            permit.acquire().await.unwrap(),
        );
        assert!(is_busy(permit.try_acquire().await));
        drop((one, two));
        let again = permit.acquire().await.unwrap();
        drop(again);
    }
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn busy_names_the_owner_its_remaining_time_and_who_waits() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let owner = redislock_client::Owner::named("nightly-report");
    let _guard = client
        .lock("x")
        .owner(&owner)
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    let waiter = acquire_in_background(&client.lock("x").wait(Duration::from_secs(20)));
    until("somebody waits", || waiters(&servers[0], "x") == 1).await;
    let mut seen = 0;
    for _ in 0..100 {
        let error = client.lock("x").try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert_eq!(error.nodes().len(), 3);
        for report in error.nodes() {
            if let Verdict::Held {
                owner: Some(owner),
                remaining: Some(remaining),
                waiters,
            } = &report.verdict
            {
                assert_eq!(owner, "nightly-report");
                assert!(*remaining <= TTL && !remaining.is_zero());
                seen = seen.max(*waiters);
            }
        }
        if seen > 0 {
            break;
        }
    }
    assert_eq!(seen, 1, "the waiter is seen in the queue");
    waiter.abort();
}

#[tokio::test]
async fn of_several_locks_busy_names_the_owner_of_the_one_that_is_held() {
    let servers = Server::start_many::<3>();
    let client = patient(&servers).await;
    let owner = redislock_client::Owner::named("nightly-report");
    let held = client.lock("b").owner(&owner).ttl(Duration::from_secs(60));
    let _guard = held.acquire().await.unwrap();
    until("all hold it", || {
        servers.iter().all(|server| !server.is_free("b"))
    })
    .await;
    let error = client
        .lock_all(["a", "b", "c"])
        .ttl(Duration::from_secs(60))
        .try_acquire()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let named = |verdict: &Verdict| match verdict {
        Verdict::Held {
            owner: Some(owner),
            remaining: Some(_),
            ..
        } => owner == "nightly-report",
        _ => false,
    };
    let names = error.nodes().iter().filter(|report| named(&report.verdict));
    assert!(names.count() >= 2, "{error}");
}

#[tokio::test]
async fn a_grant_that_replicas_do_not_confirm_is_released() {
    let servers = [Server::with(["repl-diskless-sync-delay 0"])];
    let client = patient(&servers).await;
    // A quarter of the ttl is waited for replicas: what is free after that was released, and has
    // not run out.
    let ttl = Duration::from_secs(20);
    let lock = client.lock("x").ttl(ttl).replicas(1);
    let error = lock.acquire().await.unwrap_err();
    assert!(matches!(error, Error::NotReplicated { .. }), "{error}");
    assert_eq!(
        error.nodes()[0].verdict,
        Verdict::NotReplicated { replicas: 0 }
    );
    freed_before_the_lease_ends(&servers, "x", ttl / 2).await;

    let replica = Server::options().replica_of(&servers[0]).start();
    until("the replica is in step", || {
        servers[0]
            .run::<String>(&["INFO", "replication"])
            .contains("state=online")
    })
    .await;
    let guard = once_replicas_confirm(&lock).await;
    assert!(!replica.is_free("x"), "the replica has what was confirmed");
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn replicas_are_waited_for_no_longer_than_the_lock() {
    let servers = [Server::start()];
    let client = patient(&servers).await;
    let ttl = Duration::from_secs(120);
    let lock = client.lock("x").ttl(ttl).replicas(1).wait(TTL / 3);
    // Without the wait it would be a quarter of the ttl.
    let error = tokio::time::timeout(ttl / 8, lock.acquire()).await;
    let error = error.expect("it ends in time").unwrap_err();
    assert!(matches!(error, Error::NotReplicated { .. }), "{error}");
    freed_before_the_lease_ends(&servers, "x", ttl / 4).await;
}

#[tokio::test]
async fn a_lock_with_as_many_holders_as_the_node_allows_is_waited_for() {
    let servers = [Server::with(["lock.max-holders 1"])];
    let client = patient(&servers).await;
    let lock = client.lock("x").ttl(TTL * 10).shared();
    let first = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(async move { lock.wait(TTL * 10).acquire().await });
    until("it was refused", || servers[0].calls("lock.acquire") > 1).await;
    first.release().await;
    let second = waiter.await.unwrap().unwrap();
    assert_eq!(second.release().await, Released::WasHeld);
}

/// A replica that has just come begins to confirm within a second or two.
pub async fn once_replicas_confirm(lock: &Lock) -> Guard {
    for _ in 0..100 {
        match lock.acquire().await {
            Err(Error::NotReplicated { .. }) => {}
            acquired => return acquired.unwrap(),
        }
    }
    panic!("the replica never confirms");
}

#[tokio::test]
async fn the_closure_form_releases_afterwards_and_hands_out_the_fence() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let fence = client
        .lock("x")
        .run(|held| async move { held.fence() })
        .await
        .unwrap();
    assert!(fence > 0);
    freed_before_the_lease_ends(&servers, "x", TTL).await;
}

/// WAIT is sent on a separate connection, so a WAIT that hangs does not mean that the node is down.
#[tokio::test]
async fn a_wait_for_replicas_that_hangs_does_not_make_the_node_seem_down() {
    crate::log::start();
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL);
    let client = client.connect().await.unwrap();
    proxy.silence("WAIT");
    let refused = client.lock("x").ttl(TTL * 4).replicas(1).acquire().await;
    assert!(
        matches!(refused, Err(Error::NotReplicated { .. })),
        "{refused:?}"
    );
    assert!(proxy.has_held_back());
    let about = crate::log::lines(&format!("127.0.0.1:{}", proxy.port()));
    let down = about.iter().find(|line| line.contains("believed down"));
    assert_eq!(down, None);
}

#[tokio::test]
async fn a_report_on_many_busy_locks_does_not_make_the_node_seem_down() {
    crate::log::start();
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL);
    let client = client.connect().await.unwrap();
    let names: Vec<String> = (0..400).map(|number| number.to_string()).collect();
    let owner = redislock_client::Owner::named("nightly-report");
    let held = client.lock_all(&names).owner(&owner).ttl(TTL * 20);
    let _guard = held.acquire().await.unwrap();
    // One after the other, the questions about all of them would take longer than a node may.
    proxy.delay_replies(TTL / 200);
    let asked = client.lock_all(&names).ttl(TTL * 20).try_acquire().await;
    let error = asked.unwrap_err();
    assert!(error.to_string().contains("nightly-report"), "{error}");
    let about = crate::log::lines(&format!("127.0.0.1:{}", proxy.port()));
    let down = about.iter().find(|line| line.contains("believed down"));
    assert_eq!(down, None);
}
