//! The search: what a new wait depends on, and who of them waits for the newcomer.

use std::cell::RefCell;
use std::rc::Rc;

use foldhash::{HashMap, HashSet};

use super::super::Table;
use super::progress::Progress;
use crate::lock::{Hold, Lock, Mode};
use crate::queue::{Queue, Waiter, WaiterId};
use crate::time::LeaseTime;
use crate::token::{Key, Token};

/// Requests for more keys than this are not compared with each other.
const KEYS_COMPARED: usize = 16;

/// The limit of steps to find out which request may overtake which. Beyond it, no request may: a
/// wait that cannot be shown to be harmless is refused. The limit is enough for 300 waiters with
/// different requests, and 300 owners that may overtake all of them.
const ORDER_STEPS: u64 = 100_000;

/// A wait queue that the search has reached.
pub(super) struct Reached<'a> {
    pub(super) queue: &'a Queue,
    pub(super) lock: Option<&'a Lock>,
    /// The waiters that are not known to be stuck, in order.
    free: Vec<(WaiterId, &'a Waiter)>,
    /// Whether the lock is a full semaphore, and none of its holders can continue.
    pub(super) is_stuck: bool,
    /// Whether the waiters that a stuck holder excludes have been found.
    is_held_up: bool,
    /// For each kind, the first stuck waiter behind which all waiters were checked. An owner that
    /// may overtake it may also overtake the others of its kind.
    passed: HashMap<Kind<'a>, WaiterId>,
}

/// What a waiter wants: all that counts for who may overtake it, if it holds none of it.
type Kind<'a> = (&'a [Key], Mode);

/// One search.
pub(super) struct Search<'a> {
    pub(super) table: &'a Table,
    /// Who is about to wait; nobody, if the waiters are searched.
    pub(super) newcomer: Option<&'a Token>,
    pub(super) now: LeaseTime,
    pub(super) reached: Vec<Reached<'a>>,
    pub(super) by_key: HashMap<&'a Key, usize>,
    owners: HashSet<&'a Token>,
    /// The owners that cannot continue, and the newcomer; none if that makes no difference.
    pub(super) cannot_go_on: HashSet<&'a Token>,
    /// The owners that cannot continue before the newcomer releases something; the newcomer is one,
    /// for what it holds.
    stuck: HashSet<&'a Token>,
    /// Those of them whose dependents have not been looked at.
    spreading: Vec<&'a Token>,
    pub(super) steps: u64,
    /// The steps of [`Table::waits_for`] when the search began.
    order_began: u64,
    /// Which owners may overtake which waiters, as far as that was looked at.
    passing: RefCell<HashMap<(WaiterId, &'a Token), bool>>,
    /// What each owner holds, as far as that was looked at: see [`Search::queues_for`].
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
            owners: HashSet::default(),
            cannot_go_on: HashSet::default(),
            stuck: newcomer.into_iter().collect(),
            spreading: newcomer.into_iter().collect(),
            steps: 0,
            order_began: table.order_steps(),
            passing: RefCell::default(),
            held: HashMap::default(),
        }
    }

    /// Reaches every queue that the newcomer's wait depends on; whether one of them is for
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

    /// Reaches every queue that one of the reached ones depends on; whether one of them is for
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

    fn reach_holders(&mut self, lock: Option<&'a Lock>) {
        for owner in lock.map_or_else(Vec::new, |lock| self.table.waiting_holders(lock)) {
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
            self.by_key.insert(key, self.reached.len());
            self.reached.push(Reached {
                queue,
                lock: self
                    .table
                    .lock_in_queue(key)
                    .and_then(|id| self.table.lock(id)),
                free: Vec::new(),
                is_stuck: false,
                is_held_up: false,
                passed: HashMap::default(),
            });
        }
    }

    /// Finds out who cannot continue, if that can make a difference: if every holder of a full
    /// semaphore waits, too.
    pub(super) fn find_progress(&mut self, wanted: &[(&'a Key, Option<&'a Lock>)]) {
        let reached = self.reached.iter().filter_map(|reached| reached.lock);
        let mut locks = reached.chain(wanted.iter().filter_map(|(_, lock)| *lock));
        let waits_for_one = |lock: &Lock| {
            let is_semaphore = matches!(lock, Lock::Shared(_));
            is_semaphore
                && lock.excludes(lock.mode(), self.now)
                && self.waiting_holders(lock) == lock.live_holders(self.now)
        };
        if locks.any(waits_for_one) {
            Progress::find(self);
        }
    }

    /// How many holders of a lock wait; the newcomer is about to.
    pub(super) fn waiting_holders(&self, lock: &Lock) -> usize {
        let others = self.table.waiting_holders(lock).into_iter();
        let others = others.filter(|owner| {
            Some(*owner) != self.newcomer && self.table.holds(Some(lock), owner, self.now)
        });
        others.count() + usize::from(self.does_newcomer_hold(Some(lock)))
    }

    /// Whether somebody who waits holds what others wait for in one of the reached queues.
    pub(super) fn has_waiting_holder(&self) -> bool {
        let mut locks = self.reached.iter().filter_map(|reached| reached.lock);
        locks.any(|lock| self.waiting_holders(lock) > 0)
    }

    /// Finds everybody in the reached queues who cannot continue before the newcomer releases
    /// something.
    pub(super) fn find_stuck(&mut self) {
        for reached in &mut self.reached {
            let lock = reached.lock;
            let waiters = reached.queue.waiting.iter();
            let waiters = waiters.filter_map(|id| Some((*id, &**self.table.queues.get(*id)?)));
            let blocked = waiters.filter(|(id, waiter)| {
                let token = &waiter.terms.token;
                let is_gone = Some(token) == self.newcomer || self.table.is_leaving(*id);
                !is_gone && !self.table.holds(lock, token, self.now)
            });
            reached.free = blocked.collect();
            self.steps += reached.free.len() as u64;
        }
        while let Some(owner) = self.spreading.pop() {
            self.spread_from_holder(owner);
            // The newcomer's own places in queues keep nobody from going on; only its holds do.
            if Some(owner) != self.newcomer {
                self.spread_from_waiter(owner);
            }
        }
    }

    /// The places in [`Search::reached`] of the queues for what an owner holds.
    pub(super) fn queues_for(&mut self, owner: &Token) -> Vec<usize> {
        let Some(held) = self.table.holdings.of(owner) else {
            return Vec::new();
        };
        let (table, now) = (self.table, self.now);
        let holds = |at: &usize| {
            let reached = self.reached.get(*at);
            reached.is_some_and(|reached| table.holds(reached.lock, owner, now))
        };
        self.steps += held.len().min(self.reached.len()) as u64;
        if held.len() <= self.reached.len() {
            let keys = held.iter().filter_map(|id| table.key(*id));
            let queues = keys.filter_map(|key| self.by_key.get(&key).copied());
            queues.filter(holds).collect()
        } else {
            (0..self.reached.len()).filter(holds).collect()
        }
    }

    /// [`Search::queues_for`] an owner, in order; each owner is looked at once.
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

    /// A waiter for something that a stuck owner holds is stuck.
    fn spread_from_holder(&mut self, owner: &'a Token) {
        for at in self.queues_for(owner) {
            let now = self.now;
            let Some(reached) = self.reached.get_mut(at) else {
                continue;
            };
            if std::mem::replace(&mut reached.is_held_up, true) {
                continue;
            }
            let (lock, is_stuck) = (reached.lock, reached.is_stuck);
            let excluded = reached.free.extract_if(.., |(_, waiter)| {
                let mode = waiter.terms.mode;
                lock.is_some_and(|lock| {
                    (is_stuck || !needs_any(lock, mode)) && lock.excludes(mode, now)
                })
            });
            let excluded: Vec<_> = excluded.collect();
            self.are_now_stuck(&excluded);
        }
    }

    /// Whether an owner may overtake a waiter that is ahead of it.
    pub(super) fn may_pass(&self, id: WaiterId, ahead: &Waiter, owner: &'a Token) -> bool {
        if self.table.holdings.of(owner).is_none() {
            return false;
        }
        if ahead.keys.len() == 1 {
            // It waits only for the lock that the owner wants itself, and does not hold.
            self.table.count_order_steps(1);
            return false;
        }
        if let Some(known) = self.passing.borrow().get(&(id, owner)) {
            return *known;
        }
        if self.is_order_exhausted() {
            return false;
        }
        let may_pass = self.table.waits_for(id, ahead, owner, self.now);
        self.passing.borrow_mut().insert((id, owner), may_pass);
        may_pass
    }

    /// Whether as much was spent on which request may overtake which as may be.
    pub(super) fn is_order_exhausted(&self) -> bool {
        self.table.order_steps() - self.order_began >= ORDER_STEPS
    }

    /// A waiter behind a stuck owner that it may not go past is stuck.
    fn spread_from_waiter(&mut self, owner: &'a Token) {
        let table = self.table;
        let holds_nothing = table.holdings.of(owner).is_none();
        let requests = table.queues.of(owner).filter(|id| !table.is_leaving(*id));
        for (id, ahead) in requests.filter_map(|id| Some((id, table.queues.get(id)?))) {
            for key in &ahead.keys {
                let Some(at) = self.by_key.get(key).copied() else {
                    continue;
                };
                let kind = (holds_nothing && ahead.keys.len() <= KEYS_COMPARED)
                    .then_some((&*ahead.keys, ahead.terms.mode));
                self.spread_behind(at, id, ahead, kind);
            }
        }
    }

    /// A waiter in one queue that is behind a stuck one, and may not go past it, is stuck.
    fn spread_behind(&mut self, at: usize, id: WaiterId, ahead: &Waiter, kind: Option<Kind<'a>>) {
        let Some(reached) = self.reached.get_mut(at) else {
            return;
        };
        self.steps += 1;
        if let Some(kind) = kind {
            let first = reached.passed.entry(kind).or_insert(id);
            if *first < id {
                return;
            }
            *first = id;
        }
        let first = reached.free.partition_point(|(waiter, _)| *waiter <= id);
        let behind = reached.free.split_off(first);
        self.steps += behind.len() as u64;
        let (pass, found): (Vec<_>, Vec<_>) = behind
            .into_iter()
            .filter(|(_, waiter)| !self.stuck.contains(&waiter.terms.token))
            .partition(|(_, waiter)| self.may_pass(id, ahead, &waiter.terms.token));
        if let Some(reached) = self.reached.get_mut(at) {
            reached.free.extend(pass);
        }
        self.are_now_stuck(&found);
    }

    /// The first of them is the next to be looked at: those behind it mostly are of its kind.
    fn are_now_stuck(&mut self, waiters: &[(WaiterId, &'a Waiter)]) {
        for (_, waiter) in waiters.iter().rev() {
            let token = &waiter.terms.token;
            if self.stuck.insert(token) {
                self.spreading.push(token);
            }
        }
    }

    /// Whether the newcomer's wait depends on somebody who is stuck.
    pub(super) fn is_stuck(&self, wanted: &[(&'a Key, Option<&'a Lock>)], mode: Mode) -> bool {
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
                let may_pass = |newcomer| self.may_pass(id, ahead, newcomer);
                Some(token) != self.newcomer
                    && !self.table.is_leaving(id)
                    && self.stuck.contains(token)
                    && !self.newcomer.is_some_and(may_pass)
            })
        })
    }

    fn are_holders_stuck(&self, lock: &Lock, mode: Mode) -> bool {
        let lives = |hold: &&Hold| self.table.end_of(hold) > self.now;
        let mut holders = lock.holds().filter(lives);
        if needs_any(lock, mode) {
            let mut one_is_stuck = false;
            let none_can_go_on = holders.all(|hold| {
                one_is_stuck |= self.stuck.contains(&hold.token);
                self.cannot_go_on.contains(&hold.token)
            });
            none_can_go_on && one_is_stuck
        } else if lock.holders() <= self.stuck.len() {
            holders.any(|hold| self.stuck.contains(&hold.token))
        } else {
            let mut stuck = self.stuck.iter();
            stuck.any(|token| self.table.holds(Some(lock), token, self.now))
        }
    }
}

/// Whether a request in `mode` needs only one of the holders to release: a full semaphore.
pub(super) fn needs_any(lock: &Lock, mode: Mode) -> bool {
    matches!((lock, mode), (Lock::Shared(_), Mode::Shared { .. }))
}
