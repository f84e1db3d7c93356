//! Every order of events of a small deployment, walked through: three nodes, two owners, requests that take any time or
//! get lost, answers that get lost, leases that end, nodes that restart and forget.
//!
//! What decides is the code that the client runs: [`Ballot`], [`is_kept`], [`held_until`], [`lease_end`]. Around it are
//! the nodes' rules in a few lines, and a clock that ticks once a second. Each [`Flaw`] is a way to get the protocol
//! wrong; the walk has to find what comes of it.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::*;

const NODES: usize = 3;
const OWNERS: usize = 2;
/// A lease, and a quarantine, in ticks.
const LEASE: u8 = 2;
const TTL: Duration = Duration::from_secs(LEASE as u64);

/// What is built wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// A majority of grants is enough, whatever their fences.
    NoWriteBack,
    /// A node accepts a write-back though the token does not hold any more.
    WriteBackAccepted,
    /// A node that forgot grants at once, and counts from the beginning.
    NoQuarantine,
    /// A hold is renewed by whoever grants, whether it was kept or not.
    AnewCounts,
    /// Whether it was kept is asked only when a node has forgotten it, and not of nodes that say nothing.
    SilenceCounts,
}

/// How far the walk goes.
#[derive(Clone, Copy)]
struct Bounds {
    /// 0: no clock is relied on. Leases may end at any moment, and only the order of fences is promised.
    ticks: u8,
    restarts: u8,
    renewals: u8,
    /// Answers that get lost. A request that is never served is no loss: it may still arrive.
    losses: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ask {
    Acquire,
    /// The write-back.
    Raise(u8),
    /// Renewal of a grant with this fence.
    Extend(u8),
    /// Renewal at a node that has no grant: at least this fence.
    Again(u8),
}

/// A request on the way. Of a round that is over, requests that have not arrived never do: late, they could only make a
/// node keep a lease that nobody counts on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wire {
    ask: Ask,
    sent: u8,
}

/// What a node has said, as far as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    /// The fence, and when it was asked for.
    Granted(u8, u8),
    Denied,
}

/// What one owner knows of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct View {
    wire: Option<Wire>,
    said: Said,
    /// Granted in the round of renewal under way.
    anew: bool,
}

const UNASKED: View = View {
    wire: None,
    said: Said::Nothing,
    anew: false,
};

/// A node, and what the owners know of it. Nodes are alike, so their order does not matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Column {
    counter: u8,
    /// Who holds, with which fence, until when.
    hold: Option<(usize, u8, u8)>,
    quarantined_until: u8,
    views: [View; OWNERS],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Holding { fence: u8, valid_until: Moment },
    Over,
}

#[derive(Clone, Copy)]
struct Owner {
    phase: Phase,
    /// The highest fence of those who had won before this one asked.
    above: u8,
    renewing: bool,
    renewals: u8,
    /// Another one has won since this one did.
    overtaken: bool,
}

#[derive(Clone, Copy)]
struct World {
    now: u8,
    restarts: u8,
    losses: u8,
    highest_won: u8,
    columns: [Column; NODES],
    owners: [Owner; OWNERS],
}

fn at(tick: u8) -> Moment {
    Moment::at_millis(u64::from(tick) * 1_000)
}

impl World {
    fn new(counters: [u8; NODES]) -> Self {
        let column = |counter| Column {
            counter,
            hold: None,
            quarantined_until: 0,
            views: [UNASKED; OWNERS],
        };
        let owner = Owner {
            phase: Phase::Idle,
            above: 0,
            renewing: false,
            renewals: 0,
            overtaken: false,
        };
        Self {
            now: 0,
            restarts: 0,
            losses: 0,
            highest_won: 0,
            columns: counters.map(column),
            owners: [owner; OWNERS],
        }
    }

    /// The same for worlds that differ in nothing that matters: the order of nodes, holds that are over.
    fn canonical(mut self) -> Self {
        for column in &mut self.columns {
            column.hold = column.hold.filter(|(_, _, end)| *end > self.now);
            if column.quarantined_until <= self.now {
                column.quarantined_until = 0;
            }
        }
        self.columns.sort_unstable();
        self
    }

    fn send(&mut self, owner: usize, node: usize, ask: Ask) {
        self.columns[node].views[owner].wire = Some(Wire {
            ask,
            sent: self.now,
        });
    }

    /// The owner is done with the lock, or told that it is lost. What it holds is released, or runs out.
    fn over(&mut self, owner: usize) {
        self.owners[owner].phase = Phase::Over;
        self.owners[owner].renewing = false;
        for column in &mut self.columns {
            column.views[owner] = UNASKED;
        }
    }

    /// The node's rules, as the contract has them: yes with a fence, or no. `None`: it is quarantined.
    fn serve(&mut self, owner: usize, node: usize, ask: Ask, flaw: Flaw) -> Option<Option<u8>> {
        let column = &mut self.columns[node];
        if self.now < column.quarantined_until {
            return None;
        }
        let end = self.now + LEASE;
        let granted = match (ask, column.hold) {
            (Ask::Raise(fence), Some((holder, known, _))) if holder == owner => known.max(fence),
            (Ask::Raise(fence), _) if flaw == Flaw::WriteBackAccepted => {
                column.counter = column.counter.max(fence);
                return Some(Some(fence));
            }
            (_, Some((holder, fence, _))) if holder == owner => fence,
            (Ask::Again(fence), None) => fence.max(column.counter + 1),
            (Ask::Acquire, None) => column.counter + 1,
            _ => return Some(None),
        };
        column.hold = Some((owner, granted, end));
        column.counter = column.counter.max(granted);
        Some(Some(granted))
    }

    /// An answer arrives. `Err`: a promise is broken.
    fn hear(
        &mut self,
        owner: usize,
        node: usize,
        wire: Wire,
        answer: Option<u8>,
        flaw: Flaw,
    ) -> Result<(), String> {
        let view = &mut self.columns[node].views[owner];
        match (wire.ask, answer) {
            (Ask::Raise(wanted) | Ask::Extend(wanted), Some(fence)) if fence == wanted => {
                view.said = Said::Granted(fence, wire.sent);
            }
            (Ask::Acquire | Ask::Again(_), Some(fence)) => {
                view.said = Said::Granted(fence, wire.sent);
                view.anew = wire.ask != Ask::Acquire;
            }
            (Ask::Extend(_), _) => {
                view.said = Said::Nothing;
                self.forgot(owner, node, flaw);
            }
            (Ask::Again(_), None) => {}
            _ => view.said = Said::Denied,
        }
        match self.owners[owner].phase {
            Phase::Asking => self.decide(owner, flaw),
            _ => Ok(()),
        }
    }

    /// A node does not know the hold that was to be renewed.
    fn forgot(&mut self, owner: usize, node: usize, flaw: Flaw) {
        let Phase::Holding { fence, .. } = self.owners[owner].phase else {
            return;
        };
        match self.is_kept(owner) || flaw == Flaw::AnewCounts {
            true => self.send(owner, node, Ask::Again(fence)),
            false => self.over(owner),
        }
    }

    fn decide(&mut self, owner: usize, flaw: Flaw) -> Result<(), String> {
        let mut everybody = NodeSet::default();
        (0..NODES).for_each(|node| everybody.insert(node));
        let mut ballot = Ballot::new(NODES, everybody, TTL);
        for (node, column) in self.columns.iter().enumerate() {
            match column.views[owner].said {
                Said::Granted(fence, sent) => ballot.grant(node, u64::from(fence), at(sent)),
                Said::Denied => ballot.deny(node),
                _ => {}
            }
        }
        match ballot.decide(at(self.now)) {
            Decision::Open => {}
            Decision::Failed => self.over(owner),
            Decision::Won {
                fence, valid_until, ..
            } => self.won(owner, fence as u8, valid_until)?,
            Decision::WriteBack { .. } if flaw == Flaw::NoWriteBack => {
                let granted = ballot.granted();
                let grants = || granted.iter().filter_map(|node| ballot.grant_of(node));
                let fence = grants().map(|grant| grant.0).max().unwrap_or(0);
                let until = held_until(grants().map(|grant| grant.1), majority(NODES));
                self.won(owner, fence as u8, until.unwrap_or(at(0)))?;
            }
            Decision::WriteBack { fence, to } => {
                for node in to.iter() {
                    self.columns[node].views[owner].said = Said::Nothing;
                    self.send(owner, node, Ask::Raise(fence as u8));
                }
            }
        }
        Ok(())
    }

    fn won(&mut self, owner: usize, fence: u8, valid_until: Moment) -> Result<(), String> {
        if fence <= self.owners[owner].above {
            return Err(format!("fence {fence} after {}", self.owners[owner].above));
        }
        for (other, one) in self.owners.iter_mut().enumerate() {
            if other != owner
                && let Phase::Holding { fence: known, .. } = one.phase
            {
                one.overtaken = true;
                if known == fence {
                    return Err(format!("fence {fence} was given twice"));
                }
            }
        }
        self.highest_won = self.highest_won.max(fence);
        self.owners[owner].phase = Phase::Holding { fence, valid_until };
        for column in &mut self.columns {
            let view = &mut column.views[owner];
            if view.said == Said::Denied {
                view.said = Said::Nothing;
            }
            // A grant that comes now is as good as the others; a raise is not waited for.
            view.wire = view.wire.filter(|wire| wire.ask == Ask::Acquire);
        }
        Ok(())
    }

    fn leases(&self, owner: usize) -> impl Iterator<Item = (usize, Moment)> {
        let said = self
            .columns
            .iter()
            .map(move |column| column.views[owner].said);
        said.enumerate().filter_map(|(node, said)| match said {
            Said::Granted(_, sent) => Some((node, lease_end(at(sent), TTL))),
            _ => None,
        })
    }

    fn is_kept(&self, owner: usize) -> bool {
        let mut anew = NodeSet::default();
        for (node, column) in self.columns.iter().enumerate() {
            if column.views[owner].anew {
                anew.insert(node);
            }
        }
        is_kept(self.leases(owner), anew, at(self.now), majority(NODES))
    }

    fn renew(&mut self, owner: usize, fence: u8) {
        self.owners[owner].renewing = true;
        self.owners[owner].renewals += 1;
        for node in 0..NODES {
            let view = self.columns[node].views[owner];
            if view.wire.is_none() {
                let ask = match view.said {
                    Said::Granted(known, _) => Ask::Extend(known),
                    _ => Ask::Again(fence),
                };
                self.send(owner, node, ask);
            }
        }
    }

    /// The round of renewal is over: everybody has answered, or the time is up.
    fn conclude(&mut self, owner: usize, fence: u8, flaw: Flaw) -> Result<(), String> {
        let kept = self.is_kept(owner) || matches!(flaw, Flaw::AnewCounts | Flaw::SilenceCounts);
        let until = held_until(self.leases(owner).map(|lease| lease.1), majority(NODES));
        let Some(valid_until) = until.filter(|until| kept && *until > at(self.now)) else {
            self.over(owner);
            return Ok(());
        };
        if self.owners[owner].overtaken {
            return Err(format!("{fence} was renewed after another one had won"));
        }
        self.owners[owner].phase = Phase::Holding { fence, valid_until };
        self.owners[owner].renewing = false;
        for column in &mut self.columns {
            let view = &mut column.views[owner];
            view.anew = false;
            view.wire = view.wire.filter(|wire| wire.ask == Ask::Acquire);
        }
        Ok(())
    }

    /// Two owners are never told at once that they hold the lock.
    fn check(&self) -> Result<(), String> {
        let holds = |owner: &&Owner| matches!(owner.phase, Phase::Holding { valid_until, .. } if valid_until > at(self.now));
        match self.owners.iter().filter(holds).count() > 1 {
            true => Err("two holders at once".to_owned()),
            false => Ok(()),
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
                    // Its clock has passed by then whatever it gave out, so it is as if it knew.
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
                // Owners are alike: they come in this order.
                if owner == 0 || self.owners[owner - 1].phase != Phase::Idle {
                    next.owners[owner].phase = Phase::Asking;
                    next.owners[owner].above = self.highest_won;
                    (0..NODES).for_each(|node| next.send(owner, node, Ask::Acquire));
                    found.push(next);
                }
                return Ok(());
            }
            Phase::Holding { fence, .. } if one.renewing => next.conclude(owner, fence, flaw)?,
            Phase::Holding { fence, .. } if one.renewals < bounds.renewals => {
                next.renew(owner, fence)
            }
            _ => {}
        }
        found.push(next);
        // It gives up, or releases.
        let mut next = *self;
        next.over(owner);
        found.push(next);
        Ok(())
    }

    /// All that tells worlds apart, in a number: so many worlds fit into memory, and two do not share one by chance.
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
                bytes.push(u8::from(view.anew));
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
            bytes.extend([u8::from(owner.renewing), u8::from(owner.overtaken)]);
            bytes.extend(until.to_ne_bytes());
        }
        hashing.hash_one(&bytes[..])
    }
}

/// Walks through every world within the bounds, and returns how many there are, or the first broken promise.
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

/// Nobody has asked yet. Counters that agree, and such that need a write-back.
fn at_first() -> Vec<World> {
    vec![World::new([0, 0, 0]), World::new([2, 1, 0])]
}

/// The first owner has just won, by the grants of two nodes or of three.
fn once_held() -> Vec<World> {
    let held = |nodes: usize| {
        let mut world = World::new([0, 0, 0]);
        for column in &mut world.columns[..nodes] {
            column.counter = 1;
            column.hold = Some((0, 1, LEASE));
            column.views[0].said = Said::Granted(1, 0);
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
        (Flaw::AnewCounts, once_held(), RENEWALS, "was renewed after"),
        (
            Flaw::SilenceCounts,
            once_held(),
            RENEWALS,
            "was renewed after",
        ),
    ] {
        let found = walk(&starts, flaw, bounds);
        let found = found.expect_err("a broken promise");
        assert!(found.contains(broken), "{flaw:?}: {found}");
    }
}
