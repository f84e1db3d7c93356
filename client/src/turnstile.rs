//! Waiting: in the queue of one node, not by asking again and again.
//!
//! Everybody queues at the first reachable node of a fixed order, the turnstile. Whoever comes out of that queue takes the
//! other nodes in parallel. Should somebody else hold them (one who queued elsewhere, because the turnstile was down for
//! him), the waiter keeps the nodes up to the first such one, gives back those behind it, and queues there. Nodes are
//! thus waited for in one order only: no circle can form, and nobody who has come through the turnstile is sent back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};

use crate::attempt::{Attempt, Outcome};
use crate::client::Client;
use crate::clock::Moment;
use crate::command::{self, Request};
use crate::error::Verdict;
use crate::giveback::deliver;
use crate::link::Connection;
use crate::node::{Node, Waiting};
use crate::quorum::NodeSet;
use crate::reply::Reply;

/// The next one through the turnstile may be quicker than the last holder's releases on the other nodes: it asks them
/// so often again before it queues there, too.
const RETRIES: u32 = 3;
/// The pause before the first of these, doubled each time.
const RETRY_PAUSE: Duration = Duration::from_micros(500);
/// Who came out of the queue later than this had to wait: the lock is contended.
const NO_WAIT: Duration = Duration::from_millis(1);
/// The server refuses to wait for more milliseconds than this, a lifetime.
const LONGEST_BLOCK: u64 = 100 * 365 * 86_400_000;
/// A cancelled request that does not end is asked to, so often …
const CANCELS: u32 = 10;
/// … and each time given so long.
const CANCEL_PAUSE: Duration = Duration::from_millis(20);

type Waited = Pin<Box<dyn Future<Output = (RedisResult<Value>, Connection)> + Send>>;

/// A BLOCK request under way, on a connection of its own.
pub(crate) struct Blocked {
    pub(crate) place: usize,
    generation: u64,
    waited: Waited,
    _waiting: Waiting,
}

/// Why waiting at a node ended without a grant.
enum Stop {
    /// This attempt is over.
    Over(Outcome),
    /// The node refuses to let anybody wait; another one may not.
    Unfit,
}

impl Attempt {
    /// Waits until the lock can be had, at most until `deadline`.
    pub(crate) async fn queue(&mut self, deadline: Option<Moment>) -> Outcome {
        let mut held = NodeSet::default();
        let mut place = match self.pass_the_turnstile(deadline).await {
            Ok(place) => place,
            Err(outcome) => return outcome,
        };
        loop {
            held.insert(place);
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

    /// Waits at the first node that lets anybody wait: one that is up, and neither quarantined nor otherwise unable.
    async fn pass_the_turnstile(&mut self, deadline: Option<Moment>) -> Result<usize, Outcome> {
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
        // Nobody can be waited for; a plain round says why, node by node.
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
        let mut pause = RETRY_PAUSE;
        for _ in 0..RETRIES {
            match self.round(*held).await {
                Outcome::Busy => {}
                outcome => return Err(outcome),
            }
            if deadline.is_some_and(|deadline| deadline <= Moment::now()) {
                return Err(Outcome::Busy);
            }
            if held
                .iter()
                .any(|place| self.ballot.grant_of(place).is_none())
            {
                // What was waited for is lost again: better to start anew than to go on with gaps.
                return Err(Outcome::NoQuorum);
            }
            *held = self.ballot.granted();
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
            pause *= 2;
        }
        let highest = held.iter().last().unwrap_or(0);
        let is_held = |place: &usize| matches!(self.verdicts[*place], Verdict::Held { .. });
        let places = 0..self.verdicts.len();
        let turnstile = held.iter().next().unwrap_or(0);
        let Some(next) = places
            .clone()
            .find(|place| *place > turnstile && is_held(place))
        else {
            // Only nodes before our turnstile are taken: their queue is the one to stand in.
            return Err(Outcome::NoQuorum);
        };
        let mut behind = NodeSet::default();
        held.iter()
            .filter(|place| *place > next && *place <= highest)
            .for_each(|place| behind.insert(place));
        behind.iter().for_each(|place| held.remove(place));
        self.let_go(behind);
        Ok(next)
    }

    /// Stands in the queue of one node until it grants, and keeps what `held` has granted meanwhile.
    async fn block(
        &mut self,
        place: usize,
        deadline: Option<Moment>,
        held: NodeSet,
    ) -> Result<(), Stop> {
        let node = Arc::clone(&self.client.fleet.nodes[place]);
        let patience = match deadline.map(|deadline| command::millis(deadline.remaining())) {
            // Too late to wait; 0 would mean for ever.
            Some(0) => return Err(Stop::Over(Outcome::Busy)),
            Some(millis) => millis.min(LONGEST_BLOCK),
            None => 0,
        };
        let (generation, mut connection) = match node.own_line().await {
            Ok(line) => line,
            Err(verdict) => {
                node.suspect(verdict.clone());
                self.verdicts[place] = verdict;
                return Err(Stop::Unfit);
            }
        };
        let request = command::acquire(&self.spec, self.token, None, Some(patience));
        self.owing.insert(place);
        let waited = Box::pin(async move {
            let result = connection.send(&request).await;
            (result, connection)
        });
        let mut keep_alive = tokio::time::interval(self.spec.ttl / 3);
        keep_alive.reset();
        self.blocked = Some(Blocked {
            place,
            generation,
            waited,
            _waiting: node.count_waiter(),
        });
        loop {
            let Some(blocked) = self.blocked.as_mut() else {
                return Err(Stop::Over(Outcome::NoQuorum));
            };
            tokio::select! {
                biased;
                (result, connection) = &mut blocked.waited => {
                    self.blocked = None;
                    return self.came_out(&node, generation, result, connection, place);
                }
                // The cancelled request is dealt with when this attempt is dropped.
                () = node.went_down() => {
                    self.verdicts[place] = node.why_down().unwrap_or(Verdict::NotAsked);
                    return Err(Stop::Over(Outcome::NoQuorum));
                }
                _ = keep_alive.tick(), if !held.is_empty() => self.extend_all(held).await,
            }
        }
    }

    /// Reads the answer of the queue.
    fn came_out(
        &mut self,
        node: &Node,
        generation: u64,
        result: RedisResult<Value>,
        connection: Connection,
        place: usize,
    ) -> Result<(), Stop> {
        // A connection of its own that breaks says little about the shared one; the server may have closed just this.
        match &result {
            Err(error) if error.code().is_none() => node.complain(),
            _ => {
                node.heard(generation, &result);
                node.park(generation, connection);
            }
        }
        let reply = Reply::read(result);
        let outcome = match &reply {
            Reply::Yes(fence) => {
                node.saw_fence(*fence);
                self.ballot.grant(place, *fence, Moment::now());
                Ok(())
            }
            Reply::No => {
                self.owing.remove(place);
                Err(Stop::Over(Outcome::Busy))
            }
            // A connection that breaks may have been granted something on the way.
            Reply::Trouble(Verdict::Unreachable(_)) => Err(Stop::Over(Outcome::NoQuorum)),
            Reply::Trouble(_) => Err(Stop::Unfit),
        };
        self.verdicts[place] = reply.verdict(Verdict::Held {
            owner: None,
            remaining: None,
            waiters: 0,
        });
        outcome
    }

    /// Keeps the nodes that were waited for while waiting for another; whether it worked shows in the next round.
    async fn extend_all(&mut self, held: NodeSet) {
        let extend = Arc::new(command::extend(&self.spec, self.token, self.spec.ttl, None));
        let nodes = &self.client.fleet.nodes;
        let asked = held
            .iter()
            .map(|place| nodes[place].ask(Arc::clone(&extend)));
        let all = futures_util::future::join_all(asked);
        let _ = tokio::time::timeout(self.client.fleet.node_timeout, all).await;
    }
}

impl Blocked {
    /// Ends the wait: the server is told to forget the request, and what it granted all the same is given back. The
    /// request may reach the server after the cancellation, so that is repeated until the request has ended.
    pub(crate) async fn cancel(self, client: Arc<Client>, release: Arc<Request>, ttl: Duration) {
        let Self {
            place,
            generation,
            mut waited,
            ..
        } = self;
        let deliver = || {
            deliver(
                Arc::clone(&client),
                place,
                Arc::clone(&release),
                Moment::now() + ttl,
            )
        };
        for _ in 0..CANCELS {
            let _ = tokio::time::timeout(client.fleet.node_timeout, deliver()).await;
            if let Ok((result, connection)) = tokio::time::timeout(CANCEL_PAUSE, &mut waited).await
            {
                let alive = result.is_ok();
                let granted = !matches!(Reply::read(result), Reply::No);
                if alive {
                    client.fleet.nodes[place].park(generation, connection);
                }
                if granted {
                    deliver().await;
                }
                return;
            }
        }
        // Closing the connection ends the wait on a server that did not answer so far.
        drop(waited);
        deliver().await;
    }
}
