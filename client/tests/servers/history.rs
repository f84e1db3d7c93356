//! What holders saw, and whether that can be: their windows never overlap, and fences follow their
//! order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redislock_client::{Error, Lock, Moment};
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
pub fn check(history: &[Window]) {
    let mut sorted = history.to_vec();
    sorted.sort_by_key(|window| window.from);
    for pair in sorted.windows(2) {
        assert!(
            pair[0].until <= pair[1].from,
            "two holders at once: {pair:?}"
        );
    }
    for one in history {
        let same = history
            .iter()
            .filter(|other| other.fence == one.fence)
            .count();
        assert_eq!(same, 1, "fence {} was given twice", one.fence);
        for other in history.iter().filter(|other| one.from < other.asked) {
            assert!(
                one.fence < other.fence,
                "fences out of order: {one:?} came before {other:?}"
            );
        }
    }
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

    /// Returns when there were so many more grants.
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

/// Two windows of which the second is this much later, in ms, with fences 1 and 2.
fn two(asked: u64, from: u64, fences: [u64; 2]) -> [Window; 2] {
    let at = Moment::now();
    let later = |ms: u64| at + Duration::from_millis(ms);
    let one = Window {
        asked: at,
        from: later(1),
        until: later(9),
        fence: fences[0],
    };
    let two = Window {
        asked: later(asked),
        from: later(from),
        until: later(from + 9),
        fence: fences[1],
    };
    [one, two]
}

#[test]
fn the_check_passes_what_is_right() {
    check(&two(10, 11, [1, 2]));
    check(&two(0, 9, [1, 2]));
}

#[test]
#[should_panic(expected = "two holders at once")]
fn the_check_sees_an_overlap() {
    check(&two(0, 5, [1, 2]));
}

#[test]
#[should_panic(expected = "fences out of order")]
fn the_check_sees_a_fence_that_goes_backwards() {
    check(&two(10, 11, [2, 1]));
}

#[test]
#[should_panic(expected = "was given twice")]
fn the_check_sees_a_fence_that_was_given_twice() {
    check(&two(10, 11, [1, 1]));
}
