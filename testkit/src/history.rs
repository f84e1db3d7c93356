//! The requests of clients and their results, and the checks over it: windows never overlap,
//! fences are unique and ordered. All clients of a test share one monotonic clock, so the checks
//! are exact.
//!
//! [`History`] has the commands that a client sent, [`Claims`] what the client library reported to
//! its holders; the same functions check both. A [`journal`](Entry) is the form in which processes
//! save them, and in which other checkers read them.

mod check;
mod claims;
mod journal;

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub use check::Violation;
use check::{Grant, Window, disorder, overlapping};
pub use claims::{Claim, Claims, DelayedWrites};
pub use journal::{Entry, What, read};

/// The moment from which all moments of a history are counted.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A moment of a history.
pub fn now() -> Duration {
    let origin = *ORIGIN;
    origin.elapsed()
}

/// What was requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// LOCK.ACQUIRE.
    Acquire,
    /// LOCK.EXTEND.
    Extend,
    /// LOCK.RELEASE.
    Release,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It happened; the fence, or how many holds were removed.
    Ok(i64),
    /// It did not happen. The first word of the error, empty for null.
    Fail(String),
    /// It may happen at any time after the invocation.
    Unknown,
}

/// One request, of one owner for one lock.
#[derive(Clone, Debug)]
pub struct Event {
    /// Each attempt to acquire has its own owner, with a token that is never used again.
    pub owner: u64,
    /// The name of the lock.
    pub lock: String,
    /// What was requested.
    pub operation: Operation,
    /// The length of the lease.
    pub ttl: Duration,
    /// A request that waits on the server says nothing about when the lease began.
    pub waits: bool,
    /// When the request was sent.
    pub invoked: Duration,
    /// When the reply had arrived.
    pub returned: Duration,
    /// The result.
    pub outcome: Outcome,
}

/// One hold of a lock as its holder saw it: a client library computes the validity itself.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// When the lock was requested.
    pub asked: Duration,
    /// When the holder knew that it had it.
    pub from: Duration,
    /// When the holder released it, or could not rely on it any more.
    pub until: Duration,
    /// Its fence.
    pub fence: u64,
}

/// Fails if two clients held one lock at once, a fence was granted twice, or a later holder has a
/// lower fence.
#[track_caller]
pub fn assert_safe(holds: &[Hold]) {
    let number = |hold: &Hold| i64::try_from(hold.fence).expect("a fence below 2^63");
    let window = |(owner, hold): (u64, &Hold)| Window {
        owner,
        exclusive: true,
        from: hold.from,
        until: hold.until,
        fence: number(hold),
    };
    let grant = |hold: &Hold| Grant {
        invoked: hold.asked,
        returned: hold.from,
        fence: number(hold),
    };
    let windows: Vec<_> = (0..).zip(holds).map(window).collect();
    let mut found = overlapping("the lock", windows.clone());
    let grants = holds.iter().map(grant).collect();
    found.extend(disorder("the lock", grants, windows));
    let violations = check::named(found);
    assert!(violations.is_empty(), "{violations:?} in {holds:#?}");
}

/// The requests of clients and their results.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All requests, in any order.
    pub events: Vec<Event>,
}

impl History {
    /// Fails if anything went wrong, lock by lock.
    #[track_caller]
    pub fn assert_safe(&self) {
        let violations = self.violations();
        assert!(
            violations.is_empty(),
            "{} of {} events: {:#?}\n{:#?}",
            violations.len(),
            self.events.len(),
            violations.first(),
            self.about(&violations)
        );
    }

    /// What went wrong, lock by lock.
    pub fn violations(&self) -> Vec<Violation> {
        let mut grants = self.grants_by(|event| event.lock.clone());
        let mut windows = self.windows_by_lock();
        let mut found = Vec::new();
        // The reply to an acquisition may be lost, and that to an extension not.
        let locks: BTreeSet<_> = self
            .events
            .iter()
            .map(|event| event.lock.as_str())
            .collect();
        for lock in locks {
            let grants = grants.remove(lock).unwrap_or_default();
            let windows = windows.remove(lock).unwrap_or_default();
            found.extend(overlapping(lock, windows.clone()));
            found.extend(disorder(lock, grants, windows));
        }
        let mut violations = check::named(found);
        violations.extend(self.changed_fences());
        violations
    }

    /// A node's fences grow over all its locks: one counter.
    pub fn violations_of_one_counter(&self) -> Vec<Violation> {
        let all = self.grants_by(|_| "any lock".to_owned());
        let found = all
            .into_iter()
            .flat_map(|(lock, grants)| disorder(&lock, grants, Vec::new()));
        check::named(found.collect())
    }

    /// How many requests acquired a lock.
    pub fn grants(&self) -> usize {
        self.acquisitions().count()
    }

    /// How many requests were refused with this error.
    pub fn refusals(&self, class: &str) -> usize {
        let refused = Outcome::Fail(class.to_owned());
        let events = self.events.iter();
        events.filter(|event| event.outcome == refused).count()
    }

    /// When each owner relied on its lock. A request that waited gives no window: the extension
    /// after it does.
    fn windows(&self) -> Vec<(&str, Window)> {
        let mut windows: HashMap<u64, (&str, Window)> = HashMap::new();
        let mut released: HashMap<u64, Duration> = HashMap::new();
        for event in &self.events {
            match (event.operation, &event.outcome) {
                (Operation::Release, _) => {
                    let end = released.entry(event.owner).or_insert(event.invoked);
                    *end = event.invoked.min(*end);
                }
                (_, Outcome::Ok(_)) if !event.waits => {
                    let until = event.invoked + validity(event.ttl);
                    let first = Window {
                        owner: event.owner,
                        exclusive: true,
                        from: event.returned,
                        until,
                        fence: fence(event),
                    };
                    let entry = windows.entry(event.owner);
                    let (_, window) = entry.or_insert((&event.lock, first));
                    window.from = window.from.min(event.returned);
                    window.until = window.until.max(until);
                }
                _ => {}
            }
        }
        for (owner, end) in released {
            if let Some((_, window)) = windows.get_mut(&owner) {
                window.until = window.until.min(end);
            }
        }
        let windows = windows.into_values();
        windows
            .filter(|(_, window)| window.from < window.until)
            .collect()
    }

    fn acquisitions(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| {
            event.operation == Operation::Acquire && matches!(event.outcome, Outcome::Ok(_))
        })
    }

    fn grants_by(&self, name: impl Fn(&Event) -> String) -> HashMap<String, Vec<Grant>> {
        let mut by: HashMap<String, Vec<Grant>> = HashMap::new();
        for event in self.acquisitions() {
            by.entry(name(event)).or_default().push(Grant {
                invoked: event.invoked,
                returned: event.returned,
                fence: fence(event),
            });
        }
        by
    }

    fn windows_by_lock(&self) -> HashMap<&str, Vec<Window>> {
        let mut by_lock: HashMap<&str, Vec<Window>> = HashMap::new();
        for (lock, window) in self.windows() {
            by_lock.entry(lock).or_default().push(window);
        }
        by_lock
    }

    fn changed_fences(&self) -> Vec<Violation> {
        let mut fences = HashMap::new();
        for event in self.acquisitions() {
            fences.insert(event.owner, fence(event));
        }
        let extensions = self
            .events
            .iter()
            .filter(|event| event.operation == Operation::Extend);
        extensions
            .filter_map(|event| match (fences.get(&event.owner), &event.outcome) {
                (Some(first), Outcome::Ok(now)) if first != now => {
                    Some(Violation::Changed(event.lock.clone(), *first, *now))
                }
                _ => None,
            })
            .collect()
    }

    /// The events of the owners that a first violation names, for the report.
    fn about(&self, violations: &[Violation]) -> Vec<&Event> {
        let named = |event: &&Event| match violations.first() {
            Some(Violation::Overlap(_, a, b)) => [*a, *b].contains(&event.owner),
            Some(Violation::Doubled(_, a)) => event.outcome == Outcome::Ok(*a),
            Some(Violation::Disordered(_, a, b) | Violation::Changed(_, a, b)) => {
                [Outcome::Ok(*a), Outcome::Ok(*b)].contains(&event.outcome)
            }
            Some(Violation::FalselyHeld(..) | Violation::LostUpdate(..)) | None => false,
        };
        self.events.iter().filter(named).collect()
    }
}

/// How long a client relies on a lease of this length: 1 % for drift, and 2 ms.
pub fn validity(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}

fn fence(event: &Event) -> i64 {
    match event.outcome {
        Outcome::Ok(fence) => fence,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
