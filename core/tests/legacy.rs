//! Strings of old clients at the keys of locks.

use redislock_core::lock::Mode;
use redislock_core::table::{Answer, Denial, Extended, Verdict};
use redislock_core::time::{Micros, Wait};

use crate::node::{Node, ROOMY, SECOND, SHARED, Value, key, token};

/// A node with a string at `k`.
fn node(ttl: Option<Micros>) -> Node {
    let mut node = Node::new(ROOMY);
    node.set_string(&key("k"), ttl);
    node
}

#[test]
fn a_string_is_a_lock_that_nobody_here_holds() {
    let mut node = node(None);
    for mode in [Mode::Exclusive, SHARED] {
        assert_eq!(node.ask("a", "k", mode, Wait::No), Verdict::Busy);
        assert_eq!(node.ask("a", "jk", mode, Wait::No), Verdict::Busy);
    }
    assert_eq!(node.let_go("a", "k"), 0);
    assert_eq!(node.force(&key("k")), 0);
    assert_eq!(node.guards(&key("k"), &token("a")), Ok(false));
    let extended = node.extend(&key("k"), &token("a"), SECOND, None, None);
    assert_eq!(extended, Extended::NotHeld);
    assert_eq!(node.table.locks(), 0, "nothing was taken in part");
    assert_eq!(node.keys.0[&key("k")], Value::String(None));
}

#[test]
fn those_who_wait_for_a_string_are_granted_in_order() {
    let mut node = node(None);
    let before = node.hold("a", "j")[0];
    let (first, second) = (node.wait("b", "k"), node.wait("c", "k"));
    node.tick();
    assert_eq!(node.granted(), []);
    node.remove(&key("k"));
    assert_eq!(node.ask("d", "k", Mode::Exclusive, Wait::No), Verdict::Busy);
    node.serve();
    assert_eq!(node.granted(), [first]);
    assert!(node.table.fence() > before);
    node.let_go("b", "k");
    assert_eq!(node.granted(), [second]);
}

#[test]
fn nobody_goes_past_a_waiter_when_a_string_vanishes_unnoticed() {
    let mut node = node(None);
    let waiter = node.wait("b", "k");
    node.keys.0.remove(&key("k"));
    assert_eq!(node.ask("c", "k", Mode::Exclusive, Wait::No), Verdict::Busy);
    node.advance(SECOND);
    node.tick();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn the_end_of_a_string_is_a_deadline() {
    let mut node = node(Some(SECOND / 2));
    let waiter = node.wait("b", "k");
    let end = node.now.mono.plus(SECOND / 2);
    assert_eq!(node.table.next_deadline(), Some(end));
    node.advance((SECOND / 2).minus(Micros(1)));
    node.tick();
    assert_eq!(node.granted(), []);
    node.advance(Micros(1));
    node.tick();
    assert_eq!(node.granted(), [waiter]);
    assert_eq!(node.table.next_look(), None);
}

#[test]
fn a_string_whose_time_grows_is_waited_for_on() {
    let mut node = node(Some(SECOND / 2));
    let waiter = node.wait("b", "k");
    let end = node.now.mono.plus(3 * SECOND);
    node.keys.0.insert(key("k"), Value::String(Some(end)));
    for _ in 0..2 {
        node.advance(SECOND);
        node.tick();
        assert_eq!(node.granted(), []);
    }
    node.advance(SECOND);
    node.tick();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn a_key_counts_as_taken_until_it_may_be_looked_at() {
    let mut node = node(None);
    node.hold("a", "j");
    let waiter = node.wait("b", "jk");
    // Moved to another node of a cluster, perhaps: the caller has not asked yet.
    node.keys.0.remove(&key("k"));
    node.let_go("a", "j");
    node.serve();
    assert_eq!(node.granted(), []);
    node.table.string_may_be_gone(&key("k"));
    node.serve();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn a_string_that_another_type_replaces_refuses_those_who_wait() {
    let mut node = node(None);
    node.wait("b", "k");
    node.remove(&key("k"));
    node.keys.0.insert(key("k"), Value::Other);
    node.serve();
    let (_, answers) = node.take();
    assert_eq!(answers[0].1, Answer::Denied(Denial::WrongType));
}

#[test]
fn a_string_that_replaces_a_lock_is_waited_for() {
    let mut node = Node::new(ROOMY);
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.remove(&key("k"));
    node.set_string(&key("k"), None);
    node.serve();
    assert_eq!(node.granted(), []);
    node.remove(&key("k"));
    node.serve();
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn a_lock_that_replaces_a_string_is_waited_for() {
    let mut node = node(None);
    node.hold("a", "j");
    let waiter = node.wait("b", "k");
    node.rename(&key("j"), &key("k"));
    node.serve();
    assert_eq!(node.granted(), []);
    node.let_go("a", "k");
    assert_eq!(node.granted(), [waiter]);
}

#[test]
fn a_flush_or_a_swap_takes_strings_along() {
    type Remove = fn(&mut Node);
    let removals: [Remove; 2] = [
        |node| assert_eq!(node.flush(Some(0)), Micros(0)),
        |node| node.swap(0, 1),
    ];
    for remove in removals {
        let mut node = node(None);
        let waiter = node.wait("b", "k");
        remove(&mut node);
        node.serve();
        assert_eq!(node.granted(), [waiter]);
    }
}

#[test]
fn a_new_role_forgets_strings() {
    let mut node = node(None);
    node.wait("b", "k");
    node.table.role_changed();
    assert_eq!(node.table.next_look(), None);
    node.apply();
    assert_eq!(node.take().1[0].1, Answer::Unblocked);
}
