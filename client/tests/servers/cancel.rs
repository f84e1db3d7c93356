//! Cancelling `acquire` at every point where it can be cancelled: nothing stays held, nobody waits
//! on.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use redislock_client::{Guard, Lock, Owner, Redlock, Released};
use redislock_testkit::{Gate, Proxy, Server};

use crate::contention::waiters;
use crate::{TTL, connect, freed_before_the_lease_ends, until};

/// Leases that would outlast the test, if anything were left behind.
const LONG: Duration = Duration::from_secs(600);

/// Polls the future until it has been pending this many times, then drops it. `Some`: it was done
/// before that.
async fn cancel_after<F: Future>(pendings: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut seen = 0;
    poll_fn(|context| {
        if seen == pendings {
            return Poll::Ready(None);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                seen += 1;
                if seen == pendings {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            }
        }
    })
    .await
}

/// Cancels after one, two, three… polls, until the request gets through before it is cancelled.
async fn at_every_point(
    servers: &[Server],
    lock: &Lock,
    keys: &[&str],
    before: impl AsyncFn() -> Option<Guard>,
) {
    let mut points = 0;
    loop {
        let holder = before().await;
        let release = async {
            if let Some(holder) = holder {
                tokio::time::sleep(Duration::from_millis(20)).await;
                holder.release().await;
            }
        };
        let (acquired, ()) = tokio::join!(cancel_after(points, lock.acquire()), release);
        let through = acquired.is_some();
        drop(acquired.transpose().unwrap());
        for key in keys {
            freed_before_the_lease_ends(servers, key, LONG / 20).await;
        }
        if through {
            break;
        }
        points += 1;
    }
    assert!(
        points >= 2,
        "only {points} points of cancellation were found"
    );
}

async fn nobody() -> Option<Guard> {
    None
}

#[tokio::test]
async fn on_one_node() {
    let servers = Server::start_many::<1>();
    let client = connect(&servers).await;
    at_every_point(&servers, &client.lock("x").ttl(LONG), &["x"], nobody).await;
}

#[tokio::test]
async fn over_a_quorum() {
    let servers = Server::start_many::<5>();
    let client = connect(&servers).await;
    at_every_point(&servers, &client.lock("x").ttl(LONG), &["x"], nobody).await;
}

#[tokio::test]
async fn with_several_keys() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    at_every_point(
        &servers,
        &client.lock_all(["a", "b"]).ttl(LONG),
        &["a", "b"],
        nobody,
    )
    .await;
}

async fn at_every_point_of_a_wait<const N: usize>() {
    let servers = Server::start_many::<N>();
    let (client, other) = (connect(&servers).await, connect(&servers).await);
    let holder = other.lock("x").ttl(LONG);
    at_every_point(&servers, &client.lock("x").ttl(LONG), &["x"], async || {
        Some(holder.acquire().await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn while_waiting_for_a_holder_on_one_node() {
    at_every_point_of_a_wait::<1>().await;
}

#[tokio::test]
async fn while_waiting_for_a_holder_of_a_quorum() {
    at_every_point_of_a_wait::<3>().await;
}

#[tokio::test]
async fn while_waiting_for_several_keys() {
    let servers = Server::start_many::<3>();
    let (client, other) = (connect(&servers).await, connect(&servers).await);
    let holder = other.lock("b").ttl(LONG);
    let lock = client.lock_all(["a", "b"]).ttl(LONG);
    at_every_point(&servers, &lock, &["a", "b"], async || {
        Some(holder.acquire().await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn while_waiting_for_replicas() {
    let servers = Server::options()
        .configs(["repl-diskless-sync-delay 0"])
        .start_many::<1>();
    let _replica = Server::options().replica_of(&servers[0]).start();
    until("the replica is in step", || {
        servers[0]
            .run::<String>(&["INFO", "replication"])
            .contains("state=online")
    })
    .await;
    let client = connect(&servers).await;
    let soon = client.lock("x").ttl(TTL).replicas(1);
    drop(crate::acquire::once_replicas_confirm(&soon).await);
    at_every_point(
        &servers,
        &client.lock("x").ttl(LONG).replicas(1),
        &["x"],
        nobody,
    )
    .await;
}

#[tokio::test]
async fn as_an_owner() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(LONG).owner(&Owner::new());
    at_every_point(&servers, &lock, &["x"], nobody).await;
}

#[tokio::test]
async fn a_cancelled_release_is_finished_in_the_background() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    for points in 0..8 {
        let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
        cancel_after(points, guard.release()).await;
        freed_before_the_lease_ends(&servers, "x", LONG / 20).await;
    }
}

#[tokio::test]
async fn a_cancelled_extension_leaves_the_guard_as_it_was() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    for points in 0..8 {
        let before = guard.valid_until();
        cancel_after(points, guard.extend()).await;
        assert!(guard.is_valid() && guard.valid_until() >= before);
    }
    assert!(guard.extend().await.is_ok());
}

/// Cancels when the first message has come through, the second, and so on, in either direction, and
/// between any two of the nodes, until the request is through before that.
async fn at_every_message(
    servers: &[Server],
    lock: impl AsyncFn(&Redlock) -> Lock,
    keys: &[&str],
    before: impl AsyncFn() -> Option<Guard>,
) {
    let mut proxies = Vec::new();
    for server in servers {
        proxies.push(Proxy::to(server.port()));
    }
    // The node timeout must not end the wait at the gate.
    let client = Redlock::builder()
        .nodes(proxies.iter().map(Proxy::url))
        .node_timeout(Duration::from_secs(20))
        .connect()
        .await
        .unwrap();
    let mut messages = 0;
    loop {
        let holder = before().await;
        let lock = lock(&client).await;
        let gate = Gate::after(messages);
        proxies.iter().for_each(|proxy| proxy.set_gate(&gate));
        let release = async {
            if let Some(holder) = holder {
                tokio::time::sleep(Duration::from_millis(20)).await;
                holder.release().await;
            }
        };
        let acquire = async {
            tokio::select! {
                acquired = lock.acquire() => Some(acquired.unwrap()),
                () = until("a message comes to the gate", || gate.is_reached()) => None,
            }
        };
        let (acquired, ()) = tokio::join!(acquire, release);
        gate.open();
        let through = acquired.is_some();
        drop(acquired);
        for key in keys {
            freed_before_the_lease_ends(servers, key, LONG / 20).await;
        }
        if through {
            break;
        }
        messages += 1;
    }
    // Of a majority a question and an answer each.
    let least = 2 * (servers.len() / 2 + 1);
    assert!(messages >= least, "only {messages} messages were seen");
}

#[tokio::test]
async fn at_every_message_on_one_node() {
    let servers = Server::start_many::<1>();
    let lock = async |client: &Redlock| client.lock("x").ttl(LONG);
    at_every_message(&servers, lock, &["x"], nobody).await;
}

#[tokio::test]
async fn at_every_message_of_a_quorum_that_needs_a_write_back() {
    let servers = Server::start_many::<3>();
    let highest = Cell::new(0);
    let lock = async |client: &Redlock| {
        // Counters that differ, and that the client has not seen: above all that it can have seen
        // by now, and above the clocks.
        let time: Vec<u64> = servers[0].run(&["TIME"]);
        let base = highest.get().max((time[0] + 1) * 1_000_000 + time[1]);
        for (server, step) in servers.iter().zip([1_000, 2_000, 3_000]) {
            let fence = (base + step).to_string();
            let _: u64 = server.run(&["LOCK.ACQUIRE", "other", "t", "1", "FENCE", &fence]);
        }
        highest.set(base + 10_000);
        client.lock("x").ttl(LONG)
    };
    at_every_message(&servers, lock, &["x"], nobody).await;
    assert!(servers.iter().any(|server| server.calls("lock.extend") > 0));
}

#[tokio::test]
async fn at_every_message_of_a_wait_for_a_quorum() {
    let servers = Server::start_many::<3>();
    let other = connect(&servers).await;
    let holder = other.lock("x").ttl(LONG);
    let lock = async |client: &Redlock| client.lock("x").ttl(LONG);
    at_every_message(&servers, lock, &["x"], async || {
        Some(holder.acquire().await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn at_every_message_of_a_wait_for_several_keys() {
    let servers = Server::start_many::<1>();
    let other = connect(&servers).await;
    let holder = other.lock("b").ttl(LONG);
    let lock = async |client: &Redlock| client.lock_all(["a", "b"]).ttl(LONG);
    at_every_message(&servers, lock, &["a", "b"], async || {
        Some(holder.acquire().await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn at_every_message_of_a_wait_for_replicas() {
    let servers = Server::options()
        .configs(["repl-diskless-sync-delay 0"])
        .start_many::<1>();
    let _replica = Server::options().replica_of(&servers[0]).start();
    let client = connect(&servers).await;
    let soon = client.lock("x").ttl(TTL).replicas(1);
    drop(crate::acquire::once_replicas_confirm(&soon).await);
    let lock = async |client: &Redlock| client.lock("x").ttl(LONG).replicas(1);
    at_every_message(&servers, lock, &["x"], nobody).await;
}

#[tokio::test]
async fn an_entry_that_is_cancelled_neither_ends_the_hold_nor_keeps_it() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(LONG).owner(&Owner::new());
    for points in 0..8 {
        let outer = lock.acquire().await.unwrap();
        drop(cancel_after(points, lock.acquire()).await);
        assert!(outer.extend().await.is_ok());
        assert_eq!(outer.release().await, Released::WasHeld);
        freed_before_the_lease_ends(&servers, "x", LONG / 20).await;
    }
}

/// Several, as chance decides which connection a server reads first that stood still.
#[tokio::test]
async fn a_wait_that_ends_while_the_server_stands_still_leaves_nothing_held() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let server = Server::start();
    let client = Redlock::connect([server.url()]).await.unwrap();
    let lock = |key: &str| client.lock(key).ttl(LONG);
    // Waiters leave a connection behind, and the locks are known as contended.
    let mut holders = Vec::new();
    for key in KEYS {
        holders.push(lock(key).acquire().await.unwrap());
    }
    let waiting = KEYS.map(|key| {
        let lock = lock(key);
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
    });
    until("all wait", || {
        KEYS.iter().all(|key| waiters(&server, key) == 1)
    })
    .await;
    drop(holders);
    for waiter in waiting {
        waiter.await.unwrap();
    }
    server.pause();
    // The shared connection has something to read first.
    let other = tokio::spawn({
        let lock = lock("other");
        async move { drop(lock.try_acquire().await) }
    });
    tokio::time::sleep(Duration::from_millis(2)).await;
    let waiting = KEYS.map(|key| {
        let lock = lock(key).wait(Duration::from_millis(200));
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    });
    for waiter in waiting {
        assert!(waiter.await.unwrap().is_err());
    }
    other.await.unwrap();
    // By then the client has closed the connections of the waiters.
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.resume();
    // By then the server has read all that was sent.
    let _: String = server.run(&["PING"]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    for key in KEYS {
        freed_before_the_lease_ends(std::slice::from_ref(&server), key, LONG / 20).await;
    }
}
