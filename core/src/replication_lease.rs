//! The replication lease: when a master with replicas may grant, so that two masters never do at
//! the same time.
//!
//! A replica counts for a master only after it has followed it for [`Rule::wait`] on one
//! connection, and only by what it has acknowledged: stream positions that did not exist before a
//! moment at most [`Rule::lag`] ago, on the master's own clock. Two masters that each have a
//! majority share a node. That node followed both, one after the other, so the leases of the first
//! end before the second may grant. The argument uses no wall clock and no bound on the network.
//!
//! The caller passes the server's list of replicas and the clock, and reports when a connection
//! changes. The result is one moment, [`ReplicationLease::permits`], so that a request costs only
//! one comparison.

use std::collections::{BTreeSet, VecDeque};

use crate::time::{Micros, Millis, MonoTime};

/// The largest error of a clock rate, in percent.
const DRIFT: u64 = 1;
/// Added to the wait, for the time that reading clocks and lists takes.
const SLACK: Micros = Millis(100).to_micros();
/// The position is recorded at most this many times within the lag.
const MARKS: u64 = 16;
/// The number of heartbeats within the lag.
const HEARTBEATS: u64 = 4;
/// While the evidence is too old, the caller checks this often for newer evidence.
const RECHECK_INTERVAL: Micros = Millis(50).to_micros();
/// The retry time for clients if only an acknowledgement is missing; shorter if heartbeats are more
/// frequent.
const SHORT_WAIT: Micros = Millis(250).to_micros();

/// What the replicas of a master must confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// How many replicas must count. Together with the master, they are a majority of all nodes.
    pub needed: usize,
    /// The greatest age of evidence that counts.
    pub lag: Micros,
    /// How long a replica must have followed before it counts, and how long the node must have been
    /// a master.
    pub wait: Micros,
}

/// The configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `min-replicas-to-write`.
    pub needed: u64,
    /// `min-replicas-max-lag`.
    pub lag: Micros,
    /// `min-replicas-max-lag` as it was at the start.
    pub lag_at_start: Micros,
    /// The longest lease that may exist; none if quarantine is off.
    pub longest_lease: Option<Micros>,
}

/// Why there is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// No replica is needed.
    NoReplicasNeeded,
    /// Replicas are needed, but the server counts every one, however late it is.
    NoLag,
    /// Replicas are needed, but no lease is bounded by a quarantine.
    NoQuarantine,
}

impl Rule {
    /// The rule for this configuration.
    ///
    /// The lag may be lowered after the start and raised again up to its first value. The wait
    /// always covers that first value, because the other nodes may still use it.
    ///
    /// # Errors
    /// When the configuration does not have this rule.
    pub fn of(settings: Settings) -> Result<Self, Off> {
        let lag = settings.lag.min(settings.lag_at_start);
        let needed = usize::try_from(settings.needed).unwrap_or(usize::MAX);
        if needed == 0 {
            Err(Off::NoReplicasNeeded)
        } else if lag == Micros::ZERO {
            Err(Off::NoLag)
        } else if let Some(longest) = settings.longest_lease {
            let span = longest.plus(settings.lag_at_start);
            Ok(Self {
                needed,
                lag,
                wait: with_drift(span).plus(SLACK),
            })
        } else {
            Err(Off::NoQuarantine)
        }
    }

    /// The time between two heartbeats.
    #[must_use]
    pub fn heartbeat(&self) -> Micros {
        (self.lag / HEARTBEATS).max(Micros(1))
    }
}

/// The longest time on a clock that is too fast, for this time on a clock that is too slow.
fn with_drift(span: Micros) -> Micros {
    let fast = span.0.saturating_mul(100 + DRIFT);
    Micros(fast.div_ceil(100 - DRIFT))
}

/// One connection of a replica, as the server lists it.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// The address and port that the replica reports.
    pub address: &'a [u8],
    /// The stream position that it has acknowledged on this connection, 0 if none.
    pub acknowledged: u64,
}

/// The server's list of replicas that are online, and the stream, read once.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// The clock, read before the list.
    pub before: MonoTime,
    /// The clock, read after the list.
    pub after: MonoTime,
    /// How much has been written into the stream.
    pub position: u64,
    /// The replicas.
    pub replicas: &'a [Listed<'a>],
}

/// Everything beyond this position was written after this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark {
    at: MonoTime,
    position: u64,
}

/// A connection of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The address that the replica reports.
    pub address: Box<[u8]>,
    /// When the master first saw it online.
    pub online_since: MonoTime,
    /// The replica has certainly followed until this moment.
    pub evidence: Option<MonoTime>,
    acknowledged: u64,
}

/// What operators see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many replicas must count.
    pub needed: usize,
    /// How many do.
    pub counted: usize,
    /// Since when the rule has held without a break.
    pub since: Option<MonoTime>,
    /// The age of the evidence that the rule rests on; none while too few replicas have given any.
    pub evidence_age: Option<Micros>,
}

/// Whether a master may grant, by what its replicas have acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicationLease {
    rule: Rule,
    master_since: MonoTime,
    marks: VecDeque<Mark>,
    connections: Vec<Connection>,
    /// Since when the rule has held, and until when it holds without another check.
    held: Option<(MonoTime, MonoTime)>,
    seen: BTreeSet<Box<[u8]>>,
}

impl ReplicationLease {
    /// The node is a master since `now`, or the rule is new: no replica counts yet.
    #[must_use]
    pub fn new(rule: Rule, now: MonoTime) -> Self {
        Self {
            rule,
            master_since: now,
            marks: VecDeque::new(),
            connections: Vec::new(),
            held: None,
            seen: BTreeSet::new(),
        }
    }

    /// The rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Follows a change of the configuration. What was granted before may have been longer, so the
    /// wait never shrinks.
    pub fn set_rule(&mut self, rule: Rule, now: MonoTime) {
        let wait = rule.wait.max(self.rule.wait);
        let rule = Rule { wait, ..rule };
        if rule != self.rule {
            self.rule = rule;
            self.decide(now);
        }
    }

    /// Processes the server's list: at each heartbeat, whenever a replica connects or disconnects,
    /// and before a refusal.
    ///
    /// The server identifies connections only by address. The caller checks the list at every
    /// change, so a connection that ends is missing from the list before a new one with the same
    /// address could be mistaken for it. If two have the same address, neither counts.
    pub fn observe(&mut self, look: Look<'_>) {
        if self
            .marks
            .back()
            .is_some_and(|mark| mark.position > look.position)
        {
            // This is another stream: acknowledgements of the last one say nothing about this one.
            self.marks.clear();
            self.connections.clear();
        }
        let known = std::mem::take(&mut self.connections);
        let listed = look.replicas.iter();
        self.connections = listed.map(|one| self.followed(one, &known, look)).collect();
        self.note_position(look);
        for one in look.replicas {
            // One more than a majority allows is enough to know.
            if self.seen.len() <= self.rule.needed.saturating_mul(2)
                && !self.seen.contains(one.address)
            {
                self.seen.insert(one.address.into());
            }
        }
        self.decide(look.after);
    }

    /// The connection of a listed replica: the known one with its new evidence, or a new one.
    fn followed(&self, listed: &Listed<'_>, known: &[Connection], look: Look<'_>) -> Connection {
        let now_listed = look.replicas.iter();
        let now_listed = now_listed.filter(|other| other.address == listed.address);
        let mut same = known
            .iter()
            .filter(|known| *known.address == *listed.address);
        // Nobody can acknowledge what is not written: that position belongs to another stream.
        let is_possible = listed.acknowledged <= look.position;
        let connection = match (same.next(), same.next(), now_listed.count()) {
            (Some(known), None, 1) if known.acknowledged <= listed.acknowledged => Some(known),
            _ => None,
        };
        let connection = connection.filter(|_| is_possible);
        let mut newest = self.marks.iter().rev().filter(|_| is_possible);
        let passed = newest.find(|mark| mark.position < listed.acknowledged);
        let evidence = passed.map(|mark| mark.at);
        Connection {
            address: listed.address.into(),
            online_since: connection.map_or(look.after, |known| known.online_since),
            evidence: evidence.max(connection.and_then(|known| known.evidence)),
            acknowledged: listed.acknowledged,
        }
    }

    /// Records that everything beyond this position is written after this check began.
    fn note_position(
        &mut self,
        Look {
            before, position, ..
        }: Look<'_>,
    ) {
        while self
            .marks
            .front()
            .is_some_and(|mark| before.since(mark.at) > self.rule.lag)
        {
            self.marks.pop_front();
        }
        match self.marks.back_mut() {
            Some(last) if last.position == position => last.at = last.at.max(before),
            Some(last) if before.since(last.at) < self.rule.lag / MARKS => {}
            _ => self.marks.push_back(Mark {
                at: before,
                position,
            }),
        }
    }

    fn decide(&mut self, now: MonoTime) {
        let since = self
            .held
            .filter(|(_, until)| *until >= now)
            .map(|(since, _)| since);
        let mut evidence: Vec<_> = self.mature(now).filter_map(|one| one.evidence).collect();
        evidence.sort_unstable_by(|a, b| b.cmp(a));
        let decisive = self
            .rule
            .needed
            .checked_sub(1)
            .and_then(|last| evidence.get(last));
        let until = decisive.map(|evidence| evidence.plus(self.rule.lag));
        self.held = until
            .filter(|until| *until >= now && now.since(self.master_since) >= self.rule.wait)
            .map(|until| (since.unwrap_or(now), until));
    }

    /// The replicas that have followed for long enough.
    fn mature(&self, now: MonoTime) -> impl Iterator<Item = &Connection> {
        let wait = self.rule.wait;
        let all = self.connections.iter();
        all.filter(move |one| now.since(one.online_since) >= wait)
    }

    /// Whether the node may grant and extend at this moment. The caller must read the clock after
    /// the request.
    #[must_use]
    pub fn permits(&self, now: MonoTime) -> bool {
        self.held.is_some_and(|(_, until)| now <= until)
    }

    /// Until when the node may grant without another check.
    #[must_use]
    pub fn until(&self) -> Option<MonoTime> {
        self.held.map(|(_, until)| until)
    }

    /// The time until the node may grant, as far as it is known; none if it may now.
    #[must_use]
    pub fn left(&self, now: MonoTime) -> Option<Micros> {
        if self.permits(now) {
            return None;
        }
        let missing = |since: MonoTime| self.rule.wait.minus(now.since(since));
        let mut ages: Vec<_> = self
            .connections
            .iter()
            .map(|one| missing(one.online_since))
            .collect();
        ages.sort_unstable();
        let enough = self
            .rule
            .needed
            .checked_sub(1)
            .and_then(|last| ages.get(last));
        // A replica that is missing must still follow for the whole wait.
        let replicas = enough.copied().unwrap_or(self.rule.wait);
        Some(
            replicas
                .max(missing(self.master_since))
                .max(self.rule.heartbeat().min(SHORT_WAIT)),
        )
    }

    /// When the caller must check again, if nothing happens before.
    #[must_use]
    pub fn next_look(&self, now: MonoTime) -> MonoTime {
        let usual = now.plus(self.rule.heartbeat());
        if self.permits(now) {
            return usual;
        }
        let moments = self.connections.iter().map(|one| one.online_since);
        let moments = moments.chain([self.master_since]);
        let matures = moments
            .map(|since| since.plus(self.rule.wait))
            .filter(|at| *at > now)
            .min();
        let soon = matures.unwrap_or(usual).min(usual);
        if self.mature(now).count() >= self.rule.needed {
            // Only an acknowledgement is missing.
            soon.min(now.plus(RECHECK_INTERVAL))
        } else {
            soon
        }
    }

    /// What operators see.
    #[must_use]
    pub fn standing(&self, now: MonoTime) -> Standing {
        let fresh = |one: &&Connection| {
            one.evidence
                .is_some_and(|at| now.since(at) <= self.rule.lag)
        };
        let mut evidence: Vec<_> = self
            .connections
            .iter()
            .filter_map(|one| one.evidence)
            .collect();
        evidence.sort_unstable_by(|a, b| b.cmp(a));
        let decisive = self
            .rule
            .needed
            .checked_sub(1)
            .and_then(|last| evidence.get(last));
        Standing {
            needed: self.rule.needed,
            counted: self.mature(now).filter(fresh).count(),
            since: self
                .held
                .filter(|(_, until)| now <= *until)
                .map(|(since, _)| since),
            evidence_age: decisive.map(|at| now.since(*at)),
        }
    }

    /// Whether more replicas were seen than a majority of `needed` and the master allows: then
    /// another master may have as many, and the rule protects nobody.
    #[must_use]
    pub fn has_no_majority(&self) -> bool {
        self.seen.len() > self.rule.needed.saturating_mul(2)
    }

    /// The connections of the replicas that were online at the last check.
    #[must_use]
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }
}

#[cfg(test)]
mod tests;
