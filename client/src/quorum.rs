//! Decides whether an owner has won, from verdicts and clock readings. No I/O, no clock, no
//! randomness.
//!
//! A majority of the N nodes must have *accepted* one fence T: granted exactly T, or raised their
//! grant to T while the token still held the lock. Two such majorities share a node, which had one
//! holder at a time. So this node granted the later owner a fence above the earlier owner's T. This
//! argument needs no clock.
//!
//! Validity needs less: at any moment before [`Leases::claim`], a majority of nodes keeps a lease
//! for the token. A node that grants again later (for example, after a restart) also keeps such a
//! lease, with its own fence. So renewal counts leases, and only acquisition counts fences.
//!
//! [`proposal`] chooses the fence to ask for, so that nodes whose clocks and counters differ grant
//! the same one.
//!
//! `model.rs` checks both for every order of events in a small deployment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::host::Moment;
#[cfg(feature = "simulation")]
use crate::simulation::{Flaw, has};

/// A set of nodes, by their place in the configuration.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct NodeSet(u64);

/// The most nodes that a [`NodeSet`] can hold.
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

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let node = left.trailing_zeros() as usize;
            // Removes the lowest one.
            left &= left.checked_sub(1)?;
            Some(node)
        })
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::default();
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

/// More than half of `nodes`.
pub(crate) fn majority(nodes: usize) -> usize {
    #[cfg(feature = "simulation")]
    if nodes > 1 && has(Flaw::HalfIsEnough) {
        return nodes / 2;
    }
    nodes / 2 + 1
}

/// Whether this many of `nodes` are not a majority.
pub(crate) fn is_shortage(count: usize, nodes: usize) -> bool {
    count < majority(nodes)
}

/// A fence this far above another, in µs, comes from a clock that is wrong: nodes refuse what is
/// 10 s ahead of theirs.
const FAR_AHEAD: u64 = 5_000_000;

const TICK: Duration = Duration::from_millis(2);

/// The certain end of a lease that was requested at `sent`: clock rates may differ by 1 %, and
/// [`TICK`] allows for clocks with a resolution of a millisecond. This is the only place where
/// validity is computed.
pub(crate) fn lease_end(sent: Moment, ttl: Duration) -> Moment {
    #[cfg(feature = "simulation")]
    if has(Flaw::NoDriftAllowance) {
        return sent + ttl;
    }
    #[cfg(feature = "simulation")]
    let sent = if has(Flaw::ValidFromReply) {
        Moment::now()
    } else {
        sent
    };
    sent + ttl.saturating_sub(ttl / 100 + TICK)
}

/// The lease to ask for so that it is certainly valid for `span`: it adds what [`lease_end`]
/// subtracts.
pub(crate) fn lease_for(span: Duration) -> Duration {
    (span + TICK) * 100 / 99
}

/// Until when a majority certainly keeps its lease: the majority-th latest end of all nodes.
pub(crate) fn held_until(
    ends: impl Iterator<Item = Moment> + Clone,
    majority: usize,
) -> Option<Moment> {
    let lasting = |end: &Moment| ends.clone().filter(|other| other >= end).count();
    ends.clone().filter(|end| lasting(end) >= majority).max()
}

/// The lease that one node has granted to a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lease {
    pub(crate) fence: u64,
    /// Its certain end.
    pub(crate) end: Moment,
    /// Whether no other owner can have won with the help of this node since the hold began.
    kept: bool,
}

/// The leases of one hold, and the validity that follows from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Leases {
    /// The fence that a majority accepted when the hold began.
    fence: u64,
    nodes: Vec<Option<Lease>>,
}

impl Leases {
    pub(crate) fn new(nodes: usize, fence: u64) -> Self {
        let nodes = vec![None; nodes];
        Self { fence, nodes }
    }

    /// The node granted or extended with this fence, for a lease that lasts until `end`.
    ///
    /// A grant with the fence of the hold counts like the first ones, however late it arrives: a
    /// node that took part in a later hold would have answered with a higher fence. Any other grant
    /// may have come after somebody else's hold, so it counts only after the next [`confirm`].
    ///
    /// [`confirm`]: Leases::confirm
    pub(crate) fn grant(&mut self, node: usize, fence: u64, end: Moment) {
        let Some(lease) = self.nodes.get_mut(node) else {
            return;
        };
        *lease = Some(match *lease {
            Some(known) if known.fence == fence => Lease {
                end: known.end.max(end),
                ..known
            },
            _ => Lease {
                fence,
                end,
                kept: fence == self.fence,
            },
        });
    }

    /// The node has no record of the hold any more.
    pub(crate) fn forget(&mut self, node: usize) {
        if let Some(lease) = self.nodes.get_mut(node) {
            *lease = None;
        }
    }

    pub(crate) fn of(&self, node: usize) -> Option<Lease> {
        self.nodes.get(node).copied().flatten()
    }

    /// Until when the hold is valid, or `None` if it is lost permanently. Only this function
    /// decides it. A majority must have kept its leases all the time, and must still keep them;
    /// otherwise another owner may have won in between.
    pub(crate) fn claim(&self, now: Moment) -> Option<Moment> {
        let kept = self.nodes.iter().flatten().filter(|lease| lease.kept);
        let until = held_until(kept.map(|lease| lease.end), majority(self.nodes.len()));
        until.filter(|until| *until > now)
    }

    /// A round is over. If the hold is still valid, nobody else has won until now, so all current
    /// leases count from here on.
    pub(crate) fn confirm(&mut self, now: Moment) -> Option<Moment> {
        self.claim(now)?;
        for lease in self.nodes.iter_mut().flatten() {
            lease.kept = true;
        }
        self.claim(now)
    }
}

/// The vote of one node so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Vote {
    /// It was asked to grant or to raise its grant, and has not answered yet.
    Open,
    Granted {
        fence: u64,
        end: Moment,
    },
    Against,
}

/// The result of the votes.
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
    /// A majority is not possible any more.
    Failed,
}

/// One attempt's votes.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    votes: Vec<Vote>,
}

impl Ballot {
    /// A ballot of `nodes` nodes. Those in `asked` are asked; the others count as against.
    pub(crate) fn new(nodes: usize, asked: NodeSet) -> Self {
        let vote = |node| {
            if asked.contains(node) {
                Vote::Open
            } else {
                Vote::Against
            }
        };
        let votes = (0..nodes).map(vote).collect();
        Self { votes }
    }

    /// The node granted, or raised its grant, for a lease that lasts until `end`.
    pub(crate) fn grant(&mut self, node: usize, fence: u64, end: Moment) {
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

    /// The node is being asked again: its earlier answer does not count until it replies.
    pub(crate) fn reopen(&mut self, node: usize) {
        if let Some(vote) = self.votes.get_mut(node) {
            *vote = Vote::Open;
        }
    }

    /// The nodes that have not answered.
    pub(crate) fn open(&self) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Open))
    }

    /// The nodes that have granted, with any fence.
    pub(crate) fn granted(&self) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Granted { .. }))
    }

    /// The fence that the node granted, and the certain end of its lease.
    pub(crate) fn grant_of(&self, node: usize) -> Option<(u64, Moment)> {
        match self.votes.get(node) {
            Some(Vote::Granted { fence, end }) => Some((*fence, *end)),
            _ => None,
        }
    }

    fn select(&self, wanted: impl Fn(&Vote) -> bool) -> NodeSet {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| wanted(vote))
            .map(|(node, _)| node)
            .collect()
    }

    fn accepted(&self, wanted: u64) -> NodeSet {
        self.select(|vote| matches!(vote, Vote::Granted { fence, .. } if *fence == wanted))
    }

    /// The lowest fence that a majority of the grants can still be raised to. This leaves out a
    /// node whose clock is far ahead, because the others would refuse its fence.
    fn common_fence(&self, majority: usize) -> Option<u64> {
        let fences = self.votes.iter().filter_map(|vote| match vote {
            Vote::Granted { fence, .. } => Some(*fence),
            _ => None,
        });
        let below = |fence: &u64| fences.clone().filter(|other| other <= fence).count();
        fences
            .clone()
            .filter(|fence| below(fence) >= majority)
            .min()
    }

    /// Whether a node that has granted is likely to refuse to raise its grant that far, because the
    /// fence comes from a clock that is far ahead. A later answer may make the raise unnecessary.
    fn would_refuse(&self, raised: u64) -> bool {
        self.votes.iter().any(|vote| {
            matches!(vote, Vote::Granted { fence, .. } if raised.saturating_sub(*fence) > FAR_AHEAD)
        })
    }

    /// What follows from the votes, at `now`.
    pub(crate) fn decide(&self, now: Moment) -> Decision {
        let majority = majority(self.votes.len());
        let Some(fence) = self.common_fence(majority) else {
            return if self.granted().len() + self.open().len() < majority {
                Decision::Failed
            } else {
                Decision::Open
            };
        };
        #[cfg(feature = "simulation")]
        let accepted = if has(Flaw::NoWriteBack) {
            self.granted()
        } else {
            self.accepted(fence)
        };
        #[cfg(not(feature = "simulation"))]
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
            None if !self.open().is_empty() && self.would_refuse(fence) => Decision::Open,
            None => Decision::WriteBack {
                fence,
                to: self.select(
                    |vote| matches!(vote, Vote::Granted { fence: low, .. } if *low < fence),
                ),
            },
        }
    }
}

/// A proposal is this far ahead of the nodes' clocks: more than the time that a request takes. It
/// is only one ahead of their counters; otherwise many grants a second would move it away from the
/// clocks.
const LEAD: Duration = Duration::from_millis(10);
/// A node whose clock or counter is this far above the median does not set the proposal: the others
/// refuse a fence that is 10 s ahead of their clocks.
const OUTLIER: Duration = Duration::from_secs(5);

/// The fence that a node gives out at this time of its wall clock: the microseconds.
fn fence_at(wall: Duration) -> u64 {
    u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)
}

/// What is known about the clock and the counter of a node.
#[derive(Default)]
pub(crate) struct FenceClock {
    /// The fence of the node's wall clock when our host started.
    at_boot: AtomicU64,
    /// The highest fence that the node is known to have given out.
    counter: AtomicU64,
}

impl FenceClock {
    /// The node's wall clock had this time when our host started.
    pub(crate) fn set(&self, wall_at_boot: Duration) {
        let fence = fence_at(wall_at_boot);
        self.at_boot.store(fence, Ordering::Relaxed);
    }

    /// The node has given out this fence.
    pub(crate) fn saw(&self, fence: u64) {
        self.counter.fetch_max(fence, Ordering::Relaxed);
    }

    /// The node's wall clock at `now`, as far as it is known.
    pub(crate) fn wall(&self, now: Moment) -> Duration {
        let at_boot = Duration::from_micros(self.at_boot.load(Ordering::Relaxed));
        at_boot.saturating_add(now.since_boot())
    }

    /// A fence that the node would grant unchanged.
    fn next(&self, now: Moment) -> u64 {
        let counter = self.counter.load(Ordering::Relaxed);
        fence_at(self.wall(now).saturating_add(LEAD)).max(counter.saturating_add(1))
    }
}

/// A fence above everything that the nodes are known to have given out; none is needed for one
/// node.
pub(crate) fn proposal<'a>(
    nodes: impl ExactSizeIterator<Item = &'a FenceClock>,
    now: Moment,
) -> Option<u64> {
    if nodes.len() == 1 {
        return None;
    }
    let mut fences: Vec<u64> = nodes.map(|node| node.next(now)).collect();
    fences.sort_unstable();
    let middle = fences.get(fences.len() / 2).copied().unwrap_or(0);
    let bound = middle.saturating_add(fence_at(OUTLIER));
    fences.into_iter().rfind(|fence| *fence <= bound)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
