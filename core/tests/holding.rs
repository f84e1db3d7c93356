//! Holding one key: re-entry, exact ends, fences, caps, limits, counters.

use redislock_core::fence::FenceError;
use redislock_core::lock::{Mode, OverCap, Terms};
use redislock_core::table::{Answer, Denial, Events, Extended, Granted, Limits, Presence, Verdict};
use redislock_core::time::{Micros, Millis, Wait};

use crate::node::{Node, ROOMY, SECOND, SHARED, key, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

#[test]
fn a_re_entry_counts_keeps_its_fence_and_never_shortens_the_lease() {
    let mut node = node();
    let first = node.hold("a", "k");
    let short = terms(&token("a"), SECOND);
    let again = node.acquire(&[key("k")], &short, Wait::No);
    assert_eq!(again, Verdict::Granted(Granted::One(first[0])));
    let left = |node: &Node| {
        let hold = node.lock(&key("k")).and_then(|lock| lock.hold(&token("a")));
        hold.map(|hold| hold.left(node.table.lease_now(node.now.mono)))
    };
    assert_eq!(
        left(&node),
        Some(10 * SECOND),
        "a shorter lease changes nothing"
    );
    let once = Terms {
        once: true,
        ..terms(&token("a"), 20 * SECOND)
    };
    node.acquire(&[key("k")], &once, Wait::No);
    let hold = node
        .lock(&key("k"))
        .and_then(|lock| lock.hold(&token("a")))
        .expect("held");
    assert_eq!(
        (hold.count(), hold.left(node.table.lease_now(node.now.mono))),
        (2, 20 * SECOND)
    );
    assert_eq!((node.let_go("a", "k"), node.holds("a", "k")), (1, true));
    assert_eq!((node.let_go("a", "k"), node.holds("a", "k")), (1, false));
    assert_eq!(node.let_go("a", "k"), 0);
    assert_eq!(
        (node.table.locks(), node.table.next_deadline()),
        (0, None),
        "nothing is left"
    );
}

#[test]
fn every_reply_is_exact_to_the_microsecond_before_any_timer_runs() {
    let mut node = node();
    node.hold("a", "k");
    node.advance((10 * SECOND).minus(Micros(1)));
    assert_eq!(node.guards(&key("k"), &token("a")), Ok(true));
    assert_eq!(node.ask("b", "k", Mode::Exclusive, Wait::No), Verdict::Busy);
    node.advance(Micros(1));
    assert_eq!(node.guards(&key("k"), &token("a")), Ok(false));
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, None, None),
        Extended::NotHeld
    );
    assert_eq!(node.let_go("a", "k"), 0);
    assert!(matches!(
        node.ask("b", "k", Mode::Exclusive, Wait::No),
        Verdict::Granted(_)
    ));
}

#[test]
fn a_wish_for_a_fence_that_leads_too_far_is_refused_at_once_even_when_it_would_wait() {
    let mut node = node();
    let held = node.hold("a", "k");
    let wish = |owner: &str| Terms {
        fence: Some(node.now.wall.0 + 10_000_001),
        ..terms(&token(owner), SECOND)
    };
    let (greedy, holder) = (wish("b"), wish("a"));
    let refused = Verdict::Denied(Denial::Fence(FenceError::TooFarAhead));
    for wait in [Wait::No, Wait::Forever] {
        assert_eq!(node.acquire(&[key("k")], &greedy, wait), refused);
        assert_eq!(node.acquire(&[key("free")], &greedy, wait), refused);
    }
    assert_eq!(
        (node.table.waiters(), node.table.locks(), node.table.fence()),
        (0, 1, held[0])
    );
    let again = node.acquire(&[key("k")], &holder, Wait::No);
    assert_eq!(
        again,
        Verdict::Granted(Granted::One(held[0])),
        "a re-entry ignores the wish"
    );
}

#[test]
fn an_extension_raises_the_fence_of_the_hold_and_of_the_node() {
    let mut node = node();
    let fence = node.hold("a", "k")[0];
    let extend =
        |node: &mut Node, at_least| node.extend(&key("k"), &token("a"), SECOND, at_least, None);
    assert_eq!(extend(&mut node, Some(fence - 1)), Extended::To(fence));
    assert_eq!(
        extend(&mut node, Some(fence + 50)),
        Extended::To(fence + 50)
    );
    let refused = Extended::Denied(Denial::Fence(FenceError::TooFarAhead));
    let too_far = Some(node.now.wall.0 + 10_000_001);
    assert_eq!(extend(&mut node, too_far), refused);
    assert_eq!(
        node.extend(&key("k"), &token("b"), SECOND, Some(fence + 90), None),
        Extended::NotHeld
    );
    assert_eq!(node.hold("b", "l"), [fence + 51]);
}

#[test]
fn the_time_left_under_a_cap_counts_from_the_grant() {
    let mut node = node();
    let capped = |ttl| Terms {
        max_hold: Some(Millis(5000)),
        ..terms(&token("a"), ttl)
    };
    let over = |left| Verdict::Denied(Denial::OverCap(OverCap { left }));
    assert_eq!(
        node.acquire(&[key("k")], &capped(6 * SECOND), Wait::No),
        over(5 * SECOND)
    );
    node.acquire(&[key("k")], &capped(4 * SECOND), Wait::No);
    node.advance(2 * SECOND);
    assert_eq!(
        node.acquire(&[key("k")], &capped(6 * SECOND), Wait::No),
        over(3 * SECOND)
    );
    assert_eq!(
        node.acquire(&[key("k")], &terms(&token("a"), 4 * SECOND), Wait::No),
        over(3 * SECOND)
    );
    let extended = node.extend(&key("k"), &token("a"), 4 * SECOND, None, None);
    assert_eq!(
        extended,
        Extended::Denied(Denial::OverCap(OverCap { left: 3 * SECOND }))
    );
    assert_eq!(node.take().0.len(), 1, "refusals change nothing");
}

#[test]
fn a_cap_that_was_lowered_meanwhile_holds_at_the_grant_too() {
    let mut node = node();
    node.hold("a", "k");
    node.wait("b", "k");
    node.table.limits.max_hold = Some(Millis(1000));
    node.let_go("a", "k");
    let (_, answers) = node.take();
    let denial = Denial::OverCap(OverCap { left: SECOND });
    assert_eq!(answers[0].1, Answer::Denied(denial));
    assert!(!node.holds("b", "k"));
}

#[test]
fn a_lease_that_ended_is_not_forced() {
    let mut node = node();
    node.hold("a", "k");
    node.advance(10 * SECOND);
    assert_eq!(node.force(&key("k")), 0);
    let (changes, _) = node.take();
    let events = changes
        .last()
        .map(|change| (change.presence, change.events));
    assert_eq!(
        events,
        Some((
            Presence::Gone,
            Events {
                expired: 1,
                ..Events::default()
            }
        ))
    );
    node.hold("a", "k");
    assert_eq!((node.force(&key("k")), node.force(&key("k"))), (1, 0));
}

#[test]
fn everything_is_counted_once() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("a", "k");
    node.wait("b", "k");
    node.ask("c", "k", Mode::Exclusive, Wait::No);
    node.extend(&key("k"), &token("a"), SECOND, None, None);
    node.advance(SECOND);
    node.release(&key("k"), &token("a"), true);
    node.force(&key("k"));
    node.hold("c", "k");
    node.advance(10 * SECOND);
    node.let_go("c", "k");
    node.hold("a", "k");
    node.hold("b", "l");
    node.wait("a", "l");
    node.ask("b", "k", Mode::Exclusive, Wait::Forever);
    let counted = node.table.counters;
    assert_eq!(
        (counted.grants, counted.reentries, counted.denials),
        (5, 1, 1)
    );
    assert_eq!(
        (counted.releases, counted.extends, counted.forced),
        (1, 1, 1)
    );
    assert_eq!(
        (counted.expiries, counted.deadlocks, counted.quarantined),
        (1, 1, 0)
    );
    assert_eq!(
        (node.table.wait_times.total(), node.table.hold_times.total()),
        (1, 3)
    );
    assert!(node.table.wait_times.percentile(500) >= SECOND);
}

#[test]
fn limits_refuse_and_change_nothing() {
    let mut node = Node::new(Limits {
        max_hold: None,
        max_waiters: 1,
        max_holders: 2,
    });
    node.hold("a", "k");
    node.wait("b", "k");
    assert_eq!(
        node.ask("c", "k", Mode::Exclusive, Wait::Forever),
        Verdict::Denied(Denial::TooManyWaiters)
    );
    for owner in ["a", "b"] {
        assert!(matches!(
            node.ask(owner, "s", SHARED, Wait::No),
            Verdict::Granted(_)
        ));
    }
    let refused = Denial::Refused(redislock_core::lock::Refusal::TooManyHolders);
    assert_eq!(
        node.ask("c", "s", SHARED, Wait::Forever),
        Verdict::Denied(refused)
    );
    assert_eq!((node.table.waiters(), node.table.locks()), (1, 2));
}
