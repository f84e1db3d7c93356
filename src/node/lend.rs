//! The table while core looks up a key: others may read it, and changes wait.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use redislock_core::Table;

use super::{Node, Notice, notices, post, with};
use crate::global::Global;

/// The table, while core looks up a key: see [`lend`].
static LENT: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Looks up a key for core, which has the table borrowed. Redis 7.0 deletes an expired key even
/// then, and notifies other modules, which may read locks ([`read`]).
pub fn lend<R>(table: &Table, look: impl FnOnce() -> R) -> R {
    /// Takes the table back, also after a panic.
    struct Lent;
    impl Drop for Lent {
        fn drop(&mut self) {
            LENT.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
    LENT.store(std::ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
    let _lent = Lent;
    look()
}

/// Whether core is looking up a key, so that the table can only be read.
pub fn is_lent() -> bool {
    !LENT.load(Ordering::Relaxed).is_null()
}

/// Reads the table, also while core looks up a key.
pub fn read<R>(read: impl FnOnce(&Table) -> R) -> R {
    // SAFETY: it is set only while `lend` has the table borrowed for reading. A caller that comes
    // here then was called from there, on the thread that holds the server's global lock, or is a
    // child that was forked there.
    match unsafe { LENT.load(Ordering::Relaxed).as_ref() } {
        Some(table) => read(table),
        None => with(|node| read(&node.table)),
    }
}

/// What to do when the decision that looks up a key is complete.
static LATER: Global<Vec<Box<dyn FnOnce()>>> = Global::new(Vec::new());
/// Whether there is anything. Saves 100 of the 16,500 instructions of an acquire and its release.
static HAS_LATER: AtomicBool = AtomicBool::new(false);

/// Does something that uses the node's state: now, or, if core is looking up a key, when its
/// decision is complete.
pub fn when_whole(run: impl FnOnce() + 'static) {
    if is_lent() {
        LATER.with(|later| later.push(Box::new(run)));
        HAS_LATER.store(true, Ordering::Relaxed);
    } else {
        run();
    }
}

/// A decision is complete.
pub fn is_whole() {
    if HAS_LATER.load(Ordering::Relaxed) {
        HAS_LATER.store(false, Ordering::Relaxed);
        for run in LATER.with(std::mem::take) {
            run();
        }
    }
}

/// Whether databases were flushed or swapped while core looked up a key.
static MOVED: AtomicBool = AtomicBool::new(false);

/// Databases are flushed or swapped. Core must learn this before anything is done in them.
pub fn move_databases(notice: Notice) {
    MOVED.store(is_lent(), Ordering::Relaxed);
    post(notice);
    read_notices();
}

/// Reads the notices now, before they become very many, unless core is looking up a key.
pub fn read_notices() {
    if !is_lent() {
        with(|_| ());
    }
}

impl Node {
    /// Applies flushes and swaps that happened while core looked up keys. Returns whether there
    /// were any.
    pub fn have_databases_moved(&mut self) -> bool {
        // Not a swap, which is a locked instruction and takes 7 ns instead of 1: this runs in every
        // decision.
        let moved = MOVED.load(Ordering::Relaxed);
        if moved {
            MOVED.store(false, Ordering::Relaxed);
            notices::read_all(self);
        }
        moved
    }
}
