//! The clock by which validity is judged: it runs on while the host is suspended.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use rustix::time::{ClockId, clock_gettime};

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
