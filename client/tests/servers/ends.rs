//! How a hold ends: what its guard, its views and its release say then, and that they agree.

use std::time::Duration;

use redislock_client::{Event, Loss, Metrics, Redlock, Released};
use redislock_testkit::{Flow, Proxy, Server};

use crate::{NODE_TIMEOUT, TTL, connect, patient, until};

#[tokio::test]
async fn a_view_of_a_released_hold_is_not_valid_and_its_watchers_are_woken() {
    let server = Server::start();
    let client = connect(std::slice::from_ref(&server)).await;
    let guard = client.lock("x").ttl(TTL * 10).acquire().await.unwrap();
    let (held, token) = (guard.held(), guard.lost_token());
    let watcher = tokio::spawn(held.lost());
    assert!(held.is_valid());
    assert_eq!(guard.release().await, Released::WasHeld);
    assert!(!held.is_valid());
    assert_eq!(watcher.await.unwrap(), Loss::Released);
    token.cancelled().await;

    let guard = client.lock("x").ttl(TTL * 10).acquire().await.unwrap();
    let held = guard.held();
    drop(guard);
    assert!(!held.is_valid());
    assert_eq!(held.lost().await, Loss::Released);
}

#[tokio::test]
async fn a_late_grant_does_not_hide_that_another_client_has_held_the_lock() {
    let servers = Server::start_many::<3>();
    let to_third = Proxy::to(servers[2].port());
    let urls = [servers[0].url(), servers[1].url(), to_third.url()];
    let one = Redlock::builder().nodes(urls).node_timeout(NODE_TIMEOUT);
    let one = one.connect().await.unwrap();
    let two = patient(&servers).await;
    to_third.requests(Flow::Hold);
    let first = one.lock("x").ttl(TTL * 2).acquire().await.unwrap();
    let _: () = servers[0].run(&["LOCK.FORCE", "x"]);
    let second = two.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    assert!(second.fence() > first.fence());
    second.release().await;
    to_third.requests(Flow::Pass);
    assert!(matches!(first.lost().await, Loss::Gone { .. }));
    // A caller that learned of the loss does not learn now that there was none.
    assert_eq!(first.release().await, Released::WasLost);
}

#[tokio::test]
async fn a_restart_is_noticed_without_renewal_too() {
    let mut server = Server::start();
    let client = connect(std::slice::from_ref(&server)).await;
    let guard = client
        .lock("x")
        .ttl(TTL * 20)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    server.kill();
    server.start_again();
    let lost = tokio::time::timeout(TTL * 10, guard.lost()).await;
    assert!(matches!(lost, Ok(Loss::Gone { .. })), "{lost:?}");
    assert!(!guard.is_valid());
}

/// The answer of the first node is all that the request waits for when the others forget it.
#[tokio::test]
async fn restarts_before_the_guard_exists_are_noticed_without_renewal_too() {
    let mut servers = Server::start_many::<3>();
    let to_first = Proxy::to(servers[0].port());
    let urls = [to_first.url(), servers[1].url(), servers[2].url()];
    let client = Redlock::builder().nodes(urls).node_timeout(TTL * 10);
    let client = client.connect().await.unwrap();
    to_first.replies(Flow::Hold);
    let lock = client.lock("x").ttl(TTL * 200).renew(false);
    let asking = tokio::spawn(async move { lock.acquire().await.unwrap() });
    for server in &servers {
        until("it is granted", || !server.is_free("x")).await;
    }
    for server in &mut servers[1..] {
        server.kill();
        server.start_again();
    }
    for server in &servers[1..] {
        until("it is asked who it is", || server.calls("lock.node") > 0).await;
    }
    to_first.replies(Flow::Pass);
    let guard = asking.await.unwrap();
    let lost = tokio::time::timeout(TTL * 10, guard.lost()).await;
    assert!(matches!(lost, Ok(Loss::Gone { .. })), "{lost:?}");
}

#[tokio::test]
async fn nodes_that_forget_one_after_the_other_are_noticed_by_a_client_that_only_holds() {
    for renew in [true, false] {
        let mut servers = Server::start_many::<3>();
        let client = patient(&servers).await;
        // Renewal would come after 200 s.
        let lock = client.lock("x").ttl(TTL * 200).renew(renew);
        let guard = lock.acquire().await.unwrap();
        // A node that granted late, with another fence, counts from the next round on.
        guard.extend().await.unwrap();
        for server in &mut servers {
            server.kill();
            server.start_again();
            until("it holds the lock again", || {
                assert!(guard.is_valid(), "the hold is lost");
                !server.is_free("x")
            })
            .await;
            // The node holds the lock before its reply arrives. If the next node forgot the lock
            // until then, a majority would have forgotten it.
            guard.extend().await.unwrap();
        }
        let other = connect(&servers).await;
        assert!(crate::is_busy(other.lock("x").try_acquire().await));
        assert!(guard.is_valid());
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn a_node_that_a_renewal_missed_is_asked_again_long_before_the_next_one() {
    let servers = Server::start_many::<3>();
    let to_third = Proxy::to(servers[2].port());
    let urls = [servers[0].url(), servers[1].url(), to_third.url()];
    let client = Redlock::builder().nodes(urls).node_timeout(NODE_TIMEOUT);
    let client = client.connect().await.unwrap();
    // Renewal comes every 32 s, longer than this test waits for anything.
    let lock = client.lock("x").ttl(TTL * 32);
    let guard = lock.acquire().await.unwrap();
    until("all nodes hold it", || !servers[2].is_free("x")).await;
    to_third.requests(Flow::Hold);
    let _: () = servers[2].run(&["LOCK.FORCE", "x"]);
    guard.extend().await.unwrap();
    to_third.requests(Flow::Pass);
    until("the third node holds it again", || !servers[2].is_free("x")).await;
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn an_ephemeral_hold_is_lost_with_its_connection_even_if_no_other_one_opens() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL);
    let client = client.connect_timeout(TTL * 100).connect().await.unwrap();
    let lock = client.lock("x").ttl(TTL * 40).ephemeral();
    let guard = lock.acquire().await.unwrap();
    proxy.requests(Flow::Hold);
    proxy.close_connections();
    let lost = tokio::time::timeout(TTL * 10, guard.lost()).await;
    assert_eq!(lost, Ok(Loss::Disconnected));
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn a_key_that_was_overwritten_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let client = patient(std::slice::from_ref(&server)).await;
    let guard = client.lock("x").ttl(TTL * 40).acquire().await.unwrap();
    let _: () = server.run(&["SET", "x", "1"]);
    let error = guard.extend().await.unwrap_err();
    assert!(
        matches!(error, redislock_client::Error::Lost { .. }),
        "{error}"
    );
    assert!(matches!(guard.lost().await, Loss::Gone { .. }));
    assert_eq!(guard.release().await, Released::WasLost);
}

#[tokio::test]
async fn a_restart_that_lost_nothing_ends_no_hold_and_lengthens_no_lease() {
    let options = ["appendonly yes", "appendfsync always"];
    let mut server = Server::with(options);
    let client = connect(std::slice::from_ref(&server)).await;
    let lock = client.lock("x").ttl(TTL * 20).renew(false);
    let guard = lock.acquire().await.unwrap();
    let until_then = guard.valid_until();
    server.kill();
    server.start_again();
    until("it asks whether it is still held", || {
        server.calls("lock.extend") > 0
    })
    .await;
    assert!(guard.is_valid());
    // But for the time that the question took.
    assert!(guard.valid_until().since(until_then) < TTL);
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn an_ephemeral_hold_survives_a_stall_and_is_lost_with_its_connection() {
    let server = Server::start();
    let impatient = Redlock::builder().node(server.url());
    let client = impatient.connect().await.unwrap();
    let lock = client.lock("x").ttl(TTL * 20).ephemeral();
    let guard = lock.acquire().await.unwrap();
    server.pause();
    assert!(guard.extend().await.is_err());
    tokio::time::sleep(Duration::from_millis(600)).await;
    server.resume();
    until("it can be extended again", || {
        server.calls("lock.extend") > 0
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(guard.is_valid());
    assert!(!server.is_free("x"));
    // Now the connection does end.
    let _: i64 = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(guard.lost().await, Loss::Disconnected);
    assert!(!guard.is_valid());
    assert_eq!(guard.release().await, Released::WasLost);
}

#[tokio::test]
async fn an_ephemeral_hold_that_was_waited_for_outlives_the_connection_of_the_wait() {
    let server = Server::start();
    let client = patient(std::slice::from_ref(&server)).await;
    let first = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    let lock = client.lock("x").ttl(TTL * 20).ephemeral();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("it waits", || crate::contention::waiters(&server, "x") == 1).await;
    first.release().await;
    let guard = waiter.await.unwrap().unwrap();
    // Long enough for idle connections of waiters to be closed.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(guard.is_valid() && !server.is_free("x"));
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_grant_after_a_long_wait_counts_from_a_request() {
    let server = Server::start();
    let client = Redlock::builder().node(server.url());
    let client = client.node_timeout(Duration::from_secs(2));
    let client = client.connect().await.unwrap();
    let ttl = Duration::from_secs(8);
    // Short against the ttl, and longer than the ttl.
    for (wait, extensions) in [(Duration::from_millis(200), 0), (ttl * 9 / 8, 1)] {
        let before = server.calls("lock.extend");
        let first = client.lock("x").ttl(ttl * 5).renew(false).acquire().await;
        let first = first.unwrap();
        let lock = client.lock("x").ttl(ttl).renew(false);
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until("it waits", || crate::contention::waiters(&server, "x") == 1).await;
        tokio::time::sleep(wait).await;
        first.release().await;
        let guard = waiter.await.unwrap();
        // The reply does not tell when the grant was made: it counts from a request.
        assert!(guard.valid_until().remaining() < ttl);
        assert!(guard.valid_until().remaining() > ttl / 4);
        assert_eq!(server.calls("lock.extend") - before, extensions);
        guard.release().await;
    }
}

#[tokio::test]
async fn a_release_that_is_refused_is_repeated_until_it_is_delivered() {
    let server = Server::with(["busy-reply-threshold 10"]);
    let client = connect(std::slice::from_ref(&server)).await;
    let guard = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    let _: () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(guard.release().await, Released::Unknown);
    assert!(!server.is_free("x"));
    let _: () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    until("the release has arrived", || server.is_free("x")).await;

    let guard = client.lock("y").ttl(TTL * 20).acquire().await.unwrap();
    let mut connection = server.connect();
    let script = std::thread::spawn(move || {
        let code = "local s = redis.call('TIME')[1] + 2 while redis.call('TIME')[1] + 0 < s do end";
        connection.call_args(&["EVAL", code, "0"])
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(guard.release().await, Released::Unknown);
    assert!(!script.join().unwrap().is_error());
    until("the release has arrived", || server.is_free("y")).await;
}

#[tokio::test]
async fn of_two_locks_one_that_is_forced_away_leaves_nothing_held() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let holder = connect(std::slice::from_ref(&server)).await;
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL);
    let client = client.connect().await.unwrap();
    let guard = client.lock_all(["x", "y"]).ttl(TTL * 20).acquire().await;
    let guard = guard.unwrap();
    let _: () = server.run(&["LOCK.FORCE", "y"]);
    assert!(guard.extend().await.is_err());
    assert!(matches!(guard.lost().await, Loss::Gone { .. }));
    drop(guard);
    until("nothing is held", || server.is_free("x")).await;

    // The same while the waiter extends what it was granted.
    let guard = holder.lock_all(["x", "y"]).acquire().await.unwrap();
    let lock = client.lock_all(["x", "y"]).ttl(TTL * 4).wait(TTL * 3);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("it waits", || crate::contention::waiters(&server, "x") == 1).await;
    // So long that less than half of the ttl is left.
    tokio::time::sleep(TTL * 5 / 2).await;
    proxy.replies(Flow::Hold);
    guard.release().await;
    until("it is granted", || !server.is_free("x")).await;
    let _: () = server.run(&["LOCK.FORCE", "y"]);
    proxy.replies(Flow::Pass);
    let _ = waiter.await.unwrap();
    until("nothing is held", || {
        server.is_free("x") && server.is_free("y")
    })
    .await;
}

#[derive(Clone, Default)]
struct Seen(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Metrics for Seen {
    fn record(&self, names: &[Vec<u8>], event: Event<'_>) {
        let event = match event {
            Event::Acquired { .. } => "acquired",
            Event::Failed { .. } => "failed",
            Event::Retried => "retried",
            Event::Released { .. } => "released",
            Event::Lost { .. } => "lost",
            _ => "something new",
        };
        let name = String::from_utf8_lossy(&names[0]);
        self.0.lock().unwrap().push(format!("{event} {name}"));
    }
}

#[tokio::test]
async fn metrics_receive_waits_holds_losses_and_retries() {
    let mut server = Server::start();
    let seen = Seen::default();
    let client = Redlock::builder()
        .node(server.url())
        .node_timeout(NODE_TIMEOUT)
        .metrics(seen.clone())
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.is_err());
    guard.release().await;
    let guard = client.lock("y").acquire().await.unwrap();
    let _: () = server.run(&["LOCK.FORCE", "y"]);
    assert!(guard.extend().await.is_err());
    server.kill();
    let wait = Duration::from_millis(500);
    assert!(client.lock("z").wait(wait).acquire().await.is_err());
    let seen = seen.0.lock().unwrap();
    for event in [
        "acquired x",
        "failed x",
        "released x",
        "acquired y",
        "lost y",
        "retried z",
        "failed z",
    ] {
        assert!(seen.iter().any(|known| known == event), "{event}: {seen:?}");
    }
    assert!(!seen.iter().any(|known| known == "released y"), "{seen:?}");
}

#[tokio::test]
async fn a_command_runs_only_while_the_lock_is_held() {
    let server = Server::start();
    let client = patient(std::slice::from_ref(&server)).await;
    let guard = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    let mut incr = redis::cmd("INCR");
    incr.arg("counter");
    assert_eq!(guard.command::<u64>(&incr).await.unwrap(), 1);
    let mut wrong = redis::cmd("INCR");
    wrong.arg("counter").arg("too").arg("many");
    let error = guard.command::<u64>(&wrong).await.unwrap_err();
    assert!(
        matches!(error, redislock_client::Error::Command(_)),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    assert!(guard.is_valid());
    // The same by hand, with the token.
    let token = std::str::from_utf8(guard.token().unwrap()).unwrap();
    let seen: u64 = server.run(&["LOCK.GUARD", "x", token, "INCR", "counter"]);
    assert_eq!(seen, 2);
    let _: () = server.run(&["LOCK.FORCE", "x"]);
    let error = guard.command::<u64>(&incr).await.unwrap_err();
    assert!(
        matches!(error, redislock_client::Error::Lost { .. }),
        "{error}"
    );
    assert!(matches!(guard.lost().await, Loss::Gone { .. }));
    assert_eq!(server.run::<u64>(&["GET", "counter"]), 2);
}

#[tokio::test]
async fn a_command_under_a_quorum_or_several_locks_is_refused() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let error = guard.command::<u64>(&redis::cmd("PING")).await;
    assert!(matches!(error, Err(redislock_client::Error::Invalid(_))));
    let client = connect(&servers[..1]).await;
    let guard = client.lock_all(["y", "z"]).acquire().await.unwrap();
    let error = guard.command::<u64>(&redis::cmd("PING")).await;
    assert!(matches!(error, Err(redislock_client::Error::Invalid(_))));
}

struct Panicking;

impl Metrics for Panicking {
    fn record(&self, _: &[Vec<u8>], event: Event<'_>) {
        assert!(
            !matches!(event, Event::Released { .. } | Event::Lost { .. }),
            "a hook that panics"
        );
    }
}

#[tokio::test]
async fn a_metrics_hook_that_panics_stops_neither_a_release_nor_the_watch_over_a_node() {
    let server = Server::start();
    let client = Redlock::builder().node(server.url()).metrics(Panicking);
    let client = client.connect().await.unwrap();
    drop(client.lock("x").ttl(TTL * 20).acquire().await.unwrap());
    until("it is released", || server.is_free("x")).await;
    let ephemeral = client.lock("e").ephemeral().acquire().await.unwrap();
    let _: () = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    ephemeral.lost().await;
    let again = client.lock("y").wait(TTL * 10).acquire().await.unwrap();
    again.release().await;
}

/// A release at the moment at which the holder is notified of the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_and_a_loss_at_the_same_moment_agree() {
    let server = Server::start();
    let builder = Redlock::builder().node(server.url());
    let client = builder.node_timeout(NODE_TIMEOUT).connect().await.unwrap();
    let ttl = NODE_TIMEOUT * 4;
    for round in 0..3 {
        let mut releases = Vec::new();
        for number in 0..400 {
            let lock = client.lock(format!("{round}:{number}"));
            let guard = lock.ttl(ttl).renew(false).acquire().await.unwrap();
            releases.push(tokio::spawn(async move {
                // The holder is notified a tenth of the ttl before the end: release then.
                let left = guard.valid_until().remaining();
                let held = guard.held();
                tokio::time::sleep(left.saturating_sub(ttl / 10)).await;
                let released = guard.release().await;
                (released, held.lost().await)
            }));
        }
        for release in releases {
            let (released, loss) = release.await.unwrap();
            let agree = match released {
                Released::WasLost => loss != Loss::Released,
                _ => loss == Loss::Released,
            };
            assert!(agree, "{released:?} but {loss:?}");
        }
    }
}

#[test]
fn the_holder_is_notified_even_if_the_runtime_of_the_client_is_not_driven() {
    let server = Server::start();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let idle = runtime();
    let client = idle.block_on(Redlock::connect([server.url()])).unwrap();
    let lock = client.lock("x").ttl(TTL);
    let guard = idle.block_on(lock.acquire()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(runtime().block_on(guard.lost()));
    });
    let loss = told.recv_timeout(TTL * 10).unwrap();
    assert!(matches!(loss, Loss::Expired { .. }), "{loss:?}");
}
