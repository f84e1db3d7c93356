//! Grants that have not reached their waiting clients yet.
//!
//! A client may disconnect before its grant reaches it. Then the grant is taken back, at once and
//! as a whole: an owner that was refused must not find that it holds the lock. So that this never
//! takes long, no more waiters are served while the grants of [`AT_ONCE`] keys are undelivered.
//! They are delivered when the server has finished its current step.

use super::{Found, Keyspace, Table};
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::Now;
use crate::token::{Key, Token};

/// While the grants of this many keys are undelivered, no other waiter is served.
const AT_ONCE: usize = 64;

/// A grant that its client has not received yet, as far as is known.
#[derive(Debug)]
struct Grant {
    id: WaiterId,
    token: Token,
    /// The holds whose count it has increased: the lock, and the fence.
    counted: SmallList<(Key, u64)>,
    /// The holds that it has found and not changed.
    found: SmallList<(Key, u64)>,
    keys: usize,
}

/// All undelivered grants. There are so few that a list saves 600 instructions for each hand-over,
/// compared with a map.
#[derive(Debug, Default)]
pub(super) struct Undelivered {
    grants: Vec<Grant>,
    /// The keys of all grants.
    keys: usize,
}

impl Undelivered {
    /// Whether the limit of undelivered grants is reached.
    pub(super) fn are_enough(&self) -> bool {
        self.keys >= AT_ONCE
    }

    /// A request for this many keys was granted.
    pub(super) fn add(
        &mut self,
        id: WaiterId,
        token: &Token,
        [counted, found]: [SmallList<(Key, u64)>; 2],
    ) {
        let keys = counted.len() + found.len();
        self.keys += keys;
        self.grants.push(Grant {
            id,
            token: token.clone(),
            counted,
            found,
            keys,
        });
    }

    fn remove(&mut self, id: WaiterId) -> Option<Grant> {
        let at = self.grants.iter().position(|grant| grant.id == id)?;
        let grant = self.grants.swap_remove(at);
        self.keys -= grant.keys;
        Some(grant)
    }

    /// Removes a grant that has found nothing, if it is the last one, as is usual: it is not moved,
    /// which saves 80 instructions. Returns whether it was removed.
    fn remove_last(&mut self, id: WaiterId) -> bool {
        let last = self.grants.last().filter(|last| last.id == id);
        let Some(last) = last.filter(|last| last.found.is_empty()) else {
            return false;
        };
        self.keys -= last.keys;
        self.grants.truncate(self.grants.len() - 1);
        true
    }

    /// A grant cannot be delivered. Returns whether another undelivered grant has found the same
    /// hold; that one is responsible for the hold from now on.
    fn pass_on(&mut self, token: &Token, hold: &(Key, u64)) -> bool {
        let mut others = self.grants.iter_mut().filter(|grant| grant.token == *token);
        let Some(other) = others.find(|grant| grant.found.contains(hold)) else {
            return false;
        };
        other.found.retain(|found| found != hold);
        let counted = other.counted.iter().chain([hold]);
        other.counted = counted.cloned().collect();
        true
    }
}

impl Table {
    /// Whether no waiter is served until undelivered grants have arrived.
    #[must_use]
    pub fn awaits_delivery(&self) -> bool {
        self.undelivered.are_enough()
    }

    /// The client of a granted request has received its reply.
    pub fn delivered(&mut self, id: WaiterId) {
        if self.undelivered.remove_last(id) {
            return;
        }
        let Some(grant) = self.undelivered.remove(id) else {
            return;
        };
        // The owner now knows that it holds what this grant has found, so that hold stays.
        for (found, _) in &grant.found {
            self.stands(&grant.token, |key| key == found);
        }
    }

    /// The client of a granted request is gone: the grant is taken back. The waiters must then be
    /// served.
    pub fn undeliverable(&mut self, id: WaiterId, now: Now, keyspace: &mut dyn Keyspace) {
        let Some(grant) = self.undelivered.remove(id) else {
            return;
        };
        for hold in &grant.counted {
            if self.undelivered.pass_on(&grant.token, hold) {
                continue;
            }
            let (key, fence) = hold;
            // A hold with another fence is a later, separate grant.
            if let Found::Lock(id) = keyspace.find(self, key) {
                self.settle_silently(id, &grant.token, now);
                if self.fence_of(id, &grant.token) == Some(*fence) {
                    self.take_off(id, &grant.token, false, now);
                }
            }
        }
    }

    pub(super) fn fence_of(&self, id: LockId, token: &Token) -> Option<u64> {
        Some(self.lock(id)?.hold(token)?.fence)
    }

    /// The owner got a reply that it holds this lock, so an undelivered grant of the lock stays.
    pub(super) fn confirm(&mut self, id: LockId, token: &Token) {
        if self.undelivered.grants.is_empty() {
            return;
        }
        let Some(entry) = self.slots.get(id) else {
            return;
        };
        let Some(db) = self.spaces.db(&entry.key) else {
            return;
        };
        let name = entry.key.clone();
        self.stands(token, |key| key.db() == db && key.name() == name.name());
    }

    /// The undelivered grants of a lock to this owner stay.
    fn stands(&mut self, token: &Token, is_here: impl Fn(&Key) -> bool) {
        let grants = self.undelivered.grants.iter_mut();
        for grant in grants.filter(|grant| grant.token == *token) {
            grant.counted.retain(|(key, _)| !is_here(key));
        }
    }
}
