//! One attempt at a lock, with a token of its own. Dropping it at any point gives back whatever it may have got.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};

use crate::client::Client;
use crate::clock::Moment;
use crate::command;
use crate::error::{Reports, Verdict};
use crate::giveback::GiveBack;
use crate::options::Spec;
use crate::quorum::{Ballot, Decision, NodeSet};
use crate::reply::Reply;
use crate::token::Token;
use crate::turnstile::Blocked;

/// How an attempt, or a round of it, came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Won {
        fence: u64,
        valid_until: Moment,
    },
    /// Enough nodes answered, and somebody else holds too many of them.
    Busy,
    /// Too few nodes answered.
    NoQuorum,
    /// So many nodes refuse for good that no retry can help.
    Refused,
}

/// Answers that were not waited for, as the answer was decided without them.
pub(crate) type Late = Pin<Box<dyn Stream<Item = (Question, Reply)> + Send>>;

/// A question on its way: what would be the right answer to it, and when it was sent.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) place: usize,
    pub(crate) sent: Moment,
    /// An extension must come back with exactly this fence: a higher one is another hold.
    exactly: Option<u64>,
}

/// See the module's text.
pub(crate) struct Attempt {
    pub(crate) client: Arc<Client>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) token: Token,
    pub(crate) ballot: Ballot,
    /// What each node said last.
    pub(crate) verdicts: Vec<Verdict>,
    /// Nodes that may hold something of this token.
    pub(crate) owing: NodeSet,
    /// Whose word a polite attempt waits for.
    turnstile: Option<usize>,
    /// The turnstile said no to a polite attempt.
    overtaking: bool,
    /// What was not waited for, as the answer was decided without it.
    pub(crate) late: Option<Late>,
    /// A BLOCK request under way.
    pub(crate) blocked: Option<Blocked>,
}

impl Attempt {
    pub(crate) fn new(client: Arc<Client>, spec: Arc<Spec>) -> Self {
        let nodes = client.fleet.nodes.len();
        Self {
            ballot: Ballot::new(nodes, NodeSet::default(), spec.ttl),
            verdicts: vec![Verdict::NotAsked; nodes],
            token: Token::fresh(),
            owing: NodeSet::default(),
            turnstile: None,
            overtaking: false,
            late: None,
            blocked: None,
            client,
            spec,
        }
    }

    /// Asks all nodes at once without waiting in any queue. Whoever is `polite`, because it can wait, does not win against
    /// the turnstile: somebody is ahead in its queue, and may be about to take the other nodes.
    pub(crate) async fn dash(&mut self, polite: bool) -> Outcome {
        self.turnstile = match polite {
            true => self.client.fleet.turnstile(),
            false => None,
        };
        self.round(NodeSet::default()).await
    }

    /// Asks all nodes at once: `held` to extend what they granted, the others to grant. Returns as soon as the answer
    /// is decided.
    pub(crate) async fn round(&mut self, held: NodeSet) -> Outcome {
        let fleet = Arc::clone(&self.client.fleet);
        let sent = Moment::now();
        let proposal = fleet.proposal(sent);
        let mut electorate = fleet.electorate();
        held.iter().for_each(|place| electorate.insert(place));
        let extend = (!held.is_empty()).then(|| {
            let ttl = self.spec.ttl;
            Arc::new(command::extend(&self.spec, self.token, ttl, proposal))
        });
        let acquire = Arc::new(command::acquire(&self.spec, self.token, proposal, None));
        let earlier = std::mem::replace(
            &mut self.ballot,
            Ballot::new(fleet.nodes.len(), electorate, self.spec.ttl),
        );
        self.late = None;
        let mut asked = FuturesUnordered::new();
        let ask = |question: Question, request| {
            let answer = fleet.nodes[question.place].ask(request);
            async move { (question, answer.await) }
        };
        for place in 0..fleet.nodes.len() {
            if !electorate.contains(place) {
                self.verdicts[place] = fleet.nodes[place].why_down().unwrap_or(Verdict::NotAsked);
                continue;
            }
            self.owing.insert(place);
            self.verdicts[place] = Verdict::NotAsked;
            let known = earlier.grant_of(place).map(|grant| grant.0);
            let (request, exactly) = match &extend {
                // A node far ahead keeps its own fence; the ballot leaves it out.
                Some(extend) if held.contains(place) => (extend, proposal.max(known)),
                _ => (&acquire, None),
            };
            asked.push(ask(
                Question {
                    place,
                    sent,
                    exactly,
                },
                Arc::clone(request),
            ));
        }
        let round = fleet.ticker.start();
        let mut deadline = sent + fleet.node_timeout;
        loop {
            match self.ballot.decide(Moment::now()) {
                _ if self.overtaking => {
                    self.late = Some(Box::pin(asked));
                    return Outcome::Busy;
                }
                Decision::Won { .. }
                    if self
                        .turnstile
                        .is_some_and(|place| self.ballot.open().contains(place)) => {}
                Decision::Open => {}
                Decision::Won {
                    fence, valid_until, ..
                } => {
                    if !asked.is_empty() {
                        self.late = Some(Box::pin(asked));
                    }
                    return Outcome::Won { fence, valid_until };
                }
                // Who has a place in a queue to lose hears everybody out: a node that was not heard may be kept.
                Decision::Failed if !held.is_empty() && !self.ballot.open().is_empty() => {}
                Decision::Failed => {
                    self.late = Some(Box::pin(asked));
                    return self.failure();
                }
                Decision::WriteBack { fence, to } => {
                    let raise = command::extend(&self.spec, self.token, self.spec.ttl, Some(fence));
                    let raise = Arc::new(raise);
                    let sent = Moment::now();
                    let exactly = Some(fence);
                    for place in to.iter() {
                        self.ballot.reopen(place);
                        asked.push(ask(
                            Question {
                                place,
                                sent,
                                exactly,
                            },
                            Arc::clone(&raise),
                        ));
                    }
                    deadline = sent + fleet.node_timeout;
                }
            }
            tokio::select! {
                biased;
                Some((question, reply)) = asked.next() => self.count(question, reply),
                () = round.over(deadline) => self.time_is_up(fleet.node_timeout),
            }
        }
    }

    fn count(&mut self, question: Question, reply: Reply) {
        let place = question.place;
        let stranger = |fence: u64| question.exactly.is_some_and(|exactly| exactly != fence);
        match reply {
            Reply::Yes(fence) if stranger(fence) => {
                self.ballot.deny(place);
                self.verdicts[place] = Verdict::NotHeld;
            }
            Reply::Yes(fence) => {
                self.client.fleet.nodes[place].saw_fence(fence);
                self.ballot.grant(place, fence, question.sent);
                self.verdicts[place] = Verdict::Granted { fence };
            }
            Reply::No => {
                // The token is held there by nobody, so there is nothing to give back.
                self.owing.remove(place);
                self.ballot.deny(place);
                self.overtaking |= self.turnstile == Some(place);
                self.verdicts[place] = match question.exactly {
                    Some(_) => Verdict::NotHeld,
                    None => held_by_somebody(),
                };
            }
            Reply::Trouble(verdict) => {
                self.ballot.deny(place);
                self.verdicts[place] = verdict;
            }
        }
    }

    fn time_is_up(&mut self, after: Duration) {
        for place in self.ballot.open().iter() {
            self.client.fleet.nodes[place].suspect(Verdict::TimedOut(after));
            self.ballot.deny(place);
            self.verdicts[place] = Verdict::TimedOut(after);
        }
    }

    /// Why there is no majority.
    fn failure(&self) -> Outcome {
        let nodes = self.verdicts.len();
        let majority = self.client.fleet.majority();
        let count = |wanted: fn(&Verdict) -> bool| {
            self.verdicts
                .iter()
                .filter(|verdict| wanted(verdict))
                .count()
        };
        if count(Verdict::is_final) > nodes - majority {
            return Outcome::Refused;
        }
        // Nodes that were not waited for would have answered, as far as anybody knows.
        let answered = count(|verdict| {
            matches!(
                verdict,
                Verdict::Held { .. }
                    | Verdict::Granted { .. }
                    | Verdict::NotHeld
                    | Verdict::NotAsked
            )
        });
        let held = count(|verdict| matches!(verdict, Verdict::Held { .. }));
        match held > 0 && answered >= majority {
            true => Outcome::Busy,
            false => Outcome::NoQuorum,
        }
    }

    /// The verdicts for an error message; nodes that hold a lock for somebody else are asked for whom. Of several locks
    /// the one is named that is held for longest.
    pub(crate) async fn describe(&mut self) -> Reports {
        let fleet = Arc::clone(&self.client.fleet);
        let keys = self.spec.keys.iter();
        let requests: Vec<_> = keys.map(|key| Arc::new(command::info(key))).collect();
        let mut asked = FuturesUnordered::new();
        for (place, verdict) in self.verdicts.iter().enumerate() {
            if matches!(verdict, Verdict::Held { .. }) {
                let Ok((_, connection)) = fleet.nodes[place].line() else {
                    continue;
                };
                for info in requests.iter().map(Arc::clone) {
                    let mut connection = connection.clone();
                    asked.push(async move { (place, connection.send(&info).await) });
                }
            }
        }
        let collect = async {
            while let Some((place, result)) = asked.next().await {
                let Some(said) = result.ok().and_then(crate::reply::holder) else {
                    continue;
                };
                if said.remaining() >= self.verdicts[place].remaining() {
                    self.verdicts[place] = said;
                }
            }
        };
        // Who does not tell in time is reported as held, without the details.
        let _ = tokio::time::timeout(fleet.node_timeout, collect).await;
        self.reports()
    }

    /// Hears those, too, without whom the answer was decided: what is wrong with the nodes is all that the caller gets.
    pub(crate) async fn describe_all(&mut self) -> Reports {
        if let Some(late) = self.late.take() {
            self.hear_the_rest(late).await;
        }
        self.describe().await
    }

    async fn hear_the_rest(&mut self, mut late: Late) {
        let patience = self.client.fleet.node_timeout;
        let rest = async {
            while let Some((question, reply)) = late.next().await {
                self.count(question, reply);
            }
        };
        if tokio::time::timeout(patience, rest).await.is_err() {
            self.time_is_up(patience);
        }
    }

    pub(crate) fn reports(&self) -> Reports {
        self.client
            .fleet
            .reports(|place| self.verdicts[place].clone())
    }

    /// The attempt has become a hold, which gives back from now on.
    pub(crate) fn keep(&mut self) -> NodeSet {
        std::mem::take(&mut self.owing)
    }

    /// Gives back what these nodes granted, without waiting for them.
    pub(crate) fn let_go(&mut self, places: NodeSet) {
        places.iter().for_each(|place| self.owing.remove(place));
        let release = Arc::new(command::release(&self.spec, self.token));
        let until = Moment::now() + self.spec.ttl;
        drop(GiveBack::new(
            Arc::clone(&self.client),
            places,
            release,
            until,
        ));
    }
}

/// Null to a request that did not wait: details come later, if anybody wants them.
fn held_by_somebody() -> Verdict {
    Verdict::Held {
        owner: None,
        remaining: None,
        waiters: 0,
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(blocked) = self.blocked.take() {
            self.owing.remove(blocked.place);
            let client = Arc::clone(&self.client);
            let release = Arc::new(command::release(&self.spec, self.token));
            let farewell = blocked.cancel(client, release, self.spec.ttl);
            self.client.runtime.spawn(farewell);
        }
        if !self.owing.is_empty() {
            self.let_go(self.owing);
        }
    }
}
