//! Waiting in the queue of one node, instead of repeated requests.
//!
//! All clients queue at the first reachable node, in a fixed order. A waiter that leaves that queue
//! with a grant asks the other nodes in parallel. If another client holds some of them (one that
//! queued at another node, because it could not reach the first one), the waiter keeps the nodes
//! before the first such node, releases those after it, and queues there. So all clients wait for
//! nodes in the same order: there can be no deadlock, and nobody loses a place that was reached in
//! the first queue.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};

use super::{Attempt, Outcome};
use crate::command::{self, SHORTEST, Wait};
use crate::error::Verdict;
use crate::host::{Moment, pauses, sleep};
use crate::link::{Connection, Own};
use crate::node::Node;
use crate::quorum::{NodeSet, lease_end};
use crate::release::Release;
use crate::reply::Reply;
use crate::round::Question;

/// The next waiter may be faster than the last holder's releases on the other nodes. It asks these
/// nodes again this many times before it queues there, too.
const RETRIES: usize = 3;
/// The pauses before these requests.
const RETRY_PAUSE: Duration = Duration::from_micros(500);
/// If a grant took longer than this, the request had to wait: the lock is contended.
const NO_WAIT: Duration = Duration::from_millis(1);
/// If one of several nodes stands still for this long, its waiters go to the next one. Until then,
/// they keep their places. With a single node there is no other one, so they keep their places for
/// longer.
const STALL: Duration = Duration::from_secs(1);
/// If the wait has not ended this long after its deadline, the server has lost this waiter, or the
/// connection is broken.
const OVERDUE: Duration = Duration::from_millis(250);
/// The cancellation of a request that does not end is repeated this many times …
const CANCELS: usize = 10;
/// … and each time has this long to take effect.
const CANCEL_PAUSE: Duration = Duration::from_millis(20);

type Waited = Pin<Box<dyn Future<Output = (RedisResult<Value>, Own)> + Send>>;

/// A pending BLOCK request, on its own connection.
pub(crate) struct Blocked {
    pub(crate) place: usize,
    node: Arc<Node>,
    sent: Moment,
    waited: Waited,
    /// The same connection.
    connection: Connection,
    _dependent: Arc<()>,
}

/// Why waiting at a node ended without a grant.
enum Stop {
    /// This attempt is over.
    Over(Outcome),
    /// The node does not let this request wait; another node may.
    Unfit,
}

impl Attempt {
    /// Waits until the lock can be acquired, at most until `deadline`.
    pub(crate) async fn queue(&mut self, deadline: Option<Moment>) -> Outcome {
        let mut held = NodeSet::default();
        let mut place = match self.pass_first_queue(deadline).await {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        loop {
            held.insert(place);
            if let Some(outcome) = self.won_by_waiting() {
                return outcome;
            }
            match self.acquire_rest(&mut held, deadline).await {
                Ok(next) => place = next,
                Err(outcome) => return outcome,
            }
            match self.block(place, deadline, held).await {
                Ok(()) => {}
                Err(Stop::Over(outcome)) => return outcome,
                Err(Stop::Unfit) => return Outcome::NoQuorum,
            }
        }
    }

    /// The grant of a single node is enough if at least half of the ttl is left, because the reply
    /// does not say when the grant was made. An ephemeral hold is first moved to the shared
    /// connection.
    fn won_by_waiting(&self) -> Option<Outcome> {
        let (fence, end) = self
            .ballot
            .grant_of(0)
            .filter(|_| self.verdicts.len() == 1)?;
        let fresh = end.remaining() >= self.spec.ttl / 2 && !self.spec.ephemeral;
        fresh.then_some(Outcome::Won {
            fence,
            valid_until: end,
        })
    }

    /// Waits at the first node that accepts waiters: it is up, not in quarantine, and can serve.
    async fn pass_first_queue(&mut self, deadline: Option<Moment>) -> Result<usize, Outcome> {
        for place in 0..self.verdicts.len() {
            if !self.client.fleet.nodes[place].is_up() {
                continue;
            }
            let queued = Moment::now();
            match self.block(place, deadline, NodeSet::default()).await {
                Ok(()) => {
                    if Moment::now().since(queued) > NO_WAIT {
                        self.client.was_busy(&self.spec);
                    }
                    return Ok(place);
                }
                Err(Stop::Over(outcome)) => return Err(outcome),
                Err(Stop::Unfit) => {}
            }
        }
        // No node lets this request wait. A round without waiting finds the reason of each node.
        match self.round(NodeSet::default()).await {
            Outcome::Busy => Err(Outcome::NoQuorum),
            outcome => Err(outcome),
        }
    }

    /// Asks the other nodes, a few times. `Ok`: queue at this node next.
    async fn acquire_rest(
        &mut self,
        held: &mut NodeSet,
        deadline: Option<Moment>,
    ) -> Result<usize, Outcome> {
        for pause in pauses(RETRY_PAUSE, RETRY_PAUSE * 4).take(RETRIES) {
            match self.round(*held).await {
                Outcome::Busy => {}
                outcome => return Err(outcome),
            }
            if deadline.is_some_and(|deadline| deadline <= Moment::now()) {
                return Err(Outcome::Busy);
            }
            let mut places = held.iter();
            if places.any(|place| self.ballot.grant_of(place).is_none()) {
                // A node that was waited for has lost its grant: start again.
                return Err(Outcome::NoQuorum);
            }
            *held = self.ballot.granted();
            tokio::time::sleep(pause).await;
        }
        let first = held.iter().next().unwrap_or(0);
        let is_held = |place: &usize| matches!(self.verdicts[*place], Verdict::Held { .. });
        let Some(next) = (first + 1..self.verdicts.len()).find(is_held) else {
            // Others hold only nodes before the one that was waited at, so the next attempt must
            // queue there.
            return Err(Outcome::NoQuorum);
        };
        let behind: NodeSet = held.iter().filter(|place| *place > next).collect();
        behind.iter().for_each(|place| held.remove(place));
        self.give_back(behind).await;
        Ok(next)
    }

    /// Waits in the queue of one node until it grants, and meanwhile keeps the grants of `held`.
    async fn block(
        &mut self,
        place: usize,
        deadline: Option<Moment>,
        held: NodeSet,
    ) -> Result<(), Stop> {
        let node = Arc::clone(&self.client.fleet.nodes[place]);
        // This is read first: a process that takes over later does not know this request.
        let before = node.standing();
        let several = self.verdicts.len() > 1;
        let gave_up = node.gave_up_on(before.process, several.then_some(STALL));
        let mut keep_alive = tokio::time::interval(self.spec.ttl / 3);
        keep_alive.reset();
        tokio::pin!(gave_up);
        let own = {
            let opening = node.connection_in_turn();
            let late = sleep(deadline.map(Moment::remaining));
            tokio::pin!(opening, late);
            loop {
                tokio::select! {
                    biased;
                    opened = &mut opening => break opened.map_err(|verdict| {
                        self.verdicts[place] = verdict;
                        Stop::Unfit
                    })?,
                    () = &mut gave_up => {
                        self.verdicts[place] = node.why_down().unwrap_or(Verdict::NotAsked);
                        return Err(Stop::Unfit);
                    }
                    () = &mut late => {
                        self.verdicts[place] = Verdict::TimedOut(node.connect_timeout);
                        return Err(Stop::Over(Outcome::NoQuorum));
                    }
                    _ = keep_alive.tick(), if !held.is_empty() => self.extend_all(held).await,
                }
            }
        };
        self.enter_queue(&node, place, own, deadline)?;
        let connection = self
            .blocked
            .as_ref()
            .map(|blocked| blocked.connection.clone());
        let left_behind = left_behind(&node, before.generation, connection);
        // The server ends the wait by itself, if its answer arrives.
        let overdue = sleep(deadline.map(|deadline| (deadline + OVERDUE).remaining()));
        tokio::pin!(left_behind, overdue);
        loop {
            let Some(blocked) = self.blocked.as_mut() else {
                return Err(Stop::Over(Outcome::NoQuorum));
            };
            let sent = blocked.sent;
            tokio::select! {
                biased;
                (result, own) = &mut blocked.waited => {
                    self.blocked = None;
                    return self.came_out(place, sent, result, own);
                }
                // The request is cancelled when this attempt is dropped.
                () = &mut gave_up => {
                    self.verdicts[place] = node.why_down().unwrap_or(Verdict::NotAsked);
                    return Err(Stop::Over(Outcome::NoQuorum));
                }
                () = &mut left_behind => {
                    self.verdicts[place] = Verdict::TimedOut(node.connect_timeout);
                    return Err(Stop::Over(Outcome::NoQuorum));
                }
                () = &mut overdue => {
                    self.verdicts[place] = Verdict::TimedOut(OVERDUE);
                    return Err(Stop::Over(Outcome::NoQuorum));
                }
                _ = keep_alive.tick(), if !held.is_empty() => self.extend_all(held).await,
            }
        }
    }

    /// Sends the BLOCK request on its own connection.
    fn enter_queue(
        &mut self,
        node: &Arc<Node>,
        place: usize,
        mut own: Own,
        deadline: Option<Moment>,
    ) -> Result<(), Stop> {
        let wait = match deadline.map(Moment::remaining) {
            // Too late to wait.
            Some(left) if left < SHORTEST => return Err(Stop::Over(Outcome::Busy)),
            Some(left) => Wait::AtMost(left),
            None => Wait::Forever,
        };
        let request = command::acquire(&self.spec, self.token, None, wait);
        self.owing.insert(place);
        let connection = own.connection.clone();
        let waited = Box::pin(async move {
            let result = own.connection.send(&request).await;
            (result, own)
        });
        self.blocked = Some(Blocked {
            place,
            node: Arc::clone(node),
            sent: Moment::now(),
            waited,
            connection,
            _dependent: node.depend(),
        });
        Ok(())
    }

    /// Reads the answer of the queue.
    fn came_out(
        &mut self,
        place: usize,
        sent: Moment,
        result: RedisResult<Value>,
        own: Own,
    ) -> Result<(), Stop> {
        let node = Arc::clone(&self.client.fleet.nodes[place]);
        match &result {
            // The end of this connection says little about the shared one: the server may have
            // closed only this one. Other connections that were opened earlier may have ended, too.
            Err(error) if error.code().is_none() => {
                node.close_idle();
                node.report_problem();
            }
            _ => {
                node.heard(own.generation, &result);
                self.keep(place, own);
            }
        }
        let reply = Reply::read(result, self.spec.keys.len());
        let outcome = match &reply {
            Reply::Yes(fence) => {
                node.fences.saw(*fence);
                if self.ballot.granted().is_empty() {
                    // This is the first grant, which was made at most a node timeout before its
                    // reply.
                    let timeout = self.client.fleet.node_timeout;
                    self.since = sent.max(Moment::now().minus(timeout));
                }
                let end = lease_end(sent, self.spec.ttl);
                self.ballot.grant(place, *fence, end);
                Ok(())
            }
            Reply::No => {
                self.owing.remove(place);
                Err(Stop::Over(Outcome::Busy))
            }
            Reply::Part => Err(Stop::Over(Outcome::NoQuorum)),
            // A request may have been granted just before its connection broke.
            Reply::Trouble(Verdict::Unreachable(_)) => Err(Stop::Over(Outcome::NoQuorum)),
            Reply::Trouble(_) => Err(Stop::Unfit),
        };
        self.verdicts[place] = reply.verdict(Verdict::held_by_somebody());
        outcome
    }

    /// Extends the grants that were waited for while waiting for another one. The next round shows
    /// whether that worked.
    async fn extend_all(&mut self, held: NodeSet) {
        let ttl = self.spec.ttl;
        let extend = Arc::new(command::extend(&self.spec.keys, self.token, ttl, None));
        let fleet = &self.client.fleet;
        let mut round = fleet.round();
        for place in held.iter() {
            let question = Question::new(place, Moment::now());
            round.ask(&fleet.nodes[place], question, &extend);
        }
        while round.next().await.is_some() {}
    }
}

/// Returns when a cluster has changed and the master of a waiter does not answer: another node has
/// replaced it, and its connections stay open.
async fn left_behind(node: &Node, mut generation: u64, connection: Option<Connection>) {
    let Some(connection) = connection.filter(|_| node.link.is_cluster()) else {
        return std::future::pending().await;
    };
    loop {
        node.reconnected(generation).await;
        generation = node.standing().generation;
        if !connection.is_served().await {
            return;
        }
    }
}

impl Blocked {
    /// Ends the wait: the server cancels the request, and a late grant is released. The request may
    /// reach the server after the cancellation, so the cancellation is repeated until the request
    /// has ended. It is also sent after the request on the same connection, because a server that
    /// stood still may read the shared connection first.
    pub(crate) async fn cancel(mut self, release: Release, patience: Duration) {
        for round in 0..CANCELS {
            let _ = tokio::time::timeout(patience, release.ask(self.place)).await;
            let (connection, request) = (&mut self.connection, release.request());
            let behind = async move {
                if round > 0 {
                    let _ = connection.send_behind(request).await;
                }
                std::future::pending().await
            };
            let ended = tokio::select! {
                biased;
                ended = &mut self.waited => Some(ended),
                () = behind => None,
                () = tokio::time::sleep(CANCEL_PAUSE) => None,
            };
            let Some((result, own)) = ended else {
                continue;
            };
            if result.is_ok() {
                self.node.keep_idle(own);
            }
            if Reply::read(result, release.request().keys) == Reply::No {
                return release.forget();
            }
            return;
        }
        // Closing the connection ends the wait on a server that has not answered yet, or that
        // grants late and then reads the release that follows. Dropping the release delivers it.
    }
}
