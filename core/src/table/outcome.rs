//! The keys of a request, and its outcome.

use super::LegacyString;
use crate::fence::FenceError;
use crate::lock::{OverCap, Refusal};
use crate::quarantine::Reason;
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::Micros;

/// One key of a request, and the lock that was found there.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The database.
    pub db: u32,
    /// The name.
    pub name: &'a [u8],
    /// The lock at the key.
    pub lock: Option<LockId>,
    /// The string at the key, if it counts as a lock.
    pub string: Option<LegacyString>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The lock cannot be acquired in this mode.
    Refused(Refusal),
    /// The fence cannot be granted.
    Fence(FenceError),
    /// The lease would end after its cap.
    OverCap(OverCap),
    /// The node has the most waiting requests that are allowed.
    TooManyWaiters,
    /// Waiting would cause a deadlock.
    Deadlock,
    /// The node may have lost grants; the time until it grants again.
    Quarantined(Micros, Reason),
    /// The key holds a value of another type.
    WrongType,
}

/// Locks were granted or re-entered: the fence of each key, in the order of the request.
pub type Granted = SmallList<u64>;

/// The outcome of a request for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The token holds them.
    Granted(Granted),
    /// Somebody else holds one of them, or is ahead in the queue.
    Busy,
    /// The request waits.
    Waits(WaiterId),
    /// The request is refused.
    Denied(Denial),
}

/// The reply to a request that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was granted the locks.
    Granted(Granted),
    /// Its time is over, or it was cancelled.
    Nothing,
    /// It is refused.
    Denied(Denial),
    /// This node cannot serve it any longer; the client may send it again.
    Unblocked,
}

/// The outcome of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The hold's fence.
    To(u64),
    /// The token does not hold the lock.
    NotHeld,
    /// It is refused; the lease is unchanged.
    Denied(Denial),
}
