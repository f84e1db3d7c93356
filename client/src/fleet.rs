//! All nodes of a client: the first connections, and the background tasks that monitor them.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::FutureExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, NodeReport, Reports, Verdict};
use crate::host::{Moment, locked, pauses};
use crate::keeper::Keeper;
use crate::link::{Answers, Connection};
use crate::node::{Known, Node};
use crate::quorum::{NodeSet, majority, proposal};
use crate::round::{Nodes, Question, Round};

/// While the client uses a node or holds any lock, the node is checked this often: whether it
/// answers, and whether it is still the same process.
const PULSE: Duration = Duration::from_millis(500);
/// The first pause between two attempts to reach a node that is down, doubled each time …
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// … up to this one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// If a master of a cluster does not answer, the cluster is checked over a new connection, but no
/// more often than this: the master may only be overloaded.
const NEW_LOOK: Duration = Duration::from_secs(5);
/// A larger difference of clocks causes a warning.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// See the documentation of this module.
pub(crate) struct Fleet {
    pub(crate) nodes: Nodes,
    pub(crate) node_timeout: Duration,
    changed: Notify,
    /// Whether every node was asked once, or had enough time to answer.
    asked_all: watch::Sender<bool>,
    /// One answer at a time is compared with those of the other nodes.
    accepting: Mutex<()>,
    /// When a cluster was last checked over a new connection.
    looked_at: Mutex<Option<Moment>>,
    /// How often a node was a different process than before.
    restarts: AtomicU64,
}

impl Fleet {
    pub(crate) fn new(nodes: Nodes, node_timeout: Duration) -> Self {
        Self {
            nodes,
            node_timeout,
            changed: Notify::new(),
            asked_all: watch::Sender::new(false),
            accepting: Mutex::default(),
            looked_at: Mutex::default(),
            restarts: AtomicU64::new(0),
        }
    }

    pub(crate) fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// The nodes to ask: those that seem up; all of them if those are not a majority.
    pub(crate) fn nodes_to_ask(&self) -> NodeSet {
        let nodes = self.nodes.iter().enumerate();
        let up = nodes.filter(|(_, node)| node.is_up());
        let up: NodeSet = up.map(|(place, _)| place).collect();
        if up.len() < self.majority() {
            self.everybody()
        } else {
            up
        }
    }

    /// The nodes of `places`, without those of `but`, that requests can be sent to. What cannot be
    /// sent need not be released.
    pub(crate) fn askable(&self, places: NodeSet, but: NodeSet) -> NodeSet {
        let places = places.iter().filter(|place| !but.contains(*place));
        places
            .filter(|place| self.nodes[*place].can_be_asked())
            .collect()
    }

    /// A round of requests on the shared connections. Every node must answer within the node
    /// timeout.
    pub(crate) fn round<A: From<Verdict> + Send + 'static>(&self) -> Round<A> {
        Round::within(&self.nodes, self.node_timeout)
    }

    pub(crate) fn everybody(&self) -> NodeSet {
        (0..self.nodes.len()).collect()
    }

    /// The node where waiters queue: the first one that can be reached.
    pub(crate) fn queue_node(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.is_up())
    }

    /// A fence that all nodes would grant unchanged.
    pub(crate) fn proposal(&self, now: Moment) -> Option<u64> {
        proposal(self.nodes.iter().map(|node| &node.fences), now)
    }

    /// Reports with the verdict that `verdict` gives for each place.
    pub(crate) fn reports(&self, verdict: impl Fn(usize) -> Verdict) -> Reports {
        let report = |(place, node): (usize, &Arc<Node>)| NodeReport {
            node: node.name.clone(),
            verdict: verdict(place),
        };
        Reports(self.nodes.iter().enumerate().map(report).collect())
    }

    /// How often nodes were restarted so far. The count changes before holds are notified.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::SeqCst)
    }

    /// Returns when a node reconnects, or after `patience`.
    pub(crate) async fn change(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.changed.notified()).await;
    }

    /// Returns when every node was asked once, at the latest at `deadline` or after twice the
    /// connect timeout. A client that was not connected before its first request knows nothing
    /// about its nodes until then.
    pub(crate) async fn first_answers(&self, deadline: Option<Moment>) {
        if *self.asked_all.borrow() {
            return;
        }
        let mut asked_all = self.asked_all.subscribe();
        let longest = self.nodes.iter().map(|node| node.connect_timeout).max();
        let patience = longest.unwrap_or_default().saturating_mul(2);
        let patience = deadline.map_or(patience, |deadline| deadline.remaining().min(patience));
        let _ = tokio::time::timeout(patience, asked_all.wait_for(|asked| *asked)).await;
    }

    /// Monitors one node until `stop`: checks periodically whether it answers, and reconnects if it
    /// does not.
    pub(crate) async fn watch(
        self: Arc<Self>,
        place: usize,
        keeper: Arc<Keeper>,
        stop: CancellationToken,
    ) {
        let watching = async {
            self.first_answers(None).await;
            let node = &self.nodes[place];
            loop {
                if node.is_up() {
                    tokio::select! {
                        biased;
                        () = node.problem_reported() => {}
                        () = tokio::time::sleep(PULSE) => if !node.in_use() && keeper.is_idle() {
                            node.close_idle();
                            continue;
                        },
                    }
                }
                // A `tracing` subscriber that panics must not end the monitoring.
                let reached = AssertUnwindSafe(self.reach(place, &keeper));
                if reached.catch_unwind().await.is_err() {
                    tokio::time::sleep(LONGEST_PAUSE).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.notify_of_ends(place, &keeper) => {}
            () = watching => {}
        }
    }

    /// Notifies ephemeral holds as soon as their connection is known to have ended, whatever else
    /// the node is doing.
    async fn notify_of_ends(&self, place: usize, keeper: &Keeper) {
        let mut closed = 0;
        loop {
            closed = self.nodes[place].closed_after(closed).await;
            keeper.connection_ended(closed);
        }
    }

    /// Returns when the node is known to be up.
    async fn reach(&self, place: usize, keeper: &Keeper) {
        let node = &self.nodes[place];
        let mut pauses = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let before = node.standing();
            match self.pulse(place).await {
                Ok(known) => {
                    if known == Known::Restarted {
                        tracing::info!(node = %node.name, "node was restarted");
                    }
                    let replaced = node.standing().generation != before.generation;
                    keeper.ask_again(|hold| {
                        known == Known::Restarted || (replaced && hold.is_ephemeral())
                    });
                    if !before.up {
                        self.changed.notify_waiters();
                    }
                    return;
                }
                Err(verdict) => {
                    tracing::debug!(node = %node.name, %verdict, "node does not serve");
                    node.bar(verdict);
                }
            }
            tokio::time::sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
        }
    }

    /// Asks on the current connection; if that does not answer in time, also on a new one. If the
    /// old one answers first, it stays: holds and places in queues may depend on it.
    async fn pulse(&self, place: usize) -> Result<Known, Verdict> {
        let node = &self.nodes[place];
        let Ok(mut shared) = node.shared() else {
            let (connection, answers) = node.dial().await?;
            return self.accept(place, &answers, Some(connection));
        };
        let asked = shared.connection.status(self.node_timeout);
        tokio::pin!(asked);
        let answered = tokio::time::timeout(self.node_timeout, &mut asked).await;
        let pending = answered.is_err();
        match answered {
            Ok(Ok(answers)) => match self.accept(place, &answers, None) {
                // It has ended since.
                Err(Verdict::Unreachable(_)) => {}
                Ok(Known::Same) if !answers.all || answers.is_cut_off() => {
                    return Ok(self.reach_all(place).await);
                }
                known => return known,
            },
            Ok(Err(Verdict::Unreachable(why))) => {
                node.ended(shared.generation, Verdict::Unreachable(why));
            }
            Ok(Err(verdict)) => node.bar(verdict),
            Err(_) => node.suspect(Verdict::TimedOut(self.node_timeout)),
        }
        tokio::select! {
            biased;
            Ok(answers) = &mut asked, if pending => self.accept(place, &answers, None),
            dialled = node.dial() => {
                let (connection, answers) = dialled?;
                self.accept(place, &answers, Some(connection))
            }
        }
    }

    /// A master of a cluster does not answer, or is cut off from the others. It may refuse the
    /// credentials of this connection, or another node may have replaced it. A new connection finds
    /// out.
    async fn reach_all(&self, place: usize) -> Known {
        let (node, now) = (&self.nodes[place], Moment::now());
        let is_recent = |at: Moment| now.since(at) < NEW_LOOK;
        if locked(&self.looked_at).is_some_and(is_recent) {
            return Known::Same;
        }
        *locked(&self.looked_at) = Some(now);
        let has_new_login = match node.shared() {
            Ok(shared) => node.link.has_new_login(&shared.connection).await,
            Err(_) => false,
        };
        let accepted = match node.dial().await {
            Ok((connection, answers)) if has_new_login || node.lacks(&answers) => {
                self.accept(place, &answers, Some(connection))
            }
            _ => Ok(Known::Same),
        };
        accepted.unwrap_or(Known::Same)
    }

    /// The node has answered, on a new connection or on the current one. The answer does not count
    /// if another node of the list is the same process.
    pub(crate) fn accept(
        &self,
        place: usize,
        answers: &Answers,
        new: Option<Connection>,
    ) -> Result<Known, Verdict> {
        let _accepting = locked(&self.accepting);
        for (other, node) in self.nodes.iter().enumerate() {
            if other != place && node.knows(answers) {
                let node = node.name.clone();
                return Err(Verdict::SameAs { node });
            }
        }
        let known = self.nodes[place].confirm(answers, new)?;
        if known == Known::Restarted {
            self.restarts.fetch_add(1, Ordering::SeqCst);
        }
        Ok(known)
    }
}

/// The first answer of a node.
type First = (Connection, Answers);

impl Fleet {
    /// Connects to every node at once and checks their answers. Once a majority is connected, the
    /// others get the same time again, and at least the node timeout. Slower nodes are connected in
    /// the background.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let started = Moment::now();
        let mut round: Round<Result<First, Verdict>> = Round::unlimited(self.nodes.len());
        for (place, node) in self.nodes.iter().enumerate() {
            let node = Arc::clone(node);
            let question = Question::new(place, started);
            round.push(question, async move { node.dial().await });
        }
        let mut verdicts = vec![None; self.nodes.len()];
        let mut connected = 0;
        while let Some((question, answer)) = round.next().await {
            match answer.and_then(|first| self.take_in(question.place, first)) {
                Ok(()) => {
                    connected += 1;
                    if connected == self.majority() {
                        let took = Moment::now().since(started);
                        round.end_in(self.node_timeout.max(took));
                    }
                }
                Err(verdict) => verdicts[question.place] = Some(verdict),
            }
        }
        let judged = self.judge(&verdicts);
        self.asked_all.send_replace(true);
        judged?;
        self.warn();
        Ok(())
    }

    fn take_in(&self, place: usize, (connection, answers): First) -> Result<(), Verdict> {
        self.accept(place, &answers, Some(connection))?;
        for warning in answers.masters.iter().flat_map(|master| &master.warnings) {
            tracing::warn!(node = %self.nodes[place].name, "{}", warning.escape_debug());
        }
        Ok(())
    }

    /// A server that is listed twice, a replica and a missing module are errors, whatever the other
    /// nodes answer. Too few nodes are an error, too. A node that cannot serve right now counts as
    /// unreachable.
    fn judge(&self, verdicts: &[Option<Verdict>]) -> Result<(), Error> {
        let failed = verdicts.iter().zip(self.nodes.iter());
        for (verdict, node) in failed {
            if let Some(verdict) = verdict {
                node.bar(verdict.clone());
            }
        }
        let nodes = self.reports(|place| verdicts[place].clone().unwrap_or(Verdict::NotAsked));
        let failed = || verdicts.iter().flatten();
        if let Some(problem) = failed().find_map(misconfigured) {
            let problem = problem.to_owned();
            return Err(Error::Misconfigured { problem, nodes });
        }
        if self.nodes.len() - failed().count() < self.majority() {
            let lock = "the connection".to_owned();
            return Err(Error::NoQuorum { lock, nodes });
        }
        Ok(())
    }

    fn warn(&self) {
        if self.nodes.len().is_multiple_of(2) {
            tracing::warn!(
                nodes = self.nodes.len(),
                "an even number of nodes survives no more failures than one node less"
            );
        }
        let now = Moment::now();
        let up = self.nodes.iter().filter(|node| node.is_up());
        let mut clocks: Vec<_> = up.map(|node| (node.fences.wall(now), &node.name)).collect();
        clocks.sort_unstable();
        if let [(behind, last), .., (ahead, first)] = clocks.as_slice()
            && *ahead - *behind > CLOCKS_APART
        {
            tracing::warn!(
                behind = %last,
                ahead = %first,
                apart = ?(*ahead - *behind),
                "the nodes' clocks are more than a second apart: their fences will need a second \
                 round trip; synchronize them"
            );
        }
    }
}

/// What must be changed before this node can serve; none if waiting may help.
fn misconfigured(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::SameAs { .. } => Some("one server is listed twice: list each once"),
        Verdict::Replica => Some("a replica is listed: list masters only"),
        Verdict::ModuleMissing => Some("a server lacks the redislock module: load it there"),
        Verdict::ModuleTooOld { .. } => Some("a server has an old redislock module: upgrade it"),
        Verdict::Garbage(_) => Some("a server is not a redislock node: check its address"),
        Verdict::Refused(_) if verdict.is_final() => {
            Some("a server refuses LOCK.NODE: check the user and the password in its URL")
        }
        _ => None,
    }
}
