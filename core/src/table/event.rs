//! Events that are not requests: time passes, keys appear and disappear, connections end, data is
//! loaded.

use super::deadlock::STEPS_IN_A_LOOK;
use super::{
    Closing, Entry, Found, Keyspace, Presence, Spaces, TAKEN_AT_ONCE, Table, Undelivered, Untied,
};
use crate::lock::Lock;
use crate::payload::{Origin, Rejected};
use crate::queue::Place;
use crate::slots::LockId;
use crate::time::{Micros, MonoTime, Now};
use crate::token::Key;
use crate::wire::{Change, Malformed, load, plain_hold};

/// The result of a loaded or replicated effect for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// A new lock: its key must be created.
    New(LockId),
    /// An existing lock has changed.
    Kept,
    /// Nobody holds it any more: its key must be deleted, if there is one.
    Gone,
    /// No command could have made this change of this lock: nothing has changed.
    Refused,
}

impl Table {
    /// Ends leases whose time is over, at most this many, and fewer if that serves waiters. Returns
    /// whether more may be due.
    pub fn expire(&mut self, most: usize, now: Now, keyspace: &mut dyn Keyspace) -> bool {
        let lease_now = self.clock.at(now.mono);
        let (mut left, mut visits, looked) = (most, most, self.looks);
        while left > 0 && visits > 0 && !self.has_looked_enough(looked, most) {
            visits -= 1;
            let Some(index) = self.wheel.pop(lease_now) else {
                return false;
            };
            let Some(id) = self.slots.at(index) else {
                continue;
            };
            let Some(entry) = self.slots.get(id) else {
                continue;
            };
            if self.spaces.db(&entry.key).is_none() {
                continue;
            }
            if let Some(end) = entry.lock.first_end().filter(|end| *end > lease_now)
                && entry.touch == 0
            {
                self.wheel.set(index, end);
                continue;
            }
            // The leases of many holders are also ended in parts: the rest is due again at once.
            left -= self.take_ended_off(id, left.min(TAKEN_AT_ONCE), now).max(1);
            let first_end = self.lock(id).and_then(Lock::first_end);
            if let Some(end) = first_end.filter(|end| *end <= lease_now) {
                self.wheel.set(index, end);
            }
            // The wheel has no deadline for it any more, whatever else happens in this decision.
            if let Some(touched) = self.touch(id) {
                touched.end_before = None;
            }
            if self.has_unserved() {
                self.serve_some(most, now, keyspace);
            }
        }
        self.wheel.next().is_some_and(|end| end <= lease_now)
    }

    /// Whether the quarantine has ended since the last call. Then all queues must be served.
    pub fn quarantine_has_ended(&mut self, now: Now) -> bool {
        let ended = self.quarantine.has_just_ended(now.mono);
        if ended {
            self.start_sweep();
        }
        ended
    }

    /// The monotonic moment before which no lease, wait or quarantine ends and no string must be
    /// checked.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoTime> {
        let lease = self.wheel.next().map(|end| self.clock.when(end));
        [
            lease,
            self.next_look(),
            self.queues.next_deadline(),
            self.quarantine.end(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the next request gives up waiting.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        self.queues.next_deadline()
    }

    /// A dataset is being loaded: leases do not run.
    pub fn loading_began(&mut self, mono: MonoTime) {
        self.clock.stop(mono);
    }

    /// Whether a dataset is being loaded.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.clock.is_stopped()
    }

    /// Loading has ended: leases run again.
    pub fn loading_ended(&mut self, mono: MonoTime) {
        self.clock.go_on(mono);
    }

    /// A lock comes from an RDB file or a DUMP payload, for the key `name` of database `db`.
    ///
    /// # Errors
    /// When the bytes are not a lock, or not one that is accepted from this source.
    #[inline]
    pub fn restore(
        &mut self,
        db: u32,
        name: &[u8],
        bytes: &[u8],
        origin: Origin,
        now: Now,
    ) -> Result<LockId, Rejected> {
        let lease_now = self.clock.at(now.mono);
        // While a dataset is loaded, very many come. This is `restore_any` without copies of the
        // lock and its key, and saves 330 instructions for each.
        if matches!(origin, Origin::Trusted)
            && self.queues.is_empty()
            && let Some(hold) = plain_hold(bytes, lease_now)
        {
            let end = hold.end();
            self.raise_fence(hold.fence());
            let space = self.spaces.of(db);
            let id = self.add_lock(space, Some(end), |generation| {
                let lock = Lock::Exclusive(hold.into_hold());
                Entry::new(Key::new(space, name), lock, false, generation)
            });
            self.wheel.set(id.index(), end);
            return Ok(id);
        }
        self.restore_any(Key::new(db, name), bytes, origin, now)
    }

    #[inline(never)]
    fn restore_any(
        &mut self,
        key: Key,
        bytes: &[u8],
        origin: Origin,
        now: Now,
    ) -> Result<LockId, Rejected> {
        let lease_now = self.clock.at(now.mono);
        let lock = load(bytes, lease_now).map_err(|Malformed| Rejected::Malformed)?;
        origin.check(&lock, self.fence(), now, lease_now)?;
        self.insert(key, lock)
            .map_err(|Malformed| Rejected::Malformed)
    }

    fn insert(&mut self, key: Key, lock: Lock) -> Result<LockId, Malformed> {
        let end = lock.first_end().ok_or(Malformed)?;
        let is_shared = matches!(lock, Lock::Shared(_));
        self.raise_fence(lock.holds().map(|hold| hold.fence).max().unwrap_or(0));
        let id = self.new_lock(key, lock);
        self.wheel.set(id.index(), end);
        if is_shared {
            self.note_sharers(id);
        }
        self.has_arrived(id);
        Ok(id)
    }

    /// A change comes from the AOF or the master, for `key`.
    pub fn apply(&mut self, key: Key, lock: Option<LockId>, change: Change) -> Loaded {
        let before = lock.and_then(|id| self.lock(id));
        if !change.fits(before.unwrap_or(&Lock::Free)) {
            return Loaded::Refused;
        }
        self.raise_fence(change.highest_fence());
        let Some(id) = lock.filter(|id| self.slots.get(*id).is_some()) else {
            let mut lock = Lock::Free;
            change.apply(&mut lock);
            return self.insert(key, lock).map_or(Loaded::Gone, Loaded::New);
        };
        self.make_way(id, &change);
        let Some(entry) = self.slots.get_mut(id) else {
            return Loaded::Gone;
        };
        if entry.is_known() {
            for token in change.ended(&entry.lock) {
                self.holdings.remove(token, id);
            }
        }
        if change.is_shared() {
            for token in change.put() {
                self.holdings.add(token, id, &self.queues);
            }
        }
        change.apply(&mut entry.lock);
        let Some(end) = entry.lock.first_end() else {
            self.forget(id);
            return Loaded::Gone;
        };
        let last = entry.lock.last_end().unwrap_or(end);
        self.spaces.lasts(&entry.key, last);
        self.wheel.set(id.index(), end);
        self.note_holders(id);
        Loaded::Kept
    }

    /// A shared lock was loaded with its holders.
    fn note_sharers(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get(id) {
            for hold in entry.lock.holds() {
                self.holdings.add(&hold.token, id, &self.queues);
            }
        }
    }

    /// The value of `id` is at `key` now: it was restored, renamed or moved there.
    pub fn attach(&mut self, id: LockId, key: Key) {
        self.strings.remove(&key);
        let queued = self.queues.note_lock(&key, Some(id));
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        self.spaces.left(&entry.key, entry.attached);
        entry.key = self.spaces.inside(key);
        self.spaces.arrived(entry.key.db(), entry.lock.last_end());
        entry.attached = true;
        entry.queued = queued;
        if let Some(end) = entry.lock.first_end() {
            self.wheel.set(id.index(), end);
        }
        if !queued {
            self.note_unqueued(id);
        }
        self.has_arrived(id);
    }

    /// A lock has appeared at a key without a request. Waiters of the key may now be refused, and
    /// waiters that hold the lock may re-enter or overtake others.
    fn has_arrived(&mut self, id: LockId) {
        // While a dataset is loaded, very many appear.
        if self.queues.is_empty() {
            return;
        }
        let Some(entry) = self.slots.get(id).filter(|entry| entry.queued) else {
            return;
        };
        if let Lock::Exclusive(hold) = &entry.lock {
            self.holdings.add(&hold.token, id, &self.queues);
        }
        if let Some(key) = self.spaces.outside(&entry.key) {
            self.unserved.insert(key);
        }
        let holders = self.holdings.waiting_holders(&entry.lock, &self.queues);
        self.looks += holders.len() as u64 / STEPS_IN_A_LOOK;
        self.suspects.extend(holders.iter().copied().cloned());
        let holders = holders.into_iter();
        self.next_up
            .extend(holders.flat_map(|token| self.queues.of(token)));
    }

    /// Something other than a lock command removed the key of `id`. The value may reappear under
    /// another key. The waiters must be served.
    pub fn unlinked(&mut self, id: LockId) {
        if self.is_waited_for(id) {
            self.suspect_holders(id);
        }
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut entry.attached, false) {
            self.spaces.unlinked(&entry.key);
        }
        let key = self.spaces.outside(&entry.key);
        if (entry.queued || self.sweep.is_some())
            && let Some(key) = key
        {
            self.queues.forget_lock(&key, id);
            self.note_unqueued(id);
            if self.queues.at(&key).is_some() {
                self.unserved.insert(key);
            }
        }
        self.wheel.unset(id.index());
    }

    /// The value of `id` was freed. Returns how much work that was: the number of its holds that
    /// were removed, at least one.
    pub fn forget(&mut self, id: LockId) -> usize {
        if self.is_waited_for(id) {
            self.suspect_holders(id);
        }
        // A notice about a value that was flushed long ago may arrive when another lock is at its
        // key.
        let Some(entry) = self.slots.remove(id) else {
            return 1;
        };
        self.wheel.unset(id.index());
        let known = entry.is_known();
        let freed = self.forget_holders(id, entry.lock, known, None);
        let key = self.spaces.outside(&entry.key);
        self.spaces.left(&entry.key, entry.attached);
        if entry.queued
            && let Some(key) = key
        {
            self.queues.forget_lock(&key, id);
            self.unserved.insert(key);
        }
        freed.max(1)
    }

    /// The keys of a database, or of all, were flushed. Returns an upper bound for the remaining
    /// time of the last flushed lease.
    pub fn flushed(&mut self, db: Option<u32>, now: Now) -> Micros {
        self.start_sweep();
        let lease_now = self.clock.at(now.mono);
        self.around_new_locks(|spaces| spaces.flush(db, lease_now))
    }

    /// Two databases were swapped. The waiters now wait for the keys that are there after the swap.
    pub fn swapped(&mut self, a: u32, b: u32) {
        self.start_sweep();
        self.around_new_locks(|spaces| spaces.swap(a, b));
    }

    /// Databases are flushed or swapped, possibly by another module in the middle of a decision.
    /// What that decision has not applied to the keyspace yet is applied afterwards.
    fn around_new_locks<R>(&mut self, change: impl FnOnce(&mut Spaces) -> R) -> R {
        let mut new = Vec::new();
        for touched in &self.output.touched {
            let Some(entry) = self.slots.get(touched.id) else {
                continue;
            };
            if touched.presence == Presence::New {
                let key = self.spaces.outside(&entry.key);
                new.extend(key.map(|key| (touched.id, key)));
            } else if let Some(end) = entry.lock.last_end() {
                self.spaces.lasts(&entry.key, end);
            }
        }
        for (id, _) in &new {
            if let Some(entry) = self.slots.get(*id) {
                self.spaces.left(&entry.key, entry.attached);
            }
        }
        let result = change(&mut self.spaces);
        for (id, key) in new {
            if let Some(entry) = self.slots.get_mut(id) {
                entry.key = self.spaces.inside(key);
                self.spaces.arrived(entry.key.db(), entry.lock.last_end());
            }
        }
        result
    }

    /// Every key with waiters must be checked again.
    pub(super) fn start_sweep(&mut self) {
        self.sweep = (!self.queues.is_empty()).then(Place::default);
        self.sweeps = self.sweeps.wrapping_add(1);
    }

    /// Whether keys with waiters must still be checked again.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Checks again what is at keys with waiters, at most this many of them. Their waiters must
    /// then be served.
    pub fn sweep(&mut self, most: usize, keyspace: &mut dyn Keyspace) {
        let looked = self.looks;
        for _ in 0..most {
            let Some(place) = self.sweep.filter(|_| !self.has_looked_enough(looked, most)) else {
                return;
            };
            let Some((key, next)) = self.queues.key_from(place) else {
                self.sweep = None;
                return;
            };
            self.sweep = Some(next);
            // A key appears once for each request for it.
            if !self.queues.is_to_be_swept(&key, self.sweeps) {
                continue;
            }
            // A key that this decision has created is not in the keyspace yet.
            let found = self
                .lock_in_queue(&key)
                .or_else(|| match keyspace.find(self, &key) {
                    Found::Lock(id) => Some(id),
                    Found::Nothing | Found::LegacyString(_) | Found::Other | Found::Elsewhere => {
                        None
                    }
                });
            let before = self.queues.at(&key).and_then(|queue| queue.lock);
            self.strings.look_now(&key);
            self.attach_queue(&key, found);
            if let Some(before) = before.filter(|before| Some(*before) != found) {
                self.suspect_holders(before);
                self.note_moved(before);
            }
            match found {
                Some(id) => self.has_arrived(id),
                None => self.unserved.insert(key),
            }
        }
    }

    /// A lock is no longer at a key with waiters. It may be at another key.
    pub(super) fn note_moved(&mut self, id: LockId) {
        let key = self.key(id);
        let queue = key.and_then(|key| self.queues.at(&key));
        if queue.and_then(|queue| queue.lock) != Some(id) {
            self.note_unqueued(id);
        }
    }

    /// The role of this node has changed: the one place that decides what it keeps.
    ///
    /// The state of the dataset stays: locks, fences, the lease clock, the saved quarantine.
    /// Statistics and limits stay, too. The state for the clients of a master ends. Waiters must
    /// send their requests again. A grant that could not be delivered stays, because another master
    /// may have confirmed it to its owner. Every hold becomes an ordinary lease, because this node
    /// no longer sees the connection of its holder.
    pub fn role_changed(&mut self) {
        self.unblock_all();
        // Each field is named, so that a new one cannot be forgotten here.
        let Self {
            counters: _,
            wait_times: _,
            hold_times: _,
            limits: _,
            quarantine: _,
            replication,
            fences: _,
            clock: _,
            slots: _,
            spaces: _,
            wheel: _,
            // Empty at this point, except for waiters that are leaving.
            queues: _,
            leaving: _,
            room_to_leave: _,
            // Contains the replies to the waiters.
            output: _,
            holds_back,
            unserved,
            next_up,
            passing,
            suspects,
            strings,
            // The holders of shared locks do not change.
            holdings: _,
            deadlock_steps: _,
            order_steps: _,
            places_seen: _,
            looks: _,
            undelivered,
            connections,
            role_changes,
            closing,
            // Continue to be removed in slices.
            remains: _,
            untied,
            sweep,
            sweeps: _,
        } = self;
        *replication = None;
        *sweep = None;
        *holds_back = false;
        unserved.clear();
        next_up.clear();
        passing.clear();
        suspects.clear();
        strings.clear();
        *undelivered = Undelivered::default();
        // Existing ties do not count from now on.
        *role_changes += 1;
        let closing = std::mem::take(closing).into_values().map(Closing::holds);
        let tied = std::mem::take(connections).into_values().chain(closing);
        untied.push(Untied::new(tied.flatten()));
    }

    /// Takes the keys whose queues have changed, for a caller that does not serve waiters.
    pub fn take_unserved(&mut self) -> Vec<Key> {
        self.next_up.clear();
        self.passing.clear();
        self.suspects.clear();
        std::iter::from_fn(|| self.unserved.pop()).collect()
    }
}
