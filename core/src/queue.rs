//! Who waits for which keys, in which order, until when.
//!
//! Arrival gives each request its number, and every key that somebody waits for has a queue of
//! those numbers. A request for several keys stands in all their queues at once.

mod arrivals;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use arrivals::Arrivals;
use foldhash::HashMap;

use crate::lock::Terms;
use crate::slots::LockId;
use crate::small::{SmallList, SmallSet};
use crate::time::MonoTime;
use crate::token::{Key, Token};

/// Names one waiting request; a later arrival has a higher number. Its last bits are a slot, which
/// many have one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

const SLOT_BITS: u32 = 20;

/// Room for this many is kept when nobody waits any more.
const KEPT_SLOTS: usize = 1024;

/// The most that can wait at once.
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
    /// The keys it wants all at once, in the order of the request.
    pub keys: SmallList<Key>,
    /// What it asks for.
    pub terms: Terms,
    /// When it gives up, on the monotonic clock; never, where there is none.
    pub until: Option<MonoTime>,
    /// When it came, on the monotonic clock.
    pub since: MonoTime,
    /// Which of the keys it could not have when it was last looked at.
    pub held_up_at: HeldUpAt,
}

/// The place of a key among those of a request, as a hint that may be changed while it waits.
#[derive(Debug, Default)]
pub struct HeldUpAt(AtomicU32);

impl Waiter {
    /// The place of the key that it could not have when it was last looked at.
    #[must_use]
    pub fn held_up_at(&self) -> usize {
        self.held_up_at.0.load(Ordering::Relaxed) as usize
    }

    /// It cannot have the key at this place.
    pub fn is_held_up_at(&self, place: usize) {
        self.held_up_at.0.store(place as u32, Ordering::Relaxed);
    }
}

/// A place from which to go on through all requests and their keys.
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
    /// Those of them whose owner waits for something else, too.
    pub linked: SmallSet<WaiterId>,
    /// The lock at that key when it was last seen; none while the key is free or unknown.
    pub lock: Option<LockId>,
    /// Which time that all keys were looked at again this one was.
    pub sweep: u32,
}

/// A request that has left its queues.
#[derive(Debug)]
pub struct Left {
    /// The request.
    pub waiter: Arc<Waiter>,
    /// The locks for which nobody waits any more.
    pub emptied: Vec<LockId>,
    /// For each of its keys, who is the first in the queue now.
    pub next: SmallList<Option<WaiterId>>,
    /// Whether its owner waits with another request.
    pub owner_waits: bool,
}

/// The queue of each key that is waited for.
///
/// A decision asks for the same queue again and again: the one that was asked for last is tried
/// before the key is hashed. That saves 500 instructions of a hand-over.
#[derive(Debug, Default)]
struct ByKey {
    places: HashMap<Key, u32>,
    queues: Vec<Option<(Key, Queue)>>,
    free: Vec<u32>,
    /// The place of the queue that was asked for last.
    last: Cell<u32>,
}

impl ByKey {
    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[inline]
    fn place(&self, key: &Key) -> Option<usize> {
        let last = self.last.get() as usize;
        if let Some(Some((its, _))) = self.queues.get(last)
            && its == key
        {
            return Some(last);
        }
        if self.is_empty() {
            return None;
        }
        let place = *self.places.get(key)?;
        self.last.set(place);
        Some(place as usize)
    }

    #[inline]
    fn get(&self, key: &Key) -> Option<&Queue> {
        let (_, queue) = self.queues.get(self.place(key)?)?.as_ref()?;
        Some(queue)
    }

    #[inline]
    fn get_mut(&mut self, key: &Key) -> Option<&mut Queue> {
        let place = self.place(key)?;
        let (_, queue) = self.queues.get_mut(place)?.as_mut()?;
        Some(queue)
    }

    /// A queue for a key that has none.
    fn insert(&mut self, key: &Key, queue: Queue) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.queues.push(None);
            self.queues.len() as u32 - 1
        });
        if let Some(room) = self.queues.get_mut(place as usize) {
            *room = Some((key.clone(), queue));
        }
        self.places.insert(key.clone(), place);
        self.last.set(place);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            if let Some(room) = self.queues.get_mut(place as usize) {
                *room = None;
            }
            self.free.push(place);
        }
    }
}

/// All who wait, and the queue of each key.
#[derive(Debug, Default)]
pub struct Queues {
    /// Where everyone who waits has a slot, as the number says.
    slots: Vec<Option<(WaiterId, Arc<Waiter>)>>,
    free_slots: Vec<u32>,
    by_key: ByKey,
    by_token: HashMap<Token, SmallSet<WaiterId>>,
    deadlines: BTreeSet<(MonoTime, WaiterId)>,
    last: u64,
    /// The memory of a request that has left, for the next one: 190 instructions of a hand-over.
    spare: Option<Arc<Waiter>>,
    /// How many wait for more than one key: only they can wait for a key that is free.
    with_several_keys: usize,
}

impl Queues {
    /// How many wait.
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

    /// Puts a request at the end of the queues of its keys. Fewer than [`SLOTS`] wait.
    pub fn join(&mut self, waiter: Waiter) -> WaiterId {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.last += 1;
        let id = WaiterId(self.last << SLOT_BITS | u64::from(slot));
        for key in &waiter.keys {
            match self.by_key.get_mut(key) {
                Some(queue) => queue.waiting.join(id),
                None => {
                    let mut queue = Queue::default();
                    queue.waiting.join(id);
                    self.by_key.insert(key, queue);
                }
            }
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
        if let Some(mut spare) = self.spare.take()
            && let Some(room) = Arc::get_mut(&mut spare)
        {
            *room = waiter;
            return spare;
        }
        Arc::new(waiter)
    }

    /// Nothing more is to be known of a request that has left: its memory is used again, unless it
    /// had very many keys.
    pub fn reuse(&mut self, waiter: Arc<Waiter>) {
        if waiter.keys.len() == 1 {
            self.spare = Some(waiter);
        }
    }

    /// Takes a request out of every queue.
    pub fn leave(&mut self, id: WaiterId) -> Option<Left> {
        let slot = self.slots.get_mut(id.slot())?;
        let (_, waiter) = slot.take_if(|(its, _)| *its == id)?;
        self.free_slots.push(id.slot() as u32);
        if self.free_slots.len() == self.slots.len() && self.slots.len() > KEPT_SLOTS {
            (self.slots, self.free_slots) = Default::default();
        }
        let mut emptied = Vec::new();
        let next = SmallList::of_each(&waiter.keys, |key| {
            let queue = self.by_key.get_mut(key)?;
            queue.waiting.leave(id);
            queue.linked.remove(&id);
            let next = queue.waiting.first().copied();
            if next.is_none() {
                emptied.extend(queue.lock);
                self.by_key.remove(key);
            }
            next
        });
        if let Some(until) = waiter.until {
            self.deadlines.remove(&(until, id));
        }
        self.with_several_keys -= usize::from(waiter.keys.len() > 1);
        // Mostly it was the only request of its owner: so it is taken out first, and hashed once.
        let mut owner_waits = false;
        if let Some((token, mut same)) = self.by_token.remove_entry(&waiter.terms.token) {
            same.remove(&id);
            owner_waits = !same.is_empty();
            if owner_waits {
                self.by_token.insert(token, same);
            }
        }
        // Maps do not shrink by themselves, and a waiter may have had very many keys.
        if self.by_key.is_empty() {
            if self.by_key.queues.len() > KEPT_SLOTS {
                self.by_key = ByKey::default();
            }
            if self.by_token.capacity() > 2 * KEPT_SLOTS {
                self.by_token = HashMap::default();
            }
        }
        Some(Left {
            waiter,
            emptied,
            next,
            owner_waits,
        })
    }

    /// The owner of a request waits for something else, too.
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

    /// Notes which lock stands at a key that is waited for; says whether it is.
    pub fn note_lock(&mut self, key: &Key, lock: Option<LockId>) -> bool {
        self.by_key.get_mut(key).is_some_and(|queue| {
            queue.lock = lock;
            true
        })
    }

    /// All keys that are waited for are looked at again for the time of this number; whether this
    /// one is still to be looked at.
    pub fn is_to_be_swept(&mut self, key: &Key, sweep: u32) -> bool {
        let queue = self.by_key.get_mut(key);
        queue.is_some_and(|queue| std::mem::replace(&mut queue.sweep, sweep) != sweep)
    }

    /// Forgets that this lock stands at a key that is waited for.
    pub fn forget_lock(&mut self, key: &Key, lock: LockId) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.lock.take_if(|known| *known == lock);
        }
    }

    /// The first key that is waited for from a place on, and the place behind it. A
    /// key comes once for each request for it.
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

    /// Every key that is waited for.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.places.keys()
    }

    /// Everyone who waits, by arrival.
    #[must_use]
    pub fn ids(&self) -> Vec<WaiterId> {
        let all = self.slots.iter().flatten();
        let mut ids: Vec<_> = all.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The requests of `token` that wait, if it waits.
    #[must_use]
    pub fn waits_of(&self, token: &Token) -> Option<&SmallSet<WaiterId>> {
        self.by_token.get(token)
    }

    /// The requests of `token` that wait.
    pub fn of(&self, token: &Token) -> impl Iterator<Item = WaiterId> {
        let same = self.waits_of(token).into_iter();
        same.flat_map(|same| same.iter().copied())
    }

    /// Whether `token` waits.
    #[must_use]
    pub fn has(&self, token: &Token) -> bool {
        !self.by_token.is_empty() && self.by_token.contains_key(token)
    }

    /// The request that gives up first, if its time is up.
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
