//! Ephemeral holds of connections that have closed.
//!
//! A connection may have very many of them, so they are ended in slices. A hold that is still in
//! the list ends when its lock is next used ([`Table::end_ties_at`]), and a reader sees its future
//! end ([`Table::end_of`]). So all of them end at the same moment for everybody, with one
//! exception: if more than [`HOLDERS_LOOKED_AT`] share one lock, and very many of them end
//! together, others may find that lock held a little longer.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{Keyspace, TAKEN_AT_ONCE, Table};
use crate::lock::{Hold, Lock};
use crate::slots::LockId;
use crate::time::{LeaseTime, MonoTime, Now};
use crate::token::Token;

/// The number of holds that are ended at a time, which is soon enough for their waiters.
const SOON_DONE: usize = 1024;

/// The number of holders of a shared lock that are checked when the lock is used.
const HOLDERS_LOOKED_AT: usize = 256;

/// The remaining work for a closed connection.
#[derive(Debug)]
pub(super) struct Closing {
    /// When its holds end on the lease clock, unless they end earlier.
    end: LeaseTime,
    holds: BTreeSet<(LockId, Token)>,
}

impl Closing {
    /// The holds that have not been ended yet.
    pub(super) fn holds(self) -> BTreeSet<(LockId, Token)> {
        self.holds
    }
}

impl Table {
    /// A connection has closed: its ephemeral holds end at `end` on the monotonic clock, unless
    /// they end earlier.
    pub fn hang_up(&mut self, connection: u64, end: MonoTime, now: Now) {
        if let Some(holds) = self.connections.remove(&connection) {
            self.give_room_back();
            let end = self.clock.at(end.max(now.mono));
            if holds.len() > SOON_DONE {
                // The waiters of such a lock are served first.
                self.start_sweep();
            }
            self.closing.insert(connection, Closing { end, holds });
        }
    }

    /// Whether holds of closed connections have not been ended yet.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Ends holds of closed connections, at most this many.
    pub fn close(&mut self, most: usize, now: Now, keyspace: &mut dyn Keyspace) {
        let looked = self.looks;
        for _ in 0..most {
            if self.has_looked_enough(looked, most) {
                return;
            }
            let Some(mut first) = self.closing.first_entry() else {
                return;
            };
            let (connection, closing) = (*first.key(), first.get_mut());
            let (end, hold) = (closing.end, closing.holds.pop_first());
            if closing.holds.is_empty() {
                first.remove();
            }
            if let Some((id, token)) = hold
                && self.end_tie(id, &token, connection, end)
            {
                self.settle_silently(id, &token, now);
                if self.has_unserved() {
                    self.serve_some(most, now, keyspace);
                }
            }
        }
    }

    /// When a hold ends: with its lease, or with its connection if that has closed.
    #[must_use]
    pub fn end_of(&self, hold: &Hold) -> LeaseTime {
        if self.closing.is_empty() {
            return hold.end;
        }
        let connection = self.connection_of(hold);
        let closing = connection.and_then(|connection| self.closing.get(&connection));
        closing.map_or(hold.end, |closing| closing.end.min(hold.end))
    }

    /// The lock of `id` with the real ends of its holds: see [`Table::end_of`].
    #[must_use]
    pub fn as_seen(&self, id: LockId) -> Option<Cow<'_, Lock>> {
        let lock = self.lock(id)?;
        if self.closing.is_empty() {
            return Some(Cow::Borrowed(lock));
        }
        let mut seen = Cow::Borrowed(lock);
        for hold in lock.holds() {
            let end = self.end_of(hold);
            if end != hold.end {
                seen.to_mut().change(&hold.token, |hold| hold.end = end);
            }
        }
        Some(seen)
    }

    /// The running holds of a lock and their ends: those that end last, at most this many. If very
    /// many are about to end with their connections, only this many of them are left out.
    #[must_use]
    pub fn running_holds(
        &self,
        id: LockId,
        now: LeaseTime,
        most: usize,
    ) -> Vec<(&Hold, LeaseTime)> {
        let mut left_out = 0;
        let holds = self.lock(id).into_iter();
        let holds = holds.flat_map(|lock| lock.last_to_end(now));
        let running = holds.filter_map(|hold| {
            let end = self.end_of(hold);
            if end > now {
                return Some((hold, end));
            }
            left_out += 1;
            (left_out > most.max(TAKEN_AT_ONCE)).then_some((hold, hold.end))
        });
        running.take(most).collect()
    }

    /// Ends the holds of a lock whose connections have closed, including that of `token`.
    pub(super) fn end_ties_at(&mut self, id: LockId, token: Option<&Token>) {
        if self.closing.is_empty() {
            return;
        }
        let Some(lock) = self.lock(id) else {
            return;
        };
        let is_closing = |hold: &&Hold| {
            let connection = self.connection_of(hold);
            connection.is_some_and(|connection| self.closing.contains_key(&connection))
        };
        let own = token.and_then(|token| lock.hold(token)).filter(is_closing);
        let mut ties: Vec<_> = own.into_iter().chain(lock.holds().take(1)).collect();
        if lock.holders() > 1 {
            ties.extend(lock.holds().take(HOLDERS_LOOKED_AT));
        }
        if lock.holders() > HOLDERS_LOOKED_AT {
            let from = (id, Token::smallest());
            let some = self
                .closing
                .values()
                .take(TAKEN_AT_ONCE)
                .flat_map(|closing| {
                    let tied = closing.holds.range(from.clone()..);
                    tied.take_while(|(at, _)| *at == id).take(TAKEN_AT_ONCE)
                });
            ties.extend(some.filter_map(|(_, token)| lock.hold(token)));
        }
        let ties = ties.into_iter().filter(is_closing);
        let ties: Vec<_> = ties
            .filter_map(|hold| Some((hold.token.clone(), self.connection_of(hold)?)))
            .collect();
        for (token, connection) in ties {
            let end = self.closing.get(&connection).map(|closing| closing.end);
            if let Some(end) = end {
                self.end_tie(id, &token, connection, end);
                self.unbind_closing(connection, id, &token);
            }
        }
    }

    /// Sets the end of a hold that is tied to a connection, unless it ends earlier. Returns whether
    /// it is still tied and its lock is at a key.
    fn end_tie(&mut self, id: LockId, token: &Token, connection: u64, end: LeaseTime) -> bool {
        let entry = self.slots.get(id).filter(|entry| entry.attached);
        let entry = entry.filter(|entry| self.spaces.db(&entry.key).is_some());
        let hold = entry.and_then(|entry| entry.lock.hold(token));
        let Some(hold) = hold.filter(|hold| self.connection_of(hold) == Some(connection)) else {
            return false;
        };
        if hold.end > end {
            self.touch_hold(id, token, |_| ());
            if let Some(entry) = self.slots.get_mut(id) {
                entry.lock.change(token, |hold| hold.end = end);
            }
        }
        true
    }

    /// A hold is no longer tied to a connection that has closed.
    pub(super) fn unbind_closing(&mut self, connection: u64, id: LockId, token: &Token) {
        if let Some(closing) = self.closing.get_mut(&connection) {
            closing.holds.remove(&(id, token.clone()));
            if closing.holds.is_empty() {
                self.closing.remove(&connection);
            }
        }
    }
}
