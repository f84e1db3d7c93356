//! Which locks a view shows, and in which order.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use super::locks::{Lock, Locks};
use crate::names::key_text;
use crate::sort::Sort;
use crate::summary::State;

/// The longest filter that is accepted, in bytes.
pub const LONGEST_FILTER: usize = 200;

/// What locks are compared by. It is computed once for each lock, not for each comparison.
struct Figures {
    is_idle: bool,
    wait: Option<Duration>,
    waiters: u64,
    age: Option<Duration>,
    lease: Duration,
    fence: u64,
}

/// A lock that matches, and its figures.
type Found<'a> = (Figures, &'a Lock);

/// Which of two locks comes first.
fn compare(sort: Sort, (one, a): &Found, (other, b): &Found) -> Ordering {
    let by = match sort {
        Sort::Wait => Reverse(one.wait).cmp(&Reverse(other.wait)),
        Sort::Waiters => Reverse(one.waiters).cmp(&Reverse(other.waiters)),
        Sort::Held => Reverse(one.age).cmp(&Reverse(other.age)),
        Sort::Lease => one.lease.cmp(&other.lease),
        Sort::Fence => Reverse(one.fence).cmp(&Reverse(other.fence)),
        Sort::Name => Ordering::Equal,
    };
    // What is free, or was not asked about yet, comes last, except in the order of names.
    let idle = match sort {
        Sort::Name => Ordering::Equal,
        _ => one.is_idle.cmp(&other.is_idle),
    };
    idle.then(by).then_with(|| a.key.cmp(&b.key))
}

impl Figures {
    fn of(lock: &Lock) -> Self {
        let summary = lock.summary.as_ref();
        let first = summary.and_then(|summary| Some((summary, summary.holders.first()?)));
        let waiters = summary.map_or(0, |summary| summary.waiters);
        let wait = summary.filter(|_| waiters > 0).map(|all| all.oldest_wait);
        Self {
            is_idle: summary.is_none_or(|all| all.state == State::Free && waiters == 0),
            wait,
            waiters,
            age: first.map(|(_, holder)| holder.age),
            lease: first.map_or(Duration::MAX, |(all, holder)| {
                holder.remaining(all.majority())
            }),
            fence: first.map_or(0, |(_, holder)| holder.fence),
        }
    }
}

/// What a view asks for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Query {
    pub sort: Sort,
    /// A part of the name or of a holder's label, in any case; empty for all.
    pub filter: String,
}

impl Query {
    fn matching<'a>(&self, locks: &'a Locks) -> Vec<Found<'a>> {
        let wanted = self.filter.to_lowercase();
        let found = locks.iter().filter(|lock| matches(lock, &wanted));
        found.map(|lock| (Figures::of(lock), lock)).collect()
    }

    /// The locks that match, from `first` on, at most `count`, and how many match. Only what is
    /// shown is sorted.
    pub fn find<'a>(&self, locks: &'a Locks, first: usize, count: usize) -> (Vec<&'a Lock>, usize) {
        let mut found = self.matching(locks);
        let total = found.len();
        let compare = |a: &Found, b: &Found| compare(self.sort, a, b);
        if first >= total || count == 0 {
            return (Vec::new(), total);
        }
        found.select_nth_unstable_by(first, compare);
        found.drain(..first);
        if count < found.len() {
            found.select_nth_unstable_by(count, compare);
            found.truncate(count);
        }
        found.sort_unstable_by(compare);
        (found.into_iter().map(|(_, lock)| lock).collect(), total)
    }

    /// The place of a lock among those that match.
    pub fn place(&self, locks: &Locks, id: u64) -> Option<usize> {
        let found = self.matching(locks);
        let own = found.iter().find(|(_, lock)| lock.id == id)?;
        let is_before = |one: &&Found| compare(self.sort, one, own) == Ordering::Less;
        Some(found.iter().filter(is_before).count())
    }
}

fn matches(lock: &Lock, wanted: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(wanted);
    let owners = lock.summary.iter().flat_map(|summary| &summary.holders);
    wanted.is_empty()
        || has(&key_text(&lock.key))
        || owners.filter_map(|holder| holder.owner.as_deref()).any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::LockSummary;

    /// Locks with these names, waiters and holders.
    fn locks(wanted: &[(&str, u64, Option<&str>)]) -> Locks {
        let mut locks = Locks::default();
        for (id, (name, waiters, owner)) in (0..).zip(wanted) {
            locks.found(name.as_bytes().into(), 0);
            let holder = owner.map(|owner| (owner, 10 + id, Duration::from_secs(id)));
            locks.learn(id, LockSummary::example(holder, *waiters), 0);
        }
        locks
    }

    fn names(query: &Query, locks: &Locks, first: usize, count: usize) -> Vec<String> {
        let (found, _) = query.find(locks, first, count);
        found.iter().map(|lock| key_text(&lock.key)).collect()
    }

    #[test]
    fn waits_come_first_and_what_is_free_last() {
        let mut known = locks(&[
            ("c", 0, Some("ada")),
            ("a", 0, None),
            ("b", 3, Some("ben")),
            ("d", 1, Some("Ada")),
        ]);
        known.found(b"0".as_slice().into(), 0);
        let query = |sort| Query {
            sort,
            filter: String::new(),
        };
        assert_eq!(
            names(&query(Sort::Waiters), &known, 0, 9),
            ["b", "d", "c", "0", "a"]
        );
        assert_eq!(
            names(&query(Sort::Name), &known, 0, 9),
            ["0", "a", "b", "c", "d"]
        );
        assert_eq!(names(&query(Sort::Fence), &known, 0, 2), ["d", "b"]);
        assert_eq!(names(&query(Sort::Held), &known, 1, 2), ["b", "c"]);
        assert_eq!(names(&query(Sort::Name), &known, 9, 9), [""; 0]);
        assert_eq!(query(Sort::Waiters).place(&known, 3), Some(1));
        assert_eq!(query(Sort::Name).place(&known, 99), None);
        let ada = Query {
            sort: Sort::Name,
            filter: "ADA".to_owned(),
        };
        assert_eq!(names(&ada, &known, 0, 9), ["c", "d"]);
        assert_eq!(ada.find(&known, 0, 1).1, 2);
    }
}
