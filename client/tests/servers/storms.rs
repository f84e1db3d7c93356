//! Waiters in rough weather: they end in time, keep their places, and do not storm the nodes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redislock_client::{Error, Redlock};
use redislock_testkit::sentinel::{NAME, watch};
use redislock_testkit::{Flow, Proxy, Server};

use crate::contention::waiters;
use crate::{TTL, connect, patient, until};

const WAITERS: u64 = 30;

/// A number that INFO shows.
fn number(server: &Server, name: &str) -> u64 {
    number_in(&server.run::<String>(&["INFO", "everything"]), name)
}

fn number_in(info: &str, name: &str) -> u64 {
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

fn wait_for(client: &Redlock, name: &str) {
    let lock = client.lock(name).ttl(TTL * 20);
    tokio::spawn(async move { lock.acquire().await.map(drop) });
}

/// Requests in three seconds, after some time to settle down.
async fn in_three_seconds(count: impl Fn() -> u64) -> u64 {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = count();
    tokio::time::sleep(Duration::from_secs(3)).await;
    count() - before
}

#[tokio::test]
async fn a_wait_ends_in_time_even_if_no_reply_ever_comes() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let holder = patient(std::slice::from_ref(&server)).await;
    let guard = holder.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    // So patient that it does not believe the node down by chance.
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL);
    let client = client.connect().await.unwrap();
    let lock = client.lock("x").ttl(TTL * 4).wait(TTL);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("it waits", || waiters(&server, "x") == 1).await;
    proxy.replies(Flow::Lose);
    let ended = tokio::time::timeout(TTL * 10, waiter).await;
    let error = ended.expect("it ends").unwrap().unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    until("it has left the queue", || waiters(&server, "x") == 0).await;
    guard.release().await;
}

#[test]
fn a_wait_ends_in_time_even_if_the_runtime_of_the_client_is_not_driven() {
    let server = Server::start();
    let builder = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let idle = builder().unwrap();
    let client = idle.block_on(Redlock::connect([server.url()])).unwrap();
    let guard = idle.block_on(client.lock("y").acquire()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let driven = builder().unwrap();
        let wait = Duration::from_secs(1);
        let ended = driven.block_on(client.lock("x").wait(wait).acquire());
        let _ = tell.send(ended.is_err());
        let _ = tell.send(driven.block_on(client.lock("x").try_acquire()).is_err());
        let _ = tell.send(driven.block_on(guard.extend()).is_err());
        let _ = tell.send(driven.block_on(guard.release()) == redislock_client::Released::Unknown);
    });
    for _ in 0..4 {
        let ended = told.recv_timeout(Duration::from_secs(30));
        assert_eq!(ended, Ok(true), "it ends, with an error");
    }
}

#[tokio::test]
async fn waiters_of_a_full_server_keep_their_places_and_the_others_retry_slowly() {
    let server = Server::with(["maxclients 30"]);
    let client = patient(std::slice::from_ref(&server)).await;
    let holder = patient(std::slice::from_ref(&server)).await;
    let _guard = holder.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    // The connection for the questions of this test is there before the server is full.
    let asking = redis::Client::open(server.url()).unwrap();
    let mut asking = asking.get_connection().unwrap();
    let mut info = || -> String {
        redis::cmd("INFO")
            .arg("everything")
            .query(&mut asking)
            .unwrap()
    };
    for _ in 0..40 {
        wait_for(&client, "x");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tried = |info: &str| {
        number_in(info, "total_connections_received") + number_in(info, "rejected_connections")
    };
    let before = tried(&info());
    let mut fewest = u64::MAX;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fewest = fewest.min(number_in(&info(), "blocked_clients"));
    }
    let tried = tried(&info()) - before;
    assert!(
        fewest >= 20,
        "at times only {fewest} waiters are in the queue"
    );
    assert!(tried <= 150, "{tried} connections in 3 s");
}

#[tokio::test]
async fn a_quarantined_node_is_asked_no_more_often_than_it_says() {
    let server = Server::with(["lock.quarantine 60000"]);
    let client = patient(std::slice::from_ref(&server)).await;
    for waiter in 0..WAITERS {
        wait_for(&client, &format!("x{waiter}"));
    }
    let asked = in_three_seconds(|| server.calls("lock.acquire")).await;
    // They wait for 5 s at a time, as the quarantine takes longer than that.
    assert!(asked <= WAITERS, "{asked} requests in 3 s");
}

#[tokio::test]
async fn a_wait_for_a_node_that_cannot_serve_ends_in_time() {
    let server = Server::with(["lock.quarantine 60000"]);
    let client = patient(std::slice::from_ref(&server)).await;
    let wait = Duration::from_millis(2_500);
    let begin = Instant::now();
    // What this machine adds to a wait and a request is added to both.
    let control = async {
        tokio::time::sleep(wait).await;
        let refused = client.lock("x").ttl(TTL * 10).try_acquire().await;
        (refused, begin.elapsed())
    };
    let waiter = async {
        let lock = client.lock("x").ttl(TTL * 10).wait(wait);
        let refused = lock.acquire().await;
        (refused, begin.elapsed())
    };
    let ((refused, control), (other, waited)) = tokio::join!(control, waiter);
    assert!(
        matches!(refused, Err(Error::NoQuorum { .. })),
        "{refused:?}"
    );
    assert!(matches!(other, Err(Error::NoQuorum { .. })), "{other:?}");
    assert!(waited >= wait && waited < control + wait / 4, "{waited:?}");
}

#[tokio::test]
async fn nothing_is_released_at_a_node_that_was_never_asked() {
    let mut server = Server::start();
    let client = connect(std::slice::from_ref(&server)).await;
    server.kill();
    // From now on there is no connection.
    assert!(client.lock("x").try_acquire().await.is_err());
    let mut waiters = Vec::new();
    for waiter in 0..WAITERS {
        let lock = client.lock(format!("x{waiter}")).ttl(TTL * 20);
        waiters.push(tokio::spawn(
            async move { lock.acquire().await.map(|_| ()) },
        ));
    }
    tokio::time::sleep(TTL).await;
    server.start_again();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    let (asked, released) = (server.calls("lock.acquire"), server.calls("lock.release"));
    assert!(
        released <= asked + 1,
        "{released} releases for {asked} requests"
    );
}

#[tokio::test]
async fn waiters_without_a_majority_do_not_storm_the_node_that_is_left() {
    let mut servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    servers[1].kill();
    servers[2].kill();
    for waiter in 0..WAITERS {
        wait_for(&client, &format!("x{waiter}"));
    }
    let left = &servers[0];
    let asked = in_three_seconds(|| number(left, "total_commands_processed")).await;
    assert!(asked <= 3 * 2 * WAITERS, "{asked} commands in 3 s");
}

#[tokio::test]
async fn waiters_keep_their_order_over_stalls() {
    let server = Server::start();
    // It believes the node down during each stall.
    let client = Redlock::connect([server.url()]).await.unwrap();
    let guard = client.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..12 {
        let (lock, order) = (client.lock("x").ttl(TTL * 20), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await;
        }));
        until("it waits", || waiters(&server, "x") == number + 1).await;
    }
    for _ in 0..4 {
        server.pause();
        tokio::time::sleep(Duration::from_millis(700)).await;
        server.resume();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    guard.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.is_sorted(), "{order:?}");
}

#[tokio::test]
async fn waiters_stay_at_a_master_whose_sentinel_is_down() {
    let master = Server::start();
    let mut sentinel = watch(master.port());
    let client = Redlock::builder()
        .sentinel(NAME, [sentinel.url()])
        .node_timeout(TTL);
    let client = client.connect().await.unwrap();
    let holder = patient(std::slice::from_ref(&master)).await;
    let _guard = holder.lock("x").ttl(TTL * 20).acquire().await.unwrap();
    for number in 0..5 {
        wait_for(&client, "x");
        until("it waits", || waiters(&master, "x") == number + 1).await;
    }
    sentinel.kill();
    wait_for(&client, "x");
    for _ in 0..20 {
        assert!(waiters(&master, "x") >= 5);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_busy_answer_costs_the_same_for_any_number_of_holders() {
    let server = Server::start();
    let client = patient(std::slice::from_ref(&server)).await;
    let hold = |from: &str, to: &str| {
        let code = "for i = ARGV[1], ARGV[2] do \
                    redis.call('LOCK.ACQUIRE', KEYS[1], i, 600000, 'SHARED', 'OWNER', 'w' .. i) \
                    end";
        let _: () = server.run(&["EVAL", code, "1", "x", from, to]);
    };
    let bytes = async || {
        let before = number(&server, "total_net_output_bytes");
        let asked_by_this_test = number(&server, "total_net_output_bytes") - before;
        for _ in 0..10 {
            let error = client
                .lock("x")
                .ttl(TTL * 20)
                .try_acquire()
                .await
                .unwrap_err();
            assert!(error.to_string().contains("by \"w"), "{error}");
        }
        number(&server, "total_net_output_bytes") - before - 2 * asked_by_this_test
    };
    hold("1", "10");
    let few = bytes().await;
    hold("11", "2000");
    let many = bytes().await;
    assert!(
        many <= 2 * few,
        "{few} bytes with few holders, {many} with many"
    );
}

/// Only a few of them open a connection at the same time; the others do not wait for each of these
/// to fail.
#[tokio::test]
async fn waiters_leave_a_master_that_stands_still_all_at_once() {
    const MANY: i64 = 300;
    let servers = Server::start_many::<3>();
    let (holder, client) = (patient(&servers).await, patient(&servers).await);
    let _guard = holder.lock("x").ttl(TTL * 40).acquire().await.unwrap();
    servers[0].pause();
    for _ in 0..MANY {
        wait_for(&client, "x");
    }
    until("all wait at the second one", || {
        waiters(&servers[1], "x") == MANY
    })
    .await;
}
