//! Tasks that contend for a lock, and what they saw: their windows never overlap, and fences follow
//! their order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redislock_client::{Error, Lock, Moment};
use redislock_testkit::history::{Hold, assert_safe};
use tokio::task::JoinHandle;

/// One hold as its holder saw it, on the one clock of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub asked: Moment,
    pub from: Moment,
    pub until: Moment,
    pub fence: u64,
}

/// Fails if two held at once, a fence was given twice, or a later holder has the lower fence.
#[track_caller]
pub fn check(windows: &[Window]) {
    let Some(start) = windows.iter().map(|window| window.asked).min() else {
        return;
    };
    let hold = |window: &Window| Hold {
        asked: window.asked.since(start),
        from: window.from.since(start),
        until: window.until.since(start),
        fence: window.fence,
    };
    assert_safe(&windows.iter().map(hold).collect::<Vec<_>>());
}

/// Tasks that take one lock in turn, and write down their windows.
pub struct Contention {
    stop: Arc<AtomicBool>,
    windows: Arc<Mutex<Vec<Window>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Contention {
    /// One task a request; all of them must be for one lock.
    pub fn start(locks: Vec<Lock>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let windows = Arc::new(Mutex::new(Vec::new()));
        let tasks = locks
            .into_iter()
            .map(|lock| tokio::spawn(contend(lock, Arc::clone(&stop), Arc::clone(&windows))))
            .collect();
        Self {
            stop,
            windows,
            tasks,
        }
    }

    pub fn grants(&self) -> usize {
        self.windows.lock().unwrap().len()
    }

    /// Returns after this many more grants.
    pub async fn go_on(&self, grants: usize) {
        let wanted = self.grants() + grants;
        crate::until("it goes on", || self.grants() >= wanted).await;
    }

    /// Ends the tasks and checks what they saw.
    pub async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        check(&self.windows.lock().unwrap());
    }
}

async fn contend(lock: Lock, stop: Arc<AtomicBool>, windows: Arc<Mutex<Vec<Window>>>) {
    while !stop.load(Ordering::SeqCst) {
        let asked = Moment::now();
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            // The time to wait is up, during a fault.
            Err(Error::Busy { .. } | Error::NoQuorum { .. }) => continue,
            Err(other) => panic!("{other}"),
        };
        let from = Moment::now();
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(rand::random_range(0..30))) => {}
            _ = guard.lost() => {}
        }
        let until = guard.valid_until().min(Moment::now());
        windows.lock().unwrap().push(Window {
            asked,
            from,
            until,
            fence: guard.fence(),
        });
        guard.release().await;
    }
}
