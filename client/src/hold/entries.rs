//! Re-entry: the number of guards of an owner for each lock of a hold.

/// The locks of a guard, by their places in the request of its hold; `None` means all of them.
pub(crate) type Part = Option<Vec<usize>>;

/// The number of guards of each lock of a hold; zero if it is released.
#[derive(Debug)]
pub(crate) struct Entries(Vec<usize>);

/// What must be released when a guard ends.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Nothing: each of its locks has another guard.
    Nothing,
    /// These locks of the hold, which have no other guard.
    Locks(Vec<usize>),
    /// The same, but some of the guard's locks have other guards.
    Some(Vec<usize>),
    /// The whole hold: it was the last guard.
    All,
}

impl Entries {
    /// One guard for each lock.
    pub(crate) fn new(locks: usize) -> Self {
        Self(vec![1; locks])
    }

    /// Adds a guard for those of these locks that are still held. `None` if none of them is.
    pub(crate) fn enter(&mut self, locks: impl Iterator<Item = usize>) -> Part {
        let part: Vec<usize> = locks.filter(|lock| self.0[*lock] > 0).collect();
        part.iter().for_each(|lock| self.0[*lock] += 1);
        (!part.is_empty()).then_some(part)
    }

    /// Removes a guard.
    pub(crate) fn leave(&mut self, part: &Part) -> Left {
        let (mut left, mut all) = (Vec::new(), true);
        for (lock, guards) in self.0.iter_mut().enumerate() {
            if *guards > 0 && is_in(part, lock) {
                *guards -= 1;
                match *guards {
                    0 => left.push(lock),
                    _ => all = false,
                }
            }
        }
        if left.is_empty() {
            Left::Nothing
        } else if self.0.iter().all(|guards| *guards == 0) {
            Left::All
        } else if all {
            Left::Locks(left)
        } else {
            Left::Some(left)
        }
    }

    /// Removes a guard, if it is the only one.
    #[cfg(feature = "observe")]
    pub(crate) fn leave_as_last(&mut self, part: &Part) -> bool {
        let guards = self.0.iter().enumerate();
        let only = guards.fold(true, |only, (lock, guards)| {
            only && (*guards == 0 || (*guards == 1 && is_in(part, lock)))
        });
        if only {
            self.0.fill(0);
        }
        only
    }
}

fn is_in(part: &Part, lock: usize) -> bool {
    part.as_ref().is_none_or(|part| part.contains(&lock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lock_is_released_by_the_last_one_in_it() {
        let mut entries = Entries::new(3);
        let one = entries.enter([0].into_iter());
        let two = entries.enter([0, 2].into_iter());
        assert_eq!(entries.leave(&None), Left::Some(vec![1]));
        assert_eq!(entries.enter([1].into_iter()), None);
        assert_eq!(entries.leave(&one), Left::Nothing);
        assert_eq!(entries.enter([1, 2].into_iter()), Some(vec![2]));
        assert_eq!(entries.leave(&two), Left::Some(vec![0]));
        assert_eq!(entries.leave(&Some(vec![2])), Left::All);
    }

    #[test]
    #[cfg(feature = "observe")]
    fn only_a_guard_without_others_is_the_last() {
        let mut entries = Entries::new(2);
        let one = entries.enter([0].into_iter());
        assert!(!entries.leave_as_last(&None));
        assert_eq!(entries.leave(&None), Left::Some(vec![1]));
        assert!(entries.leave_as_last(&one));
        assert_eq!(entries.enter([0, 1].into_iter()), None);
    }
}
