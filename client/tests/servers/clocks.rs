//! Servers whose wall clocks are off, or step while locks are held.

use std::slice::from_ref;
use std::time::Duration;

use redislock_client::{Moment, Released};
use redislock_testkit::{Server, SteppedServer};

use crate::{TTL, builder, connect, log, until};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

#[tokio::test]
async fn clocks_that_are_more_than_a_second_apart_are_a_warning_that_names_them() {
    log::start();
    let near = SteppedServer::start_ahead(Server::options(), Duration::from_millis(300));
    let far = SteppedServer::start_ahead(Server::options(), Duration::from_secs(3));
    let others = Server::start_many::<2>();
    let about = |server: &Server| {
        let warnings = log::lines("more than a second apart");
        let name = format!("ahead=127.0.0.1:{} ", server.port());
        warnings
            .into_iter()
            .filter(|line| line.contains(&name))
            .count()
    };
    for stepped in [&near, &far] {
        builder(&others)
            .node(stepped.server.url())
            .connect()
            .await
            .unwrap();
    }
    assert_eq!(about(&near.server), 0);
    assert_eq!(about(&far.server), 1);
}

#[tokio::test]
async fn a_node_whose_clock_is_off_by_an_hour_stops_nobody_and_fences_grow() {
    let stepped = SteppedServer::start(Server::options());
    let others = Server::start_many::<2>();
    let client = builder(&others)
        .node(stepped.server.url())
        .connect()
        .await
        .unwrap();
    let mut last = 0;
    for shift in [0, HOUR, -HOUR, 0, -HOUR, HOUR] {
        stepped.step(shift);
        // Also with a client that connects after the step.
        let late = builder(&others)
            .node(stepped.server.url())
            .connect()
            .await
            .unwrap();
        for client in [&client, &late] {
            let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
            assert!(guard.fence() > last, "{} after {last}", guard.fence());
            last = guard.fence();
            assert_eq!(guard.release().await, Released::WasHeld);
        }
    }
}

#[tokio::test]
async fn a_hold_neither_ends_nor_lasts_longer_when_the_servers_clock_steps() {
    let stepped = SteppedServer::start(Server::options());
    let client = connect(from_ref(&stepped.server)).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    for shift in [DAY, -DAY, 0] {
        stepped.step(shift);
        let before = guard.valid_until();
        until("it was renewed", || guard.valid_until() > before).await;
        assert!(guard.is_valid());
    }
    let fence = guard.fence();
    assert_eq!(guard.release().await, Released::WasHeld);

    // A lease that is not renewed ends on time, whatever the wall clock shows.
    stepped.step(DAY);
    let lease = client.lock("x").ttl(TTL).renew(false);
    let forgotten = lease.acquire().await.unwrap();
    assert!(forgotten.fence() > fence);
    stepped.step(-DAY);
    let end = forgotten.valid_until();
    let next = client.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(Moment::now() >= end, "granted before the lease was over");
    assert!(next.fence() > forgotten.fence());
}
