//! The client against real servers and real faults. Each problem that users of other lock clients
//! report has a test here; docs/CLIENT.md lists them.

mod acquire;
mod blocking;
mod cancel;
mod clocks;
mod cluster;
mod connect;
mod contention;
mod docs;
mod election;
mod ends;
mod examples;
mod faults;
mod guard;
mod guarded;
mod history;
mod idle;
mod input;
mod links;
mod log;
mod max_hold;
mod nodes;
mod owner;
mod panics;
mod pauses;
mod queue;
mod sentinel;
mod settings;
mod slots;
mod start;
mod storms;
mod tls;
mod twice;

use std::time::Duration;

use redislock_client::{Builder, Error, Guard, Lock, Redlock};
use redislock_testkit::Server;
use tokio::task::JoinHandle;

/// Long enough for a busy machine, short enough to wait for.
const TTL: Duration = Duration::from_secs(3);
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

fn builder(servers: &[Server]) -> Builder {
    Redlock::builder()
        .nodes(servers.iter().map(Server::url))
        .node_timeout(NODE_TIMEOUT)
}

async fn connect(servers: &[Server]) -> Redlock {
    builder(servers).connect().await.unwrap()
}

/// A client whose node timeout is so long that no node counts as down because the machine is busy.
async fn patient(servers: &[Server]) -> Redlock {
    let builder = builder(servers).node_timeout(Duration::from_secs(5));
    builder.connect().await.unwrap()
}

/// Acquires the lock in a task of its own.
fn acquire_in_background(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await })
}

/// Waits until it is so, and fails the test if that takes half a minute.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out: {what}");
}

/// Waits until no server holds the lock. A lease that is left to run out does not count as
/// released.
async fn freed_before_the_lease_ends(servers: &[Server], key: &str, ttl: Duration) {
    let end = tokio::time::Instant::now() + ttl;
    while !servers.iter().all(|server| server.is_free(key)) {
        assert!(tokio::time::Instant::now() < end, "{key} is still held");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_busy<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Busy { .. }))
}
