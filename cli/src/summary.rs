//! One lock, combined from what every node says about it.

use std::time::Duration;

use redislock_client::{Answer, LockStatus};
use serde_json::{Value, json};

use crate::duration::shown;
use crate::exit::Failure;
use crate::names::printable;

/// What follows from the replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Held,
    /// A minority of the nodes has a holder: it is acquiring or releasing, or it crashed.
    Partial,
    /// Too few nodes reply.
    Unknown,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Partial => "partly held",
            Self::Unknown => "unknown",
        }
    }
}

/// A holder, and on how many nodes.
#[derive(Clone, Debug)]
pub struct Holding {
    pub owner: Option<String>,
    /// The fence that most of the nodes show.
    pub fence: u64,
    /// Which nodes, and how long the leases run there.
    leases: Vec<(usize, Duration)>,
    pub age: Duration,
}

impl Holding {
    /// On how many nodes.
    pub fn nodes(&self) -> usize {
        self.leases.len()
    }

    /// Whether the other one is this hold on other nodes: a node that was slow to grant, or was
    /// restarted, shows a higher fence for the same hold.
    fn is_elsewhere(&self, other: &Self) -> bool {
        let here = |place: usize| self.leases.iter().any(|(known, _)| *known == place);
        self.owner.is_some()
            && self.owner == other.owner
            && !other.leases.iter().any(|(place, _)| here(*place))
    }

    fn join(&mut self, other: Self) {
        self.leases.extend(other.leases);
        self.age = self.age.max(other.age);
    }

    /// How long a majority still keeps the lease; without a majority, the longest lease.
    pub fn remaining(&self, majority: usize) -> Duration {
        let mut leases: Vec<Duration> = self.leases.iter().map(|(_, left)| *left).collect();
        leases.sort_unstable_by(|a, b| b.cmp(a));
        let last = leases.get(majority - 1).or(leases.first());
        last.copied().unwrap_or_default()
    }

    pub fn name(&self) -> String {
        match &self.owner {
            Some(owner) => printable(owner),
            None => "an unnamed client".to_owned(),
        }
    }
}

/// One lock, as all nodes together know it.
#[derive(Clone, Debug)]
pub struct LockSummary {
    pub state: State,
    pub nodes: usize,
    pub answered: usize,
    pub mode: String,
    pub waiters: u64,
    pub oldest_wait: Duration,
    /// The hold on most nodes comes first.
    pub holders: Vec<Holding>,
    /// The nodes that did not reply, and why.
    pub silent: Vec<(String, String)>,
}

impl LockSummary {
    pub fn of(answers: &[Answer<Option<LockStatus>>]) -> Self {
        let mut summary = Self {
            state: State::Unknown,
            nodes: answers.len(),
            answered: 0,
            mode: String::new(),
            waiters: 0,
            oldest_wait: Duration::ZERO,
            holders: Vec::new(),
            silent: Vec::new(),
        };
        for (place, answer) in answers.iter().enumerate() {
            match &answer.result {
                Ok(status) => {
                    summary.answered += 1;
                    status.iter().for_each(|status| summary.add(place, status));
                }
                Err(verdict) => {
                    let why = (answer.node.clone(), verdict.to_string());
                    summary.silent.push(why);
                }
            }
        }
        summary.combine();
        summary.state = summary.judge();
        summary
    }

    fn add(&mut self, place: usize, status: &LockStatus) {
        // A waiter queues at one node at a time, so the longest queue is the queue.
        self.waiters = self.waiters.max(status.waiters);
        self.oldest_wait = self.oldest_wait.max(status.oldest_wait);
        if !status.holders.is_empty() {
            self.mode.clone_from(&status.mode);
        }
        for holder in &status.holders {
            let one = Holding {
                owner: holder.owner.clone(),
                fence: holder.fence,
                leases: vec![(place, holder.ttl)],
                age: holder.age,
            };
            let same = |known: &&mut Holding| known.fence == one.fence && known.owner == one.owner;
            match self.holders.iter_mut().find(same) {
                Some(known) => known.join(one),
                None => self.holders.push(one),
            }
        }
    }

    /// Joins the pieces of each hold; the hold on most nodes comes first.
    fn combine(&mut self) {
        let mut pieces = std::mem::take(&mut self.holders);
        pieces.sort_by_key(|piece| std::cmp::Reverse(piece.nodes()));
        for piece in pieces {
            match self
                .holders
                .iter_mut()
                .find(|known| known.is_elsewhere(&piece))
            {
                Some(known) => known.join(piece),
                None => self.holders.push(piece),
            }
        }
    }

    /// A lock on one node, for tests of what shows it.
    #[cfg(test)]
    pub fn example(holder: Option<(&str, u64, Duration)>, waiters: u64) -> Self {
        let holders = holder.map(|(owner, fence, age)| Holding {
            owner: Some(owner.to_owned()),
            fence,
            leases: vec![(0, Duration::from_secs(30))],
            age,
        });
        let mut summary = Self {
            state: State::Unknown,
            nodes: 1,
            answered: 1,
            mode: "exclusive".to_owned(),
            waiters,
            oldest_wait: Duration::ZERO,
            holders: holders.into_iter().collect(),
            silent: Vec::new(),
        };
        summary.state = summary.judge();
        summary
    }

    pub fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn judge(&self) -> State {
        let most = self.holders.iter().map(Holding::nodes).max();
        match most {
            Some(most) if most >= self.majority() => State::Held,
            _ if self.answered < self.majority() => State::Unknown,
            Some(_) => State::Partial,
            None => State::Free,
        }
    }

    /// The nodes that do not reply, with the reasons.
    pub fn too_few(&self) -> String {
        format!("too few nodes reply ({})", self.why_silent())
    }

    /// If no node replies, there is nothing to show.
    pub fn check_any_reply(&self) -> Result<(), Failure> {
        if self.answered > 0 {
            return Ok(());
        }
        Err(Failure::no_node_replies(&self.silent))
    }

    fn why_silent(&self) -> String {
        let why = |(node, why): &(String, String)| format!("{node}: {why}");
        let silent: Vec<String> = self.silent.iter().map(why).collect();
        silent.join("; ")
    }

    /// Who holds it, as part of a sentence.
    pub fn holder_line(&self) -> String {
        match self.holders.as_slice() {
            [] if self.state == State::Unknown => self.too_few(),
            [] => "about to be granted to a waiter".to_owned(),
            [first, rest @ ..] => {
                let left = shown(first.remaining(self.majority()));
                let others = match rest.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("held by {}{others} for another {left}", first.name())
            }
        }
    }

    pub fn json(&self, key: &str) -> Value {
        let holder = |holder: &Holding| {
            json!({
                "owner": holder.owner,
                "fence": holder.fence,
                "nodes": holder.nodes(),
                "ttl_ms": millis(holder.remaining(self.majority())),
                "age_ms": millis(holder.age),
            })
        };
        let silent = |(node, why): &(String, String)| json!({ "node": node, "problem": why });
        json!({
            "key": key,
            "state": self.state.word(),
            "mode": self.mode,
            "nodes": self.nodes,
            "answered": self.answered,
            "waiters": self.waiters,
            "oldest_wait_ms": millis(self.oldest_wait),
            "holders": self.holders.iter().map(holder).collect::<Vec<_>>(),
            "silent": self.silent.iter().map(silent).collect::<Vec<_>>(),
        })
    }
}

/// Whole milliseconds, for JSON.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(owner: &str, fence: u64, leases: &[(usize, u64)]) -> Holding {
        let lease = |(place, left): &(usize, u64)| (*place, Duration::from_secs(*left));
        Holding {
            owner: Some(owner.to_owned()).filter(|owner| !owner.is_empty()),
            fence,
            leases: leases.iter().map(lease).collect(),
            age: Duration::ZERO,
        }
    }

    fn on(nodes: usize) -> Holding {
        let leases: Vec<(usize, u64)> = (0..nodes).map(|place| (place, 1)).collect();
        holding("", 1, &leases)
    }

    fn summary(nodes: usize, answered: usize, holders: Vec<Holding>) -> LockSummary {
        LockSummary {
            state: State::Unknown,
            nodes,
            answered,
            mode: String::new(),
            waiters: 0,
            oldest_wait: Duration::ZERO,
            holders,
            silent: Vec::new(),
        }
    }

    #[test]
    fn a_lock_is_held_where_a_majority_of_all_nodes_says_so() {
        let judged = |nodes, answered, holders| summary(nodes, answered, holders).judge();
        assert_eq!(judged(5, 5, vec![on(3)]), State::Held);
        assert_eq!(judged(5, 3, vec![on(3)]), State::Held);
        assert_eq!(judged(5, 5, vec![on(2)]), State::Partial);
        assert_eq!(judged(5, 2, vec![on(2)]), State::Unknown);
        assert_eq!(judged(5, 2, Vec::new()), State::Unknown);
        assert_eq!(judged(5, 3, Vec::new()), State::Free);
        assert_eq!(judged(1, 1, vec![on(1)]), State::Held);
    }

    #[test]
    fn one_hold_may_show_another_fence_on_another_node() {
        let together = |holders| {
            let mut summary = summary(3, 3, holders);
            summary.combine();
            let seen = summary.holders.iter();
            seen.map(|holder| (holder.fence, holder.nodes()))
                .collect::<Vec<_>>()
        };
        let late = holding("ada", 9, &[(2, 1)]);
        let most = holding("ada", 5, &[(0, 1), (1, 1)]);
        assert_eq!(together(vec![late, most]), [(5, 3)]);
        // Two shared holds of one name on one node are two, and so are two without a name.
        let twice = vec![holding("ada", 5, &[(0, 1)]), holding("ada", 9, &[(0, 1)])];
        assert_eq!(together(twice), [(5, 1), (9, 1)]);
        let nameless = vec![holding("", 5, &[(0, 1)]), holding("", 9, &[(1, 1)])];
        assert_eq!(together(nameless), [(5, 1), (9, 1)]);
    }

    #[test]
    fn a_majority_keeps_the_lock_until_its_first_lease_ends() {
        let five = holding("", 1, &[(0, 9), (1, 1), (2, 7), (3, 2), (4, 8)]);
        assert_eq!(five.remaining(3), Duration::from_secs(7));
        let two = holding("", 1, &[(0, 4), (1, 6)]);
        assert_eq!(two.remaining(3), Duration::from_secs(6));
    }
}
