//! The holders of a shared lock: found by token, and in the order in which their leases end.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::{Hold, Mode, Refusal, Standing};
use crate::time::LeaseTime;
use crate::token::Token;

/// Memory for this many holders is kept.
const KEPT: usize = 128;

/// The owners of a shared lock.
#[derive(Clone, Debug, Default)]
pub struct SharedHolders {
    /// The semaphore's size.
    limit: Option<u32>,
    holds: HashMap<Token, Hold>,
    ends: BTreeSet<(LeaseTime, Token)>,
}

impl SharedHolders {
    /// No holders yet; a semaphore if there is a size.
    #[must_use]
    pub fn new(limit: Option<u32>) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// What they mean for a request of `token` in `mode`.
    #[must_use]
    pub fn standing(&self, token: &Token, mode: Mode, max_holders: u32) -> Standing {
        let holds = self.holds.contains_key(token);
        match mode {
            Mode::Exclusive if holds => Standing::Refused(Refusal::Upgrade),
            Mode::Exclusive => Standing::Excluded,
            Mode::Shared { limit } if limit != self.limit => {
                Standing::Refused(Refusal::UnlikeLimit)
            }
            Mode::Shared { .. } if holds => Standing::Held,
            Mode::Shared { limit } => {
                let holders = self.holds.len();
                if limit.is_some_and(|limit| holders >= limit as usize) {
                    Standing::Excluded
                } else if holders >= max_holders as usize {
                    Standing::Refused(Refusal::TooManyHolders)
                } else {
                    Standing::Open
                }
            }
        }
    }

    /// Whether the holders whose leases run at `now` fill a semaphore of this size.
    #[must_use]
    pub fn fill(&self, limit: Option<u32>, now: LeaseTime) -> bool {
        let Some(size) = limit.filter(|_| limit == self.limit) else {
            return false;
        };
        // Only the ends that can decide it are checked.
        let excess = self.holds.len().checked_sub(size as usize);
        excess.is_some_and(|excess| {
            let first = self.ends.iter().take(excess + 1);
            first.take_while(|(end, _)| *end <= now).count() <= excess
        })
    }

    /// The semaphore's size.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether nobody is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// The hold of `token`.
    #[must_use]
    pub fn get(&self, token: &Token) -> Option<&Hold> {
        self.holds.get(token)
    }

    /// The holds, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.holds.values()
    }

    /// The holds whose leases run at `now`, the one that ends last first.
    pub fn last_to_end(&self, now: LeaseTime) -> impl Iterator<Item = &Hold> {
        let running = self
            .ends
            .iter()
            .rev()
            .take_while(move |(end, _)| *end > now);
        running.filter_map(|(_, token)| self.holds.get(token))
    }

    /// How many have a lease that runs at `now`.
    #[must_use]
    pub fn live(&self, now: LeaseTime) -> usize {
        let ended = self.ends.iter().take_while(|(end, _)| *end <= now);
        self.holds.len() - ended.count()
    }

    /// When the first lease ends, and whose it is.
    #[must_use]
    pub fn first_end(&self) -> Option<&(LeaseTime, Token)> {
        self.ends.first()
    }

    /// When the last lease ends.
    #[must_use]
    pub fn last_end(&self) -> Option<LeaseTime> {
        self.ends.last().map(|(end, _)| *end)
    }

    /// Adds a hold, or replaces the one of its owner.
    pub fn put(&mut self, hold: Hold) {
        self.take(&hold.token);
        self.ends.insert((hold.end, hold.token.clone()));
        self.holds.insert(hold.token.clone(), hold);
    }

    /// Changes the hold of `token`, if it has one.
    pub fn change<R>(&mut self, token: &Token, change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        let hold = self.holds.get_mut(token)?;
        let before = hold.end;
        let result = change(hold);
        if hold.end != before {
            let after = (hold.end, hold.token.clone());
            self.ends.remove(&(before, after.1.clone()));
            self.ends.insert(after);
        }
        Some(result)
    }

    /// Ends the hold of `token`.
    pub fn take(&mut self, token: &Token) -> Option<Hold> {
        let hold = self.holds.remove(token)?;
        self.ends.remove(&(hold.end, hold.token.clone()));
        // Maps do not shrink by themselves.
        if self.holds.capacity() / 8 > self.holds.len() + KEPT {
            self.holds.shrink_to(2 * self.holds.len());
        }
        Some(hold)
    }

    /// Bytes that this value allocates, without those of each hold.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let ends = self.ends.len() * size_of::<(LeaseTime, Token)>();
        self.holds.capacity() * size_of::<(Token, Hold)>() + ends
    }
}
