//! Which saved locks (RDB, AOF, RESTORE, MIGRATE) a node accepts.
//!
//! The node trusts its own files and its master. It does not trust a payload from a client (or one
//! that may be from a client, on a writable replica): otherwise any user that may call RESTORE
//! could exhaust the fence counter, or create a lease that outlives every quarantine.

use crate::fence::MAX_LEAD;
use crate::lock::Lock;
use crate::time::{LeaseTime, Micros, Millis, Now};

/// By how much the clocks of two nodes that a lock is moved between may differ.
pub const CLOCK_DIFFERENCE: Micros = Micros(1_000_000);

/// The same for a replica and its master. It is large, because the replica must have every value of
/// its master; a counter that is ahead by this much is far from exhausted.
pub const CLOCK_DIFFERENCE_OF_REPLICA: Micros = Micros(86_400_000_000);

/// Where a saved lock comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the node's own files or from its master.
    Trusted,
    /// From the master or from a client: this is a replica that clients may write to.
    MasterOrClient,
    /// From a client.
    Client {
        /// The longest lease that this node allows; none if nothing depends on it.
        longest_lease: Option<Millis>,
    },
}

/// Why a saved lock is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The bytes are not a lock.
    Malformed,
    /// A fence is ahead of the node's counter, and of its clock by more than [`MAX_LEAD`] and
    /// [`CLOCK_DIFFERENCE`] (on a replica, [`CLOCK_DIFFERENCE_OF_REPLICA`]).
    FenceTooFarAhead,
    /// A lease is longer than this node allows.
    LeaseTooLong,
}

impl Origin {
    /// Whether a node whose counter is at `counter` may accept a lock from this source.
    ///
    /// # Errors
    /// When it could do harm. A lock is never accepted with a lower fence or a shorter lease
    /// instead.
    pub fn check(
        self,
        lock: &Lock,
        counter: u64,
        now: Now,
        lease_now: LeaseTime,
    ) -> Result<(), Rejected> {
        let (difference, longest_lease) = match self {
            Self::Trusted => return Ok(()),
            Self::MasterOrClient => (CLOCK_DIFFERENCE_OF_REPLICA, None),
            Self::Client { longest_lease } => (CLOCK_DIFFERENCE, longest_lease),
        };
        let highest = now.wall.plus(MAX_LEAD).plus(difference).0.max(counter);
        if lock.holds().any(|hold| hold.fence > highest) {
            return Err(Rejected::FenceTooFarAhead);
        }
        let longest = longest_lease.map_or(Micros::MAX, Millis::to_micros);
        if lock.holds().any(|hold| hold.left(lease_now) > longest) {
            return Err(Rejected::LeaseTooLong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Hold, Mode};
    use crate::time::{MonoTime, WallTime};
    use crate::token::Token;

    const WALL: u64 = 1_000_000_000;
    const NOW: Now = Now {
        mono: MonoTime(0),
        wall: WallTime(WALL),
    };

    fn lock(fence: u64, lease: u64) -> Lock {
        let token = Token::new(b"t").expect("a token");
        let end = LeaseTime(Millis(lease).to_micros().0);
        let mut lock = Lock::Free;
        lock.grant(
            Hold::restored(token, fence, end, LeaseTime(0), 1),
            Mode::Exclusive,
        );
        lock
    }

    fn check(origin: Origin, lock: &Lock, counter: u64) -> Result<(), Rejected> {
        origin.check(lock, counter, NOW, LeaseTime(0))
    }

    #[test]
    fn a_client_cannot_raise_the_counter_further_than_clock_errors_explain() {
        let client = Origin::Client {
            longest_lease: None,
        };
        let highest = WALL + MAX_LEAD.0 + CLOCK_DIFFERENCE.0;
        let refused = Err(Rejected::FenceTooFarAhead);
        assert_eq!(check(client, &lock(highest, 1), 0), Ok(()));
        assert_eq!(check(client, &lock(highest + 1, 1), 0), refused);
        assert_eq!(check(client, &lock(highest + 1, 1), highest + 1), Ok(()));
        assert_eq!(check(Origin::Trusted, &lock(highest + 1, 1), 0), Ok(()));
    }

    #[test]
    fn a_replica_takes_what_its_master_may_have_sent() {
        let replica = Origin::MasterOrClient;
        let highest = WALL + MAX_LEAD.0 + CLOCK_DIFFERENCE_OF_REPLICA.0;
        let refused = Err(Rejected::FenceTooFarAhead);
        assert_eq!(
            check(replica, &lock(highest, u64::from(u32::MAX)), 0),
            Ok(())
        );
        assert_eq!(check(replica, &lock(highest + 1, 1), 0), refused);
        assert_eq!(check(replica, &lock(highest + 1, 1), highest + 1), Ok(()));
    }

    #[test]
    fn a_client_may_not_bring_in_a_lease_that_is_too_long() {
        let client = Origin::Client {
            longest_lease: Some(Millis(1000)),
        };
        let refused = Err(Rejected::LeaseTooLong);
        assert_eq!(check(client, &lock(1, 1000), 0), Ok(()));
        assert_eq!(check(client, &lock(1, 1001), 0), refused);
        assert_eq!(check(Origin::Trusted, &lock(1, 1001), 0), Ok(()));
    }
}
