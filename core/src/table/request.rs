//! The requests of clients.

use super::order::Passed;
use super::{Denial, Events, Extended, Keyspace, Table, Verdict, Wanted};
use crate::fence::check_lead;
use crate::lock::{Hold, Lock, Standing, Terms};
use crate::queue::{HeldUpAt, SLOTS, Waiter, WaiterId};
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::{Micros, Now, Wait};
use crate::token::{Key, Token};

impl Table {
    /// Acquires all of `wanted`, or none of them.
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
        let (mut free, mut may_hold, mut passed) = (true, false, Passed::default());
        for (want, lock) in wanted.iter().zip(&locks) {
            if want.string.is_some() {
                (free, may_hold) = (false, true);
                continue;
            }
            match self.standing(*lock, terms) {
                Standing::Refused(refusal) => return Verdict::Denied(Denial::Refused(refusal)),
                Standing::Excluded => free = false,
                Standing::Held => may_hold = true,
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
            let granted = self.grant(&locks, key, terms, None, now);
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
        // It nearly always holds none of them. Then they are not looked up again: 110 instructions.
        let checked = if may_hold {
            self.check_terms(&locks, terms, now).map(|_| ())
        } else {
            self.check_new_terms(terms, now)
        };
        if let Err(denial) = checked {
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

    /// Releases one hold, or all of them. Returns how many; 0 if the token holds none.
    pub fn release(
        &mut self,
        want: &Wanted<'_>,
        token: &Token,
        all: bool,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> u32 {
        let taken = self.take_back(want, token, all, now);
        if all && !self.queues.is_empty() {
            self.cancel(&[Key::new(want.db, want.name)], token);
        }
        self.serve_unserved_if_any(now, keyspace);
        taken
    }

    /// [`Table::release`] of several locks. Waiters are served when all are released.
    pub fn release_each<'a>(
        &mut self,
        wanted: impl Iterator<Item = Wanted<'a>>,
        token: &Token,
        all: bool,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Vec<u32> {
        let cancels = all && !self.queues.is_empty();
        let mut keys = Vec::new();
        let taken = wanted.map(|want| {
            keys.extend(cancels.then(|| Key::new(want.db, want.name)));
            self.take_back(&want, token, all, now)
        });
        let taken = taken.collect();
        self.cancel(&keys, token);
        self.serve_unserved_if_any(now, keyspace);
        taken
    }

    /// [`Table::release`], but the waiters are not served yet.
    fn take_back(&mut self, want: &Wanted<'_>, token: &Token, all: bool, now: Now) -> u32 {
        let mut taken = 0;
        if let Some(id) = want.lock {
            self.settle_silently(id, token, now);
            taken = self.take_off(id, token, all, now);
        }
        if taken > 0 {
            self.counters.releases += 1;
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
        // Do not discard an earlier change: the connection of an ephemeral hold may have closed.
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

    /// Ends every hold of a lock and returns how many holders it had. Waiters are served after
    /// that: one that gets the lock because a lease has ended keeps it.
    pub fn force(&mut self, want: &Wanted<'_>, now: Now, keyspace: &mut dyn Keyspace) -> u64 {
        let holders = want.lock.map_or(0, |id| self.end_all(id, now));
        self.serve_unserved_if_any(now, keyspace);
        holders
    }

    /// Ends every hold of a lock, but the waiters are not served yet.
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
        // If there are very many holders, the leases of some may have ended before.
        let holders = lock.live_holders(lease_now) as u64;
        self.counters.forced += holders;
        self.counters.expiries += lock.holders() as u64 - holders;
        self.forget_holders(id, lock, known, Some(lease_now));
        holders
    }

    /// Whether `token` holds the lock at this moment.
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

    /// The locks at the wanted keys, after their ended leases were removed.
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
        // All keys come first, because removing a lease may cause a grant of another key.
        for want in wanted {
            want.lock.map(&mut settle);
        }
        wanted.iter().map(|want| self.place(want)).collect()
    }

    /// The lock at a wanted key: the one that was found there, or one that a waiter has been
    /// granted since then.
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

    /// Whether somebody may wait for the key of this lock, or for a key that has none.
    fn may_have_queue(&self, lock: Option<LockId>) -> bool {
        match lock.and_then(|id| self.slots.get(id)) {
            Some(entry) => entry.queued || self.sweep.is_some(),
            None => self.may_have_queues(),
        }
    }

    /// Removes holds of `token` and returns how many. Waiters are not served yet.
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
        // Looked up once for both: 110 instructions.
        let holds_something = self.holdings.of(&terms.token).is_some();
        let lease_now = self.clock.at(now.mono);
        if holds_something && self.would_deadlock(&keys, locks, terms, lease_now) {
            self.counters.deadlocks += 1;
            return Err(Denial::Deadlock);
        }
        let waiter = Waiter {
            keys,
            terms: terms.clone(),
            until: match wait {
                Wait::Until(until) => Some(until),
                Wait::No | Wait::Forever => None,
            },
            since: now.mono,
            held_up_at: HeldUpAt::default(),
        };
        let id = self.queues.join(waiter, locks);
        if holds_something {
            self.holdings.waits(&terms.token);
        }
        for lock in locks.iter().flatten() {
            self.has_queue(*lock);
        }
        self.note_strings(wanted, now);
        Ok(id)
    }

    /// Notes which of the keys of a new waiter hold strings that count as locks.
    fn note_strings(&mut self, wanted: &[Wanted<'_>], now: Now) {
        for want in wanted {
            // There are nearly never any: then the keys are not needed again.
            if want.string.is_none() && self.strings.is_empty() {
                continue;
            }
            let key = Key::new(want.db, want.name);
            match want.string {
                Some(string) => self.strings.insert(&key, string, now.mono),
                // A string that was seen there earlier is gone.
                None => self.string_may_be_gone(&key),
            }
        }
    }

    /// Notes that the lock was not changed.
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
