use std::pin::pin;

use futures_util::future::FutureExt;
use redislock_testkit::Server;

use super::*;
use crate::attempt::Outcome;
use crate::attempt::tests::patient;

/// The keeper, which notifies holds, has not run since.
#[tokio::test]
async fn an_ephemeral_hold_is_not_valid_once_its_connection_has_ended() {
    let server = Server::start();
    let redlock = patient([server.url()]).await;
    let lock = |name| redlock.lock(name).ttl(Duration::from_secs(600));
    let ephemeral = lock("x").ephemeral().acquire().await.unwrap();
    let ordinary = lock("y").acquire().await.unwrap();
    assert!(ephemeral.is_valid() && ordinary.is_valid());
    let node = &redlock.client.fleet.nodes[0];
    node.ended(node.standing().generation, Verdict::unreachable("closed"));
    assert!(!ephemeral.is_valid() && ordinary.is_valid());
}

#[test]
fn tokens_of_guards_that_are_gone_do_not_pile_up() {
    let ending = Ending::default();
    let last = (0..1_000).fold(None, |_, _| {
        let joint: Arc<Joint> = Arc::default();
        ending.also(&joint);
        Some(joint.0.child_token())
    });
    assert!(last.unwrap().is_cancelled());
    assert_eq!(locked(&ending.joint).len(), 1);
    let joint: Arc<Joint> = Arc::default();
    ending.also(&joint);
    let child = joint.0.child_token();
    assert!(!child.is_cancelled());
    ending.set(Loss::Released);
    ending.notify();
    assert!(child.is_cancelled());
}

/// A hold of `x` and `y` on all of these nodes. The keeper does not renew it.
async fn hold_of_two(servers: &[Server]) -> Arc<Hold> {
    let redlock = patient(servers.iter().map(Server::url)).await;
    let spec = Spec {
        ttl: Duration::from_secs(600),
        renew: false,
        ..Spec::new(vec![b"x".to_vec(), b"y".to_vec()])
    };
    let mut attempt = Attempt::new(redlock.client, Arc::new(spec));
    let outcome = attempt.try_all(false).await;
    let Outcome::Won { fence, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let hold = Hold::begin(&mut attempt, fence);
    // The last node may have answered too late for the attempt.
    hold.renew_now().await.unwrap();
    hold
}

/// Whether each of the nodes has this lock, once it has executed what was sent to it before.
async fn held(hold: &Hold, key: &str) -> Vec<bool> {
    let mut held = Vec::new();
    for node in hold.client.fleet.nodes.iter() {
        let status = node.lock_status(key.as_bytes(), 1).await.unwrap();
        held.push(status.is_some());
    }
    held
}

/// Releases something while a renewal is in progress. The renewal has the replies of all nodes, and
/// the last one has no record of the hold any more, so the renewal asks it to grant.
async fn release_during_renewal(
    servers: &[Server],
    hold: &Arc<Hold>,
    release: impl Future<Output = Released>,
) -> Released {
    for key in ["x", "y"] {
        let _: u64 = servers[2].run(&["LOCK.FORCE", key]);
    }
    let mut renewal = pin!(hold.renew_now());
    assert!(renewal.as_mut().now_or_never().is_none());
    // The replies to what was sent before have arrived by then.
    assert_eq!(held(hold, "x").await, [true, true, false]);
    // With several threads, a connection may send what the renewal asks for before the renewal is
    // stopped. Here, nothing stops it: the test takes the notice.
    let mut notice = pin!(hold.leaving.notified());
    notice.as_mut().enable();
    let mut release = pin!(release);
    assert!(release.as_mut().now_or_never().is_none());
    // It fails if the hold is over.
    let _ = renewal.await;
    release.await
}

#[tokio::test]
async fn a_partial_release_comes_after_the_requests_of_a_renewal_in_progress() {
    let servers = Server::start_many::<3>();
    let hold = hold_of_two(&servers).await;
    let release = Arc::clone(&hold).leave_locks(vec![0]);
    let released = release_during_renewal(&servers, &hold, release).await;
    assert_eq!(released, Released::WasHeld);
    assert_eq!(held(&hold, "x").await, [false; 3]);
    assert_eq!(held(&hold, "y").await, [true; 3]);
}

#[tokio::test]
async fn a_final_release_comes_after_the_requests_of_a_renewal_in_progress() {
    let servers = Server::start_many::<3>();
    let hold = hold_of_two(&servers).await;
    let released = release_during_renewal(&servers, &hold, hold.release()).await;
    assert_eq!(released, Released::WasHeld);
    assert_eq!(held(&hold, "x").await, [false; 3]);
    assert_eq!(held(&hold, "y").await, [false; 3]);
}
