//! One node: its connections, whether it is believed up, and what is known of its clock and
//! counter.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
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
/// Releases that are repeated for a node which does not accept them.
const OWED_RELEASES: usize = 10_000;

/// One master, or the one Sentinel-named master or cluster of a client with N = 1.
pub(crate) struct Node {
    pub(crate) name: String,
    link: Link,
    pub(crate) connect_timeout: Duration,
    state: RwLock<State>,
    standing: watch::Sender<Standing>,
    trouble: Notify,
    asked: AtomicBool,
    dependents: AtomicUsize,
    owed: AtomicUsize,
    idle: Mutex<Vec<(u64, Connection)>>,
    clock_lead: AtomicI64,
    fence: AtomicU64,
}

struct State {
    connection: Option<Connection>,
    /// Why the node is believed down; `None`: it is up.
    down: Option<Verdict>,
    incarnations: Vec<String>,
}

/// What others have to know about a node as soon as it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) up: bool,
    /// Counts connections, so that a late complaint about an old one does not harm the new one.
    pub(crate) generation: u64,
    /// The last connection that is known to have ended.
    pub(crate) closed: u64,
    /// Counts the processes that have answered as this node.
    pub(crate) process: u64,
}

/// What a node that answered LOCK.NODE turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The same process as before, or seen for the first time.
    Same,
    /// It was started again: what it had granted does not count until it confirms it.
    Restarted,
}

/// A connection for commands that make it wait, used by one caller at a time.
pub(crate) struct Own {
    pub(crate) generation: u64,
    pub(crate) connection: Connection,
}

impl Node {
    pub(crate) fn new(name: String, link: Link, connect_timeout: Duration) -> Self {
        let state = State {
            connection: None,
            down: Some(Verdict::unreachable("not connected yet")),
            incarnations: Vec::new(),
        };
        Self {
            name,
            link,
            connect_timeout,
            state: RwLock::new(state),
            standing: watch::Sender::default(),
            trouble: Notify::new(),
            asked: AtomicBool::new(false),
            dependents: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            idle: Mutex::default(),
            clock_lead: AtomicI64::new(0),
            fence: AtomicU64::new(0),
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// Tells those who watch, if it makes a difference.
    fn change(&self, change: impl FnOnce(&mut Standing)) {
        self.standing.send_if_modified(|standing| {
            let before = *standing;
            change(standing);
            *standing != before
        });
    }

    /// Sends on the shared connection. The future owns all that it needs: it may be kept, dropped
    /// or moved elsewhere.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let node = Arc::clone(self);
        let shared = node.shared();
        async move {
            let (generation, mut connection) = match shared {
                Ok(shared) => shared,
                Err(verdict) => return Reply::Trouble(verdict),
            };
            node.asked.store(true, Ordering::Relaxed);
            let result = connection.send(&request).await;
            node.heard(generation, &result);
            match Reply::read(result) {
                // A cluster settles down; one node of it that was taken for all stays the wrong
                // one.
                Reply::Trouble(Verdict::Refused(error))
                    if node.link.heals() && matches!(error.code(), Some("MOVED" | "ASK")) =>
                {
                    Reply::Trouble(Verdict::Unreachable(error))
                }
                reply => reply,
            }
        }
    }

    /// The shared connection with its generation, or why there is none.
    pub(crate) fn shared(&self) -> Result<(u64, Connection), Verdict> {
        let state = self.state();
        match (&state.connection, &state.down) {
            (Some(connection), _) => Ok((self.standing().generation, connection.clone())),
            (None, Some(verdict)) => Err(verdict.clone()),
            (None, None) => Err(Verdict::unreachable("not connected")),
        }
    }

    /// Looks at a result for signs that the connection ended or the node is no longer a master.
    pub(crate) fn heard(&self, generation: u64, result: &RedisResult<redis::Value>) {
        let demoted =
            |code: Option<&str>| matches!(code, Some("READONLY" | "UNBLOCKED" | "MASTERDOWN"));
        match result {
            Err(error) if error.code().is_none() && self.link.heals() => self.complain(),
            Err(error) if error.code().is_none() => {
                self.ended(generation, Verdict::Unreachable(error.clone()));
            }
            Err(error) if demoted(error.code()) => self.complain(),
            Ok(redis::Value::ServerError(error)) if demoted(Some(error.code())) => self.complain(),
            _ => {}
        }
    }

    /// The shared connection has ended: nothing more is sent on it.
    pub(crate) fn ended(&self, generation: u64, why: Verdict) {
        let mut state = self.state_mut();
        if self.standing().generation != generation {
            return;
        }
        state.connection = None;
        state.down = Some(why);
        drop(state);
        self.change(|standing| (standing.up, standing.closed) = (false, generation));
        self.complain();
    }

    /// It did not answer in time. What was sent may still arrive, so the connection stays.
    pub(crate) fn suspect(&self, why: Verdict) {
        let mut state = self.state_mut();
        if state.down.is_none() {
            tracing::debug!(node = %self.name, verdict = %why, "node believed down");
            state.down = Some(why);
            drop(state);
            self.change(|standing| standing.up = false);
            self.complain();
        }
    }

    /// Whether anything can be sent to it.
    pub(crate) fn is_connected(&self) -> bool {
        self.state().connection.is_some()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.standing().up
    }

    /// Why it is believed down.
    pub(crate) fn why_down(&self) -> Option<Verdict> {
        self.state().down.clone()
    }

    /// Returns when the node is up.
    pub(crate) async fn came_up(&self) {
        // The sender lives as long as this node, so waiting cannot fail.
        let _ = self.standing.subscribe().wait_for(|now| now.up).await;
    }

    /// Returns when the shared connection is another one than `generation`.
    pub(crate) async fn reconnected(&self, generation: u64) {
        let other = |now: &Standing| now.up && now.generation != generation;
        let _ = self.standing.subscribe().wait_for(other).await;
    }

    /// Returns when a later connection than `generation` is known to have ended, and says which.
    pub(crate) async fn closed_after(&self, generation: u64) -> u64 {
        let mut watch = self.standing.subscribe();
        // The sender lives as long as this node, so waiting cannot fail.
        let later = watch.wait_for(|now| now.closed > generation).await;
        later.map_or(generation, |standing| standing.closed)
    }

    /// Returns when nothing can come of waiting in the queue of process number `process`: another
    /// process has taken over, or, if a `stall` is given, the node has been down for so long.
    pub(crate) async fn gave_up_on(&self, process: u64, stall: Option<Duration>) {
        let mut watch = self.standing.subscribe();
        loop {
            let standing = *watch.borrow_and_update();
            if standing.process != process {
                return;
            }
            match stall {
                Some(stall) if !standing.up => {
                    if tokio::time::timeout(stall, watch.changed()).await.is_err() {
                        return;
                    }
                }
                _ => {
                    let _ = watch.changed().await;
                }
            }
        }
    }

    /// Something went wrong; the background task looks whether it is the node.
    pub(crate) fn complain(&self) {
        self.trouble.notify_one();
    }

    /// Returns when somebody complained about the node.
    pub(crate) async fn complaint(&self) {
        self.trouble.notified().await;
    }

    /// Whether anybody depends on the node's answering: since the last time of asking, or by
    /// waiting right now.
    pub(crate) fn in_use(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed) || self.dependents.load(Ordering::Relaxed) > 0
    }

    /// Opens a connection and asks who is there.
    pub(crate) async fn dial(&self) -> Result<(Connection, Vec<Census>), Verdict> {
        let dial = async {
            let opened = self.link.open(self.connect_timeout).await;
            let mut connection = opened.map_err(|error| crate::reply::trouble(&error))?;
            let (census, _) = connection.census(self.connect_timeout).await?;
            Ok((connection, census))
        };
        match tokio::time::timeout(self.connect_timeout, dial).await {
            Ok(result) => result,
            Err(_) => Err(Verdict::TimedOut(self.connect_timeout)),
        }
    }

    /// Whether some master of a cluster may turn its connection away for its old credentials.
    pub(crate) async fn has_new_login(&self) -> bool {
        self.link.has_new_login().await
    }

    /// Takes a freshly dialled connection into use.
    pub(crate) fn install(&self, connection: Connection, census: &[Census]) -> Known {
        {
            let mut state = self.state_mut();
            state.connection = Some(connection);
            self.change(|standing| standing.generation += 1);
        }
        self.close_idle();
        self.confirm(census)
    }

    /// It has answered LOCK.NODE: it is up, and its clock and counter are known.
    pub(crate) fn confirm(&self, census: &[Census]) -> Known {
        for one in census {
            self.clock_lead.store(one.clock_lead, Ordering::Relaxed);
            self.saw_fence(one.fence);
        }
        let mut state = self.state_mut();
        let seen = census.iter().map(|one| &one.incarnation);
        let new: Vec<String> = seen
            .filter(|one| !state.incarnations.contains(one))
            .cloned()
            .collect();
        let known = match state.incarnations.is_empty() || new.is_empty() {
            true => Known::Same,
            false => Known::Restarted,
        };
        let cluster = self.link.heals();
        if !new.is_empty() {
            // One server has one incarnation; of a cluster not everybody may have answered.
            if !cluster {
                state.incarnations.clear();
            }
            state.incarnations.extend(new);
        }
        state.down = None;
        drop(state);
        self.change(|standing| {
            standing.up = true;
            // A waiter of a cluster is at one master of many: its own connection tells.
            standing.process += u64::from(known == Known::Restarted && !cluster);
        });
        known
    }

    /// It cannot serve, or not be reached, for this reason. A connection that may still deliver is
    /// kept.
    pub(crate) fn bar(&self, why: Verdict) {
        let mut state = self.state_mut();
        if matches!(
            why,
            Verdict::Replica | Verdict::SameAs { .. } | Verdict::ModuleMissing
        ) {
            state.connection = None;
        }
        state.down = Some(why);
        drop(state);
        self.change(|standing| standing.up = false);
    }

    /// Which processes answered as this node.
    pub(crate) fn incarnations(&self) -> Vec<String> {
        self.state().incarnations.clone()
    }

    /// Its wall clock at `now`, in µs, as far as we know.
    pub(crate) fn clock(&self, now: Moment) -> u64 {
        let clock = micros_since_boot(now).saturating_add(self.clock_lead.load(Ordering::Relaxed));
        u64::try_from(clock).unwrap_or(0)
    }

    /// A fence that the node would grant as it is: `lead` µs above its clock, and above its
    /// counter.
    pub(crate) fn next_fence(&self, now: Moment, lead: u64) -> u64 {
        let counter = self.fence.load(Ordering::Relaxed);
        self.clock(now)
            .saturating_add(lead)
            .max(counter.saturating_add(1))
    }

    /// The node has given out this fence.
    pub(crate) fn saw_fence(&self, fence: u64) {
        self.fence.fetch_max(fence, Ordering::Relaxed);
    }

    /// A connection for commands that make it wait. That it cannot be opened says nothing about the
    /// node: it may only be full.
    pub(crate) async fn own_connection(&self) -> Result<Own, Verdict> {
        let (generation, _) = self.shared()?;
        while let Some((born, connection)) = self.idle().pop() {
            if born == generation {
                return Ok(Own {
                    generation,
                    connection,
                });
            }
        }
        let opening = self.link.open_another(self.connect_timeout);
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(Ok(connection)) => Ok(Own {
                generation,
                connection,
            }),
            Ok(Err(error)) => Err(crate::reply::trouble(&error)),
            Err(_) => Err(Verdict::TimedOut(self.connect_timeout)),
        }
    }

    /// Takes back a connection on which nothing is under way.
    pub(crate) fn keep_idle(&self, generation: u64, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_CONNECTIONS && generation == self.standing().generation {
            idle.push((generation, connection));
        }
    }

    /// Closes the connections that are kept for waiters.
    pub(crate) fn close_idle(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(u64, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a release that is still to be delivered. `None`: there are so many that the leases of
    /// the others run out.
    pub(crate) fn owe(self: &Arc<Self>) -> Option<Owed> {
        let owed = Owed(Arc::clone(self));
        (self.owed.fetch_add(1, Ordering::Relaxed) < OWED_RELEASES).then_some(owed)
    }

    /// Counts somebody who depends on this node without sending anything: it is then asked now and
    /// then whether it lives.
    pub(crate) fn depend(self: &Arc<Self>) -> Dependent {
        self.dependents.fetch_add(1, Ordering::Relaxed);
        Dependent(Arc::clone(self))
    }
}

/// Somebody depends on the node while this exists.
pub(crate) struct Dependent(Arc<Node>);

impl Drop for Dependent {
    fn drop(&mut self) {
        self.0.dependents.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A release is still to be delivered while this exists.
pub(crate) struct Owed(Arc<Node>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Relaxed);
    }
}
