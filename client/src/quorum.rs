//! Who has won: verdicts and clock readings in, a decision out. No I/O, no clock, no randomness.
//!
//! Of N nodes a majority must have *accepted* one fence T: granted exactly T, or raised their grant to T while
//! the token still held. Two such majorities share a node, which had one holder at a time, so the later of the two
//! was granted there above the earlier one's T. No clock takes part in that.
//!
//! How long a hold is valid needs less: at any moment before [`held_until`] a majority of nodes keeps a lease for the
//! token. A node that grants again later (after a restart, say) keeps such a lease as well as any, with a fence of
//! its own; so renewal counts leases, and only acquisition counts fences. The hold ends for good as soon as those that have
//! kept it are no majority: then somebody else may have been in between ([`is_kept`]).
//!
//! quorum_model.rs checks both over every order of events of a small deployment.

use std::time::Duration;

use crate::clock::Moment;

/// A set of nodes, by their place in the configuration.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct NodeSet(u64);

/// As many nodes as a [`NodeSet`] can tell apart.
pub(crate) const MAX_NODES: usize = 64;

impl NodeSet {
    pub(crate) fn insert(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let node = left.trailing_zeros() as usize;
            // Takes away the lowest one.
            left &= left.checked_sub(1)?;
            Some(node)
        })
    }
}

/// More than half of `nodes`.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Until when a lease surely lasts that was asked for at `sent`: clock rates may differ by 1 %, and 2 ms are for
/// clocks that tick in milliseconds. The only place where validity is computed.
pub(crate) fn lease_end(sent: Moment, ttl: Duration) -> Moment {
    let drift = ttl / 100 + Duration::from_millis(2);
    sent + ttl.saturating_sub(drift)
}

/// Until when a majority surely keeps its lease: the majority-th latest of the nodes' ends.
pub(crate) fn held_until(ends: impl Iterator<Item = Moment>, majority: usize) -> Option<Moment> {
    let mut ends: Vec<Moment> = ends.collect();
    if ends.len() < majority {
        return None;
    }
    ends.sort_unstable_by(|a, b| b.cmp(a));
    ends.get(majority - 1).copied()
}

/// Whether a hold goes on: a majority of the nodes has kept it all the time, and still does. `anew` are those that granted
/// it in the round of renewal under way: they count from the next one on, as somebody else may have held the lock
/// before they did.
pub(crate) fn is_kept(
    leases: impl Iterator<Item = (usize, Moment)>,
    anew: NodeSet,
    now: Moment,
    majority: usize,
) -> bool {
    let kept = leases.filter(|(node, end)| *end > now && !anew.contains(*node));
    kept.count() >= majority
}

/// What one node has said so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Vote {
    /// Asked, or being asked to raise its grant; nothing heard yet.
    Open,
    Granted {
        fence: u64,
        end: Moment,
    },
    Against,
}

/// What follows from the votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// More answers are needed.
    Open,
    /// A majority granted, with different fences: ask these nodes to raise theirs.
    WriteBack { fence: u64, to: NodeSet },
    /// A majority accepted `fence`; `accepted` holds it until `valid_until` at least.
    Won {
        fence: u64,
        valid_until: Moment,
        accepted: NodeSet,
    },
    /// No majority can come of this any more.
    Failed,
}

/// One attempt's votes.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    ttl: Duration,
    votes: Vec<Vote>,
}

impl Ballot {
    /// A ballot among `nodes`, of which `asked` are asked; the others count as against.
    pub(crate) fn new(nodes: usize, asked: NodeSet, ttl: Duration) -> Self {
        let vote = |node| match asked.contains(node) {
            true => Vote::Open,
            false => Vote::Against,
        };
        let votes = (0..nodes).map(vote).collect();
        Self { ttl, votes }
    }

    /// The node granted, or raised its grant, in answer to a command sent at `sent`.
    pub(crate) fn grant(&mut self, node: usize, fence: u64, sent: Moment) {
        let end = lease_end(sent, self.ttl);
        if let Some(vote) = self.votes.get_mut(node) {
            *vote = Vote::Granted { fence, end };
        }
    }

    /// The node refused, or did not answer in time.
    pub(crate) fn deny(&mut self, node: usize) {
        if let Some(vote) = self.votes.get_mut(node) {
            *vote = Vote::Against;
        }
    }

    /// The node is being asked (again): what it said before does not count until it answers.
    pub(crate) fn reopen(&mut self, node: usize) {
        if let Some(vote) = self.votes.get_mut(node) {
            *vote = Vote::Open;
        }
    }

    /// Who has not answered.
    pub(crate) fn open(&self) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Open))
    }

    /// Who has granted, whatever the fence.
    pub(crate) fn granted(&self) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Granted { .. }))
    }

    /// What the node granted, and how long its lease surely lasts.
    pub(crate) fn grant_of(&self, node: usize) -> Option<(u64, Moment)> {
        match self.votes.get(node) {
            Some(Vote::Granted { fence, end }) => Some((*fence, *end)),
            _ => None,
        }
    }

    fn select(&self, wanted: impl Fn(&Vote) -> bool) -> NodeSet {
        let mut set = NodeSet::default();
        for (node, vote) in self.votes.iter().enumerate() {
            if wanted(vote) {
                set.insert(node);
            }
        }
        set
    }

    fn accepted(&self, wanted: u64) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Granted { fence, .. } if *fence == wanted))
    }

    /// The lowest fence that a majority of the grants can still be raised to. A node whose clock runs far ahead, so
    /// that the others would refuse its fence, is thereby left out.
    fn common_fence(&self, majority: usize) -> Option<u64> {
        let mut fences: Vec<u64> = Vec::with_capacity(self.votes.len());
        for vote in &self.votes {
            if let Vote::Granted { fence, .. } = vote {
                fences.push(*fence);
            }
        }
        fences.sort_unstable();
        fences.get(majority - 1).copied()
    }

    /// What follows from the votes, at `now`.
    pub(crate) fn decide(&self, now: Moment) -> Decision {
        let majority = majority(self.votes.len());
        let Some(fence) = self.common_fence(majority) else {
            return match self.granted().len() + self.open().len() < majority {
                true => Decision::Failed,
                false => Decision::Open,
            };
        };
        let accepted = self.accepted(fence);
        let ends = accepted
            .iter()
            .filter_map(|node| Some(self.grant_of(node)?.1));
        match held_until(ends, majority) {
            Some(valid_until) if valid_until > now => Decision::Won {
                fence,
                valid_until,
                accepted,
            },
            Some(_) => Decision::Failed,
            None => Decision::WriteBack {
                fence,
                to: self.select(
                    |vote| matches!(vote, Vote::Granted { fence: low, .. } if *low < fence),
                ),
            },
        }
    }
}

#[cfg(test)]
#[path = "quorum_model.rs"]
mod model;
#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
