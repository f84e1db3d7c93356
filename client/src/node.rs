//! One node: its connections, and whether it is believed up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::command::{self, Request};
use crate::error::Verdict;
use crate::link::{Connection, Idle, Link, Own};
use crate::quorum::FenceClock;
use crate::reply::{LockStatus, NodeStatus, Reply, knows_no_count, trouble, value_of};

/// Releases that are repeated for a node which does not accept them.
const OWED_RELEASES: usize = 10_000;

/// One master, or the one Sentinel-named master or cluster of a client with N = 1.
pub(crate) struct Node {
    pub(crate) name: String,
    link: Link,
    pub(crate) connect_timeout: Duration,
    state: RwLock<State>,
    standing: watch::Sender<Standing>,
    /// What is known of its clock and counter.
    pub(crate) fences: FenceClock,
    trouble: Notify,
    asked: AtomicBool,
    /// Cloned by everybody who depends on the node without sending anything.
    dependents: Arc<()>,
    /// A permit for each release that is still to be delivered.
    owed: Arc<Semaphore>,
    idle: Idle,
}

struct State {
    connection: Option<Connection>,
    /// Why the node is believed down; `None`: it is up.
    down: Option<Verdict>,
    incarnations: Vec<String>,
    /// The longest lease that it allows, as it said last.
    #[cfg(feature = "observe")]
    max_ttl: Option<Duration>,
}

/// What others have to know about a node as soon as it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) up: bool,
    /// Counts connections, so that a late complaint about an old one does not harm the new one.
    pub(crate) generation: u64,
    /// The last connection that is known to have ended.
    pub(crate) closed: u64,
    /// It has ended while the node was up, and nobody knows yet whether another one can be opened:
    /// a server may close what nobody uses.
    pub(crate) redialling: bool,
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

impl Node {
    pub(crate) fn new(name: String, link: Link, connect_timeout: Duration) -> Self {
        let state = State {
            connection: None,
            down: Some(Verdict::unreachable("not connected yet")),
            incarnations: Vec::new(),
            #[cfg(feature = "observe")]
            max_ttl: None,
        };
        Self {
            name,
            link,
            connect_timeout,
            state: RwLock::new(state),
            standing: watch::Sender::default(),
            fences: FenceClock::default(),
            trouble: Notify::new(),
            asked: AtomicBool::new(false),
            dependents: Arc::default(),
            owed: Arc::new(Semaphore::new(OWED_RELEASES)),
            idle: Idle::default(),
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

    /// Asks to acquire, extend or release. The future owns all that it needs: it may be kept,
    /// dropped or moved elsewhere.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let node = Arc::clone(self);
        async move { Reply::of(node.send(&request).await) }
    }

    /// Asks for a lock, with so many of its holders; `None`: nobody holds it or waits for it.
    pub(crate) async fn lock_status(
        &self,
        key: &[u8],
        holders: usize,
    ) -> Result<Option<LockStatus>, Verdict> {
        let mut answer = self.send(&command::info(key, Some(holders))).await;
        if knows_no_count(&answer) {
            answer = self.send(&command::info(key, None)).await;
        }
        LockStatus::read(answer?)
    }

    /// Sends on the shared connection. A request that finds it closed is sent once more, on the
    /// next one: all that is sent here may be repeated.
    async fn send(&self, request: &Request) -> Result<Value, Verdict> {
        let before = self.standing().generation;
        match self.try_send(request).await {
            Err(Verdict::Unreachable(why)) => {
                self.redialled().await;
                match self.standing().generation == before {
                    true => Err(self.why_down().unwrap_or(Verdict::Unreachable(why))),
                    false => self.try_send(request).await,
                }
            }
            answer => answer,
        }
    }

    async fn try_send(&self, request: &Request) -> Result<Value, Verdict> {
        let (generation, mut connection) = self.shared()?;
        self.asked.store(true, Ordering::Relaxed);
        let result = connection.send(request).await;
        self.heard(generation, &result);
        match value_of(result) {
            // A cluster settles down; one node of it that was taken for all stays the wrong one.
            Err(Verdict::Refused(error))
                if self.link.heals() && matches!(error.code(), Some("MOVED" | "ASK")) =>
            {
                Err(Verdict::Unreachable(error))
            }
            answer => answer,
        }
    }

    /// Sends a request that must not be sent twice, and waits for its reply. The shared connection
    /// of a cluster repeats a request whose reply is lost, so there it goes to the master of its
    /// slot. An error says that no answer came: the server may have carried it out.
    pub(crate) async fn ask_once(&self, request: &Request) -> Result<RedisResult<Value>, Verdict> {
        let mut own = match self.link.heals() {
            true => self.own_connection().await?,
            false => {
                let (generation, connection) = self.shared()?;
                Own {
                    generation,
                    connection,
                }
            }
        };
        self.asked.store(true, Ordering::Relaxed);
        let result = own.connection.send(request).await;
        self.heard(own.generation, &result);
        match result {
            Err(error) if error.code().is_none() => {
                // Others that were opened before may have ended with it.
                self.close_idle();
                Err(Verdict::Unreachable(error))
            }
            answered => {
                if self.link.heals() {
                    self.keep_idle(own);
                }
                Ok(answered)
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
    pub(crate) fn heard(&self, generation: u64, result: &RedisResult<Value>) {
        let demoted =
            |code: Option<&str>| matches!(code, Some("READONLY" | "UNBLOCKED" | "MASTERDOWN"));
        match result {
            Err(error) if error.code().is_none() && self.link.heals() => self.complain(),
            Err(error) if error.code().is_none() => {
                self.ended(generation, Verdict::Unreachable(error.clone()));
            }
            Err(error) if demoted(error.code()) => self.complain(),
            Ok(Value::ServerError(error)) if demoted(Some(error.code())) => self.complain(),
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
        self.change(|standing| {
            standing.redialling |= standing.up;
            (standing.up, standing.closed) = (false, generation);
        });
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

    /// Whether it is a cluster, which replaces broken connections without our doing.
    pub(crate) fn is_cluster(&self) -> bool {
        self.link.heals()
    }

    /// Whether anything can be sent to it, now or in a moment.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.state().connection.is_some() || self.standing().redialling
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

    /// Returns when it is known whether a connection that has ended can be replaced.
    async fn redialled(&self) {
        let _ = self
            .standing
            .subscribe()
            .wait_for(|now| !now.redialling)
            .await;
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
        self.asked.swap(false, Ordering::Relaxed) || Arc::strong_count(&self.dependents) > 1
    }

    /// Opens a connection and asks who is there.
    pub(crate) async fn dial(&self) -> Result<(Connection, Vec<NodeStatus>), Verdict> {
        self.in_time(async {
            let opened = self.link.open(self.connect_timeout).await;
            let mut connection = opened.map_err(|error| trouble(&error))?;
            // Opening takes most of the time when a master of a cluster does not answer.
            let (status, _) = connection.status(self.connect_timeout / 2).await?;
            Ok((connection, status))
        })
        .await
    }

    /// Gives up after the connect timeout.
    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Verdict>>,
    ) -> Result<T, Verdict> {
        let timed_out = Err(Verdict::TimedOut(self.connect_timeout));
        let done = tokio::time::timeout(self.connect_timeout, work).await;
        done.unwrap_or(timed_out)
    }

    /// Whether some master of a cluster may turn its connection away for its old credentials.
    pub(crate) async fn has_new_login(&self) -> bool {
        self.link.has_new_login().await
    }

    /// Takes a freshly dialled connection into use.
    pub(crate) fn install(&self, connection: Connection, status: &[NodeStatus]) -> Known {
        {
            let mut state = self.state_mut();
            state.connection = Some(connection);
            self.change(|standing| {
                standing.generation += 1;
                standing.redialling = false;
            });
        }
        self.close_idle();
        self.confirm(status)
    }

    /// It has answered LOCK.NODE: it is up, and its clock and counter are known.
    pub(crate) fn confirm(&self, status: &[NodeStatus]) -> Known {
        for one in status {
            self.fences.set(one.wall_at_boot);
            self.fences.saw(one.fence);
        }
        let mut state = self.state_mut();
        #[cfg(feature = "observe")]
        let () = state.max_ttl = status.iter().map(|one| one.max_ttl).min();
        let seen = status.iter().map(|one| &one.incarnation);
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
        self.change(|standing| (standing.up, standing.redialling) = (false, false));
    }

    /// The longest lease that it allows, or why that is not known.
    #[cfg(feature = "observe")]
    pub(crate) fn max_ttl(&self) -> Result<Duration, Verdict> {
        let state = self.state();
        let unknown = || state.down.clone().unwrap_or(Verdict::NotAsked);
        state.max_ttl.ok_or_else(unknown)
    }

    /// Whether one of these processes has answered as this node.
    pub(crate) fn is_one_of(&self, status: &[NodeStatus]) -> bool {
        let known = &self.state().incarnations;
        status.iter().any(|one| known.contains(&one.incarnation))
    }

    /// A connection for commands that make it wait. That it cannot be opened says nothing about the
    /// node: it may only be full.
    pub(crate) async fn own_connection(&self) -> Result<Own, Verdict> {
        let (generation, _) = self.shared()?;
        if let Some(own) = self.idle.take(generation) {
            return Ok(own);
        }
        self.in_time(async {
            let opened = self.link.open_another(self.connect_timeout).await;
            let connection = opened.map_err(|error| trouble(&error))?;
            Ok(Own {
                generation,
                connection,
            })
        })
        .await
    }

    /// Takes back a connection on which nothing is under way.
    pub(crate) fn keep_idle(&self, own: Own) {
        if own.generation == self.standing().generation {
            self.idle.keep(own);
        }
    }

    /// Closes the connections that are kept for waiters.
    pub(crate) fn close_idle(&self) {
        self.idle.close();
    }

    /// Counts a release that is still to be delivered. `None`: there are so many that the leases of
    /// the others run out.
    pub(crate) fn owe(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.owed).try_acquire_owned().ok()
    }

    /// Somebody depends on this node without sending anything, while the result exists: the node is
    /// then asked now and then whether it lives.
    pub(crate) fn depend(&self) -> Dependent {
        Dependent(Arc::clone(&self.dependents))
    }
}

/// See [`Node::depend`].
pub(crate) struct Dependent(#[expect(dead_code, reason = "it is counted")] Arc<()>);
