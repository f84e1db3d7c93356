//! The client itself: how to ask it for locks.

use std::sync::Arc;

use crate::builder::Builder;
use crate::client::Client;
use crate::error::Error;
use crate::lock::Lock;

/// A client of one or several masters. Clones share its connections; background work ends with the last clone, guard
/// and request.
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
