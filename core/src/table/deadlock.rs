//! Whether one more wait would cause a deadlock.
//!
//! The nodes of the graph are owners. An owner that waits depends on those who hold what it waits
//! for (on every one of them; for a full semaphore, on all of them together) and on those ahead of
//! it in a wait queue. A new wait causes a deadlock if it depends on an owner who cannot go on
//! before the newcomer releases something.
//!
//! Each step mostly ends the search:
//! 1. An owner that holds nothing that others wait for is part of no cycle ([`Holdings`]).
//! 2. [`Search::reaches_newcomer`] follows the dependencies forward. Where they do not lead back
//!    to the newcomer, there is no cycle. A waiter with one request for one key adds nothing to
//!    what its queue depends on, so only the others are followed.
//! 3. Only where every holder of a full semaphore waits, too: `progress.rs` finds the owners that
//!    cannot go on, within what step 2 has reached.
//! 4. [`Search::find_stuck`] decides exactly: from which of them a chain of waits leads to the
//!    newcomer.

mod progress;
mod search;

use foldhash::HashMap;

use search::Search;

use super::Table;
use crate::lock::{Lock, Terms};
use crate::slots::LockId;
use crate::small::SmallSet;
use crate::time::LeaseTime;
use crate::token::{Key, Token};

/// What each owner holds that others may wait for: every shared lock (who waits for one is not told
/// to each of its holders), and each exclusive lock that is waited for.
#[derive(Debug, Default)]
pub(super) struct Holdings(HashMap<Token, SmallSet<LockId>>);

impl Holdings {
    pub(super) fn add(&mut self, token: &Token, id: LockId) {
        match self.0.get_mut(token) {
            Some(held) => held.insert(id),
            None => {
                let mut held = SmallSet::default();
                held.insert(id);
                self.0.insert(token.clone(), held);
            }
        }
    }

    pub(super) fn remove(&mut self, token: &Token, id: LockId) {
        if let Some(held) = self.0.get_mut(token) {
            held.remove(&id);
            if held.is_empty() {
                self.0.remove(token);
            }
        }
    }

    pub(super) fn of(&self, token: &Token) -> Option<&SmallSet<LockId>> {
        self.0.get(token)
    }
}

/// An owner with more holdings than this is searched for without looking at each of them first.
const HOLDINGS_LOOKED_AT: usize = 64;

impl Table {
    /// How many waiters, holders and queues all searches for a deadlock have looked at so far.
    #[must_use]
    pub fn deadlock_steps(&self) -> u64 {
        self.deadlock_steps
    }

    /// How many owners are known to hold something that others may wait for.
    #[must_use]
    pub fn holding_owners(&self) -> usize {
        self.holdings.0.len()
    }

    /// Somebody waits for a lock, or other owners than before hold it.
    pub(super) fn note_holders(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get(id).filter(|entry| entry.queued)
            && let Lock::Exclusive(hold) = &entry.lock
        {
            self.holdings.add(&hold.token, id);
        }
    }

    /// Nobody waits for a lock any more.
    pub(super) fn note_unqueued(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get_mut(id) {
            entry.queued = false;
            if let Lock::Exclusive(hold) = &entry.lock {
                self.holdings.remove(&hold.token, id);
            }
        }
    }

    /// Whether one more wait, of `terms.token` for `keys`, would cause a deadlock.
    pub(super) fn would_deadlock(
        &mut self,
        keys: &[Key],
        locks: &[Option<LockId>],
        terms: &Terms,
        now: LeaseTime,
    ) -> bool {
        if self.queues.is_empty() || !self.holds_what_is_waited_for(&terms.token, now) {
            return false;
        }
        let wanted: Vec<_> = keys
            .iter()
            .zip(locks)
            .map(|(key, lock)| (key, lock.and_then(|id| self.lock(id))))
            .filter(|(_, lock)| !self.holds(*lock, &terms.token, now))
            .collect();
        let mut search = Search::new(self, &terms.token, now);
        let deadlock = search.reaches_newcomer(&wanted) && {
            search.find_progress(&wanted);
            search.find_stuck();
            search.is_stuck(&wanted, terms.mode)
        };
        self.deadlock_steps += search.steps;
        deadlock
    }

    pub(super) fn holds(&self, lock: Option<&Lock>, owner: &Token, now: LeaseTime) -> bool {
        let hold = lock.and_then(|lock| lock.hold(owner));
        hold.is_some_and(|hold| self.end_of(hold) > now)
    }

    fn holds_what_is_waited_for(&self, token: &Token, now: LeaseTime) -> bool {
        let Some(held) = self.holdings.of(token) else {
            return false;
        };
        let is_waited_for = |id: &LockId| {
            let entry = self.slots.get(*id).filter(|entry| entry.queued);
            entry.is_some_and(|entry| self.holds(Some(&entry.lock), token, now))
        };
        held.len() > HOLDINGS_LOOKED_AT || held.iter().any(is_waited_for)
    }
}
