//! Owners whose waits may have become part of a deadlock since the last search.

use super::Holdings;
use crate::small::SmallSet;
use crate::token::Token;

/// Locks that change together may have the same holders. After as many visits to holders as there
/// are waiting owners, all of these are suspects, and no further holder is visited.
#[derive(Debug, Default)]
pub(in crate::table) struct Suspects {
    owners: SmallSet<Token>,
    /// How many holders were visited to find them since the last search.
    visited: u64,
    /// The version of the waiting owners when all of them were added.
    all_of: Option<u64>,
    /// How many passes of serving had begun when there were suspects first.
    since: Option<u64>,
}

impl Suspects {
    pub(in crate::table) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub(super) fn contains(&self, owner: &Token) -> bool {
        self.owners.contains(owner)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Token> {
        self.owners.iter()
    }

    pub(in crate::table) fn insert(&mut self, owner: Token) {
        self.owners.insert(owner);
    }

    pub(in crate::table) fn extend(&mut self, owners: impl Iterator<Item = Token>) {
        self.owners.extend(owners);
    }

    /// Whether every owner that holds something and waits is a suspect.
    pub(super) fn are_all_of(&self, holdings: &Holdings) -> bool {
        self.all_of == Some(holdings.version)
    }

    /// Notes how many holders were visited for the last ones.
    pub(super) fn note_visits(&mut self, visits: u64, holdings: &Holdings) {
        self.visited += visits;
        if self.visited > holdings.waiting.len() as u64 {
            self.owners.extend(holdings.waiting.iter().cloned());
            self.all_of = Some(holdings.version);
        }
    }

    /// Whether all keys were served that had changed when there were suspects first. While queues
    /// change all the time, there are always some that have not been served.
    pub(in crate::table) fn are_due(&mut self, (passes, is_over): (u64, bool)) -> bool {
        let since = *self.since.get_or_insert(passes);
        is_over && passes >= since + 2
    }

    pub(in crate::table) fn clear(&mut self) {
        *self = Self::default();
    }
}
