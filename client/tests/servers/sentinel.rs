//! A master that Sentinel names: the client follows it, holders and waiters over a failover
//! included.

use std::time::Duration;

use redislock_client::{Moment, Redlock, Released};
use redislock_testkit::Server;
use redislock_testkit::sentinel::{Deployment, NAME};

use crate::history::Contention;
use crate::{NODE_TIMEOUT, TTL, until};

/// Longer than any failover here.
const LONG: Duration = Duration::from_secs(600);

async fn client(deployment: &Deployment) -> Redlock {
    Redlock::builder()
        .sentinel(NAME, deployment.sentinels.iter().map(Server::url))
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap()
}

async fn replica_has(deployment: &Deployment, key: &str) {
    until("the replica has it", || {
        !deployment.replicas[0].is_free(key)
    })
    .await;
}

async fn failed_over(deployment: &Deployment) {
    in_charge(&deployment.replicas[0]).await;
}

/// Sentinel closes connections when it changes roles, so it may take more than one question.
async fn says(server: &Server, words: &str) {
    until(words, || {
        let info = server.try_run::<String>(&["INFO", "replication"]);
        info.is_ok_and(|info| info.contains(words))
    })
    .await;
}

async fn in_charge(server: &Server) {
    says(server, "role:master").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_replicated_goes_on_at_the_new_master_and_waiters_follow() {
    let mut deployment = Deployment::start(&Server::options());
    let (client, other) = (client(&deployment).await, client(&deployment).await);
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let fence = guard.fence();
    let waiting = Contention::start(vec![other.lock("x").ttl(TTL), client.lock("x").ttl(TTL)]);
    replica_has(&deployment, "x").await;
    deployment.master.kill();
    failed_over(&deployment).await;
    // The test sends nothing: the client itself notices that another process replies, and confirms
    // the hold there.
    until("the hold is confirmed at the new master", || {
        deployment.replicas[0].calls("lock.extend") > 0
    })
    .await;
    assert!(guard.is_valid() && guard.fence() == fence);
    assert_eq!(waiting.grants(), 0, "nobody else was let in");
    assert_eq!(guard.release().await, Released::WasHeld);
    waiting.go_on(6).await;
    waiting.end().await;
    let last = client.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(last.fence() > fence);
}

#[tokio::test]
async fn a_hold_that_the_new_master_never_heard_of_is_reported_lost() {
    let mut deployment = Deployment::start(&Server::options());
    let client = client(&deployment).await;
    // The replica stands still, and the master dies while what it has to tell is stuck behind a
    // large value.
    deployment.replicas[0].pause();
    let large = "x".repeat(64 << 20);
    let _: () = deployment.master.run(&["SET", "large", &large]);
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    deployment.master.kill();
    deployment.replicas[0].resume();
    guard.lost().await;
    assert!(!guard.is_valid());
    let next = client.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await, Released::WasLost);
    assert_eq!(next.release().await, Released::WasHeld);
}

#[tokio::test]
async fn with_quarantine_nobody_is_granted_before_the_lost_holder_was_notified() {
    let quarantine = TTL * 2;
    let setting = format!("lock.quarantine {}", quarantine.as_millis());
    let mut deployment = Deployment::start(&Server::options().config(&setting));
    let (client, other) = (client(&deployment).await, client(&deployment).await);
    let guard = client
        .lock("x")
        .ttl(TTL)
        .wait(LONG)
        .acquire()
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let lock = other.lock("x").ttl(TTL).wait(LONG);
        async move {
            let guard = lock.acquire().await.unwrap();
            (Moment::now(), guard)
        }
    });
    deployment.master.kill();
    guard.lost().await;
    let (told, end) = (Moment::now(), guard.valid_until());
    assert!(told < end, "told before validity ends");
    let (granted, next) = waiter.await.unwrap();
    assert!(granted >= end, "nobody overlaps");
    assert!(next.fence() > guard.fence());
    assert!(!deployment.replicas[0].is_free("x"));
}

#[tokio::test(flavor = "multi_thread")]
async fn failovers_under_load_let_nobody_overlap() {
    // A deposed master must stop granting, the new one must not start too early.
    let options = [
        "lock.quarantine 2500",
        "min-replicas-to-write 0",
        "min-replicas-max-lag 1",
    ];
    let mut deployment = Deployment::start(&Server::options().configs(options));
    let clients = [client(&deployment).await, client(&deployment).await];
    let lock = |client: &Redlock| client.lock("x").ttl(NODE_TIMEOUT * 4).wait(LONG);
    let load = Contention::start(clients.iter().chain(&clients).map(lock).collect());
    load.go_on(20).await;
    deployment.master.kill();
    failed_over(&deployment).await;
    load.go_on(20).await;
    // Back again as a replica, and then in charge, in agreement with the present master.
    deployment.master.start_again();
    says(&deployment.replicas[0], "state=online").await;
    load.go_on(20).await;
    until("Sentinel fails over again", || {
        let words = ["SENTINEL", "FAILOVER", NAME];
        deployment.sentinels[0].try_run::<()>(&words).is_ok()
    })
    .await;
    in_charge(&deployment.master).await;
    load.go_on(20).await;
    load.end().await;
}
