//! All locks of a node: requests and events in; an outcome, changes to the keyspace and answers
//! out.
//!
//! Every call that may change something collects what follows from it in an [`Output`]: which keys
//! changed and how, and who is answered. The caller takes it with [`Table::take_output`] and
//! applies it once. `request.rs` has what clients ask for, `outcome.rs` what they are told,
//! `serve.rs` how waiters are granted, `event.rs` what happens without being asked, `legacy.rs`
//! strings that count as locks.

mod closing;
mod deadlock;
mod delivery;
mod event;
mod legacy;
mod order;
mod outcome;
mod remains;
mod request;
mod serve;
mod spaces;
mod ties;

use std::cell::Cell;
use std::collections::BTreeSet;

use closing::Closing;
use deadlock::Holdings;
use delivery::Undelivered;
pub use event::Loaded;
pub use legacy::LegacyString;
use legacy::Strings;
pub use outcome::{Answer, Denial, Extended, Granted, Verdict, Wanted};
use remains::{Remains, Untied};
use spaces::Spaces;

use foldhash::{HashMap, HashMapExt};

use crate::fence::FenceCounter;
use crate::few::FewSet;
use crate::lock::{Hold, Lock};
use crate::quarantine::{Quarantine, Reason};
use crate::queue::{Place, Queue, WaiterId};
use crate::replication_lease::ReplicationLease;
use crate::slots::{LockId, Slots};
use crate::stats::{Counters, Histogram};
use crate::time::{LeaseClock, LeaseTime, Micros, Millis, MonoTime, Now};
use crate::token::{Key, Token};
use crate::wheel::Wheel;
use crate::wire::{self, Header};

/// What the configuration limits.
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
    /// Those of a node that is not configured.
    pub const DEFAULT: Self = Self {
        max_hold: None,
        max_waiters: 10_000,
        max_holders: 10_000,
    };
}

/// What stands at a key.
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
}

/// The keyspace, as far as core has to ask it: before a waiter is granted a key at which no lock
/// was seen.
pub trait Keyspace {
    /// What stands at `key`.
    /// Whoever is called back meanwhile may read `table`.
    fn find(&mut self, table: &Table, key: &Key) -> Found;
}

/// What happened to a lock in one decision, and how often; told in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Leases that ended.
    pub expired: u32,
    /// Releases.
    pub released: u32,
    /// An administrator ended the holds.
    pub forced: u32,
    /// Extensions.
    pub extended: u32,
    /// Grants and re-entries.
    pub acquired: u32,
}

/// Changed holds of a shared lock that are written one by one.
const PARTS: usize = 160;
/// So many ended holds are taken off a shared lock in one decision: with what else it may change,
/// fewer than [`PARTS`].
const TAKEN_AT_ONCE: usize = 32;

/// What a decision means for the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The key is to be made.
    New,
    /// The key stays; its lock has changed in place.
    Kept,
    /// The key is to be deleted.
    Gone,
}

/// One lock that a decision has changed.
#[derive(Debug)]
pub struct Touched {
    /// The lock. It names nothing any more if it is gone.
    pub id: LockId,
    /// Where it was, if it is gone; [`Table::key`] tells it of the others.
    pub gone_from: Option<Key>,
    /// What becomes of the key.
    pub presence: Presence,
    /// Where in [`Output::effect`] the change to replicate is.
    pub change: std::ops::Range<usize>,
    /// What to tell about it.
    pub events: Events,
    /// The holds that changed, if the lock is shared and need not be written whole.
    changed: Vec<Token>,
    whole: bool,
    end_before: Option<LeaseTime>,
}

/// What follows from a decision.
#[derive(Debug, Default)]
pub struct Output {
    /// The locks that changed, each once.
    pub touched: Vec<Touched>,
    /// The effect to replicate: its header, and the changes behind it. Empty if nobody listens.
    pub effect: Vec<u8>,
    /// Where the changes begin.
    pub header_len: usize,
    /// Who is to be told what.
    pub answers: Vec<(WaiterId, Answer)>,
    /// The first of the leases that end sooner than known before, on the monotonic clock.
    pub soonest_end: Option<MonoTime>,
    /// Leases that have ended and were not told of at once: at which key, and how many.
    pub ended_before: Vec<(Key, u32)>,
}

impl Output {
    /// Nothing follows.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            touched: Vec::new(),
            effect: Vec::new(),
            header_len: 0,
            answers: Vec::new(),
            soonest_end: None,
            ended_before: Vec::new(),
        }
    }

    /// Forgets everything but the memory.
    pub fn clear(&mut self) {
        self.touched.clear();
        self.effect.clear();
        self.answers.clear();
        self.ended_before.clear();
        self.soonest_end = None;
    }
}

/// When the caller has to let the table go on, without being asked by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At this moment, on the monotonic clock.
    At(MonoTime),
    /// As soon as the caller has done with what it is doing.
    Soon,
}

/// One lock with its key.
#[derive(Debug)]
struct Entry {
    /// Its own key: see [`Spaces`].
    key: Key,
    lock: Lock,
    /// 1 + its place in the output's list, 0 while it is not there.
    touch: u32,
    /// Whether the key is in the keyspace, as far as is known.
    attached: bool,
    /// Whether somebody waits for the key.
    queued: bool,
}

impl Entry {
    /// Whether the holders are in [`Holdings`].
    fn is_known(&self) -> bool {
        self.queued || matches!(self.lock, Lock::Shared(_))
    }
}

/// All locks of a node.
#[derive(Debug)]
pub struct Table {
    /// What has been counted.
    pub counters: Counters,
    /// How long waiters waited until the grant.
    pub wait_times: Histogram,
    /// How long holds lasted.
    pub hold_times: Histogram,
    /// What the configuration limits.
    pub limits: Limits,
    /// Whether grants may have been forgotten.
    pub quarantine: Quarantine,
    /// Whether replicas confirm that this node is the only master; none while no replicas are
    /// needed.
    pub replication: Option<ReplicationLease>,
    /// Whether nobody is granted anything for now, because the server would refuse a command that
    /// did.
    pub holds_back: bool,
    fences: FenceCounter,
    clock: LeaseClock,
    slots: Slots<Entry>,
    spaces: Spaces,
    wheel: Wheel,
    queue: Queue,
    /// Keys in whose lines something has changed, to be served when writing is allowed.
    unserved: FewSet<Key>,
    /// Waiters whose owner has just been granted something: a re-entry may be next.
    next_up: FewSet<WaiterId>,
    /// Strings at keys that are waited for.
    strings: Strings,
    holdings: Holdings,
    deadlock_steps: u64,
    order_steps: Cell<u64>,
    looks: u64,
    /// Grants that are on their way.
    undelivered: Undelivered,
    /// The holds that end with a connection.
    connections: HashMap<u64, BTreeSet<(LockId, Token)>>,
    /// How often the role of this node has changed.
    role_changes: u32,
    /// The connections that have closed, and their holds that have not been ended yet.
    closing: HashMap<u64, Closing>,
    /// The holders of shared locks that have gone and are not forgotten yet.
    remains: Vec<Remains>,
    /// Where ties of earlier roles are still noted.
    untied: Vec<Untied>,
    /// Every key that is waited for is to be looked at again, from this place of the queue on.
    sweep: Option<Place>,
    output: Output,
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
            queue: Queue::default(),
            unserved: FewSet::default(),
            next_up: FewSet::default(),
            strings: Strings::default(),
            holdings: Holdings::default(),
            deadlock_steps: 0,
            order_steps: Cell::new(0),
            looks: 0,
            undelivered: Undelivered::default(),
            connections: HashMap::new(),
            role_changes: 0,
            closing: HashMap::new(),
            remains: Vec::new(),
            untied: Vec::new(),
            sweep: None,
            output: Output::default(),
        }
    }

    /// Begins to count again.
    pub fn reset_statistics(&mut self) {
        self.counters = Counters::default();
        self.wait_times = Histogram::default();
        self.hold_times = Histogram::default();
    }

    /// How many locks are held.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.slots.len() - self.spaces.gone()
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.queue.len()
    }

    /// One of the keys that somebody waits for.
    #[must_use]
    pub fn some_waited_key(&self) -> Option<&Key> {
        self.queue.keys().next()
    }

    /// Why the node grants nothing now, and for how long as far as that is known; none
    /// while it grants.
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

    /// The key of `id`, unless it stands nowhere.
    #[must_use]
    pub fn key(&self, id: LockId) -> Option<Key> {
        self.spaces.outside(&self.slots.get(id)?.key)
    }

    /// Whether the value of `id` stands at its key, as far as is known.
    #[must_use]
    pub fn is_attached(&self, id: LockId) -> bool {
        self.slots.get(id).is_some_and(|entry| entry.attached)
    }

    /// Whether `id` stands at this key.
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
        self.queue.line(&key).is_some().then_some(key)
    }

    /// The lock at a key that is waited for, as far as is known.
    fn lock_in_line(&self, key: &Key) -> Option<LockId> {
        let id = self.queue.line(key)?.lock?;
        let entry = self.slots.get(id).filter(|entry| entry.attached)?;
        let is_there = self.spaces.is_at(&entry.key, key.db(), key.name());
        is_there.then_some(id)
    }

    /// What the lease clock shows.
    #[must_use]
    pub fn lease_now(&self, mono: MonoTime) -> LeaseTime {
        self.clock.at(mono)
    }

    /// Bytes of `id`'s lock, its key's second copy included.
    #[must_use]
    pub fn memory(&self, id: LockId) -> usize {
        self.slots.get(id).map_or(0, |entry| {
            size_of::<Entry>() + entry.key.heap_bytes() + entry.lock.heap_bytes()
        })
    }

    /// The first line: how many wait for `key`, and since when the first of them does.
    #[must_use]
    pub fn waiting_for(&self, key: &Key) -> Option<(usize, MonoTime)> {
        let line = self.queue.line(key)?;
        let first = self.queue.get(*line.waiting.first()?)?;
        Some((line.waiting.len(), first.since))
    }

    /// Whether the last calls have led to something.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let Output {
            touched,
            answers,
            ended_before,
            ..
        } = &self.output;
        !(touched.is_empty() && answers.is_empty() && ended_before.is_empty())
    }

    /// Whether the last calls have led to nothing but this: nobody holds the lock any more.
    #[must_use]
    pub fn only_frees(&self, id: LockId) -> bool {
        let Output {
            touched,
            answers,
            ended_before,
            ..
        } = &self.output;
        let only = matches!(&touched[..], [touched] if touched.id == id);
        let is_free = self.slots.get(id).is_some_and(|entry| entry.lock.is_free());
        only && is_free && answers.is_empty() && ended_before.is_empty()
    }

    /// Takes what the last calls have led to; with the effect, if somebody listens. `spare` is an
    /// earlier output that was applied and cleared: its memory is used again.
    pub fn take_output(&mut self, now: Now, listened_to: bool, spare: Output) -> Output {
        self.finish(now, listened_to);
        std::mem::replace(&mut self.output, spare)
    }

    /// When the caller of a decision has to let the table go on: the first lease of its output ends,
    /// a string is to be looked at, or more can be served. What was known before has its alarm.
    #[must_use]
    pub fn wake(&self, output: Option<&Output>, now: Now) -> Option<Wake> {
        if self.has_more_to_serve(now) {
            return Some(Wake::Soon);
        }
        let end = output.and_then(|output| output.soonest_end);
        match (end, self.next_look()) {
            (Some(end), Some(look)) => Some(Wake::At(end.min(look))),
            (end, look) => end.or(look).map(Wake::At),
        }
    }

    /// What every effect begins with.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            fence: self.fences.last(),
            quarantine: self.quarantine.to_save(),
        }
    }

    /// The effect that makes a key what it is now: with all of this lock, or empty.
    #[must_use]
    pub fn whole_effect(&self, lock: Option<LockId>, mono: MonoTime) -> Vec<u8> {
        let mut effect = Vec::new();
        wire::begin_effect(self.header(), &mut effect);
        let lock = lock.and_then(|id| self.as_seen(id));
        let lock = lock.as_deref().unwrap_or(&Lock::Free);
        wire::put_whole(lock, self.lease_now(mono), &mut effect);
        effect
    }

    /// Takes in the header of an effect or an RDB file.
    pub fn take_in(&mut self, header: Header) {
        self.raise_fence(header.fence);
        self.quarantine.remember(header.quarantine);
    }

    /// Notes that a lock is about to change.
    fn touch(&mut self, id: LockId) -> Option<&mut Touched> {
        let entry = self.slots.get_mut(id)?;
        if entry.touch == 0 {
            self.output.touched.push(Touched {
                id,
                gone_from: None,
                presence: if entry.lock.is_free() {
                    Presence::New
                } else {
                    Presence::Kept
                },
                change: 0..0,
                events: Events::default(),
                changed: Vec::new(),
                whole: !matches!(entry.lock, Lock::Shared(_)),
                end_before: entry.lock.first_end(),
            });
            entry.touch = self.output.touched.len() as u32;
        }
        self.output.touched.get_mut(entry.touch as usize - 1)
    }

    /// Notes that the hold of `token` in a lock is about to change, and how that is told.
    fn touch_hold(&mut self, id: LockId, token: &Token, tell: impl FnOnce(&mut Events)) {
        if let Some(touched) = self.touch(id) {
            tell(&mut touched.events);
            // Past some changes the whole lock is as cheap to write, and looking for doubles is
            // not.
            if touched.changed.len() >= PARTS {
                touched.whole = true;
            } else if !touched.whole && !touched.changed.contains(token) {
                touched.changed.push(token.clone());
            }
        }
    }

    /// A lock for a key at which there is none yet.
    fn new_lock(&mut self, key: Key) -> LockId {
        let queued = self.may_have_lines() && self.queue.line(&key).is_some();
        let line = queued.then(|| key.clone());
        let key = self.spaces.inside(key);
        self.spaces.arrived(&key, None);
        let entry = Entry {
            key,
            lock: Lock::Free,
            touch: 0,
            attached: true,
            queued,
        };
        let id = self.slots.insert(entry);
        if let Some(line) = line {
            self.queue.note_lock(&line, Some(id));
        }
        id
    }

    /// Whether somebody may wait for a key at which there is no lock. Who waits for one key waits
    /// for a lock that is there, unless it was just removed.
    fn may_have_lines(&self) -> bool {
        let waits_without_lock = self.queue.has_several_keys() || !self.strings.is_empty();
        waits_without_lock || self.has_unserved() || self.sweep.is_some()
    }

    /// Writes down what became of each touched lock, removes those that nobody holds any more, and
    /// sets deadlines.
    fn finish(&mut self, now: Now, listened_to: bool) {
        let lease_now = self.clock.at(now.mono);
        let mut effect = std::mem::take(&mut self.output.effect);
        if listened_to {
            wire::begin_effect(self.header(), &mut effect);
        }
        self.output.header_len = effect.len();
        for touched in &mut self.output.touched {
            let Some(entry) = self.slots.get_mut(touched.id) else {
                continue;
            };
            entry.touch = 0;
            if listened_to {
                let start = effect.len();
                if touched.whole || !matches!(entry.lock, Lock::Shared(_)) {
                    wire::put_whole(&entry.lock, lease_now, &mut effect);
                } else {
                    wire::put_part(&entry.lock, &touched.changed, lease_now, &mut effect);
                }
                touched.change = start..effect.len();
            }
            match entry.lock.first_end() {
                Some(end) => {
                    self.spaces
                        .lasts(&entry.key, entry.lock.last_end().unwrap_or(end));
                    if touched.end_before.is_none_or(|before| end < before) {
                        self.wheel.set(touched.id.index(), end);
                        let end = self.clock.when(end);
                        let soonest = &mut self.output.soonest_end;
                        *soonest = Some(soonest.map_or(end, |soonest| soonest.min(end)));
                    }
                }
                None => {
                    touched.presence = Presence::Gone;
                    self.wheel.unset(touched.id.index());
                    if let Some(entry) = self.slots.remove(touched.id) {
                        let key = self.spaces.outside(&entry.key);
                        self.spaces.left(&entry.key, entry.attached);
                        if let Some(key) = key.as_ref().filter(|_| entry.queued) {
                            self.queue.forget_lock(key, touched.id);
                        }
                        touched.gone_from = key;
                    }
                }
            }
        }
        self.output.effect = effect;
    }

    /// A hold has ended: what is kept about it elsewhere ends too. `known`: see
    /// [`Entry::is_known`].
    fn ended(&mut self, id: LockId, hold: &Hold, known: bool, now: LeaseTime) {
        self.hold_times.record(now.since(hold.granted));
        if known {
            self.holdings.remove(&hold.token, id);
        }
        self.unbind(id, hold);
    }
}
