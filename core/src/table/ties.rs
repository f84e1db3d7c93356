//! Which connection an ephemeral hold ends with.
//!
//! A hold stores the connection that used it last, and each open connection has a list of its
//! holds. A change of the node's role unties all of them at once: a tie names the role in which it
//! was made ([`Tie`]), and the lists are freed in slices.

use foldhash::HashMap;

use super::Table;
use crate::lock::{Hold, Tie};
use crate::slots::LockId;
use crate::token::Token;

/// The capacity that an empty map of connections keeps.
const KEPT: usize = 1024;

impl Table {
    /// Whether a hold ends with this connection.
    #[must_use]
    pub fn is_bound(&self, connection: u64) -> bool {
        !self.connections.is_empty() && self.connections.contains_key(&connection)
    }

    /// Whether a hold ends with any connection.
    #[must_use]
    pub fn has_ties(&self) -> bool {
        !(self.connections.is_empty() && self.closing.is_empty())
    }

    fn bind(&mut self, id: LockId, token: &Token, connection: u64) {
        self.connections
            .entry(connection)
            .or_default()
            .insert((id, token.clone()));
    }

    /// The connection that a hold ends with.
    #[must_use]
    pub fn connection_of(&self, hold: &Hold) -> Option<u64> {
        let tie = hold.tie().filter(|tie| tie.role == self.role_changes);
        tie.map(|tie| tie.connection)
    }

    pub(super) fn unbind(&mut self, id: LockId, hold: &Hold) {
        let Some(connection) = self.connection_of(hold) else {
            return;
        };
        if let Some(bound) = self.connections.get_mut(&connection) {
            bound.remove(&(id, hold.token.clone()));
            if bound.is_empty() {
                self.connections.remove(&connection);
                self.give_room_back();
            }
        } else {
            self.unbind_closing(connection, id, &hold.token);
        }
    }

    /// A connection has no more ties. Maps do not shrink by themselves.
    pub(super) fn give_room_back(&mut self) {
        if self.connections.is_empty() && self.connections.capacity() > KEPT {
            self.connections = HashMap::default();
        }
    }

    /// Ties an ephemeral hold to the connection that used it last.
    pub(super) fn rebind(&mut self, id: LockId, token: &Token, connection: Option<u64>) {
        // A script has no connection that could end, so the tie of the hold does not change.
        let Some(connection) = connection else {
            return;
        };
        let Some(entry) = self.slots.get_mut(id) else {
            return;
        };
        let before = entry.lock.hold(token).cloned();
        let role = self.role_changes;
        entry
            .lock
            .change(token, |hold| hold.bind(Tie { connection, role }));
        if let Some(before) = before {
            self.unbind(id, &before);
        }
        self.bind(id, token, connection);
    }
}
