//! Strings at keys that somebody waits for: locks of clients that use `SET key token NX PX ttl`.
//!
//! A string that was seen counts as a lock until it may be gone: it was changed
//! ([`Table::string_has_changed`]), or it has expired. Then it is due ([`Table::strings_due`]), and
//! the key is checked again ([`Table::string_may_be_gone`]). So the caller can first find out
//! whether a key is gone or has moved to another node of a cluster.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::Table;
use crate::time::{Micros, MonoTime};
use crate::token::Key;

/// The longest time between two checks of a string. Not every change of a key is reported.
const LOOK_AGAIN: Micros = Micros(1_000_000);

/// The capacity that an empty map keeps: maps do not shrink by themselves.
const KEPT: usize = 1024;

/// A string at a key, which counts as a lock of a client that does not know this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegacyString {
    /// When it expires, on the monotonic clock; none if it has no TTL.
    pub end: Option<MonoTime>,
}

/// The strings that were seen, and when to check each of them again.
#[derive(Debug, Default)]
pub(super) struct Strings {
    looks: HashMap<Key, MonoTime>,
    by_time: BTreeSet<(MonoTime, Key)>,
}

impl Strings {
    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        !self.is_empty() && self.looks.contains_key(key)
    }

    /// A string was seen at `key`.
    pub(super) fn insert(&mut self, key: &Key, string: LegacyString, now: MonoTime) {
        self.remove(key);
        let again = now.plus(LOOK_AGAIN);
        let look = string.end.map_or(again, |end| end.min(again));
        self.looks.insert(key.clone(), look);
        self.by_time.insert((look, key.clone()));
    }

    /// Forgets what is known about `key`. Returns whether a string was seen there.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some((key, look)) = self.looks.remove_entry(key) else {
            return false;
        };
        if self.looks.is_empty() && self.looks.capacity() > KEPT {
            self.looks = HashMap::default();
        }
        self.by_time.remove(&(look, key))
    }

    /// The string at `key` must be checked as soon as possible.
    pub(super) fn look_now(&mut self, key: &Key) {
        let now = MonoTime(0);
        if self.looks.get(key).is_some_and(|look| *look != now) && self.remove(key) {
            self.looks.insert(key.clone(), now);
            self.by_time.insert((now, key.clone()));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Table {
    /// Keys whose strings must be checked, at most this many. Call [`Table::string_may_be_gone`]
    /// for each.
    #[must_use]
    pub fn strings_due(&self, most: usize, now: MonoTime) -> Vec<Key> {
        let due = self.strings.by_time.iter().take_while(|(at, _)| *at <= now);
        due.take(most).map(|(_, key)| key.clone()).collect()
    }

    /// When to check a string next.
    #[must_use]
    pub fn next_look(&self) -> Option<MonoTime> {
        self.strings.by_time.first().map(|(at, _)| *at)
    }

    /// Whether somebody waits for the string at `key` to go away.
    #[must_use]
    pub fn waits_for_string(&self, key: &Key) -> bool {
        self.strings.contains(key)
    }

    /// The string at `key` was changed: it is due, if somebody waits for it.
    pub fn string_has_changed(&mut self, key: &Key) {
        self.strings.look_now(key);
    }

    /// The string at `key` was changed or has expired: the key is checked when its queue is served.
    pub fn string_may_be_gone(&mut self, key: &Key) {
        if self.strings.remove(key) && self.queues.at(key).is_some() {
            self.unserved.insert(key.clone());
        }
    }
}
