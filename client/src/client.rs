//! What all locks of a client share: its nodes, the keeper of its holds, a record of recently busy
//! locks, and the hook for metrics.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::command::Spec;
use crate::error::{Error, Loss};
use crate::fleet::Fleet;
use crate::host::{Background, Moment, locked};
use crate::keeper::Keeper;

/// For a lock that was busy this recently, the client queues at once instead of first asking all
/// nodes.
const BUSY_MEMORY: Duration = Duration::from_millis(100);
const BUSY_SLOTS: usize = 64;

/// The shared part of a client. Its background tasks end with it.
pub(crate) struct Client {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) background: Background,
    metrics: Option<Arc<dyn Metrics>>,
    /// For each hash, when a lock with it was last busy.
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

    /// Notifies the metrics hook.
    pub(crate) fn record(&self, spec: &Spec, event: Event<'_>) {
        let Some(metrics) = &self.metrics else {
            return;
        };
        // A panic here would stop the release of a lock, or the monitoring of a node.
        let record = AssertUnwindSafe(|| metrics.record(&spec.keys, event));
        if catch_unwind(record).is_err() {
            tracing::error!(lock = %spec.name(), "the metrics hook has panicked");
        }
    }

    /// The entry of a lock, which it shares with other locks of the same hash.
    fn busy(&self, spec: &Spec) -> (MutexGuard<'_, [Option<Moment>; BUSY_SLOTS]>, usize) {
        let slot = self.hashing.hash_one(&spec.keys) % BUSY_SLOTS as u64;
        (locked(&self.busy), slot as usize)
    }

    pub(crate) fn was_busy(&self, spec: &Spec) {
        let (mut busy, slot) = self.busy(spec);
        busy[slot] = Some(Moment::now());
    }

    /// Whether the lock was busy a moment ago. A lock with the same hash gives the same answer,
    /// which does no harm.
    pub(crate) fn seems_busy(&self, spec: &Spec) -> bool {
        let (busy, slot) = self.busy(spec);
        busy[slot].is_some_and(|last| Moment::now().since(last) < BUSY_MEMORY)
    }
}

/// Receives events about the locks of a client; see [`Builder::metrics`](crate::Builder::metrics).
/// The client calls it in the middle of its work, so it must not block. A panic is caught and
/// logged.
pub trait Metrics: Send + Sync + 'static {
    /// An event about the lock of this name, or about the locks of these names.
    fn record(&self, names: &[Vec<u8>], event: Event<'_>);
}

/// An event about a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The lock was acquired.
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
