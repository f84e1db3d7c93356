//! A gate for messages: it closes at a chosen message.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Lets this many messages pass, in both directions and of all proxies that share it, and no more
/// until it is opened.
pub struct Gate {
    limit: usize,
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default)]
struct GateState {
    seen: usize,
    is_open: bool,
}

impl Gate {
    /// A gate that closes after this many messages.
    pub fn after(limit: usize) -> Arc<Gate> {
        Arc::new(Gate {
            limit,
            state: Mutex::default(),
            opened: Condvar::new(),
        })
    }

    /// Whether a message has reached the closed gate.
    pub fn is_reached(&self) -> bool {
        self.state().seen > self.limit
    }

    /// Lets all messages pass.
    pub fn open(&self) {
        self.state().is_open = true;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut state = self.state();
        state.seen += 1;
        if state.seen > self.limit {
            drop(self.opened.wait_while(state, |state| !state.is_open));
        }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
