//! This node's state: the table of locks, and the notices that callbacks leave for it.
//!
//! The server may call back at any moment: in the middle of one of our deletions, or on a
//! background thread. So these callbacks never touch the table. They leave a notice, and the next
//! use of the table reads the notices first. `global.rs` states the thread model.

mod lend;
mod notices;
mod slice;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use lazy_static::lazy_static;
use redislock_core::Table;
use redislock_core::quarantine::Reason;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{Keyspace, Limits};
use redislock_core::time::Now;
use redislock_core::token::Key;

pub use lend::{is_lent, is_whole, lend, move_databases, read, read_notices, when_whole};
pub use notices::{
    Notice, deleting, forget_unlinked, freed, is_not_deleted, just_deleted, just_unlinked, opening,
    post, removed, started, unlinked,
};

pub use slice::{Slice, Slices};

use crate::clock;
use crate::global::Global;
use crate::removals::{Caller, Cause, Removal};

/// Whether work is left after a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum More {
    No,
    /// Work is left, but nobody can notice it.
    Later,
    /// Somebody waits for it, and the server must deliver grants first.
    NextTurn,
    /// Somebody waits for it.
    Soon,
}

/// The consequences of a flush.
#[derive(Clone, Copy, Default)]
pub struct Flush {
    /// How many locks it removed.
    pub locks: usize,
    /// Whether it caused a quarantine.
    pub quarantines: bool,
}

/// Everything that belongs to this node.
pub struct Node {
    pub table: Table,
    /// Grants that could not be delivered. They are taken back when writing is allowed.
    pub undeliverable: Vec<WaiterId>,
    /// Strings that somebody waits for and that were changed. Each must be checked once, however
    /// often it was changed.
    changed_strings: BTreeSet<Key>,
    /// Locks whose values were freed. They must be removed from the table.
    freed: Vec<Vec<LockId>>,
    /// For locks that are still to be removed from the table: what removed their keys, and who, if
    /// that is known.
    removed_by: HashMap<LockId, (Cause, Option<Caller>)>,
    /// Locks that were removed while they were held. They must be counted and logged.
    pub removals: VecDeque<Removal>,
    /// Consequences of flushes that are still to be reported.
    pub flush: Flush,
    /// Whether the AOF or a replica may need what is replicated; see
    /// [`crate::server::nobody_listens`].
    pub listened_to: bool,
    /// Whether the fence counter must be replicated again.
    pub counter_is_due: bool,
    /// A random number, new at each start.
    pub incarnation: String,
    /// What the slices of background work took so far.
    pub slices: Slices,
}

/// Lists and maps do not shrink by themselves. They are shrunk to room for this many elements.
const KEPT: usize = 1024;

lazy_static! {
    static ref NODE: Global<Node> = Global::new(Node {
        table: Table::new(Limits::DEFAULT),
        undeliverable: Vec::new(),
        changed_strings: BTreeSet::new(),
        freed: Vec::new(),
        removed_by: HashMap::default(),
        removals: VecDeque::new(),
        flush: Flush::default(),
        listened_to: true,
        counter_is_due: false,
        incarnation: uuid::Uuid::new_v4().to_string(),
        slices: Slices::default(),
    });
    static ref FINGERPRINTS: RandomState = RandomState::new();
}
static ANYONE_WAITS: AtomicBool = AtomicBool::new(false);
static HAS_TIES: AtomicBool = AtomicBool::new(false);
/// Uses the node's state. The closure must not call anything that makes the server call back into
/// `with`.
pub fn with<R>(use_it: impl FnOnce(&mut Node) -> R) -> R {
    #[cfg(feature = "failpoints")]
    crate::edge::failpoint::BORROWS.fetch_add(1, Ordering::Relaxed);
    NODE.with(|node| {
        if notices::are_there() {
            notices::read_all(node);
        }
        let result = use_it(node);
        ANYONE_WAITS.store(node.table.waiters() > 0, Ordering::Relaxed);
        HAS_TIES.store(node.table.has_ties(), Ordering::Relaxed);
        result
    })
}

/// A waiter has received its grant. If the node is not in use, as is usual, this does not need a
/// notice, which takes 450 instructions.
pub fn delivered(id: WaiterId) {
    let noted = NODE.try_change(|node| node.table.delivered(id));
    if noted.is_none() {
        post(Notice::Delivered(id));
    }
}

/// Whether somebody waits for a lock, as of the last use of the table. For callbacks, which must
/// not touch it.
pub fn anyone_waits() -> bool {
    ANYONE_WAITS.load(Ordering::Relaxed)
}

/// Whether there are ephemeral holds, as of the last use of the table.
pub fn has_ties() -> bool {
    HAS_TIES.load(Ordering::Relaxed)
}

/// Whether somebody waits for the string at a key to go away; yes if that is unknown. For
/// callbacks.
pub fn waits_for_string(key: &Key) -> bool {
    NODE.try_with(|node| node.table.waits_for_string(key))
        .unwrap_or(true)
}

/// A fingerprint that tells byte strings apart and reveals nothing about them. It has a new secret
/// key at each start, and is never 0.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    FINGERPRINTS.hash_one(bytes) | 1
}

impl Node {
    fn flushed(&mut self, db: Option<u32>, now: Now) {
        let (before, table) = (self.table.locks(), &mut self.table);
        let left = table.flushed(db, now);
        self.flush.locks += before - table.locks();
        let before = table.quarantine.left(now.mono);
        table.quarantine.enter_for(Reason::Flush, left, now.mono);
        self.flush.quarantines |= before != table.quarantine.left(now.mono);
    }

    /// The role of this node has changed. [`Table::role_changed`] decides about the locks and their
    /// clients; the work that callbacks have left for the old role is dropped.
    pub fn role_changed(&mut self) {
        // Each field is named, so that a new one cannot be forgotten here.
        let Self {
            table,
            undeliverable,
            changed_strings,
            listened_to,
            freed: _,
            removed_by: _,
            removals,
            flush: _,
            counter_is_due: _,
            incarnation: _,
            slices: _,
        } = self;
        table.role_changed();
        undeliverable.clear();
        changed_strings.clear();
        // The master reports what it removed.
        removals.clear();
        // A change of roles may create a backlog.
        *listened_to = true;
    }

    /// CONFIG RESETSTAT: counters start again at zero.
    pub fn reset_statistics(&mut self) {
        self.table.reset_statistics();
        self.slices = Slices::default();
    }

    /// Whether work is left that has no deadline.
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
        let waiters = table.has_unserved() || table.has_leaving();
        let waiters = waiters || !changed_strings.is_empty();
        let of_table = waiters || table.is_closing() || table.is_sweeping();
        let to_forget = !freed.is_empty() || table.has_remains();
        let to_tell = !removals.is_empty() || !undeliverable.is_empty();
        of_table || to_forget || to_tell || *counter_is_due
    }

    /// Marks strings that were changed as due to be checked, at most this many.
    pub fn note_changed_strings(&mut self, most: usize) -> More {
        for _ in 0..most {
            match self.changed_strings.pop_first() {
                Some(key) => self.table.string_has_changed(&key),
                None => return More::No,
            }
        }
        More::Soon
    }

    /// Removes data that nobody can reach any more, of at most this many locks or holds.
    pub fn forget(&mut self, most: usize) -> More {
        self.table.clear_remains(most);
        let freed = self.forget_freed(most);
        if self.table.has_remains() {
            More::Later
        } else {
            freed
        }
    }

    /// Removes locks whose values were freed, until this many holds are gone.
    fn forget_freed(&mut self, most: usize) -> More {
        let mut gone = 0;
        while gone < most {
            match self.freed.last_mut().map(Vec::pop) {
                Some(Some(id)) => {
                    self.note_removal(id);
                    gone += self.table.forget(id);
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
        // There is nearly always none; then nothing is hashed, which saves 125 of the 760
        // instructions to remove a lock after a flush.
        let by = if self.removed_by.is_empty() {
            None
        } else {
            self.removed_by.remove(&id)
        };
        if self.removed_by.is_empty() && self.removed_by.capacity() > KEPT {
            self.removed_by = HashMap::default();
        }
        // What is removed while an AOF is loaded was logged at its time.
        let is_news = !self.table.is_loading() && !self.table.is_attached(id);
        if is_news && self.table.lock(id).is_some() {
            let now = self.table.lease_now(clock::mono());
            let (cause, caller) = by.unwrap_or((Cause::Other, None));
            if let Some(mut removal) = Removal::of(&self.table, id, cause, now) {
                removal.caller = caller;
                self.removals.push_back(removal);
            }
        }
    }

    /// Takes some of the locks that were removed while they were held, to report them.
    pub fn take_removals(&mut self, most: usize) -> Vec<Removal> {
        let many = self.removals.len().min(most);
        let some = self.removals.drain(..many).collect();
        if self.removals.is_empty() && self.removals.capacity() > KEPT {
            self.removals = VecDeque::new();
        }
        some
    }

    /// Continues the work that is done in slices, with at most `most` steps.
    pub fn run_slice(&mut self, most: usize, now: Now, keys: &mut dyn Keyspace) -> More {
        let Self {
            table,
            undeliverable,
            ..
        } = self;
        let kinds = [table.is_closing(), table.is_sweeping()];
        // Leases end all the time.
        let share = (most / (1 + kinds.iter().filter(|kind| **kind).count())).max(1);
        // All of them, because an owner that was refused must not find that it holds the lock.
        for waiter in undeliverable.drain(..) {
            table.undeliverable(waiter, now, keys);
        }
        table.close(share, now, keys);
        table.sweep(share, keys);
        let leases = table.expire(share, now, keys);
        table.serve_some(most, now, keys);
        let serves_more = table.has_more_to_serve(now);
        let waits_only = serves_more && table.awaits_delivery();
        if leases || table.is_sweeping() || serves_more && !waits_only {
            More::Soon
        } else if waits_only {
            More::NextTurn
        } else if table.is_closing() {
            More::Later
        } else {
            More::No
        }
    }
}
