use redislock_testkit::Server;

use super::*;
use crate::attempt::tests::{patient, unconnected};
use crate::attempt::{Attempt, Outcome};

const FENCE: u64 = 7;
const SECOND: Duration = Duration::from_secs(1);

/// A hold that the first two of three nodes have granted.
fn hold() -> Arc<Hold> {
    let mut attempt = unconnected(3);
    let end = lease_end(Moment::now(), attempt.spec.ttl);
    (0..2).for_each(|place| attempt.ballot.grant(place, FENCE, end));
    Hold::begin(&mut attempt, FENCE)
}

fn extension(place: usize, sent: Moment) -> Question {
    Question::new(place, sent).about(Some(FENCE))
}

#[tokio::test]
async fn a_renewed_lease_counts_from_the_sending() {
    let (hold, sent) = (hold(), Moment::now().minus(SECOND));
    let lease = hold.spec.ttl * 2;
    let mut renewal = Renewal::send(&hold, lease);
    // The last node is asked to grant.
    for question in [extension(0, sent), Question::new(2, sent)] {
        assert!(!renewal.is_lost(question, Reply::Yes(FENCE)));
        let renewed = hold.lock().leases.of(question.place).unwrap();
        assert_eq!(renewed.end, lease_end(sent, lease));
    }
}

#[tokio::test]
async fn a_late_grant_counts_from_the_sending() {
    let (hold, sent) = (hold(), Moment::now().minus(SECOND));
    let mut round: Round = Round::unlimited(1);
    let granted = std::future::ready(Reply::Yes(FENCE));
    round.push(Question::new(2, sent), granted);
    *locked(&hold.late) = round.leave();
    hold.read_late_answers();
    let late = hold.lock().leases.of(2).unwrap();
    assert_eq!(late.end, lease_end(sent, hold.spec.ttl));
}

/// One of the two nodes that have granted has no record of the hold any more.
#[tokio::test]
async fn a_lease_that_its_node_denies_does_not_count() {
    let wrong_type = Reply::Trouble(Verdict::WrongType);
    for denial in [Reply::No, Reply::Part, wrong_type] {
        let hold = hold();
        assert!(hold.is_valid());
        let mut renewal = Renewal::send(&hold, hold.spec.ttl);
        let question = extension(1, Moment::now());
        assert!(renewal.is_lost(question, denial.clone()), "{denial:?}");
        assert!(!hold.is_valid(), "{denial:?}");
    }
}

/// The rest of the round may be cancelled.
#[tokio::test]
async fn a_denial_shortens_validity_at_once() {
    let (mut attempt, now) = (unconnected(3), Moment::now());
    let ends = [100, 200, 300].map(|seconds| now + SECOND * seconds);
    (0..3).for_each(|place| attempt.ballot.grant(place, FENCE, ends[place]));
    let hold = Hold::begin(&mut attempt, FENCE);
    assert_eq!(hold.valid_until(), ends[1]);
    let mut renewal = Renewal::send(&hold, hold.spec.ttl);
    assert!(!renewal.is_lost(extension(2, now), Reply::No));
    assert_eq!(hold.valid_until(), ends[0]);
    // One node is no majority.
    assert!(renewal.is_lost(extension(1, now), Reply::No));
    assert!(hold.valid_until() <= Moment::now());
}

/// Otherwise a node whose clock is behind could grant this hold, and later ones, with lower fences.
#[tokio::test]
async fn a_node_that_is_asked_to_grant_again_gets_the_fence_of_the_hold() {
    for nodes in [1, 3] {
        let mut attempt = unconnected(nodes);
        let end = lease_end(Moment::now(), attempt.spec.ttl);
        (0..nodes).for_each(|place| attempt.ballot.grant(place, FENCE, end));
        let hold = Hold::begin(&mut attempt, FENCE);
        let renewal = Renewal::send(&hold, hold.spec.ttl);
        let sent = renewal.acquire.cmd.get_packed_command();
        let sent = String::from_utf8_lossy(&sent);
        assert!(sent.contains("LOCK.ACQUIRE"), "{sent}");
        // A client of a single node needs no FENCE.
        let fence = format!("FENCE\r\n$1\r\n{FENCE}\r\n");
        assert_eq!(sent.contains(&fence), nodes > 1, "{sent}");
    }
}

/// The holder was told that the hold is over before the last reply arrived.
#[tokio::test]
async fn a_renewal_does_not_extend_a_hold_that_is_over() {
    let expire = |hold: &Hold| {
        let nodes = hold.reports(Verdict::NotAsked);
        hold.lose(Loss::Expired { nodes });
    };
    let release = |hold: &Hold| assert_eq!(hold.end(), Some(true));
    for end in [expire, release] {
        let hold = hold();
        let ttl = hold.spec.ttl * 2;
        let mut renewal = Renewal::send(&hold, ttl);
        for place in 0..2 {
            let question = extension(place, Moment::now());
            assert!(!renewal.is_lost(question, Reply::Yes(FENCE)));
        }
        end(&hold);
        let told = hold.valid_until();
        let renewed = renewal.conclude(ttl);
        assert!(matches!(renewed, Err(Error::Lost { .. })), "{renewed:?}");
        assert_eq!(hold.valid_until(), told);
    }
}

/// The guard is released while a renewal waits for its turn.
#[tokio::test]
async fn a_renewal_that_begins_after_the_end_sends_nothing() {
    let server = Server::start();
    let redlock = patient([server.url()]).await;
    let spec = Arc::new(Spec::new(vec![b"x".to_vec()]));
    let mut attempt = Attempt::new(Arc::clone(&redlock.client), spec);
    let outcome = attempt.try_all(false).await;
    let Outcome::Won { fence, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let hold = Hold::begin(&mut attempt, fence);
    let turn = hold.turn.lock().await;
    let release = async {
        assert_eq!(hold.end(), Some(true));
        // What notifies a renewal in progress reaches only the one that has the turn.
        hold.leaving.notified().await;
        drop(turn);
    };
    let (renewed, ()) = tokio::join!(biased; hold.renew_now(), release);
    assert!(matches!(renewed, Err(Error::Lost { .. })), "{renewed:?}");
    assert_eq!(server.calls("lock.extend"), 0);
}

#[test]
fn a_first_renewal_that_fails_leaves_time_for_two_more() {
    let ttl = Duration::from_secs(10);
    for percent in 50..=98 {
        let left = ttl * percent / 100;
        let retries = ttl / RETRY_AFTER * 2;
        let told = left - ttl / WARN_BEFORE;
        assert!(first_renewal(ttl, left) + retries < told, "{percent} %");
    }
    assert_eq!(first_renewal(ttl, ttl * 98 / 100), ttl / RENEW_AFTER);
}
