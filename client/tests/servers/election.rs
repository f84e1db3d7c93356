//! Elections: one candidate leads, the others wait for their turn or look on.

use std::time::Duration;

use redislock_client::{Election, Error, Leader, Redlock, Released};
use redislock_testkit::{Proxy, Server};

use crate::contention::waiters;
use crate::examples::output_of;
use crate::{TTL, connect, until};

/// How often an observer looks.
const LOOK: Duration = Duration::from_millis(20);
/// Longer than a test.
const LONG: Duration = Duration::from_secs(600);

fn candidate(client: &Redlock, name: &str) -> Election {
    client.election("office").candidate(name).ttl(TTL)
}

fn name_of(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref()?.candidate.as_deref()
}

#[tokio::test]
async fn candidates_lead_one_after_the_other_with_growing_terms() {
    for servers in [
        Vec::from(Server::start_many::<1>()),
        Vec::from(Server::start_many::<3>()),
    ] {
        let client = connect(&servers).await;
        assert_eq!(client.election("office").leader().await, Ok(None));
        let mut leadership = candidate(&client, "0").campaign().await.unwrap();
        let mut campaigns = Vec::new();
        for number in 1..4 {
            let election = candidate(&client, &number.to_string());
            campaigns.push(tokio::spawn(async move { election.campaign().await }));
            until("it waits", || waiters(&servers[0], "office") == number).await;
        }
        for (number, campaign) in campaigns.into_iter().enumerate() {
            let leader = client.election("office").leader().await.unwrap().unwrap();
            assert_eq!(leader.candidate, Some(number.to_string()));
            assert_eq!(leader.term, leadership.term());
            assert!(leadership.is_valid());
            assert_eq!(leadership.resign().await, Released::WasHeld);
            let next = campaign.await.unwrap().unwrap();
            assert!(next.term() > leader.term);
            leadership = next;
        }
        assert_eq!(leadership.resign().await, Released::WasHeld);
        assert_eq!(client.election("office").leader().await, Ok(None));
    }
}

#[tokio::test]
async fn observers_see_each_leader_and_when_there_is_none() {
    let servers = Server::start_many::<3>();
    let (client, other) = (connect(&servers).await, connect(&servers).await);
    let mut observation = other.election("office").observe(LOOK);
    assert_eq!(observation.next().await, Ok(None));
    for name in ["a", "b"] {
        let leadership = candidate(&client, name).campaign().await.unwrap();
        let seen = observation.next().await.unwrap();
        assert_eq!(name_of(&seen), Some(name));
        assert_eq!(seen.map(|leader| leader.term), Some(leadership.term()));
        leadership.resign().await;
        assert_eq!(observation.next().await, Ok(None));
    }
}

#[tokio::test]
async fn a_leader_that_has_died_is_replaced_when_its_lease_is_over() {
    let server = Server::start();
    let words = ["LOCK.ACQUIRE", "office", "dead", "1000", "OWNER", "dead"];
    let term: u64 = server.run(&words);
    let client = connect(std::slice::from_ref(&server)).await;
    let election = candidate(&client, "a");
    let leader = election.leader().await.unwrap();
    assert_eq!(name_of(&leader), Some("dead"));
    let leadership = election.campaign().await.unwrap();
    assert!(leadership.term() > term);
}

#[tokio::test]
async fn a_candidate_that_withdraws_is_passed_over() {
    let server = Server::start();
    let client = connect(std::slice::from_ref(&server)).await;
    let first = candidate(&client, "a").campaign().await.unwrap();
    let withdrawn = candidate(&client, "b");
    let campaign = tokio::spawn(async move { withdrawn.campaign().await.map(|_| ()) });
    until("it waits", || waiters(&server, "office") == 1).await;
    campaign.abort();
    until("it is gone", || waiters(&server, "office") == 0).await;
    let busy = candidate(&client, "c").campaign_for(LOOK).await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    first.resign().await;
    let election = candidate(&client, "d").campaign_for(LONG).await;
    assert!(election.is_ok());
}

#[tokio::test]
async fn a_leader_that_is_deposed_is_notified() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let leadership = candidate(&client, "a").campaign().await.unwrap();
    for server in &servers {
        let _: u64 = server.run(&["LOCK.FORCE", "office"]);
    }
    leadership.lost().await;
    assert!(!leadership.is_valid());
    let next = candidate(&client, "b").campaign().await.unwrap();
    assert!(next.term() > leadership.term());
    assert_eq!(leadership.resign().await, Released::WasLost);
}

/// Its runtime renews the lease while the test waits for a server.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_known_without_a_minority_and_unknown_without_a_majority() {
    let mut servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let election = candidate(&client, "a").ttl(TTL * 2);
    let leadership = election.campaign().await.unwrap();
    // A node that granted late, with another fence, counts from the next renewal on.
    let held = leadership.held();
    let before = held.valid_until();
    until("it is renewed", || held.valid_until() > before).await;
    servers[0].kill();
    let mut observation = election.observe(LOOK);
    let seen = observation.next().await.unwrap();
    assert_eq!(seen.map(|leader| leader.term), Some(leadership.term()));
    // Back again without its locks: the leader takes the office there again, in the same term.
    servers[0].start_again();
    until("the office is held there", || !servers[0].is_free("office")).await;
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(leader.term, leadership.term());
    servers[1].kill();
    servers[2].kill();
    let unknown = election.leader().await;
    assert!(
        matches!(unknown, Err(Error::NoQuorum { .. })),
        "{unknown:?}"
    );
}

#[test]
fn the_example_elects_both_candidates() {
    let servers = Server::start_many::<3>();
    let text = output_of("election", &servers);
    for name in ["ann", "bob"] {
        let elected = format!("{name} was elected for term ");
        assert!(text.contains(&elected), "{text}");
    }
    assert!(servers.iter().all(|server| server.is_free("scheduler")));
}

#[tokio::test]
async fn observers_query_at_a_sensible_interval() {
    let server = Server::start();
    let client = connect(std::slice::from_ref(&server)).await;
    for every in [Duration::ZERO, Duration::MAX] {
        let mut observation = client.election("office").observe(every);
        assert_eq!(observation.next().await, Ok(None));
        let before = server.calls("lock.info");
        let second = Duration::from_secs(1);
        let unchanged = tokio::time::timeout(second, observation.next()).await;
        assert!(unchanged.is_err());
        let looks = server.calls("lock.info") - before;
        assert!(looks <= 150, "{looks} looks in a second");
    }
}

#[tokio::test]
async fn a_module_that_cannot_count_holders_is_asked_for_all_of_them() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let client = Redlock::builder().node(proxy.url()).node_timeout(TTL / 6);
    let client = client.connect().await.unwrap();
    // The server does not know the word then, as version 0.1.0 does not.
    proxy.replace_in_requests("COUNT", "XXXXX");
    let leadership = candidate(&client, "a").campaign().await.unwrap();
    let leader = client.election("office").leader().await.unwrap();
    assert_eq!(name_of(&leader), Some("a"));
    let error = client.lock("office").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("by \"a"), "{error}");
    leadership.resign().await;
}
