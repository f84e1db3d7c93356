//! The fence counter: one per node, it only grows.

use crate::time::{Micros, WallTime};

/// Every fence is below 2^53, so that the numbers of every language can represent it.
pub const MAX_FENCE: u64 = (1 << 53) - 1;

/// How far ahead of the wall clock a client may push the counter.
pub const MAX_LEAD: Micros = Micros(10_000_000);

/// Why no fence was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceError {
    /// The requested fence is more than [`MAX_LEAD`] ahead of the wall clock: granting it would
    /// exhaust the counter.
    TooFarAhead,
    /// The counter has reached [`MAX_FENCE`]; wrapping around would be worse than refusing.
    Exhausted,
}

/// The highest fence that this node has given out, accepted or loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct FenceCounter {
    last: u64,
}

impl FenceCounter {
    /// The highest fence so far.
    #[must_use]
    pub fn last(self) -> u64 {
        self.last
    }

    /// The next fence: above every earlier one, and at least the wall clock and `at_least`.
    ///
    /// # Errors
    /// When `at_least` is too far ahead of the clock, or the counter is exhausted. Then nothing
    /// changes.
    pub fn next(&mut self, wall: WallTime, at_least: Option<u64>) -> Result<u64, FenceError> {
        check_lead(wall, at_least)?;
        let fence = (self.last + 1).max(wall.0).max(at_least.unwrap_or(0));
        if fence > MAX_FENCE {
            return Err(FenceError::Exhausted);
        }
        self.last = fence;
        Ok(fence)
    }

    /// Never give out `fence` or less again: it was loaded, replicated or written back.
    pub fn raise(&mut self, fence: u64) {
        self.last = self.last.max(fence.min(MAX_FENCE));
    }
}

/// Whether a client may ask for `at_least` at the wall clock time `wall`.
///
/// # Errors
/// When it is ahead by more than [`MAX_LEAD`].
pub fn check_lead(wall: WallTime, at_least: Option<u64>) -> Result<(), FenceError> {
    if at_least.is_some_and(|fence| fence > wall.plus(MAX_LEAD).0) {
        return Err(FenceError::TooFarAhead);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_above_the_last_one_and_at_least_the_clock_and_the_requested_one() {
        let mut counter = FenceCounter::default();
        assert_eq!(counter.next(WallTime(1000), None), Ok(1000));
        assert_eq!(counter.next(WallTime(1000), None), Ok(1001));
        assert_eq!(counter.next(WallTime(7), None), Ok(1002));
        assert_eq!(counter.next(WallTime(7), Some(5000)), Ok(5000));
        counter.raise(9000);
        assert_eq!(counter.next(WallTime(7), None), Ok(9001));
        counter.raise(3);
        assert_eq!(counter.last(), 9001);
    }

    #[test]
    fn every_fence_is_a_number_that_a_double_holds_exactly() {
        assert_eq!(MAX_FENCE, 9_007_199_254_740_991);
        let mut counter = FenceCounter::default();
        counter.raise(MAX_FENCE - 1);
        assert_eq!(counter.next(WallTime(1), None), Ok(MAX_FENCE));
        assert_eq!(counter.next(WallTime(1), None), Err(FenceError::Exhausted));
    }

    #[test]
    fn no_client_can_exhaust_the_counter() {
        let mut counter = FenceCounter::default();
        assert_eq!(
            counter.next(WallTime(50), Some(50 + MAX_LEAD.0)),
            Ok(50 + MAX_LEAD.0)
        );
        assert_eq!(
            counter.next(WallTime(50), Some(51 + MAX_LEAD.0)),
            Err(FenceError::TooFarAhead)
        );
        assert_eq!(counter.last(), 50 + MAX_LEAD.0);
    }

    #[test]
    fn a_used_up_counter_refuses_instead_of_wrapping() {
        let mut counter = FenceCounter::default();
        counter.raise(u64::MAX);
        assert_eq!(counter.last(), MAX_FENCE);
        assert_eq!(counter.next(WallTime(1), None), Err(FenceError::Exhausted));
        assert_eq!(counter.last(), MAX_FENCE);
    }
}
