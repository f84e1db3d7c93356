//! Whether one more wait would cause a deadlock.
//!
//! The nodes of the graph are owners. An owner that waits depends on the holders of the locks that
//! it waits for (on each of them; for a full semaphore, on all of them together) and on the waiters
//! ahead of it in a wait queue. A new wait causes a deadlock if it depends on an owner that cannot
//! continue before the newcomer releases something.
//!
//! Most searches end after one of the first steps:
//! 1. An owner that holds nothing that others wait for is part of no cycle ([`Holdings`]).
//! 2. [`Search::reaches_newcomer`] follows the dependencies forward. Where they do not lead back
//!    to the newcomer, there is no cycle. A waiter with one request for one key adds nothing to
//!    what its queue depends on, so only the others are followed.
//! 3. Only where every holder of a full semaphore waits, too: `progress.rs` finds the owners that
//!    cannot continue, within what step 2 has reached.
//! 4. [`Stuck`] decides exactly: from which of them a chain of waits leads to the newcomer.

mod progress;
mod queue;
mod search;
mod stuck;
mod suspects;

use std::cell::Cell;

use foldhash::HashSet;

use progress::Progress;
use search::Search;
use stuck::Stuck;
pub(super) use suspects::Suspects;

use super::{Answer, Denial, Table};
use crate::lock::{Lock, Mode, Terms};
use crate::queue::{Queues, WaiterId};
use crate::slots::LockId;
use crate::small::SmallSet;
use crate::steady::SteadyMap;
use crate::time::LeaseTime;
use crate::token::{Key, Token};

/// What each owner holds that others may wait for: every shared lock, and each exclusive lock that
/// has waiters. A shared lock may have very many holders, so nothing is changed for each of them
/// when the first waiter comes.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    by_owner: SteadyMap<Token, SmallSet<LockId>>,
    /// The owners of these locks that wait: usually none, however many owners there are.
    waiting: HashSet<Token>,
    /// Changes when another owner is among them.
    version: u64,
    /// How many holders or owners [`Holdings::waiting_holders`] has checked.
    seen: Cell<u64>,
}

impl Holdings {
    pub(super) fn add(&mut self, token: &Token, id: LockId, queues: &Queues) {
        self.add_of(token, id, || queues.has(token));
    }

    /// [`Holdings::add`] if it is known whether the owner waits, so that its token need not be
    /// looked up among the waiters.
    pub(super) fn add_of(&mut self, token: &Token, id: LockId, waits: impl FnOnce() -> bool) {
        let held = self.by_owner.or_default(token);
        let is_new = held.is_empty();
        held.insert(id);
        if is_new && waits() {
            self.add_waiting(token);
        }
    }

    pub(super) fn remove(&mut self, token: &Token, id: LockId) {
        let mut holds_nothing = false;
        self.by_owner.remove_if(token, |held| {
            held.remove(&id);
            holds_nothing = held.is_empty();
            holds_nothing
        });
        if holds_nothing {
            self.waits_no_more(token);
        }
    }

    #[inline]
    pub(super) fn of(&self, token: &Token) -> Option<&SmallSet<LockId>> {
        self.by_owner.get(token)
    }

    /// The holders of a lock that wait for something themselves. The cost is the number of holders,
    /// or of owners that hold and wait, whichever is smaller.
    pub(super) fn waiting_holders<'a>(&'a self, lock: &'a Lock, queues: &Queues) -> Vec<&'a Token> {
        self.count_seen(lock.holders().min(self.waiting.len()));
        // An exclusive lock without waiters is not among the holdings.
        if lock.holders() <= self.waiting.len().max(1) {
            let holders = lock.holds().map(|hold| &hold.token);
            holders.filter(|token| queues.has(token)).collect()
        } else {
            let owners = self.waiting.iter();
            owners.filter(|token| lock.hold(token).is_some()).collect()
        }
    }

    fn count_seen(&self, many: usize) {
        self.seen.set(self.seen.get() + many as u64);
    }

    /// An owner waits.
    pub(super) fn waits(&mut self, token: &Token) {
        if self.by_owner.contains(token) {
            self.add_waiting(token);
        }
    }

    fn add_waiting(&mut self, token: &Token) {
        if self.waiting.insert(token.clone()) {
            self.version += 1;
        }
    }

    /// The owners that hold something that others may wait for, and wait themselves.
    pub(super) fn waiting(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.waiting.iter()
    }

    /// An owner does not wait any more, or holds nothing.
    pub(super) fn waits_no_more(&mut self, token: &Token) {
        if !self.waiting.is_empty() {
            self.waiting.remove(token);
            if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
                self.waiting = HashSet::default();
            }
        }
    }
}

/// The capacity that an empty map keeps: maps do not shrink by themselves.
const KEPT: usize = 1024;

/// For an owner with more holdings than this, the search starts after a check of so many of them.
const HOLDINGS_LOOKED_AT: usize = 4096;

/// After this many steps, checking whether a search is needed costs as much as the search.
const STEPS_BEFORE_SEARCH: usize = 4096;

/// This many steps of a search take as long as one check of a waiter.
pub(super) const STEPS_IN_A_LOOK: u64 = 16;

impl Table {
    /// How many waiters, holders and queues all searches for a deadlock have visited so far.
    #[must_use]
    pub fn deadlock_steps(&self) -> u64 {
        self.deadlock_steps
    }

    /// How many holders were checked so far to find those that wait.
    #[must_use]
    pub fn holders_seen(&self) -> u64 {
        self.holdings.seen.get()
    }

    /// How many owners are known to hold something that others may wait for.
    #[must_use]
    pub fn holding_owners(&self) -> usize {
        self.holdings.by_owner.keys().count()
    }

    /// A lock has waiters now, or its owners have changed.
    pub(super) fn note_holders(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get(id).filter(|entry| entry.queued)
            && let Lock::Exclusive(hold) = &entry.lock
        {
            self.holdings.add(&hold.token, id, &self.queues);
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
        if self.queues.is_empty() {
            return false;
        }
        if self.is_sweeping() {
            // It is not known yet which lock is at which key, and which request may overtake which.
            self.suspects.insert(terms.token.clone());
            return false;
        }
        if !self.holds_what_is_waited_for(&terms.token, now) {
            return false;
        }
        let wanted: Vec<_> = keys
            .iter()
            .zip(locks)
            .map(|(key, lock)| (key, lock.and_then(|id| self.lock(id))))
            .filter(|(_, lock)| !self.holds(*lock, &terms.token, now))
            .collect();
        let mut search = Search::new(self, Some(&terms.token), now);
        let deadlock = search.reaches_newcomer(&wanted) && {
            search.find_progress(&wanted);
            Stuck::find(&mut search, &terms.token).includes(&wanted, terms.mode)
        };
        self.deadlock_steps += search.steps;
        deadlock
    }

    /// A waiting owner holds more or less than before: its waits must be searched again.
    pub(super) fn suspect(&mut self, owner: &Token) {
        if self.queues.waits_of(owner).is_some() {
            self.suspects.insert(owner.clone());
        }
    }

    /// A lock was moved or is gone: its waiting holders must be searched again.
    pub(super) fn suspect_holders(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get(id).filter(|_| !self.queues.is_empty())
            && !self.suspects.are_all_of(&self.holdings)
        {
            let before = self.holders_seen();
            let holders = self.holdings.waiting_holders(&entry.lock, &self.queues);
            self.suspects.extend(holders.into_iter().cloned());
            let visits = self.holders_seen() - before;
            self.suspects.note_visits(visits, &self.holdings);
            self.looks += visits / STEPS_IN_A_LOOK;
        }
    }

    /// A hold of a lock has ended. Its owner may no longer overtake the waiters of the lock; and
    /// the other holders of a semaphore may not either, if it was full until now.
    pub(super) fn suspect_losers(&mut self, id: LockId, owner: &Token) {
        if !self.queues.has_several_keys() {
            return;
        }
        let Some(entry) = self.slots.get(id).filter(|entry| entry.queued) else {
            return;
        };
        if let Mode::Shared { limit: Some(limit) } = entry.lock.mode()
            && entry.lock.holders() + 1 >= limit as usize
            && self.may_be_overtaken(id)
        {
            self.suspect_holders(id);
        }
        self.suspect(owner);
    }

    /// Whether a waiter for this lock also wants another key: in the queue of that key, the holders
    /// of the lock may overtake it.
    pub(super) fn may_be_overtaken(&self, id: LockId) -> bool {
        let key = self.slots.get(id).and_then(|entry| self.waited_key(entry));
        let queue = key.and_then(|key| self.queues.at(&key));
        queue.is_some_and(|queue| !queue.linked.is_empty())
    }

    /// Refuses waits of suspects that have become part of a deadlock, one for each deadlock. If
    /// there are none, no suspects are left.
    pub(super) fn resolve_deadlock(&mut self, now: LeaseTime) {
        if !self.may_be_stuck(now) {
            self.suspects.clear();
            return;
        }
        let mut search = Search::new(self, None, now);
        let suspects = self.suspects.iter();
        suspects.for_each(|owner| search.reach_owner(owner));
        search.reach_all();
        let may_be_stuck = search.has_waiting_holder();
        let victims = may_be_stuck.then(|| search.find_victims());
        let victims = victims.unwrap_or_default();
        let steps = search.steps;
        self.deadlock_steps += steps;
        self.looks += 1 + steps / STEPS_IN_A_LOOK;
        if victims.is_empty() {
            self.suspects.clear();
        }
        for id in victims {
            self.counters.deadlocks += 1;
            self.dismiss(id, Answer::Denied(Denial::Deadlock));
        }
    }

    /// Whether a waiter holds something that others wait for. Without that there is no deadlock,
    /// because the waiters ahead in a wait queue arrived earlier.
    fn may_be_stuck(&mut self, now: LeaseTime) -> bool {
        let mut steps = 0;
        let mut owners = self.holdings.waiting.iter();
        let may_be_stuck = owners.any(|owner| {
            let held = self.holdings.of(owner).map_or(0, |held| held.len());
            steps += 1 + held.min(HOLDINGS_LOOKED_AT);
            steps > STEPS_BEFORE_SEARCH || self.holds_what_is_waited_for(owner, now)
        });
        self.looks += 1 + steps as u64 / STEPS_IN_A_LOOK;
        may_be_stuck
    }

    /// [`Holdings::waiting_holders`].
    pub(super) fn waiting_holders<'a>(&'a self, lock: &'a Lock) -> Vec<&'a Token> {
        self.holdings.waiting_holders(lock, &self.queues)
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
        let mut some = held.iter().take(HOLDINGS_LOOKED_AT);
        some.any(is_waited_for) || held.len() > HOLDINGS_LOOKED_AT
    }
}

/// One search resolves at most this many deadlocks.
const RESOLVED_AT_ONCE: usize = 64;

impl Search<'_> {
    /// The requests to be refused, if some of those that were reached are stuck: of each cycle of
    /// requests that wait for each other, the last one of a suspect. A request that is only behind
    /// a deadlock of others could continue without them, and is not refused.
    fn find_victims(&mut self) -> Vec<WaiterId> {
        let suspects = &self.table.suspects;
        let mut progress = Progress::by_request(self);
        let is_suspect = |owner: &Token| suspects.contains(owner);
        let mut starts = progress.stuck(is_suspect);
        if starts.is_empty() {
            starts = progress.stuck(|_| true);
        }
        let mut victims = Vec::new();
        while let Some(start) = starts.last().copied()
            && victims.len() < RESOLVED_AT_ONCE
        {
            if !progress.is_stuck(start) {
                starts.pop();
                continue;
            }
            let cycle = progress.cycle_from(start);
            let of_suspects = cycle.iter().filter(|(_, owner)| is_suspect(owner));
            let last = of_suspects.map(|(id, _)| *id).max();
            let Some(victim) = last.or_else(|| cycle.iter().map(|(id, _)| *id).max()) else {
                // It is not fully known which request may overtake which. Then no request that
                // already waits is refused.
                return Vec::new();
            };
            victims.push(victim);
            progress.is_refused(victim);
        }
        victims
    }
}
