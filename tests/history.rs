//! What clients asked and what they were told, and the checks over it: windows never overlap,
//! fences are unique and ordered. All clients of a test share one monotonic clock, so the checks
//! are exact.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The moment from which all moments of a history are counted.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A moment of a history.
pub fn now() -> Duration {
    let origin = *ORIGIN;
    origin.elapsed()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Acquire,
    Extend,
    Release,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It happened; the fence, or how many holds were taken off.
    Ok(i64),
    /// It did not happen. The first word of the error, empty for null.
    Fail(String),
    /// It may happen at any time after the invocation.
    Unknown,
}

/// One request, of one owner for one lock.
#[derive(Clone, Debug)]
pub struct Event {
    /// Each attempt to acquire is an owner of its own, with a token that is never used again.
    pub owner: u64,
    pub lock: String,
    pub operation: Operation,
    pub ttl: Duration,
    /// A request that waits on the server says nothing about when the lease began.
    pub waits: bool,
    pub invoked: Duration,
    pub returned: Duration,
    pub outcome: Outcome,
}

/// When an owner may rely on its lock.
#[derive(Clone, Debug)]
pub struct Window {
    pub owner: u64,
    pub lock: String,
    pub from: Duration,
    pub until: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// Two owners rely on one lock at the same time.
    Overlap(String, u64, u64),
    /// Two owners have the same fence.
    Doubled(String, i64),
    /// The later owner has the lower fence.
    Disordered(String, i64, i64),
    /// A hold's fence was not the one that its extension told.
    Changed(String, i64, i64),
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
}

impl History {
    /// Each lock by itself.
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
        let mut violations = self.overlaps();
        for (lock, grants) in self.grants_by(|event| event.lock.clone()) {
            violations.extend(disorder(&lock, grants));
        }
        violations.extend(self.changed_fences());
        violations
    }

    /// A node's fences grow over all its locks: one counter.
    pub fn violations_of_one_counter(&self) -> Vec<Violation> {
        let all = self.grants_by(|_| "any lock".to_owned());
        all.into_iter()
            .flat_map(|(lock, grants)| disorder(&lock, grants))
            .collect()
    }

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
    pub fn windows(&self) -> Vec<Window> {
        let mut windows: HashMap<u64, Window> = HashMap::new();
        let mut released: HashMap<u64, Duration> = HashMap::new();
        for event in &self.events {
            match (event.operation, &event.outcome) {
                (Operation::Release, _) => {
                    let end = released.entry(event.owner).or_insert(event.invoked);
                    *end = event.invoked.min(*end);
                }
                (_, Outcome::Ok(_)) if !event.waits => {
                    let until = event.invoked + validity(event.ttl);
                    let window = windows.entry(event.owner).or_insert(Window {
                        owner: event.owner,
                        lock: event.lock.clone(),
                        from: event.returned,
                        until,
                    });
                    window.from = window.from.min(event.returned);
                    window.until = window.until.max(until);
                }
                _ => {}
            }
        }
        for (owner, end) in released {
            if let Some(window) = windows.get_mut(&owner) {
                window.until = window.until.min(end);
            }
        }
        let windows = windows.into_values();
        windows
            .filter(|window| window.from < window.until)
            .collect()
    }

    fn acquisitions(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(|event| {
            event.operation == Operation::Acquire && matches!(event.outcome, Outcome::Ok(_))
        })
    }

    fn grants_by(&self, name: impl Fn(&Event) -> String) -> HashMap<String, Vec<&Event>> {
        let mut by: HashMap<String, Vec<&Event>> = HashMap::new();
        for event in self.acquisitions() {
            by.entry(name(event)).or_default().push(event);
        }
        by
    }

    fn overlaps(&self) -> Vec<Violation> {
        let mut by_lock: HashMap<String, Vec<Window>> = HashMap::new();
        for window in self.windows() {
            by_lock.entry(window.lock.clone()).or_default().push(window);
        }
        let mut violations = Vec::new();
        for (lock, mut windows) in by_lock {
            windows.sort_by_key(|window| window.from);
            let mut latest: Option<&Window> = None;
            for window in &windows {
                if let Some(before) = latest.filter(|before| before.until > window.from) {
                    violations.push(Violation::Overlap(lock.clone(), before.owner, window.owner));
                }
                if latest.is_none_or(|before| before.until < window.until) {
                    latest = Some(window);
                }
            }
        }
        violations
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
            None => false,
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

/// Fences that are not unique, or not in the order of requests that followed each other.
fn disorder(lock: &str, grants: Vec<&Event>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut fences: Vec<i64> = grants.iter().map(|event| fence(event)).collect();
    fences.sort_unstable();
    for pair in fences.windows(2).filter(|pair| pair[0] == pair[1]) {
        violations.push(Violation::Doubled(lock.to_owned(), pair[0]));
    }
    let mut by_return = grants.clone();
    by_return.sort_by_key(|event| event.returned);
    let mut by_invocation = grants;
    by_invocation.sort_by_key(|event| event.invoked);
    let (mut done, mut highest) = (0, 0);
    for event in by_invocation {
        while by_return
            .get(done)
            .is_some_and(|before| before.returned < event.invoked)
        {
            highest = highest.max(fence(by_return[done]));
            done += 1;
        }
        if fence(event) < highest {
            violations.push(Violation::Disordered(
                lock.to_owned(),
                highest,
                fence(event),
            ));
        }
    }
    violations
}

mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn event(owner: u64, operation: Operation, from: u64, to: u64, outcome: Outcome) -> Event {
        Event {
            owner,
            lock: "job".to_owned(),
            operation,
            ttl: at(1000),
            waits: false,
            invoked: at(from),
            returned: at(to),
            outcome,
        }
    }

    fn acquired(owner: u64, fence: i64, from: u64, to: u64) -> Event {
        event(owner, Operation::Acquire, from, to, Outcome::Ok(fence))
    }

    fn released(owner: u64, from: u64, to: u64, outcome: Outcome) -> Event {
        event(owner, Operation::Release, from, to, outcome)
    }

    fn history(events: &[Event]) -> History {
        History {
            events: events.to_vec(),
        }
    }

    #[test]
    fn a_history_without_fault_is_accepted() {
        let history = history(&[
            acquired(1, 10, 0, 5),
            event(2, Operation::Acquire, 1, 4, Outcome::Fail(String::new())),
            event(1, Operation::Extend, 500, 505, Outcome::Ok(10)),
            released(1, 800, 805, Outcome::Ok(1)),
            acquired(2, 11, 801, 804),
            released(2, 900, 950, Outcome::Unknown),
            acquired(3, 12, 901, 960),
            acquired(4, 13, 1895, 1899),
        ]);
        history.assert_safe();
        assert_eq!(history.violations_of_one_counter(), []);
        assert_eq!((history.grants(), history.refusals("")), (4, 1));
    }

    #[test]
    fn two_windows_that_overlap_are_found() {
        let overlap = |events: &[Event]| {
            let violations = history(events).violations();
            assert!(
                matches!(violations[..], [Violation::Overlap(_, 1, 2)]),
                "{violations:?}"
            );
        };
        overlap(&[acquired(1, 10, 0, 5), acquired(2, 11, 900, 905)]);
        overlap(&[
            acquired(1, 10, 0, 5),
            event(1, Operation::Extend, 500, 505, Outcome::Ok(10)),
            acquired(2, 11, 1200, 1205),
        ]);
        // The one that began before ends after two others.
        overlap(&[
            acquired(1, 10, 0, 5),
            acquired(2, 11, 100, 105),
            released(2, 110, 111, Outcome::Ok(1)),
        ]);
        // An extension that waited for nobody makes the window of a request that waited.
        let waited = Event {
            waits: true,
            ..acquired(1, 10, 0, 700)
        };
        overlap(&[
            waited.clone(),
            event(1, Operation::Extend, 701, 702, Outcome::Ok(10)),
            acquired(2, 11, 1500, 1505),
        ]);
        history(&[waited, acquired(2, 11, 701, 702)]).assert_safe();
    }

    #[test]
    fn what_is_unknown_or_failed_makes_no_window() {
        history(&[
            event(1, Operation::Acquire, 0, 5, Outcome::Unknown),
            acquired(2, 11, 6, 7),
            event(
                3,
                Operation::Acquire,
                8,
                9,
                Outcome::Fail("NOREPLICAS".into()),
            ),
        ])
        .assert_safe();
    }

    #[test]
    fn a_fence_that_is_given_twice_is_found() {
        let mut other = acquired(2, 10, 1500, 1505);
        let twice = history(&[acquired(1, 10, 0, 5), other.clone()]);
        assert!(
            twice
                .violations()
                .contains(&Violation::Doubled("job".into(), 10))
        );
        other.lock = "other".into();
        let elsewhere = history(&[acquired(1, 10, 0, 5), other]);
        elsewhere.assert_safe();
        assert!(!elsewhere.violations_of_one_counter().is_empty());
    }

    #[test]
    fn a_fence_that_is_lower_than_an_earlier_one_is_found() {
        let history = history(&[
            acquired(1, 10, 0, 5),
            released(1, 6, 7, Outcome::Ok(1)),
            acquired(2, 12, 8, 9),
            released(2, 10, 11, Outcome::Ok(1)),
            acquired(3, 11, 12, 13),
        ]);
        assert_eq!(
            history.violations(),
            [Violation::Disordered("job".into(), 12, 11)]
        );
    }

    #[test]
    fn fences_of_requests_at_the_same_time_may_come_in_any_order() {
        let history = history(&[
            acquired(1, 11, 0, 20),
            released(1, 21, 22, Outcome::Ok(1)),
            acquired(2, 10, 1, 3),
            released(2, 4, 5, Outcome::Ok(1)),
        ]);
        history.assert_safe();
    }

    #[test]
    fn a_fence_that_changes_under_its_holder_is_found() {
        let history = history(&[
            acquired(1, 10, 0, 5),
            event(1, Operation::Extend, 6, 7, Outcome::Ok(12)),
        ]);
        assert_eq!(
            history.violations(),
            [Violation::Changed("job".into(), 10, 12)]
        );
    }
}
