//! One attempt to acquire a lock, with its own token. Dropping it at any point releases whatever it
//! may have been granted.

mod queue;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::client::Client;
use crate::command::{self, Request, Spec, Token, Wait};
use crate::error::{Reports, Verdict};
use crate::host::Moment;
use crate::link::Own;
use crate::quorum::{Ballot, Decision, NodeSet, is_shortage, lease_end};
use crate::release::Release;
use crate::reply::Reply;
use crate::round::{Late, Question, Round};

use queue::Blocked;

/// The number of holders that a node reports for an error message, which names one of them.
const HOLDERS_SHOWN: usize = 8;

/// The outcome of an attempt, or of one of its rounds.
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
    /// Enough nodes refuse permanently that no retry can help.
    Refused,
}

/// See the documentation of this module.
pub(crate) struct Attempt {
    pub(crate) client: Arc<Client>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) token: Token,
    pub(crate) ballot: Ballot,
    /// The last verdict of each node.
    pub(crate) verdicts: Vec<Verdict>,
    /// Nodes that may hold a grant of this token.
    pub(crate) owing: NodeSet,
    /// Nodes of these that had no connection when they were first asked, with the generation of the
    /// one that had ended. Nothing was sent to them until there is a later one.
    unsent: Vec<(usize, u64)>,
    /// Nothing was granted before this moment.
    pub(crate) since: Moment,
    /// Nodes at which a release of this token may still arrive. It would end a new grant there, so
    /// these nodes are not asked again.
    pub(crate) unsettled: NodeSet,
    /// The node where others queue, and whether it refused. An attempt that can wait does not win
    /// before this node has answered.
    queue_node: Option<usize>,
    overtaking: bool,
    /// Answers that arrive after the outcome was decided.
    pub(crate) late: Late,
    /// A pending BLOCK request.
    pub(crate) blocked: Option<Blocked>,
    /// The connection that a BLOCK request was granted on: an ephemeral hold ends with it.
    granted_on: Option<(usize, Own)>,
    /// The generation of the shared connection of a single node when this attempt last used it.
    pub(crate) generation: u64,
    /// The number of restarts of nodes when the attempt began.
    pub(crate) restarts: u64,
}

impl Attempt {
    pub(crate) fn new(client: Arc<Client>, spec: Arc<Spec>) -> Self {
        let nodes = client.fleet.nodes.len();
        Self {
            ballot: Ballot::new(nodes, NodeSet::default()),
            verdicts: vec![Verdict::NotAsked; nodes],
            token: Token::fresh(),
            owing: NodeSet::default(),
            unsent: Vec::new(),
            unsettled: NodeSet::default(),
            since: Moment::now(),
            queue_node: None,
            overtaking: false,
            late: Late::new(),
            blocked: None,
            granted_on: None,
            generation: 0,
            restarts: client.fleet.restarts(),
            client,
            spec,
        }
    }

    /// Asks all nodes at once without waiting in any queue. An attempt that can wait does not win
    /// if the node where others queue refuses: somebody is ahead there, and may be about to acquire
    /// the other nodes.
    pub(crate) async fn try_all(&mut self, can_wait: bool) -> Outcome {
        self.queue_node = if can_wait {
            self.client.fleet.queue_node()
        } else {
            None
        };
        self.round(NodeSet::default()).await
    }

    /// Asks all nodes at once: those in `held` to extend their grants, the others to grant. Returns
    /// as soon as the outcome is decided.
    pub(crate) async fn round(&mut self, held: NodeSet) -> Outcome {
        let mut round = self.send(held);
        let outcome = loop {
            if let Some(outcome) = self.decided(&mut round, held) {
                break outcome;
            }
            match round.next().await {
                Some((question, reply)) => self.count(question, reply),
                None => break self.failure(),
            }
        };
        self.late = round.leave();
        outcome
    }

    fn send(&mut self, held: NodeSet) -> Round {
        let fleet = Arc::clone(&self.client.fleet);
        let sent = Moment::now();
        let proposal = fleet.proposal(sent);
        let mut to_ask = fleet.nodes_to_ask();
        held.iter().for_each(|place| to_ask.insert(place));
        let to_ask = fleet.askable(to_ask, self.unsettled);
        let extend = (!held.is_empty()).then(|| Arc::new(self.extend(proposal)));
        let acquire = Arc::new(command::acquire(
            &self.spec,
            self.token,
            proposal,
            Wait::Not,
        ));
        let ballot = Ballot::new(fleet.nodes.len(), to_ask);
        let earlier = std::mem::replace(&mut self.ballot, ballot);
        self.late.clear();
        self.generation = fleet.nodes[0].standing().generation;
        let mut round = fleet.round();
        for place in 0..fleet.nodes.len() {
            if !to_ask.contains(place) {
                self.verdicts[place] = fleet.nodes[place].why_down().unwrap_or(Verdict::NotAsked);
                continue;
            }
            self.verdicts[place] = Verdict::NotAsked;
            self.owe(place);
            let question = Question::new(place, sent);
            match &extend {
                Some(extend) if held.contains(place) => {
                    // A node whose fence is far ahead keeps it; the ballot ignores this node.
                    let known = earlier.grant_of(place).map(|grant| grant.0);
                    let question = question.about(proposal.max(known));
                    round.ask(&fleet.nodes[place], question, extend);
                }
                _ => round.ask(&fleet.nodes[place], question, &acquire),
            }
        }
        round
    }

    /// Notes that the node is about to be asked for something that must be released later.
    fn owe(&mut self, place: usize) {
        let node = &self.client.fleet.nodes[place];
        if !self.owing.contains(place) && !node.is_connected() {
            self.unsent.push((place, node.standing().generation));
        }
        self.owing.insert(place);
    }

    /// The outcome, if the answers so far decide it. If they require a write-back, it is sent.
    fn decided(&mut self, round: &mut Round, held: NodeSet) -> Option<Outcome> {
        let open = self.ballot.open();
        match self.ballot.decide(Moment::now()) {
            _ if self.overtaking => Some(Outcome::Busy),
            Decision::Open => None,
            Decision::Won { .. } if self.queue_node.is_some_and(|node| open.contains(node)) => None,
            // If the connection was replaced meanwhile, an ephemeral grant may have ended with the
            // old one.
            Decision::Won { fence, .. } if self.is_unbound() => {
                self.generation = self.client.fleet.nodes[0].standing().generation;
                self.raise(round, fence, self.ballot.granted());
                None
            }
            Decision::Won {
                fence, valid_until, ..
            } => Some(Outcome::Won { fence, valid_until }),
            // The attempt may have to wait at a node that has not answered yet.
            Decision::Failed if !held.is_empty() && !open.is_empty() => None,
            Decision::Failed if self.is_unclear(open) => None,
            Decision::Failed => Some(self.failure()),
            Decision::WriteBack { fence, to } => {
                self.raise(round, fence, to);
                None
            }
        }
    }

    /// Whether it is unknown on which connection an ephemeral hold was granted.
    fn is_unbound(&self) -> bool {
        let standing = self.client.fleet.nodes[0].standing();
        self.spec.ephemeral && standing.generation != self.generation
    }

    /// Asks nodes that have granted to raise their fence to this one and to keep the lease.
    fn raise(&mut self, round: &mut Round, fence: u64, at: NodeSet) {
        let raise = Arc::new(self.extend(Some(fence)));
        for place in at.iter() {
            self.ballot.reopen(place);
            let question = Question::new(place, Moment::now()).about(Some(fence));
            round.ask(&self.client.fleet.nodes[place], question, &raise);
        }
        round.start_again();
    }

    /// The lease that an extension asks for. The grant may be up to two node timeouts old, so the
    /// whole ttl could end after MAXHOLD or `lock.max-hold`, which nodes refuse.
    fn extension(&self) -> Duration {
        let since_the_grant = self.client.fleet.node_timeout * 2;
        self.spec.ttl.saturating_sub(since_the_grant)
    }

    fn extend(&self, fence: Option<u64>) -> Request {
        command::extend(&self.spec.keys, self.token, self.extension(), fence)
    }

    fn count(&mut self, question: Question, reply: Reply) {
        let place = question.place;
        let lease = match question.exactly {
            Some(_) => self.extension(),
            None => self.spec.ttl,
        };
        let node = &self.client.fleet.nodes[place];
        match &reply {
            Reply::Yes(fence) => {
                node.fences.saw(*fence);
                let end = lease_end(question.sent, lease);
                self.ballot.grant(place, *fence, end);
            }
            _ => self.ballot.deny(place),
        }
        if reply == Reply::No {
            self.overtaking |= self.queue_node == Some(place);
            // The token holds nothing there, so there is nothing to release, unless the same
            // request may still arrive on a connection that has ended.
            if !node.may_have_repeated(question.route) {
                self.owing.remove(place);
            }
        }
        self.verdicts[place] = reply.verdict(match question.exactly {
            Some(_) => Verdict::NotHeld,
            None => Verdict::held_by_somebody(),
        });
    }

    /// Whether the open answers decide if the lock is busy or too few nodes answer.
    fn is_unclear(&self, open: NodeSet) -> bool {
        let pending = open.iter().map(|place| &self.verdicts[place]);
        let pending = pending.filter(|verdict| **verdict == Verdict::NotAsked);
        let without = self.answered() - pending.count();
        self.failure() == Outcome::Busy && is_shortage(without, self.verdicts.len())
    }

    fn how_many(&self, wanted: fn(&Verdict) -> bool) -> usize {
        let verdicts = self.verdicts.iter();
        verdicts.filter(|verdict| wanted(verdict)).count()
    }

    /// The number of nodes that answer. Nodes whose answers were not needed count, too.
    fn answered(&self) -> usize {
        self.how_many(|verdict| {
            matches!(
                verdict,
                Verdict::Held { .. }
                    | Verdict::Granted { .. }
                    | Verdict::NotHeld
                    | Verdict::NotAsked
            )
        })
    }

    /// Why there is no majority.
    fn failure(&self) -> Outcome {
        let nodes = self.verdicts.len();
        if is_shortage(nodes - self.how_many(Verdict::is_final), nodes) {
            return Outcome::Refused;
        }
        let held = self.how_many(|verdict| matches!(verdict, Verdict::Held { .. }));
        if held > 0 && !is_shortage(self.answered(), nodes) {
            Outcome::Busy
        } else {
            Outcome::NoQuorum
        }
    }

    /// The verdicts for an error message. Nodes where somebody else holds the lock are asked who
    /// does. Of several locks, the one with the longest remaining lease is named.
    pub(crate) async fn describe(&mut self) -> Reports {
        let fleet = Arc::clone(&self.client.fleet);
        // Many locks may take longer than this, so a timeout says nothing about the node.
        let mut round: Round<Verdict> = Round::unlimited(fleet.nodes.len());
        round.end_in(fleet.node_timeout);
        for (place, node) in fleet.nodes.iter().enumerate() {
            if !matches!(self.verdicts[place], Verdict::Held { .. }) {
                continue;
            }
            let (node, spec) = (Arc::clone(node), Arc::clone(&self.spec));
            round.push(Question::new(place, Moment::now()), async move {
                let asked = spec.keys.iter();
                let asked = asked.map(|key| node.lock_status(key, HOLDERS_SHOWN));
                let said = join_all(asked).await.into_iter();
                let said = said.filter_map(|status| Some(status.ok()??.verdict()));
                let longest = said.max_by_key(Verdict::remaining);
                longest.unwrap_or_else(Verdict::held_by_somebody)
            });
        }
        while let Some((question, said)) = round.next().await {
            // A node that does not reply in time is reported as held, without the details.
            if matches!(said, Verdict::Held { .. }) {
                self.verdicts[question.place] = said;
            }
        }
        self.reports()
    }

    /// Also waits for the nodes whose answers were not needed: the caller gets nothing but the
    /// errors of the nodes.
    pub(crate) async fn describe_all(&mut self) -> Reports {
        let late = std::mem::take(&mut self.late);
        let mut round = self.client.fleet.round().resume(late);
        while let Some((question, reply)) = round.next().await {
            self.count(question, reply);
        }
        self.describe().await
    }

    pub(crate) fn reports(&self) -> Reports {
        self.client
            .fleet
            .reports(|place| self.verdicts[place].clone())
    }

    /// Keeps the connection of an answered BLOCK request until the outcome is known.
    pub(crate) fn keep(&mut self, place: usize, own: Own) {
        if let Some((place, own)) = self.granted_on.replace((place, own)) {
            self.client.fleet.nodes[place].keep_idle(own);
        }
    }

    /// The attempt has become a hold, which is now responsible for the release.
    pub(crate) fn hand_over(&mut self) -> NodeSet {
        std::mem::take(&mut self.owing)
    }

    /// Releases the grants of these nodes and continues with the others.
    pub(crate) async fn give_back(&mut self, places: NodeSet) {
        // What the release cannot deliver now, it delivers in the background, even if this future
        // is dropped.
        let release = self.release(places);
        places.iter().for_each(|place| self.unsettled.insert(place));
        let left = release.settle().await;
        let settled = places.iter().filter(|place| !left.contains(*place));
        settled.for_each(|place| self.unsettled.remove(place));
    }

    fn release(&mut self, places: NodeSet) -> Release {
        places.iter().for_each(|place| self.owing.remove(place));
        let request = command::release(&self.spec.keys, self.token);
        Release::new(&self.client, places, request, self.spec.ttl)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some((place, own)) = self.granted_on.take() {
            self.client.fleet.nodes[place].keep_idle(own);
        }
        if let Some(blocked) = self.blocked.take() {
            self.owing.remove(blocked.place);
            let request = command::release(&self.spec.keys, self.token);
            let from = std::iter::once(blocked.place).collect();
            let release = Release::new(&self.client, from, request, self.spec.ttl);
            let patience = self.client.fleet.node_timeout;
            self.client
                .background
                .spawn(blocked.cancel(release, patience));
        }
        // A request that was not sent so far is never sent.
        self.late.clear();
        for (place, generation) in std::mem::take(&mut self.unsent) {
            if self.client.fleet.nodes[place].standing().generation == generation {
                self.owing.remove(place);
            }
        }
        if !self.owing.is_empty() {
            drop(self.release(self.owing));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use redislock_testkit::{Proxy, Server};

    use super::*;
    use crate::redlock::Redlock;

    const FENCE: u64 = 7;

    /// An attempt of a client whose nodes cannot be reached. Tests that do not await anything
    /// never run its background tasks.
    pub(crate) fn unconnected(nodes: usize) -> Attempt {
        let urls = (1..=nodes).map(|port| format!("redis://127.0.0.1:{port}"));
        let redlock = Redlock::builder().nodes(urls).connect_lazy().unwrap();
        let spec = Spec::new(vec![b"x".to_vec()]);
        Attempt::new(redlock.client, Arc::new(spec))
    }

    /// Extensions ask for less than the ttl.
    #[tokio::test]
    async fn an_extension_counts_for_the_lease_that_it_has_asked_for() {
        let mut attempt = unconnected(2);
        let (sent, ttl) = (Moment::now(), attempt.spec.ttl);
        let shorter = ttl - attempt.client.fleet.node_timeout * 2;
        for (place, exactly, lease) in [(0, None, ttl), (1, Some(FENCE), shorter)] {
            let question = Question::new(place, sent).about(exactly);
            attempt.count(question, Reply::Yes(FENCE));
            let end = lease_end(sent, lease);
            assert_eq!(attempt.ballot.grant_of(place), Some((FENCE, end)));
        }
    }

    /// A client that waits for slow nodes, so that a busy machine changes no result.
    pub(crate) async fn patient(urls: impl IntoIterator<Item = String>) -> Redlock {
        let builder = Redlock::builder().nodes(urls);
        let builder = builder.node_timeout(Duration::from_secs(60));
        builder.connect().await.unwrap()
    }

    pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
        for _ in 0..3_000 {
            if so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("timed out: {what}");
    }

    /// The connection had ended when the node was asked, so nothing was sent on that one.
    #[tokio::test]
    async fn a_request_that_was_sent_on_a_later_connection_is_released() {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        let redlock = patient([proxy.url()]).await;
        let node = Arc::clone(&redlock.client.fleet.nodes[0]);
        let first = node.standing().generation;
        node.ended(first, Verdict::unreachable("closed"));
        proxy.silence("LOCK.ACQUIRE");
        let spec = Spec {
            ttl: Duration::from_secs(600),
            ..Spec::new(vec![b"x".to_vec()])
        };
        let mut attempt = Attempt::new(Arc::clone(&redlock.client), Arc::new(spec));
        tokio::select! {
            biased;
            outcome = attempt.try_all(false) => panic!("{outcome:?}"),
            () = until("it is granted", || !server.is_free("x")) => {}
        }
        assert_eq!(attempt.unsent, [(0, first)]);
        drop(attempt);
        proxy.heal();
        until("it is released", || server.is_free("x")).await;
    }

    /// The grant may belong to the connection that has ended.
    #[tokio::test]
    async fn an_ephemeral_grant_from_before_a_new_connection_is_confirmed_on_it() {
        for ephemeral in [true, false] {
            let mut attempt = unconnected(1);
            attempt.spec = Arc::new(Spec {
                ephemeral,
                ..Spec::clone(&attempt.spec)
            });
            let mut round = attempt.client.fleet.round();
            let (sent, ttl) = (Moment::now(), attempt.spec.ttl);
            attempt.ballot = Ballot::new(1, std::iter::once(0).collect());
            attempt.ballot.grant(0, FENCE, lease_end(sent, ttl));
            let current = attempt.client.fleet.nodes[0].standing().generation;
            attempt.generation = current + 1;
            let decided = attempt.decided(&mut round, NodeSet::default());
            assert_eq!(decided.is_none(), ephemeral, "{decided:?}");
            assert_eq!(round.leave().len(), usize::from(ephemeral));
        }
    }
}
