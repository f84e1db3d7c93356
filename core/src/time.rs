//! Time as core sees it: numbers that the caller brings along.

/// A moment on the node's monotonic clock, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The moment `micros` later, or the end of time.
    #[must_use]
    pub fn plus(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to this moment, 0 if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both clocks, read once per request: leases follow `mono`, fences start from `wall`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// The monotonic clock.
    pub mono: Instant,
    /// The wall clock, microseconds since 1970.
    pub wall: u64,
}

/// Milliseconds of the wire as microseconds of core.
#[must_use]
pub const fn from_millis(millis: u64) -> u64 {
    millis.saturating_mul(1000)
}

/// Microseconds of core as milliseconds of the wire, rounded up: what has not ended is never shown
/// as 0.
#[must_use]
pub fn to_millis(micros: u64) -> u64 {
    micros.div_ceil(1000)
}

/// The clock that leases run on: the monotonic one, but it stands still while a dataset is loaded,
/// so that a lease that comes back has, when loading ends, the time that remained when it was
/// written.
#[derive(Debug, Default)]
pub struct LeaseClock {
    stopped_at: Option<Instant>,
    behind: u64,
}

impl LeaseClock {
    /// What this clock shows when the monotonic clock shows `mono`.
    #[must_use]
    pub fn at(&self, mono: Instant) -> Instant {
        Instant(
            self.stopped_at
                .unwrap_or(mono)
                .0
                .saturating_sub(self.behind),
        )
    }

    /// The monotonic moment at which this clock will show `lease`, if it goes on without a stop.
    #[must_use]
    pub fn when(&self, lease: Instant) -> Instant {
        lease.plus(self.behind)
    }

    /// Loading begins.
    pub fn stop(&mut self, mono: Instant) {
        self.stopped_at.get_or_insert(mono);
    }

    /// Loading has ended.
    pub fn go_on(&mut self, mono: Instant) {
        if let Some(stopped) = self.stopped_at.take() {
            self.behind = self.behind.saturating_add(mono.since(stopped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_clock_stands_still_while_stopped() {
        let mut clock = LeaseClock::default();
        assert_eq!(clock.at(Instant(5)), Instant(5));
        clock.stop(Instant(10));
        clock.stop(Instant(12));
        assert_eq!(clock.at(Instant(90)), Instant(10));
        clock.go_on(Instant(100));
        assert_eq!(clock.at(Instant(100)), Instant(10));
        assert_eq!(clock.at(Instant(130)), Instant(40));
        assert_eq!(clock.when(Instant(40)), Instant(130));
        clock.go_on(Instant(200));
        assert_eq!(clock.at(Instant(200)), Instant(110));
    }

    #[test]
    fn a_rest_of_a_millisecond_is_shown_as_one() {
        assert_eq!(
            (to_millis(0), to_millis(1), to_millis(1000), to_millis(1001)),
            (0, 1, 1, 2)
        );
    }
}
