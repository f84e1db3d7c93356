//! All locks of a node: requests and events in; an outcome, changes to the keyspace and answers
//! out.
//!
//! Every call that may change something collects its consequences in an [`Output`]: which keys
//! changed and how, and which waiters get a reply. The caller takes it with
//! [`Table::take_output`] and applies it once. `output.rs` defines it, `request.rs` has the
//! requests of clients, `grant.rs` what a grant does, `outcome.rs` the results of requests,
//! `serve.rs` when waiters are granted, `leaving.rs` how they leave without a grant, `event.rs`
//! what happens without a request, `legacy.rs` strings that count as locks.

mod closing;
mod deadlock;
mod delivery;
mod event;
mod grant;
mod leaving;
mod legacy;
mod order;
mod outcome;
mod output;
mod remains;
mod request;
mod serve;
mod spaces;
mod ties;
mod unserved;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use closing::Closing;
use deadlock::{Holdings, Suspects};
use delivery::Undelivered;
pub use event::Loaded;
pub use legacy::LegacyString;
use legacy::Strings;
pub use outcome::{Answer, Denial, Extended, Granted, Verdict, Wanted};
pub use output::{Events, Output, Presence, Touched, Wake};
use remains::{Remains, Untied};
use spaces::Spaces;
use unserved::Unserved;

use foldhash::{HashMap, HashMapExt};

use crate::fence::FenceCounter;
use crate::lock::{Hold, Lock};
use crate::quarantine::{Quarantine, Reason};
use crate::queue::{Place, Queue, Queues, Waiter, WaiterId};
use crate::replication_lease::ReplicationLease;
use crate::slots::{LockId, Numbered, Slots};
use crate::small::SmallSet;
use crate::stats::{Counters, Histogram};
use crate::time::{LeaseClock, LeaseTime, Micros, Millis, MonoTime};
use crate::token::{Key, Token};
use crate::wheel::Wheel;
use crate::wire::{self, Header};

/// The configured limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `lock.max-hold`.
    pub max_hold: Option<Millis>,
    /// `lock.max-waiters`.
    pub max_waiters: usize,
    /// `lock.max-holders`.
    pub max_holders: u32,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        max_hold: None,
        max_waiters: 10_000,
        max_holders: 10_000,
    };
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A lock.
    Lock(LockId),
    /// A string that counts as a lock.
    LegacyString(LegacyString),
    /// A value of another type.
    Other,
    /// Nothing, and the key belongs to another node of the cluster.
    Elsewhere,
}

/// The keyspace, as core needs it: it is queried before a waiter is granted a key at which no lock
/// was seen.
pub trait Keyspace {
    /// The value of `key`. Callbacks during this call may read `table`.
    fn find(&mut self, table: &Table, key: &Key) -> Found;
}

/// The number of ended holds that one decision removes from a shared lock. Together with its other
/// changes, they are fewer than [`PARTS`].
const TAKEN_AT_ONCE: usize = 32;

/// One lock with its key.
#[derive(Debug)]
struct Entry {
    /// Its own key: see [`Spaces`].
    key: Key,
    lock: Lock,
    generation: u32,
    /// Its place in the output's list, or 0: see [`output::place`]. Saves 1.5 of 6.9 million
    /// instructions of a MACQUIRE of 512 keys and its MRELEASE, because no list is searched.
    touch: u16,
    /// Whether the key is in the keyspace, as far as it is known.
    attached: bool,
    /// Whether somebody waits for the key.
    queued: bool,
}

/// A lock with one owner is stored entirely in here, so this is the memory of a lock: see
/// docs/PERFORMANCE.md.
const _: () = assert!(size_of::<Option<Entry>>() == 112);

impl Numbered for Entry {
    fn generation(&self) -> u32 {
        self.generation
    }
}

impl Entry {
    /// A lock that is at its key.
    fn new(key: Key, lock: Lock, queued: bool, generation: u32) -> Self {
        Self {
            key,
            lock,
            generation,
            touch: 0,
            attached: true,
            queued,
        }
    }

    /// Whether the holders are in [`Holdings`].
    fn is_known(&self) -> bool {
        self.queued || matches!(self.lock, Lock::Shared(_))
    }
}

/// All locks of a node.
#[derive(Debug)]
pub struct Table {
    /// The counters.
    pub counters: Counters,
    /// How long waiters waited until the grant.
    pub wait_times: Histogram,
    /// How long holds lasted.
    pub hold_times: Histogram,
    /// The configured limits.
    pub limits: Limits,
    /// Whether grants may have been lost.
    pub quarantine: Quarantine,
    /// Whether replicas confirm that this node is the only master; none while no replicas are
    /// needed.
    pub replication: Option<ReplicationLease>,
    /// Whether nothing is granted for now, because the server would refuse such a command.
    pub holds_back: bool,
    fences: FenceCounter,
    clock: LeaseClock,
    slots: Slots<Entry>,
    spaces: Spaces,
    wheel: Wheel,
    queues: Queues,
    /// Keys whose queues have changed. They are served when writing is allowed.
    unserved: Unserved,
    /// Waiters whose owner has just been granted something: they may be able to re-enter.
    next_up: SmallSet<WaiterId>,
    /// Waiters that may overtake the first one in the queue of this key: they are next there.
    passing: SmallSet<(WaiterId, Key)>,
    /// Waiting owners whose waits may have become part of a deadlock since the last search.
    suspects: Suspects,
    /// Waiters that must still be removed from their queues, with their replies.
    leaving: BTreeMap<WaiterId, Option<Answer>>,
    /// The number of keys whose waiters may still leave in this decision.
    room_to_leave: usize,
    /// Strings at keys with waiters.
    strings: Strings,
    holdings: Holdings,
    deadlock_steps: u64,
    order_steps: Cell<u64>,
    /// How many places in queues were visited.
    places_seen: Cell<u64>,
    looks: u64,
    /// Grants that are not delivered yet.
    undelivered: Undelivered,
    /// Ephemeral holds by connection.
    connections: HashMap<u64, BTreeSet<(LockId, Token)>>,
    /// How often the role of this node has changed.
    role_changes: u32,
    /// The connections that have closed, and their holds that have not been ended yet.
    closing: BTreeMap<u64, Closing>,
    /// The holders of removed shared locks that are not freed yet.
    remains: Vec<Remains>,
    /// Ties of earlier roles that are not freed yet.
    untied: Vec<Untied>,
    /// The position of a check of every key with waiters, if one is in progress.
    sweep: Option<Place>,
    /// How many such checks have begun.
    sweeps: u32,
    /// Boxed, so that it is handed over without a copy: saves 270 instructions of an acquire
    /// and its release.
    output: Box<Output>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            counters: Counters::default(),
            wait_times: Histogram::default(),
            hold_times: Histogram::default(),
            limits,
            quarantine: Quarantine::default(),
            replication: None,
            holds_back: false,
            fences: FenceCounter::default(),
            clock: LeaseClock::default(),
            slots: Slots::default(),
            spaces: Spaces::default(),
            wheel: Wheel::default(),
            queues: Queues::default(),
            unserved: Unserved::default(),
            next_up: SmallSet::default(),
            passing: SmallSet::default(),
            suspects: Suspects::default(),
            leaving: BTreeMap::new(),
            room_to_leave: leaving::AT_ONCE,
            strings: Strings::default(),
            holdings: Holdings::default(),
            deadlock_steps: 0,
            order_steps: Cell::new(0),
            places_seen: Cell::new(0),
            looks: 0,
            undelivered: Undelivered::default(),
            connections: HashMap::new(),
            role_changes: 0,
            closing: BTreeMap::new(),
            remains: Vec::new(),
            untied: Vec::new(),
            sweep: None,
            sweeps: 0,
            output: Box::default(),
        }
    }

    /// Resets the counters.
    pub fn reset_statistics(&mut self) {
        self.counters = Counters::default();
        self.wait_times = Histogram::default();
        self.hold_times = Histogram::default();
    }

    /// How many locks are held.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.spaces.standing()
    }

    /// How many locks are known, including those that have lost their keys and are not freed yet.
    #[must_use]
    pub fn known_locks(&self) -> usize {
        self.slots.len()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.queues.len()
    }

    /// One of the keys with waiters.
    #[must_use]
    pub fn some_waited_key(&self) -> Option<&Key> {
        self.queues.keys().next()
    }

    /// Why the node grants nothing now, and for how long, as far as it is known; none while it
    /// grants.
    #[must_use]
    pub fn pause(&self, now: MonoTime) -> Option<(Micros, Reason)> {
        let lease = self.replication.as_ref().and_then(|lease| lease.left(now));
        let lease = lease.map(|left| (left, Reason::Replicas));
        let both = [self.quarantine.left(now), lease].into_iter().flatten();
        both.max_by_key(|(left, _)| *left)
    }

    /// The fence counter.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.fences.last()
    }

    /// Never give out `fence` or less again.
    pub fn raise_fence(&mut self, fence: u64) {
        self.fences.raise(fence);
    }

    /// The lock of `id`, with leases that may have ended.
    #[must_use]
    pub fn lock(&self, id: LockId) -> Option<&Lock> {
        self.slots.get(id).map(|entry| &entry.lock)
    }

    /// The key of `id`; none if it has lost its key.
    #[must_use]
    pub fn key(&self, id: LockId) -> Option<Key> {
        self.spaces.outside(&self.slots.get(id)?.key)
    }

    /// Whether the value of `id` is at its key, as far as it is known.
    #[must_use]
    pub fn is_attached(&self, id: LockId) -> bool {
        self.slots.get(id).is_some_and(|entry| entry.attached)
    }

    /// Whether `id` is at this key.
    #[must_use]
    pub fn is_at(&self, id: LockId, db: u32, name: &[u8]) -> bool {
        let entry = self.slots.get(id);
        entry.is_some_and(|entry| self.spaces.is_at(&entry.key, db, name))
    }

    /// Whether somebody waits for the key of `id`, or may.
    #[must_use]
    pub fn is_waited_for(&self, id: LockId) -> bool {
        let entry = self.slots.get(id);
        entry.is_some_and(|entry| entry.queued || self.sweep.is_some())
    }

    /// The key of a lock, if somebody waits for it.
    fn waited_key(&self, entry: &Entry) -> Option<Key> {
        if !entry.queued && self.sweep.is_none() {
            return None;
        }
        let key = self.spaces.outside(&entry.key)?;
        self.queues.at(&key).is_some().then_some(key)
    }

    /// The lock at a key with waiters, as far as it is known.
    fn lock_in_queue(&self, key: &Key) -> Option<LockId> {
        self.lock_of(self.queues.at(key)?, key)
    }

    /// [`Table::lock_in_queue`] for a caller that has the queue.
    fn lock_of(&self, queue: &Queue, key: &Key) -> Option<LockId> {
        let id = queue.lock?;
        let entry = self.slots.get(id).filter(|entry| entry.attached)?;
        let is_there = self.spaces.is_at_key(&entry.key, key);
        is_there.then_some(id)
    }

    /// The lock at a key, if others wait for it and another owner than `token` holds it: then a
    /// request of `token` for this key can only wait, too.
    #[must_use]
    pub fn lock_to_wait_for(&self, key: &Key, token: &Token) -> Option<LockId> {
        if self.sweep.is_some() {
            return None;
        }
        let id = self.lock_in_queue(key)?;
        match self.lock(id)? {
            Lock::Exclusive(hold) if hold.token != *token => Some(id),
            _ => None,
        }
    }

    /// The time of the lease clock.
    #[must_use]
    pub fn lease_now(&self, mono: MonoTime) -> LeaseTime {
        self.clock.at(mono)
    }

    /// Bytes of the lock of `id`, including the second copy of its key.
    #[must_use]
    pub fn memory(&self, id: LockId) -> usize {
        self.slots.get(id).map_or(0, |entry| {
            size_of::<Entry>() + entry.key.heap_bytes() + entry.lock.heap_bytes()
        })
    }

    /// The number of waiters for `key`, and since when the first one waits.
    #[must_use]
    pub fn waiting_for(&self, key: &Key) -> Option<(usize, MonoTime)> {
        let queue = self.queues.at(key)?;
        let first = self.queues.get(*queue.waiting.first()?)?;
        Some((queue.waiting.len(), first.since))
    }

    /// The first requests that wait for `key`, in order of arrival.
    pub fn queue_of(&self, key: &Key, count: usize) -> impl Iterator<Item = &Waiter> {
        let waiting = self
            .queues
            .at(key)
            .into_iter()
            .flat_map(|queue| queue.waiting.iter());
        let waiters = waiting.filter_map(|id| self.queues.get(*id));
        waiters.map(AsRef::as_ref).take(count)
    }

    /// The header of every effect.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            fence: self.fences.last(),
            quarantine: self.quarantine.to_save(),
        }
    }

    /// The effect that recreates the current state of a key: the whole lock, or nothing.
    #[must_use]
    pub fn whole_effect(&self, lock: Option<LockId>, mono: MonoTime) -> Vec<u8> {
        let mut effect = Vec::new();
        wire::begin_effect(self.header(), &mut effect);
        let lock = lock.and_then(|id| self.as_seen(id));
        let lock = lock.as_deref().unwrap_or(&Lock::Free);
        wire::put_whole(lock, self.lease_now(mono), &mut effect);
        effect
    }

    /// Applies the header of an effect or an RDB file.
    pub fn take_in(&mut self, header: Header) {
        self.raise_fence(header.fence);
        self.quarantine.remember(header.quarantine);
    }

    /// Creates a lock for a key that has none yet.
    fn new_lock(&mut self, key: Key, lock: Lock) -> LockId {
        let queued = self.may_have_queues() && self.queues.at(&key).is_some();
        let waited_for = queued.then(|| key.clone());
        let key = self.spaces.inside(key);
        let id = self.add_lock(key.db(), lock.last_end(), |generation| {
            Entry::new(key, lock, queued, generation)
        });
        if let Some(key) = waited_for {
            self.queues.note_lock(&key, Some(id));
        }
        id
    }

    /// Adds a lock, which is made in its slot, to this space.
    fn add_lock(
        &mut self,
        space: u32,
        last_end: Option<LeaseTime>,
        make: impl FnOnce(u32) -> Entry,
    ) -> LockId {
        self.spaces.arrived(space, last_end);
        self.slots.insert(make)
    }

    /// Whether somebody may wait for a key without a lock. A request for one key waits for a lock
    /// that exists, unless the lock was just removed, or other waiters are leaving the head of the
    /// queue.
    fn may_have_queues(&self) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        let waits_without_lock = self.queues.has_several_keys() || !self.strings.is_empty();
        let is_served_later = self.has_unserved() || self.has_leaving() || self.sweep.is_some();
        waits_without_lock || is_served_later
    }

    /// A hold has ended: removes it from all indexes. `known`: see [`Entry::is_known`].
    fn ended(&mut self, id: LockId, hold: &Hold, known: bool, now: LeaseTime) {
        self.hold_times.record(now.since(hold.granted));
        if known {
            self.holdings.remove(&hold.token, id);
        }
        self.unbind(id, hold);
    }
}
