//! Where the background work of a client runs: on the runtime that it was started in.

use tokio::runtime::Handle;

/// The runtime of a client.
#[derive(Clone)]
pub(crate) struct Background(Handle);

impl Background {
    /// The runtime that this code runs in; `None` if it runs in none.
    pub(crate) fn current() -> Option<Self> {
        Handle::try_current().ok().map(Self)
    }

    /// The runtime that this asynchronous code runs in.
    pub(crate) fn own() -> Self {
        Self(Handle::current())
    }

    /// Runs the task to its end, even if nobody waits for it.
    pub(crate) fn spawn<F>(&self, task: F)
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        #[cfg(feature = "simulation")]
        if let Some(host) = crate::simulation::host() {
            return host.spawn(Box::pin(async move {
                task.await;
            }));
        }
        drop(self.0.spawn(task));
    }
}
