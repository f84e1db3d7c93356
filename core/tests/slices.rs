//! What belongs to very many locks or holders is done in slices, and seen by everybody at once.

use redislock_core::lock::Terms;
use redislock_core::table::{Events, Presence, Verdict};
use redislock_core::time::{Micros, Wait};
use redislock_core::token::Key;
use redislock_core::wire::put_whole;

use crate::node::{Change, Node, ROOMY, SECOND, SHARED, ephemeral, key, numbered, terms, token};

const MANY: usize = 5000;

/// Many owners share a lock for a second.
fn many_holders(node: &mut Node) {
    holders(node, MANY);
}

fn holders(node: &mut Node, many: usize) {
    for n in 0..many {
        let terms = Terms {
            mode: SHARED,
            ..terms(&token(&format!("owner-{n}")), SECOND)
        };
        let verdict = node.acquire(&[key("k")], &terms, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }
    node.take();
}

#[test]
fn a_lock_whose_many_holders_have_all_ended_is_free_at_once() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    node.advance(SECOND);
    node.hold("a", "k");
    let (changes, _) = node.take();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].bytes.len() < 100, "the holders are not written");
    assert_eq!(node.table.counters.expiries, MANY as u64);
    let mut reported = 0;
    while node.table.has_remains() {
        node.table.clear_remains(100);
        let output = node.table.take_output(node.now, true, Box::default());
        reported += output
            .ended_before
            .iter()
            .map(|(_, times)| times)
            .sum::<u32>();
        assert!(output.touched.is_empty());
    }
    assert_eq!(reported, MANY as u32);
    assert_eq!(node.table.holding_owners(), 0);
    assert!(node.holds("a", "k"));
}

/// The work on freed locks is counted in holds: a slice may forget many locks, or few with many
/// holders. Of very many holders, only the lock itself is forgotten now.
#[test]
fn forgetting_a_lock_is_as_much_work_as_it_has_holders() {
    for (many, work) in [(1, 1), (20, 20), (MANY, 1)] {
        let mut node = Node::new(ROOMY);
        holders(&mut node, many);
        let id = node.at(&key("k")).expect("a lock");
        node.remove_lazily(&key("k"));
        assert_eq!(node.table.forget(id), work, "{many} holders");
        assert_eq!(node.table.forget(id), 1, "it is gone");
    }
}

#[test]
fn of_many_ended_holders_some_are_taken_off_and_the_requesters_own_is_among_them() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    let live = Terms {
        mode: SHARED,
        ..terms(&token("live"), 10 * SECOND)
    };
    node.acquire(&[key("k")], &live, Wait::No);
    node.advance(SECOND);
    node.take();
    let own = token(&format!("owner-{}", MANY - 1));
    assert_eq!(node.release(&key("k"), &own, true), 0, "it has ended");
    let (changes, _) = node.take();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].events.expired < 100, "{:?}", changes[0].events);
    assert!(
        changes[0].bytes.len() < 5000,
        "only what has changed is written"
    );
    assert!(
        node.lock(&key("k"))
            .is_some_and(|lock| lock.hold(&own).is_none())
    );
}

#[test]
fn a_semaphore_that_was_full_of_holds_that_have_ended_has_room() {
    let mut node = Node::new(ROOMY);
    let semaphore = crate::node::semaphore(MANY as u32);
    for n in 0..MANY {
        let ttl = if n == 0 { 10 * SECOND } else { SECOND };
        let terms = Terms {
            mode: semaphore,
            ..terms(&token(&format!("owner-{n}")), ttl)
        };
        node.acquire(&[key("k")], &terms, Wait::No);
    }
    assert_eq!(node.ask("a", "k", semaphore, Wait::No), Verdict::Busy);
    node.advance(SECOND);
    for owner in ["a", "b", "c"] {
        let verdict = node.ask(owner, "k", semaphore, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }
}

#[test]
fn the_holds_of_a_closed_connection_end_at_once_and_are_taken_off_in_slices() {
    let mut node = Node::new(ROOMY);
    let bound = ephemeral(&token("me"), 100 * SECOND, 7);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &bound, Wait::No);
    }
    let terms_of = |owner: &str| terms(&token(owner), SECOND);
    let both = [numbered(MANY - 1), numbered(0)];
    let waiting = node.acquire(&both, &terms_of("waiter"), Wait::Forever);
    assert!(matches!(waiting, Verdict::Waits(_)));
    node.take();
    node.hang_up(7, Micros(0));
    assert!(!node.table.has_output(), "nothing is touched yet");
    let seen = node.at(&numbered(9)).and_then(|id| node.table.as_seen(id));
    let now = node.table.lease_now(node.now.mono);
    assert!(seen.is_some_and(|lock| lock.last_end().is_some_and(|end| end <= now)));
    let verdict = node.acquire(&[numbered(MANY - 2)], &terms_of("other"), Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    node.table.close(10, node.now, &mut node.keys);
    node.apply();
    let (changes, answers) = node.take();
    assert!(changes.len() < 20, "{} changes", changes.len());
    assert_eq!(
        answers.len(),
        1,
        "the one who waited for two of them has both"
    );
    node.tick();
    assert_eq!(node.table.locks(), 3);
}

#[test]
fn a_flush_and_a_swap_look_at_no_lock_and_at_waiters_in_slices() {
    let mut node = Node::new(ROOMY);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &terms(&token("me"), SECOND), Wait::No);
    }
    for n in 0..100 {
        let owner = terms(&token(&format!("waiter-{n}")), SECOND);
        node.acquire(&[numbered(n)], &owner, Wait::Forever);
    }
    node.take();
    node.swap(0, 1);
    node.table.sweep(10, &mut node.keys);
    assert!(node.table.is_sweeping(), "a slice is not all");
    assert_eq!(node.table.locks(), MANY);
    assert_eq!(
        node.serve_all().len(),
        100,
        "their keys are free in this database"
    );
    assert_eq!(node.flush(Some(1)), SECOND, "what the last lease had to go");
    assert_eq!(node.table.locks(), 100);
    let verdict = node.acquire(
        &[Key::new(1, b"key-7")],
        &terms(&token("other"), SECOND),
        Wait::No,
    );
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    node.free();
    assert_eq!(node.table.locks(), 101);
    assert_eq!(node.flush(None), SECOND);
    assert_eq!(node.flush(None), Micros(0), "nothing is left");
}

/// Forgets what is left of holds, a few at a time; how often that took.
fn forget(node: &mut Node) -> usize {
    let mut slices = 0;
    while node.table.has_remains() {
        node.table.clear_remains(100);
        slices += 1;
    }
    assert!(!node.table.has_output());
    slices
}

#[test]
fn a_change_of_roles_unties_every_hold_at_once_and_forgets_the_ties_in_slices() {
    let mut node = Node::new(ROOMY);
    let holds = |node: &Node, key: &Key| {
        let lock = node.lock(key);
        lock.is_some_and(|lock| lock.hold(&token("me")).is_some())
    };
    let by = |connection| ephemeral(&token("me"), 100 * SECOND, connection);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &by(7 + n as u64 % 3), Wait::No);
    }
    node.take();
    // Some of them are about to end; they become ordinary leases, too.
    node.hang_up(7, Micros(0));
    node.table.role_changed();
    assert!(!node.table.is_bound(8) && !node.table.is_closing());
    assert!(forget(&mut node) > MANY / 200);
    // The same connection may tie others, and does not end the earlier ones.
    node.acquire(&[key("k")], &by(8), Wait::No);
    node.acquire(&[numbered(4)], &terms(&token("me"), SECOND), Wait::No);
    node.hang_up(8, Micros(0));
    node.tick();
    assert!(holds(&node, &numbered(1)) && holds(&node, &numbered(4)));
    assert!(!holds(&node, &key("k")));
    assert_eq!(node.table.locks(), MANY);
}

#[test]
fn many_holders_whose_lock_is_forced_or_replaced_are_forgotten_in_slices() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    assert_eq!(node.force(&key("k")), MANY as u64);
    node.take();
    assert_eq!(node.table.locks(), 0);
    assert!(forget(&mut node) > MANY / 200);
    assert_eq!(node.table.hold_times.total(), MANY as u64);
    assert_eq!(node.table.holding_owners(), 0);

    let mut replica = Node::new(ROOMY);
    many_holders(&mut node);
    replica.sync(&node);
    assert_eq!(replica.table.holding_owners(), MANY);
    // The whole lock, as it is written when very much of it has changed.
    let mut whole = Change {
        key: key("k"),
        presence: Presence::Kept,
        bytes: Vec::new(),
        events: Events::default(),
    };
    let (lock, now) = (node.lock(&whole.key), node.table.lease_now(node.now.mono));
    put_whole(lock.expect("a lock"), now, &mut whole.bytes);
    replica.replay(&whole);
    forget(&mut replica);
    assert_eq!(replica.table.holding_owners(), MANY, "they hold it again");
    node.force(&key("k"));
    let (changes, _) = node.take();
    replica.replay(&changes[0]);
    assert_eq!(replica.table.locks(), 0);
    assert!(forget(&mut replica) > MANY / 200);
    assert_eq!(replica.table.holding_owners(), 0);
}

/// What was remembered of the earlier hold stayed if its owner had the lock again, and was not
/// remembered for that.
#[test]
fn an_owner_that_has_the_lock_again_is_not_remembered_for_its_earlier_hold() {
    let mut node = Node::new(ROOMY);
    for connection in 1..4 {
        for n in 0..100 {
            let terms = Terms {
                mode: SHARED,
                ..ephemeral(&token(&format!("owner-{n}")), SECOND, connection)
            };
            node.acquire(&[key("k")], &terms, Wait::No);
        }
        node.advance(SECOND);
        node.hold("owner-7", "k");
        node.take();
        while node.table.has_remains() {
            node.table.clear_remains(100);
        }
        node.take();
        node.let_go("owner-7", "k");
        assert_eq!(node.table.holding_owners(), 0);
        assert!(!node.table.is_bound(connection));
    }
}

#[test]
fn waits_that_are_over_end_in_slices_of_keys() {
    let mut node = Node::new(ROOMY);
    let keys: Vec<_> = (0..100).map(numbered).collect();
    node.acquire(&keys, &terms(&token("me"), 100 * SECOND), Wait::No);
    let until = Wait::Until(node.now.mono.plus(SECOND));
    for n in 0..10 {
        node.acquire(&keys, &terms(&token(&format!("waiter-{n}")), SECOND), until);
    }
    node.advance(SECOND);
    assert!(node.table.time_out(32, node.now));
    assert_eq!(node.table.waiters(), 9, "one has left a hundred queues");
}

#[test]
fn a_lock_whose_holders_have_all_closed_is_free_at_once_however_many_they_are() {
    let mut node = Node::new(ROOMY);
    for n in 0..200 {
        let terms = Terms {
            mode: SHARED,
            ..ephemeral(&token(&format!("owner-{n}")), 100 * SECOND, n + 1)
        };
        node.acquire(&[key("k")], &terms, Wait::No);
    }
    (0..200).for_each(|n| node.hang_up(n + 1, Micros(0)));
    let verdict = node.acquire(&[key("k")], &terms(&token("me"), SECOND), Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
}

#[test]
fn a_lock_whose_key_was_removed_is_not_counted_before_it_is_forgotten() {
    let mut node = Node::new(ROOMY);
    node.hold("me", "ab");
    node.remove_lazily(&key("a"));
    assert_eq!(node.table.locks(), 1);
    node.free();
    assert_eq!(node.table.locks(), 1);
    assert_eq!(node.flush(None), 10 * SECOND);
    assert_eq!(node.table.locks(), 0);
}

#[test]
fn a_decision_may_change_more_locks_than_two_bytes_can_number() {
    let keys: Vec<_> = (0..66_000).map(numbered).collect();
    let mut node = Node::new(ROOMY);
    node.acquire(&keys, &terms(&token("a"), SECOND), Wait::No);
    node.take();
    node.advance(SECOND);
    // Each lock is touched when its lease is found to have ended, and again when it is granted.
    node.acquire(&keys, &terms(&token("b"), SECOND), Wait::No);
    let (changes, _) = node.take();
    assert!(changes.iter().map(|change| &change.key).eq(&keys));
    let both = Events {
        expired: 1,
        acquired: 1,
        ..Events::default()
    };
    assert!(changes.iter().all(|change| change.events == both));
}
