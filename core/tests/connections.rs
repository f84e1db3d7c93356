//! Connections: answers that do not arrive, holds that end with the connection that used them last.

use redislock_core::lock::Terms;
use redislock_core::table::Extended;
use redislock_core::time::{Micros, Wait};

use crate::node::{Node, ROOMY, SECOND, ephemeral, key, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
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
        node.acquire(&[key("k")], &once, Wait::No);
    };
    let extended: Tell = |node| {
        assert!(matches!(
            node.extend(&key("k"), &token("b"), SECOND, None, None),
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
    let first = ephemeral(&token("a"), 10 * SECOND, 1);
    node.acquire(&[key("k")], &first, Wait::No);
    node.extend(&key("k"), &token("a"), SECOND, None, Some(2));
    node.hang_up(1, Micros(0));
    assert!(node.holds("a", "k") && node.table.is_bound(2) && !node.table.is_bound(1));
    node.acquire(
        &[key("k")],
        &Terms {
            connection: Some(3),
            ..terms(&token("a"), SECOND)
        },
        Wait::No,
    );
    node.hang_up(2, Micros(0));
    assert!(node.holds("a", "k"));
    let waiter = node.wait("b", "k");
    node.hang_up(3, 2 * SECOND);
    node.advance((2 * SECOND).minus(Micros(1)));
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
    let terms = ephemeral(&token("a"), 10 * SECOND, 1);
    node.acquire(&[key("k")], &terms, Wait::No);
    node.reload(3 * SECOND);
    node.hang_up(1, Micros(0));
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
    let of = |owner: &str| ephemeral(&token(owner), 10 * SECOND, 1);
    node.acquire(&[key("b")], &of("y"), Wait::No);
    node.acquire(&[key("a")], &of("x"), Wait::No);
    node.wait("x", "ab");
    node.hang_up(1, Micros(0));
    let count = node
        .lock(&key("a"))
        .and_then(|lock| lock.hold(&token("x")))
        .map(|hold| hold.count());
    assert_eq!(count, Some(1), "granted again, not re-entered");
}

/// A lock of `a` that was granted before the node was a replica for a while.
fn hold_of_an_earlier_role() -> Node {
    let mut node = node();
    let terms = ephemeral(&token("a"), SECOND, 1);
    node.acquire(&[key("k")], &terms, Wait::No);
    node.table.role_changed();
    node.table.role_changed();
    node
}

#[test]
fn a_hold_of_an_earlier_role_does_not_end_with_its_connection() {
    let mut node = hold_of_an_earlier_role();
    node.acquire(&[key("l")], &ephemeral(&token("b"), SECOND, 1), Wait::No);
    node.hang_up(1, Micros::ZERO);
    // Before anything is done in the background, a request looks at the connection of the holder.
    node.acquire(&[key("k")], &terms(&token("c"), SECOND), Wait::No);
    assert!(node.holds("a", "k"), "an ordinary lease");
    node.tick();
    assert!(node.holds("a", "k") && !node.holds("b", "l"));
}

#[test]
fn an_extension_does_not_tie_a_hold_of_an_earlier_role_again() {
    let mut node = hold_of_an_earlier_role();
    node.extend(&key("k"), &token("a"), SECOND, None, Some(2));
    node.hang_up(2, Micros::ZERO);
    node.tick();
    assert!(node.holds("a", "k"), "an ordinary lease");
}
