//! How often a watched node is queried. The figures keep the work of the server below 1 % of one
//! core, however many locks it has: bench/watch.py counts the instructions.

use std::time::Duration;

/// Keys that SCAN visits on a node, in a second.
pub const KEYS_PER_SECOND: usize = 2_000;
/// Locks that a node is asked about (LOCK.INFO), in a second.
pub const LOOKS_PER_SECOND: usize = 500;
/// Keys of one SCAN: other clients wait until it ends.
pub const KEYS_PER_SCAN: usize = 500;
/// Holders that are asked for: a shared lock may have thousands.
pub const HOLDERS: usize = 16;
/// How many queues are queried in a round: those of locks that have a view of their own.
pub const QUEUES: usize = 8;
/// Waiters of a queue that are asked for.
pub const WAITERS: usize = 50;
/// The counters (INFO) are read this often, the warnings (LOCK.NODE) too.
pub const COUNTERS_EVERY: Duration = Duration::from_secs(1);
/// Locks that are remembered.
pub const LOCKS: usize = 200_000;
/// Names longer than this are not asked about.
pub const LONGEST_NAME: usize = 4_096;

/// The part of a second's work that falls into one round.
pub fn share(per_second: usize, interval: Duration) -> usize {
    let millis = usize::try_from(interval.as_millis()).unwrap_or(usize::MAX);
    (per_second.saturating_mul(millis) / 1_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_share_the_work_of_a_second() {
        assert_eq!(share(400, Duration::from_millis(500)), 200);
        assert_eq!(share(400, Duration::from_secs(2)), 800);
        assert_eq!(share(400, Duration::from_micros(1)), 1);
    }
}
