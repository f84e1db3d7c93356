//! The search through every order of events, and the promises that must hold.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::*;

impl World {
    /// Two owners never hold the lock at the same time.
    fn check(&self) -> Result<(), String> {
        let holds = |owner: &&Owner| match owner.phase {
            Phase::Holding { valid_until, .. } => valid_until > at(self.now),
            _ => false,
        };
        if self.owners.iter().filter(holds).count() > 1 {
            Err("two holders at once".to_owned())
        } else {
            Ok(())
        }
    }

    /// Every world that may come next.
    fn next(&self, bounds: Bounds, flaw: Flaw, found: &mut Vec<World>) -> Result<(), String> {
        if self.now < bounds.ticks {
            let mut next = *self;
            next.now += 1;
            found.push(next);
        }
        for node in 0..NODES {
            self.next_of_node(node, bounds, flaw, found)?;
        }
        for owner in 0..OWNERS {
            self.next_of_owner(owner, bounds, flaw, found)?;
        }
        Ok(())
    }

    fn next_of_node(
        &self,
        node: usize,
        bounds: Bounds,
        flaw: Flaw,
        found: &mut Vec<World>,
    ) -> Result<(), String> {
        if let Some((holder, ..)) = self.columns[node].hold {
            if self.restarts < bounds.restarts {
                let mut next = *self;
                next.restarts += 1;
                let column = &mut next.columns[node];
                column.hold = None;
                match flaw {
                    Flaw::NoQuarantine => column.counter = 0,
                    // By then its clock has passed every fence that it gave out, so it is as if it
                    // knew them.
                    _ => column.quarantined_until = self.now + LEASE,
                }
                found.push(next);
            }
            if self.owners[holder].phase == Phase::Over || bounds.ticks == 0 {
                // A release arrives, or the lease is over.
                let mut next = *self;
                next.columns[node].hold = None;
                found.push(next);
            }
        }
        for owner in 0..OWNERS {
            if let Some(wire) = self.columns[node].views[owner].wire {
                let mut next = *self;
                next.columns[node].views[owner].wire = None;
                let answer = next.serve(owner, node, wire.ask, flaw);
                if self.losses < bounds.losses {
                    let mut lost = next;
                    lost.losses += 1;
                    found.push(lost);
                }
                if let Some(answer) = answer {
                    next.hear(owner, node, wire, answer, flaw)?;
                }
                found.push(next);
            }
        }
        Ok(())
    }

    fn next_of_owner(
        &self,
        owner: usize,
        bounds: Bounds,
        flaw: Flaw,
        found: &mut Vec<World>,
    ) -> Result<(), String> {
        let one = self.owners[owner];
        let mut next = *self;
        match one.phase {
            Phase::Over => return Ok(()),
            Phase::Idle => {
                // All owners are equal, so only this order is tried.
                if owner == 0 || self.owners[owner - 1].phase != Phase::Idle {
                    next.owners[owner].phase = Phase::Asking;
                    next.owners[owner].above = self.highest_won;
                    (0..NODES).for_each(|node| next.send(owner, node, Ask::Acquire));
                    found.push(next);
                }
                return Ok(());
            }
            Phase::Holding { fence, .. } if one.renewing => {
                next.conclude(owner, fence, bounds, flaw)?
            }
            Phase::Holding { fence, .. } if one.renewals < bounds.renewals => {
                next.renew(owner, fence)
            }
            _ => {}
        }
        found.push(next);
        // The owner gives up, or releases.
        let mut next = *self;
        next.over(owner);
        found.push(next);
        Ok(())
    }

    /// A hash of everything that tells worlds apart. It is small, so that all worlds fit into
    /// memory, and long enough that two worlds do not share one by chance.
    fn fingerprint(&self, hashing: &RandomState) -> u64 {
        let mut bytes = Vec::with_capacity(96);
        bytes.extend([self.now, self.restarts, self.losses, self.highest_won]);
        for column in &self.columns {
            let (holder, fence, end) = column.hold.unwrap_or((OWNERS, 0, 0));
            bytes.extend([column.counter, holder as u8, fence, end]);
            bytes.push(column.quarantined_until);
            for view in &column.views {
                let (ask, about) = match view.wire.map(|wire| wire.ask) {
                    None => (0, 0),
                    Some(Ask::Acquire) => (1, 0),
                    Some(Ask::Raise(fence)) => (2, fence),
                    Some(Ask::Extend(fence)) => (3, fence),
                    Some(Ask::Again(fence)) => (4, fence),
                };
                let sent = view.wire.map_or(0, |wire| wire.sent);
                let (said, fence, asked) = match view.said {
                    Said::Nothing => (0, 0, 0),
                    Said::Granted(fence, asked) => (1, fence, asked),
                    Said::Denied => (2, 0, 0),
                };
                bytes.extend([ask, about, sent, said, fence, asked]);
                bytes.push(u8::from(view.kept));
            }
        }
        for owner in &self.owners {
            let (phase, fence, until) = match owner.phase {
                Phase::Idle => (0, 0, 0),
                Phase::Asking => (1, 0, 0),
                Phase::Holding { fence, valid_until } => {
                    (2, fence, valid_until.since_boot().as_millis() as u16)
                }
                Phase::Over => (3, 0, 0),
            };
            bytes.extend([phase, fence, owner.above, owner.renewals]);
            let flags = [owner.renewing, owner.overtaken, owner.stale];
            bytes.extend(flags.map(u8::from));
            bytes.extend(until.to_ne_bytes());
        }
        hashing.hash_one(&bytes[..])
    }
}

/// Visits every world within the bounds. Returns how many there are, or the first broken promise.
fn walk(starts: &[World], flaw: Flaw, bounds: Bounds) -> Result<usize, String> {
    let hashing = RandomState::new();
    let mut open: Vec<World> = starts.iter().map(|start| start.canonical()).collect();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut found = Vec::new();
    while let Some(world) = open.pop() {
        if bounds.ticks > 0 {
            world.check()?;
        }
        world.next(bounds, flaw, &mut found)?;
        for next in found.drain(..).map(World::canonical) {
            if seen.insert(next.fingerprint(&hashing)) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

/// The start: nobody has asked yet. The counters agree, or need a write-back.
fn at_first() -> Vec<World> {
    vec![World::new([0, 0, 0]), World::new([2, 1, 0])]
}

/// The first owner has just won, with the grants of two or three nodes.
fn once_held() -> Vec<World> {
    let held = |nodes: usize| {
        let mut world = World::new([0, 0, 0]);
        for column in &mut world.columns[..nodes] {
            column.counter = 1;
            column.hold = Some((0, 1, LEASE));
            column.views[0].said = Said::Granted(1, 0);
            column.views[0].kept = true;
        }
        world.highest_won = 1;
        let valid_until = lease_end(at(0), TTL);
        world.owners[0].phase = Phase::Holding {
            fence: 1,
            valid_until,
        };
        world
    };
    vec![held(2), held(3)]
}

/// The same with two nodes, while its request to the third is still in flight.
fn once_held_with_a_late_request() -> Vec<World> {
    let mut world = once_held()[0];
    world.send(0, NODES - 1, Ask::Acquire);
    vec![world]
}

/// No clock: any lease may end at any moment.
const FENCES: Bounds = Bounds {
    ticks: 0,
    restarts: 0,
    renewals: 0,
    losses: 1,
};
const FENCES_AND_A_RESTART: Bounds = Bounds {
    restarts: 1,
    losses: 0,
    ..FENCES
};
/// No clock, and a holder that asks again: a lease may also be ended by force.
const FORCED: Bounds = Bounds {
    renewals: 1,
    losses: 0,
    ..FENCES
};
const RENEWALS: Bounds = Bounds {
    ticks: LEASE,
    restarts: 1,
    renewals: 2,
    losses: 0,
};
const A_RENEWAL_AND_A_LOSS: Bounds = Bounds {
    renewals: 1,
    losses: 1,
    ..RENEWALS
};

#[test]
fn fences_follow_the_order_of_holders_without_any_clock() {
    let worlds = walk(&at_first(), Flaw::None, FENCES).unwrap();
    assert!(worlds > 10_000, "only {worlds} worlds");
}

#[test]
fn holds_that_are_renewed_over_restarts_never_overlap() {
    let worlds = walk(&once_held(), Flaw::None, RENEWALS).unwrap();
    assert!(worlds > 10_000, "only {worlds} worlds");
}

#[test]
fn holds_that_are_renewed_though_answers_get_lost_never_overlap() {
    let worlds = walk(&once_held(), Flaw::None, A_RENEWAL_AND_A_LOSS).unwrap();
    assert!(worlds > 10_000, "only {worlds} worlds");
}

#[test]
fn holds_that_are_renewed_with_a_late_grant_never_overlap() {
    let worlds = walk(&once_held_with_a_late_request(), Flaw::None, RENEWALS).unwrap();
    assert!(worlds > 10_000, "only {worlds} worlds");
}

#[test]
fn a_holder_that_hears_from_all_nodes_is_told_that_another_one_has_won() {
    let starts = [once_held(), once_held_with_a_late_request()].concat();
    let worlds = walk(&starts, Flaw::None, FORCED).unwrap();
    assert!(worlds > 1_000, "only {worlds} worlds");
}

#[test]
fn the_walk_finds_what_comes_of_every_flaw() {
    for (flaw, starts, bounds, broken) in [
        (Flaw::NoWriteBack, at_first(), FENCES, "fence"),
        (Flaw::WriteBackAccepted, at_first(), FENCES, "fence"),
        (
            Flaw::NoQuarantine,
            at_first(),
            FENCES_AND_A_RESTART,
            "fence",
        ),
        (Flaw::NoQuarantine, once_held(), RENEWALS, "two holders"),
        (
            Flaw::LateGrantCounts,
            once_held(),
            RENEWALS,
            "was renewed after",
        ),
        (
            Flaw::SilenceCounts,
            once_held(),
            RENEWALS,
            "was renewed after",
        ),
        (
            Flaw::LateCounts,
            once_held_with_a_late_request(),
            FORCED,
            "was not notified",
        ),
    ] {
        let found = walk(&starts, flaw, bounds);
        let found = found.expect_err("a broken promise");
        assert!(found.contains(broken), "{flaw:?}: {found}");
    }
}
