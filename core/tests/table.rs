//! One key at a time: holding, fences, caps, undelivered grants, ephemeral holds, quarantine, keys that others move.

use redislock_core::fence::FenceError;
use redislock_core::lock::{Mode, OverCap, Terms};
use redislock_core::quarantine::Reason;
use redislock_core::table::{Denial, Events, Extended, Granted, Limits, Presence, Verdict};
use redislock_core::time::Instant;

use crate::node::{FOR_EVER, Node, ROOMY, SECOND, SHARED, Value, key, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

#[test]
fn a_re_entry_counts_keeps_its_fence_and_never_shortens_the_lease() {
    let mut node = node();
    let first = node.hold("a", "k");
    let short = terms(&token("a"), SECOND);
    let again = node.acquire(&[key("k")], &short, None);
    assert_eq!(again, Verdict::Granted(Granted::One(first[0])));
    let once = Terms {
        once: true,
        ..terms(&token("a"), 20 * SECOND)
    };
    node.acquire(&[key("k")], &once, None);
    let hold = node
        .lock(&key("k"))
        .and_then(|lock| lock.hold(&token("a")))
        .expect("held");
    assert_eq!((hold.count, hold.left(node.now.mono)), (2, 20 * SECOND));
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
    node.advance(10 * SECOND - 1);
    assert_eq!(node.guards(&key("k"), &token("a")), Ok(true));
    assert_eq!(node.ask("b", "k", Mode::Exclusive, None), Verdict::Busy);
    node.advance(1);
    assert_eq!(node.guards(&key("k"), &token("a")), Ok(false));
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, 0, 0),
        Extended::NotHeld
    );
    assert_eq!(node.let_go("a", "k"), 0);
    assert!(matches!(
        node.ask("b", "k", Mode::Exclusive, None),
        Verdict::Granted(_)
    ));
}

#[test]
fn a_wish_for_a_fence_that_leads_too_far_is_refused_at_once_even_when_it_would_wait() {
    let mut node = node();
    let held = node.hold("a", "k");
    let wish = |owner: &str| Terms {
        fence: node.now.wall + 10_000_001,
        ..terms(&token(owner), SECOND)
    };
    let (greedy, holder) = (wish("b"), wish("a"));
    let refused = Verdict::Denied(Denial::Fence(FenceError::TooFarAhead));
    for until in [None, FOR_EVER] {
        assert_eq!(node.acquire(&[key("k")], &greedy, until), refused);
        assert_eq!(node.acquire(&[key("free")], &greedy, until), refused);
    }
    assert_eq!(
        (node.table.waiters(), node.table.locks(), node.table.fence()),
        (0, 1, held[0])
    );
    let again = node.acquire(&[key("k")], &holder, None);
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
        |node: &mut Node, at_least| node.extend(&key("k"), &token("a"), SECOND, at_least, 0);
    assert_eq!(extend(&mut node, fence - 1), Extended::To(fence));
    assert_eq!(extend(&mut node, fence + 50), Extended::To(fence + 50));
    let refused = Extended::Denied(Denial::Fence(FenceError::TooFarAhead));
    let too_far = node.now.wall + 10_000_001;
    assert_eq!(extend(&mut node, too_far), refused);
    assert_eq!(
        node.extend(&key("k"), &token("b"), SECOND, fence + 90, 0),
        Extended::NotHeld
    );
    assert_eq!(node.hold("b", "l"), [fence + 51]);
}

#[test]
fn the_time_left_under_a_cap_counts_from_the_grant() {
    let mut node = node();
    let capped = |ttl| Terms {
        max_hold: 5000,
        ..terms(&token("a"), ttl)
    };
    let over = |left| Verdict::Denied(Denial::OverCap(OverCap { left }));
    assert_eq!(
        node.acquire(&[key("k")], &capped(6 * SECOND), None),
        over(5 * SECOND)
    );
    node.acquire(&[key("k")], &capped(4 * SECOND), None);
    node.advance(2 * SECOND);
    assert_eq!(
        node.acquire(&[key("k")], &capped(6 * SECOND), None),
        over(3 * SECOND)
    );
    assert_eq!(
        node.acquire(&[key("k")], &terms(&token("a"), 4 * SECOND), None),
        over(3 * SECOND)
    );
    let extended = node.extend(&key("k"), &token("a"), 4 * SECOND, 0, 0);
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
    node.table.limits.max_hold = 1000;
    node.let_go("a", "k");
    let (_, answers) = node.take();
    let denial = Denial::OverCap(OverCap { left: SECOND });
    assert_eq!(answers[0].1, redislock_core::table::Answer::Denied(denial));
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
    node.ask("c", "k", Mode::Exclusive, None);
    node.extend(&key("k"), &token("a"), SECOND, 0, 0);
    node.advance(SECOND);
    node.release(&key("k"), &token("a"), true);
    node.force(&key("k"));
    node.hold("c", "k");
    node.advance(10 * SECOND);
    node.let_go("c", "k");
    node.hold("a", "k");
    node.hold("b", "l");
    node.wait("a", "l");
    node.ask("b", "k", Mode::Exclusive, FOR_EVER);
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
        max_hold: 0,
        max_waiters: 1,
        max_holders: 2,
    });
    node.hold("a", "k");
    node.wait("b", "k");
    assert_eq!(
        node.ask("c", "k", Mode::Exclusive, FOR_EVER),
        Verdict::Denied(Denial::TooManyWaiters)
    );
    for owner in ["a", "b"] {
        assert!(matches!(
            node.ask(owner, "s", SHARED, None),
            Verdict::Granted(_)
        ));
    }
    let refused = Denial::Refused(redislock_core::lock::Refusal::TooManyHolders);
    assert_eq!(
        node.ask("c", "s", SHARED, FOR_EVER),
        Verdict::Denied(refused)
    );
    assert_eq!((node.table.waiters(), node.table.locks()), (1, 2));
}

#[test]
fn a_grant_that_could_not_be_delivered_is_taken_back_and_passed_on() {
    let mut node = node();
    node.hold("a", "k");
    let (second, third) = (node.wait("b", "k"), node.wait("c", "k"));
    node.let_go("a", "k");
    assert_eq!(node.granted(), [second]);
    node.undeliverable(second);
    assert_eq!(node.granted(), [third]);
    node.table.delivered(third);
    node.undeliverable(third);
    assert!(node.holds("c", "k"), "what was delivered stands");
}

#[test]
fn a_grant_stands_once_its_owner_was_told_that_it_holds() {
    type Tell = fn(&mut Node);
    let repeated: Tell = |node| {
        let once = Terms {
            once: true,
            ..terms(&token("b"), SECOND)
        };
        node.acquire(&[key("k")], &once, None);
    };
    let extended: Tell = |node| {
        assert!(matches!(
            node.extend(&key("k"), &token("b"), SECOND, 0, 0),
            Extended::To(_)
        ))
    };
    let guarded: Tell = |node| assert_eq!(node.guards(&key("k"), &token("b")), Ok(true));
    for tell in [repeated, extended, guarded] {
        let mut node = node();
        node.hold("a", "k");
        let waiter = node.wait("b", "k");
        node.let_go("a", "k");
        tell(&mut node);
        node.undeliverable(waiter);
        assert!(node.holds("b", "k"));
    }
}

#[test]
fn taking_a_grant_back_leaves_other_holds_of_the_owner_alone() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.let_go("a", "k");
    node.hold("b", "k");
    node.undeliverable(waiter);
    assert!(node.holds("b", "k"), "a re-entry was counted by itself");
    assert_eq!(node.let_go("b", "k"), 1);
    assert!(!node.holds("b", "k"));

    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.let_go("a", "k");
    node.let_go("b", "k");
    node.hold("b", "k");
    node.undeliverable(waiter);
    assert!(node.holds("b", "k"), "a later grant is another hold");
}

#[test]
fn an_ephemeral_hold_ends_with_the_connection_that_used_it_last() {
    let mut node = node();
    let ephemeral = |connection| Terms {
        ephemeral: true,
        connection,
        ..terms(&token("a"), 10 * SECOND)
    };
    node.acquire(&[key("k")], &ephemeral(1), None);
    node.extend(&key("k"), &token("a"), SECOND, 0, 2);
    node.hang_up(1, 0);
    assert!(node.holds("a", "k") && node.table.is_bound(2) && !node.table.is_bound(1));
    node.acquire(
        &[key("k")],
        &Terms {
            connection: 3,
            ..terms(&token("a"), SECOND)
        },
        None,
    );
    node.hang_up(2, 0);
    assert!(node.holds("a", "k"));
    let waiter = node.wait("b", "k");
    node.hang_up(3, 2 * SECOND);
    node.advance(2 * SECOND - 1);
    assert_eq!(
        node.guards(&key("k"), &token("a")),
        Ok(true),
        "within the grace"
    );
    node.advance(SECOND);
    node.tick();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn an_ephemeral_hold_is_an_ordinary_lease_after_a_reload() {
    let mut node = node();
    let ephemeral = Terms {
        ephemeral: true,
        connection: 1,
        ..terms(&token("a"), 10 * SECOND)
    };
    node.acquire(&[key("k")], &ephemeral, None);
    node.reload(3 * SECOND);
    node.hang_up(1, 0);
    assert!(node.holds("a", "k"));
    let left = node.lock(&key("k")).and_then(|lock| lock.last_end());
    assert_eq!(
        left.map(|end| end.since(node.table.lease_now(node.now.mono))),
        Some(10 * SECOND)
    );
}

#[test]
fn all_holds_of_a_connection_end_before_anybody_is_granted_one() {
    let mut node = node();
    let ephemeral = |owner: &str| Terms {
        ephemeral: true,
        connection: 1,
        ..terms(&token(owner), 10 * SECOND)
    };
    node.acquire(&[key("a")], &ephemeral("x"), None);
    node.acquire(&[key("b")], &ephemeral("y"), None);
    node.wait("x", "ab");
    node.hang_up(1, 0);
    let count = node
        .lock(&key("a"))
        .and_then(|lock| lock.hold(&token("x")))
        .map(|hold| hold.count);
    assert_eq!(count, Some(1), "granted anew, not re-entered");
}

#[test]
fn quarantine_grants_nothing_and_lets_go_of_everything() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.table.quarantine.configure(1000);
    node.table
        .quarantine
        .enter(Reason::Promotion, 0, node.now.mono);
    let denial = Denial::Quarantined(1_020_000, Reason::Promotion);
    assert_eq!(
        node.ask("c", "l", Mode::Exclusive, FOR_EVER),
        Verdict::Denied(denial)
    );
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, 0, 0),
        Extended::Denied(denial)
    );
    assert_eq!(node.guards(&key("k"), &token("a")), Err(denial));
    assert_eq!(node.let_go("a", "k"), 1);
    node.advance(1_019_999);
    node.tick();
    assert_eq!(node.granted(), []);
    assert_eq!(
        node.table.next_deadline(),
        Some(Instant(node.now.mono.0 + 1))
    );
    node.advance(1);
    node.tick();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn whoever_is_held_back_is_granted_later_and_passed_by_nobody() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.table.holds_back = true;
    node.let_go("a", "k");
    assert_eq!(node.granted(), []);
    assert_eq!(node.ask("c", "k", Mode::Exclusive, None), Verdict::Busy);
    node.table.holds_back = false;
    node.serve();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn removal_by_others_serves_those_who_wait() {
    type Remove = fn(&mut Node);
    let removals: [Remove; 4] = [
        |node| node.remove(&key("k")),
        |node| node.rename(&key("k"), &key("l")),
        |node| node.swap(0, 1),
        |node| assert_eq!(node.flush(None), 10 * SECOND),
    ];
    for remove in removals {
        let mut node = node();
        node.hold("a", "k");
        let waiter = node.wait("b", "k");
        remove(&mut node);
        node.serve();
        assert_eq!(node.granted(), [waiter]);
        assert!(node.holds("b", "k") && !node.holds("a", "k"));
    }
}

#[test]
fn overwriting_a_key_tells_its_waiters_that_its_type_is_wrong() {
    let mut node = node();
    node.hold("a", "k");
    node.wait("b", "k");
    node.remove(&key("k"));
    node.keys.0.insert(key("k"), Value::Other);
    node.serve();
    let (_, answers) = node.take();
    assert_eq!(
        answers[0].1,
        redislock_core::table::Answer::Denied(Denial::WrongType)
    );
}

#[test]
fn a_lock_that_moves_takes_its_holder_and_its_lease_along() {
    let mut node = node();
    let fence = node.hold("a", "k")[0];
    node.rename(&key("k"), &key("l"));
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, 0, 0),
        Extended::NotHeld
    );
    assert_eq!(
        node.extend(&key("l"), &token("a"), SECOND, 0, 0),
        Extended::To(fence)
    );
    node.swap(0, 7);
    let moved = key("l").in_db(7);
    assert_eq!(
        node.extend(&moved, &token("a"), SECOND, 0, 0),
        Extended::To(fence)
    );
    node.advance(10 * SECOND + 1024);
    node.tick();
    assert_eq!(
        (node.table.locks(), node.keys.0.len()),
        (0, 0),
        "it is found where it went"
    );
}

#[test]
fn flushing_never_resets_the_fence() {
    let mut node = node();
    let fence = node.hold("a", "k")[0];
    node.now.wall = 0;
    node.flush(None);
    assert_eq!(node.hold("a", "k"), [fence + 1]);
    node.reload(0);
    node.remove(&key("k"));
    assert_eq!(node.hold("a", "k"), [fence + 2]);
}
