//! All nodes of a client, tended in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::census::Census;
use crate::clock::{Moment, pauses};
use crate::error::{NodeReport, Reports, Verdict};
use crate::keeper::Keeper;
use crate::node::{Known, Node};
use crate::quorum::{NodeSet, majority};

/// While the client uses a node or holds any lock, the node is asked this often whether it is still
/// there and still who it was.
const PULSE: Duration = Duration::from_millis(500);
/// The first pause between two attempts to reach a node that is down, doubled each time …
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// … up to this one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A proposal leads the nodes' clocks by so much, in µs: more than the time a request takes. It
/// leads their counters by one only, or many grants a second would drive it away from the clocks.
const FENCE_LEAD: u64 = 10_000;
/// A node whose clock or counter is this far above the middle one, in µs, does not set the
/// proposal: the others refuse what is 10 s ahead of their clocks.
const FENCE_OUTLIER: u64 = 5_000_000;

/// The nodes, in the fixed order of the configuration.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) node_timeout: Duration,
    changed: Notify,
    /// Whether every node was asked once, or had the time to answer.
    asked_all: watch::Sender<bool>,
}

impl Fleet {
    pub(crate) fn new(nodes: Vec<Arc<Node>>, node_timeout: Duration) -> Self {
        Self {
            nodes,
            node_timeout,
            changed: Notify::new(),
            asked_all: watch::Sender::new(false),
        }
    }

    pub(crate) fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    /// Whom to ask: those believed up; all of them when that is no majority.
    pub(crate) fn electorate(&self) -> NodeSet {
        let nodes = self.nodes.iter().enumerate();
        let up = nodes.filter(|(_, node)| node.is_up());
        let up: NodeSet = up.map(|(place, _)| place).collect();
        match up.len() < self.majority() {
            true => self.everybody(),
            false => up,
        }
    }

    pub(crate) fn everybody(&self) -> NodeSet {
        (0..self.nodes.len()).collect()
    }

    /// Where waiters queue: the first node that can be reached.
    pub(crate) fn queue_node(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.is_up())
    }

    /// A fence above everything that the nodes are known to have given out; none is needed for one
    /// node.
    pub(crate) fn proposal(&self, now: Moment) -> Option<u64> {
        if self.nodes.len() == 1 {
            return None;
        }
        let mut fences: Vec<u64> = Vec::with_capacity(self.nodes.len());
        fences.extend(
            self.nodes
                .iter()
                .map(|node| node.next_fence(now, FENCE_LEAD)),
        );
        fences.sort_unstable();
        let middle = fences.get(fences.len() / 2).copied().unwrap_or(0);
        let bound = middle.saturating_add(FENCE_OUTLIER);
        fences.into_iter().rfind(|fence| *fence <= bound)
    }

    /// Reports with the verdict that `verdict` gives for each place.
    pub(crate) fn reports(&self, verdict: impl Fn(usize) -> Verdict) -> Reports {
        let report = |(place, node): (usize, &Arc<Node>)| NodeReport {
            node: node.name.clone(),
            verdict: verdict(place),
        };
        Reports(self.nodes.iter().enumerate().map(report).collect())
    }

    /// Returns when some node comes back, and after `patience` anyway.
    pub(crate) async fn change(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.changed.notified()).await;
    }

    /// The first round of questions to all nodes is over.
    pub(crate) fn asked_all(&self) {
        self.asked_all.send_replace(true);
    }

    /// Returns when that is so, at `deadline` at the latest, and in any case after the time that
    /// connecting takes. A client that was not connected before its first request knows nothing
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

    /// Whether another node is the same process.
    pub(crate) fn doubled(&self, place: usize, census: &[Census]) -> Option<Verdict> {
        for (other, node) in self.nodes.iter().enumerate() {
            let known = node.incarnations();
            if other != place && census.iter().any(|one| known.contains(&one.incarnation)) {
                return Some(Verdict::SameAs {
                    node: node.name.clone(),
                });
            }
        }
        None
    }

    /// Looks after one node until `stop`: asks now and then whether it lives, and reaches it again
    /// when it does not.
    pub(crate) async fn tend(
        self: Arc<Self>,
        place: usize,
        keeper: Arc<Keeper>,
        stop: CancellationToken,
    ) {
        let tending = async {
            self.first_answers(None).await;
            let node = &self.nodes[place];
            loop {
                if node.is_up() {
                    tokio::select! {
                        biased;
                        () = node.complaint() => {}
                        () = tokio::time::sleep(PULSE) => if !node.in_use() && keeper.is_idle() {
                            node.close_idle();
                            continue;
                        },
                    }
                }
                self.reach(place, &keeper).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.tell_of_ends(place, &keeper) => {}
            () = tending => {}
        }
    }

    /// Tells the holds that end with a connection as soon as it is known to have ended, whatever
    /// else is under way at the node.
    async fn tell_of_ends(&self, place: usize, keeper: &Keeper) {
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
                        keeper.renew_all(|_| true);
                    } else if node.standing().generation != before.generation {
                        keeper.renew_all(|hold| hold.spec.ephemeral);
                    }
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

    /// Asks on the connection there is; if that does not answer in time, on a new one too. The old
    /// one stays if it answers first: holds and places in queues may depend on it.
    async fn pulse(&self, place: usize) -> Result<Known, Verdict> {
        let node = &self.nodes[place];
        let Ok((generation, mut connection)) = node.shared() else {
            let (connection, census) = node.dial().await?;
            return self.accept(place, &census, Some(connection));
        };
        let asked = connection.census(self.node_timeout);
        tokio::pin!(asked);
        let answered = tokio::time::timeout(self.node_timeout, &mut asked).await;
        let pending = answered.is_err();
        match answered {
            // A master that does not answer may refuse the credentials of this connection.
            Ok(Ok((_, false))) if node.has_new_login().await => {}
            Ok(Ok((census, _))) => return self.accept(place, &census, None),
            Ok(Err(Verdict::Unreachable(why))) => {
                node.ended(generation, Verdict::Unreachable(why));
            }
            Ok(Err(verdict)) => node.bar(verdict),
            Err(_) => node.suspect(Verdict::TimedOut(self.node_timeout)),
        }
        tokio::select! {
            biased;
            Ok((census, _)) = &mut asked, if pending => self.accept(place, &census, None),
            dialled = node.dial() => {
                let (connection, census) = dialled?;
                self.accept(place, &census, Some(connection))
            }
        }
    }

    fn accept(
        &self,
        place: usize,
        census: &[Census],
        new: Option<crate::link::Connection>,
    ) -> Result<Known, Verdict> {
        if let Some(doubled) = self.doubled(place, census) {
            return Err(doubled);
        }
        let node = &self.nodes[place];
        Ok(match new {
            Some(connection) => node.install(connection, census),
            None => node.confirm(census),
        })
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::link::Settings;

    fn fleet(nodes: usize) -> Fleet {
        let node = |place: usize| {
            let info = format!("redis://127.0.0.1:{}", place + 1).into_connection_info();
            let link = Settings::default().single(info.unwrap()).unwrap();
            Arc::new(Node::new(place.to_string(), link, PULSE))
        };
        Fleet::new((0..nodes).map(node).collect(), PULSE)
    }

    #[test]
    fn proposals_grow_and_many_grants_do_not_drive_them_away_from_the_clocks() {
        let fleet = fleet(5);
        let now = Moment::now();
        let first = fleet.proposal(now).unwrap();
        let mut last = first;
        for _ in 0..10_000 {
            fleet.nodes.iter().for_each(|node| node.saw_fence(last));
            let next = fleet.proposal(now).unwrap();
            assert!(next > last);
            last = next;
        }
        assert_eq!(last, first + 10_000);
    }

    #[test]
    fn a_node_far_ahead_does_not_set_the_proposal() {
        let fleet = fleet(3);
        let now = Moment::now();
        let usual = fleet.proposal(now).unwrap();
        fleet.nodes[1].saw_fence(usual + 2 * FENCE_OUTLIER);
        assert_eq!(fleet.proposal(now), Some(usual));
        fleet.nodes[2].saw_fence(usual + 100);
        assert_eq!(fleet.proposal(now), Some(usual + 101));
    }

    #[test]
    fn one_node_needs_no_proposal() {
        assert_eq!(fleet(1).proposal(Moment::now()), None);
    }
}
