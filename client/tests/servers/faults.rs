//! Random faults on five durable nodes while four clients contend: the windows in which clients
//! believe that they hold the lock never overlap, fences follow the order of the holders, and after
//! the faults every client acquires the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redislock_client::{Error, Moment, Redlock};
use redislock_testkit::{Flow, Proxy, Server};

use crate::history::{Window, check};

const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// So short that leases end by themselves during the faults.
const TTL: Duration = Duration::from_millis(600);
const FAULTS: usize = 40;

async fn contend(
    client: Redlock,
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Window>>>,
    seed: u64,
) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Ordering::SeqCst) {
        let asked = Moment::now();
        let wait = Duration::from_millis(random.random_range(1..2_000));
        let guard = match client.lock("x").ttl(TTL).wait(wait).acquire().await {
            Ok(guard) => guard,
            Err(Error::Busy { .. } | Error::NoQuorum { .. }) => continue,
            Err(other) => panic!("{other}"),
        };
        let from = Moment::now();
        // Many short holds, and some beyond the ttl: of those that are not renewed the lease must
        // end in time.
        let hold = if random.random_bool(0.7) {
            Duration::from_millis(random.random_range(0..60))
        } else {
            TTL.mul_f64(random.random_range(0.8..2.0))
        };
        tokio::select! {
            () = tokio::time::sleep(hold) => {}
            _ = guard.lost() => {}
        }
        let until = guard.valid_until().min(Moment::now());
        history.lock().unwrap().push(Window {
            asked,
            from,
            until,
            fence: guard.fence(),
        });
        if random.random_bool(0.5) {
            drop(guard)
        } else {
            guard.release().await;
        }
    }
}

/// Every client has proxies of its own, so that it can be cut off while the others go on.
async fn break_things(servers: &mut [Server], proxies: &[Vec<Proxy>], random: &mut StdRng) {
    for _ in 0..FAULTS {
        let node = random.random_range(0..servers.len());
        let client = &proxies[random.random_range(0..proxies.len())];
        let pause = Duration::from_millis(random.random_range(20..400));
        match random.random_range(0..6) {
            0 => {
                servers[node].pause();
                tokio::time::sleep(pause).await;
                servers[node].resume();
            }
            1 => {
                servers[node].kill();
                tokio::time::sleep(pause / 4).await;
                servers[node].start_again();
            }
            2 => client.iter().for_each(Proxy::close_connections),
            3 => {
                client.iter().for_each(|proxy| proxy.replies(Flow::Hold));
                tokio::time::sleep(pause * 4).await;
                client.iter().for_each(|proxy| proxy.replies(Flow::Pass));
            }
            4 => {
                client.iter().for_each(|proxy| proxy.requests(Flow::Hold));
                tokio::time::sleep(pause * 4).await;
                client.iter().for_each(|proxy| proxy.requests(Flow::Pass));
            }
            _ => {
                let lossy = &client[random.random_range(0..client.len())..];
                lossy.iter().for_each(|proxy| proxy.replies(Flow::Lose));
                tokio::time::sleep(pause).await;
                lossy.iter().for_each(Proxy::close_connections);
                lossy.iter().for_each(|proxy| proxy.replies(Flow::Pass));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overlaps_and_everybody_gets_through_in_the_end() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut servers = Server::options()
        .configs(["appendonly yes", "appendfsync always"])
        .start_many::<5>();
    let history = Arc::new(Mutex::new(Vec::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let (mut proxies, mut clients, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..4 {
        let mut own = Vec::new();
        for server in &servers {
            own.push(Proxy::to(server.port()));
        }
        let urls = own.iter().map(Proxy::url);
        let client = Redlock::builder()
            .nodes(urls)
            .node_timeout(NODE_TIMEOUT)
            .connect()
            .await
            .unwrap();
        let (stop, history) = (Arc::clone(&stop), Arc::clone(&history));
        tasks.push(tokio::spawn(contend(
            client.clone(),
            stop,
            history,
            seed ^ number,
        )));
        clients.push(client);
        proxies.push(own);
    }
    break_things(&mut servers, &proxies, &mut random).await;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    for client in &clients {
        let asked = Moment::now();
        let guard = client
            .lock("x")
            .ttl(TTL)
            .wait(Duration::from_secs(30))
            .acquire()
            .await
            .unwrap();
        let (from, fence) = (Moment::now(), guard.fence());
        guard.release().await;
        history.lock().unwrap().push(Window {
            asked,
            from,
            until: from,
            fence,
        });
    }
    let history = history.lock().unwrap();
    println!("{} holds", history.len());
    for w in history.iter().filter(|w| w.until.since(w.from) > TTL) {
        println!("{w:?}");
    }
    assert!(history.len() > 8, "only {} holds in all", history.len());
    check(&history);
}
