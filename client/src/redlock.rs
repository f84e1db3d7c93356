//! The client itself: how to ask it for locks, what they share, and what it tells to metrics.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::background::Background;
use crate::builder::Builder;
use crate::clock::Moment;
use crate::error::{Error, Loss};
use crate::fleet::Fleet;
use crate::keeper::Keeper;
use crate::lock::{Lock, Spec};

/// How often [`Redlock::close`] looks whether all is delivered.
const CLOSING_LOOK: Duration = Duration::from_millis(1);
/// A lock that was busy so recently is queued for at once, instead of first asking all nodes in
/// vain.
const BUSY_MEMORY: Duration = Duration::from_millis(100);
const BUSY_SLOTS: usize = 64;

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
    /// nothing stays held. Guards, locks and elections that still exist keep the client open, so
    /// drop them before.
    pub async fn close(self, patience: Duration) {
        // A task that still releases something holds on to the client.
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

/// The shared part of a client. Its background tasks end with it.
pub(crate) struct Client {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) background: Background,
    metrics: Option<Arc<dyn Metrics>>,
    /// When a lock of each hash was last found busy.
    busy: Mutex<[Option<Moment>; BUSY_SLOTS]>,
    hashing: BuildHasherDefault<DefaultHasher>,
    _stop: DropGuard,
}

impl Client {
    /// Connects and watches the nodes in the background.
    pub(crate) fn start_lazily(
        fleet: Fleet,
        metrics: Option<Arc<dyn Metrics>>,
        background: Background,
    ) -> Arc<Self> {
        let client = Self::start(fleet, metrics, background);
        let fleet = Arc::clone(&client.fleet);
        client.background.spawn(async move {
            if let Err(error) = fleet.connect().await {
                tracing::warn!(%error, "not connected yet");
            }
        });
        client
    }

    /// Watches the nodes in the background.
    pub(crate) fn start(
        fleet: Fleet,
        metrics: Option<Arc<dyn Metrics>>,
        background: Background,
    ) -> Arc<Self> {
        let fleet = Arc::new(fleet);
        let keeper = Arc::new(Keeper::new(fleet.node_timeout));
        let stop = CancellationToken::new();
        for place in 0..fleet.nodes.len() {
            background.spawn(Arc::clone(&fleet).watch(place, Arc::clone(&keeper), stop.clone()));
        }
        background.spawn(Arc::clone(&keeper).run(stop.clone()));
        Arc::new(Self {
            fleet,
            keeper,
            background,
            metrics,
            busy: Mutex::new([None; BUSY_SLOTS]),
            hashing: BuildHasherDefault::new(),
            _stop: stop.drop_guard(),
        })
    }

    /// Tells those who measure.
    pub(crate) fn record(&self, spec: &Spec, event: Event<'_>) {
        let Some(metrics) = &self.metrics else {
            return;
        };
        // A panic here would stop the release of a lock, or the watch over a node.
        let told = AssertUnwindSafe(|| metrics.record(&spec.keys, event));
        if catch_unwind(told).is_err() {
            tracing::error!(lock = %spec.name(), "the metrics hook has panicked");
        }
    }

    /// Where a lock, or another one of the same hash, is remembered.
    fn busy(&self, spec: &Spec) -> (MutexGuard<'_, [Option<Moment>; BUSY_SLOTS]>, usize) {
        let slot = self.hashing.hash_one(&spec.keys) % BUSY_SLOTS as u64;
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        (busy, slot as usize)
    }

    pub(crate) fn was_busy(&self, spec: &Spec) {
        let (mut busy, slot) = self.busy(spec);
        busy[slot] = Some(Moment::now());
    }

    /// Whether the lock (or one of the same hash: no harm) was busy a moment ago.
    pub(crate) fn seems_busy(&self, spec: &Spec) -> bool {
        let (busy, slot) = self.busy(spec);
        busy[slot].is_some_and(|last| Moment::now().since(last) < BUSY_MEMORY)
    }
}

/// Receives what happens to the locks of a client; see
/// [`Builder::metrics`](crate::Builder::metrics). It is called in the middle of the work, so it
/// must not block; a panic is caught and logged.
pub trait Metrics: Send + Sync + 'static {
    /// Something has happened to the lock of this name, or to the locks of these names.
    fn record(&self, names: &[Vec<u8>], event: Event<'_>);
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The lock was acquired after waiting for so long.
    Acquired {
        /// From the call to the guard.
        waited: Duration,
    },
    /// The lock was not acquired.
    Failed {
        /// From the call to the error.
        waited: Duration,
        /// Why.
        error: &'a Error,
    },
    /// An attempt to acquire failed because of the nodes, and is repeated.
    Retried,
    /// The hold was released or detached.
    Released {
        /// Since the attempt that acquired it.
        held: Duration,
    },
    /// The hold was lost.
    Lost {
        /// Since the attempt that acquired it.
        held: Duration,
        /// Why.
        loss: &'a Loss,
    },
}
