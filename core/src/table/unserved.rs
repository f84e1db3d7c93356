//! Keys whose queues are to be served.

use crate::small::SmallSet;
use crate::token::Key;

/// A set of keys that are served in passes: a key that is added during a pass belongs to the next
/// one. So no key has to wait for others that are added again and again, whatever their names.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    /// What is left of the current pass.
    current: SmallSet<Key>,
    next: SmallSet<Key>,
    /// How many passes have begun.
    passes: u64,
}

impl Unserved {
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty() && self.next.is_empty()
    }

    /// How many passes have begun so far, and whether the last one is over.
    pub(super) fn passes(&self) -> (u64, bool) {
        (self.passes, self.current.is_empty())
    }

    /// Adds a key, if it is not there.
    pub(super) fn insert(&mut self, key: Key) {
        if self.current.is_empty() || !self.current.contains(&key) {
            self.next.insert(key);
        }
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&mut self, key: &Key) {
        if !self.current.is_empty() {
            self.current.remove(key);
        }
        if !self.next.is_empty() {
            self.next.remove(key);
        }
    }

    /// Removes the next key of the current pass, or the first one of a new pass.
    pub(super) fn pop(&mut self) -> Option<Key> {
        if self.current.is_empty() {
            std::mem::swap(&mut self.current, &mut self.next);
            self.passes += 1;
        }
        self.current.pop_first()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
