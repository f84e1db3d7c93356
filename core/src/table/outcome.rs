//! What a request names, and what becomes of it.

use super::LegacyString;
use crate::fence::FenceError;
use crate::lock::{OverCap, Refusal};
use crate::quarantine::Reason;
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::Micros;

/// One key that a request names, and the lock that was found there.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The database.
    pub db: u32,
    /// The name.
    pub name: &'a [u8],
    /// The lock at it.
    pub lock: Option<LockId>,
    /// The string at it, if that counts as a lock.
    pub string: Option<LegacyString>,
}

/// Why a request changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The lock cannot be acquired in this mode.
    Refused(Refusal),
    /// The fence cannot be given.
    Fence(FenceError),
    /// The lease would end past its cap.
    OverCap(OverCap),
    /// As many requests wait as may.
    TooManyWaiters,
    /// Waiting would cause a deadlock.
    Deadlock,
    /// The node may have forgotten grants; the time until it grants again.
    Quarantined(Micros, Reason),
    /// The key holds a value of another type.
    WrongType,
}

/// Locks were granted or re-entered: the fence of each key, in the order of the request.
pub type Granted = SmallList<u64>;

/// What became of a request for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The token holds them.
    Granted(Granted),
    /// Somebody else does, or is ahead.
    Busy,
    /// It waits.
    Waits(WaiterId),
    /// It cannot be acquired.
    Denied(Denial),
}

/// The reply to a request that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the locks.
    Granted(Granted),
    /// Its time is up, or it was cancelled.
    Nothing,
    /// It cannot have them.
    Denied(Denial),
    /// This node cannot serve it any longer; it may come again.
    Unblocked,
}

/// What became of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The hold's fence.
    To(u64),
    /// The token does not hold the lock.
    NotHeld,
    /// The lease is as it was.
    Denied(Denial),
}
