//! Who owns: re-entry belongs to a handle that is passed around, not to a thread or a task.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::clock::Moment;
use crate::hold::Hold;

/// The hold there is of one lock, behind a turn: of two tasks with one owner, the second re-enters
/// what the first gets.
type Entry = Arc<tokio::sync::Mutex<Weak<Hold>>>;
/// So many entries are kept without looking whether anybody needs them.
const LEAST_ROOM: usize = 16;

/// An owner of locks. With the same handle (or a clone of it) a lock that is held is entered again:
/// each entry has a guard of its own, and the last one out releases. Every lock counts by itself,
/// so an owner of `x` and `y` may ask for `y` alone, or for both in another order.
#[derive(Clone, Default)]
pub struct Owner {
    label: Option<String>,
    entries: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    by_lock: HashMap<(usize, Vec<u8>), Entry>,
    /// How many there may be before those are cleared away that nobody holds or waits for.
    room: usize,
}

impl Entries {
    fn of(&mut self, client: usize, key: &[u8]) -> Entry {
        if self.by_lock.len() >= self.room {
            self.by_lock.retain(|_, entry| {
                Arc::strong_count(entry) > 1
                    || entry.try_lock().is_ok_and(|hold| hold.strong_count() > 0)
            });
            // Twice as many as there are: clearing away costs each call little.
            self.room = LEAST_ROOM.max(2 * self.by_lock.len());
        }
        let entry = self.by_lock.entry((client, key.to_vec()));
        Arc::clone(entry.or_default())
    }
}

/// The right to acquire one lock for the owner.
pub(crate) struct Turn {
    pub(crate) key: Vec<u8>,
    hold: OwnedMutexGuard<Weak<Hold>>,
}

impl Turn {
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.upgrade()
    }

    pub(crate) fn set(&mut self, hold: &Arc<Hold>) {
        *self.hold = Arc::downgrade(hold);
    }
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

    /// The turns of this owner at these locks, in the order of their names, so that no two tasks
    /// wait for each other. `None`: it took too long.
    pub(crate) async fn turns(
        &self,
        client: usize,
        keys: &[Vec<u8>],
        may_wait: bool,
        deadline: Option<Moment>,
    ) -> Option<Vec<Turn>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let waiting = async {
            let mut turns = Vec::with_capacity(keys.len());
            for key in keys {
                let entry = self.entry(client, &key);
                let hold = match may_wait {
                    true => entry.lock_owned().await,
                    false => entry.try_lock_owned().ok()?,
                };
                turns.push(Turn { key, hold });
            }
            Some(turns)
        };
        match deadline {
            Some(deadline) => tokio::time::timeout(deadline.remaining(), waiting)
                .await
                .unwrap_or(None),
            None => waiting.await,
        }
    }

    fn entry(&self, client: usize, key: &[u8]) -> Entry {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.of(client, key)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Owner")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_nobody_needs_do_not_pile_up() {
        let owner = Owner::new();
        for number in 0..1_000 {
            drop(owner.entry(0, format!("x{number}").as_bytes()));
        }
        let entries = owner.entries.lock().unwrap();
        assert!(entries.by_lock.len() <= LEAST_ROOM);
    }
}
