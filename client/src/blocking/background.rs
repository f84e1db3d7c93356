//! The thread that does the work of a blocking client, with a runtime that no other one stops.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long the thread goes on after its client for releases that are not delivered yet.
const LINGER: Duration = Duration::from_secs(30);
/// How often it looks whether they are.
const LOOK: Duration = Duration::from_millis(5);

/// The thread; it ends with the last handle.
#[derive(Debug)]
pub(super) struct Background {
    runtime: Handle,
    _stop: DropGuard,
}

impl Background {
    pub(super) fn start() -> std::io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = move || {
            runtime.block_on(async {
                stopped.cancelled().await;
                let tasks = runtime.metrics();
                let rest = async {
                    while tasks.num_alive_tasks() > 0 {
                        tokio::time::sleep(LOOK).await;
                    }
                };
                let _ = tokio::time::timeout(LINGER, rest).await;
            });
        };
        let thread = std::thread::Builder::new().name("redislock".to_owned());
        thread.spawn(work)?;
        Ok(Arc::new(Self {
            runtime: handle,
            _stop: stop.drop_guard(),
        }))
    }

    /// Has the thread do the work, and waits for its result. This only blocks the caller's thread,
    /// while `block_on` panics inside of another runtime.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The caller waits for it.
            let _ = sender.send(work.await);
        });
        match receiver.recv() {
            Ok(result) => result,
            Err(_) => panic!("the thread of the blocking client panicked"),
        }
    }
}
