//! The table while core looks at a key: others may read it, and what would change it waits.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use redislock_core::Table;

use super::{Node, Notice, notices, post, with};
use crate::global::Global;

/// The table, while core looks at a key: see [`lend`].
static LENT: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Looks at a key for core, which has the table borrowed. Redis 7.0 deletes a key whose time is up
/// even then, and tells other modules, which may read locks ([`read`]).
pub fn lend<R>(table: &Table, look: impl FnOnce() -> R) -> R {
    /// Takes it back, after a panic too.
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

/// Whether core looks at a key, so that the table can only be read.
pub fn is_lent() -> bool {
    !LENT.load(Ordering::Relaxed).is_null()
}

/// Reads the table, also while core looks at a key.
pub fn read<R>(read: impl FnOnce(&Table) -> R) -> R {
    // SAFETY: it is set only while `lend` has the table borrowed for reading. A caller that comes
    // here then was called from there, on the thread that holds the server's global lock, or is a
    // child that was forked there.
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
    read_notices();
}

/// Reads the notices now, before they become very many, unless core looks at a key.
pub fn read_notices() {
    if !is_lent() {
        with(|_| ());
    }
}

impl Node {
    /// Takes in what happened to databases while core looked at keys; whether something did.
    pub fn have_databases_moved(&mut self) -> bool {
        // A plain load: this is asked in every decision, and a swap is a locked instruction.
        let moved = MOVED.load(Ordering::Relaxed);
        if moved {
            MOVED.store(false, Ordering::Relaxed);
            notices::read_all(self);
        }
        moved
    }
}
