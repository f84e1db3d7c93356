//! What clients ask for.

use foldhash::HashSet;

use super::{Denial, Events, Extended, Granted, Keyspace, Table, Verdict, Wanted};
use crate::fence::check_lead;
use crate::lock::{Hold, Lock, Mode, Standing, Terms, check_end, latest_end, tighter};
use crate::queue::{HeldUpAt, SLOTS, Waiter, WaiterId};
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::{LeaseTime, Micros, Now, Wait};
use crate::token::{Key, Token};

impl Table {
    /// Asks for all of `wanted`, or none of them.
    pub fn acquire(
        &mut self,
        wanted: &[Wanted<'_>],
        terms: &Terms,
        wait: Wait,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Verdict {
        if let Err(denial) = self.check_quarantine(now) {
            return Verdict::Denied(denial);
        }
        let locks = self.settled(wanted, &terms.token, now, keyspace);
        let (mut free, mut passed) = (true, HashSet::default());
        for (want, lock) in wanted.iter().zip(&locks) {
            if want.string.is_some() {
                free = false;
                continue;
            }
            match self.standing(*lock, terms) {
                Standing::Refused(refusal) => return Verdict::Denied(Denial::Refused(refusal)),
                Standing::Excluded => free = false,
                Standing::Held => {}
                Standing::Open => {
                    if free && self.may_have_queue(*lock) {
                        free = !self.is_behind(
                            &Key::new(want.db, want.name),
                            None,
                            &terms.token,
                            self.clock.at(now.mono),
                            &mut passed,
                        );
                    }
                }
            }
        }
        if free {
            let key = |at: usize| {
                wanted
                    .get(at)
                    .map_or_else(Key::default, |want| Key::new(want.db, want.name))
            };
            let granted = self.grant(&locks, key, terms, now);
            if terms.once && granted.is_ok() {
                let locks = locks.iter().flatten();
                locks.for_each(|lock| self.confirm(*lock, &terms.token));
            }
            self.serve_unserved_if_any(now, keyspace);
            return match granted {
                Ok(granted) => Verdict::Granted(granted),
                Err(denial) => Verdict::Denied(denial),
            };
        }
        if let Err(denial) = self.check_terms(&locks, terms, now) {
            return Verdict::Denied(denial);
        }
        if wait == Wait::No {
            self.counters.denials += 1;
            return Verdict::Busy;
        }
        match self.enqueue(wanted, &locks, terms, wait, now) {
            Ok(waiter) => Verdict::Waits(waiter),
            Err(denial) => Verdict::Denied(denial),
        }
    }

    /// Takes one hold off, or all of them; how many were taken off, 0 if the token holds none.
    pub fn release(
        &mut self,
        want: &Wanted<'_>,
        token: &Token,
        all: bool,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> u32 {
        let taken = self.take_back(want, token, all, now);
        self.serve_unserved_if_any(now, keyspace);
        taken
    }

    /// [`Table::release`] of several locks: the waiters are served when all are released.
    pub fn release_each<'a>(
        &mut self,
        wanted: impl Iterator<Item = Wanted<'a>>,
        token: &Token,
        all: bool,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Vec<u32> {
        let taken = wanted.map(|want| self.take_back(&want, token, all, now));
        let taken = taken.collect();
        self.serve_unserved_if_any(now, keyspace);
        taken
    }

    /// [`Table::release`]; what follows for waiters is noted, not done.
    fn take_back(&mut self, want: &Wanted<'_>, token: &Token, all: bool, now: Now) -> u32 {
        let mut taken = 0;
        if let Some(id) = want.lock {
            self.settle_silently(id, token, now);
            taken = self.take_off(id, token, all, now);
        }
        if taken > 0 {
            self.counters.releases += 1;
        }
        if all && !self.queues.is_empty() {
            self.cancel(&Key::new(want.db, want.name), token);
        }
        taken
    }

    /// Extends the lease of `token`'s hold, and raises its fence to at least `fence`.
    #[allow(clippy::too_many_arguments)]
    pub fn extend(
        &mut self,
        lock: Option<LockId>,
        token: &Token,
        ttl: Micros,
        fence: Option<u64>,
        connection: Option<u64>,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Extended {
        if let Err(denial) = self.check_quarantine(now) {
            return Extended::Denied(denial);
        }
        let settle = |lock: &LockId| self.settle(*lock, Some(token), now, keyspace);
        let Some(id) = lock.filter(settle) else {
            return Extended::NotHeld;
        };
        if self.lock(id).is_none_or(|lock| lock.hold(token).is_none()) {
            return Extended::NotHeld;
        }
        if let Err(error) = check_lead(now.wall, fence) {
            return Extended::Denied(Denial::Fence(error));
        }
        let (lease_now, cap) = (self.clock.at(now.mono), self.limits.max_hold);
        // What was changed before, as the connection of an ephemeral hold was closed, stays.
        let was_touched = self.slots.get(id).is_some_and(|entry| entry.touch != 0);
        self.touch_hold(id, token, |_| ());
        let Some(entry) = self.slots.get_mut(id) else {
            return Extended::NotHeld;
        };
        let renewed = entry.lock.change(token, |hold| {
            hold.renew(lease_now, ttl, cap)?;
            hold.fence = hold.fence.max(fence.unwrap_or(0));
            Ok((hold.fence, hold.tie()))
        });
        match renewed {
            None => Extended::NotHeld,
            Some(Err(over)) => {
                if !was_touched {
                    self.untouch(id);
                }
                Extended::Denied(Denial::OverCap(over))
            }
            Some(Ok((held, tie))) => {
                self.touch_hold(id, token, |events| events.extended += 1);
                self.fences.raise(held);
                self.counters.extends += 1;
                if tie.is_some_and(|tie| tie.role == self.role_changes) {
                    self.rebind(id, token, connection);
                }
                self.confirm(id, token);
                Extended::To(held)
            }
        }
    }

    /// Ends every hold of a lock; how many holders there were. Those who wait are served
    /// afterwards: who gets the lock because a lease has ended keeps it.
    pub fn force(&mut self, want: &Wanted<'_>, now: Now, keyspace: &mut dyn Keyspace) -> u64 {
        let holders = want.lock.map_or(0, |id| self.end_all(id, now));
        self.serve_unserved_if_any(now, keyspace);
        holders
    }

    /// Ends every hold of a lock; what follows for waiters is noted, not done.
    fn end_all(&mut self, id: LockId, now: Now) -> u64 {
        self.take_off_what_ended(id, None, now);
        if self.lock(id).is_none_or(Lock::is_free) {
            return 0;
        }
        let lease_now = self.clock.at(now.mono);
        self.note_room(id);
        if self.is_waited_for(id) {
            self.suspect_holders(id);
        }
        if let Some(touched) = self.touch(id) {
            touched.events.forced += 1;
            touched.whole = true;
        }
        let Some(entry) = self.slots.get_mut(id) else {
            return 0;
        };
        let known = entry.is_known();
        let lock = std::mem::take(&mut entry.lock);
        // Of very many, some may have ended before.
        let holders = lock.live_holders(lease_now) as u64;
        self.counters.forced += holders;
        self.counters.expiries += lock.holders() as u64 - holders;
        self.forget_holders(id, lock, known, Some(lease_now));
        holders
    }

    /// Whether `token` holds the lock at this moment, and the node may say so.
    ///
    /// # Errors
    /// In quarantine.
    pub fn guards(
        &mut self,
        lock: Option<LockId>,
        token: &Token,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Result<bool, Denial> {
        self.check_quarantine(now)?;
        let settle = |lock: &LockId| self.settle(*lock, Some(token), now, keyspace);
        let Some(id) = lock.filter(settle) else {
            return Ok(false);
        };
        let holds = self.lock(id).is_some_and(|lock| lock.hold(token).is_some());
        if holds {
            self.confirm(id, token);
        }
        Ok(holds)
    }

    /// The locks at the wanted keys, their ended leases taken off.
    #[inline]
    fn settled(
        &mut self,
        wanted: &[Wanted<'_>],
        token: &Token,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> SmallList<Option<LockId>> {
        let mut settle = |lock: LockId| self.settle(lock, Some(token), now, keyspace);
        if let [want] = wanted {
            return SmallList::One(want.lock.filter(|lock| settle(*lock)));
        }
        // All of them first: settling one may lead to a grant of another.
        for want in wanted {
            want.lock.map(&mut settle);
        }
        wanted.iter().map(|want| self.place(want)).collect()
    }

    /// The lock at a wanted key: the one that was found there, or one that a waiter was granted
    /// since.
    fn place(&self, want: &Wanted<'_>) -> Option<LockId> {
        if want.lock.is_some_and(|id| self.slots.get(id).is_some()) {
            return want.lock;
        }
        let mut made = self.output.touched.iter().map(|touched| touched.id);
        made.find(|id| self.is_at(*id, want.db, want.name))
    }

    pub(super) fn standing(&self, lock: Option<LockId>, terms: &Terms) -> Standing {
        match lock.and_then(|id| self.lock(id)) {
            Some(lock) => lock.standing(&terms.token, terms.mode, self.limits.max_holders),
            None => Standing::Open,
        }
    }

    fn check_quarantine(&mut self, now: Now) -> Result<(), Denial> {
        match self.pause(now.mono) {
            None => Ok(()),
            Some((left, reason)) => {
                self.counters.quarantined += 1;
                Err(Denial::Quarantined(left, reason))
            }
        }
    }

    /// Whether the lease would be granted whole, under every cap, and the fence may be wished for.
    /// Says whether all are held already.
    #[inline]
    fn check_terms(
        &self,
        locks: &[Option<LockId>],
        terms: &Terms,
        now: Now,
    ) -> Result<bool, Denial> {
        let lease_now = self.clock.at(now.mono);
        let cap = tighter(terms.max_hold, self.limits.max_hold);
        let mut all_held = true;
        for lock in locks {
            let lock = lock.and_then(|id| self.lock(id));
            let latest = match lock.and_then(|lock| lock.hold(&terms.token)) {
                Some(hold) => hold.latest_end(cap),
                None => {
                    all_held = false;
                    latest_end(lease_now, cap)
                }
            };
            check_end(latest, lease_now, terms.ttl).map_err(Denial::OverCap)?;
        }
        if !all_held {
            check_lead(now.wall, terms.fence).map_err(Denial::Fence)?;
        }
        Ok(all_held)
    }

    /// Whether somebody may wait for the key of this lock, or for a key that has none.
    fn may_have_queue(&self, lock: Option<LockId>) -> bool {
        match lock.and_then(|id| self.slots.get(id)) {
            Some(entry) => entry.queued || self.sweep.is_some(),
            None => self.may_have_queues(),
        }
    }

    /// Grants all: nothing is in the way. `key` names the keys that have no lock yet.
    pub(super) fn grant(
        &mut self,
        locks: &[Option<LockId>],
        key: impl Fn(usize) -> Key,
        terms: &Terms,
        now: Now,
    ) -> Result<Granted, Denial> {
        // Asked of all first: a key that cannot be had leaves the others as they were.
        let all_held = self.check_terms(locks, terms, now)?;
        let lease_now = self.clock.at(now.mono);
        let fence = if all_held {
            0
        } else {
            self.fences
                .next(now.wall, terms.fence)
                .map_err(Denial::Fence)?
        };
        let mut is_waited_for = false;
        let mut grant = |(at, lock): (usize, &Option<LockId>)| {
            let id = lock.unwrap_or_else(|| self.new_lock(key(at), Lock::Free));
            let (fence, is_news) = self.grant_one(id, terms, fence, lease_now);
            is_waited_for |= is_news;
            fence
        };
        let fences = match locks {
            [lock] => SmallList::One(grant((0, lock))),
            _ => locks.iter().enumerate().map(grant).collect(),
        };
        if is_waited_for {
            // What else this owner waits for may be a re-entry now, or may overtake those who wait
            // for it.
            if let Some(waits) = self.queues.waits_of(&terms.token) {
                self.next_up.extend(waits.iter().copied());
                self.suspects.insert(terms.token.clone());
            }
        }
        Ok(fences)
    }

    /// The fence; and whether the owner did not hold it, and others wait for it.
    fn grant_one(&mut self, id: LockId, terms: &Terms, fence: u64, now: LeaseTime) -> (u64, bool) {
        self.touch_hold(id, &terms.token, |events| events.acquired += 1);
        let Some(entry) = self.slots.get_mut(id) else {
            return (fence, false);
        };
        let mut is_news = false;
        let (cap, role) = (self.limits.max_hold, self.role_changes);
        let reentered = entry.lock.change(&terms.token, |hold| {
            let bound = hold.tie().is_some_and(|tie| tie.role == role);
            // Never over a cap: `grant` has asked before.
            let _ = hold.renew(now, terms.ttl, cap);
            hold.reenter(u32::from(!terms.once));
            hold.note(terms);
            (hold.fence, bound)
        });
        let (fence, bound) = match reentered {
            Some((fence, bound)) => {
                self.counters.reentries += 1;
                (fence, bound)
            }
            None => {
                entry.lock.grant(Hold::new(terms, fence, now), terms.mode);
                self.counters.grants += 1;
                if entry.is_known() {
                    self.holdings.add(&terms.token, id, &self.queues);
                }
                is_news = entry.queued;
                if is_news && self.queues.has_several_keys() {
                    self.let_past_if_full(id, terms.mode, now);
                }
                (fence, false)
            }
        };
        if terms.ephemeral || bound {
            self.rebind(id, &terms.token, terms.connection);
        }
        (fence, is_news)
    }

    /// Where a semaphore has become full, its waiters wait for all its holders from now
    /// on: these may overtake them in the queues of other keys.
    fn let_past_if_full(&mut self, id: LockId, mode: Mode, now: LeaseTime) {
        let lock = self.slots.get(id).map(|entry| &entry.lock);
        let is_full = |lock: &&Lock| mode != Mode::Exclusive && lock.excludes(mode, now);
        if let Some(lock) = lock.filter(is_full) {
            let holders = self.holdings.waiting_holders(lock, &self.queues);
            let requests = holders.iter().flat_map(|token| self.queues.of(token));
            self.next_up.extend(requests);
        }
    }

    /// Takes holds of `token` off; how many. What follows for waiters is noted, not done.
    pub(super) fn take_off(&mut self, id: LockId, token: &Token, all: bool, now: Now) -> u32 {
        let lease_now = self.clock.at(now.mono);
        let Some(count) = self
            .lock(id)
            .and_then(|lock| lock.hold(token))
            .map(Hold::count)
        else {
            return 0;
        };
        self.touch_hold(id, token, |events| events.released += 1);
        let Some(entry) = self.slots.get_mut(id) else {
            return 0;
        };
        if count > 1 && !all {
            entry.lock.change(token, Hold::leave_once);
            return 1;
        }
        let known = entry.is_known();
        let hold = entry.lock.take(token);
        self.note_room(id);
        self.suspect_losers(id, token);
        if let Some(hold) = hold {
            self.ended(id, &hold, known, lease_now);
        }
        count
    }

    /// Puts a request into the queue of each of its keys.
    fn enqueue(
        &mut self,
        wanted: &[Wanted<'_>],
        locks: &[Option<LockId>],
        terms: &Terms,
        wait: Wait,
        now: Now,
    ) -> Result<WaiterId, Denial> {
        let (waiting, leaving) = (self.queues.len(), self.leaving.len());
        if waiting - leaving >= self.limits.max_waiters || waiting >= SLOTS - 1 {
            return Err(Denial::TooManyWaiters);
        }
        let keys = SmallList::of_each(wanted, |want| Key::new(want.db, want.name));
        if self.would_deadlock(&keys, locks, terms, self.clock.at(now.mono)) {
            self.counters.deadlocks += 1;
            return Err(Denial::Deadlock);
        }
        let waiter = Waiter {
            keys: keys.clone(),
            terms: terms.clone(),
            until: match wait {
                Wait::Until(until) => Some(until),
                Wait::No | Wait::Forever => None,
            },
            since: now.mono,
            held_up_at: HeldUpAt::default(),
        };
        let id = self.queues.join(waiter);
        self.holdings.waits(&terms.token);
        for (key, lock) in keys.iter().zip(locks) {
            self.attach_queue(key, *lock);
        }
        for (key, want) in keys.iter().zip(wanted) {
            match want.string {
                Some(string) => self.strings.insert(key, string, now.mono),
                // One that was seen there earlier is gone.
                None => self.string_may_be_gone(key),
            }
        }
        Ok(id)
    }

    /// Nothing was changed after all.
    fn untouch(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get_mut(id)
            && let Some(last) = self.output.touched.last()
            && last.id == id
            && last.events == Events::default()
        {
            entry.touch = 0;
            self.output.touched.pop();
        }
    }
}
