//! The claims of holders, collected from a journal, and the checks on them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::time::Duration;

use super::check::{Found, Grant, Violation, Window, disorder, overlapping};
use super::journal::{Entry, What};

/// One attempt to acquire, and its results.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Its number.
    pub id: u64,
    /// The process.
    pub client: u32,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// Whether nobody else may hold them.
    pub exclusive: bool,
    /// When it was requested, in microseconds.
    pub asked: u64,
    /// When it learned that it holds the lock, and with which fence.
    pub held: Option<(u64, u64)>,
    /// Until when it could rely on it, by all its results.
    pub until: u64,
    /// When it last learned that it holds the lock.
    pub last_look: u64,
    /// When it began to release.
    pub released: Option<u64>,
    /// When the attempt failed.
    pub failed: Option<u64>,
    /// The fences that it got when it re-entered.
    again: Vec<(u64, u64)>,
    /// Re-entries on one server: when, the fences, the hold counts, how many holds were removed.
    reentries: Vec<(u64, [u64; 4], [u64; 3], u64)>,
}

/// All claims of a journal, and what was written under them.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    claims: BTreeMap<u64, Claim>,
    writes: Vec<Write>,
}

/// What became of the writes that were delayed in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedWrites {
    /// All of them.
    pub all: u64,
    /// Those that arrived when the hold of their writer was over.
    pub late: u64,
    /// Those of the late ones that the resource refused.
    pub refused: u64,
}

#[derive(Clone, Debug)]
struct Write {
    at: u64,
    claim: u64,
    lock: String,
    fence: u64,
    read: u64,
    was: Option<u64>,
    arrived: Option<u64>,
}

impl Claims {
    /// The claims of a journal, whose lines are in any order except those of one claim.
    pub fn of(entries: &[Entry]) -> Claims {
        let mut claims = Claims::default();
        for entry in entries {
            claims.add(entry);
        }
        claims
    }

    /// One more line. Without the request that it is about, nothing could be checked.
    #[track_caller]
    pub fn add(&mut self, entry: &Entry) {
        if let What::Ask { locks, shared } = &entry.what {
            let claim = Claim {
                id: entry.claim,
                client: entry.client,
                locks: locks.clone(),
                exclusive: !shared,
                asked: entry.at,
                held: None,
                until: 0,
                last_look: 0,
                released: None,
                failed: None,
                again: Vec::new(),
                reentries: Vec::new(),
            };
            self.claims.insert(entry.claim, claim);
        }
        if let What::Write {
            lock,
            fence,
            read,
            was,
            arrived,
        } = &entry.what
        {
            self.writes.push(Write {
                at: entry.at,
                claim: entry.claim,
                lock: lock.clone(),
                fence: *fence,
                read: *read,
                was: *was,
                arrived: *arrived,
            });
        }
        if !matches!(entry.what, What::Fault { .. }) {
            let claim = self.claims.get_mut(&entry.claim);
            let claim =
                claim.unwrap_or_else(|| panic!("a journal without the request of {entry:?}"));
            claim.learn(entry.at, &entry.what);
        }
    }

    /// All of them, by their numbers.
    pub fn all(&self) -> impl Iterator<Item = &Claim> {
        self.claims.values()
    }

    /// The locks that are named.
    pub fn locks(&self) -> BTreeSet<&str> {
        let claims = self.claims.values();
        claims
            .flat_map(|claim| claim.locks.iter().map(String::as_str))
            .collect()
    }

    /// How many writes the resources accepted, and how many they refused.
    pub fn writes(&self) -> (usize, usize) {
        let accepted = self.writes.iter().filter(|write| write.was.is_some());
        let accepted = accepted.count();
        (accepted, self.writes.len() - accepted)
    }

    /// What became of the writes that were delayed in the network.
    pub fn delayed_writes(&self) -> DelayedWrites {
        let mut sum = DelayedWrites::default();
        for write in &self.writes {
            let Some(arrived) = write.arrived else {
                continue;
            };
            let claim = self.claims.get(&write.claim);
            let is_late = claim.is_some_and(|claim| claim.end() <= arrived);
            sum += DelayedWrites {
                all: 1,
                late: u64::from(is_late),
                refused: u64::from(is_late && write.was.is_none()),
            };
        }
        sum
    }

    /// What went wrong and when, the earliest first. `fences`: whether the deployment promises the
    /// order of fences.
    pub fn violations(&self, fences: bool) -> Vec<(Duration, Violation)> {
        let mut found = Vec::new();
        for lock in self.locks() {
            let on = |claim: &&Claim| claim.locks.iter().any(|name| name == lock);
            let claims: Vec<&Claim> = self.claims.values().filter(on).collect();
            let windows: Vec<_> = claims.iter().filter_map(|claim| claim.window()).collect();
            found.extend(overlapping(lock, windows.clone()).into_iter().map(|found| {
                let (at, violation) = found;
                (at, self.named_by_time(violation))
            }));
            if fences {
                let grants = claims.iter().filter_map(|claim| claim.grant()).collect();
                found.extend(disorder(lock, grants, windows));
                found.extend(self.lost_updates(lock));
            }
            found.extend(claims.iter().flat_map(|claim| claim.changed(lock)));
        }
        found.sort_by_key(|(at, _)| *at);
        found
    }

    /// Re-entries that a server counted wrongly: a re-entry adds one hold, its release removes one,
    /// and the lock stays held.
    pub fn miscounts(&self) -> Vec<(Duration, String)> {
        let mut found = Vec::new();
        for claim in self.claims.values() {
            for (at, _, holds, removed) in &claim.reentries {
                let [before, during, after] = *holds;
                if before == 0 || during != before + 1 || after != before || *removed != 1 {
                    let (locks, id) = (claim.locks.join(", "), claim.id);
                    let text = format!("{locks}, claim {id}: holds {holds:?}, removed {removed}");
                    found.push((Duration::from_micros(*at), text));
                }
            }
        }
        found
    }

    /// An overlap in which the later hold had ended when the earlier holder learned once more that
    /// it holds the lock.
    fn named_by_time(&self, violation: Violation) -> Violation {
        let Violation::Overlap(lock, before, after) = violation else {
            return violation;
        };
        let is_over = match (self.claims.get(&before), self.claims.get(&after)) {
            (Some(before), Some(after)) => before.last_look > after.end(),
            _ => false,
        };
        if is_over {
            Violation::FalselyHeld(lock, before, after)
        } else {
            Violation::Overlap(lock, before, after)
        }
    }

    /// Writes that overwrote what they had not read, and writes that a resource accepted after it
    /// had accepted a higher fence: each write adds one, so the values show their order.
    fn lost_updates(&self, lock: &str) -> Vec<Found> {
        let mut accepted: Vec<(u64, &Write)> = self
            .writes
            .iter()
            .filter(|write| write.lock == lock)
            .filter_map(|write| Some((write.was?, write)))
            .collect();
        accepted.sort_by_key(|(was, write)| (*was, write.fence));
        let mut highest = 0;
        let mut found = Vec::new();
        for (was, write) in accepted {
            if was != write.read || write.fence < highest {
                let violation = Violation::LostUpdate(lock.to_owned(), number(write.fence));
                found.push((Duration::from_micros(write.at), violation));
            }
            highest = highest.max(write.fence);
        }
        found
    }
}

impl AddAssign for DelayedWrites {
    fn add_assign(&mut self, more: Self) {
        self.all += more.all;
        self.late += more.late;
        self.refused += more.refused;
    }
}

impl Claim {
    fn learn(&mut self, at: u64, what: &What) {
        match what {
            What::Held { fence, until } => {
                self.held = Some((at, *fence));
                self.until = self.until.max(*until);
                self.last_look = at;
            }
            What::Valid { until } => {
                self.until = self.until.max(*until);
                self.last_look = self.last_look.max(at);
            }
            What::Again { fence, asked } => {
                self.again.push((at, *fence));
                if self.held.is_some_and(|(_, first)| first == *fence) {
                    self.was_held_at(*asked);
                }
            }
            What::Reentered {
                fences,
                holds,
                removed,
            } => self.reentries.push((at, *fences, *holds, *removed)),
            What::Leave { asked } => self.was_held_at(*asked),
            What::Release => self.released = Some(at),
            What::Released { held: Some(true) } => {
                if let Some(released) = self.released {
                    self.was_held_at(released);
                }
            }
            What::Failed { .. } => self.failed = Some(at),
            _ => {}
        }
    }

    /// A reply shows that it was held all the time until this moment, or longer.
    fn was_held_at(&mut self, at: u64) {
        self.until = self.until.max(at);
        self.last_look = self.last_look.max(at);
    }

    /// When its holder could not rely on it any more, or began to release.
    fn end(&self) -> u64 {
        self.released.unwrap_or(u64::MAX).min(self.until)
    }

    fn window(&self) -> Option<Window> {
        let (from, fence) = self.held?;
        let until = self.end();
        (from < until).then(|| Window {
            owner: self.id,
            exclusive: self.exclusive,
            from: Duration::from_micros(from),
            until: Duration::from_micros(until),
            fence: number(fence),
        })
    }

    fn grant(&self) -> Option<Grant> {
        let (returned, fence) = self.held.filter(|_| self.exclusive)?;
        Some(Grant {
            invoked: Duration::from_micros(self.asked),
            returned: Duration::from_micros(returned),
            fence: number(fence),
        })
    }

    /// A re-entered lock keeps its fence.
    fn changed(&self, lock: &str) -> Vec<Found> {
        let Some((_, first)) = self.held else {
            return Vec::new();
        };
        let again = self.again.iter().map(|(at, fence)| (*at, first, *fence));
        // A server that is not in the majority of the fence may have granted another one.
        let reentries = self.reentries.iter().flat_map(|(at, fences, ..)| {
            let replies = fences[1..].iter();
            replies.map(|fence| (*at, fences[0], *fence))
        });
        let others = again.chain(reentries);
        others
            .filter(|(_, before, now)| before != now)
            .map(|(at, before, now)| {
                let violation = Violation::Changed(lock.to_owned(), number(before), number(now));
                (Duration::from_micros(at), violation)
            })
            .collect()
    }
}

fn number(fence: u64) -> i64 {
    i64::try_from(fence).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
