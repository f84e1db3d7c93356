//! A model check: every order of events in a small deployment, with three nodes, two owners,
//! requests that take any time or get lost, answers that get lost, leases that end, and nodes that
//! restart and lose their state.
//!
//! The decisions come from the code that the client runs: [`Ballot`], [`Leases`], [`held_until`],
//! [`lease_end`]. The model adds the nodes' rules in a few lines, and a clock that ticks once a
//! second. Each [`Flaw`] is a way to get the protocol wrong; the search must find its consequences.

mod walk;

use super::*;

const NODES: usize = 3;
const OWNERS: usize = 2;
/// A lease, and a quarantine, in ticks.
const LEASE: u8 = 2;
const TTL: Duration = Duration::from_secs(LEASE as u64);

/// A protection that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// A majority of grants is enough, whatever their fences.
    NoWriteBack,
    /// A node accepts a write-back although the token does not hold the lock any more.
    WriteBackAccepted,
    /// A node that lost its state grants at once, and its counter starts again.
    NoQuarantine,
    /// A hold is renewed by every node that grants, whether it kept the hold or not.
    LateGrantCounts,
    /// The hold is checked only when a node has no record of it, not when nodes do not answer.
    SilenceCounts,
    /// An answer to the acquisition that comes late counts as kept, whatever its fence.
    LateCounts,
}

/// The bounds of the search.
#[derive(Clone, Copy)]
struct Bounds {
    /// 0 means that no clock is used: leases may end at any moment, and only the order of fences is
    /// promised.
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
    /// Renewal at a node that has no grant, with at least this fence.
    Again(u8),
}

/// A request in flight. When a round is over, its requests that have not arrived never do: they
/// could only make a node keep a lease that nobody relies on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wire {
    ask: Ask,
    sent: u8,
}

/// The last answer of a node that arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    /// The fence, and when it was asked for.
    Granted(u8, u8),
    Denied,
}

/// What one owner knows about one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct View {
    wire: Option<Wire>,
    said: Said,
    /// What it granted counts as kept: see [`Leases::grant`].
    kept: bool,
}

const UNASKED: View = View {
    wire: None,
    said: Said::Nothing,
    kept: false,
};

/// A node, and what the owners know about it. All nodes are equal, so their order does not matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Column {
    counter: u8,
    /// The holder, its fence, and the end of its lease.
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
    /// The highest fence of all owners that had won before this owner asked.
    above: u8,
    renewing: bool,
    renewals: u8,
    /// Another owner has won since this one did.
    overtaken: bool,
    /// The same, at the start of the current round of renewal.
    stale: bool,
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
            stale: false,
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

    /// A canonical form: equal for worlds that differ only in the order of nodes, or in holds that
    /// are over.
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

    /// The owner has finished with the lock, or was notified of its loss. Its holds are released,
    /// or their leases end.
    fn over(&mut self, owner: usize) {
        self.owners[owner].phase = Phase::Over;
        self.owners[owner].renewing = false;
        for column in &mut self.columns {
            column.views[owner] = UNASKED;
        }
    }

    /// The rules of a node: yes with a fence, or no. `None` if it is in quarantine.
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

    /// An answer arrives. Returns an error if a promise is broken.
    fn hear(
        &mut self,
        owner: usize,
        node: usize,
        wire: Wire,
        answer: Option<u8>,
        flaw: Flaw,
    ) -> Result<(), String> {
        match (wire.ask, answer) {
            (Ask::Raise(wanted) | Ask::Extend(wanted), Some(fence)) if fence == wanted => {
                self.granted(owner, node, fence, wire, flaw);
            }
            (Ask::Acquire | Ask::Again(_), Some(fence)) => {
                self.granted(owner, node, fence, wire, flaw);
            }
            (Ask::Extend(_), _) => {
                self.columns[node].views[owner].said = Said::Nothing;
                self.forgot(owner, node, flaw);
            }
            (Ask::Again(_), None) => {}
            _ => self.columns[node].views[owner].said = Said::Denied,
        }
        match self.owners[owner].phase {
            Phase::Asking => self.decide(owner, flaw),
            _ => Ok(()),
        }
    }

    fn granted(&mut self, owner: usize, node: usize, fence: u8, wire: Wire, flaw: Flaw) {
        let mut leases = self.leases(owner);
        leases.grant(node, u64::from(fence), lease_end(at(wire.sent), TTL));
        let late = wire.ask == Ask::Acquire && flaw == Flaw::LateCounts;
        let view = &mut self.columns[node].views[owner];
        view.said = Said::Granted(fence, wire.sent);
        view.kept = leases.of(node).is_some_and(|lease| lease.kept) || late;
    }

    /// A node has no record of the hold that was to be renewed.
    fn forgot(&mut self, owner: usize, node: usize, flaw: Flaw) {
        let Phase::Holding { fence, .. } = self.owners[owner].phase else {
            return;
        };
        let kept = self.leases(owner).claim(at(self.now)).is_some();
        if kept || flaw == Flaw::LateGrantCounts {
            self.send(owner, node, Ask::Again(fence));
        } else {
            self.over(owner);
        }
    }

    fn decide(&mut self, owner: usize, flaw: Flaw) -> Result<(), String> {
        let mut everybody = NodeSet::default();
        (0..NODES).for_each(|node| everybody.insert(node));
        let mut ballot = Ballot::new(NODES, everybody);
        for (node, column) in self.columns.iter().enumerate() {
            match column.views[owner].said {
                Said::Granted(fence, sent) => {
                    ballot.grant(node, u64::from(fence), lease_end(at(sent), TTL));
                }
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
            match view.said {
                Said::Denied => view.said = Said::Nothing,
                Said::Granted(known, _) => view.kept = known == fence,
                Said::Nothing => {}
            }
            // A grant that arrives now counts like the others; the owner does not wait for a raise.
            view.wire = view.wire.filter(|wire| wire.ask == Ask::Acquire);
        }
        Ok(())
    }

    /// The leases of the owner, in the client's own type.
    fn leases(&self, owner: usize) -> Leases {
        let fence = match self.owners[owner].phase {
            Phase::Holding { fence, .. } => u64::from(fence),
            _ => 0,
        };
        let mut leases = Leases::new(NODES, fence);
        for (node, column) in self.columns.iter().enumerate() {
            let view = column.views[owner];
            if let Said::Granted(fence, sent) = view.said {
                leases.nodes[node] = Some(Lease {
                    fence: u64::from(fence),
                    end: lease_end(at(sent), TTL),
                    kept: view.kept,
                });
            }
        }
        leases
    }

    fn renew(&mut self, owner: usize, fence: u8) {
        self.owners[owner].renewing = true;
        self.owners[owner].stale = self.owners[owner].overtaken;
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

    /// The round of renewal is over: all nodes have answered, or the time is over.
    fn conclude(
        &mut self,
        owner: usize,
        fence: u8,
        bounds: Bounds,
        flaw: Flaw,
    ) -> Result<(), String> {
        let mut leases = self.leases(owner);
        let until = match flaw {
            Flaw::LateGrantCounts | Flaw::SilenceCounts => {
                let ends = leases.nodes.iter().flatten().map(|lease| lease.end);
                held_until(ends, majority(NODES)).filter(|until| *until > at(self.now))
            }
            _ => leases.confirm(at(self.now)),
        };
        let Some(valid_until) = until else {
            self.over(owner);
            return Ok(());
        };
        let heard = |column: &Column| column.views[owner].wire.is_none();
        if bounds.ticks > 0 && self.owners[owner].overtaken {
            return Err(format!("{fence} was renewed after another one had won"));
        }
        if self.owners[owner].stale && self.columns.iter().all(heard) {
            return Err(format!(
                "{fence} asked all nodes and was not notified of its loss"
            ));
        }
        self.owners[owner].phase = Phase::Holding { fence, valid_until };
        self.owners[owner].renewing = false;
        for column in &mut self.columns {
            let view = &mut column.views[owner];
            view.kept = true;
            view.wire = view.wire.filter(|wire| wire.ask == Ask::Acquire);
        }
        Ok(())
    }
}
