//! How those who wait are served: in order of arrival on every key, none past another, all keys of
//! a request at once.

use std::sync::Arc;

use foldhash::HashSet;

use super::{Answer, Denial, Found, Keyspace, LegacyString, TAKEN_AT_ONCE, Table};
use crate::few::Few;
use crate::lock::{Hold, Lock, Standing};
use crate::queue::{Waiter, WaiterId};
use crate::slots::LockId;
use crate::time::{Instant, Now};
use crate::token::{Key, Token};

/// A grant that its client has not been seen to receive.
#[derive(Debug)]
pub(super) struct Undelivered {
    token: Token,
    /// The holds whose count has grown by it: where, and under which fence.
    counted: Few<(Key, u64)>,
}

/// So many waiters are served in one decision.
const SERVED_AT_ONCE: usize = 64;

/// Whether a waiter can have its locks now.
enum Turn {
    Comes(Few<Option<LockId>>),
    NotYet,
    Never(Denial),
}

impl Table {
    /// Takes ended leases off a lock, and serves its line if that made room. Says whether the lock
    /// still is one. No more than [`TAKEN_AT_ONCE`] are taken off, but that of `token` is among
    /// them.
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

    /// Takes off what has ended, so far that what is left of it makes no difference to `token`;
    /// what follows for waiters is noted, not done.
    fn take_off_what_ended(&mut self, id: LockId, token: Option<&Token>, now: Now) {
        self.end_ties_at(id, token);
        let lease_now = self.clock.at(now.mono);
        let Some(lock) = self.lock(id) else {
            return;
        };
        if lock.holders() > TAKEN_AT_ONCE {
            if lock.last_end().is_some_and(|end| end <= lease_now) {
                return self.discard_ended(id, lease_now);
            }
            // Its own hold may be behind many others that have ended.
            let own = token.and_then(|token| lock.hold(token));
            if let Some(token) = own.filter(|hold| hold.end <= lease_now).and(token) {
                self.take_ended_hold(id, lease_now, |lock| lock.take(token));
            }
        }
        let taken = self.slots.get(id).and_then(|entry| {
            let touched = self
                .output
                .touched
                .get((entry.touch as usize).checked_sub(1)?)?;
            Some(touched.events.expired as usize)
        });
        let most = TAKEN_AT_ONCE.saturating_sub(taken.unwrap_or(0));
        self.take_ended_off(id, most, now);
    }

    /// Takes ended leases off a lock, at most so many, and says how many; what follows for waiters
    /// is noted, not done.
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
        now: Instant,
        take: impl FnOnce(&mut Lock) -> Option<Hold>,
    ) {
        self.note_room(id);
        self.touch(id);
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        let known = entry.is_known();
        if let Some(hold) = take(&mut entry.lock) {
            self.touch_hold(id, &hold.token, |events| events.expired += 1);
            self.counters.expiries += 1;
            self.ended(id, &hold, known, now);
        }
    }

    /// A hold has ended: those who wait for the lock are to be served.
    pub(super) fn note_room(&mut self, id: LockId) {
        if let Some(key) = self.slots.get(id).and_then(|entry| self.waited_key(entry)) {
            self.unserved.insert(key);
        }
    }

    /// Serves the lines in which something has changed, unless the node may not grant. Where very
    /// many can be served, the others are left for the next call.
    pub fn serve(&mut self, now: Now, keyspace: &mut dyn Keyspace) {
        if self.holds_back || self.pause(now.mono).is_some() {
            return;
        }
        let mut left = SERVED_AT_ONCE;
        while left > 0 {
            if let Some(waiter) = self.next_up.pop_first() {
                left -= 1;
                self.serve_waiter(waiter, now, keyspace);
            } else if let Some(key) = self.unserved.pop_first() {
                self.serve_line(&key, &mut left, now, keyspace);
            } else {
                return;
            }
        }
    }

    /// Whether waiters can be served that were not, because too many could be at once.
    #[must_use]
    pub fn has_more_to_serve(&self, now: Now) -> bool {
        self.has_unserved() && !self.holds_back && self.pause(now.mono).is_none()
    }

    /// [`Table::serve`], at next to no cost when there is nothing to do.
    pub(super) fn serve_unserved_if_any(&mut self, now: Now, keyspace: &mut dyn Keyspace) {
        if self.has_unserved() {
            self.serve(now, keyspace);
        }
    }

    /// Whether lines are left to be served.
    #[must_use]
    pub fn has_unserved(&self) -> bool {
        !(self.unserved.is_empty() && self.next_up.is_empty())
    }

    fn serve_line(&mut self, key: &Key, left: &mut usize, now: Now, keyspace: &mut dyn Keyspace) {
        // To look at a line counts, whether somebody is served or not.
        *left -= 1;
        while let Some(line) = self.queue.line(key)
            && let Some(head) = line.waiting.first().copied()
        {
            let lock = self.lock_in_line(key);
            // What has changed in this line until now is looked at here.
            self.unserved.remove(key);
            if !self.serve_waiter(head, now, keyspace) {
                // It waits for another key. Only those who hold that one may go past it.
                for waiter in self.exempt_from(head, key) {
                    self.serve_waiter(waiter, now, keyspace);
                }
                return;
            }
            if let Some(Lock::Exclusive(_)) = lock.and_then(|id| self.lock(id)) {
                // Nobody else can have it now but who shows the same token, and those are next up.
                self.unserved.remove(key);
                return;
            }
            *left = left.saturating_sub(1);
            if *left == 0 {
                if self.queue.line(key).is_some() {
                    self.unserved.insert(key.clone());
                }
                return;
            }
        }
    }

    /// Answers a waiter if its turn has come; whether it has left the line.
    fn serve_waiter(&mut self, id: WaiterId, now: Now, keyspace: &mut dyn Keyspace) -> bool {
        match self.turn(id, now, keyspace) {
            Turn::NotYet => false,
            Turn::Never(denial) => {
                self.dismiss(id, Answer::Denied(denial));
                true
            }
            Turn::Comes(locks) => {
                if let Some(waiter) = self.leave(id) {
                    self.admit(id, &waiter, &locks, now);
                }
                true
            }
        }
    }

    fn turn(&mut self, id: WaiterId, now: Now, keyspace: &mut dyn Keyspace) -> Turn {
        let Some(waiter) = self.queue.get(id) else {
            return Turn::NotYet;
        };
        let waiter = Arc::clone(waiter);
        let lease_now = self.clock.at(now.mono);
        let (keys, terms) = (&waiter.keys, &waiter.terms);
        let (mut comes, mut passed) = (true, HashSet::default());
        let look = |key| {
            let lock = match self.look_at(key, &terms.token, now, keyspace) {
                Found::Nothing => None,
                Found::Lock(lock) => Some(lock),
                Found::LegacyString(_) => {
                    comes = false;
                    return Ok(None);
                }
                Found::Other => return Err(Denial::WrongType),
            };
            match self.standing(lock, terms) {
                Standing::Refused(refusal) => return Err(Denial::Refused(refusal)),
                Standing::Excluded => comes = false,
                Standing::Held => {}
                Standing::Open => {
                    comes = comes
                        && !self.is_behind(key, Some(id), &terms.token, lease_now, &mut passed);
                }
            }
            Ok(lock)
        };
        match keys.iter().map(look).collect() {
            Err(denial) => Turn::Never(denial),
            Ok(locks) if comes => Turn::Comes(locks),
            Ok(_) => Turn::NotYet,
        }
    }

    /// What stands at a key that is waited for. Of a lock the ended leases are taken off.
    fn look_at(
        &mut self,
        key: &Key,
        token: &Token,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Found {
        if let Some(id) = self.lock_in_line(key) {
            self.take_off_what_ended(id, Some(token), now);
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
                self.attach_line(key, Some(id));
                self.take_off_what_ended(id, Some(token), now);
            }
            Found::LegacyString(string) => {
                self.attach_line(key, None);
                self.strings.insert(key, string, now.mono);
            }
            Found::Nothing | Found::Other => self.attach_line(key, None),
        }
        found
    }

    /// A line learns which lock stands at its key.
    pub(super) fn attach_line(&mut self, key: &Key, lock: Option<LockId>) {
        if self.queue.note_lock(key, lock)
            && let Some(entry) = lock.and_then(|id| self.slots.get_mut(id))
        {
            entry.queued = true;
        }
        if let Some(id) = lock {
            self.note_holders(id);
        }
    }

    fn admit(&mut self, id: WaiterId, waiter: &Waiter, locks: &[Option<LockId>], now: Now) {
        let (keys, token) = (&waiter.keys, &waiter.terms.token);
        let adds = |lock: &Option<LockId>| {
            let held = lock.and_then(|id| self.fence_of(id, token)).is_some();
            !(held && waiter.terms.once)
        };
        let adds: Few<_> = locks.iter().map(adds).collect();
        let key = |at: usize| keys.get(at).cloned().unwrap_or_default();
        let answer = match self.grant(locks, key, &waiter.terms, now) {
            Ok(granted) => {
                self.wait_times.record(now.mono.since(waiter.since));
                let holds = keys.iter().cloned().zip(granted.iter().copied());
                let counted = holds
                    .zip(&adds)
                    .filter_map(|(hold, adds)| adds.then_some(hold));
                let grant = Undelivered {
                    token: token.clone(),
                    counted: counted.collect(),
                };
                self.undelivered.insert(id, grant);
                Answer::Granted(granted)
            }
            Err(denial) => Answer::Denied(denial),
        };
        self.output.answers.push((id, answer));
    }

    /// Takes a waiter out of its lines. Those behind it may be next.
    fn leave(&mut self, id: WaiterId) -> Option<Arc<Waiter>> {
        let (waiter, emptied) = self.queue.leave(id)?;
        for lock in emptied {
            self.note_unqueued(lock);
        }
        for key in &waiter.keys {
            if self.queue.line(key).is_some() {
                self.unserved.insert(key.clone());
            }
        }
        Some(waiter)
    }

    /// Takes a waiter out of its lines and tells it why.
    pub(super) fn dismiss(&mut self, id: WaiterId, answer: Answer) {
        if self.leave(id).is_some() {
            self.counters.denials += u64::from(answer == Answer::Nothing);
            self.output.answers.push((id, answer));
        }
    }

    /// A waiter has gone away; it is told nothing.
    pub fn abandon(&mut self, id: WaiterId) {
        self.leave(id);
    }

    /// Cancels the requests of `token` that wait for `key`.
    pub(super) fn cancel(&mut self, key: &Key, token: &Token) {
        let same: Vec<_> = self.queue.of(token).collect();
        for id in same {
            if self
                .queue
                .get(id)
                .is_some_and(|waiter| waiter.keys.contains(key))
            {
                self.dismiss(id, Answer::Nothing);
            }
        }
    }

    /// The client of a granted request has its answer.
    pub fn delivered(&mut self, id: WaiterId) {
        self.undelivered.remove(&id);
    }

    /// The client of a granted request is gone: the grant is taken back and passed on.
    pub fn undeliverable(&mut self, id: WaiterId, now: Now, keyspace: &mut dyn Keyspace) {
        let Some(Undelivered { token, counted }) = self.undelivered.remove(&id) else {
            return;
        };
        for (key, fence) in &counted {
            // A hold with another fence is a later grant of its own.
            if let Found::Lock(id) = keyspace.find(self, key)
                && self.settle(id, Some(&token), now, keyspace)
                && self.fence_of(id, &token) == Some(*fence)
            {
                self.take_off(id, &token, false, now);
            }
        }
        self.serve_unserved_if_any(now, keyspace);
    }

    fn fence_of(&self, id: LockId, token: &Token) -> Option<u64> {
        Some(self.lock(id)?.hold(token)?.fence)
    }

    /// The owner was told that it holds this lock: an undelivered grant of it stands.
    pub(super) fn confirm(&mut self, id: LockId, token: &Token) {
        if self.undelivered.is_empty() {
            return;
        }
        let Some(entry) = self.slots.get(id) else {
            return;
        };
        let Some(db) = self.spaces.db(&entry.key) else {
            return;
        };
        for grant in self
            .undelivered
            .values_mut()
            .filter(|grant| grant.token == *token)
        {
            let is_here = |key: &Key| key.db() == db && key.name() == entry.key.name();
            grant.counted.retain(|(key, _)| !is_here(key));
        }
    }
}
