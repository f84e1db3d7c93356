//! Who owns: re-entry belongs to a handle that is passed around, not to a thread or a task.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::hold::Hold;

/// Which client, which locks.
type Matter = (usize, Vec<Vec<u8>>);
/// The hold there is, behind a turn: of two tasks with one owner, the second re-enters what the first gets.
pub(crate) type Seat = Arc<tokio::sync::Mutex<Weak<Hold>>>;

/// An owner of locks. With the same handle (or a clone of it) a lock that is held is entered again: each entry has a guard
/// of its own, and the last one out releases.
#[derive(Clone, Default)]
pub struct Owner {
    label: Option<String>,
    seats: Arc<Mutex<HashMap<Matter, Seat>>>,
}

impl Owner {
    /// An owner without a label.
    pub fn new() -> Self {
        Self::default()
    }

    /// An owner with a label, up to 256 bytes, that LOCK.INFO and the errors of others show.
    pub fn named(label: impl Into<String>) -> Self {
        Self {
            label: Some(label.into()),
            ..Self::default()
        }
    }

    /// The label.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The seat of this owner at these locks.
    pub(crate) fn seat(&self, client: usize, keys: &[Vec<u8>]) -> Seat {
        let mut seats = self.lock();
        // Seats that nobody sits or waits on are cleared away by whoever comes next.
        seats.retain(|_, seat| {
            Arc::strong_count(seat) > 1 || seat.try_lock().is_ok_and(|hold| hold.strong_count() > 0)
        });
        Arc::clone(seats.entry((client, keys.to_vec())).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Matter, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Owner")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
