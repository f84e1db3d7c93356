//! How locks are granted or re-entered: the checks, the fence, the lease.

use super::deadlock::STEPS_IN_A_LOOK;
use super::{Denial, Granted, Table};
use crate::fence::check_lead;
use crate::lock::{Hold, Lock, Mode, Terms, check_end, latest_end, tighter};
use crate::slots::LockId;
use crate::small::SmallList;
use crate::time::{LeaseTime, Now};
use crate::token::Key;

impl Table {
    /// [`Table::check_terms`] for an owner that holds none of the keys.
    pub(super) fn check_new_terms(&self, terms: &Terms, now: Now) -> Result<(), Denial> {
        let lease_now = self.clock.at(now.mono);
        let latest = latest_end(lease_now, tighter(terms.max_hold, self.limits.max_hold));
        check_end(latest, lease_now, terms.ttl).map_err(Denial::OverCap)?;
        check_lead(now.wall, terms.fence).map_err(Denial::Fence)
    }

    /// Checks the lease against every cap, and the requested fence. Returns whether all keys are
    /// held already.
    pub(super) fn check_terms(
        &self,
        locks: &[Option<LockId>],
        terms: &Terms,
        now: Now,
    ) -> Result<bool, Denial> {
        let lease_now = self.clock.at(now.mono);
        let cap = tighter(terms.max_hold, self.limits.max_hold);
        let mut all_held = true;
        for lock in locks {
            let lock = lock.and_then(|id| self.lock(id));
            let latest = match lock.and_then(|lock| lock.hold(&terms.token)) {
                Some(hold) => hold.latest_end(cap),
                None => {
                    all_held = false;
                    latest_end(lease_now, cap)
                }
            };
            check_end(latest, lease_now, terms.ttl).map_err(Denial::OverCap)?;
        }
        if !all_held {
            check_lead(now.wall, terms.fence).map_err(Denial::Fence)?;
        }
        Ok(all_held)
    }

    /// Grants all keys, which must be available. `key` returns the names of those that have no lock
    /// yet. `waits` is whether the owner waits for something else, if that is known: a second
    /// lookup takes 230 instructions.
    pub(super) fn grant(
        &mut self,
        locks: &[Option<LockId>],
        key: impl Fn(usize) -> Key,
        terms: &Terms,
        waits: Option<bool>,
        now: Now,
    ) -> Result<Granted, Denial> {
        // All are checked first: if one cannot be granted, the others stay as they were.
        let is_free = |lock: LockId| self.lock(lock).is_none_or(Lock::is_free);
        let all_held = match locks {
            // The usual case. It takes 80 instructions less by itself.
            [lock] if lock.is_none_or(is_free) => {
                self.check_new_terms(terms, now)?;
                false
            }
            _ => self.check_terms(locks, terms, now)?,
        };
        let lease_now = self.clock.at(now.mono);
        let fence = if all_held {
            0
        } else {
            self.fences
                .next(now.wall, terms.fence)
                .map_err(Denial::Fence)?
        };
        let (mut is_waited_for, mut full) = (false, SmallList::default());
        let mut grant = |(at, lock): (usize, &Option<LockId>)| {
            let id = lock.unwrap_or_else(|| self.new_lock(key(at), Lock::Free));
            let (fence, is_news) = self.grant_one(id, terms, fence, waits, lease_now);
            is_waited_for |= is_news;
            if is_news && self.lets_holders_past(id, terms.mode, lease_now) {
                full.push(id);
            }
            fence
        };
        let fences = match locks {
            [lock] => SmallList::One(grant((0, lock))),
            _ => locks.iter().enumerate().map(grant).collect(),
        };
        self.let_holders_past(&full);
        if is_waited_for && waits != Some(false) {
            // Other requests of this owner may be a re-entry now, or may overtake those that wait
            // for the lock.
            if let Some(waits) = self.queues.waits_of(&terms.token) {
                // An owner with very many requests costs the decision accordingly.
                self.looks += waits.len() as u64 / STEPS_IN_A_LOOK;
                self.next_up.extend(waits.iter().copied());
                self.suspects.insert(terms.token.clone());
            }
        }
        Ok(fences)
    }

    /// Returns the fence, and whether this is a new hold that others wait for.
    fn grant_one(
        &mut self,
        id: LockId,
        terms: &Terms,
        fence: u64,
        waits: Option<bool>,
        now: LeaseTime,
    ) -> (u64, bool) {
        self.touch_hold(id, &terms.token, |events| events.acquired += 1);
        let Some(entry) = self.slots.get_mut(id) else {
            return (fence, false);
        };
        let mut is_news = false;
        let (cap, role) = (self.limits.max_hold, self.role_changes);
        let reentered = entry.lock.change(&terms.token, |hold| {
            let bound = hold.tie().is_some_and(|tie| tie.role == role);
            // This cannot exceed a cap: `grant` has checked that.
            let _ = hold.renew(now, terms.ttl, cap);
            hold.reenter(u32::from(!terms.once));
            hold.note(terms);
            (hold.fence, bound)
        });
        let (fence, bound) = match reentered {
            Some((fence, bound)) => {
                self.counters.reentries += 1;
                (fence, bound)
            }
            None => {
                entry.lock.grant(Hold::new(terms, fence, now), terms.mode);
                self.counters.grants += 1;
                if entry.is_known() {
                    let waits = || waits.unwrap_or_else(|| self.queues.has(&terms.token));
                    self.holdings.add_of(&terms.token, id, waits);
                }
                is_news = entry.queued;
                (fence, false)
            }
        };
        if terms.ephemeral || bound {
            self.rebind(id, &terms.token, terms.connection);
        }
        (fence, is_news)
    }

    /// Whether this semaphore is full now: then its waiters wait for all its holders, which may
    /// overtake them in the queues of other keys.
    fn lets_holders_past(&self, id: LockId, mode: Mode, now: LeaseTime) -> bool {
        let is_full = |lock: &Lock| mode != Mode::Exclusive && lock.excludes(mode, now);
        self.queues.has_several_keys()
            && self.lock(id).is_some_and(is_full)
            && self.may_be_overtaken(id)
    }

    /// The waiting holders of these semaphores may overtake others. Semaphores may have the same
    /// holders: after as many visits as there are waiters, it notes every waiting owner instead.
    fn let_holders_past(&mut self, full: &[LockId]) {
        let (mut visits, enough) = (0, self.queues.len() as u64);
        for id in full {
            let Some(lock) = self.slots.get(*id).map(|entry| &entry.lock) else {
                continue;
            };
            let before = self.holders_seen();
            let holders = self.holdings.waiting_holders(lock, &self.queues);
            let requests = holders.iter().flat_map(|token| self.queues.of(token));
            self.next_up.extend(requests.inspect(|_| visits += 1));
            visits += self.holders_seen() - before;
            if visits > enough {
                let owners = self.holdings.waiting();
                self.next_up
                    .extend(owners.flat_map(|token| self.queues.of(token)));
                break;
            }
        }
        self.looks += visits / STEPS_IN_A_LOOK;
    }
}
