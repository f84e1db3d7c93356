//! Whether one more wait would cause a deadlock.
//!
//! The nodes of the graph are owners. An owner that waits depends on those who hold what it waits
//! for (on every one of them; for a full semaphore, on all of them together) and on those ahead of
//! it in a wait queue. A new wait causes a deadlock if it depends on an owner who cannot go on
//! before the newcomer releases something.
//!
//! Three steps, each of which mostly ends the search:
//! 1. An owner that holds nothing that others wait for is part of no cycle ([`Holdings`]).
//! 2. [`Search::reaches_newcomer`] follows the dependencies forward. Where they do not lead back
//!    to the newcomer, there is no cycle. A waiter with one request for one key adds nothing to
//!    what its queue depends on, so only the others are followed.
//! 3. [`Search::find_stuck`] decides exactly, within what step 2 has reached: the smallest set of
//!    owners that cannot go on before the newcomer releases something.

use foldhash::{HashMap, HashSet};

use super::Table;
use crate::lock::{Hold, Lock, Mode, Terms};
use crate::queue::{Queue, Waiter, WaiterId};
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

/// A wait queue that the search has reached.
struct Reached<'a> {
    queue: &'a Queue,
    lock: Option<&'a Lock>,
    /// The waiters that are not known to be stuck, in order.
    free: Vec<(WaiterId, &'a Waiter)>,
    /// How many holders are not known to be stuck.
    free_holders: usize,
    /// Whether those whom one stuck holder is enough to exclude have been found.
    is_held_up: bool,
}

/// One search.
struct Search<'a> {
    table: &'a Table,
    newcomer: &'a Token,
    now: LeaseTime,
    reached: Vec<Reached<'a>>,
    by_key: HashMap<&'a Key, usize>,
    owners: HashSet<&'a Token>,
    /// The owners that cannot go on before the newcomer releases something; the newcomer is one,
    /// for what it holds.
    stuck: HashSet<&'a Token>,
    /// Those of them whose dependents have not been looked at.
    spreading: Vec<&'a Token>,
    steps: u64,
}

impl<'a> Search<'a> {
    fn new(table: &'a Table, newcomer: &'a Token, now: LeaseTime) -> Self {
        Self {
            table,
            newcomer,
            now,
            reached: Vec::new(),
            by_key: HashMap::default(),
            owners: HashSet::default(),
            stuck: HashSet::from_iter([newcomer]),
            spreading: vec![newcomer],
            steps: 0,
        }
    }

    /// Reaches every queue that the newcomer's wait depends on; whether one of them is for
    /// something that the newcomer holds.
    fn reaches_newcomer(&mut self, wanted: &[(&'a Key, Option<&'a Lock>)]) -> bool {
        for (key, lock) in wanted {
            match self.table.queues.at(key) {
                Some(_) => self.reach_queue(key),
                None => self.reach_holders(*lock),
            }
        }
        let (mut found, mut next) = (false, 0);
        while let Some(&Reached { queue, lock, .. }) = self.reached.get(next) {
            next += 1;
            self.steps += 1;
            found |= self.table.holds(lock, self.newcomer, self.now);
            self.reach_holders(lock);
            for waiter in queue.linked.iter() {
                if let Some(waiter) = self.table.queues.get(*waiter) {
                    self.reach_owner(&waiter.terms.token);
                }
            }
        }
        found
    }

    fn reach_holders(&mut self, lock: Option<&'a Lock>) {
        for owner in lock.map_or_else(Vec::new, |lock| self.table.queues.waiting_holders(lock)) {
            self.reach_owner(owner);
        }
    }

    fn reach_owner(&mut self, owner: &'a Token) {
        self.steps += 1;
        if owner == self.newcomer || !self.owners.insert(owner) {
            return;
        }
        let requests = self.table.queues.of(owner);
        for waiter in requests.filter_map(|id| self.table.queues.get(id)) {
            waiter.keys.iter().for_each(|key| self.reach_queue(key));
        }
    }

    fn reach_queue(&mut self, key: &'a Key) {
        if self.by_key.contains_key(key) {
            return;
        }
        if let Some(queue) = self.table.queues.at(key) {
            self.by_key.insert(key, self.reached.len());
            self.reached.push(Reached {
                queue,
                lock: self
                    .table
                    .lock_in_queue(key)
                    .and_then(|id| self.table.lock(id)),
                free: Vec::new(),
                free_holders: 0,
                is_held_up: false,
            });
        }
    }

    /// Finds everybody in the reached queues who cannot go on before the newcomer releases
    /// something.
    fn find_stuck(&mut self) {
        for reached in &mut self.reached {
            let lock = reached.lock;
            let waiters = reached.queue.waiting.iter();
            let waiters = waiters.filter_map(|id| Some((*id, &**self.table.queues.get(*id)?)));
            let blocked = waiters.filter(|(_, waiter)| {
                let token = &waiter.terms.token;
                token != self.newcomer && !self.table.holds(lock, token, self.now)
            });
            reached.free = blocked.collect();
            reached.free_holders = lock.map_or(0, |lock| lock.live_holders(self.now));
            self.steps += reached.free.len() as u64;
        }
        while let Some(owner) = self.spreading.pop() {
            self.spread_from_holder(owner);
            // The newcomer's own places in queues keep nobody from going on; only its holds do.
            if owner != self.newcomer {
                self.spread_from_waiter(owner);
            }
        }
    }

    /// A waiter for something that a stuck owner holds is stuck.
    fn spread_from_holder(&mut self, owner: &'a Token) {
        let held = self.table.holdings.of(owner);
        let few = held.filter(|held| held.len() <= self.reached.len());
        let queues: Vec<usize> = match few {
            Some(held) => {
                let keys = held.iter().filter_map(|id| self.table.key(*id));
                keys.filter_map(|key| self.by_key.get(&key).copied())
                    .collect()
            }
            None => (0..self.reached.len()).collect(),
        };
        for at in queues {
            self.steps += 1;
            let (now, table) = (self.now, self.table);
            let Some(reached) = self.reached.get_mut(at) else {
                continue;
            };
            let Some(lock) = reached
                .lock
                .filter(|lock| table.holds(Some(lock), owner, now))
            else {
                continue;
            };
            reached.free_holders = reached.free_holders.saturating_sub(1);
            let all_stuck = reached.free_holders == 0;
            if std::mem::replace(&mut reached.is_held_up, true) && !all_stuck {
                continue;
            }
            let excluded = reached.free.extract_if(.., |(_, waiter)| {
                let mode = waiter.terms.mode;
                (all_stuck || !needs_any(lock, mode)) && lock.excludes(mode, now)
            });
            let excluded: Vec<_> = excluded.collect();
            excluded
                .iter()
                .for_each(|(_, waiter)| self.is_now_stuck(&waiter.terms.token));
        }
    }

    /// A waiter behind a stuck owner that it may not go past is stuck.
    fn spread_from_waiter(&mut self, owner: &'a Token) {
        let requests = self.table.queues.of(owner);
        let requests = requests.filter_map(|id| Some((id, self.table.queues.get(id)?)));
        for (id, ahead) in requests {
            for at in ahead.keys.iter().filter_map(|key| self.by_key.get(key)) {
                let Some(reached) = self.reached.get_mut(*at) else {
                    continue;
                };
                let behind = reached.free.partition_point(|(waiter, _)| *waiter <= id);
                let mut found = Vec::new();
                for (waiter_id, waiter) in reached.free.split_off(behind) {
                    self.steps += 1;
                    let token = &waiter.terms.token;
                    if self.stuck.contains(token) {
                        continue;
                    }
                    if self.table.waits_for(id, ahead, token, self.now) {
                        reached.free.push((waiter_id, waiter));
                    } else {
                        found.push(token);
                    }
                }
                for token in found {
                    if self.stuck.insert(token) {
                        self.spreading.push(token);
                    }
                }
            }
        }
    }

    fn is_now_stuck(&mut self, token: &'a Token) {
        if self.stuck.insert(token) {
            self.spreading.push(token);
        }
    }

    /// Whether the newcomer's wait depends on somebody who is stuck.
    fn is_stuck(&self, wanted: &[(&'a Key, Option<&'a Lock>)], mode: Mode) -> bool {
        wanted.iter().any(|(key, lock)| {
            let excluded = lock.filter(|lock| lock.excludes(mode, self.now));
            if excluded.is_some_and(|lock| self.are_holders_stuck(lock, mode)) {
                return true;
            }
            let queue = self.table.queues.at(key);
            let ahead = queue.into_iter().flat_map(|queue| queue.waiting.iter());
            let mut ahead = ahead.filter_map(|id| Some((*id, self.table.queues.get(*id)?)));
            ahead.any(|(id, ahead)| {
                let token = &ahead.terms.token;
                token != self.newcomer
                    && self.stuck.contains(token)
                    && !self.table.waits_for(id, ahead, self.newcomer, self.now)
            })
        })
    }

    fn are_holders_stuck(&self, lock: &Lock, mode: Mode) -> bool {
        let lives = |hold: &&Hold| self.table.end_of(hold) > self.now;
        let mut holders = lock.holds().filter(lives);
        if needs_any(lock, mode) {
            holders.all(|hold| self.stuck.contains(&hold.token))
        } else if lock.holders() <= self.stuck.len() {
            holders.any(|hold| self.stuck.contains(&hold.token))
        } else {
            let mut stuck = self.stuck.iter();
            stuck.any(|token| self.table.holds(Some(lock), token, self.now))
        }
    }
}

/// Whether a request in `mode` needs only one of the holders to release: a full semaphore.
fn needs_any(lock: &Lock, mode: Mode) -> bool {
    matches!((lock, mode), (Lock::Shared(_), Mode::Shared { .. }))
}
