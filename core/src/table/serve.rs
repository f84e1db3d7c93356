//! How those who wait are served: in order of arrival on every key, none past another, all keys of a request at once.

use std::sync::Arc;

use super::{Answer, Denial, Found, Keyspace, Table};
use crate::few::Few;
use crate::lock::{Lock, Standing};
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

/// Whether a waiter can have its locks now.
enum Turn {
    Comes(Few<Option<LockId>>),
    NotYet,
    Never(Denial),
}

impl Table {
    /// Takes ended leases off a lock, and serves its line if that made room. Says whether the lock still is one.
    pub(super) fn settle(&mut self, id: LockId, now: Now, keyspace: &mut dyn Keyspace) -> bool {
        let lease_now = self.clock.at(now.mono);
        let Some(entry) = self.slots.get(id) else {
            return false;
        };
        if entry.lock.first_end().is_some_and(|end| end > lease_now) {
            return true;
        }
        self.take_ended_off(id, usize::MAX, now);
        self.serve_unserved_if_any(now, keyspace);
        true
    }

    /// Takes ended leases off a lock, at most so many; what follows for waiters is noted, not done.
    pub(super) fn take_ended_off(&mut self, id: LockId, most: usize, now: Now) {
        let lease_now = self.clock.at(now.mono);
        for _ in 0..most {
            let Some(entry) = self.slots.get_mut(id) else {
                break;
            };
            if entry.lock.first_end().is_none_or(|end| end > lease_now) {
                break;
            }
            let known = entry.is_known();
            if entry.queued {
                self.unserved.insert(entry.key.clone());
            }
            self.touch(id);
            let Some(hold) = self
                .slots
                .get_mut(id)
                .and_then(|entry| entry.lock.take_ended(lease_now))
            else {
                break;
            };
            self.touch_hold(id, &hold.token, |events| events.expired += 1);
            self.counters.expiries += 1;
            self.ended(id, &hold, known, lease_now);
        }
    }

    /// Serves every line in which something has changed, unless the node may not grant.
    pub fn serve(&mut self, now: Now, keyspace: &mut dyn Keyspace) {
        if self.holds_back || self.pause(now.mono).is_some() {
            return;
        }
        loop {
            if let Some(waiter) = self.next_up.pop_first() {
                self.serve_waiter(waiter, now, keyspace);
            } else if let Some(key) = self.unserved.pop_first() {
                self.serve_line(&key, now, keyspace);
            } else {
                return;
            }
        }
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

    fn serve_line(&mut self, key: &Key, now: Now, keyspace: &mut dyn Keyspace) {
        while let Some(line) = self.queue.line(key)
            && let Some(head) = line.waiting.first().copied()
        {
            let lock = line.lock;
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
        let mut comes = true;
        let look = |key| {
            let lock = self.lock_at(key, now, keyspace)?;
            match self.standing(lock, terms) {
                Standing::Refused(refusal) => return Err(Denial::Refused(refusal)),
                Standing::Excluded => comes = false,
                Standing::Held => {}
                Standing::Open => {
                    comes = comes && !self.is_behind(key, Some(id), &terms.token, lease_now)
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

    /// The lock at a key that is waited for, its ended leases taken off.
    fn lock_at(
        &mut self,
        key: &Key,
        now: Now,
        keyspace: &mut dyn Keyspace,
    ) -> Result<Option<LockId>, Denial> {
        let known = self.queue.line(key).and_then(|line| line.lock);
        let known = known.filter(|id| {
            self.slots
                .get(*id)
                .is_some_and(|entry| entry.attached && entry.key == *key)
        });
        let lock = match known {
            Some(id) => Some(id),
            None => match keyspace.find(key) {
                Found::Nothing => None,
                Found::Other => return Err(Denial::WrongType),
                Found::Lock(id) => self.slots.get(id).map(|_| id),
            },
        };
        if known.is_none() {
            self.attach_line(key, lock);
        }
        if let Some(id) = lock {
            self.take_ended_off(id, usize::MAX, now);
        }
        Ok(lock)
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

    /// Whether somebody stands in the line of `key`, before `place`, whom `token` may not go past.
    pub(super) fn is_behind(
        &self,
        key: &Key,
        place: Option<WaiterId>,
        token: &Token,
        now: Instant,
    ) -> bool {
        let Some(line) = self.queue.line(key) else {
            return false;
        };
        let ahead = line
            .waiting
            .iter()
            .take_while(|ahead| place.is_none_or(|place| **ahead < place));
        let mut ahead = ahead.filter_map(|ahead| self.queue.get(*ahead));
        ahead.any(|ahead| !self.waits_for(ahead, token, now))
    }

    /// Whether a waiter waits for something that another owner, `token`, holds: then it is not ahead of that owner.
    pub(super) fn waits_for(&self, waiter: &Waiter, token: &Token, now: Instant) -> bool {
        waiter.keys.iter().any(|key| {
            let lock = self
                .queue
                .line(key)
                .and_then(|line| line.lock)
                .and_then(|id| self.lock(id));
            lock.is_some_and(|lock| {
                let holds = |token| lock.hold(token).is_some_and(|hold| hold.end > now);
                holds(token) && !holds(&waiter.terms.token) && lock.excludes(waiter.terms.mode, now)
            })
        })
    }

    /// Those in the line of `key` who hold another key that its first waiter waits for.
    fn exempt_from(&self, head: WaiterId, key: &Key) -> Vec<WaiterId> {
        let Some(head) = self.queue.get(head).filter(|head| head.keys.len() > 1) else {
            return Vec::new();
        };
        let Some(line) = self.queue.line(key).filter(|line| line.waiting.len() > 1) else {
            return Vec::new();
        };
        let others = head.keys.iter().filter(|other| *other != key);
        let locks = others
            .filter_map(|other| self.queue.line(other)?.lock)
            .filter_map(|id| self.lock(id));
        let owners = locks.flat_map(|lock| self.queue.waiting_holders(lock));
        let waiting = owners
            .flat_map(|owner| self.queue.of(owner))
            .filter(|id| line.waiting.contains(id));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.dedup();
        waiting
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
            if let Found::Lock(id) = keyspace.find(key)
                && self.settle(id, now, keyspace)
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
        for grant in self
            .undelivered
            .values_mut()
            .filter(|grant| grant.token == *token)
        {
            grant.counted.retain(|(key, _)| *key != entry.key);
        }
    }
}
