//! Which request may overtake which in a queue: only the owner of something that the requests ahead
//! wait for.

use foldhash::HashSet;

use super::Table;
use crate::lock::Terms;
use crate::queue::{Waiter, WaiterId};
use crate::slots::LockId;
use crate::time::LeaseTime;
use crate::token::{Key, Token};

/// The waiters that one request may overtake, as far as they are known. There are nearly always
/// none: a set that is made only when it is needed saves 100 instructions of a hand-over.
#[derive(Default)]
pub(super) struct Passed(Option<HashSet<WaiterId>>);

impl Passed {
    fn has(&self, id: WaiterId) -> bool {
        self.0.as_ref().is_some_and(|passed| passed.contains(&id))
    }

    fn add(&mut self, id: WaiterId) {
        self.0.get_or_insert_default().insert(id);
    }
}

impl Table {
    /// Whether the queue of `key` has a waiter before `place` that `token` may not overtake.
    /// `passed` is for one request.
    pub(super) fn is_behind(
        &self,
        key: &Key,
        place: Option<WaiterId>,
        token: &Token,
        now: LeaseTime,
        passed: &mut Passed,
    ) -> bool {
        let Some(queue) = self.queues.at(key) else {
            return false;
        };
        let mut ahead = queue
            .waiting
            .iter()
            .take_while(|ahead| place.is_none_or(|place| **ahead < place));
        ahead.any(|id| {
            self.places_seen.set(self.places_seen.get() + 1);
            let is_past = passed.has(*id) || self.is_leaving(*id);
            let Some(waiter) = self.queues.get(*id).filter(|_| !is_past) else {
                return false;
            };
            let may_pass = self.waits_for(*id, waiter, token, now);
            if may_pass {
                passed.add(*id);
            }
            !may_pass
        })
    }

    /// How many keys or holds were visited so far to decide which request may overtake which.
    #[must_use]
    pub fn order_steps(&self) -> u64 {
        self.order_steps.get()
    }

    pub(super) fn count_order_steps(&self, steps: usize) {
        self.order_steps.set(self.order_steps.get() + steps as u64);
    }

    /// Whether a waiter waits for something that another owner, `token`, holds: then that owner may
    /// overtake it. Visits the keys of the waiter or the holds of the owner, whichever are fewer.
    pub(super) fn waits_for(
        &self,
        id: WaiterId,
        waiter: &Waiter,
        token: &Token,
        now: LeaseTime,
    ) -> bool {
        let Some(held) = self.holdings.of(token) else {
            return false;
        };
        self.count_order_steps(waiter.keys.len().min(held.len()));
        let Terms {
            mode, token: own, ..
        } = &waiter.terms;
        let keeps_it_out = |lock: LockId| {
            let lock = self.lock(lock);
            self.holds(lock, token, now)
                && !self.holds(lock, own, now)
                && lock.is_some_and(|lock| lock.excludes(*mode, now))
        };
        if waiter.keys.len() <= held.len() {
            let mut locks = waiter.keys.iter().filter_map(|key| self.lock_in_queue(key));
            return locks.any(keeps_it_out);
        }
        held.iter().any(|lock| {
            let entry = self.slots.get(*lock).filter(|entry| entry.queued);
            let key = entry.and_then(|entry| self.spaces.outside(&entry.key));
            key.is_some_and(|key| {
                let queue = self.queues.at(&key);
                queue.is_some_and(|queue| queue.waiting.contains(&id))
                    && self.lock_in_queue(&key) == Some(*lock)
                    && keeps_it_out(*lock)
            })
        })
    }

    /// Notes the waiters in the queue of `key` that may hold another key that its first waiter
    /// waits for: they must be checked. Visits the owners that hold something and wait, the keys of
    /// the first waiter, or the waiters behind it, whichever are fewest.
    pub(super) fn note_passing(&mut self, head: WaiterId, key: &Key) {
        let Some(first) = self.queues.get(head).filter(|head| head.keys.len() > 1) else {
            return;
        };
        let Some(queue) = self.queues.at(key).filter(|queue| queue.waiting.len() > 1) else {
            return;
        };
        let owners = self.holdings.waiting();
        let mut fewest = first.keys.len().min(queue.waiting.len());
        let waiting: Vec<_> = if owners.len() < fewest {
            fewest = owners.len();
            let waiting = owners.flat_map(|owner| self.queues.of(owner));
            let waiting = waiting.inspect(|_| fewest += 1);
            let behind = waiting.filter(|id| *id != head && queue.waiting.contains(id));
            behind.collect()
        } else if first.keys.len() <= queue.waiting.len() {
            let others = first.keys.iter().filter(|other| *other != key);
            let locks = others
                .filter_map(|other| self.lock_in_queue(other))
                .filter_map(|id| self.lock(id));
            let owners = locks.flat_map(|lock| self.waiting_holders(lock));
            let waiting = owners
                .flat_map(|owner| self.queues.of(owner))
                .filter(|id| queue.waiting.contains(id));
            waiting.collect()
        } else {
            let behind = queue.waiting.iter().filter(|id| **id != head);
            let holds_something = |id: &&WaiterId| {
                let waiter = self.queues.get(**id);
                waiter.is_some_and(|waiter| self.holdings.of(&waiter.terms.token).is_some())
            };
            behind.filter(holds_something).copied().collect()
        };
        self.looks += (fewest + waiting.len()) as u64;
        let key = |id| (id, key.clone());
        self.passing.extend(waiting.into_iter().map(key));
    }
}
