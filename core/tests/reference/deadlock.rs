//! Deadlock, by a plain graph search. The owners are the points. An owner that waits depends on the
//! holders that exclude it (on all of them; where a semaphore is full, on any one of them) and on
//! those ahead of it. A newcomer is refused if it depends, over any number of steps, on somebody
//! who depends on something that the newcomer *holds*.

use std::collections::BTreeSet;

use super::request::Standing;
use super::{Mode, Model, Request, Token};

/// What one key of one request depends on: on every one of a set, and on one of another set.
struct Needs {
    every: BTreeSet<Token>,
    one: BTreeSet<Token>,
}

impl Model {
    pub(super) fn would_deadlock(&self, newcomer: &Request) -> bool {
        let mut stuck = BTreeSet::from([newcomer.token]);
        loop {
            let before = stuck.len();
            for (place, waiter) in self.queue.iter().enumerate() {
                let owner = waiter.request.token;
                // The newcomer's places in queues keep nobody from going on, only its holds do.
                let needs = self.needs(&waiter.request, place, Some(newcomer.token));
                if owner != newcomer.token && needs.iter().any(|needs| needs.are_stuck(&stuck)) {
                    stuck.insert(owner);
                }
            }
            if stuck.len() == before {
                break;
            }
        }
        self.needs(newcomer, self.queue.len(), None)
            .iter()
            .any(|needs| needs.are_stuck(&stuck))
    }

    /// What a request depends on, key by key; the places of `not` in queues do not count.
    fn needs(&self, request: &Request, place: usize, not: Option<Token>) -> Vec<Needs> {
        let keys = request
            .keys
            .iter()
            .filter(|key| !self.holds(**key, request.token));
        keys.map(|key| {
            let mut needs = Needs {
                every: BTreeSet::new(),
                one: BTreeSet::new(),
            };
            if self.standing(*key, request) == Standing::Excluded
                && let Some(lock) = self.live(*key)
            {
                let is_full = matches!(
                    (lock.mode, request.mode),
                    (Mode::Shared(_), Mode::Shared(_))
                );
                let set = if is_full {
                    &mut needs.one
                } else {
                    &mut needs.every
                };
                set.extend(lock.holds.keys());
            }
            let ahead = self.ahead(*key, request, place).into_iter();
            let others = ahead.filter(|token| *token != request.token && Some(*token) != not);
            needs.every.extend(others);
            needs
        })
        .collect()
    }
}

impl Needs {
    fn are_stuck(&self, stuck: &BTreeSet<Token>) -> bool {
        !self.every.is_disjoint(stuck) || (!self.one.is_empty() && self.one.is_subset(stuck))
    }
}
