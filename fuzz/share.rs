//! A floor under the share of inputs that reach what a target tests. Without it, a mistake in the
//! target, or a fault that refuses all input, could leave nothing to test.
//!
//! `scripts/fuzz.sh` prints the last line of each share, and runs the tests below.

use std::sync::atomic::{AtomicU64, Ordering};

/// A share is checked as soon as its floor asks for this many inputs. Each floor is half of the
/// measured share or less: twice as many are expected then, and chance does not make it fail.
const EXPECTED: u64 = 100;
/// How often a share is printed; none is checked before, since the first inputs are much alike.
const STEP: u64 = 1000;

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
        let (what, one_in) = (self.what, self.one_in);
        let many = STEP.max(EXPECTED * one_in);
        if all.is_multiple_of(STEP) {
            let checked = if all < many {
                format!("NOT CHECKED below {many}")
            } else {
                "checked".to_owned()
            };
            println!("share: {what}: {reached} of {all}, floor 1 in {one_in}: {checked}");
        }
        assert!(
            all < many || reached * one_in >= all,
            "share: {what}: only {reached} of {all}, floor 1 in {one_in}; \
             no single input is the cause"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::{EXPECTED, STEP, Share};

    const ONE_IN: u64 = 20;
    /// The first input at which such a floor is checked.
    const MANY: u64 = EXPECTED * ONE_IN;

    fn fails(share: &Share, reached: bool) -> bool {
        catch_unwind(AssertUnwindSafe(|| share.count(reached))).is_err()
    }

    /// At which input a floor fails, if one input in so many reaches it.
    fn fails_at(floor: u64, one_in: u64) -> Option<u64> {
        let share = Share::new("test", floor);
        (1..=MANY * 10).find(|at| fails(&share, at.is_multiple_of(one_in)))
    }

    #[test]
    fn a_floor_fails_as_soon_as_it_is_checked() {
        assert_eq!(fails_at(ONE_IN, u64::MAX), Some(MANY));
        assert_eq!(fails_at(ONE_IN, ONE_IN + 1), Some(MANY));
        assert_eq!(fails_at(1, 2), Some(STEP));
    }

    #[test]
    fn a_floor_that_is_met_does_not_fail() {
        assert_eq!(fails_at(ONE_IN, ONE_IN - 1), None);
        assert_eq!(fails_at(1, 1), None);
    }

    #[test]
    fn a_floor_fails_later_if_the_share_sinks_below_it() {
        let share = Share::new("test", ONE_IN);
        assert!((0..MANY).all(|_| !fails(&share, true)));
        assert!((MANY..MANY * ONE_IN).all(|_| !fails(&share, false)));
        assert!(fails(&share, false));
    }
}
