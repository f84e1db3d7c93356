//! The waiters: which keys each waits for, in which order, and until when.
//!
//! Each request gets a number when it arrives, and every key with waiters has a queue of these
//! numbers. A request for several keys is in all their queues at the same time.

mod arrivals;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use arrivals::Arrivals;
use foldhash::HashMap;

use crate::lock::Terms;
use crate::slots::LockId;
use crate::small::{SmallList, SmallSet};
use crate::steady::SteadyMap;
use crate::time::MonoTime;
use crate::token::{Key, Token};

/// The number of a waiting request; a later arrival has a higher number. The last bits are its
/// slot, which is reused later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

const SLOT_BITS: u32 = 20;

/// The capacity that is kept when nobody waits any more.
const KEPT_SLOTS: usize = 1024;

/// The most requests that can wait at the same time.
pub const SLOTS: usize = 1 << SLOT_BITS;

impl WaiterId {
    /// A small number that no other request has while this one waits.
    #[must_use]
    pub fn slot(self) -> usize {
        self.0 as usize % SLOTS
    }
}

/// A request that waits.
#[derive(Debug)]
pub struct Waiter {
    /// The keys that it requests together, in the order of the request.
    pub keys: SmallList<Key>,
    /// The terms of the request.
    pub terms: Terms,
    /// When it gives up, on the monotonic clock; none if it never does.
    pub until: Option<MonoTime>,
    /// When it arrived, on the monotonic clock.
    pub since: MonoTime,
    /// Which key was not available when the request was last checked.
    pub held_up_at: HeldUpAt,
}

/// The index of a key of a request, as a hint that may change while the request waits.
#[derive(Debug, Default)]
pub struct HeldUpAt(AtomicU32);

impl Waiter {
    /// The index of the key that was not available at the last check.
    #[must_use]
    pub fn held_up_at(&self) -> usize {
        self.held_up_at.0.load(Ordering::Relaxed) as usize
    }

    /// The key at this index is not available.
    pub fn is_held_up_at(&self, place: usize) {
        self.held_up_at.0.store(place as u32, Ordering::Relaxed);
    }
}

/// A position from which to continue through all requests and their keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    slot: usize,
    key: usize,
}

/// The queue of the waiters for one key.
#[derive(Debug, Default)]
pub struct Queue {
    /// In order of arrival.
    pub waiting: Arrivals,
    /// The waiters of this queue whose owner has other waiting requests.
    pub linked: SmallSet<WaiterId>,
    /// The lock at that key when it was last seen; none while the key is free or unknown.
    pub lock: Option<LockId>,
    /// The number of the last check of all keys that has covered this key.
    pub sweep: u32,
}

/// A request that has left its queues.
#[derive(Debug)]
pub struct Left {
    /// The request.
    pub waiter: Arc<Waiter>,
    /// The locks without any waiters now.
    pub emptied: Vec<LockId>,
    /// For each of its keys, the first waiter in the queue now.
    pub next: SmallList<Option<WaiterId>>,
    /// Whether its owner has another waiting request.
    pub owner_waits: bool,
}

/// All waiters, and the queue of each key.
#[derive(Debug, Default)]
pub struct Queues {
    /// The waiters by slot.
    slots: Vec<Option<(WaiterId, Arc<Waiter>)>>,
    free_slots: Vec<u32>,
    by_key: SteadyMap<Key, Queue>,
    by_token: HashMap<Token, SmallSet<WaiterId>>,
    deadlines: BTreeSet<(MonoTime, WaiterId)>,
    last: u64,
    /// The memory of a request that has left, for the next one. This saves 190 instructions of a
    /// hand-over.
    reusable: Option<Arc<Waiter>>,
    /// How many requests wait for more than one key. Only these can wait for a free key.
    with_several_keys: usize,
}

impl Queues {
    /// The number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether somebody waits for several keys at once.
    #[must_use]
    pub fn has_several_keys(&self) -> bool {
        self.with_several_keys > 0
    }

    /// Puts a request at the end of the queues of its keys, and notes which lock is at each key.
    /// There must be fewer than [`SLOTS`] waiters.
    pub fn join(&mut self, waiter: Waiter, locks: &[Option<LockId>]) -> WaiterId {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.last += 1;
        let id = WaiterId(self.last << SLOT_BITS | u64::from(slot));
        for (key, lock) in waiter.keys.iter().zip(locks) {
            let queue = self.by_key.or_default(key);
            queue.waiting.join(id);
            queue.lock = *lock;
        }
        let same = self.by_token.entry(waiter.terms.token.clone()).or_default();
        let others = same.len();
        let other = same.first().copied().filter(|_| others == 1);
        same.insert(id);
        if let Some(other) = other.and_then(|other| Some((other, self.get(other).cloned()?))) {
            self.link(other.0, &other.1.keys);
        }
        if waiter.keys.len() > 1 || others > 0 {
            self.link(id, &waiter.keys);
        }
        if let Some(until) = waiter.until {
            self.deadlines.insert((until, id));
        }
        self.with_several_keys += usize::from(waiter.keys.len() > 1);
        let waiter = self.stored(waiter);
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            *slot = Some((id, waiter));
        }
        id
    }

    fn stored(&mut self, waiter: Waiter) -> Arc<Waiter> {
        if let Some(mut reusable) = self.reusable.take()
            && let Some(room) = Arc::get_mut(&mut reusable)
        {
            *room = waiter;
            return reusable;
        }
        Arc::new(waiter)
    }

    /// Reuses the memory of a request that has left, unless it had very many keys.
    pub fn reuse(&mut self, waiter: Arc<Waiter>) {
        if waiter.keys.len() == 1 {
            self.reusable = Some(waiter);
        }
    }

    /// Removes a request from every queue.
    pub fn leave(&mut self, id: WaiterId) -> Option<Left> {
        let slot = self.slots.get_mut(id.slot())?;
        let (_, waiter) = slot.take_if(|(its, _)| *its == id)?;
        self.free_slots.push(id.slot() as u32);
        if self.free_slots.len() == self.slots.len() && self.slots.len() > KEPT_SLOTS {
            (self.slots, self.free_slots) = Default::default();
        }
        let mut emptied = Vec::new();
        let next = SmallList::of_each(&waiter.keys, |key| {
            let mut next = None;
            self.by_key.remove_if(key, |queue| {
                queue.waiting.leave(id);
                queue.linked.remove(&id);
                next = queue.waiting.first().copied();
                if next.is_none() {
                    emptied.extend(queue.lock);
                }
                next.is_none()
            });
            next
        });
        if let Some(until) = waiter.until {
            self.deadlines.remove(&(until, id));
        }
        self.with_several_keys -= usize::from(waiter.keys.len() > 1);
        // It was usually the only request of its owner, so the entry is removed first and hashed
        // once.
        let mut owner_waits = false;
        if let Some((token, mut same)) = self.by_token.remove_entry(&waiter.terms.token) {
            same.remove(&id);
            owner_waits = !same.is_empty();
            if owner_waits {
                self.by_token.insert(token, same);
            }
        }
        // Maps do not shrink by themselves.
        if self.by_token.is_empty() && self.by_token.capacity() > 2 * KEPT_SLOTS {
            self.by_token = HashMap::default();
        }
        Some(Left {
            waiter,
            emptied,
            next,
            owner_waits,
        })
    }

    /// The owner of a request has another waiting request.
    fn link(&mut self, id: WaiterId, keys: &[Key]) {
        for key in keys {
            if let Some(queue) = self.by_key.get_mut(key) {
                queue.linked.insert(id);
            }
        }
    }

    /// A waiting request.
    #[must_use]
    pub fn get(&self, id: WaiterId) -> Option<&Arc<Waiter>> {
        let (its, waiter) = self.slots.get(id.slot())?.as_ref()?;
        (*its == id).then_some(waiter)
    }

    /// The queue of a key.
    #[must_use]
    pub fn at(&self, key: &Key) -> Option<&Queue> {
        self.by_key.get(key)
    }

    /// Notes which lock is at a key. Returns whether the key has waiters.
    pub fn note_lock(&mut self, key: &Key, lock: Option<LockId>) -> bool {
        self.by_key.get_mut(key).is_some_and(|queue| {
            queue.lock = lock;
            true
        })
    }

    /// Marks a key as covered by the check of all keys with this number. Returns whether it was not
    /// covered yet.
    pub fn is_to_be_swept(&mut self, key: &Key, sweep: u32) -> bool {
        let queue = self.by_key.get_mut(key);
        queue.is_some_and(|queue| std::mem::replace(&mut queue.sweep, sweep) != sweep)
    }

    /// Forgets that this lock is at a key with waiters.
    pub fn forget_lock(&mut self, key: &Key, lock: LockId) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.lock.take_if(|known| *known == lock);
        }
    }

    /// The first key with waiters from a position on, and the next position. A key appears once for
    /// each request for it.
    #[must_use]
    pub fn key_from(&self, mut place: Place) -> Option<(Key, Place)> {
        loop {
            let waiter = self.slots.get(place.slot)?;
            if let Some((_, waiter)) = waiter
                && let Some(key) = waiter.keys.get(place.key)
            {
                place.key += 1;
                return Some((key.clone(), place));
            }
            place = Place {
                slot: place.slot + 1,
                key: 0,
            };
        }
    }

    /// Every key with waiters.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }

    /// All waiters, by arrival.
    #[must_use]
    pub fn ids(&self) -> Vec<WaiterId> {
        let all = self.slots.iter().flatten();
        let mut ids: Vec<_> = all.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The waiting requests of `token`, if there are any.
    #[must_use]
    pub fn waits_of(&self, token: &Token) -> Option<&SmallSet<WaiterId>> {
        self.by_token.get(token)
    }

    /// The waiting requests of `token`.
    pub fn of(&self, token: &Token) -> impl Iterator<Item = WaiterId> {
        let same = self.waits_of(token).into_iter();
        same.flat_map(|same| same.iter().copied())
    }

    /// Whether `token` waits.
    #[must_use]
    pub fn has(&self, token: &Token) -> bool {
        !self.by_token.is_empty() && self.by_token.contains_key(token)
    }

    /// The request that gives up first, if its time is over.
    #[must_use]
    pub fn overdue(&self, now: MonoTime) -> Option<WaiterId> {
        self.deadlines
            .first()
            .filter(|(until, _)| *until <= now)
            .map(|(_, id)| *id)
    }

    /// When the next request gives up.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests;
