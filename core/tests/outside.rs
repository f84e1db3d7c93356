//! What others do: keys that go, move and are written over, flushes, quarantine.

use redislock_core::lock::Mode;
use redislock_core::quarantine::Reason;
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Denial, Extended, Verdict};
use redislock_core::time::{Micros, Millis, MonoTime, Wait, WallTime};
use redislock_core::token::Key;

use crate::node::{Node, ROOMY, SECOND, Value, ephemeral, key, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

#[test]
fn quarantine_refuses_grants_and_allows_releases() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.table.quarantine.configure(Some(Millis(1000)));
    node.table
        .quarantine
        .enter(Reason::Promotion, node.now.mono);
    let denial = Denial::Quarantined(Micros(1_020_000), Reason::Promotion);
    assert_eq!(
        node.ask("c", "l", Mode::Exclusive, Wait::Forever),
        Verdict::Denied(denial)
    );
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, None, None),
        Extended::Denied(denial)
    );
    assert_eq!(node.guards(&key("k"), &token("a")), Err(denial));
    assert_eq!(node.let_go("a", "k"), 1);
    node.advance(Micros(1_019_999));
    node.tick();
    assert_eq!(node.granted(), []);
    assert_eq!(
        node.table.next_deadline(),
        Some(MonoTime(node.now.mono.0 + 1))
    );
    node.advance(Micros(1));
    node.tick();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn a_waiter_that_is_held_back_is_granted_later_and_passed_by_nobody() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.table.holds_back = true;
    node.let_go("a", "k");
    assert_eq!(node.granted(), []);
    assert_eq!(node.ask("c", "k", Mode::Exclusive, Wait::No), Verdict::Busy);
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
    assert_eq!(answers[0].1, Answer::Denied(Denial::WrongType));
}

#[test]
fn a_lock_that_moves_takes_its_holder_and_its_lease_along() {
    let mut node = node();
    let fence = node.hold("a", "k")[0];
    node.rename(&key("k"), &key("l"));
    assert_eq!(
        node.extend(&key("k"), &token("a"), SECOND, None, None),
        Extended::NotHeld
    );
    assert_eq!(
        node.extend(&key("l"), &token("a"), SECOND, None, None),
        Extended::To(fence)
    );
    node.swap(0, 7);
    let moved = key("l").in_db(7);
    assert_eq!(
        node.extend(&moved, &token("a"), SECOND, None, None),
        Extended::To(fence)
    );
    node.advance((10 * SECOND).plus(Micros(1024)));
    node.tick();
    assert_eq!(
        (node.table.locks(), node.keys.0.len()),
        (0, 0),
        "it is found where it went"
    );
}

#[test]
fn a_flushed_value_that_is_freed_late_leaves_the_lock_in_its_place_alone() {
    let mut node = node();
    node.hold("a", "k");
    node.flush(None);
    node.hold("b", "l");
    node.free();
    assert!(node.holds("b", "l"));
    node.advance((10 * SECOND).plus(Micros(1024)));
    node.tick();
    assert_eq!(node.table.locks(), 0, "its deadline is still known");
}

#[test]
fn a_value_that_lost_its_key_and_is_freed_late_is_left_alone() {
    let mut node = node();
    let terms = ephemeral(&token("a"), 10 * SECOND, 1);
    node.acquire(&[key("k")], &terms, Wait::No);
    node.remove_lazily(&key("k"));
    node.take();
    node.hang_up(1, SECOND);
    assert!(node.take().0.is_empty(), "there is no key to change");
    assert_eq!(node.flush(None), Micros(0));
    node.hold("b", "k");
    let waiter = node.wait("c", "k");
    node.swap(0, 1);
    node.serve();
    assert_eq!(node.granted(), [waiter]);
    node.free();
    assert_eq!(node.table.locks(), 2);
}

#[test]
fn flushing_never_resets_the_fence() {
    let mut node = node();
    let fence = node.hold("a", "k")[0];
    node.now.wall = WallTime(0);
    node.flush(None);
    assert_eq!(node.hold("a", "k"), [fence + 1]);
    node.reload(Micros(0));
    node.remove(&key("k"));
    assert_eq!(node.hold("a", "k"), [fence + 2]);
}

/// Another module may flush or swap databases in the middle of a decision.
#[test]
fn what_a_decision_grants_while_databases_are_flushed_or_swapped_comes_afterwards() {
    let both = [key("a"), key("b")];
    for moved in ["flush", "swap"] {
        let mut node = Node::new(ROOMY);
        node.hold("x", "a");
        let waiter = terms(&token("y"), 100 * SECOND);
        node.acquire(&both, &waiter, Wait::Forever);
        node.take();
        // `a` is handed over in place, `b` is new.
        node.decide_release(&key("a"), &token("x"), false);
        let left = match moved {
            "flush" => node.flush(None),
            _ => {
                node.swap(0, 1);
                100 * SECOND
            }
        };
        assert_eq!(left, 100 * SECOND, "what the new holder of `a` has to go");
        node.apply();
        assert!(node.holds("y", "b"), "{moved}");
        assert!(!node.holds("y", "a"), "{moved}");
        assert_eq!(node.table.locks(), if moved == "flush" { 1 } else { 2 });
    }
}

/// The queue that is swept last still named the lock that had moved to the other queue.
#[test]
fn a_waiter_that_leaves_in_the_middle_of_a_swap_does_not_take_the_other_queue_along() {
    let mut node = Node::new(ROOMY);
    let [in_first, in_second] = [0, 1].map(|db| Key::new(db, b"k"));
    let wants = |owner: &str| terms(&token(owner), 100 * SECOND);
    node.acquire(std::slice::from_ref(&in_first), &wants("a"), Wait::No);
    node.acquire(std::slice::from_ref(&in_second), &wants("b"), Wait::No);
    let waits = |node: &mut Node, key: &Key, owner: &str| {
        let verdict = node.acquire(std::slice::from_ref(key), &wants(owner), Wait::Forever);
        let Verdict::Waits(id) = verdict else {
            panic!("{verdict:?}");
        };
        id
    };
    let stays = waits(&mut node, &in_second, "c");
    let leaves = waits(&mut node, &in_first, "d");
    node.swap(0, 1);
    node.table.sweep(1, &mut node.keys);
    node.table.abandon(leaves);
    node.serve();
    node.take();
    assert_eq!(node.release(&in_second, &token("a"), true), 1);
    assert_eq!(node.granted(), [stays]);
}

/// What an owner is asked for, or holds: a key of one of two databases.
fn at(db: u32, name: &str) -> Key {
    Key::new(db, name.as_bytes())
}

fn acquire(node: &mut Node, owner: &str, keys: &[Key], wait: Wait) -> Verdict {
    node.acquire(keys, &terms(&token(owner), 10 * SECOND), wait)
}

#[track_caller]
fn waits(node: &mut Node, owner: &str, keys: &[Key]) -> WaiterId {
    match acquire(node, owner, keys, Wait::Forever) {
        Verdict::Waits(id) => id,
        other => panic!("{owner} should wait: {other:?}"),
    }
}

/// `o` holds a and b, for which others wait, who are ahead of it in the queue of c.
fn owner_that_may_overtake(db: u32) -> Node {
    let mut node = node();
    acquire(&mut node, "o", &[at(db, "a"), at(db, "b")], Wait::No);
    acquire(&mut node, "z", &[at(0, "x"), at(1, "x")], Wait::No);
    waits(&mut node, "w", &[at(0, "a"), at(0, "x")]);
    waits(&mut node, "w", &[at(0, "b"), at(0, "c"), at(0, "x")]);
    node
}

/// While databases are swapped, not every lock is known that is waited for now.
#[test]
fn nobody_is_refused_because_a_swap_of_databases_is_seen_in_parts() {
    let mut node = owner_that_may_overtake(1);
    acquire(&mut node, "z", &[at(0, "c")], Wait::No);
    let o = waits(&mut node, "o", &[at(0, "c")]);
    node.swap(0, 1);
    // Of the locks of o, one is seen: w depends on o there. The other one gives it the right to
    // overtake w.
    node.table.sweep(1, &mut node.keys);
    node.table.serve(node.now, &mut node.keys);
    node.apply();
    assert_eq!(node.granted(), []);
    assert_eq!(node.serve_all(), [o]);
}

#[test]
fn a_deadlock_that_begins_while_databases_are_swapped_is_found() {
    let mut node = owner_that_may_overtake(1);
    acquire(&mut node, "y", &[at(1, "y")], Wait::No);
    node.swap(0, 1);
    node.table.sweep(1, &mut node.keys);
    waits(&mut node, "o", &[at(0, "y")]);
    let last = waits(&mut node, "y", &[at(0, "b")]);
    node.serve();
    let deadlock = Answer::Denied(Denial::Deadlock);
    assert_eq!(node.take().1, [(last, deadlock)]);
}
