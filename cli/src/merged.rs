//! One lock as all nodes together see it.

use std::time::Duration;

use redislock_client::{Answer, LockStatus};
use serde_json::{Value, json};

use crate::duration::shown;

/// What follows from the nodes' answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    Held,
    /// Somebody has it on some nodes, on too few to hold it: on its way in or out, or left behind by a crash.
    Partial,
    /// Too few nodes answer to tell.
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
    pub fence: u64,
    pub nodes: usize,
    /// How long the leases run, on each of those nodes.
    leases: Vec<Duration>,
    pub age: Duration,
}

impl Holding {
    /// How long a majority still keeps the lease; where there is none, the longest one.
    pub fn remaining(&self, majority: usize) -> Duration {
        let mut leases = self.leases.clone();
        leases.sort_unstable_by(|a, b| b.cmp(a));
        let last = leases.get(majority - 1).or(leases.first());
        last.copied().unwrap_or_default()
    }

    pub fn name(&self) -> String {
        match &self.owner {
            Some(owner) => visible(owner),
            None => "somebody without a label".to_owned(),
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Merged {
    pub state: State,
    pub nodes: usize,
    pub answered: usize,
    pub mode: String,
    pub waiters: u64,
    pub oldest_wait: Duration,
    /// Most widely held first.
    pub holders: Vec<Holding>,
    /// Why nodes did not answer.
    pub silent: Vec<(String, String)>,
}

impl Merged {
    pub fn of(answers: &[Answer<Option<LockStatus>>]) -> Self {
        let mut merged = Self {
            state: State::Unknown,
            nodes: answers.len(),
            answered: 0,
            mode: String::new(),
            waiters: 0,
            oldest_wait: Duration::ZERO,
            holders: Vec::new(),
            silent: Vec::new(),
        };
        for answer in answers {
            match &answer.result {
                Ok(status) => {
                    merged.answered += 1;
                    status.iter().for_each(|status| merged.add(status));
                }
                Err(verdict) => {
                    let why = (answer.node.clone(), verdict.to_string());
                    merged.silent.push(why);
                }
            }
        }
        merged
            .holders
            .sort_by_key(|holder| std::cmp::Reverse(holder.nodes));
        merged.state = merged.judge();
        merged
    }

    pub fn add(&mut self, status: &LockStatus) {
        // One who waits does so on one node at a time, or has asked several in turn: the longest queue is the queue.
        self.waiters = self.waiters.max(status.waiters);
        self.oldest_wait = self.oldest_wait.max(status.oldest_wait);
        if !status.holders.is_empty() {
            self.mode.clone_from(&status.mode);
        }
        for holder in &status.holders {
            let same =
                |known: &&mut Holding| known.fence == holder.fence && known.owner == holder.owner;
            match self.holders.iter_mut().find(same) {
                Some(known) => {
                    known.nodes += 1;
                    known.leases.push(holder.ttl);
                    known.age = known.age.max(holder.age);
                }
                None => self.holders.push(Holding {
                    owner: holder.owner.clone(),
                    fence: holder.fence,
                    nodes: 1,
                    leases: vec![holder.ttl],
                    age: holder.age,
                }),
            }
        }
    }

    pub fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn judge(&self) -> State {
        let most = self.holders.iter().map(|holder| holder.nodes).max();
        match most {
            Some(most) if most >= self.majority() => State::Held,
            _ if self.answered < self.majority() => State::Unknown,
            Some(_) => State::Partial,
            None => State::Free,
        }
    }

    /// Which nodes do not answer, and why.
    pub fn too_few(&self) -> String {
        let why = |(node, why): &(String, String)| format!("{node}: {why}");
        let silent: Vec<String> = self.silent.iter().map(why).collect();
        format!("too few nodes answer ({})", silent.join("; "))
    }

    /// Who holds it, for a line of text.
    pub fn holder_line(&self) -> String {
        match self.holders.as_slice() {
            [] if self.state == State::Unknown => self.too_few(),
            [] => "about to be handed over".to_owned(),
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
                "nodes": holder.nodes,
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

/// Names come from others: what could move the cursor or change colours is shown escaped.
pub fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| match c.is_control() {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(nodes: usize, leases: &[u64]) -> Holding {
        Holding {
            owner: None,
            fence: 1,
            nodes,
            leases: leases.iter().copied().map(Duration::from_secs).collect(),
            age: Duration::ZERO,
        }
    }

    fn merged(nodes: usize, answered: usize, holders: Vec<Holding>) -> Merged {
        Merged {
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
        let judged = |nodes, answered, holders| merged(nodes, answered, holders).judge();
        assert_eq!(judged(5, 5, vec![holding(3, &[])]), State::Held);
        assert_eq!(judged(5, 3, vec![holding(3, &[])]), State::Held);
        assert_eq!(judged(5, 5, vec![holding(2, &[])]), State::Partial);
        assert_eq!(judged(5, 2, vec![holding(2, &[])]), State::Unknown);
        assert_eq!(judged(5, 2, Vec::new()), State::Unknown);
        assert_eq!(judged(5, 3, Vec::new()), State::Free);
        assert_eq!(judged(1, 1, vec![holding(1, &[])]), State::Held);
    }

    #[test]
    fn a_majority_keeps_the_lock_until_its_first_lease_ends() {
        assert_eq!(
            holding(5, &[9, 1, 7, 2, 8]).remaining(3),
            Duration::from_secs(7)
        );
        assert_eq!(holding(2, &[4, 6]).remaining(3), Duration::from_secs(6));
    }

    #[test]
    fn names_of_others_cannot_move_the_cursor() {
        assert_eq!(visible("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
    }
}
