//! This node's state: the table of locks, and the notices that callbacks leave for it.
//!
//! The server calls back at any moment: in the middle of a deletion of ours, on a background
//! thread. So these callbacks never touch the table. They leave a notice, and whoever uses the
//! table next reads the notices first. `global.rs` states the thread model.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lazy_static::lazy_static;
use redislock_core::Table;
use redislock_core::quarantine::Reason;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{Keyspace, Limits};
use redislock_core::time::{Micros, Now};
use redislock_core::token::Key;

use crate::global::Global;
use crate::removals::{Caller, Cause, Removal};
use crate::{clock, server};

/// What a callback has to say.
pub enum Notice {
    /// The key of a lock was removed by something else than us.
    Unlinked(LockId),
    /// The value of a lock stands at this key now.
    Attached(LockId, Key),
    /// What removed the key of a lock, and who.
    RemovedBy(LockId, Cause, Option<Caller>),
    /// The server saves, rewrites or hands a slot over in a child; whether the fence counter has to
    /// go into the stream for it.
    Forked { counter_is_due: bool },
    /// A waiter is gone.
    Left(WaiterId),
    /// A waiter has received its grant.
    Delivered(WaiterId),
    /// The string at a key was removed or changed, or its TTL was.
    StringChanged(Key),
    /// A database, or every one, was flushed then.
    Flushed(Option<u32>, Now),
    /// Two databases have changed places.
    Swapped(u32, u32),
}

/// Whether more is to be done than fits into a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum More {
    No,
    /// For everybody it is as if it were done.
    Later,
    /// Somebody waits for it.
    Soon,
}

/// What a flush has led to.
#[derive(Clone, Copy, Default)]
pub struct Flush {
    /// How many locks it removed.
    pub locks: usize,
    /// Whether there is a quarantine because of it.
    pub quarantines: bool,
}

/// Everything that belongs to this node.
pub struct Node {
    pub table: Table,
    /// Grants that could not be delivered, to be taken back when writing is allowed.
    pub undeliverable: Vec<WaiterId>,
    /// Keys at which a string was removed or changed, to be looked at.
    pub changed_strings: Vec<Key>,
    /// Locks whose values were freed, to be forgotten.
    freed: Vec<Vec<LockId>>,
    /// What removed the keys of those of them that are not forgotten yet, and who, where it is
    /// known.
    removed_by: HashMap<LockId, (Cause, Option<Caller>)>,
    /// Locks that were removed while they were held, to be counted and logged.
    pub removals: VecDeque<Removal>,
    /// What flushes have led to, to be told.
    pub flush: Flush,
    /// Whether the AOF or a replica may be listening to what is replicated; see
    /// [`crate::server::nobody_listens`].
    pub listened_to: bool,
    /// The fence counter is to go into the stream once more.
    pub counter_is_due: bool,
    /// Random, new with each start.
    pub incarnation: String,
    /// The longest slice of expiry so far.
    pub longest_slice: Micros,
    /// The most time that the main thread itself has spent in a slice.
    pub longest_slice_cpu: Micros,
}

lazy_static! {
    static ref NODE: Global<Node> = Global::new(Node {
        table: Table::new(Limits::DEFAULT),
        undeliverable: Vec::new(),
        changed_strings: Vec::new(),
        freed: Vec::new(),
        removed_by: HashMap::default(),
        removals: VecDeque::new(),
        flush: Flush::default(),
        listened_to: true,
        counter_is_due: false,
        incarnation: uuid::Uuid::new_v4().to_string(),
        longest_slice: Micros::ZERO,
        longest_slice_cpu: Micros::ZERO,
    });
    static ref FINGERPRINTS: RandomState = RandomState::new();
}
static NOTICES: Mutex<Vec<Notice>> = Mutex::new(Vec::new());
static FREED: Mutex<Vec<LockId>> = Mutex::new(Vec::new());

/// The server itself; its children only read.
static OWN_PROCESS: AtomicU32 = AtomicU32::new(0);
static HAS_NOTICES: AtomicBool = AtomicBool::new(false);
static ANYONE_WAITS: AtomicBool = AtomicBool::new(false);
/// The name of the last lock that was removed, as a fingerprint, the lock, and the command.
static LAST_UNLINKED: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_LOCK: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_BY: AtomicU64 = AtomicU64::new(0);

/// So many freed locks are forgotten whenever the table is used, and more when there is time.
const FORGOTTEN_AT_ONCE: usize = 16;

/// Room for this many notices is kept.
const KEPT_NOTICES: usize = 1024;

/// The lock that we are deleting ourselves; what the server calls back about it is no news.
static OURS: AtomicU64 = AtomicU64::new(0);
/// Whether the server has unlinked it.
static OURS_UNLINKED: AtomicBool = AtomicBool::new(false);

/// Uses the node's state. Inside, nothing may be called by which the server calls back into `with`.
pub fn with<R>(use_it: impl FnOnce(&mut Node) -> R) -> R {
    NODE.with(|node| {
        if HAS_NOTICES.load(Ordering::Acquire) {
            read_notices(node);
        }
        let result = use_it(node);
        ANYONE_WAITS.store(node.table.waiters() > 0, Ordering::Relaxed);
        result
    })
}

/// The table, while core looks at a key: see [`lend`].
static LENT: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Looks at a key for core, which has the table borrowed. Redis 7.0 deletes a key whose time is up
/// even then, and tells other modules, which may read locks ([`read`]).
pub fn lend<R>(table: &Table, look: impl FnOnce() -> R) -> R {
    LENT.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
    let result = look();
    LENT.store(std::ptr::null_mut(), Ordering::Relaxed);
    result
}

/// Whether core looks at a key, so that the table can only be read.
pub fn is_lent() -> bool {
    !LENT.load(Ordering::Relaxed).is_null()
}

/// Reads the table, also while core looks at a key.
pub fn read<R>(read: impl FnOnce(&Table) -> R) -> R {
    // SAFETY: it is set only while `lend` has the table borrowed for reading. Whoever comes here
    // then was called from there, on the thread that holds the server's global lock, or is a child
    // that was forked there.
    match unsafe { LENT.load(Ordering::Relaxed).as_ref() } {
        Some(table) => read(table),
        None => with(|node| read(&node.table)),
    }
}

/// What is to be done when the decision is whole in which core looks at a key.
static LATER: Global<Vec<Box<dyn FnOnce()>>> = Global::new(Vec::new());
static HAS_LATER: AtomicBool = AtomicBool::new(false);

/// Does something that uses the node's state: now, or if core looks at a key, when its decision is
/// whole.
pub fn when_whole(run: impl FnOnce() + 'static) {
    if is_lent() {
        LATER.with(|later| later.push(Box::new(run)));
        HAS_LATER.store(true, Ordering::Relaxed);
    } else {
        run();
    }
}

/// A decision is whole.
#[inline]
pub fn is_whole() {
    if HAS_LATER.load(Ordering::Relaxed) {
        HAS_LATER.store(false, Ordering::Relaxed);
        for run in LATER.with(std::mem::take) {
            run();
        }
    }
}

/// Whether databases were flushed or swapped while core looked at a key.
static MOVED: AtomicBool = AtomicBool::new(false);

/// Databases are flushed or swapped, which core has to know before anything is done in them.
pub fn move_databases(notice: Notice) {
    MOVED.store(is_lent(), Ordering::Relaxed);
    post(notice);
    catch_up();
}

/// Reads the notices now, before they become very many, unless core looks at a key.
pub fn catch_up() {
    if !is_lent() {
        with(|_| ());
    }
}

/// Notes which process the server is.
pub fn started() {
    OWN_PROCESS.store(std::process::id(), Ordering::Relaxed);
}

/// Leaves a notice.
pub fn post(notice: Notice) {
    let about = match &notice {
        Notice::Unlinked(id) => id.to_bits(),
        _ => 0,
    };
    if about == 0 || about != OURS.load(Ordering::Relaxed) {
        NOTICES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(notice);
        HAS_NOTICES.store(true, Ordering::Release);
    }
}

/// The value of a lock was freed, on any thread. A flush frees very many of them, and nobody can
/// reach them any more: they are forgotten a few at a time.
pub fn freed(id: LockId) {
    if id.to_bits() != OURS.load(Ordering::Relaxed) {
        FREED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(id);
        HAS_NOTICES.store(true, Ordering::Release);
    }
}

/// Whether somebody waits for a lock, as of the last use of the table. For callbacks, which must
/// not touch it.
pub fn anyone_waits() -> bool {
    ANYONE_WAITS.load(Ordering::Relaxed)
}

/// Whether somebody waits until the string at a key is gone; yes if that cannot be told now. For
/// callbacks.
pub fn waits_for_string(key: &Key) -> bool {
    NODE.try_with(|node| node.table.waits_for_string(key))
        .unwrap_or(true)
}

/// Notes which key of a lock was removed, and by which command, for a deletion or an eviction that
/// may be told of next; whether it is news. `name`: its fingerprint, 0 if it was written over.
pub fn unlinked(id: LockId, by: u64, name: impl FnOnce() -> u64) -> bool {
    let news = id.to_bits() != OURS.load(Ordering::Relaxed);
    if news {
        LAST_UNLINKED.store(name(), Ordering::Relaxed);
        LAST_UNLINKED_BY.store(by, Ordering::Relaxed);
        LAST_UNLINKED_LOCK.store(id.to_bits(), Ordering::Relaxed);
        post(Notice::Unlinked(id));
    } else {
        OURS_UNLINKED.store(true, Ordering::Relaxed);
    }
    news
}

/// The last lock that was removed, if it had this name and this command removed it. Asked once for
/// each.
pub fn just_deleted(name: &[u8], by: u64) -> Option<LockId> {
    let unlinked_by = LAST_UNLINKED_BY.load(Ordering::Relaxed);
    just_unlinked(name).filter(|_| by == unlinked_by)
}

/// Something else than a deletion happened to the key of this name.
pub fn is_not_deleted(name: &[u8]) {
    if LAST_UNLINKED.load(Ordering::Relaxed) != 0 {
        just_unlinked(name);
    }
}

/// The last lock that was removed, if it had this name. Asked once for each.
pub fn just_unlinked(name: &[u8]) -> Option<LockId> {
    let last = LAST_UNLINKED.swap(0, Ordering::Relaxed);
    let is_this_one = last != 0 && last == fingerprint(name);
    is_this_one.then(|| LockId::from_bits(LAST_UNLINKED_LOCK.load(Ordering::Relaxed)))
}

/// The last lock that was removed has come back under another name.
pub fn forget_unlinked(id: LockId) {
    if LAST_UNLINKED_LOCK.load(Ordering::Relaxed) == id.to_bits() {
        LAST_UNLINKED.store(0, Ordering::Relaxed);
    }
}

/// A number that tells byte strings apart and says nothing about them: keyed again with each start,
/// never 0.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    FINGERPRINTS.hash_one(bytes) | 1
}

impl Node {
    /// Takes in what happened to databases while core looked at keys; whether something did.
    pub fn have_databases_moved(&mut self) -> bool {
        let moved = MOVED.swap(false, Ordering::Relaxed);
        if moved {
            read_notices(self);
        }
        moved
    }

    fn flushed(&mut self, db: Option<u32>, now: Now) {
        let (before, table) = (self.table.locks(), &mut self.table);
        let left = table.flushed(db, now);
        self.flush.locks += before - table.locks();
        let before = table.quarantine.left(now.mono);
        table.quarantine.enter_for(Reason::Flush, left, now.mono);
        self.flush.quarantines |= before != table.quarantine.left(now.mono);
    }

    /// The role of this node has changed. What concerns the locks and their clients is decided in
    /// [`Table::role_changed`]; what callbacks have left for it goes with it.
    pub fn role_changed(&mut self) {
        // Each field is named, so that a new one cannot be forgotten here.
        let Self {
            table,
            undeliverable,
            changed_strings,
            listened_to,
            freed: _,
            removed_by: _,
            removals: _,
            flush: _,
            counter_is_due: _,
            incarnation: _,
            longest_slice: _,
            longest_slice_cpu: _,
        } = self;
        table.role_changed();
        undeliverable.clear();
        changed_strings.clear();
        // A change of roles may bring a backlog.
        *listened_to = true;
    }

    /// CONFIG RESETSTAT: counts begin again.
    pub fn reset_statistics(&mut self) {
        self.table.reset_statistics();
        self.longest_slice = Micros::ZERO;
        self.longest_slice_cpu = Micros::ZERO;
    }

    /// Whether something is left to do that no deadline tells of.
    pub fn has_work(&self) -> bool {
        let Self {
            table,
            undeliverable,
            changed_strings,
            freed,
            counter_is_due,
            removals,
            ..
        } = self;
        let of_table = table.has_unserved() || table.is_closing() || table.is_sweeping();
        let to_forget = !freed.is_empty() || table.has_remains();
        let to_tell = !removals.is_empty() || !undeliverable.is_empty();
        let to_look_at = !changed_strings.is_empty();
        of_table || to_forget || to_tell || to_look_at || *counter_is_due
    }

    /// Forgets what nobody can reach any more, of at most so many locks or holds.
    pub fn forget(&mut self, most: usize) -> More {
        self.table.clear_remains(most);
        let freed = self.forget_freed(most);
        if self.table.has_remains() {
            More::Later
        } else {
            freed
        }
    }

    /// Forgets locks whose values were freed, at most so many.
    fn forget_freed(&mut self, most: usize) -> More {
        for _ in 0..most {
            match self.freed.last_mut().map(Vec::pop) {
                Some(Some(id)) => {
                    self.note_removal(id);
                    self.table.forget(id);
                }
                Some(None) => _ = self.freed.pop(),
                None => break,
            }
        }
        if self.freed.is_empty() {
            More::No
        } else {
            More::Later
        }
    }

    /// Notes that a lock is gone, if it was held and its key was removed.
    fn note_removal(&mut self, id: LockId) {
        let by = self.removed_by.remove(&id);
        if self.table.lock(id).is_some() && !self.table.is_attached(id) {
            let now = self.table.lease_now(clock::mono());
            let (cause, caller) = by.unwrap_or((Cause::Other, None));
            if let Some(mut removal) = Removal::of(&self.table, id, cause, now) {
                removal.caller = caller;
                self.removals.push_back(removal);
            }
        }
    }

    /// Goes on with what is done in slices: `most` things of those that are due.
    pub fn go_on(&mut self, most: usize, now: Now, keys: &mut dyn Keyspace) -> More {
        let Self {
            table,
            undeliverable,
            ..
        } = self;
        let kinds = [table.is_closing(), table.is_sweeping()];
        // Leases end all the time.
        let share = most / (1 + kinds.iter().filter(|kind| **kind).count());
        // All of them: an owner that was told no must not find that it holds the lock.
        for waiter in undeliverable.drain(..) {
            table.undeliverable(waiter, now, keys);
        }
        table.close(share, now, keys);
        table.sweep(share, keys);
        let leases = table.expire(share, now, keys);
        table.serve(now, keys);
        let waiters = table.is_sweeping() || table.has_more_to_serve(now);
        if leases || waiters {
            More::Soon
        } else if table.is_closing() {
            More::Later
        } else {
            More::No
        }
    }
}

/// Opens the key of a lock; whether the server has deleted it meanwhile. That is not heard of
/// otherwise: see [`removed`].
pub fn opening<R>(id: LockId, open: impl FnOnce() -> R) -> (R, bool) {
    OURS_UNLINKED.store(false, Ordering::Relaxed);
    let result = deleting(id, open);
    (result, OURS_UNLINKED.load(Ordering::Relaxed))
}

/// The key of a lock was removed by something else than us, and nobody has told it yet.
pub fn removed(id: LockId, name: &[u8]) {
    unlinked(id, 0, || fingerprint(name));
    freed(id);
}

/// Deletes something of which the server tells us, without hearing it.
pub fn deleting<R>(id: LockId, delete: impl FnOnce() -> R) -> R {
    OURS.store(id.to_bits(), Ordering::Relaxed);
    let result = delete();
    OURS.store(0, Ordering::Relaxed);
    result
}

fn read_notices(node: &mut Node) {
    if std::process::id() != OWN_PROCESS.load(Ordering::Relaxed) {
        // A child that saves: the thread that may have been writing a notice at the fork is not
        // here to finish it.
        return;
    }
    HAS_NOTICES.store(false, Ordering::Release);
    let freed = std::mem::take(&mut *FREED.lock().unwrap_or_else(PoisonError::into_inner));
    if !freed.is_empty() {
        node.freed.push(freed);
    }
    let mut notices = std::mem::take(&mut *NOTICES.lock().unwrap_or_else(PoisonError::into_inner));
    for notice in notices.drain(..) {
        match notice {
            Notice::Unlinked(id) => {
                let key = node.table.key(id);
                node.table.unlinked(id);
                // In a cluster the lock may live on elsewhere: nobody is granted anything, all come
                // again.
                if let Some(key) = key.filter(|_| server::is_cluster()) {
                    node.table.unblock_line(&key);
                }
            }
            Notice::Attached(id, key) => node.table.attach(id, key),
            Notice::Flushed(db, now) => node.flushed(db, now),
            Notice::Swapped(a, b) => node.table.swapped(a, b),
            Notice::Forked { counter_is_due } => {
                node.counter_is_due |= counter_is_due;
                node.listened_to = true;
            }
            Notice::RemovedBy(id, cause, caller) => {
                node.table.counters.evicted += u64::from(matches!(cause, Cause::Eviction));
                if node.table.is_attached(id) {
                    // It has another name by now, and a value that came after it was removed.
                } else if node.table.lock(id).is_some() {
                    node.removed_by.insert(id, (cause, caller));
                } else if let Some(removal) = node
                    .removals
                    .iter_mut()
                    .rev()
                    .find(|removal| removal.id == id)
                {
                    // It was forgotten a moment ago, so it is the last one or nearly so.
                    (removal.cause, removal.caller) = (cause, caller);
                }
            }
            Notice::Left(id) => {
                node.table.abandon(id);
                node.undeliverable.push(id);
            }
            Notice::Delivered(id) => node.table.delivered(id),
            Notice::StringChanged(key) => {
                if node.table.waits_for_string(&key) && !node.changed_strings.contains(&key) {
                    node.changed_strings.push(key);
                }
            }
        }
    }
    // What was unlinked before it was freed has been told of by now.
    if node.forget_freed(FORGOTTEN_AT_ONCE) != More::No {
        HAS_NOTICES.store(true, Ordering::Release);
    }
    // Its memory is used again, unless a notice has come meanwhile.
    let mut since = NOTICES.lock().unwrap_or_else(PoisonError::into_inner);
    if since.is_empty() && notices.capacity() <= KEPT_NOTICES {
        *since = notices;
    }
}
