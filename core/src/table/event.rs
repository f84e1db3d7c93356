//! What happens without being asked: time passes, keys come and go, connections end, data is loaded.

use super::{Answer, Entry, Keyspace, PARTS, Table};
use crate::lock::{Hold, Lock};
use crate::payload::{Origin, Rejected};
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::time::{Instant, Now};
use crate::token::{Key, Token};
use crate::wire::{Change, Malformed, load};

/// What became of a lock by an effect that was loaded or replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// A lock for which the key is to be made.
    New(LockId),
    /// A lock that was there and has changed.
    Kept,
    /// Nobody holds it any more: the key is to be deleted, if there is one.
    Gone,
}

impl Table {
    /// Ends leases whose time is over, of at most `most` locks; whether more are due.
    pub fn expire(&mut self, most: usize, now: Now, keyspace: &mut dyn Keyspace) -> bool {
        let lease_now = self.clock.at(now.mono);
        for _ in 0..most {
            let Some(index) = self.wheel.pop(lease_now) else {
                return false;
            };
            let Some(id) = self.slots.at(index) else {
                continue;
            };
            let Some(entry) = self.slots.get(id) else {
                continue;
            };
            if let Some(end) = entry.lock.first_end().filter(|end| *end > lease_now)
                && entry.touch == 0
            {
                self.wheel.set(index, end);
                continue;
            }
            // A crowd's leases are ended in parts, too: what is left is found again at once.
            self.take_ended_off(id, PARTS, now);
            // The wheel has forgotten it, whatever else becomes of it in this decision.
            if let Some(touched) = self.touch(id) {
                touched.end_before = None;
            }
            self.serve_unserved_if_any(now, keyspace);
        }
        true
    }

    /// Tells those whose time to wait is up.
    pub fn time_out(&mut self, now: Now) {
        while let Some(id) = self.queue.overdue(now.mono) {
            self.dismiss(id, Answer::Nothing);
        }
    }

    /// Whether the quarantine has ended since this was asked last; then all lines are to be served.
    pub fn quarantine_has_ended(&mut self, now: Now) -> bool {
        let ended = self.quarantine.has_just_ended(now.mono);
        if ended {
            self.unserved.extend(self.queue.keys().cloned());
        }
        ended
    }

    /// The monotonic moment before which no lease ends, no wait is up and no quarantine is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let lease = self.wheel.next().map(|end| self.clock.when(end));
        [lease, self.queue.next_deadline(), self.quarantine.end()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the next request gives up waiting.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.queue.next_deadline()
    }

    /// A dataset is being loaded: leases stand still.
    pub fn loading_began(&mut self, mono: Instant) {
        self.clock.stop(mono);
    }

    /// Loading has ended: leases run.
    pub fn loading_ended(&mut self, mono: Instant) {
        self.clock.go_on(mono);
    }

    /// A lock comes from an RDB file or a DUMP payload, for `key`.
    ///
    /// # Errors
    /// When the bytes are not a lock, or not one that may come from there.
    pub fn restore(
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
        self.raise_fence(lock.holds().map(|hold| hold.fence).max().unwrap_or(0));
        let id = self.new_lock(key);
        if let Some(entry) = self.slots.get_mut(id) {
            entry.lock = lock;
        }
        self.wheel.set(id.index(), end);
        self.note_sharers(id);
        self.has_arrived(id);
        Ok(id)
    }

    /// A change comes from the AOF or the master, for `key`.
    pub fn apply(&mut self, key: Key, lock: Option<LockId>, change: Change) -> Loaded {
        self.raise_fence(change.highest_fence());
        let found = lock.and_then(|id| Some((id, self.slots.get_mut(id)?)));
        let Some((id, entry)) = found else {
            let mut lock = Lock::Free;
            change.apply(&mut lock);
            return self.insert(key, lock).map_or(Loaded::Gone, Loaded::New);
        };
        if entry.is_known() {
            for token in change.ended(&entry.lock) {
                self.holdings.remove(token, id);
            }
        }
        if change.is_shared() {
            for token in change.put() {
                self.holdings.add(token, id);
            }
        }
        change.apply(&mut entry.lock);
        let Some(end) = entry.lock.first_end() else {
            self.forget(id);
            return Loaded::Gone;
        };
        self.wheel.set(id.index(), end);
        self.note_holders(id);
        Loaded::Kept
    }

    /// A lock has come with its holders.
    fn note_sharers(&mut self, id: LockId) {
        if let Some(entry) = self.slots.get(id)
            && matches!(entry.lock, Lock::Shared(_))
        {
            for hold in entry.lock.holds() {
                self.holdings.add(&hold.token, id);
            }
        }
    }

    /// The value of `id` stands at `key` now: it was restored, renamed or moved there.
    pub fn attach(&mut self, id: LockId, key: Key) {
        let queued = self.queue.note_lock(&key, Some(id));
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        *entry = Entry {
            key,
            attached: true,
            queued,
            lock: std::mem::take(&mut entry.lock),
            touch: entry.touch,
        };
        if let Some(end) = entry.lock.first_end() {
            self.wheel.set(id.index(), end);
        }
        if !queued {
            self.note_unqueued(id);
        }
        self.has_arrived(id);
    }

    /// A lock has come to a key by itself. Those who wait there may be refused now; those who hold it may re-enter, or go
    /// past whoever waits for it.
    fn has_arrived(&mut self, id: LockId) {
        self.note_holders(id);
        let Some(entry) = self.slots.get(id).filter(|entry| entry.queued) else {
            return;
        };
        self.unserved.insert(entry.key.clone());
        let holders = self.queue.waiting_holders(&entry.lock).into_iter();
        self.next_up
            .extend(holders.flat_map(|token| self.queue.of(token)));
    }

    /// The key of `id` was removed by something else than a lock command. The value may come back under another key.
    /// Those who waited are to be served.
    pub fn unlinked(&mut self, id: LockId) {
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        entry.attached = false;
        if entry.queued {
            self.queue.note_lock(&entry.key, None);
            self.unserved.insert(entry.key.clone());
            self.note_unqueued(id);
        }
        self.wheel.unset(id.index());
    }

    /// The value of `id` was freed.
    pub fn forget(&mut self, id: LockId) {
        // A letter about a value that was flushed long ago may come when another lock has its place.
        let Some(entry) = self.slots.remove(id) else {
            return;
        };
        self.wheel.unset(id.index());
        let known = entry.is_known();
        for hold in entry.lock.holds() {
            self.unbind(id, hold);
            if known {
                self.holdings.remove(&hold.token, id);
            }
        }
        if entry.queued {
            self.queue.note_lock(&entry.key, None);
            self.unserved.insert(entry.key);
        }
    }

    /// The keys of a database, or of all, were flushed. Returns how long the last flushed lease had to go, µs.
    pub fn flushed(&mut self, db: Option<u32>, now: Now) -> u64 {
        let flushed = |key: &Key| db.is_none_or(|db| key.db() == db);
        let ids: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, entry)| entry.attached && flushed(&entry.key))
            .map(|(id, _)| id)
            .collect();
        let lease_now = self.clock.at(now.mono);
        let mut last = 0;
        for id in ids {
            last = last.max(
                self.lock(id)
                    .and_then(Lock::last_end)
                    .map_or(0, |end| end.since(lease_now)),
            );
            self.forget(id);
        }
        self.unserved
            .extend(self.queue.keys().filter(|key| flushed(key)).cloned());
        last
    }

    /// Two databases have changed places.
    pub fn swapped(&mut self, a: u32, b: u32) {
        let other = |db| {
            if db == a {
                Some(b)
            } else if db == b {
                Some(a)
            } else {
                None
            }
        };
        let moved: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, entry)| entry.attached)
            .filter_map(|(id, entry)| other(entry.key.db()).map(|db| (id, entry.key.in_db(db))))
            .collect();
        let lines: Vec<_> = self
            .queue
            .keys()
            .filter(|key| other(key.db()).is_some())
            .cloned()
            .collect();
        for key in &lines {
            self.queue.note_lock(key, None);
        }
        for (id, key) in moved {
            self.attach(id, key);
        }
        self.unserved.extend(lines);
    }

    /// A connection has closed: its ephemeral holds end at `end` on the monotonic clock, if not before.
    pub fn hang_up(
        &mut self,
        connection: u64,
        end: Instant,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) {
        let Some(bound) = self.connections.remove(&connection) else {
            return;
        };
        let end = self.clock.at(end.max(now.mono));
        let is_tied = |(id, token): &(LockId, Token)| {
            let entry = self.slots.get(*id).filter(|entry| entry.attached);
            let hold = entry.and_then(|entry| entry.lock.hold(token));
            hold.and_then(Hold::connection) == Some(connection)
        };
        let tied: Vec<_> = bound.into_iter().filter(is_tied).collect();
        // All of them first: nobody is granted anything while some of them seem to last.
        for (id, token) in &tied {
            self.touch_hold(*id, token, |_| ());
            if let Some(entry) = self.slots.get_mut(*id) {
                entry
                    .lock
                    .change(token, |hold| hold.end = hold.end.min(end));
            }
        }
        for (id, _) in tied {
            self.settle(id, now, keyspace);
        }
    }

    /// Whether a hold ends with this connection.
    #[must_use]
    pub fn is_bound(&self, connection: u64) -> bool {
        !self.connections.is_empty() && self.connections.contains_key(&connection)
    }

    /// The role of this node has changed: the one place that decides what it keeps.
    ///
    /// What the dataset says stays: locks, fences, the lease clock, what quarantine remembers; and so do statistics and
    /// limits. What concerns the clients of this node as a master ends: those who wait are told to come again; a grant
    /// that could not be delivered stands, as another master may have confirmed it to its owner; and every hold becomes
    /// an ordinary lease, as this node no longer sees the connection of its holder.
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
            slots,
            wheel: _,
            // Empty by now.
            queue: _,
            // Has the answers to those who waited.
            output: _,
            holds_back,
            unserved,
            next_up,
            // Who shares which lock is as it was.
            holdings: _,
            deadlock_steps: _,
            undelivered,
            connections,
        } = self;
        *replication = None;
        *holds_back = false;
        unserved.clear();
        next_up.clear();
        undelivered.clear();
        for (id, token) in std::mem::take(connections).into_values().flatten() {
            if let Some(entry) = slots.get_mut(id) {
                entry.lock.change(&token, |hold| hold.bind(None));
            }
        }
    }

    /// Everyone who waits is told to come again.
    pub fn unblock_all(&mut self) {
        let ids = self.queue.ids();
        self.unblock(&ids);
    }

    /// Those who wait for `key` are told to come again.
    pub fn unblock_line(&mut self, key: &Key) {
        let ids: Vec<_> = self
            .queue
            .line(key)
            .map_or_else(Vec::new, |line| line.waiting.iter().copied().collect());
        self.unblock(&ids);
    }

    fn unblock(&mut self, ids: &[WaiterId]) {
        for id in ids {
            self.dismiss(*id, Answer::Unblocked);
        }
    }

    /// Keys in whose lines something has changed, for a caller that serves nobody.
    pub fn take_unserved(&mut self) -> Vec<Key> {
        self.next_up.clear();
        std::iter::from_fn(|| self.unserved.pop_first()).collect()
    }
}
