//! One node: its connections, and whether it seems up.

mod own;
mod processes;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{RedisResult, Value};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::command::{self, Request};
use crate::error::Verdict;
use crate::host::{Moment, locked};
use crate::link::{Answers, Connection, Idle, Link, Own, Turns};
use crate::quorum::FenceClock;
use crate::reply::{LockStatus, Reply, knows_no_count, trouble, value_of};

use processes::Processes;

/// The most releases that are repeated at the same time for a node that does not accept them.
const OWED_RELEASES: usize = 10_000;
/// After this time without a reply, the server or the network may have closed a connection.
const QUIET: Duration = Duration::from_millis(100);

/// One master. For a client with a single node, it may be a master that Sentinel names, or a
/// cluster.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) connect_timeout: Duration,
    state: Mutex<State>,
    standing: watch::Sender<Standing>,
    /// What is known about its clock and counter.
    pub(crate) fences: FenceClock,
    trouble: Notify,
    asked: AtomicBool,
    /// When the last reply arrived, ms.
    heard_at: AtomicU64,
    /// Cloned by everything that depends on the node without sending anything.
    dependents: Arc<()>,
    /// A permit for each release that is not delivered yet.
    owed: Arc<Semaphore>,
    idle: Idle,
    /// The turns of waiters that open connections to it.
    turns: Turns,
}

struct State {
    connection: Option<Connection>,
    /// Why the node seems down; `None` if it is up.
    down: Option<Verdict>,
    processes: Processes,
    /// The longest lease that it allows, as it last reported.
    max_ttl: Option<Duration>,
}

impl State {
    fn why_down(&self) -> Verdict {
        let down = self.down.clone();
        down.unwrap_or_else(|| Verdict::unreachable("not connected"))
    }
}

/// State of a node that others must learn as soon as it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) up: bool,
    /// Counts connections, so that a late error of an old one does not affect the new one.
    pub(crate) generation: u64,
    /// The last connection that is known to have ended.
    pub(crate) closed: u64,
    /// It has ended while the node was up, and it is not known yet whether another one can be
    /// opened: a server may close idle connections.
    pub(crate) redialling: bool,
    /// Counts the processes that have answered as this node.
    pub(crate) process: u64,
}

/// The connections that a request is sent on. If they have changed when its reply arrives, the
/// request may have been sent again on another one. [`Node::may_have_repeated`] describes what this
/// does not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Route {
    /// Which shared connection it is.
    generation: u64,
    /// How many connections to servers the shared connection of a cluster has opened so far.
    opened: u64,
}

/// What an answer to LOCK.NODE shows about the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The same process as before, or seen for the first time.
    Same,
    /// It was restarted: its grants do not count until it confirms them.
    Restarted,
}

impl Node {
    pub(crate) fn new(name: String, link: Link, connect_timeout: Duration) -> Self {
        let state = State {
            connection: None,
            down: Some(Verdict::unreachable("not connected yet")),
            processes: Processes::default(),
            max_ttl: None,
        };
        Self {
            name,
            link,
            connect_timeout,
            state: Mutex::new(state),
            standing: watch::Sender::default(),
            fences: FenceClock::default(),
            trouble: Notify::new(),
            asked: AtomicBool::new(false),
            heard_at: AtomicU64::default(),
            dependents: Arc::default(),
            owed: Arc::new(Semaphore::new(OWED_RELEASES)),
            idle: Idle::default(),
            turns: Turns::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// Notifies the watchers if the state has changed. The state is locked meanwhile, so that the
    /// two never contradict each other.
    fn change(&self, _state: &mut State, change: impl FnOnce(&mut Standing)) {
        self.standing.send_if_modified(|standing| {
            let before = *standing;
            change(standing);
            *standing != before
        });
    }

    /// Asks to acquire, extend or release. The future owns all its data: it may be kept, dropped or
    /// moved to another task.
    pub(crate) fn ask(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let node = Arc::clone(self);
        async move { Reply::of(node.send(&request).await, request.keys) }
    }

    /// Asks about a lock, with at most this many of its holders; `None` if nobody holds it or waits
    /// for it.
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

    /// Sends on the shared connection. If it is closed, the request is sent once more, on the next
    /// one. Every request that is sent here may be repeated.
    async fn send(&self, request: &Request) -> Result<Value, Verdict> {
        let before = self.standing().generation;
        match self.try_send(request).await {
            Err(Verdict::Unreachable(why)) => {
                // Boxed, so that the future of a request that is sent once stays small.
                let again = Box::pin(async {
                    // Wait until it is known whether the connection that has ended can be replaced.
                    let now = self.when(|now| !now.redialling).await;
                    if now.generation == before {
                        Err(self.why_down().unwrap_or(Verdict::Unreachable(why)))
                    } else {
                        self.try_send(request).await
                    }
                });
                again.await
            }
            answer => answer,
        }
    }

    async fn try_send(&self, request: &Request) -> Result<Value, Verdict> {
        let mut shared = self.shared()?;
        self.asked.store(true, Relaxed);
        let result = shared.connection.send(request).await;
        self.heard(shared.generation, &result);
        match value_of(result) {
            // A cluster recovers. But if one of its nodes is configured as a single server, the
            // configuration is wrong.
            Err(Verdict::Refused(error))
                if self.link.is_cluster() && matches!(error.code(), Some("MOVED" | "ASK")) =>
            {
                Err(Verdict::Unreachable(error))
            }
            answer => answer,
        }
    }

    /// Sends a request that must not be sent twice, and waits for its reply. The shared connection
    /// of a cluster repeats a request whose reply is lost, so there it goes to the master of its
    /// slot. An error means that no answer arrived: the server may have executed the request.
    pub(crate) async fn ask_once(&self, request: &Request) -> Result<RedisResult<Value>, Verdict> {
        let mut own = if self.link.is_cluster() {
            self.own_connection(QUIET).await?
        } else {
            // The connection may have been closed meanwhile. A request that may be repeated finds
            // out.
            let heard_at = Duration::from_millis(self.heard_at.load(Relaxed));
            if Moment::now().since_boot().saturating_sub(heard_at) > QUIET {
                self.send(&command::node()).await?;
            }
            self.shared()?
        };
        self.asked.store(true, Relaxed);
        let result = own.connection.send(request).await;
        self.heard(own.generation, &result);
        match result {
            Err(error) if error.code().is_none() => {
                // Others that were opened before may have ended with it.
                self.close_idle();
                Err(Verdict::Unreachable(error))
            }
            answered => {
                if self.link.is_cluster() {
                    self.keep_idle(own);
                }
                Ok(answered)
            }
        }
    }

    /// The shared connection, or why there is none.
    pub(crate) fn shared(&self) -> Result<Own, Verdict> {
        let state = self.state();
        let connection = state.connection.clone();
        Ok(Own {
            generation: self.standing().generation,
            connection: connection.ok_or_else(|| state.why_down())?,
        })
    }

    /// Checks a result for signs that the connection has ended or the node is no longer a master.
    pub(crate) fn heard(&self, generation: u64, result: &RedisResult<Value>) {
        let demoted =
            |code: Option<&str>| matches!(code, Some("READONLY" | "UNBLOCKED" | "MASTERDOWN"));
        match result {
            Err(error) if error.code().is_none() && self.link.is_cluster() => self.report_problem(),
            Err(error) if error.code().is_none() => {
                self.ended(generation, Verdict::Unreachable(error.clone()));
            }
            Err(error) if demoted(error.code()) => self.report_problem(),
            Ok(Value::ServerError(error)) if demoted(Some(error.code())) => self.report_problem(),
            _ => self.heard_at.store(Moment::now().millis(), Relaxed),
        }
    }

    /// The shared connection has ended: nothing more is sent on it.
    pub(crate) fn ended(&self, generation: u64, why: Verdict) {
        let mut state = self.state();
        if self.standing().generation != generation {
            return;
        }
        state.connection = None;
        state.down = Some(why);
        self.change(&mut state, |standing| {
            standing.redialling |= standing.up;
            (standing.up, standing.closed) = (false, generation);
        });
        drop(state);
        self.report_problem();
    }

    /// It did not answer in time. What was sent may still arrive, so the connection stays.
    pub(crate) fn suspect(&self, why: Verdict) {
        let mut state = self.state();
        if state.down.is_none() {
            state.down = Some(why.clone());
            self.change(&mut state, |standing| standing.up = false);
            drop(state);
            self.report_problem();
            tracing::debug!(node = %self.name, verdict = %why, "node believed down");
        }
    }

    /// Whether requests can be sent to it, now or in a moment.
    pub(crate) fn can_be_asked(&self) -> bool {
        self.is_connected() || self.standing().redialling
    }

    /// Whether requests can be sent to it now.
    pub(crate) fn is_connected(&self) -> bool {
        self.state().connection.is_some()
    }

    /// The connections that a request is sent on now.
    pub(crate) fn route(&self) -> Route {
        if !self.link.is_cluster() {
            let generation = self.standing().generation;
            return Route {
                generation,
                opened: 0,
            };
        }
        let state = self.state();
        let shared = state.connection.as_ref();
        Route {
            generation: self.standing().generation,
            opened: shared.map_or(0, Connection::opened),
        }
    }

    /// Whether a request that was sent on this route may have been sent on another one, too. Then
    /// the reply says nothing about the first request.
    ///
    /// The shared connection of a cluster sends requests again by itself. When a connection breaks,
    /// redis-rs (1.8) starts to replace it before it repeats the request, and this shows here. Two
    /// cases may not show: the request is repeated on a connection that was open before, to a
    /// server that has just taken over the slot, and answered sooner than the replacement begins;
    /// or all servers answer PING but refuse CLUSTER SLOTS, and redis-rs repeats every pending
    /// request. In both, only the result of a release is wrong: `WasLost` although the first of the
    /// two has released the lock.
    pub(crate) fn may_have_repeated(&self, route: Route) -> bool {
        self.route() != route
    }

    pub(crate) fn is_up(&self) -> bool {
        self.standing().up
    }

    /// Why it seems down.
    pub(crate) fn why_down(&self) -> Option<Verdict> {
        self.state().down.clone()
    }

    /// Returns when the condition holds, with the state at that time.
    async fn when(&self, so: impl FnMut(&Standing) -> bool) -> Standing {
        let mut watch = self.standing.subscribe();
        let now = watch.wait_for(so).await.map(|now| *now);
        // The sender lives as long as this node, so waiting cannot fail.
        now.unwrap_or_else(|_| self.standing())
    }

    /// Returns when the node is up.
    pub(crate) async fn came_up(&self) {
        self.when(|now| now.up).await;
    }

    /// Returns when the node is up on another shared connection than `generation`.
    pub(crate) async fn reconnected(&self, generation: u64) {
        let other = |now: &Standing| now.up && now.generation != generation;
        self.when(other).await;
    }

    /// Returns when a connection after `generation` is known to have ended, with its generation.
    pub(crate) async fn closed_after(&self, generation: u64) -> u64 {
        self.when(|now| now.closed > generation).await.closed
    }

    /// Returns when waiting in the queue of process number `process` is useless: another process
    /// has replaced it, or, if a `stall` is given, the node has been down for that long.
    pub(crate) async fn gave_up_on(&self, process: u64, stall: Option<Duration>) {
        let stalled = async {
            let Some(stall) = stall else {
                return std::future::pending().await;
            };
            loop {
                self.when(|now| !now.up).await;
                if tokio::time::timeout(stall, self.came_up()).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = self.when(|now| now.process != process) => {}
            () = stalled => {}
        }
    }

    /// Reports a problem, so that the background task checks the node.
    pub(crate) fn report_problem(&self) {
        self.trouble.notify_one();
    }

    /// Returns when a problem with the node was reported.
    pub(crate) fn problem_reported(&self) -> impl Future<Output = ()> {
        self.trouble.notified()
    }

    /// Whether anything depends on the node: since the last call, or because something waits now.
    pub(crate) fn in_use(&self) -> bool {
        self.asked.swap(false, Relaxed) || Arc::strong_count(&self.dependents) > 1
    }

    /// Opens a connection and sends LOCK.NODE.
    pub(crate) async fn dial(&self) -> Result<(Connection, Answers), Verdict> {
        self.timed(async {
            let opened = self.link.open(self.connect_timeout).await;
            let mut connection = opened.map_err(|error| trouble(&error))?;
            // Opening takes most of the time when a master of a cluster does not answer.
            let answers = connection.status(self.connect_timeout / 2).await?;
            Ok((connection, answers))
        })
        .await
    }

    /// Gives up after the connect timeout.
    async fn timed<T>(&self, work: impl Future<Output = Result<T, Verdict>>) -> Result<T, Verdict> {
        let done = tokio::time::timeout(self.connect_timeout, work).await;
        done.unwrap_or(Err(Verdict::TimedOut(self.connect_timeout)))
    }

    /// It has answered LOCK.NODE, on a new connection or on the current one: it is up, and its
    /// clock and counter are known. An answer on a connection that has ended meanwhile does not
    /// count.
    pub(crate) fn confirm(
        &self,
        answers: &Answers,
        new: Option<Connection>,
    ) -> Result<Known, Verdict> {
        for one in &answers.masters {
            self.fences.set(one.wall_at_boot);
            self.fences.saw(one.fence);
        }
        let mut state = self.state();
        let is_new = new.is_some();
        state.connection = new.or(state.connection.take());
        if state.connection.is_none() {
            return Err(state.why_down());
        }
        state.max_ttl = answers.masters.iter().map(|one| one.max_ttl).min();
        if is_new {
            state.processes.leave();
        }
        let (names, is_cluster) = (answers.names(), self.link.is_cluster());
        let known = state.processes.note(&names, answers.all, is_cluster);
        state.down = None;
        self.change(&mut state, |standing| {
            (standing.up, standing.redialling) = (true, false);
            standing.generation += u64::from(is_new);
            // A waiter of a cluster waits at one of many masters: its own connection shows whether
            // that one is up.
            standing.process += u64::from(known == Known::Restarted && !is_cluster);
        });
        drop(state);
        if is_new {
            self.close_idle();
        }
        Ok(known)
    }

    /// It cannot serve or be reached, for this reason. A connection that may still deliver requests
    /// is kept.
    pub(crate) fn bar(&self, why: Verdict) {
        let mut state = self.state();
        if matches!(
            why,
            Verdict::Replica | Verdict::SameAs { .. } | Verdict::ModuleMissing
        ) {
            state.connection = None;
        }
        state.down = Some(why);
        self.change(&mut state, |standing| {
            (standing.up, standing.redialling) = (false, false)
        });
    }

    /// The longest lease that it allows, or why that is unknown.
    #[cfg(feature = "observe")]
    pub(crate) fn max_ttl(&self) -> Result<Duration, Verdict> {
        let state = self.state();
        state.max_ttl.ok_or_else(|| state.why_down())
    }

    /// Whether one of these processes has answered as this node before.
    pub(crate) fn knows(&self, answers: &Answers) -> bool {
        let state = self.state();
        let mut names = answers.names().into_iter();
        names.any(|name| state.processes.knows(name))
    }

    /// Whether the current connection does not reach all of these processes.
    pub(crate) fn lacks(&self, answers: &Answers) -> bool {
        let state = self.state();
        state.processes.lack(&answers.names(), answers.all)
    }

    /// Counts a release that is not delivered yet. `None` if there are too many: then the lease
    /// expires instead.
    pub(crate) fn owe(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.owed).try_acquire_owned().ok()
    }

    /// While the result exists, something depends on this node without sending anything, so the
    /// node is checked periodically.
    pub(crate) fn depend(&self) -> Arc<()> {
        Arc::clone(&self.dependents)
    }
}

#[cfg(test)]
mod tests;
