//! The main thread's time for work that no client asked for.

use redislock_core::time::{Micros, MonoTime};

use super::with;
use crate::clock;

/// A slice that takes more CPU time than this is long.
const LONG: Micros = Micros(1000);

/// What all slices took since the start, or since the last reset.
#[derive(Default)]
pub struct Slices {
    /// How many there were.
    pub count: u64,
    /// How many of them were long.
    pub long: u64,
    /// The CPU time of all.
    pub cpu: Micros,
    /// The longest one.
    pub longest: Micros,
    /// The most CPU time of one.
    pub longest_cpu: Micros,
    /// The most page faults of one.
    pub most_faults: u64,
}

impl Slices {
    fn add(&mut self, spent: Micros, spent_cpu: Micros, faults: u64) {
        self.count += 1;
        self.long += u64::from(spent_cpu > LONG);
        self.cpu = self.cpu.plus(spent_cpu);
        self.longest = self.longest.max(spent);
        self.longest_cpu = self.longest_cpu.max(spent_cpu);
        self.most_faults = self.most_faults.max(faults);
    }
}

/// One stretch of such work, without a break.
pub struct Slice {
    begin: MonoTime,
    begin_cpu: Micros,
    faults_before: u64,
}

impl Slice {
    pub fn begin() -> Self {
        Self {
            begin: clock::mono(),
            begin_cpu: clock::time_of_thread(),
            faults_before: clock::page_faults_of_thread(),
        }
    }

    /// The CPU time of the thread when it began.
    pub fn begin_cpu(&self) -> Micros {
        self.begin_cpu
    }

    /// Whether it has taken this long.
    pub fn has_taken(&self, limit: Micros) -> bool {
        clock::mono().since(self.begin) >= limit
    }

    /// Notes how long it took.
    pub fn end(self) {
        let spent = clock::mono().since(self.begin);
        let spent_cpu = clock::time_of_thread().minus(self.begin_cpu);
        let faults = clock::page_faults_of_thread().saturating_sub(self.faults_before);
        with(|node| node.slices.add(spent, spent_cpu, faults));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_counted_and_long_ones_by_their_cpu_time() {
        let mut slices = Slices::default();
        slices.add(Micros(3000), LONG, 7);
        assert_eq!((slices.count, slices.long), (1, 0));
        slices.add(Micros(2000), Micros(1001), 2);
        assert_eq!((slices.count, slices.long), (2, 1));
        assert_eq!(slices.cpu, Micros(2001));
        assert_eq!(
            (slices.longest, slices.longest_cpu),
            (Micros(3000), Micros(1001))
        );
        assert_eq!(slices.most_faults, 7);
    }
}
