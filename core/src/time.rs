//! Time in core: values that the caller passes in. Each clock and each unit has its own type.
//!
//! A moment moves by microseconds, and the distance of two moments of one clock is microseconds:
//!
//! ```
//! use redislock_core::time::{LeaseTime, Micros, Millis, MonoTime};
//!
//! assert_eq!(MonoTime(5).plus(Micros(3)), MonoTime(8));
//! assert_eq!(LeaseTime(5).since(LeaseTime(3)), Micros(2));
//! assert_eq!(Millis(3).to_micros(), Micros(3000));
//! ```
//!
//! Units do not mix:
//!
//! ```compile_fail
//! use redislock_core::time::{Millis, MonoTime};
//!
//! MonoTime(5).plus(Millis(3));
//! ```
//!
//! Nor do clocks:
//!
//! ```compile_fail
//! use redislock_core::time::{LeaseTime, MonoTime};
//!
//! MonoTime(5).since(LeaseTime(3));
//! ```
//!
//! ```compile_fail
//! use redislock_core::time::{LeaseTime, MonoTime};
//!
//! LeaseTime(5) < MonoTime(7);
//! ```

/// A length of time in microseconds, as core counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// Longer than anything else.
    pub const MAX: Self = Self(u64::MAX);

    /// In milliseconds, rounded up: what has not ended is never shown as 0.
    #[must_use]
    pub const fn to_millis(self) -> Millis {
        Millis(self.0.div_ceil(1000))
    }

    /// The milliseconds that have passed whole.
    #[must_use]
    pub const fn whole_millis(self) -> Millis {
        Millis(self.0 / 1000)
    }

    /// The sum, or the maximum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or 0 if `other` is longer.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Mul<Micros> for u64 {
    type Output = Micros;

    /// The product, or the maximum.
    fn mul(self, span: Micros) -> Micros {
        Micros(self.saturating_mul(span.0))
    }
}

impl std::ops::Div<u64> for Micros {
    type Output = Self;

    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// A length of time in milliseconds, as clients and options name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// In microseconds, or the maximum.
    #[must_use]
    pub const fn to_micros(self) -> Micros {
        Micros(self.0.saturating_mul(1000))
    }
}

macro_rules! moment {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Later than any other.
            pub const MAX: Self = Self(u64::MAX);

            /// The moment this much later, or the last one.
            #[must_use]
            pub const fn plus(self, span: Micros) -> Self {
                Self(self.0.saturating_add(span.0))
            }

            /// The moment this much earlier, or the first one.
            #[must_use]
            pub const fn minus(self, span: Micros) -> Self {
                Self(self.0.saturating_sub(span.0))
            }

            /// The time from `earlier` to this moment, 0 if it is not earlier.
            #[must_use]
            pub const fn since(self, earlier: Self) -> Micros {
                Micros(self.0.saturating_sub(earlier.0))
            }
        }
    };
}

moment! {
    /// A moment on the node's monotonic clock, in microseconds: waits, quarantines, alarms.
    MonoTime
}

moment! {
    /// A moment on the clock that leases run on, in microseconds: see [`LeaseClock`].
    LeaseTime
}

moment! {
    /// A moment on the wall clock, in microseconds since 1970: where fences start from.
    WallTime
}

/// Both clocks, read once per request: leases follow `mono`, fences start from `wall`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// The monotonic clock.
    pub mono: MonoTime,
    /// The wall clock.
    pub wall: WallTime,
}

/// Whether a request waits for a lock that is not available, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It does not wait.
    No,
    /// Until it is granted.
    Forever,
    /// Until this moment at most.
    Until(MonoTime),
}

/// The clock that leases run on: the monotonic clock, except that it stops while a dataset is
/// loaded. So when loading ends, a loaded lease has the time that remained when it was written.
#[derive(Debug, Default)]
pub struct LeaseClock {
    stopped_at: Option<MonoTime>,
    behind: Micros,
}

impl LeaseClock {
    /// The time of this clock when the monotonic clock is at `mono`.
    #[must_use]
    pub fn at(&self, mono: MonoTime) -> LeaseTime {
        LeaseTime(self.stopped_at.unwrap_or(mono).minus(self.behind).0)
    }

    /// The monotonic moment at which this clock will be at `lease`, if it does not stop before.
    #[must_use]
    pub fn when(&self, lease: LeaseTime) -> MonoTime {
        MonoTime(lease.plus(self.behind).0)
    }

    /// Whether it is stopped: then its time does not depend on the monotonic clock.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Loading begins.
    pub fn stop(&mut self, mono: MonoTime) {
        self.stopped_at.get_or_insert(mono);
    }

    /// Loading has ended.
    pub fn go_on(&mut self, mono: MonoTime) {
        if let Some(stopped) = self.stopped_at.take() {
            self.behind = self.behind.plus(mono.since(stopped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_clock_stands_still_while_stopped() {
        let mut clock = LeaseClock::default();
        assert_eq!(clock.at(MonoTime(5)), LeaseTime(5));
        clock.stop(MonoTime(10));
        clock.stop(MonoTime(12));
        assert_eq!(clock.at(MonoTime(90)), LeaseTime(10));
        assert!(clock.is_stopped());
        clock.go_on(MonoTime(100));
        assert_eq!(clock.at(MonoTime(100)), LeaseTime(10));
        assert_eq!(clock.at(MonoTime(130)), LeaseTime(40));
        assert_eq!(clock.when(LeaseTime(40)), MonoTime(130));
        clock.go_on(MonoTime(200));
        assert_eq!(clock.at(MonoTime(200)), LeaseTime(110));
    }

    #[test]
    fn a_rest_of_a_millisecond_is_shown_as_one() {
        let shown = [0, 1, 1000, 1001].map(|micros| Micros(micros).to_millis());
        assert_eq!(shown, [0, 1, 1, 2].map(Millis));
        assert_eq!(Micros(1999).whole_millis(), Millis(1));
    }
}
