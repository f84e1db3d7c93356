//! Waiting: in the servers' queues, in order, without polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redislock_client::{Redlock, Released};
use redislock_testkit::{Server, lock};

use crate::{
    TTL, acquire_in_background, connect, freed_before_the_lease_ends, is_busy, patient, until,
};

/// How many wait for the key at this server.
pub fn waiters(server: &Server, key: &str) -> i64 {
    lock::waiters(&mut server.connect(), key)
}

/// Checks, without any lock, that one task at a time is inside, and that fences grow.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    highest: AtomicU64,
}

impl Room {
    async fn visit(&self, fence: u64) {
        assert_eq!(
            self.inside.fetch_add(1, Ordering::SeqCst),
            0,
            "somebody else is inside"
        );
        assert!(
            self.highest.fetch_max(fence, Ordering::SeqCst) < fence,
            "a fence went backwards"
        );
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn hundred_tasks(servers: &[Server]) {
    let client = patient(servers).await;
    let room = Arc::new(Room::default());
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let (client, room) = (client.clone(), Arc::clone(&room));
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let guard = client
                    .lock("x")
                    .ttl(TTL * 6)
                    .wait(Duration::from_secs(60))
                    .acquire()
                    .await
                    .unwrap();
                room.visit(guard.fence()).await;
                assert_eq!(guard.release().await, Released::WasHeld);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    freed_before_the_lease_ends(servers, "x", TTL).await;
    // No thundering herd: a release wakes one waiter, and costs the same for any number of waiters.
    for server in servers {
        let (asked, grants) = (server.calls("lock.acquire"), 300);
        assert!(asked < 10 * grants, "{asked} requests for {grants} grants");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_tasks_of_one_client_all_get_their_turn_on_one_node() {
    hundred_tasks(&Server::start_many::<1>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_tasks_of_one_client_all_get_their_turn_over_a_quorum() {
    hundred_tasks(&Server::start_many::<5>()).await;
}

#[tokio::test]
async fn a_waiter_sends_nothing_while_it_waits() {
    let servers = Server::start_many::<3>();
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let guard = one
        .lock("x")
        .ttl(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap();
    let waiter =
        tokio::spawn(async move { other.lock("x").acquire().await.unwrap().release().await });
    until("it waits", || waiters(&servers[0], "x") == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let calls = |servers: &[Server]| -> u64 {
        let of = |server: &Server| {
            server.calls("lock.acquire")
                + server.calls("lock.extend")
                + server.calls("lock.release")
        };
        servers.iter().map(of).sum()
    };
    let before = calls(&servers);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(calls(&servers), before);
    guard.release().await;
    assert_eq!(waiter.await.unwrap(), Released::WasHeld);
}

#[tokio::test]
async fn waiters_are_served_in_the_order_of_arrival() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let guard = client.lock("x").acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..8 {
        let (client, served) = (client.clone(), served.clone());
        tokio::spawn(async move {
            let guard = client.lock("x").acquire().await.unwrap();
            served.send(number).unwrap();
            guard.release().await;
        });
        until("it waits", || waiters(&servers[0], "x") == number + 1).await;
    }
    guard.release().await;
    for number in 0..8 {
        assert_eq!(order.recv().await, Some(number));
    }
}

#[tokio::test]
async fn a_wait_that_is_over_says_busy_and_leaves_the_queue() {
    let servers = Server::start_many::<3>();
    let (one, other) = (connect(&servers).await, connect(&servers).await);
    let guard = one
        .lock("x")
        .ttl(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap();
    assert!(is_busy(
        other
            .lock("x")
            .wait(Duration::from_millis(300))
            .acquire()
            .await
    ));
    assert!(is_busy(
        other.lock("x").wait(Duration::ZERO).acquire().await
    ));
    until("nobody waits", || {
        servers.iter().all(|server| waiters(server, "x") == 0)
    })
    .await;
    assert_eq!(guard.release().await, Released::WasHeld);
    freed_before_the_lease_ends(&servers, "x", TTL).await;
}

#[tokio::test]
async fn a_request_without_time_to_wait_gets_a_lock_that_has_just_become_free() {
    let servers = Server::start_many::<3>();
    let client = patient(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(60));
    for wait in [Duration::ZERO, Duration::from_micros(900)] {
        let guard = lock.acquire().await.unwrap();
        assert!(is_busy(lock.clone().wait(wait).acquire().await));
        guard.release().await;
        let guard = lock.clone().wait(wait).acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

#[tokio::test]
async fn a_waiter_that_dies_or_is_cancelled_does_not_hold_up_the_queue() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(60));
    let guard = lock.acquire().await.unwrap();
    let cancelled = acquire_in_background(&lock);
    until("the first waits", || waiters(&servers[0], "x") == 1).await;
    let survivor = acquire_in_background(&lock);
    until("the second waits", || waiters(&servers[0], "x") == 2).await;
    cancelled.abort();
    until("one has left", || waiters(&servers[0], "x") == 1).await;
    // A connection that is closed under the waiter costs it its place, not the lock. It waits where
    // it finds the first node that can be reached: elsewhere, if that is not yet this one again.
    let closed: i64 = servers[0].run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(closed > 0);
    let waiting = || servers.iter().map(|server| waiters(server, "x"));
    until("it waits again", || waiting().sum::<i64>() == 1).await;
    guard.release().await;
    let survivor = survivor.await.unwrap().unwrap();
    assert_eq!(survivor.release().await, Released::WasHeld);
}

#[tokio::test]
async fn release_and_extend_never_queue_behind_a_waiter() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let waiter = acquire_in_background(&client.lock("x"));
    until("it waits", || waiters(&servers[0], "x") == 1).await;
    guard.extend().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    let waiter = waiter.await.unwrap().unwrap();
    assert_eq!(waiter.release().await, Released::WasHeld);
}

#[tokio::test]
async fn waiters_move_on_when_the_node_of_their_queue_stops_answering() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(60));
    let guard = lock.acquire().await.unwrap();
    let waiter = acquire_in_background(&lock);
    until("it waits", || waiters(&servers[0], "x") == 1).await;
    servers[0].pause();
    until("it waits elsewhere", || waiters(&servers[1], "x") == 1).await;
    guard.release().await;
    let waiter = waiter.await.unwrap().unwrap();
    assert_eq!(waiter.release().await, Released::WasHeld);
    servers[0].resume();
    freed_before_the_lease_ends(&servers, "x", Duration::from_secs(30)).await;
}

#[tokio::test]
async fn waiters_queue_elsewhere_while_the_first_node_is_quarantined() {
    let quarantined = Server::with(["lock.quarantine 60000"]);
    let [second, third] = Server::start_many::<2>();
    let servers = [quarantined, second, third];
    let client = connect(&servers).await;
    let lock = client.lock("x").ttl(Duration::from_secs(30));
    let guard = lock.acquire().await.unwrap();
    let waiter = acquire_in_background(&lock);
    until("it waits", || waiters(&servers[1], "x") == 1).await;
    guard.release().await;
    let waiter = waiter.await.unwrap().unwrap();
    assert_eq!(waiter.release().await, Released::WasHeld);
}

#[tokio::test(flavor = "multi_thread")]
async fn crossed_queues_resolve() {
    let servers = Server::start_many::<3>();
    let forward = patient(&servers).await;
    let backward = Redlock::builder()
        .nodes(servers.iter().rev().map(Server::url))
        .node_timeout(Duration::from_secs(5))
        .connect()
        .await
        .unwrap();
    let room = Arc::new(Room::default());
    let mut tasks = Vec::new();
    for task in 0..8 {
        let client = if task % 2 == 0 {
            forward.clone()
        } else {
            backward.clone()
        };
        let room = Arc::clone(&room);
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = client
                    .lock("x")
                    .ttl(TTL * 6)
                    .wait(Duration::from_secs(60))
                    .acquire()
                    .await
                    .unwrap();
                room.visit(guard.fence()).await;
                assert_eq!(guard.release().await, Released::WasHeld);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_five_killed_under_load_fail_no_acquire_and_let_nobody_overlap() {
    let mut servers = Server::options()
        .configs(["appendonly yes", "appendfsync always"])
        .start_many::<5>();
    let clients = [connect(&servers).await, connect(&servers).await];
    let room = Arc::new(Room::default());
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (room, done) = (Arc::clone(&room), Arc::clone(&done));
        let client = clients[number % 2].clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..40 {
                let guard = client
                    .lock("x")
                    .ttl(TTL)
                    .wait(Duration::from_secs(20))
                    .acquire()
                    .await
                    .unwrap();
                room.visit(guard.fence()).await;
                guard.release().await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    until("the load runs", || done.load(Ordering::SeqCst) > 40).await;
    servers[0].kill();
    until("it goes on", || done.load(Ordering::SeqCst) > 100).await;
    servers[3].kill();
    for task in tasks {
        task.await.unwrap();
    }
    servers[0].start_again();
    servers[3].start_again();
    for client in &clients {
        let lock = client.lock("x").ttl(TTL).wait(Duration::from_secs(20));
        let guard = lock.acquire().await.unwrap();
        room.visit(guard.fence()).await;
        guard.release().await;
    }
}
