//! Grants that are on their way to the clients that waited for them.
//!
//! A client may go away before its grant reaches it. The grant is taken back then, at once and as a
//! whole: an owner that was refused must not find that it holds the lock. So that this never takes
//! long, no more waiters are served while the grants of [`AT_ONCE`] keys are on their way. They
//! arrive when the server has done with what it is doing.

use super::{Found, Keyspace, Table};
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::Now;
use crate::token::{Key, Token};

/// While the grants of this many keys are on their way, no other waiter is served.
const AT_ONCE: usize = 64;

/// A grant that its client has not been seen to receive.
#[derive(Debug)]
struct Grant {
    id: WaiterId,
    token: Token,
    /// The holds whose count has grown by it: where, and under which fence.
    counted: SmallList<(Key, u64)>,
    /// The holds that it has found, and left as they were.
    found: SmallList<(Key, u64)>,
    keys: usize,
}

/// All of them. They are so few that a list needs fewer instructions than a map: 600 for each
/// hand-over.
#[derive(Debug, Default)]
pub(super) struct Undelivered {
    grants: Vec<Grant>,
    /// The keys of all grants.
    keys: usize,
}

impl Undelivered {
    /// Whether no more can be on their way for now.
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

    /// A grant cannot be delivered. Another one on its way may have found this hold, and answers
    /// for it from now on; whether there is one.
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
    /// Whether nobody is served until grants that are on their way have arrived.
    #[must_use]
    pub fn awaits_delivery(&self) -> bool {
        self.undelivered.are_enough()
    }

    /// The client of a granted request has received its reply.
    pub fn delivered(&mut self, id: WaiterId) {
        let Some(grant) = self.undelivered.remove(id) else {
            return;
        };
        // The owner knows now that it holds what this grant has found: that stands.
        for (found, _) in &grant.found {
            self.stands(&grant.token, |key| key == found);
        }
    }

    /// The client of a granted request is gone: the grant is taken back and passed on.
    pub fn undeliverable(&mut self, id: WaiterId, now: Now, keyspace: &mut dyn Keyspace) {
        let Some(grant) = self.undelivered.remove(id) else {
            return;
        };
        for hold in &grant.counted {
            if self.undelivered.pass_on(&grant.token, hold) {
                continue;
            }
            let (key, fence) = hold;
            // A hold with another fence is a later grant of its own.
            if let Found::Lock(id) = keyspace.find(self, key)
                && self.settle(id, Some(&grant.token), now, keyspace)
                && self.fence_of(id, &grant.token) == Some(*fence)
            {
                self.take_off(id, &grant.token, false, now);
            }
        }
        self.serve_unserved_if_any(now, keyspace);
    }

    pub(super) fn fence_of(&self, id: LockId, token: &Token) -> Option<u64> {
        Some(self.lock(id)?.hold(token)?.fence)
    }

    /// The owner got a reply that it holds this lock: an undelivered grant of it stands.
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

    /// The undelivered grants of a lock to this owner stand.
    fn stands(&mut self, token: &Token, is_here: impl Fn(&Key) -> bool) {
        let grants = self.undelivered.grants.iter_mut();
        for grant in grants.filter(|grant| grant.token == *token) {
            grant.counted.retain(|(key, _)| !is_here(key));
        }
    }
}
