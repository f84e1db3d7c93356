//! The search: what a wait depends on, and which requests may overtake which.

use std::rc::Rc;

use foldhash::{HashMap, HashSet};

use super::super::Table;
use super::progress::Progress;
use crate::lock::{Lock, Mode};
use crate::queue::{Queue, Waiter, WaiterId};
use crate::slots::LockId;
use crate::time::LeaseTime;
use crate::token::{Key, Token};

/// The limit of steps to find out which request may overtake which. Beyond it, no request may: a
/// wait that cannot be shown to be harmless is refused. The limit is enough for 300 waiters with
/// different requests, and 300 owners that may overtake all of them.
const ORDER_STEPS: u64 = 100_000;

/// The limit for lookups of earlier results, which take less than 100 ms: two requests for the same
/// 1000 keys meet in 1000 queues.
const LOOKS: u64 = 10_000_000;

/// A lookup in a hash map takes as long as this many lookups in a list.
const LOOKS_IN_A_MAP: u64 = 4;

/// A wait queue that the search has reached.
pub(super) struct Reached<'a> {
    pub(super) queue: &'a Queue,
    pub(super) lock: Option<&'a Lock>,
    /// Whether the lock is a full semaphore, and none of its holders can continue.
    pub(super) is_stuck: bool,
}

/// Owners that hold the same of what was reached: they may overtake the same waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group(pub(super) usize);

/// The group of owners that hold none of it and may not overtake.
pub(super) const OVERTAKES_NOBODY: Group = Group(0);

/// The groups of the owners that were looked up so far.
#[derive(Default)]
struct Groups<'a> {
    by_owner: HashMap<&'a Token, Group>,
    by_held: HashMap<Rc<[usize]>, Group>,
    /// One owner of each group but the first.
    owners: Vec<&'a Token>,
    /// Which group may overtake which waiters, as far as it is known.
    passing: HashMap<(WaiterId, Group), bool>,
}

/// One search.
pub(super) struct Search<'a> {
    pub(super) table: &'a Table,
    /// The owner that is about to wait; none if existing waiters are searched.
    pub(super) newcomer: Option<&'a Token>,
    pub(super) now: LeaseTime,
    pub(super) reached: Vec<Reached<'a>>,
    pub(super) by_key: HashMap<&'a Key, usize>,
    pub(super) by_lock: HashMap<LockId, usize>,
    owners: HashSet<&'a Token>,
    /// The owners that hold and wait but were not reached; known if there are fewer of them than
    /// visited holders.
    unreached: Option<Vec<&'a Token>>,
    holders_seen: usize,
    /// The owners that cannot continue, and the newcomer; none if that makes no difference.
    pub(super) cannot_go_on: HashSet<&'a Token>,
    pub(super) steps: u64,
    /// The steps of [`Table::waits_for`] when the search began.
    order_began: u64,
    /// The number of lookups of which request may overtake which.
    looks: u64,
    groups: Groups<'a>,
    /// What each owner holds, as far as it is known: see [`Search::queues_for`].
    held: HashMap<&'a Token, Rc<[usize]>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(table: &'a Table, newcomer: Option<&'a Token>, now: LeaseTime) -> Self {
        Self {
            table,
            newcomer,
            now,
            reached: Vec::new(),
            by_key: HashMap::default(),
            by_lock: HashMap::default(),
            owners: HashSet::default(),
            unreached: None,
            holders_seen: 0,
            cannot_go_on: HashSet::default(),
            steps: 0,
            order_began: table.order_steps(),
            looks: 0,
            groups: Groups::default(),
            held: HashMap::default(),
        }
    }

    /// Visits every queue that the newcomer's wait depends on. Returns whether one of them is for
    /// something that the newcomer holds.
    pub(super) fn reaches_newcomer(&mut self, wanted: &[(&'a Key, Option<&'a Lock>)]) -> bool {
        for (key, lock) in wanted {
            match self.table.queues.at(key) {
                Some(_) => self.reach_queue(key),
                None => self.reach_holders(*lock),
            }
        }
        self.reach_all()
    }

    /// Visits every queue that the reached ones depend on. Returns whether one of them is for
    /// something that the newcomer holds.
    pub(super) fn reach_all(&mut self) -> bool {
        let (mut found, mut next) = (false, 0);
        while let Some(&Reached { queue, lock, .. }) = self.reached.get(next) {
            next += 1;
            self.steps += 1;
            found |= self.does_newcomer_hold(lock);
            self.reach_holders(lock);
            for waiter in queue.linked.iter() {
                if let Some(waiter) = self.table.queues.get(*waiter) {
                    self.reach_owner(&waiter.terms.token);
                }
            }
        }
        found
    }

    /// Visits the waiting holders of a lock. If very many owners hold very many locks together,
    /// each is visited once, not once for each lock.
    fn reach_holders(&mut self, lock: Option<&'a Lock>) {
        let Some(lock) = lock else {
            return;
        };
        let holdings = &self.table.holdings;
        if self.unreached.is_none() && self.holders_seen > holdings.waiting.len() {
            let waiting = holdings.waiting.iter();
            let unreached = waiting.filter(|owner| !self.owners.contains(owner));
            self.unreached = Some(unreached.collect());
        }
        // A single holder is checked directly: if its lock has no waiters, it is not in any index.
        let unreached = self.unreached.as_mut();
        let owners = match unreached.filter(|owners| owners.len().max(1) < lock.holders()) {
            Some(unreached) => {
                holdings.count_seen(unreached.len());
                let holds = |owner: &mut &Token| lock.hold(owner).is_some();
                unreached.extract_if(.., holds).collect()
            }
            None => {
                self.holders_seen += lock.holders().min(holdings.waiting.len());
                self.table.waiting_holders(lock)
            }
        };
        for owner in owners {
            self.reach_owner(owner);
        }
    }

    fn does_newcomer_hold(&self, lock: Option<&Lock>) -> bool {
        let holds = |newcomer| self.table.holds(lock, newcomer, self.now);
        self.newcomer.is_some_and(holds)
    }

    pub(super) fn reach_owner(&mut self, owner: &'a Token) {
        self.steps += 1;
        if Some(owner) == self.newcomer || !self.owners.insert(owner) {
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
            let (at, id) = (self.reached.len(), self.table.lock_in_queue(key));
            self.by_key.insert(key, at);
            self.by_lock.extend(id.map(|id| (id, at)));
            self.reached.push(Reached {
                queue,
                lock: id.and_then(|id| self.table.lock(id)),
                is_stuck: false,
            });
        }
    }

    /// The reached owners that wait.
    pub(super) fn waiting_owners(&self) -> impl Iterator<Item = &'a Token> {
        let owners = self.owners.iter().copied();
        owners.filter(|owner| self.table.queues.has(owner))
    }

    /// Finds the owners that cannot continue, if that can make a difference: if every holder of a
    /// full semaphore also waits.
    pub(super) fn find_progress(&mut self, wanted: &[(&'a Key, Option<&'a Lock>)]) {
        let reached = self.reached.iter().filter_map(|reached| reached.lock);
        let mut locks = reached.chain(wanted.iter().filter_map(|(_, lock)| *lock));
        let waits_for_one = |lock: &Lock| {
            let is_semaphore = matches!(lock, Lock::Shared(_));
            is_semaphore && lock.excludes(lock.mode(), self.now) && self.do_all_wait(lock)
        };
        if locks.any(waits_for_one) {
            Progress::find(self);
        }
    }

    /// Whether every holder of a lock waits; the newcomer is about to.
    fn do_all_wait(&self, lock: &Lock) -> bool {
        let table = self.table;
        lock.holds().all(|hold| {
            let has_ended = table.end_of(hold) <= self.now;
            has_ended || Some(&hold.token) == self.newcomer || table.queues.has(&hold.token)
        })
    }

    /// Whether a waiter holds what others wait for in one of the reached queues.
    pub(super) fn has_waiting_holder(&mut self) -> bool {
        let owners: Vec<_> = self.waiting_owners().collect();
        let mut owners = owners.into_iter();
        owners.any(|owner| !self.queues_for(owner).is_empty())
    }

    /// Whether an owner holds the lock of a reached queue.
    pub(super) fn holds_at(&self, at: usize, owner: &Token) -> bool {
        let reached = self.reached.get(at);
        reached.is_some_and(|reached| self.table.holds(reached.lock, owner, self.now))
    }

    /// The places in [`Search::reached`] of the queues for what an owner holds.
    fn queues_for(&mut self, owner: &Token) -> Vec<usize> {
        let Some(held) = self.table.holdings.of(owner) else {
            return Vec::new();
        };
        self.steps += held.len().min(self.reached.len()) as u64;
        let holds = |at: &usize| self.holds_at(*at, owner);
        if held.len() <= self.reached.len() {
            let queues = held.iter().filter_map(|id| self.by_lock.get(id).copied());
            queues.filter(holds).collect()
        } else {
            (0..self.reached.len()).filter(holds).collect()
        }
    }

    /// [`Search::queues_for`] an owner, in order. Each owner is looked up once.
    pub(super) fn waited_for_of(&mut self, owner: &'a Token) -> Rc<[usize]> {
        if let Some(held) = self.held.get(owner) {
            return Rc::clone(held);
        }
        let mut held = self.queues_for(owner);
        held.sort_unstable();
        let held = Rc::from(held);
        self.held.insert(owner, Rc::clone(&held));
        held
    }

    /// The group of an owner.
    pub(super) fn group_of(&mut self, owner: &'a Token) -> Group {
        if let Some(group) = self.groups.by_owner.get(owner) {
            return *group;
        }
        let held = self.waited_for_of(owner);
        let groups = &mut self.groups;
        let group = if held.is_empty() {
            OVERTAKES_NOBODY
        } else {
            let new = Group(groups.owners.len() + 1);
            let group = *groups.by_held.entry(held).or_insert(new);
            groups.owners.extend((group == new).then_some(owner));
            group
        };
        groups.by_owner.insert(owner, group);
        group
    }

    /// Whether the owners of a group may overtake a waiter that is ahead of them.
    pub(super) fn may_pass(&mut self, id: WaiterId, ahead: &Waiter, group: Group) -> bool {
        // A waiter for one key waits only for the lock of this queue, which the group does not
        // hold.
        let owner = group.0.checked_sub(1).filter(|_| ahead.keys.len() > 1);
        let Some(owner) = owner.and_then(|at| self.groups.owners.get(at).copied()) else {
            return false;
        };
        if self.is_order_exhausted() {
            return false;
        }
        self.count_looks(LOOKS_IN_A_MAP);
        if let Some(known) = self.groups.passing.get(&(id, group)) {
            return *known;
        }
        let may_pass = self.table.waits_for(id, ahead, owner, self.now);
        self.groups.passing.insert((id, group), may_pass);
        may_pass
    }

    /// Counts this many lookups of which request may overtake which.
    pub(super) fn count_looks(&mut self, looks: u64) {
        self.looks += looks;
    }

    /// Whether the limit of comparisons or lookups is reached.
    pub(super) fn is_order_exhausted(&self) -> bool {
        self.looks >= LOOKS || self.table.order_steps() - self.order_began >= ORDER_STEPS
    }
}

/// Whether a request in `mode` needs only one of the holders to release: a full semaphore.
pub(super) fn needs_any(lock: &Lock, mode: Mode) -> bool {
    matches!((lock, mode), (Lock::Shared(_), Mode::Shared { .. }))
}
