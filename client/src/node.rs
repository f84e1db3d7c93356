//! One node: its connections, whether it is believed up, and what it is still owed.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::RedisResult;
use tokio::sync::{Notify, watch};

use crate::census::{Census, micros_since_boot};
use crate::clock::Moment;
use crate::command::Request;
use crate::error::Verdict;
use crate::link::{Connection, Link};
use crate::reply::Reply;

/// Idle connections for BLOCK and WAIT that are kept for the next caller.
const IDLE_CONNECTIONS: usize = 128;
/// Releases that a node which cannot be reached is owed, at most: beyond it their leases run out.
const OWED_RELEASES: usize = 10_000;

/// One master, or the one Sentinel-named master or cluster of a client with N = 1.
pub(crate) struct Node {
    pub(crate) name: String,
    link: Link,
    pub(crate) connect_timeout: Duration,
    state: RwLock<State>,
    up: watch::Sender<bool>,
    trouble: Notify,
    asked: AtomicBool,
    waiters: AtomicUsize,
    idle: Mutex<Vec<(u64, Connection)>>,
    owed: Mutex<Vec<(Arc<Request>, Moment)>>,
    clock_lead: AtomicI64,
    fence: AtomicU64,
}

struct State {
    connection: Option<Connection>,
    /// Counts connections, so that a late complaint about an old one does not harm the new one.
    generation: u64,
    /// Why the node is believed down; `None`: it is up.
    down: Option<Verdict>,
    incarnations: Vec<String>,
}

/// What a node that answered LOCK.NODE turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The same process as before, or seen for the first time.
    Same,
    /// It was started anew: what it had granted does not count until it confirms it.
    Restarted,
}

impl Node {
    pub(crate) fn new(name: String, link: Link, connect_timeout: Duration) -> Self {
        let state = State {
            connection: None,
            generation: 0,
            down: Some(Verdict::Unreachable("not connected yet".to_owned())),
            incarnations: Vec::new(),
        };
        Self {
            name,
            link,
            connect_timeout,
            state: RwLock::new(state),
            up: watch::Sender::new(false),
            trouble: Notify::new(),
            asked: AtomicBool::new(false),
            waiters: AtomicUsize::new(0),
            idle: Mutex::default(),
            owed: Mutex::default(),
            clock_lead: AtomicI64::new(0),
            fence: AtomicU64::new(0),
        }
    }

    /// Sends on the shared connection. The future owns all it needs: it may be kept, dropped or moved elsewhere.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let node = Arc::clone(self);
        let line = node.line();
        async move {
            let (generation, mut connection) = match line {
                Ok(line) => line,
                Err(verdict) => return Reply::Trouble(verdict),
            };
            node.asked.store(true, Ordering::Relaxed);
            let result = connection.send(&request).await;
            node.heard(generation, &result);
            match Reply::read(result) {
                // A cluster settles down; a node of it that was taken for the only one stays the wrong one.
                Reply::Trouble(Verdict::Refused(text))
                    if node.link.heals() && is_elsewhere(&text) =>
                {
                    Reply::Trouble(Verdict::Unreachable(text))
                }
                reply => reply,
            }
        }
    }

    /// The shared connection with its generation, or why there is none.
    pub(crate) fn line(&self) -> Result<(u64, Connection), Verdict> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        match (&state.connection, &state.down) {
            (Some(connection), _) => Ok((state.generation, connection.clone())),
            (None, Some(verdict)) => Err(verdict.clone()),
            (None, None) => Err(Verdict::Unreachable("not connected".to_owned())),
        }
    }

    /// Looks at a result for signs that the connection is broken or the node no longer a master.
    pub(crate) fn heard(&self, generation: u64, result: &RedisResult<redis::Value>) {
        let demoted =
            |code: Option<&str>| matches!(code, Some("READONLY" | "UNBLOCKED" | "MASTERDOWN"));
        match result {
            Err(error) if error.code().is_none() && self.link.heals() => self.complain(),
            Err(error) if error.code().is_none() => {
                let verdict = Verdict::Unreachable(error.to_string());
                self.broken(generation, verdict);
            }
            Err(error) if demoted(error.code()) => self.trouble.notify_one(),
            Ok(redis::Value::ServerError(error)) if demoted(Some(error.code())) => {
                self.trouble.notify_one()
            }
            _ => {}
        }
    }

    /// The connection is gone: nothing more is sent on it.
    pub(crate) fn broken(&self, generation: u64, why: Verdict) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.generation == generation {
            state.connection = None;
            state.down = Some(why);
            drop(state);
            self.up.send_replace(false);
            self.trouble.notify_one();
        }
    }

    /// It did not answer in time. What was sent may still arrive, so the connection stays until a better one opens.
    pub(crate) fn suspect(&self, why: Verdict) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.down.is_none() {
            tracing::debug!(node = %self.name, verdict = %why, "node believed down");
            state.down = Some(why);
            drop(state);
            self.up.send_replace(false);
            self.trouble.notify_one();
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Why it is believed down.
    pub(crate) fn why_down(&self) -> Option<Verdict> {
        self.state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .down
            .clone()
    }

    /// Returns when the node is believed down.
    pub(crate) async fn went_down(&self) {
        let mut up = self.up.subscribe();
        // The sender lives as long as this node, so waiting cannot fail.
        let _ = up.wait_for(|up| !up).await;
    }

    /// Something on a connection of one's own went wrong; the tender looks whether it is the node.
    pub(crate) fn complain(&self) {
        self.trouble.notify_one();
    }

    /// Nobody has used the node for a while: connections that were kept for waiters are closed.
    pub(crate) fn rest(&self) {
        self.lock_idle().clear();
    }

    /// Returns when somebody complained about the node.
    pub(crate) async fn complaint(&self) {
        self.trouble.notified().await;
    }

    /// Whether anybody depends on the node's answering: since the last time of asking, or by waiting right now.
    pub(crate) fn in_use(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed) || self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Opens a connection and asks who is there.
    pub(crate) async fn dial(&self) -> Result<(Connection, Vec<Census>), Verdict> {
        let dial = async {
            let opened = self.link.open(self.connect_timeout).await;
            let mut connection = opened.map_err(|error| crate::reply::trouble(&error))?;
            let census = connection.census(self.connect_timeout).await?;
            Ok((connection, census))
        };
        match tokio::time::timeout(self.connect_timeout, dial).await {
            Ok(result) => result,
            Err(_) => Err(Verdict::TimedOut(self.connect_timeout)),
        }
    }

    /// Takes a freshly dialled connection into use.
    pub(crate) fn install(&self, connection: Connection, census: &[Census]) -> Known {
        {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.connection = Some(connection);
            state.generation += 1;
        }
        self.lock_idle().clear();
        self.confirm(census)
    }

    /// It has answered LOCK.NODE: it is up, and its clock and counter are known.
    pub(crate) fn confirm(&self, census: &[Census]) -> Known {
        for one in census {
            self.clock_lead.store(one.clock_lead, Ordering::Relaxed);
            self.fence.fetch_max(one.fence, Ordering::Relaxed);
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let seen = census.iter().map(|one| &one.incarnation);
        let new: Vec<String> = seen
            .filter(|one| !state.incarnations.contains(one))
            .cloned()
            .collect();
        let known = match state.incarnations.is_empty() || new.is_empty() {
            true => Known::Same,
            false => Known::Restarted,
        };
        if !new.is_empty() {
            // One server has one incarnation; of a cluster not everybody may have answered.
            if !self.link.heals() {
                state.incarnations.clear();
            }
            state.incarnations.extend(new);
        }
        state.down = None;
        drop(state);
        self.up.send_replace(true);
        known
    }

    /// It cannot serve, or not be reached, for this reason. A connection that may still deliver is kept.
    pub(crate) fn bar(&self, why: Verdict) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(
            why,
            Verdict::Replica | Verdict::SameAs { .. } | Verdict::ModuleMissing
        ) {
            state.connection = None;
        }
        state.down = Some(why);
        drop(state);
        self.up.send_replace(false);
    }

    /// Which processes answered as this node.
    pub(crate) fn incarnations(&self) -> Vec<String> {
        self.state
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .incarnations
            .clone()
    }

    /// Its wall clock at `now`, in µs, as far as we know.
    pub(crate) fn clock(&self, now: Moment) -> u64 {
        let clock = micros_since_boot(now).saturating_add(self.clock_lead.load(Ordering::Relaxed));
        u64::try_from(clock).unwrap_or(0)
    }

    /// A fence that the node would grant as it is: `lead` µs above its clock, and above its counter.
    pub(crate) fn next_fence(&self, now: Moment, lead: u64) -> u64 {
        let counter = self.fence.load(Ordering::Relaxed);
        self.clock(now).saturating_add(lead).max(counter + 1)
    }

    /// The node has given out this fence.
    pub(crate) fn saw_fence(&self, fence: u64) {
        self.fence.fetch_max(fence, Ordering::Relaxed);
    }

    /// A connection of one's own, for commands that make a connection wait.
    pub(crate) async fn own_line(&self) -> Result<(u64, Connection), Verdict> {
        let (generation, _) = self.line()?;
        while let Some((born, connection)) = self.lock_idle().pop() {
            if born == generation {
                return Ok((generation, connection));
            }
        }
        let opening = self.link.open_another(self.connect_timeout);
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(Ok(connection)) => Ok((generation, connection)),
            Ok(Err(error)) => Err(crate::reply::trouble(&error)),
            Err(_) => Err(Verdict::TimedOut(self.connect_timeout)),
        }
    }

    /// Gives back a connection on which nothing is under way.
    pub(crate) fn park(&self, generation: u64, connection: Connection) {
        let mut idle = self.lock_idle();
        if idle.len() < IDLE_CONNECTIONS {
            idle.push((generation, connection));
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<(u64, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a release that could not be delivered, until the lease that it would end is over by itself.
    pub(crate) fn owe(&self, release: Arc<Request>, until: Moment) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if owed.len() < OWED_RELEASES {
            owed.push((release, until));
        }
    }

    /// Takes what is owed and not yet over.
    pub(crate) fn settle(&self) -> Vec<(Arc<Request>, Moment)> {
        let mut owed =
            std::mem::take(&mut *self.owed.lock().unwrap_or_else(PoisonError::into_inner));
        let now = Moment::now();
        owed.retain(|(_, until)| *until > now);
        owed
    }

    /// Counts somebody who waits on this node, so that it is asked now and then whether it lives.
    pub(crate) fn count_waiter(self: &Arc<Self>) -> Waiting {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(self))
    }
}

/// Whether a node of a cluster says that the key is at another one.
fn is_elsewhere(text: &str) -> bool {
    text.starts_with("MOVED ") || text.starts_with("ASK ")
}

/// Somebody waits on the node while this exists.
pub(crate) struct Waiting(Arc<Node>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}
