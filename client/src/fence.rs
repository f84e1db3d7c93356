//! Which fence to propose, so that nodes whose clocks and counters differ grant the same one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Moment;

/// A proposal leads the nodes' clocks by so much: more than the time a request takes. It leads
/// their counters by one only, or many grants a second would drive it away from the clocks.
const LEAD: Duration = Duration::from_millis(10);
/// A node whose clock or counter is this far above the middle one does not set the proposal: the
/// others refuse what is 10 s ahead of their clocks.
const OUTLIER: Duration = Duration::from_secs(5);

/// The fence that a node gives out when its wall clock shows this: its microseconds.
fn fence_at(wall: Duration) -> u64 {
    u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)
}

/// What is known of the clock and the counter of a node.
#[derive(Default)]
pub(crate) struct FenceClock {
    /// The fence of the node's wall clock when our host started.
    at_boot: AtomicU64,
    /// The highest fence that the node is known to have given out.
    counter: AtomicU64,
}

impl FenceClock {
    /// The node's wall clock showed this when our host started.
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

    /// A fence that the node would grant as it is.
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
mod tests {
    use super::*;

    fn clocks(nodes: usize) -> Vec<FenceClock> {
        (0..nodes).map(|_| FenceClock::default()).collect()
    }

    #[test]
    fn proposals_grow_and_many_grants_do_not_drive_them_away_from_the_clocks() {
        let nodes = clocks(5);
        let now = Moment::now();
        let first = proposal(nodes.iter(), now).unwrap();
        let mut last = first;
        for _ in 0..10_000 {
            nodes.iter().for_each(|node| node.saw(last));
            let next = proposal(nodes.iter(), now).unwrap();
            assert!(next > last);
            last = next;
        }
        assert_eq!(last, first + 10_000);
    }

    #[test]
    fn a_node_far_ahead_does_not_set_the_proposal() {
        let nodes = clocks(3);
        let now = Moment::now();
        let usual = proposal(nodes.iter(), now).unwrap();
        nodes[1].saw(usual + 2 * fence_at(OUTLIER));
        assert_eq!(proposal(nodes.iter(), now), Some(usual));
        nodes[2].saw(usual + 100);
        assert_eq!(proposal(nodes.iter(), now), Some(usual + 101));
    }

    #[test]
    fn one_node_needs_no_proposal() {
        assert_eq!(proposal(clocks(1).iter(), Moment::now()), None);
    }
}
