//! What a client needs from its host: the clock for validity, randomness, pauses, locks between
//! threads, and background tasks.

use std::fmt;
use std::ops::Add;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use uuid::Uuid;

/// `Instant` stops while a Linux host sleeps, and a lease does not: hence CLOCK_BOOTTIME.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A point in time on CLOCK_BOOTTIME (CLOCK_MONOTONIC where there is none).
///
/// Moments of one host can be compared across its processes; those of two hosts cannot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::simulation::host() {
            return Self(host.now());
        }
        let now = clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// Time since the host started.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this moment; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from now to this moment; zero if it has passed.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// The moment that is this much earlier.
    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// Whole milliseconds since the host started.
    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// A moment at this time after the start of the host, for tests.
    #[cfg(test)]
    pub(crate) fn at_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "boot+{:?}", self.0)
    }
}

/// Pauses between retries: `first`, doubled each time up to `longest`, plus a random part of up to
/// the same length, so that clients that failed together do not retry together.
pub(crate) fn pauses(first: Duration, longest: Duration) -> impl Iterator<Item = Duration> + Send {
    let endless = ExponentialBuilder::new().without_max_times().with_jitter();
    endless
        .with_min_delay(first)
        .with_max_delay(longest)
        .build()
}

/// Sleeps for this time; forever if it is `None`.
pub(crate) async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Locks data that is always changed in one step, so that it is still consistent after a panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random bits from the operating system.
pub(crate) fn random() -> Uuid {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        return uuid::Builder::from_random_bytes(host.random()).into_uuid();
    }
    Uuid::new_v4()
}

/// The runtime in which the client was started. Its background work runs there.
#[derive(Clone)]
pub(crate) struct Background(Handle);

impl Background {
    /// The current runtime; `None` outside of a runtime.
    pub(crate) fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self)
    }

    /// The current runtime of asynchronous code.
    pub(crate) fn own() -> Self {
        Self(Handle::current())
    }

    /// Runs the task to completion, even if nobody waits for it.
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::simulation::host() {
            return host.spawn(Box::pin(async move {
                task.await;
            }));
        }
        drop(self.0.spawn(task));
    }
}
