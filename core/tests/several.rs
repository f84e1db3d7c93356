//! Several keys at once: all or none, order on every key, who may pass whom, deadlocks.

use redislock_core::lock::{Mode, OverCap, Terms};
use redislock_core::table::{Denial, Granted, Verdict};
use redislock_core::time::{Millis, Wait};

use crate::node::{Node, ROOMY, SECOND, SHARED, key, semaphore, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

const DEADLOCK: Verdict = Verdict::Denied(Denial::Deadlock);

#[test]
fn all_keys_are_acquired_with_one_fence_or_none() {
    let mut node = node();
    let fences = node.hold("a", "kl");
    assert_eq!(fences[0], fences[1]);
    assert_eq!(
        node.ask("b", "jk", Mode::Exclusive, Wait::No),
        Verdict::Busy
    );
    assert!(!node.holds("b", "j"));
    assert_eq!(node.table.locks(), 2);
}

#[test]
fn a_key_that_is_held_already_is_re_entered_under_its_own_fence() {
    let mut node = node();
    let own = node.hold("a", "k")[0];
    let Verdict::Granted(Granted::Many(fences)) = node.ask("a", "lkm", Mode::Exclusive, Wait::No)
    else {
        panic!("granted");
    };
    assert_eq!((fences[1], fences[0]), (own, fences[2]));
    assert!(fences[0] > own);
    let count = node
        .lock(&key("k"))
        .and_then(|lock| lock.hold(&token("a")))
        .map(|hold| hold.count());
    assert_eq!(count, Some(2));
}

#[test]
fn a_key_that_cannot_be_re_entered_leaves_the_others_free() {
    let mut node = node();
    let capped = Terms {
        max_hold: Some(Millis(5000)),
        ..terms(&token("a"), SECOND)
    };
    node.acquire(&[key("k")], &capped, Wait::No);
    node.take();
    let over = Verdict::Denied(Denial::OverCap(OverCap { left: 5 * SECOND }));
    assert_eq!(node.ask("a", "jkl", Mode::Exclusive, Wait::No), over);
    assert_eq!((node.table.locks(), node.take().0.len()), (1, 0));
}

#[test]
fn a_waiter_for_several_keys_holds_none_and_nobody_takes_the_free_one_from_it() {
    let mut node = node();
    node.hold("a", "l");
    let both = node.wait("b", "kl");
    assert!(!node.holds("b", "k"));
    assert_eq!(
        node.table
            .waiting_for(&key("k"))
            .map(|(waiters, _)| waiters),
        Some(1)
    );
    assert_eq!(node.ask("c", "k", Mode::Exclusive, Wait::No), Verdict::Busy);
    let behind = node.wait("c", "k");
    node.let_go("a", "l");
    assert_eq!(node.granted(), [both]);
    node.let_go("b", "k");
    assert_eq!(node.granted(), [behind]);
}

#[test]
fn crossed_requests_cannot_block_each_other() {
    let mut node = node();
    node.hold("a", "kl");
    let (first, second) = (node.wait("b", "kl"), node.wait("c", "lk"));
    node.let_go("a", "k");
    node.let_go("a", "l");
    assert_eq!(node.granted(), [first]);
    node.let_go("b", "l");
    node.let_go("b", "k");
    assert_eq!(node.granted(), [second]);
}

#[test]
fn a_waiter_that_waits_for_what_the_requester_holds_is_not_ahead_of_it() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "kl");
    assert_eq!(node.ask("c", "l", Mode::Exclusive, Wait::No), Verdict::Busy);
    node.hold("a", "l");
    node.let_go("a", "l");
    assert_eq!(node.granted(), []);
    node.let_go("a", "k");
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn an_owner_in_a_queue_may_pass_as_soon_as_it_holds_what_the_one_ahead_waits_for() {
    let mut node = node();
    node.hold("x", "l");
    node.hold("a", "m");
    node.wait("b", "kl");
    let passing = node.wait("a", "k");
    node.rename(&key("m"), &key("l"));
    node.serve();
    assert_eq!(node.granted(), [passing]);
}

#[test]
fn a_lease_that_has_ended_lets_nobody_pass() {
    let mut node = node();
    node.hold("a", "k");
    node.wait("b", "kl");
    node.advance(10 * SECOND);
    assert_eq!(node.ask("a", "l", Mode::Exclusive, Wait::No), Verdict::Busy);
}

#[test]
fn an_owner_that_re_enters_a_full_semaphore_waits_for_none_of_its_holders() {
    let mut node = node();
    node.hold("x", "m");
    for owner in ["a", "b"] {
        node.ask(owner, "k", semaphore(2), Wait::No);
    }
    node.wait_in("a", "klm", semaphore(2));
    assert_eq!(node.ask("b", "l", Mode::Exclusive, Wait::No), Verdict::Busy);
}

#[test]
fn a_semaphore_that_becomes_full_lets_its_holders_pass() {
    let mut node = node();
    node.hold("d", "m");
    node.ask("b", "k", semaphore(2), Wait::No);
    node.wait_in("a", "lmk", semaphore(2));
    let passing = node.wait("b", "l");
    assert!(matches!(
        node.ask("d", "k", semaphore(2), Wait::No),
        Verdict::Granted(_)
    ));
    assert_eq!(node.granted(), [passing]);
}

#[test]
fn a_lock_that_a_waiter_was_granted_in_the_same_decision_is_not_made_twice() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait_in("b", "kl", SHARED);
    node.advance(10 * SECOND);
    let Verdict::Granted(granted) = node.ask("c", "lk", SHARED, Wait::No) else {
        panic!("shared with b")
    };
    assert_eq!(node.granted(), [waiter]);
    assert_eq!(granted.len(), 2);
    assert_eq!(node.table.locks(), 2);
    assert_eq!(node.lock(&key("l")).map(|lock| lock.holders()), Some(2));
}

#[test]
fn a_deadlock_of_two_is_told_at_once() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("b", "l");
    node.wait("a", "l");
    assert_eq!(node.ask("b", "k", Mode::Exclusive, Wait::Forever), DEADLOCK);
    assert_eq!(
        node.ask("b", "k", Mode::Exclusive, Wait::No),
        Verdict::Busy,
        "who does not wait causes no deadlock"
    );
    assert_eq!(node.table.waiters(), 1);
}

#[test]
fn a_deadlock_over_many_keys_and_modes_is_told() {
    let mut node = node();
    for (owner, name) in [("a", "k"), ("b", "l"), ("c", "m")] {
        node.ask(owner, name, SHARED, Wait::No);
    }
    node.wait("a", "lx");
    node.wait("b", "ym");
    assert_eq!(
        node.ask("c", "zk", Mode::Exclusive, Wait::Forever),
        DEADLOCK
    );
    assert!(matches!(
        node.ask("c", "zk", SHARED, Wait::No),
        Verdict::Granted(_)
    ));
}

#[test]
fn a_deadlock_through_a_place_in_a_queue_is_told() {
    let mut node = node();
    node.hold("x", "k");
    node.hold("b", "l");
    node.wait_in("a", "kl", Mode::Exclusive);
    // b would stand behind a, which waits for what b holds: but then a is not ahead of b.
    let passing = node.wait("b", "k");
    node.let_go("x", "k");
    assert_eq!(node.granted(), [passing]);

    let mut node = self::node();
    node.hold("x", "k");
    node.hold("y", "m");
    node.hold("b", "l");
    node.wait("a", "kc");
    node.wait("c", "cl");
    // a is ahead of c; b waits behind a, which waits for x alone: no cycle.
    node.wait("b", "k");
    // c waits for b, so those ahead of c may not wait for c: y may.
    node.wait("y", "c");
    assert_eq!(node.table.waiters(), 4);
}

#[test]
fn a_queue_causes_a_deadlock_when_the_one_ahead_depends_on_the_newcomer() {
    let mut node = node();
    node.hold("n", "k");
    node.hold("x", "m");
    node.hold("v", "p");
    node.wait("v", "k");
    node.wait("w", "mp");
    // w is ahead on m and waits for v, which waits for n.
    assert_eq!(node.ask("n", "m", Mode::Exclusive, Wait::Forever), DEADLOCK);
}

#[test]
fn one_holder_of_a_full_semaphore_that_can_go_on_is_enough() {
    let mut node = node();
    node.hold("n", "l");
    for owner in ["a", "b"] {
        node.ask(owner, "k", semaphore(2), Wait::No);
    }
    node.wait("a", "l");
    let waiter = node.wait_in("n", "k", semaphore(2));
    node.abandon(waiter);
    node.wait("b", "l");
    assert_eq!(node.ask("n", "k", semaphore(2), Wait::Forever), DEADLOCK);
    assert_eq!(node.ask("n", "k", Mode::Exclusive, Wait::Forever), DEADLOCK);
}

/// The last one to wait closes the cycle: the semaphore's holders wait for each other's release.
#[test]
fn a_deadlock_in_which_all_holders_of_a_full_semaphore_wait_for_one_owner_is_told() {
    let mut node = node();
    node.hold("n", "l");
    for owner in ["a", "b"] {
        node.ask(owner, "k", semaphore(2), Wait::No);
    }
    node.wait("a", "l");
    // b may go on.
    node.wait_in("n", "k", semaphore(2));
    assert_eq!(node.ask("b", "l", Mode::Exclusive, Wait::Forever), DEADLOCK);
    // Another lock is none of their business, and neither is b's waiting for it.
    node.hold("x", "m");
    node.wait("b", "m");
}

/// A deadlock can come when a lock is renamed; it stands until waiters are served next. Who waits
/// behind it is no part of it.
#[test]
fn a_wait_behind_a_deadlock_of_others_is_not_refused() {
    let mut node = node();
    for (owner, name) in [("a", "k"), ("b", "k"), ("n", "s"), ("f", "s")] {
        node.ask(owner, name, semaphore(2), Wait::No);
    }
    node.hold("x", "l");
    node.hold("y", "m");
    node.wait("a", "l");
    node.wait("b", "l");
    node.wait_in("y", "k", semaphore(2));
    node.rename(&key("m"), &key("l"));
    // Now a and b wait for y, and y for one of them; w waits for one of them and may have s from f.
    node.wait_in("w", "ks", semaphore(2));
    node.wait_in("n", "k", semaphore(2));
}

#[test]
fn an_ended_lease_is_part_of_no_deadlock() {
    let mut node = node();
    node.hold("a", "k");
    node.advance(5 * SECOND);
    node.hold("b", "l");
    node.wait("a", "l");
    node.advance(5 * SECOND);
    assert!(matches!(
        node.ask("b", "k", Mode::Exclusive, Wait::Forever),
        Verdict::Granted(_)
    ));
}
