//! Who waits for which keys, in which order, until when.
//!
//! Arrival gives each request its number, and every key that somebody waits for has a line of those numbers. A request
//! for several keys stands in all their lines at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::HashMap;

use crate::few::{Few, FewSet};
use crate::lock::Terms;
use crate::slots::LockId;
use crate::time::Instant;
use crate::token::{Key, Token};

/// Names one waiting request; a later arrival has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The keys it wants all at once, in the order of the request.
    pub keys: Few<Key>,
    /// What it asks for.
    pub terms: Terms,
    /// When it gives up, on the monotonic clock; never, where there is none.
    pub until: Option<Instant>,
    /// When it came, on the monotonic clock.
    pub since: Instant,
}

/// Those who wait for one key.
#[derive(Debug, Default)]
pub struct Line {
    /// In order of arrival.
    pub waiting: FewSet<WaiterId>,
    /// The lock at that key when it was last seen; none while the key is free or unknown.
    pub lock: Option<LockId>,
}

/// All who wait.
#[derive(Debug, Default)]
pub struct Queue {
    /// By arrival: who is granted next came first, so it is found where the last one was, not in cold memory.
    waiters: BTreeMap<WaiterId, Arc<Waiter>>,
    lines: HashMap<Key, Line>,
    by_token: HashMap<Token, FewSet<WaiterId>>,
    deadlines: BTreeSet<(Instant, WaiterId)>,
    last: u64,
    /// How many wait for more than one key: only they can wait for a key that is free.
    with_several_keys: usize,
}

impl Queue {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether somebody waits for several keys at once.
    #[must_use]
    pub fn has_several_keys(&self) -> bool {
        self.with_several_keys > 0
    }

    /// Puts a request at the end of the lines of its keys.
    pub fn join(&mut self, waiter: Waiter) -> WaiterId {
        self.last += 1;
        let id = WaiterId(self.last);
        for key in &waiter.keys {
            match self.lines.get_mut(key) {
                Some(line) => line.waiting.insert(id),
                None => {
                    let mut line = Line::default();
                    line.waiting.insert(id);
                    self.lines.insert(key.clone(), line);
                }
            }
        }
        if let Some(until) = waiter.until {
            self.deadlines.insert((until, id));
        }
        self.with_several_keys += usize::from(waiter.keys.len() > 1);
        self.by_token
            .entry(waiter.terms.token.clone())
            .or_default()
            .insert(id);
        self.waiters.insert(id, Arc::new(waiter));
        id
    }

    /// Takes a request out of every line; also the locks for which nobody waits any more.
    pub fn leave(&mut self, id: WaiterId) -> Option<(Arc<Waiter>, Vec<LockId>)> {
        let waiter = self.waiters.remove(&id)?;
        let mut emptied = Vec::new();
        for key in &waiter.keys {
            if let Some(line) = self.lines.get_mut(key) {
                line.waiting.remove(&id);
                if line.waiting.is_empty() {
                    emptied.extend(line.lock);
                    self.lines.remove(key);
                }
            }
        }
        if let Some(until) = waiter.until {
            self.deadlines.remove(&(until, id));
        }
        self.with_several_keys -= usize::from(waiter.keys.len() > 1);
        if let Some(same) = self.by_token.get_mut(&waiter.terms.token) {
            same.remove(&id);
            if same.is_empty() {
                self.by_token.remove(&waiter.terms.token);
            }
        }
        Some((waiter, emptied))
    }

    /// A waiting request.
    #[must_use]
    pub fn get(&self, id: WaiterId) -> Option<&Arc<Waiter>> {
        self.waiters.get(&id)
    }

    /// The line of a key.
    #[must_use]
    pub fn line(&self, key: &Key) -> Option<&Line> {
        if self.lines.is_empty() {
            None
        } else {
            self.lines.get(key)
        }
    }

    /// Notes which lock stands at a key that is waited for; says whether it is.
    pub fn note_lock(&mut self, key: &Key, lock: Option<LockId>) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        self.lines.get_mut(key).is_some_and(|line| {
            line.lock = lock;
            true
        })
    }

    /// Every key that is waited for.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.lines.keys()
    }

    /// Everyone who waits, by arrival.
    pub fn ids(&self) -> impl Iterator<Item = WaiterId> {
        self.waiters.keys().copied()
    }

    /// The requests of `token` that wait.
    pub fn of(&self, token: &Token) -> impl Iterator<Item = WaiterId> {
        let same = self.by_token.get(token).into_iter();
        same.flat_map(|same| same.iter().copied())
    }

    /// The request that gives up first, if its time is up.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Option<WaiterId> {
        self.deadlines
            .first()
            .filter(|(until, _)| *until <= now)
            .map(|(_, id)| *id)
    }

    /// When the next request gives up.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(until, _)| *until)
    }
}
