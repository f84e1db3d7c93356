//! How much CPU time the machine itself takes: interrupts, and probably pauses of a virtual
//! machine, count as CPU time of the thread that they stop.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{sync::Arc, thread};

use rustix::time::{ClockId, clock_gettime};

/// One piece of work takes about this long.
const PIECE: Duration = Duration::from_micros(300);
/// The pause between two pieces: an eighth of a core is used.
const PAUSE: Duration = Duration::from_millis(2);

/// A thread that does the same piece of work again and again, and measures its own CPU time. It
/// ends when this is dropped.
pub struct Interruptions {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// All in nanoseconds or pieces.
    longest: AtomicU64,
    long: AtomicU64,
    total: AtomicU64,
}

/// What the pieces of a stretch of time took. Each had the same work to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    /// The CPU time of the longest one.
    pub longest: Duration,
    /// How many took more CPU time than the limit.
    pub long: u64,
    /// The CPU time of all.
    pub total: Duration,
}

impl Interruptions {
    /// Starts the thread. It counts the pieces that take more CPU time than this limit.
    pub fn watch(limit: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (steps, its) = (calibrate(), Arc::clone(&shared));
        let thread = thread::spawn(move || {
            while !its.ends.load(Ordering::Relaxed) {
                let took = time_of(steps);
                let nanos = took.as_nanos() as u64;
                its.longest.fetch_max(nanos, Ordering::Relaxed);
                its.total.fetch_add(nanos, Ordering::Relaxed);
                its.long
                    .fetch_add(u64::from(took > limit), Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
        let thread = Some(thread);
        Self { shared, thread }
    }

    /// The pieces since the last call.
    pub fn take(&self) -> Pieces {
        let take = |figure: &AtomicU64| figure.swap(0, Ordering::Relaxed);
        Pieces {
            longest: Duration::from_nanos(take(&self.shared.longest)),
            long: take(&self.shared.long),
            total: Duration::from_nanos(take(&self.shared.total)),
        }
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to report when it fails.
            _ = thread.join();
        }
    }
}

/// The number of steps that take as long as a piece when nothing interrupts them.
fn calibrate() -> u64 {
    const STEPS: u64 = 10_000;
    let fastest = (0..100).map(|_| time_of(STEPS)).min();
    let fastest = fastest.unwrap_or(PIECE).max(Duration::from_nanos(1));
    (STEPS as u128 * PIECE.as_nanos() / fastest.as_nanos()) as u64
}

/// The CPU time of this many steps.
fn time_of(steps: u64) -> Duration {
    let begin = cpu_time();
    black_box((0..steps).fold(0, |sum: u64, step| sum.wrapping_mul(31) ^ black_box(step)));
    cpu_time().saturating_sub(begin)
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_patiently;

    #[test]
    fn a_piece_takes_about_as_long_as_it_should_or_longer() {
        let interruptions = Interruptions::watch(PIECE / 2);
        wait_patiently("a piece is done", || {
            let pieces = interruptions.take();
            pieces.long > 0 && pieces.longest > PIECE / 2 && pieces.total >= pieces.longest
        });
    }

    #[test]
    fn no_piece_is_longer_than_any_limit() {
        let interruptions = Interruptions::watch(Duration::MAX);
        wait_patiently("a piece is done", || {
            let pieces = interruptions.take();
            assert_eq!(pieces.long, 0);
            pieces.total > Duration::ZERO
        });
    }
}
