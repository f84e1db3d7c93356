//! Statistics since the start.

use crate::time::Micros;

/// Event counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// New holds.
    pub grants: u64,
    /// Acquisitions by a token that already held the lock.
    pub reentries: u64,
    /// Requests that got no lock.
    pub denials: u64,
    /// Releases that removed something.
    pub releases: u64,
    /// Leases that expired.
    pub expiries: u64,
    /// Extensions.
    pub extends: u64,
    /// Holders removed by LOCK.FORCE.
    pub forced: u64,
    /// Requests refused because waiting would have caused a deadlock.
    pub deadlocks: u64,
    /// Requests refused by a quarantine.
    pub quarantined: u64,
    /// Locks that the server evicted.
    pub evicted: u64,
    /// Locks that something other than a lock command removed while they were held.
    pub removed: u64,
}

/// Buckets for each power of two.
const STEPS: u64 = 8;
const BUCKETS: usize = 64 * STEPS as usize;

/// A histogram of durations, with an error of at most an eighth.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            total: 0,
        }
    }
}

impl Histogram {
    /// Adds a duration.
    pub fn record(&mut self, time: Micros) {
        if let Some(count) = self.counts.get_mut(bucket(time.0)) {
            *count += 1;
            self.total += 1;
        }
    }

    /// How many were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// A duration that at least `per_mille` thousandths did not exceed; 0 if nothing was counted.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> Micros {
        let wanted = self.total.saturating_mul(per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Micros(upper(bucket as u64));
            }
        }
        Micros::ZERO
    }
}

fn bucket(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    let power = u64::from(micros.ilog2());
    let shift = power - u64::from(STEPS.ilog2());
    ((shift + 1) * STEPS + (micros >> shift) - STEPS) as usize
}

fn upper(bucket: u64) -> u64 {
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    ((STEPS + bucket % STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_within_an_eighth() {
        let mut times = Histogram::default();
        assert_eq!(times.percentile(500), Micros::ZERO);
        for micros in 1..=10_000 {
            times.record(Micros(micros));
        }
        for (per_mille, exact) in [(1, 10), (500, 5_000), (990, 9_900), (1000, 10_000)] {
            let shown = times.percentile(per_mille).0;
            assert!(
                shown >= exact && shown <= exact + exact / 8 + 1,
                "{per_mille}: {shown}"
            );
        }
        times.record(Micros::MAX);
        assert_eq!(times.total(), 10_001);
    }
}
