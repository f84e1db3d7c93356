//! What a client tells about its work, for those who count and measure.

use std::time::Duration;

use crate::error::Error;
use crate::hold::Loss;

/// Receives what happens to the locks of a client; see
/// [`Builder::metrics`](crate::Builder::metrics). It is called in the middle of the work, so it
/// must not block.
pub trait Metrics: Send + Sync + 'static {
    /// Something has happened to the lock of this name, or to the locks of these names.
    fn record(&self, names: &[Vec<u8>], event: Event<'_>);
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The lock was acquired after waiting for so long.
    Acquired {
        /// From the call to the guard.
        waited: Duration,
    },
    /// The lock was not acquired.
    Failed {
        /// From the call to the error.
        waited: Duration,
        /// Why.
        error: &'a Error,
    },
    /// An attempt to acquire failed because of the nodes, and is repeated.
    Retried,
    /// The hold was released or detached.
    Released {
        /// Since the attempt that acquired it.
        held: Duration,
    },
    /// The hold was lost.
    Lost {
        /// Since the attempt that acquired it.
        held: Duration,
        /// Why.
        loss: &'a Loss,
    },
}
