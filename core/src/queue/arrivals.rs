//! The waiters of one queue, in order of arrival.
//!
//! A new waiter has a higher number than all others, and usually the first one leaves next. So they
//! are a list: arriving and leaving first need no search. In a queue of 64, that saves 300
//! instructions of a hand-over, compared with a `BTreeSet`. A waiter that leaves from the middle
//! leaves a gap; the list is compacted when there are more gaps than waiters.

use std::collections::VecDeque;

use super::WaiterId;

/// The mark of a gap.
const GAP: u64 = 1 << 63;

/// The spare capacity that is kept.
const KEPT: usize = 1024;

/// Waiters in order of arrival.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// A single waiter needs no allocation.
    first: Option<WaiterId>,
    /// In order, with gaps; the last one is not a gap.
    others: VecDeque<WaiterId>,
    gaps: usize,
}

fn is_gap(id: &WaiterId) -> bool {
    id.0 & GAP != 0
}

impl Arrivals {
    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len() - self.gaps
    }

    /// The first waiter.
    #[must_use]
    pub fn first(&self) -> Option<&WaiterId> {
        self.first.as_ref()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &WaiterId> {
        let others = self.others.iter().filter(|id| !is_gap(id));
        self.first.iter().chain(others)
    }

    /// Whether this waiter is in the queue.
    #[must_use]
    pub fn contains(&self, id: &WaiterId) -> bool {
        self.first.as_ref() == Some(id) || self.place(*id).is_some()
    }

    /// Adds a waiter that is later than all others, or is in the queue already.
    pub fn join(&mut self, id: WaiterId) {
        let Some(first) = self.first else {
            self.first = Some(id);
            return;
        };
        let last = self.others.back().copied().unwrap_or(first);
        if last < id {
            self.others.push_back(id);
        }
    }

    /// Removes a waiter, if it is in the queue.
    pub fn leave(&mut self, id: WaiterId) {
        if self.first == Some(id) {
            self.first = self.others.pop_front();
            while self.first.as_ref().is_some_and(is_gap) {
                self.gaps -= 1;
                self.first = self.others.pop_front();
            }
        } else if let Some(place) = self.place(id)
            && let Some(other) = self.others.get_mut(place)
        {
            other.0 |= GAP;
            self.gaps += 1;
            while self.others.back().is_some_and(is_gap) {
                self.gaps -= 1;
                self.others.pop_back();
            }
            if self.gaps > self.others.len() / 2 {
                self.others.retain(|id| !is_gap(id));
                self.gaps = 0;
            }
        }
        // The list shrinks at least by half, so this is rare.
        if self.others.capacity() / 4 > self.others.len() + KEPT {
            self.others.shrink_to(self.others.len() * 2 + KEPT);
        }
    }

    /// The index of a waiter in the list.
    fn place(&self, id: WaiterId) -> Option<usize> {
        let found = self
            .others
            .binary_search_by_key(&id.0, |other| other.0 & !GAP);
        found
            .ok()
            .filter(|place| self.others.get(*place) == Some(&id))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The time that they need grows with their square.
    const STEPS: usize = if cfg!(miri) { 60 } else { 200 };

    proptest! {
        #[test]
        fn arrivals_are_a_set_whose_last_one_is_new(
            steps in prop::collection::vec((any::<bool>(), 0..40_u64), 0..STEPS),
        ) {
            let (mut arrivals, mut set, mut last) = (Arrivals::default(), BTreeSet::new(), 0);
            for (joins, number) in steps {
                if joins {
                    last += number % 3;
                    // A waiter that has left does not return.
                    if set.contains(&WaiterId(last)) || number % 3 > 0 {
                        arrivals.join(WaiterId(last));
                        set.insert(WaiterId(last));
                    }
                } else {
                    let id = WaiterId(last.saturating_sub(number));
                    arrivals.leave(id);
                    set.remove(&id);
                }
                prop_assert!(arrivals.iter().eq(&set));
                prop_assert_eq!(
                    (arrivals.len(), arrivals.is_empty(), arrivals.first()),
                    (set.len(), set.is_empty(), set.first())
                );
                for number in 0..=last {
                    let id = WaiterId(number);
                    prop_assert_eq!(arrivals.contains(&id), set.contains(&id));
                }
            }
        }
    }

    /// Half of the list may be gaps, and more than that if those before them have left first.
    #[test]
    fn who_leaves_from_the_middle_removes_the_gaps_if_they_are_more_than_half_of_the_list() {
        let mut arrivals = Arrivals::default();
        (1..=20).for_each(|number| arrivals.join(WaiterId(number)));
        (10..=18).for_each(|number| arrivals.leave(WaiterId(number)));
        assert_eq!((arrivals.gaps, arrivals.others.len()), (9, 19));
        (1..=8).for_each(|number| arrivals.leave(WaiterId(number)));
        assert_eq!((arrivals.gaps, arrivals.others.len()), (9, 11));
        arrivals.leave(WaiterId(19));
        assert_eq!((arrivals.gaps, arrivals.others.len()), (0, 1));
        assert!(arrivals.iter().eq(&[9, 20].map(WaiterId)));
    }

    /// Room for a quarter of what there was, with some to spare, is left as it is.
    #[test]
    fn room_is_given_back_when_far_more_is_spare_than_is_kept() {
        let mut arrivals = Arrivals::default();
        (1..=10_000).for_each(|number| arrivals.join(WaiterId(number)));
        let room = arrivals.others.capacity();
        // One more has to leave for room to be given back.
        let last = (10_000 - 1 - (room / 4 - KEPT)) as u64;
        for number in 1..=last {
            arrivals.leave(WaiterId(number));
            assert_eq!(arrivals.others.capacity(), room);
        }
        arrivals.leave(WaiterId(last + 1));
        let kept = 2 * arrivals.others.len() + KEPT;
        assert!((kept..room / 2).contains(&arrivals.others.capacity()));
    }

    #[test]
    fn who_leaves_from_the_middle_of_many_gives_room_back() {
        const MANY: u64 = if cfg!(miri) { 4_100 } else { 100_000 };
        let mut arrivals = Arrivals::default();
        (1..=MANY).for_each(|number| arrivals.join(WaiterId(number)));
        (2..MANY).for_each(|number| arrivals.leave(WaiterId(number)));
        assert_eq!(arrivals.len(), 2);
        assert!(arrivals.others.capacity() < 8 * KEPT);
    }
}
