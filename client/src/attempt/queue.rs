//! Waiting: in the queue of one node, not by asking again and again.
//!
//! Everybody queues at the first reachable node of a fixed order. A waiter that comes out of that
//! queue takes the other nodes in parallel. If another client holds them (one that queued
//! elsewhere, because it could not reach the first node), the waiter keeps the nodes up to the
//! first such one, releases those behind it, and queues there. Nodes are thus waited for in one
//! order only: no deadlock can form, and nobody who has come out of the first queue is sent back.

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

/// The next one out of the queue may be quicker than the last holder's releases on the other nodes:
/// it asks them so often again before it queues there, too.
const RETRIES: usize = 3;
/// The pauses before that.
const RETRY_PAUSE: Duration = Duration::from_micros(500);
/// Who came out of the queue later than this had to wait: the lock is contended.
const NO_WAIT: Duration = Duration::from_millis(1);
/// A node of several that stands still for so long is left for the next one. Until then waiters
/// keep their places. With a single node there is nowhere else to go, and they keep them for
/// longer.
const STALL: Duration = Duration::from_secs(1);
/// A server that has not ended the wait by so long after its deadline has lost this waiter, or the
/// waiter has lost the server.
const OVERDUE: Duration = Duration::from_millis(250);
/// A cancelled request that does not end is asked to, so often …
const CANCELS: usize = 10;
/// … and each time given so long.
const CANCEL_PAUSE: Duration = Duration::from_millis(20);

type Waited = Pin<Box<dyn Future<Output = (RedisResult<Value>, Own)> + Send>>;

/// A BLOCK request under way, on a connection of its own.
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
    /// The node does not let this waiter in; another one may.
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
            match self.take_the_rest(&mut held, deadline).await {
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

    /// The grant of a single node is enough as it is, while at least half of the ttl is left: the
    /// reply does not tell how long ago it was made. An ephemeral hold is first moved to the shared
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

    /// Waits at the first node that lets anybody wait: one that is up, and neither quarantined nor
    /// otherwise unable.
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
        // No node lets this waiter in; a plain round says why, node by node.
        match self.round(NodeSet::default()).await {
            Outcome::Busy => Err(Outcome::NoQuorum),
            outcome => Err(outcome),
        }
    }

    /// Asks the other nodes, a few times. `Ok`: queue at this node next.
    async fn take_the_rest(
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
                // What was waited for is lost again: better to start over than to go on with gaps.
                return Err(Outcome::NoQuorum);
            }
            *held = self.ballot.granted();
            tokio::time::sleep(pause).await;
        }
        let first = held.iter().next().unwrap_or(0);
        let is_held = |place: &usize| matches!(self.verdicts[*place], Verdict::Held { .. });
        let Some(next) = (first + 1..self.verdicts.len()).find(is_held) else {
            // Only nodes before the one that was waited at are taken: their queue is the one to
            // stand in.
            return Err(Outcome::NoQuorum);
        };
        let behind: NodeSet = held.iter().filter(|place| *place > next).collect();
        behind.iter().for_each(|place| held.remove(place));
        self.give_back(behind).await;
        Ok(next)
    }

    /// Stands in the queue of one node until it grants, and keeps what `held` has granted
    /// meanwhile.
    async fn block(
        &mut self,
        place: usize,
        deadline: Option<Moment>,
        held: NodeSet,
    ) -> Result<(), Stop> {
        let node = Arc::clone(&self.client.fleet.nodes[place]);
        // Read first: a process that takes over later has not heard of this request.
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
        // The server ends the wait by itself, if its answer gets through.
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

    /// Sends the BLOCK request, on this connection of its own.
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
            // The end of this connection says little about the shared one; the server may have
            // closed just this. Others that were opened before may have ended with it.
            Err(error) if error.code().is_none() => {
                node.close_idle();
                node.complain();
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
                    // The first grant, which came at most a node timeout before its reply.
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
            // A connection that breaks may have been granted something on the way.
            Reply::Trouble(Verdict::Unreachable(_)) => Err(Stop::Over(Outcome::NoQuorum)),
            Reply::Trouble(_) => Err(Stop::Unfit),
        };
        self.verdicts[place] = reply.verdict(Verdict::held_by_somebody());
        outcome
    }

    /// Keeps the nodes that were waited for while waiting for another; whether it worked shows in
    /// the next round.
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

/// Returns when a cluster has changed and the master that a waiter is connected to does not answer:
/// another one has taken over from it, and its connections stay open.
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
    /// Ends the wait: the server is asked to forget the request, and what it still granted is
    /// released. The request may reach the server after the cancellation, so that is repeated until
    /// the request has ended; also behind the request, as a server that stood still may read the
    /// shared connection first.
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
        // Closing the connection ends the wait on a server that has not answered so far, or that
        // grants it late and then reads the release behind it. Dropping the release delivers it.
    }
}
