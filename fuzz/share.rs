//! A floor under the share of inputs that reach what a target tests. Without it, a mistake in the
//! target, or a fault that refuses all input, could leave nothing to test.

use std::sync::atomic::{AtomicU64, Ordering};

/// From this many inputs on, a share is checked.
const MANY: u64 = 20_000;
/// How often a share is printed.
const PRINTED: u64 = 20_000;

/// How many inputs have reached something, of all.
pub struct Share {
    what: &'static str,
    /// One input in so many must reach it.
    one_in: u64,
    all: AtomicU64,
    reached: AtomicU64,
}

impl Share {
    pub const fn new(what: &'static str, one_in: u64) -> Self {
        Self {
            what,
            one_in,
            all: AtomicU64::new(0),
            reached: AtomicU64::new(0),
        }
    }

    /// Counts an input, and fails if too few of all have reached it.
    pub fn count(&self, reached: bool) {
        let all = self.all.fetch_add(1, Ordering::Relaxed) + 1;
        let reached = u64::from(reached);
        let reached = self.reached.fetch_add(reached, Ordering::Relaxed) + reached;
        if all.is_multiple_of(PRINTED) {
            println!("{}: {reached} of {all}", self.what);
        }
        let is_enough = all < MANY || reached * self.one_in >= all;
        assert!(is_enough, "{}: only {reached} of {all}", self.what);
    }
}
