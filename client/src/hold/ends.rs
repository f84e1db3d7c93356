//! The latest ends of the leases of a hold: MAXHOLD, and the limit `lock.max-hold` of each node.

use std::time::Duration;

use crate::command::SHORTEST;
use crate::host::Moment;
use crate::quorum::majority;

/// See the documentation of this module.
pub(crate) struct Ends {
    /// MAXHOLD: no lease may end later.
    all: Option<Moment>,
    /// The limits that nodes have reported. Each applies only to its node.
    nodes: Vec<Option<Moment>>,
}

impl Ends {
    pub(crate) fn new(nodes: usize, all: Option<Moment>) -> Self {
        let nodes = vec![None; nodes];
        Self { all, nodes }
    }

    /// The node has refused a lease that would end later.
    pub(crate) fn tell(&mut self, node: usize, end: Moment) {
        if let Some(told) = self.nodes.get_mut(node) {
            *told = Some(told.map_or(end, |before| before.min(end)));
        }
    }

    /// The node has no record of the hold any more: its next grant is a new hold.
    pub(crate) fn forget(&mut self, node: usize) {
        if let Some(told) = self.nodes.get_mut(node) {
            *told = None;
        }
    }

    /// The longest lease for a new grant of a node, at `now`.
    pub(crate) fn lease_of_new_grant(
        &self,
        lease: Duration,
        now: Moment,
        node_timeout: Duration,
    ) -> Duration {
        capped(lease, self.all, now, node_timeout).max(SHORTEST)
    }

    /// The longest lease that an extension may ask this node for, at `now`. A node whose limit has
    /// passed is asked as if it had none: it has no record of the hold, and may grant it again.
    pub(crate) fn lease_at(
        &self,
        node: usize,
        lease: Duration,
        now: Moment,
        node_timeout: Duration,
    ) -> Duration {
        let told = self.nodes.get(node).copied().flatten();
        let told = told.filter(|end| *end > now);
        let ends = [self.all, told].into_iter().flatten();
        capped(lease, ends.min(), now, node_timeout).max(SHORTEST)
    }

    /// The longest extension that a majority can grant, at `now`: none once the hold has to end.
    pub(crate) fn longest(&self, lease: Duration, now: Moment, node_timeout: Duration) -> Duration {
        let leases = self.nodes.iter().map(|told| {
            let ends = [self.all, *told].into_iter().flatten();
            capped(lease, ends.min(), now, node_timeout)
        });
        let mut leases: Vec<Duration> = leases.collect();
        leases.sort_unstable();
        let place = leases.len().checked_sub(majority(leases.len()));
        place.map_or(lease, |place| leases[place])
    }
}

/// The last leases are shorter, also by the time that a request may take to arrive: nodes refuse a
/// lease that would end too late. Until the end, nodes can be asked whether they still have the
/// hold.
fn capped(lease: Duration, end: Option<Moment>, now: Moment, node_timeout: Duration) -> Duration {
    let Some(end) = end else {
        return lease;
    };
    let shortest = SHORTEST.min(end.since(now));
    lease.min(end.minus(node_timeout).since(now).max(shortest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(10_000);
    const TIMEOUT: Duration = Duration::from_millis(50);

    fn at(millis: u64) -> Moment {
        Moment::at_millis(millis)
    }

    fn lease(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_node_that_has_to_end_the_hold_does_not_end_it_at_the_others() {
        let mut ends = Ends::new(3, None);
        ends.tell(2, at(5_000));
        for now in [at(0), at(4_990), at(5_000), at(60_000)] {
            assert_eq!(ends.longest(TTL, now, TIMEOUT), TTL);
            assert_eq!(ends.lease_at(0, TTL, now, TIMEOUT), TTL);
        }
        assert_eq!(ends.lease_at(2, TTL, at(1_000), TIMEOUT), lease(3_950));
        assert_eq!(ends.lease_at(2, TTL, at(4_990), TIMEOUT), SHORTEST);
        // It has no record of the hold by then.
        assert_eq!(ends.lease_at(2, TTL, at(5_000), TIMEOUT), TTL);
        ends.forget(2);
        assert_eq!(ends.lease_at(2, TTL, at(1_000), TIMEOUT), TTL);
    }

    #[test]
    fn a_hold_ends_when_no_majority_can_go_on() {
        let mut ends = Ends::new(3, None);
        ends.tell(0, at(5_000));
        ends.tell(2, at(7_000));
        assert_eq!(ends.longest(TTL, at(1_000), TIMEOUT), lease(5_950));
        assert_eq!(ends.longest(TTL, at(5_000), TIMEOUT), lease(1_950));
        assert!(ends.longest(TTL, at(7_000), TIMEOUT) < SHORTEST);
        let mut one = Ends::new(1, None);
        one.tell(0, at(5_000));
        assert_eq!(one.longest(TTL, at(1_000), TIMEOUT), lease(3_950));
        assert!(one.longest(TTL, at(5_000), TIMEOUT) < SHORTEST);
    }

    #[test]
    fn maxhold_ends_it_everywhere() {
        let mut ends = Ends::new(3, Some(at(5_000)));
        ends.tell(1, at(9_000));
        for node in 0..3 {
            assert_eq!(ends.lease_at(node, TTL, at(1_000), TIMEOUT), lease(3_950));
        }
        assert_eq!(ends.longest(TTL, at(1_000), TIMEOUT), lease(3_950));
        assert!(ends.longest(TTL, at(5_000), TIMEOUT) < SHORTEST);
    }
}
