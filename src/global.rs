//! The thread model of the module.
//!
//! The server runs one thing at a time: a command, a timer, an event, a step of the loader. The
//! thread that runs it holds the server's global lock. This is usually the main thread. It may also
//! be a thread of another module, which has taken the lock (`RM_ThreadSafeContextLock`) and calls
//! our commands (`RM_Call`). So no state is thread-local. State is in one of three places:
//!
//! 1. [`Global`]: used only by the thread that holds the global lock. Nearly everything is here.
//! 2. The notices of `node/`, protected by a mutex: for the one callback that runs without the
//!    lock, on a background thread of the server (`free` in `data_type.rs`).
//! 3. Atomics, for single flags and numbers.
//!
//! The server calls the module back while it does something for it (it deletes a value, it sends a
//! keyspace event). Code that calls the server therefore has no [`Global`] borrowed, with two
//! exceptions. RESTORE reads flags of the server, which causes no callback (`data_type.rs`). And
//! core looks up keys while the node is borrowed (`keyspace/`). Such a lookup causes no callback,
//! except on Redis 7.0, where it deletes an expired key and notifies other modules.
//! Meanwhile, callbacks may read the table (`node/lend.rs`): values can be saved and measured. Keys
//! can be removed, renamed and moved, which leaves a notice. Databases can be flushed and swapped,
//! which the table learns before the decision changes a key. LOCK commands and RESTORE are refused.
//! Other events are handled when the decision is complete (`when_whole` in `node/lend.rs`).

use std::cell::RefCell;

/// State that belongs to the thread that holds the server's global lock.
pub struct Global<T>(RefCell<T>);

// SAFETY: only the thread that holds the server's global lock uses it, so no two threads do at the
// same time, and the lock orders one use after the other.
unsafe impl<T> Sync for Global<T> {}
// SAFETY: one thread may make the value and another one use it, but each only while it holds the
// server's global lock.
unsafe impl<T> Send for Global<T> {}

impl<T> Global<T> {
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Uses the state. The caller holds the server's global lock, and must not call anything that
    /// makes the server call back to this state.
    pub fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        use_it(&mut self.0.borrow_mut())
    }

    /// Changes the state, unless the server calls back while it is in use.
    pub fn try_change<R>(&self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0
            .try_borrow_mut()
            .ok()
            .map(|mut value| change(&mut value))
    }

    /// Uses the state, unless the server calls back while it is in use.
    pub fn try_with<R>(&self, use_it: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.try_borrow().ok().map(|value| use_it(&value))
    }
}
