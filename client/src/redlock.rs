//! The client itself: how to ask it for locks.

use std::sync::Arc;
use std::time::Duration;

use crate::builder::Builder;
use crate::client::Client;
use crate::error::Error;
use crate::lock::Lock;

/// How often [`Redlock::close`] looks whether all is delivered.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// A client of one or several masters. Clones share its connections; background work ends with the
/// last clone, guard and request.
#[derive(Clone)]
pub struct Redlock {
    pub(crate) client: Arc<Client>,
}

impl Redlock {
    /// Where the nodes are and how to treat them.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects to these nodes with the default settings.
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().nodes(urls).connect().await
    }

    /// A request for the lock of this name: any bytes.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.client), vec![name.as_ref().to_vec()])
    }

    /// A request for several locks at once: all or none, without deadlock.
    pub fn lock_all<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        let keys = names
            .into_iter()
            .map(|name| name.as_ref().to_vec())
            .collect();
        Lock::new(Arc::clone(&self.client), keys)
    }

    /// Waits until what is released in the background is delivered, but no longer than this. For
    /// programs that end right after a request failed, was cancelled, or a guard was dropped: then
    /// nothing stays held. Guards that still exist keep the client open, so drop them before.
    pub async fn close(self, patience: Duration) {
        // Whoever still releases something holds on to the client.
        let client = Arc::downgrade(&self.client);
        drop(self);
        let closed = async {
            while client.strong_count() > 0 {
                tokio::time::sleep(CLOSING_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(patience, closed).await;
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<&str> = self
            .client
            .fleet
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        out.debug_struct("Redlock")
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}
