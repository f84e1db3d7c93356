//! The notices that callbacks of the server leave for the node.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::time::Now;
use redislock_core::token::Key;

use super::{More, Node, fingerprint};
use crate::removals::{Caller, Cause};
use crate::server;

/// What a callback reports.
pub enum Notice {
    /// Something other than this module removed the key of a lock.
    Unlinked(LockId),
    /// The value of a lock is at this key now.
    Attached(LockId, Key),
    /// What removed the key of a lock, and who.
    RemovedBy(LockId, Cause, Option<Caller>),
    /// The server saves, rewrites or hands a slot over in a child; whether the fence counter must
    /// be replicated for it.
    Forked { counter_is_due: bool },
    /// A waiter is gone.
    Left(WaiterId),
    /// A waiter has received its grant.
    Delivered(WaiterId),
    /// The string at a key was removed or changed, or its TTL was.
    StringChanged(Key),
    /// A database, or all of them, was flushed at this time.
    Flushed(Option<u32>, Now),
    /// Two databases have changed places.
    Swapped(u32, u32),
}

static NOTICES: Mutex<Vec<Notice>> = Mutex::new(Vec::new());
static FREED: Mutex<Vec<Vec<LockId>>> = Mutex::new(Vec::new());

/// The process id of the server itself; its children only read.
static OWN_PROCESS: AtomicU32 = AtomicU32::new(0);
static HAS_NOTICES: AtomicBool = AtomicBool::new(false);
/// The name of the last lock that was removed, as a fingerprint, the lock, and the command.
static LAST_UNLINKED: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_LOCK: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_BY: AtomicU64 = AtomicU64::new(0);

/// This many holds of freed locks are removed from the table whenever it is used, and more when
/// there is time.
const FORGOTTEN_AT_ONCE: usize = 4;

/// Freed locks are listed in parts of this size: the list of ten million would take milliseconds to
/// free at once.
const PART_OF_FREED: usize = 4096;

/// Room for this many notices is kept.
const KEPT_NOTICES: usize = 1024;

/// The lock that the module itself is deleting. Callbacks about it are ignored.
static OURS: AtomicU64 = AtomicU64::new(0);
/// Whether the server has unlinked it.
static OURS_UNLINKED: AtomicBool = AtomicBool::new(false);

/// Whether there are notices.
#[inline]
pub(super) fn are_there() -> bool {
    HAS_NOTICES.load(Ordering::Acquire)
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

/// The value of a lock was freed, on any thread. A flush frees very many of them. Nobody can reach
/// them any more, so they are removed from the table a few at a time.
pub fn freed(id: LockId) {
    if id.to_bits() != OURS.load(Ordering::Relaxed) {
        let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
        match freed.last_mut().filter(|part| part.len() < PART_OF_FREED) {
            Some(part) => part.push(id),
            None => freed.push(vec![id]),
        }
        HAS_NOTICES.store(true, Ordering::Release);
    }
}

/// Notes which key of a lock was removed, and by which command, because an event about a deletion
/// or an eviction may follow. Returns whether the removal was not known yet. `name` is the
/// fingerprint of the key, or 0 if it was overwritten.
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

/// The last lock that was removed, if it had this name and this command removed it. It is returned
/// only once.
pub fn just_deleted(name: &[u8], by: u64) -> Option<LockId> {
    let unlinked_by = LAST_UNLINKED_BY.load(Ordering::Relaxed);
    just_unlinked(name).filter(|_| by == unlinked_by)
}

/// Something other than a deletion happened to the key of this name.
pub fn is_not_deleted(name: &[u8]) {
    if LAST_UNLINKED.load(Ordering::Relaxed) != 0 {
        just_unlinked(name);
    }
}

/// The last lock that was removed, if it had this name. It is returned only once.
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

/// Opens the key of a lock. Returns whether the server has deleted the key meanwhile, which nothing
/// else reports: see [`removed`].
pub fn opening<R>(id: LockId, open: impl FnOnce() -> R) -> (R, bool) {
    OURS_UNLINKED.store(false, Ordering::Relaxed);
    let result = deleting(id, open);
    (result, OURS_UNLINKED.load(Ordering::Relaxed))
}

/// Something other than this module removed the key of a lock, and no notice says so yet.
pub fn removed(id: LockId, name: &[u8]) {
    unlinked(id, 0, || fingerprint(name));
    freed(id);
}

/// Deletes the key of a lock, and ignores the callbacks about it.
pub fn deleting<R>(id: LockId, delete: impl FnOnce() -> R) -> R {
    OURS.store(id.to_bits(), Ordering::Relaxed);
    let result = delete();
    OURS.store(0, Ordering::Relaxed);
    result
}

/// Reads the notices, and removes some of the locks whose values were freed from the table.
pub(super) fn read_all(node: &mut Node) {
    if std::process::id() != OWN_PROCESS.load(Ordering::Relaxed) {
        // This is a child that saves: a thread that was writing a notice at the fork does not exist
        // here and cannot finish it.
        return;
    }
    HAS_NOTICES.store(false, Ordering::Release);
    let mut freed = std::mem::take(&mut *FREED.lock().unwrap_or_else(PoisonError::into_inner));
    node.freed.append(&mut freed);
    let mut notices = std::mem::take(&mut *NOTICES.lock().unwrap_or_else(PoisonError::into_inner));
    for notice in notices.drain(..) {
        match notice {
            Notice::Unlinked(id) => {
                let key = node.table.key(id);
                node.table.unlinked(id);
                // In a cluster, the lock may exist on another node: nothing is granted, and all
                // waiters must try again.
                if let Some(key) = key.filter(|_| server::is_cluster()) {
                    node.table.unblock_queue(&key);
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
                    // It has another name now, and the value that replaced it was removed.
                } else if node.table.lock(id).is_some() {
                    node.removed_by.insert(id, (cause, caller));
                } else if let Some(removal) = node
                    .removals
                    .iter_mut()
                    .rev()
                    .find(|removal| removal.id == id)
                {
                    // It was removed from the table a moment ago, so it is near the end of the
                    // list.
                    (removal.cause, removal.caller) = (cause, caller);
                }
            }
            Notice::Left(id) => {
                if !node.table.abandon(id) {
                    node.undeliverable.push(id);
                }
            }
            Notice::Delivered(id) => node.table.delivered(id),
            Notice::StringChanged(key) => _ = node.changed_strings.insert(key),
        }
    }
    // Everything that was unlinked before it was freed has its notice by now.
    if node.forget_freed(FORGOTTEN_AT_ONCE) != More::No {
        HAS_NOTICES.store(true, Ordering::Release);
    }
    // Reuse the memory, unless a notice has arrived meanwhile.
    let mut since = NOTICES.lock().unwrap_or_else(PoisonError::into_inner);
    if since.is_empty() && notices.capacity() <= KEPT_NOTICES {
        *since = notices;
    }
}
