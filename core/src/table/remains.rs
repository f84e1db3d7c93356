//! Shared locks that very many held and nobody holds any more: what is remembered of each holder is
//! forgotten in slices.

use super::{TAKEN_AT_ONCE, Table};
use crate::lock::{Hold, Lock};
use crate::slots::LockId;
use crate::time::Instant;
use crate::token::Key;

/// The holders of a lock that are not forgotten yet.
#[derive(Debug)]
pub(super) struct Remains {
    id: LockId,
    lock: Lock,
    /// At which key their leases have ended, and when; none if the lock was removed.
    ended: Option<(Option<Key>, Instant)>,
}

impl Table {
    /// Every lease of a lock that very many hold has ended: it is free at once.
    pub(super) fn discard_ended(&mut self, id: LockId, now: Instant) {
        self.note_room(id);
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
            ended: Some((key, now)),
        });
    }

    /// A lock was removed: what is remembered of its holders is forgotten, later if they are many.
    pub(super) fn forget_holders(&mut self, id: LockId, lock: Lock, known: bool) {
        if lock.holders() <= TAKEN_AT_ONCE {
            for hold in lock.holds() {
                self.unbind(id, hold);
                if known {
                    self.holdings.remove(&hold.token, id);
                }
            }
        } else {
            let ended = None;
            self.remains.push(Remains { id, lock, ended });
        }
    }

    /// Whether holders of locks that have gone are still to be forgotten.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        !self.remains.is_empty()
    }

    /// Forgets holders of locks that have gone, at most so many.
    pub fn clear_remains(&mut self, most: usize) {
        let Some(mut remains) = self.remains.pop() else {
            return;
        };
        let mut told = 0;
        for _ in 0..most {
            let Some(hold) = remains.lock.take_ended(Instant(u64::MAX)) else {
                break;
            };
            self.forget_holder(remains.id, &hold);
            if let Some((_, end)) = &remains.ended {
                self.hold_times.record(end.since(hold.granted));
                told += 1;
            }
        }
        if let Some((Some(key), _)) = &remains.ended
            && told > 0
        {
            self.output.ended_before.push((key.clone(), told));
        }
        if !remains.lock.is_free() {
            self.remains.push(remains);
        }
    }

    fn forget_holder(&mut self, id: LockId, hold: &Hold) {
        // It may have the same lock again by now.
        if self
            .lock(id)
            .is_none_or(|lock| lock.hold(&hold.token).is_none())
        {
            self.holdings.remove(&hold.token, id);
            self.unbind(id, hold);
        }
    }
}
