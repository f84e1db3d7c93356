//! What a client takes from the machine that it runs on: the clock by which validity is judged,
//! randomness, pauses, locks between threads, and a place for background tasks.

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
    /// The present moment.
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

    /// How long it is from `earlier` to this moment; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// How long it is from now to this moment; zero if it is past.
    pub fn remaining(self) -> Duration {
        self.since(Self::now())
    }

    /// The moment this long before.
    pub(crate) fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// Whole milliseconds since the host started.
    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// A moment at a given distance from the start of the host, for tables of tests.
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

/// Pauses between retries: from `first` on, doubled each time up to `longest`, and up to twice as
/// long by chance, so that those who failed together do not come back together.
pub(crate) fn pauses(first: Duration, longest: Duration) -> impl Iterator<Item = Duration> + Send {
    let endless = ExponentialBuilder::new().without_max_times().with_jitter();
    endless
        .with_min_delay(first)
        .with_max_delay(longest)
        .build()
}

/// Sleeps for so long; `None`: forever.
pub(crate) async fn sleep(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Locks what a task changes in one step: it is as good after a panic as before.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random bits of the operating system.
pub(crate) fn random() -> Uuid {
    #[cfg(feature = "simulation")]
    if let Some(host) = crate::simulation::host() {
        return uuid::Builder::from_random_bytes(host.random()).into_uuid();
    }
    Uuid::new_v4()
}

/// Where the background work of a client runs: on the runtime that it was started in.
#[derive(Clone)]
pub(crate) struct Background(Handle);

impl Background {
    /// The runtime that this code runs in; `None` if it runs in none.
    pub(crate) fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self)
    }

    /// The runtime that this asynchronous code runs in.
    pub(crate) fn own() -> Self {
        Self(Handle::current())
    }

    /// Runs the task to its end, even if nobody waits for it.
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
