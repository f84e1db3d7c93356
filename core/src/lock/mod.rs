//! One lock: its holders, modes, leases and fences, and what a request may do to it.
//!
//! Everything here is about a single lock whose ended leases have already been removed
//! ([`Lock::take_ended`]). [`crate::queue`] is about its waiters, and [`crate::table`] about
//! several locks at once.
//!
//! A new option of a hold goes into [`Terms`] (the terms of a request), is checked in
//! [`Lock::standing`] or [`Hold::renew`], and is stored in [`Hold`].

mod hold;
mod shared;

pub use hold::{Hold, OverCap, Terms, Tie, check_end, latest_end, tighter};
pub use shared::SharedHolders;

use crate::time::LeaseTime;
use crate::token::Token;

/// How a lock is held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One owner at a time.
    Exclusive,
    /// Any number of owners, or at most `limit` of them (a semaphore).
    Shared {
        /// The semaphore's size.
        limit: Option<u32>,
    },
}

/// What a lock means for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody holds it, or the holders share it: only the queue can prevent a grant.
    Open,
    /// The token holds it already.
    Held,
    /// The holders exclude the request.
    Excluded,
    /// It cannot be acquired in this mode, not even by waiting.
    Refused(Refusal),
}

/// Why a lock cannot be acquired in the requested mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A shared holder asks for the exclusive lock.
    Upgrade,
    /// The semaphore has another size now.
    UnlikeLimit,
    /// The lock has the most holders that are allowed.
    TooManyHolders,
}

/// The state of one lock.
#[derive(Clone, Debug, Default)]
pub enum Lock {
    /// Nobody holds it. Such a lock has no key; it exists only between a release and its
    /// consequences.
    #[default]
    Free,
    /// One owner.
    Exclusive(Hold),
    /// One or more owners.
    Shared(Box<SharedHolders>),
}

impl Lock {
    /// What this lock means for a request of `token` in `mode`.
    #[must_use]
    pub fn standing(&self, token: &Token, mode: Mode, max_holders: u32) -> Standing {
        match (self, mode) {
            (Self::Free, _) => Standing::Open,
            (Self::Exclusive(hold), _) if hold.token == *token => Standing::Held,
            (Self::Exclusive(_), _) => Standing::Excluded,
            (Self::Shared(holders), _) => holders.standing(token, mode, max_holders),
        }
    }

    /// Whether the holders whose leases run at `now` exclude others in `mode`. They do not if the
    /// mode is refused.
    #[must_use]
    pub fn excludes(&self, mode: Mode, now: LeaseTime) -> bool {
        match (self, mode) {
            (Self::Free, _) => false,
            (Self::Exclusive(_), _) | (Self::Shared(_), Mode::Exclusive) => {
                self.last_end().is_some_and(|end| end > now)
            }
            (Self::Shared(holders), Mode::Shared { limit }) => holders.fill(limit, now),
        }
    }

    /// Adds a hold; the request's [`Standing`] is [`Standing::Open`].
    pub fn grant(&mut self, hold: Hold, mode: Mode) {
        match (&mut *self, mode) {
            (_, Mode::Exclusive) => *self = Self::Exclusive(hold),
            (Self::Shared(holders), Mode::Shared { .. }) => holders.put(hold),
            (_, Mode::Shared { limit }) => {
                let mut holders = Box::new(SharedHolders::new(limit));
                holders.put(hold);
                *self = Self::Shared(holders);
            }
        }
    }

    /// The hold of `token`.
    #[must_use]
    pub fn hold(&self, token: &Token) -> Option<&Hold> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then_some(hold),
            Self::Shared(holders) => holders.get(token),
        }
    }

    /// Changes the hold of `token`, if it has one.
    pub fn change<R>(&mut self, token: &Token, change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then(|| change(hold)),
            Self::Shared(holders) => holders.change(token, change),
        }
    }

    /// Ends the hold of `token`.
    pub fn take(&mut self, token: &Token) -> Option<Hold> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) if hold.token == *token => match std::mem::take(self) {
                Self::Exclusive(hold) => Some(hold),
                _ => None,
            },
            Self::Exclusive(_) => None,
            Self::Shared(holders) => {
                let hold = holders.take(token);
                if holders.is_empty() {
                    *self = Self::Free;
                }
                hold
            }
        }
    }

    /// Ends the hold whose lease ends first, if that lease is over.
    pub fn take_ended(&mut self, now: LeaseTime) -> Option<Hold> {
        if self.first_end()? > now {
            return None;
        }
        match self {
            Self::Shared(holders) => {
                let token = holders.first_end()?.1.clone();
                self.take(&token)
            }
            _ => match std::mem::take(self) {
                Self::Exclusive(hold) => Some(hold),
                _ => None,
            },
        }
    }

    /// When the first lease ends.
    #[must_use]
    pub fn first_end(&self) -> Option<LeaseTime> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => Some(hold.end),
            Self::Shared(holders) => holders.first_end().map(|(end, _)| *end),
        }
    }

    /// When the last lease ends.
    #[must_use]
    pub fn last_end(&self) -> Option<LeaseTime> {
        match self {
            Self::Shared(holders) => holders.last_end(),
            _ => self.first_end(),
        }
    }

    /// Whether nobody holds it.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// How many owners it has.
    #[must_use]
    pub fn holders(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Exclusive(_) => 1,
            Self::Shared(holders) => holders.len(),
        }
    }

    /// How many owners have a lease that runs at `now`.
    #[must_use]
    pub fn live_holders(&self, now: LeaseTime) -> usize {
        match self {
            Self::Shared(holders) => holders.live(now),
            _ => usize::from(self.first_end().is_some_and(|end| end > now)),
        }
    }

    /// Its mode; exclusive if nobody holds it.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Free | Self::Exclusive(_) => Mode::Exclusive,
            Self::Shared(holders) => Mode::Shared {
                limit: holders.limit(),
            },
        }
    }

    /// The holds, in no order.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Self::Free => (None, None),
            Self::Exclusive(hold) => (Some(hold), None),
            Self::Shared(holders) => (None, Some(holders.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The holds whose leases run at `now`, the one that ends last first.
    pub fn last_to_end(&self, now: LeaseTime) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Self::Free => (None, None),
            Self::Exclusive(hold) => (Some(hold), None),
            Self::Shared(holders) => (None, Some(holders.last_to_end(now))),
        };
        let one = one.into_iter().filter(move |hold| hold.end > now);
        one.chain(many.into_iter().flatten())
    }

    /// The holds by fence. This order is the same on every node and after every reload.
    #[must_use]
    pub fn holds_in_order(&self) -> Vec<&Hold> {
        let mut holds: Vec<_> = self.holds().collect();
        holds.sort_unstable_by(|a, b| (a.fence, &a.token).cmp(&(b.fence, &b.token)));
        holds
    }

    /// Bytes that this lock allocates. With very many holders, it is estimated from some of them.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let some = self.holds().take(HOLDS_MEASURED);
        let some: usize = some.map(Hold::heap_bytes).sum();
        let holders = self.holders();
        let holds = some * holders / holders.clamp(1, HOLDS_MEASURED);
        match self {
            Self::Shared(shared) => size_of::<SharedHolders>() + shared.heap_bytes() + holds,
            _ => holds,
        }
    }
}

/// The number of holds that are used to estimate the memory of a lock.
const HOLDS_MEASURED: usize = 1000;

#[cfg(test)]
mod tests;
