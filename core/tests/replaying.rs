//! A replica replays what its master does with a semaphore of several hundred holders: one decision
//! ends at most 32 of them, discards all of them if every lease is over, and writes the whole lock
//! once more than 160 have changed.

use redislock_core::lock::Terms;
use redislock_core::table::Verdict;
use redislock_core::time::{Micros, Wait};
use redislock_core::token::Token;

use crate::node::{Node, ROOMY, SECOND, key, semaphore, terms, token};

const HOLDERS: usize = 300;

fn holder(n: usize) -> Token {
    token(&format!("holder-{n}"))
}

/// A master and its replica.
struct Pair {
    master: Node,
    replica: Node,
}

impl Pair {
    fn new() -> Self {
        let (master, replica) = (Node::new(ROOMY), Node::new(ROOMY));
        Self { master, replica }
    }

    /// A holder of the semaphore, which has room.
    fn grant(&mut self, n: usize, ttl: Micros) {
        let terms = Terms {
            mode: semaphore(HOLDERS as u32),
            ..terms(&holder(n), ttl)
        };
        let verdict = self.master.acquire(&[key("a")], &terms, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{n}: {verdict:?}");
        self.replay();
    }

    fn advance(&mut self, span: Micros) {
        self.master.advance(span);
        self.replica.now = self.master.now;
    }

    /// The replica gets what the master has done, and is equal to it. Returns whether each change
    /// has the whole lock.
    fn replay(&mut self) -> Vec<bool> {
        let (changes, _) = self.master.take();
        for change in &changes {
            self.replica.replay(change);
        }
        assert_eq!(self.replica.dump(&key("a")), self.master.dump(&key("a")));
        assert_eq!(self.holders(&self.replica), self.holders(&self.master));
        let is_whole = |bytes: &[u8]| bytes[0] & 2 != 0;
        changes
            .iter()
            .map(|change| is_whole(&change.bytes))
            .collect()
    }

    fn holders(&self, node: &Node) -> usize {
        node.lock(&key("a")).map_or(0, |lock| lock.holders())
    }
}

/// Half of the leases end. Requests of others take off 32 each, then the timer ends the rest.
#[test]
fn a_replica_follows_as_many_leases_end_in_parts() {
    let mut pair = Pair::new();
    for n in 0..HOLDERS {
        pair.grant(n, if n % 2 == 0 { SECOND } else { 9 * SECOND });
    }
    pair.advance(2 * SECOND);
    // The first one held the semaphore before, and the second one is new.
    for n in [0, HOLDERS] {
        let before = pair.holders(&pair.master);
        pair.grant(n, 9 * SECOND);
        assert_eq!(pair.holders(&pair.master), before - 32 + 1);
    }
    pair.master.tick();
    assert!(pair.replay().iter().all(|whole| !whole));
    assert_eq!(pair.holders(&pair.replica), HOLDERS / 2 + 2);
}

/// All of them are discarded at once, and the grant that follows is in the same change.
#[test]
fn a_replica_follows_as_all_leases_end_and_some_are_granted_again() {
    for next in [7, HOLDERS] {
        let mut pair = Pair::new();
        (0..HOLDERS).for_each(|n| pair.grant(n, SECOND));
        pair.advance(2 * SECOND);
        pair.grant(next, SECOND);
        assert_eq!(pair.holders(&pair.replica), 1);
        for node in [&mut pair.master, &mut pair.replica] {
            assert!(node.table.has_remains());
            while node.table.has_remains() {
                node.table.clear_remains(10);
            }
        }
        (0..HOLDERS - 1)
            .filter(|n| *n != next)
            .for_each(|n| pair.grant(n, SECOND));
        pair.master.release(&key("a"), &holder(next), true);
        assert_eq!(pair.replay(), [false]);
    }
}

/// Many releases in one decision: up to 160 of them are written one by one.
#[test]
fn a_replica_follows_as_very_many_holds_change_in_one_decision() {
    for (released, is_whole) in [(160, false), (161, true), (HOLDERS - 1, true)] {
        let mut pair = Pair::new();
        (0..HOLDERS).for_each(|n| pair.grant(n, SECOND));
        for n in 0..released {
            pair.master.decide_release(&key("a"), &holder(n), true);
        }
        pair.master.apply();
        assert_eq!(pair.replay(), [is_whole], "{released}");
        assert_eq!(pair.holders(&pair.replica), HOLDERS - released);
        pair.grant(0, SECOND);
    }
}
