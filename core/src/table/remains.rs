//! The data of very many holds and locks that are over: it is freed in slices.

use super::{Entry, TAKEN_AT_ONCE, Table};
use crate::lock::{Hold, Lock};
use crate::slots::LockId;
use crate::time::LeaseTime;
use crate::token::{Key, Token};
use crate::wire::Change;

/// The holders of a shared lock that are not freed yet.
#[derive(Debug)]
pub(super) struct Remains {
    id: LockId,
    lock: Lock,
    /// When their holds ended; none if the lock was removed.
    ended: Option<LeaseTime>,
    /// The key at which the end of their leases is reported.
    told_at: Option<Key>,
}

/// Holds that were tied to a connection and are not any more.
pub(super) struct Untied(Box<dyn Iterator<Item = (LockId, Token)> + Send>);

impl Untied {
    pub(super) fn new(holds: impl Iterator<Item = (LockId, Token)> + Send + 'static) -> Self {
        Self(Box::new(holds))
    }
}

impl std::fmt::Debug for Untied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Untied")
    }
}

impl Table {
    /// Every lease of a lock with very many holders has ended: it is free at once.
    pub(super) fn discard_ended(&mut self, id: LockId, now: LeaseTime) {
        self.note_room(id);
        if self.is_waited_for(id) {
            self.suspect_holders(id);
        }
        let key = self.key(id);
        if let Some(touched) = self.touch(id) {
            touched.whole = true;
        }
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        let lock = std::mem::take(&mut entry.lock);
        self.counters.expiries += lock.holders() as u64;
        self.remains.push(Remains {
            id,
            lock,
            ended: Some(now),
            told_at: key,
        });
    }

    /// A lock was removed or replaced: the data of its holders is freed, later if there are many.
    /// `known`: see [`super::Entry::is_known`]. `ended`: when their holds ended, if that is
    /// counted. Returns how many were freed at once.
    pub(super) fn forget_holders(
        &mut self,
        id: LockId,
        lock: Lock,
        known: bool,
        ended: Option<LeaseTime>,
    ) -> usize {
        let holders = lock.holders();
        if holders <= TAKEN_AT_ONCE {
            for hold in lock.holds() {
                if let Some(end) = ended {
                    self.hold_times.record(end.since(hold.granted));
                }
                self.unbind(id, hold);
                if known {
                    self.holdings.remove(&hold.token, id);
                }
            }
            holders
        } else {
            let told_at = None;
            self.remains.push(Remains {
                id,
                lock,
                ended,
                told_at,
            });
            0
        }
    }

    /// A change is about to replace a lock with very many holders.
    pub(super) fn make_way(&mut self, id: LockId, change: &Change) {
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        if entry.lock.holders() > TAKEN_AT_ONCE && change.replaces(&entry.lock) {
            let known = entry.is_known();
            let lock = std::mem::take(&mut entry.lock);
            self.forget_holders(id, lock, known, None);
        }
    }

    /// Whether data must still be freed.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        let holds = !self.remains.is_empty() || !self.untied.is_empty();
        holds || self.slots.has_unused_chunks()
    }

    /// Frees the data of holds that are over, at most this many, and some memory of locks.
    pub fn clear_remains(&mut self, most: usize) {
        self.slots.free_chunk();
        if let Some(Untied(holds)) = self.untied.last_mut()
            && holds.take(most).count() < most
        {
            self.untied.pop();
        }
        let Some(mut remains) = self.remains.pop() else {
            return;
        };
        let mut reported = 0;
        for _ in 0..most {
            let Some(hold) = remains.lock.take_ended(LeaseTime::MAX) else {
                break;
            };
            self.forget_holder(remains.id, &hold);
            if let Some(end) = remains.ended {
                self.hold_times.record(end.since(hold.granted));
                reported += 1;
            }
        }
        if let Some(key) = &remains.told_at
            && reported > 0
        {
            self.output.ended_before.push((key.clone(), reported));
        }
        if !remains.lock.is_free() {
            self.remains.push(remains);
        }
    }

    fn forget_holder(&mut self, id: LockId, hold: &Hold) {
        // It may hold the same lock again, in another mode or from another connection.
        let entry = self.slots.get(id);
        let again = entry.and_then(|entry| entry.lock.hold(&hold.token));
        let is_known = again.is_some() && entry.is_some_and(Entry::is_known);
        let tie = again.and_then(|again| self.connection_of(again));
        if !is_known {
            self.holdings.remove(&hold.token, id);
        }
        if tie.is_none() || tie != self.connection_of(hold) {
            self.unbind(id, hold);
        }
    }
}
