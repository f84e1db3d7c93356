//! The rule of the core as it is, or as it would be with one flaw.

use std::collections::BTreeMap;

use redislock_core::replication_lease::{Connection, Look, ReplicationLease, Rule};
use redislock_core::time::{Micros, MonoTime};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    None,
    WaitCountsFromThePromotionOnly,
    EvidenceByArrival,
    EvidenceOfAnyAge,
    WaitIsTheLease,
    WaitIsOneShort,
    AgeSurvivesAReconnect,
    ClockReadBeforeTheRequest,
    NoMajority,
    NoSlack,
}

impl Flaw {
    /// Those that show in a world of few events and true clocks.
    pub const SMALL: [Self; 8] = [
        Self::WaitCountsFromThePromotionOnly,
        Self::EvidenceByArrival,
        Self::EvidenceOfAnyAge,
        Self::WaitIsTheLease,
        Self::WaitIsOneShort,
        Self::AgeSurvivesAReconnect,
        Self::ClockReadBeforeTheRequest,
        Self::NoMajority,
    ];

    /// Those that show in long random lives.
    pub const RANDOM: [Self; 3] = [
        Self::WaitCountsFromThePromotionOnly,
        Self::EvidenceOfAnyAge,
        Self::AgeSurvivesAReconnect,
    ];

    /// The rule with this flaw.
    pub fn rule(self, rule: Rule, lease: u64) -> Rule {
        match self {
            Self::EvidenceOfAnyAge => Rule {
                lag: Micros(u64::MAX / 2),
                ..rule
            },
            Self::WaitIsTheLease => Rule {
                wait: Micros(lease),
                ..rule
            },
            Self::WaitIsOneShort => Rule {
                wait: rule.wait.minus(Micros(1)),
                ..rule
            },
            Self::NoSlack => Rule {
                wait: rule.lag.plus(Micros(lease)),
                ..rule
            },
            _ => rule,
        }
    }
}

/// The core's decision, or a flawed one that is made of what the core knows.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Suspect {
    lease: ReplicationLease,
    flaw: Flaw,
    began: MonoTime,
    /// What each address has acknowledged, and when that arrived.
    arrived: BTreeMap<Box<[u8]>, (u64, MonoTime)>,
    /// When each address was seen first.
    first_seen: BTreeMap<Box<[u8]>, MonoTime>,
    /// The last clock reading, and until when the rule held as of the one before.
    last_look: MonoTime,
    earlier_until: Option<MonoTime>,
}

impl Suspect {
    pub fn new(rule: Rule, flaw: Flaw, now: MonoTime) -> Self {
        Self {
            lease: ReplicationLease::new(rule, now),
            flaw,
            began: now,
            arrived: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            last_look: now,
            earlier_until: None,
        }
    }

    pub fn observe(&mut self, look: Look<'_>) {
        if self.flaw == Flaw::ClockReadBeforeTheRequest && self.last_look < look.after {
            self.earlier_until = self.lease.until();
            self.last_look = look.after;
        }
        self.lease.observe(look);
        if self.flaw == Flaw::EvidenceByArrival {
            for one in look.replicas {
                let arrived = self
                    .arrived
                    .entry(one.address.into())
                    .or_insert((0, MonoTime(0)));
                if arrived.0 < one.acknowledged {
                    *arrived = (one.acknowledged, look.after);
                }
            }
        }
        if self.flaw == Flaw::AgeSurvivesAReconnect {
            for one in look.replicas {
                self.first_seen
                    .entry(one.address.into())
                    .or_insert(look.after);
            }
        }
    }

    pub fn permits(&self, now: MonoTime) -> bool {
        let Rule { needed, lag, wait } = self.lease.rule();
        let is_old = |since: MonoTime| now.since(since) >= wait;
        let is_fresh = |at: MonoTime| now.since(at) <= lag;
        let follows = |one: &Connection| one.evidence.is_some_and(is_fresh);
        let counts: &dyn Fn(&Connection) -> bool = match self.flaw {
            Flaw::WaitCountsFromThePromotionOnly => &follows,
            Flaw::EvidenceByArrival => &|one| {
                let arrived = self.arrived.get(&one.address);
                is_old(one.online_since) && arrived.is_some_and(|(_, at)| is_fresh(*at))
            },
            Flaw::AgeSurvivesAReconnect => &|one| {
                let first = self.first_seen.get(&one.address);
                first.is_some_and(|since| is_old(*since)) && follows(one)
            },
            Flaw::ClockReadBeforeTheRequest => {
                let earlier = MonoTime(now.0 - 1);
                let permitted = self.earlier_until.is_some_and(|until| earlier <= until);
                return permitted || self.lease.permits(now);
            }
            _ => return self.lease.permits(now),
        };
        let counted = self.lease.connections().iter().filter(|one| counts(one));
        is_old(self.began) && counted.count() >= needed
    }
}
