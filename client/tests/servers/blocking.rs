//! The blocking client inside of other runtimes: it neither panics there nor leaves a lock held.

use std::time::Duration;

use redislock_client::blocking::{Guard, Redlock};
use redislock_testkit::Server;
use tokio::runtime::{Builder, Runtime};

/// Longer than any test: a lock that is free was released.
const LONG: Duration = Duration::from_secs(600);

/// A client that waits for a node of a busy machine.
fn patient(url: &str) -> Redlock {
    let builder = Redlock::builder().nodes([url]);
    builder.node_timeout(LONG / 10).connect().unwrap()
}

/// A guard that is the last handle of its client.
fn last_guard(server: &Server) -> Guard {
    let client = patient(&server.url());
    client.lock("x").ttl(LONG).acquire().unwrap()
}

#[test]
fn guards_that_are_dropped_in_spawn_blocking_are_released() {
    let server = Server::start();
    let url = server.url();
    let work = move || {
        let client = patient(&url);
        let hold = |number: u32| client.lock(number.to_string()).ttl(LONG).acquire();
        let guards: Vec<_> = (0..50).map(|number| hold(number).unwrap()).collect();
        drop(client);
        drop(guards);
    };
    let runtime = Runtime::new().unwrap();
    runtime.block_on(runtime.spawn_blocking(work)).unwrap();
    let left: u64 = server.run(&["DBSIZE"]);
    assert_eq!(left, 0);
}

#[test]
fn the_last_guard_may_be_dropped_in_async_code() {
    let server = Server::start();
    let several = Runtime::new().unwrap();
    let single = Builder::new_current_thread().build().unwrap();
    for runtime in [several, single] {
        let guard = last_guard(&server);
        let dropped = runtime.block_on(async { tokio::spawn(async move { drop(guard) }).await });
        assert!(dropped.is_ok(), "{dropped:?}");
        assert!(server.is_free("x"));
    }
}

#[test]
fn a_guard_that_ends_with_its_runtime_is_released() {
    let server = Server::start();
    let guard = last_guard(&server);
    let runtime = Runtime::new().unwrap();
    runtime.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    drop(runtime);
    assert!(server.is_free("x"));
}

#[test]
fn requests_work_inside_another_runtime_too() {
    let server = Server::start();
    let url = server.url();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async move {
        let client = patient(&url);
        let guard = client.lock("x").ttl(LONG).acquire().unwrap();
        assert!(guard.extend().is_ok() && guard.is_valid());
    });
    assert!(server.is_free("x"));
}
