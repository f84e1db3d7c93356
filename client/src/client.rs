//! What all locks of one client share: its nodes, its keeper, and the memory of what was busy.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::background::Background;
use crate::clock::Moment;
use crate::fleet::Fleet;
use crate::keeper::Keeper;
use crate::metrics::{Event, Metrics};
use crate::options::Spec;

/// A lock that was busy so recently is queued for at once, instead of first asking all nodes in
/// vain.
const BUSY_MEMORY: Duration = Duration::from_millis(100);
const BUSY_SLOTS: usize = 64;

/// The shared part of a client. Its background tasks end with it.
pub(crate) struct Client {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) background: Background,
    metrics: Option<Arc<dyn Metrics>>,
    /// When a lock of each hash was last found busy, in ms since boot.
    busy: [AtomicU64; BUSY_SLOTS],
    hashing: BuildHasherDefault<DefaultHasher>,
    _stop: DropGuard,
}

impl Client {
    /// Connects and tends the nodes in the background.
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

    /// Tends the nodes in the background.
    pub(crate) fn start(
        fleet: Fleet,
        metrics: Option<Arc<dyn Metrics>>,
        background: Background,
    ) -> Arc<Self> {
        let fleet = Arc::new(fleet);
        let keeper = Arc::new(Keeper::default());
        let stop = CancellationToken::new();
        for place in 0..fleet.nodes.len() {
            background.spawn(Arc::clone(&fleet).tend(place, Arc::clone(&keeper), stop.clone()));
        }
        background.spawn(Arc::clone(&keeper).run(stop.clone()));
        Arc::new(Self {
            fleet,
            keeper,
            background,
            metrics,
            busy: std::array::from_fn(|_| AtomicU64::new(0)),
            hashing: BuildHasherDefault::new(),
            _stop: stop.drop_guard(),
        })
    }

    /// Tells those who measure.
    pub(crate) fn record(&self, spec: &Spec, event: Event<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.record(&spec.keys, event);
        }
    }

    fn busy_slot(&self, spec: &Spec) -> &AtomicU64 {
        let hash = self.hashing.hash_one(&spec.keys) % BUSY_SLOTS as u64;
        &self.busy[hash as usize]
    }

    pub(crate) fn was_busy(&self, spec: &Spec) {
        self.busy_slot(spec)
            .store(millis(Moment::now()), Ordering::Relaxed);
    }

    /// Whether the lock (or one of the same hash: no harm) was busy a moment ago.
    pub(crate) fn seems_busy(&self, spec: &Spec) -> bool {
        let last = self.busy_slot(spec).load(Ordering::Relaxed);
        last != 0
            && millis(Moment::now()).saturating_sub(last) < crate::command::millis(BUSY_MEMORY)
    }
}

fn millis(moment: Moment) -> u64 {
    crate::command::millis(moment.since_boot())
}
