//! The main thread's time for work that no client asked for.

use redislock_core::time::{Micros, MonoTime};

use super::with;
use crate::clock;

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
        with(|node| node.note_slice(spent, spent_cpu, faults));
    }
}
