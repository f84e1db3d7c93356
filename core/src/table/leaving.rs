//! Waiters that leave their queues without a grant: cancelled, unblocked, timed out, disconnected.
//!
//! Leaving costs time for each key of the request, and very many waiters may leave at once. So in
//! one decision, only waiters for about [`AT_ONCE`] keys leave. The others are noted: from then on
//! they are granted nothing and make nobody wait, and they leave in slices ([`Table::time_out`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashSet;

use super::{Answer, Table};
use crate::queue::{Left, Waiter, WaiterId};
use crate::time::Now;
use crate::token::{Key, Token};

/// The number of keys whose waiters leave in one decision.
pub(super) const AT_ONCE: usize = 32;

impl Table {
    /// Removes a waiter from its queues. The waiters behind it may be next.
    fn leave(&mut self, id: WaiterId) -> Option<Left> {
        let left = self.leave_silently(id)?;
        self.note_next(&left);
        Some(left)
    }

    /// Notes the queues that a waiter has left: those behind it may be next.
    pub(super) fn note_next(&mut self, left: &Left) {
        for (key, next) in left.waiter.keys.iter().zip(&left.next) {
            // The queue is noted when the waiters at its head have also left.
            if next.is_some_and(|next| !self.is_leaving(next)) {
                self.unserved.insert(key.clone());
            }
        }
    }

    /// [`Table::leave`] for a caller that serves the waiters behind it.
    pub(super) fn leave_silently(&mut self, id: WaiterId) -> Option<Left> {
        let mut left = self.queues.leave(id)?;
        if !left.owner_waits {
            self.holdings.waits_no_more(&left.waiter.terms.token);
        }
        if !self.leaving.is_empty() {
            self.leaving.remove(&id);
        }
        for lock in left.emptied.drain(..) {
            // After a swap of databases, a queue that was not checked yet names a lock that has
            // moved to another queue.
            if self.sweep.is_some() {
                self.note_moved(lock);
            } else {
                self.note_unqueued(lock);
            }
        }
        Some(left)
    }

    /// Removes a waiter from its queues, and replies with the reason.
    pub(super) fn dismiss(&mut self, id: WaiterId, answer: Answer) {
        if self.leave(id).is_some() {
            self.counters.denials += u64::from(answer == Answer::Nothing);
            self.output.answers.push((id, answer));
        }
    }

    /// Removes a waiter from its queues, at once if not too many leave, and replies with the reason
    /// if it is still connected.
    fn let_leave(&mut self, id: WaiterId, answer: Option<Answer>) {
        let Some(waiter) = self.queues.get(id) else {
            return;
        };
        let keys = waiter.keys.len();
        if !self.leaving.is_empty() || self.room_to_leave == 0 {
            // An earlier reason stays, unless the waiter has disconnected since.
            match answer {
                Some(answer) => _ = self.leaving.entry(id).or_insert(Some(answer)),
                None => _ = self.leaving.insert(id, None),
            }
            return;
        }
        self.room_to_leave = self.room_to_leave.saturating_sub(keys);
        match answer {
            Some(answer) => self.dismiss(id, answer),
            None => _ = self.leave(id),
        }
    }

    /// Whether a waiter has left, as far as others are concerned.
    pub(super) fn is_leaving(&self, id: WaiterId) -> bool {
        !self.leaving.is_empty() && self.leaving.contains_key(&id)
    }

    /// Whether waiters must still be removed from their queues.
    #[must_use]
    pub fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Replies to the waiters whose time is over, and removes those that are leaving, until they
    /// have left the queues of this many keys; returns whether there may be more.
    pub fn time_out(&mut self, most: usize, now: Now) -> bool {
        self.room_to_leave = AT_ONCE;
        let mut left = most;
        while left > 0 {
            let (id, answer) = match self.leaving.pop_first() {
                Some(leaving) => leaving,
                None => match self.queues.overdue(now.mono) {
                    Some(id) => (id, Some(Answer::Nothing)),
                    None => return false,
                },
            };
            let keys = self.queues.get(id).map_or(1, |waiter| waiter.keys.len());
            left = left.saturating_sub(keys);
            match answer {
                Some(answer) => self.dismiss(id, answer),
                None => _ = self.leave(id),
            }
        }
        self.has_leaving() || self.queues.overdue(now.mono).is_some()
    }

    /// A waiter has disconnected; it gets no reply. Returns whether it still waited: if not, it may
    /// have been granted its locks.
    pub fn abandon(&mut self, id: WaiterId) -> bool {
        let waits = self.queues.get(id).is_some();
        self.let_leave(id, None);
        waits
    }

    /// Cancels the requests of `token` that wait for one of these keys.
    pub(super) fn cancel(&mut self, keys: &[Key], token: &Token) {
        let mut left: Option<BTreeSet<_>> = None;
        let (mut steps, mut enough) = (0, 0);
        for (at, key) in keys.iter().enumerate() {
            let Some(queue) = self.queues.at(key) else {
                continue;
            };
            let left = left.get_or_insert_with(|| {
                let waits = self.queues.of(token);
                let waits = waits.filter(|id| !self.is_leaving(*id));
                let waits = waits.inspect(|id| {
                    enough += self.queues.get(*id).map_or(0, |waiter| waiter.keys.len());
                });
                waits.collect()
            });
            // Any of these may be very many: the waiters in the queue, the owner's requests.
            let waiting = &queue.waiting;
            steps += waiting.len().min(left.len());
            let same: Vec<_> = if steps > enough {
                // The keys of the owner's requests are fewer.
                let keys: HashSet<_> = keys.iter().skip(at).collect();
                let wants = |waiter: &Arc<Waiter>| waiter.keys.iter().any(|key| keys.contains(key));
                let ids = left.iter().copied();
                ids.filter(|id| self.queues.get(*id).is_some_and(wants))
                    .collect()
            } else if waiting.len() < left.len() {
                let ids = waiting.iter().filter(|id| left.contains(id));
                ids.copied().collect()
            } else {
                let ids = left.iter().filter(|id| waiting.contains(id));
                ids.copied().collect()
            };
            for id in same {
                left.remove(&id);
                self.let_leave(id, Some(Answer::Nothing));
            }
            if left.is_empty() || steps > enough {
                return;
            }
        }
    }

    /// Unblocks all waiters, so that they send their requests again.
    pub fn unblock_all(&mut self) {
        for id in self.queues.ids() {
            self.let_leave(id, Some(Answer::Unblocked));
        }
    }

    /// Unblocks the waiters of `key`, so that they send their requests again.
    pub fn unblock_queue(&mut self, key: &Key) {
        let queue = self.queues.at(key).into_iter();
        let ids = queue.flat_map(|queue| queue.waiting.iter().copied());
        let ids: Vec<_> = ids.collect();
        for id in ids {
            self.let_leave(id, Some(Answer::Unblocked));
        }
    }
}
