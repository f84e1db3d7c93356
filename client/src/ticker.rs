//! The patience of rounds, measured by one timer for all of them.
//!
//! A timer of its own for every round would wake the runtime's other thread each time, as it is earlier than what that one
//! sleeps for. So one task ticks while rounds are under way, and rounds look at the clock when it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Moment;

/// Ticks so many times in the time that is measured: a timeout is late by this part of it, at most.
const TICKS: u32 = 8;

/// See the module's text.
pub(crate) struct Ticker {
    period: Duration,
    rounds: AtomicUsize,
    asleep: AtomicBool,
    wake: Notify,
    tick: Notify,
}

impl Ticker {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            period: (patience / TICKS).max(Duration::from_millis(1)),
            rounds: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            wake: Notify::new(),
            tick: Notify::new(),
        }
    }

    /// A round is under way while this exists.
    pub(crate) fn start(&self) -> UnderWay<'_> {
        self.rounds.fetch_add(1, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake.notify_one();
        }
        UnderWay(self)
    }

    /// Ticks until `stop`, and only while somebody needs it.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let ticking = async {
            loop {
                self.asleep.store(true, Ordering::SeqCst);
                if self.rounds.load(Ordering::SeqCst) == 0 {
                    self.wake.notified().await;
                }
                self.asleep.store(false, Ordering::SeqCst);
                tokio::time::sleep(self.period).await;
                self.tick.notify_waiters();
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = ticking => {}
        }
    }
}

/// A round under way.
pub(crate) struct UnderWay<'a>(&'a Ticker);

impl UnderWay<'_> {
    /// Returns at the first tick after `deadline`.
    pub(crate) async fn over(&self, deadline: Moment) {
        loop {
            let tick = self.0.tick.notified();
            if deadline <= Moment::now() {
                return;
            }
            tick.await;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.rounds.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_round_is_over_after_its_deadline_and_not_before() {
        let ticker = Arc::new(Ticker::new(Duration::from_millis(40)));
        let stop = CancellationToken::new();
        let task = tokio::spawn(Arc::clone(&ticker).run(stop.clone()));
        for _ in 0..3 {
            let round = ticker.start();
            let deadline = Moment::now() + Duration::from_millis(40);
            round.over(deadline).await;
            assert!(Moment::now() >= deadline);
            drop(round);
            // Long enough for the task to fall asleep: the next round has to wake it.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        stop.cancel();
        task.await.unwrap();
    }
}
