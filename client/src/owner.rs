//! Re-entry: it belongs to a handle that is passed around, not to a thread or a task, and each
//! lock counts by itself.

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
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    by_lock: HashMap<(usize, Vec<u8>), Entry>,
    /// How many there may be before those are cleared away that nobody holds or waits for.
    room: usize,
}

impl Known {
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
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.of(client, key)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Owner")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// Which locks of a hold a guard is in, by their places in the request; `None`: in all of them.
pub(crate) type Part = Option<Vec<usize>>;

/// How many guards are in each lock of a hold; zero: it is released.
#[derive(Debug)]
pub(crate) struct Entries(Vec<usize>);

/// What a guard that left has to release.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Somebody else is in each of its locks.
    Nothing,
    /// These locks of the hold: nobody else is in them.
    Locks(Vec<usize>),
    /// Likewise, but others are in some of its locks.
    Some(Vec<usize>),
    /// The hold: it was the last one.
    All,
}

impl Entries {
    /// One guard in each lock.
    pub(crate) fn new(locks: usize) -> Self {
        Self(vec![1; locks])
    }

    /// One more guard, in those of these locks that are still held. `None`: in none of them.
    pub(crate) fn enter(&mut self, locks: impl Iterator<Item = usize>) -> Part {
        let part: Vec<usize> = locks.filter(|lock| self.0[*lock] > 0).collect();
        part.iter().for_each(|lock| self.0[*lock] += 1);
        (!part.is_empty()).then_some(part)
    }

    /// One guard less.
    pub(crate) fn leave(&mut self, part: &Part) -> Left {
        let (mut left, mut all) = (Vec::new(), true);
        for (lock, guards) in self.0.iter_mut().enumerate() {
            if *guards > 0 && is_in(part, lock) {
                *guards -= 1;
                match *guards {
                    0 => left.push(lock),
                    _ => all = false,
                }
            }
        }
        match left.is_empty() {
            true => Left::Nothing,
            false if self.0.iter().all(|guards| *guards == 0) => Left::All,
            false if all => Left::Locks(left),
            false => Left::Some(left),
        }
    }

    /// One guard less, if it is the only one.
    #[cfg(feature = "observe")]
    pub(crate) fn leave_as_last(&mut self, part: &Part) -> bool {
        let guards = self.0.iter().enumerate();
        let only = guards.fold(true, |only, (lock, guards)| {
            only && (*guards == 0 || (*guards == 1 && is_in(part, lock)))
        });
        if only {
            self.0.fill(0);
        }
        only
    }
}

fn is_in(part: &Part, lock: usize) -> bool {
    part.as_ref().is_none_or(|part| part.contains(&lock))
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
        let known = owner.known.lock().unwrap();
        assert!(known.by_lock.len() <= LEAST_ROOM);
    }

    #[test]
    fn each_lock_is_released_by_the_last_one_in_it() {
        let mut entries = Entries::new(3);
        let one = entries.enter([0].into_iter());
        let two = entries.enter([0, 2].into_iter());
        assert_eq!(entries.leave(&None), Left::Some(vec![1]));
        assert_eq!(entries.enter([1].into_iter()), None);
        assert_eq!(entries.leave(&one), Left::Nothing);
        assert_eq!(entries.enter([1, 2].into_iter()), Some(vec![2]));
        assert_eq!(entries.leave(&two), Left::Some(vec![0]));
        assert_eq!(entries.leave(&Some(vec![2])), Left::All);
    }

    #[test]
    #[cfg(feature = "observe")]
    fn only_a_guard_without_others_is_the_last() {
        let mut entries = Entries::new(2);
        let one = entries.enter([0].into_iter());
        assert!(!entries.leave_as_last(&None));
        assert_eq!(entries.leave(&None), Left::Some(vec![1]));
        assert!(entries.leave_as_last(&one));
        assert_eq!(entries.enter([0, 1].into_iter()), None);
    }
}
