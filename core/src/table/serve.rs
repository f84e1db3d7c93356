//! How waiters are served: in order of arrival on every key, and all keys of a request at once.

use std::sync::Arc;

use super::order::Passed;
use super::{Answer, Denial, Found, Keyspace, LegacyString, TAKEN_AT_ONCE, Table};
use crate::lock::{Hold, Lock, Standing};
use crate::queue::{Left, Waiter, WaiterId};
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::{LeaseTime, Now};
use crate::token::{Key, Token};

/// After visits to waiters for this many keys, the others are left for the next decision.
const LOOKED_AT_ONCE: u64 = 16;

/// This many comparisons of which request may overtake which take as long as one visit.
const ORDER_STEPS_IN_A_LOOK: u64 = 4;

/// This many places of others in a queue can be read in the time of one visit.
const PLACES_IN_A_LOOK: u64 = 32;

/// Whether one key is available for a waiter now, and the lock that is there.
enum Look {
    Comes(Option<LockId>),
    NotYet,
}

/// A key to check for a waiter, and what is known about it: a hand-over looks up its queue and lock
/// once, which saves 400 instructions.
#[derive(Clone, Copy)]
struct Changed<'a> {
    key: &'a Key,
    /// The lock that is there, if it was looked up just now.
    lock: Option<LockId>,
    /// Whether the waiter is known to be the first there.
    is_first: bool,
}

impl<'a> Changed<'a> {
    /// A key about which nothing is known.
    fn at(key: &'a Key) -> Self {
        Self {
            key,
            lock: None,
            is_first: false,
        }
    }
}

/// Whether the locks of a waiter are available now.
enum Turn {
    Comes(SmallList<Option<LockId>>),
    NotYet,
    /// It gets this answer instead.
    Never(Answer),
}

impl Table {
    /// Removes ended leases from a lock, and serves its queue if that made room. Returns whether
    /// the lock still exists. At most [`TAKEN_AT_ONCE`] are removed, including that of `token`.
    pub(super) fn settle(
        &mut self,
        id: LockId,
        token: Option<&Token>,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> bool {
        let lease_now = self.clock.at(now.mono);
        let Some(entry) = self.slots.get(id) else {
            return false;
        };
        if entry.lock.first_end().is_some_and(|end| end > lease_now) && self.closing.is_empty() {
            return true;
        }
        self.take_off_what_ended(id, token, now);
        self.serve_unserved_if_any(now, keyspace);
        true
    }

    /// [`Table::settle`], which only notes the consequences for waiters.
    pub(super) fn settle_silently(&mut self, id: LockId, token: &Token, now: Now) {
        let lease_now = self.clock.at(now.mono);
        let first_end = self.lock(id).and_then(Lock::first_end);
        if first_end.is_some_and(|end| end <= lease_now) || !self.closing.is_empty() {
            self.take_off_what_ended(id, Some(token), now);
        }
    }

    /// Removes ended leases until the rest makes no difference to `token`. It only notes the
    /// consequences for waiters.
    pub(super) fn take_off_what_ended(&mut self, id: LockId, token: Option<&Token>, now: Now) {
        self.end_ties_at(id, token);
        let lease_now = self.clock.at(now.mono);
        let Some(lock) = self.lock(id) else {
            return;
        };
        if lock.holders() > TAKEN_AT_ONCE {
            if lock.last_end().is_some_and(|end| end <= lease_now) {
                return self.discard_ended(id, lease_now);
            }
            // Its own hold may come after many others that have ended.
            let own = token.and_then(|token| lock.hold(token));
            if let Some(token) = own.filter(|hold| hold.end <= lease_now).and(token) {
                self.take_ended_hold(id, lease_now, |lock| lock.take(token));
            }
        }
        let taken = self.touched(id);
        let taken = taken.map(|touched| touched.events.expired as usize);
        let most = TAKEN_AT_ONCE.saturating_sub(taken.unwrap_or(0));
        self.take_ended_off(id, most, now);
    }

    /// Removes ended leases from a lock, at most this many, and returns how many. It only notes
    /// the consequences for waiters.
    pub(super) fn take_ended_off(&mut self, id: LockId, most: usize, now: Now) -> usize {
        let lease_now = self.clock.at(now.mono);
        for taken in 0..most {
            let lock = self.lock(id).and_then(Lock::first_end);
            if lock.is_none_or(|end| end > lease_now) {
                return taken;
            }
            self.take_ended_hold(id, lease_now, |lock| lock.take_ended(lease_now));
        }
        most
    }

    fn take_ended_hold(
        &mut self,
        id: LockId,
        now: LeaseTime,
        take: impl FnOnce(&mut Lock) -> Option<Hold>,
    ) {
        self.note_room(id);
        self.touch(id);
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        let known = entry.is_known();
        if let Some(hold) = take(&mut entry.lock) {
            self.suspect_losers(id, &hold.token);
            self.touch_hold(id, &hold.token, |events| events.expired += 1);
            self.counters.expiries += 1;
            self.ended(id, &hold, known, now);
        }
    }

    /// A hold has ended: the waiters of the lock must be served.
    pub(super) fn note_room(&mut self, id: LockId) {
        if let Some(key) = self.slots.get(id).and_then(|entry| self.waited_key(entry)) {
            self.unserved.insert(key);
        }
    }

    /// Serves the queues that have changed, unless the node may not grant. If very many can be
    /// served, the rest is left for the next call.
    pub fn serve(&mut self, now: Now, keyspace: &mut dyn Keyspace) {
        self.serve_some(usize::MAX, now, keyspace);
    }

    /// [`Table::serve`] for a caller that does at most `most` steps at a time.
    pub fn serve_some(&mut self, most: usize, now: Now, keyspace: &mut dyn Keyspace) {
        if self.holds_back || self.pause(now.mono).is_some() {
            return;
        }
        let enough = self.looks + LOOKED_AT_ONCE.min(most as u64);
        while self.may_continue(enough) {
            if let Some(waiter) = self.next_up.pop_first() {
                self.looks += 1;
                self.serve_waiter(waiter, None, now, keyspace);
            } else if let Some((waiter, key)) = self.passing.pop_first() {
                let changed = Changed::at(&key);
                self.serve_waiter(waiter, Some(changed), now, keyspace);
            } else if self.is_search_due() {
                self.resolve_deadlock(self.clock.at(now.mono));
            } else if let Some(key) = self.unserved.pop() {
                self.serve_queue(&key, enough, now, keyspace);
            } else {
                return;
            }
        }
    }

    /// Whether to search for deadlocks before the next queue is served.
    fn is_search_due(&mut self) -> bool {
        if self.suspects.is_empty() || self.is_sweeping() {
            return false;
        }
        let passes = self.unserved.passes();
        self.unserved.is_empty() || self.suspects.are_due(passes)
    }

    /// Whether more waiters may be served in this decision.
    fn may_continue(&self, enough: u64) -> bool {
        self.looks < enough && !self.undelivered.are_enough()
    }

    /// How many keys of waiters, and queues, were visited so far to serve waiters.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether a batch of at most `most` events has visited enough keys of waiters since it began.
    pub(super) fn has_looked_enough(&self, began: u64, most: usize) -> bool {
        self.looks - began >= LOOKED_AT_ONCE.min(most as u64)
    }

    /// Whether waiters can be served that were left because there were too many.
    #[must_use]
    pub fn has_more_to_serve(&self, now: Now) -> bool {
        self.has_unserved() && !self.holds_back && self.pause(now.mono).is_none()
    }

    /// [`Table::serve`], nearly free if there is nothing to do.
    pub(super) fn serve_unserved_if_any(&mut self, now: Now, keyspace: &mut dyn Keyspace) {
        if self.has_unserved() {
            self.serve(now, keyspace);
        }
    }

    /// Whether queues are left to be served.
    #[must_use]
    pub fn has_unserved(&self) -> bool {
        let served = self.unserved.is_empty() && self.next_up.is_empty() && self.passing.is_empty();
        !(served && self.suspects.is_empty())
    }

    fn serve_queue(&mut self, key: &Key, enough: u64, now: Now, keyspace: &mut dyn Keyspace) {
        // A visit to a queue counts, even if nobody is served.
        self.looks += 1;
        while let Some(queue) = self.queues.at(key)
            && let Some(head) = queue.waiting.first().copied()
        {
            let changed = Changed {
                key,
                lock: self.lock_of(queue, key),
                is_first: true,
            };
            let lock = changed.lock;
            // All changes of this queue until now are handled here.
            self.unserved.remove(key);
            if self.is_leaving(head) {
                // The queue is noted again when it has left.
                return;
            }
            if !self.serve_waiter(head, Some(changed), now, keyspace) {
                // It waits for another key. Only the holders of that key may overtake it.
                self.note_passing(head, key);
                return;
            }
            if let Some(Lock::Exclusive(_)) = lock.and_then(|id| self.lock(id)) {
                // Now only requests with the same token can get it, and those are in `next_up`.
                self.unserved.remove(key);
                return;
            }
            if !self.may_continue(enough) {
                if self.queues.at(key).is_some() {
                    self.unserved.insert(key.clone());
                }
                return;
            }
        }
    }

    /// Answers a waiter if its turn has come. Returns whether it has left the queue. `changed` is
    /// the key that has changed, if it is known.
    fn serve_waiter(
        &mut self,
        id: WaiterId,
        changed: Option<Changed<'_>>,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> bool {
        match self.turn(id, changed, now, keyspace) {
            Turn::NotYet => false,
            Turn::Never(answer) => {
                self.dismiss(id, answer);
                true
            }
            Turn::Comes(locks) => {
                if let Some(left) = self.leave_silently(id) {
                    // The caller continues with the queue of the only key, if it is serving it. A
                    // new lock must find that its key has a queue.
                    let is_served = |at: Changed<'_>| at.is_first && at.lock.is_some();
                    if left.waiter.keys.len() > 1 || !changed.is_some_and(is_served) {
                        self.note_next(&left);
                    }
                    self.admit(id, &left, &locks, now);
                    self.queues.reuse(left.waiter);
                }
                true
            }
        }
    }

    /// Whether the locks of a waiter are available now.
    ///
    /// A request for very many keys waits in the queues of all of them, and is checked whenever one
    /// changes. Usually the key that was not available the last time is still not available, so
    /// that one is checked first, and often no other. A change that concerns the request itself (it
    /// may be refused) is noticed at once; if the changed key is unknown, every key is checked.
    fn turn(
        &mut self,
        id: WaiterId,
        changed: Option<Changed<'_>>,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Turn {
        let Some(waiter) = self.queues.get(id).filter(|_| !self.is_leaving(id)) else {
            return Turn::NotYet;
        };
        let waiter = Arc::clone(waiter);
        let (keys, mut passed) = (&waiter.keys, Passed::default());
        let alone = keys.len() == 1;
        let first = || keys.first().filter(|_| alone).map(Changed::at);
        if let Some(at) = changed.or_else(first) {
            match self.look_for(id, &waiter, at, &mut passed, now, keyspace) {
                Ok(Look::NotYet) => return Turn::NotYet,
                Ok(Look::Comes(lock)) if alone => return Turn::Comes(SmallList::One(lock)),
                Ok(Look::Comes(_)) => {}
                Err(answer) => return Turn::Never(answer),
            }
        }
        let (first, touched) = (waiter.held_up_at(), self.output.touched.len());
        let (mut locks, mut held_up) = (Vec::new(), None);
        let in_turn = (first..keys.len()).chain(0..first);
        for (at, key) in in_turn.filter_map(|at| Some((at, keys.get(at)?))) {
            if self.output.touched.len() > touched + TAKEN_AT_ONCE {
                // Very many leases have ended there: the rest is left for the next decision.
                waiter.is_held_up_at(at);
                match changed {
                    Some(changed) => self.unserved.insert(changed.key.clone()),
                    None => self.next_up.insert(id),
                }
                self.looks += LOOKED_AT_ONCE;
                return Turn::NotYet;
            }
            let at_key = Changed::at(key);
            match self.look_for(id, &waiter, at_key, &mut passed, now, keyspace) {
                Err(answer) => return Turn::Never(answer),
                Ok(Look::Comes(lock)) => locks.push(lock),
                Ok(Look::NotYet) => {
                    held_up.get_or_insert(at);
                    if changed.is_some() {
                        break;
                    }
                }
            }
        }
        match held_up {
            Some(at) => {
                waiter.is_held_up_at(at);
                Turn::NotYet
            }
            None => {
                locks.rotate_right(first);
                Turn::Comes(SmallList::Many(locks))
            }
        }
    }

    /// Whether one of the keys of a waiter is available now; an error is what the waiter gets
    /// instead. A key that belongs to another node may have an owner there.
    fn look_for(
        &mut self,
        id: WaiterId,
        waiter: &Waiter,
        at: Changed<'_>,
        passed: &mut Passed,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Result<Look, Answer> {
        let (terms, key) = (&waiter.terms, at.key);
        self.looks += 1;
        let lock = match self.look_at(at, &terms.token, now, keyspace) {
            Found::Nothing => None,
            Found::Lock(lock) => Some(lock),
            Found::LegacyString(_) => return Ok(Look::NotYet),
            Found::Other => return Err(Answer::Denied(Denial::WrongType)),
            Found::Elsewhere => return Err(Answer::Unblocked),
        };
        let (lease_now, steps) = (self.clock.at(now.mono), self.order_steps());
        let places = self.places_seen.get();
        let comes = match self.standing(lock, terms) {
            Standing::Refused(refusal) => {
                return Err(Answer::Denied(Denial::Refused(refusal)));
            }
            Standing::Excluded => false,
            Standing::Held => true,
            Standing::Open => {
                at.is_first || !self.is_behind(key, Some(id), &terms.token, lease_now, passed)
            }
        };
        self.looks += (self.order_steps() - steps) / ORDER_STEPS_IN_A_LOOK;
        self.looks += (self.places_seen.get() - places) / PLACES_IN_A_LOOK;
        Ok(if comes {
            Look::Comes(lock)
        } else {
            Look::NotYet
        })
    }

    /// What is at a key with waiters. Ended leases of a lock are removed.
    fn look_at(
        &mut self,
        at: Changed<'_>,
        token: &Token,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Found {
        let key = at.key;
        if let Some(id) = at.lock.or_else(|| self.lock_in_queue(key)) {
            self.settle_silently(id, token, now);
            return Found::Lock(id);
        }
        if self.strings.contains(key) {
            return Found::LegacyString(LegacyString { end: None });
        }
        let found = match keyspace.find(self, key) {
            Found::Lock(id) if self.slots.get(id).is_none() => Found::Nothing,
            found => found,
        };
        match found {
            Found::Lock(id) => {
                self.attach_queue(key, Some(id));
                self.suspect_holders(id);
                self.take_off_what_ended(id, Some(token), now);
            }
            Found::LegacyString(string) => {
                self.attach_queue(key, None);
                self.strings.insert(key, string, now.mono);
            }
            Found::Nothing | Found::Other | Found::Elsewhere => self.attach_queue(key, None),
        }
        found
    }

    /// Notes which lock is at the key of a queue.
    pub(super) fn attach_queue(&mut self, key: &Key, lock: Option<LockId>) {
        if self.queues.note_lock(key, lock)
            && let Some(id) = lock
        {
            self.has_queue(id);
        }
    }

    /// Notes that somebody waits for the key of a lock.
    pub(super) fn has_queue(&mut self, id: LockId) {
        // The holders of a lock that already had waiters are known.
        if let Some(entry) = self.slots.get_mut(id)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.note_holders(id);
        }
    }

    fn admit(&mut self, id: WaiterId, left: &Left, locks: &[Option<LockId>], now: Now) {
        let waiter = &left.waiter;
        let (keys, token) = (&waiter.keys, &waiter.terms.token);
        // Only a request that may be a repetition leaves a hold as it is.
        let is_found =
            |lock: &Option<LockId>| lock.and_then(|id| self.fence_of(id, token)).is_some();
        let is_found = waiter
            .terms
            .once
            .then(|| SmallList::of_each(locks, is_found));
        let key = |at: usize| keys.get(at).cloned().unwrap_or_default();
        let waits = Some(left.owner_waits);
        let answer = match self.grant(locks, key, &waiter.terms, waits, now) {
            Ok(granted) => {
                self.wait_times.record(now.mono.since(waiter.since));
                let holds = holds_of(keys, &granted, is_found);
                self.undelivered.add(id, token, holds);
                Answer::Granted(granted)
            }
            Err(denial) => Answer::Denied(denial),
        };
        self.output.answers.push((id, answer));
    }
}

/// The holds of a grant: those whose count it has increased, and those that it has found.
fn holds_of(
    keys: &[Key],
    fences: &[u64],
    is_found: Option<SmallList<bool>>,
) -> [SmallList<(Key, u64)>; 2] {
    let (mut counted, mut found) = <(SmallList<_>, SmallList<_>)>::default();
    match (keys, fences, is_found) {
        // The usual case. It takes 50 instructions less by itself.
        ([key], [fence], None) => counted = SmallList::One((key.clone(), *fence)),
        (_, _, is_found) => {
            let is_found = |at: usize| is_found.as_ref().and_then(|found| found.get(at).copied());
            for (at, (key, fence)) in keys.iter().zip(fences).enumerate() {
                let is_found = is_found(at).unwrap_or(false);
                let holds = if is_found { &mut found } else { &mut counted };
                holds.push((key.clone(), *fence));
            }
        }
    }
    [counted, found]
}
