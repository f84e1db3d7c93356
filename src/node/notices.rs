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

static NOTICES: Mutex<Vec<Notice>> = Mutex::new(Vec::new());
static FREED: Mutex<Vec<LockId>> = Mutex::new(Vec::new());

/// The server itself; its children only read.
static OWN_PROCESS: AtomicU32 = AtomicU32::new(0);
static HAS_NOTICES: AtomicBool = AtomicBool::new(false);
/// The name of the last lock that was removed, as a fingerprint, the lock, and the command.
static LAST_UNLINKED: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_LOCK: AtomicU64 = AtomicU64::new(0);
static LAST_UNLINKED_BY: AtomicU64 = AtomicU64::new(0);

/// This many freed locks are forgotten whenever the table is used, and more when there is time.
const FORGOTTEN_AT_ONCE: usize = 16;

/// Room for this many notices is kept.
const KEPT_NOTICES: usize = 1024;

/// The lock that we are deleting ourselves; what the server calls back about it is no news.
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

/// Reads the notices that were left, and forgets some of the locks whose values were freed.
pub(super) fn read_all(node: &mut Node) {
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
            Notice::StringChanged(key) => _ = node.changed_strings.insert(key),
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
