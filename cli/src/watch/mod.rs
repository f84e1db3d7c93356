//! Watching a deployment: asks its nodes round by round, within a budget, and keeps what they say.
//! `redlock top` and `redlock serve` show it.
//!
//! `node.rs` queries one node, `locks.rs` has the locks and chooses which to query, `history.rs`
//! what was seen of one, `queue.rs` who waits for one, `query.rs` what a view shows, `budget.rs`
//! how much may be asked.

mod budget;
mod history;
#[cfg(test)]
mod history_tests;
mod locks;
mod node;
mod query;
mod queue;
mod round;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redislock_client::Moment;
use tokio::sync::watch;

use crate::args::Where;
use crate::duration::shown;
use crate::exit::Failure;
use crate::node_urls::NodeUrls;

use self::round::Rounds;
pub use history::{History, Hold};
pub use locks::{Lock, Locks};
pub use node::Node;
pub use query::{LONGEST_FILTER, Query};
pub use queue::{Queue, Waiter};

/// What was not seen for this many rounds is shown as old.
const STALE_ROUNDS: u32 = 4;
/// Below this age nothing is old: a busy machine is late.
const NEVER_STALE: Duration = Duration::from_secs(2);

/// How good something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Good,
    Warning,
    Bad,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warn",
            Self::Bad => "bad",
        }
    }
}

/// All that is known.
pub struct Seen {
    pub started: Moment,
    pub interval: Duration,
    /// How many rounds are complete.
    pub rounds: u64,
    /// When the last one was.
    pub updated: Moment,
    pub nodes: Vec<Node>,
    /// How many nodes must grant for a lock to be held.
    pub quorum: usize,
    pub is_cluster: bool,
    /// Why the nodes of a cluster cannot be found.
    pub problem: Option<String>,
    pub locks: Locks,
}

impl Seen {
    /// The time since the start, in ms.
    pub fn now(&self) -> i64 {
        let passed = Moment::now().since(self.started).as_millis();
        i64::try_from(passed).unwrap_or(i64::MAX)
    }

    /// How many nodes can grant locks now.
    pub fn granting(&self) -> usize {
        let grants = |node: &&Node| node.problem.is_none();
        self.nodes.iter().filter(grants).count()
    }

    /// All locks are known: enough nodes list theirs, and all that were found were asked about.
    pub fn is_complete(&self) -> bool {
        self.is_settled() && !self.is_blind()
    }

    /// All keys of each node that replies were visited, and all locks found were asked about.
    pub fn is_settled(&self) -> bool {
        self.rounds > 0 && self.all_listed() && self.locks.all_asked()
    }

    /// So few nodes list their locks that a lock may be held on others only.
    pub fn is_blind(&self) -> bool {
        let lists = |node: &&Node| node.is_up() && node.sweep_problem.is_none();
        self.nodes.iter().filter(lists).count() < self.quorum
    }

    fn all_listed(&self) -> bool {
        let swept = |node: &Node| !node.is_up() || node.sweeps > 0 || node.sweep_problem.is_some();
        self.nodes.iter().all(swept)
    }

    /// How old the list of locks is: newer locks may be missing. None while there is no list.
    pub fn list_age(&self) -> Option<Duration> {
        let listed = self.nodes.iter().filter(|node| node.is_up());
        let oldest = listed.filter_map(|node| node.listed).min()?;
        self.all_listed().then(|| Moment::now().since(oldest))
    }

    /// The age of the oldest entry.
    pub fn oldest_look(&self) -> Duration {
        let passed = |seen| Moment::now().since(seen);
        self.locks.oldest.map_or(Duration::ZERO, passed)
    }

    /// What is missing or old among the locks because there are many, or because too few nodes
    /// list theirs, in one sentence.
    pub fn gaps(&self) -> Option<String> {
        if self.rounds == 0 {
            return None;
        }
        let (asked, all) = (self.locks.asked, self.locks.iter().len());
        let is_old = |age: &Duration| *age > self.stale_after();
        let mut parts = Vec::new();
        if self.is_blind() {
            parts.push("too few nodes list their locks".to_owned());
        }
        if !self.all_listed() {
            parts.push(format!(
                "{all} of {} locks listed so far",
                self.reported_locks()
            ));
        }
        if !self.locks.all_asked() {
            parts.push(format!("{asked} of {all} queried so far"));
        }
        if let Some(age) = Some(self.oldest_look()).filter(is_old) {
            parts.push(format!("the oldest entry is {} old", shown(age)));
        }
        if let Some(age) = self.list_age().filter(is_old) {
            let age = shown(age);
            parts.push(format!("locks of the last {age} may be missing"));
        }
        let unknown = self.reported_waiters().saturating_sub(self.locks.waiters());
        if unknown > 0 && !parts.is_empty() {
            parts.push(format!(
                "{unknown} waiting for locks that are not known yet"
            ));
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// From this age on, what was seen is shown as old.
    pub fn stale_after(&self) -> Duration {
        (self.interval * STALE_ROUNDS).max(NEVER_STALE)
    }

    /// Locks that the nodes say they have: of all nodes in a cluster, else of the one with most.
    pub fn reported_locks(&self) -> u64 {
        self.reported(|node| node.locks)
    }

    /// Requests that wait, as the nodes say.
    pub fn reported_waiters(&self) -> u64 {
        self.reported(|node| node.waiters)
    }

    /// Grants in a second: of all nodes in a cluster, else of the one with most, because a lock is
    /// granted on several.
    pub fn grants_per_second(&self) -> f64 {
        let rates = self.nodes.iter().filter_map(|node| node.rates);
        let grants = rates.map(|rates| rates.grants);
        if self.is_cluster {
            grants.sum()
        } else {
            grants.fold(0.0, f64::max)
        }
    }

    /// Whether locks can be granted, in one sentence.
    pub fn verdict(&self) -> (Level, String) {
        if let Some(problem) = &self.problem {
            return (Level::Bad, problem.clone());
        }
        if self.rounds == 0 {
            return (Level::Warning, "Asking the nodes".to_owned());
        }
        let (granting, all) = (self.granting(), self.nodes.len());
        let noun = if all == 1 { "node" } else { "nodes" };
        let nodes = format!("{granting} of {all} {noun}");
        match (granting >= self.quorum, self.is_cluster) {
            (true, _) if granting == all => (Level::Good, format!("Locks are granted: {nodes}")),
            (true, _) => (Level::Warning, format!("Locks are granted: {nodes}")),
            (false, true) => {
                let text = format!("Some locks cannot be granted: only {nodes}");
                (Level::Bad, text)
            }
            (false, false) => {
                let needed = self.quorum;
                let text = format!("No locks are granted: only {nodes}, {needed} needed");
                (Level::Bad, text)
            }
        }
    }

    fn reported(&self, read: impl Fn(&redislock_client::NodeStatus) -> u64) -> u64 {
        let each = self.nodes.iter().filter_map(|node| node.status.as_ref());
        let each = each.map(read);
        if self.is_cluster {
            each.sum()
        } else {
            each.max().unwrap_or(0)
        }
    }
}

/// What a watch has seen, for the views that show it.
#[derive(Clone)]
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    rounds: watch::Receiver<u64>,
}

impl Watch {
    /// Begins to watch; the rounds go on until the program ends.
    pub async fn start(place: Where, interval: Duration) -> Result<Self, Failure> {
        let urls = place.urls()?;
        let is_cluster = matches!(urls, NodeUrls::Cluster { .. });
        place.builder(Duration::MAX)?;
        let seen = Arc::new(Mutex::new(Seen {
            started: Moment::now(),
            interval,
            rounds: 0,
            updated: Moment::now(),
            nodes: Vec::new(),
            quorum: 1,
            is_cluster,
            problem: None,
            locks: Locks::default(),
        }));
        let (finished, rounds) = watch::channel(0);
        let watch = Self { seen, rounds };
        let rounds = Rounds::new(place, interval, is_cluster, watch.clone(), finished);
        tokio::spawn(rounds.run());
        Ok(watch)
    }

    /// What was seen. It must not be kept over an await.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next round.
    pub async fn changed(&mut self) {
        if self.rounds.changed().await.is_err() {
            // Without further rounds nothing changes.
            std::future::pending::<()>().await;
        }
    }
}
