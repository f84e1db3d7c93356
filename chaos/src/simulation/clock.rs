//! The clock of one machine: it started at some time and runs a little too fast or too slow.

/// True time since the simulation began, in microseconds. No machine can read it.
pub type Time = u64;

/// A millisecond of true time.
pub const MILLI: Time = 1_000;

/// A second of true time.
pub const SECOND: Time = 1_000_000;

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What it shows at the beginning, in microseconds.
    pub start: u64,
    /// How much too fast it runs, in parts per million; below zero: too slow.
    pub ppm: i64,
}

impl Clock {
    /// What it shows at `time`, in microseconds.
    pub fn at(self, time: Time) -> u64 {
        let drift = (i128::from(time) * i128::from(self.ppm)).div_euclid(1_000_000);
        let shown = i128::from(self.start) + i128::from(time) + drift;
        u64::try_from(shown).unwrap_or(0)
    }

    /// The first true time at which it shows `shown` or more.
    pub fn when(self, shown: u64) -> Time {
        let passed = u128::from(shown.saturating_sub(self.start));
        let rate = u128::try_from(1_000_000 + self.ppm).unwrap_or(1_000_000);
        let mut time = u64::try_from(passed * 1_000_000 / rate).unwrap_or(u64::MAX);
        while self.at(time) < shown {
            time += 1;
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_and_its_inverse_agree() {
        for ppm in [-5_000, -1, 0, 3, 5_000] {
            let clock = Clock { start: 77, ppm };
            for time in [0, 1, 999, 1_000_000, 59_999_999] {
                let shown = clock.at(time);
                let back = clock.when(shown);
                assert!(
                    back <= time && clock.at(back) >= shown,
                    "{ppm} ppm at {time}"
                );
            }
        }
        assert_eq!(
            Clock {
                start: 0,
                ppm: 5_000
            }
            .at(SECOND),
            1_005_000
        );
    }
}
