//! Who waits for whom: whether one more wait would close a circle.
//!
//! The owners are the points of the graph. An owner that waits depends on those who hold what it waits for (on all of them,
//! or, where a semaphore is full, on any one of them) and on those who are ahead of it in a line. A new wait closes a
//! circle if it depends on somebody who depends on something that the newcomer holds: neither would ever go on.
//!
//! Only who holds something that is waited for can close a circle. Who may is remembered ([`Suspects`]), so all others pay for
//! one look there. For the rest a line is walked again only when one of its holders or waiters was found stuck elsewhere, so that a long chain of
//! owners costs a few steps for each of them.

use std::collections::BTreeSet;

use foldhash::{HashMap, HashSet};

use super::Table;
use crate::lock::{Lock, Mode, Terms};
use crate::queue::Waiter;
use crate::slots::LockId;
use crate::time::Instant;
use crate::token::{Key, Token};

/// The owners that cannot go on before the newcomer lets go of something, the newcomer among them for what it holds.
type Stuck<'a> = HashSet<&'a Token>;

/// Those who may hold something that is waited for. Some do no longer: nothing is taken out when a hold ends.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    owners: HashSet<Token>,
    /// Shared locks that are waited for: their holders are looked up there.
    crowds: HashSet<LockId>,
}

/// So many suspects are never too many.
const FEW_SUSPECTS: usize = 64;

impl Suspects {
    fn add(&mut self, id: LockId, lock: &Lock) {
        match lock {
            Lock::Free => {}
            Lock::Exclusive(hold) => {
                if !self.owners.contains(&hold.token) {
                    self.owners.insert(hold.token.clone());
                }
            }
            Lock::Shared(_) => {
                self.crowds.insert(id);
            }
        }
    }
}

impl Table {
    /// Somebody waits for a lock, or its holders are others than before: they are suspects.
    pub(super) fn suspect_holders(&mut self, id: LockId) {
        let Some(entry) = self.slots.get(id).filter(|entry| entry.queued) else {
            return;
        };
        self.suspects.add(id, &entry.lock);
        let suspects = self.suspects.owners.len() + self.suspects.crowds.len();
        if suspects > 2 * self.queue.lines() + FEW_SUSPECTS {
            let mut suspects = Suspects::default();
            for id in self.queue.each_line().filter_map(|line| line.lock) {
                suspects.add(id, self.lock(id).unwrap_or(&Lock::Free));
            }
            self.suspects = suspects;
        }
    }

    /// Whether one more wait, of `terms.token` for `keys`, would close a circle.
    pub(super) fn closes_a_circle(
        &mut self,
        keys: &[Key],
        locks: &[Option<LockId>],
        terms: &Terms,
        now: Instant,
    ) -> bool {
        let newcomer = &terms.token;
        if self.queue.is_empty() || !self.holds_what_is_waited_for(newcomer) {
            return false;
        }
        let stuck = self.stuck_behind(newcomer, now);
        keys.iter().zip(locks).any(|(key, lock)| {
            let lock = lock.and_then(|id| self.lock(id));
            if is_excluded_by(lock, newcomer, terms.mode, now, &stuck) {
                return true;
            }
            let line = self.queue.line(key).filter(|_| !holds(lock, newcomer, now));
            let ahead = line.into_iter().flat_map(|line| line.waiting.iter());
            let mut ahead = ahead.filter_map(|id| self.queue.get(*id));
            ahead.any(|ahead| self.is_stuck_before(ahead, newcomer, newcomer, now, &stuck))
        })
    }

    fn holds_what_is_waited_for(&mut self, token: &Token) -> bool {
        let holds = |id| self.lock(id).is_some_and(|lock| lock.hold(token).is_some());
        if self.suspects.crowds.iter().copied().any(holds) {
            return true;
        }
        if !self.suspects.owners.contains(token) {
            return false;
        }
        let mut locks = self.queue.each_line().filter_map(|line| line.lock);
        let holds = locks.any(holds);
        if !holds {
            self.suspects.owners.remove(token);
        }
        holds
    }

    /// Everybody who cannot go on before the newcomer lets go of what it holds.
    fn stuck_behind<'a>(&'a self, newcomer: &'a Token, now: Instant) -> Stuck<'a> {
        let lines = self.lines_by_holder();
        let of_holder = |owner| lines.get(owner).into_iter().flatten().copied();
        let mut stuck = Stuck::from_iter([newcomer]);
        let mut to_walk: BTreeSet<&Key> = of_holder(newcomer).collect();
        while let Some(key) = to_walk.pop_first() {
            for owner in self.walk(key, newcomer, now, &mut stuck) {
                to_walk.extend(of_holder(owner));
                let places = self.queue.of(owner).filter_map(|id| self.queue.get(id));
                to_walk.extend(places.flat_map(|waiter| &waiter.keys));
            }
        }
        stuck
    }

    /// The keys that are waited for, by who holds them.
    fn lines_by_holder(&self) -> HashMap<&Token, Vec<&Key>> {
        let mut lines: HashMap<&Token, Vec<&Key>> = HashMap::default();
        for key in self.queue.keys() {
            let lock = self.queue.line(key).and_then(|line| self.lock(line.lock?));
            for hold in lock.into_iter().flat_map(Lock::holds) {
                lines.entry(&hold.token).or_default().push(key);
            }
        }
        lines
    }

    /// Finds who is stuck in one line, first to last, and was not known to be.
    fn walk<'a>(
        &'a self,
        key: &Key,
        newcomer: &Token,
        now: Instant,
        stuck: &mut Stuck<'a>,
    ) -> Vec<&'a Token> {
        let Some(line) = self.queue.line(key) else {
            return Vec::new();
        };
        let lock = line.lock.and_then(|id| self.lock(id));
        let (mut stuck_ahead, mut found): (Vec<&Waiter>, _) = (Vec::new(), Vec::new());
        for waiter in line.waiting.iter().filter_map(|id| self.queue.get(*id)) {
            let owner = &waiter.terms.token;
            if !stuck.contains(owner) && !holds(lock, owner, now) {
                let mut ahead = stuck_ahead.iter();
                let waits = is_excluded_by(lock, owner, waiter.terms.mode, now, stuck)
                    || ahead.any(|ahead| self.is_stuck_before(ahead, owner, newcomer, now, stuck));
                if waits {
                    stuck.insert(owner);
                    found.push(owner);
                }
            }
            if stuck.contains(owner) {
                stuck_ahead.push(waiter);
            }
        }
        found
    }

    /// Whether a waiter is stuck and `owner`, behind it, may not go past it. The newcomer's own places in lines keep nobody
    /// from going on; only its holds do.
    fn is_stuck_before(
        &self,
        ahead: &Waiter,
        owner: &Token,
        newcomer: &Token,
        now: Instant,
        stuck: &Stuck<'_>,
    ) -> bool {
        let token = &ahead.terms.token;
        token != newcomer
            && token != owner
            && stuck.contains(token)
            && !self.waits_for(ahead, owner, now)
    }
}

fn holds(lock: Option<&Lock>, owner: &Token, now: Instant) -> bool {
    lock.and_then(|lock| lock.hold(owner))
        .is_some_and(|hold| hold.end > now)
}

/// Whether `owner` cannot have the lock before somebody who is stuck lets go of it.
fn is_excluded_by(
    lock: Option<&Lock>,
    owner: &Token,
    mode: Mode,
    now: Instant,
    stuck: &Stuck<'_>,
) -> bool {
    let Some(lock) = lock.filter(|lock| lock.excludes(mode, now) && !holds(Some(lock), owner, now))
    else {
        return false;
    };
    let mut holders = lock
        .holds()
        .filter(|hold| hold.end > now)
        .map(|hold| &hold.token);
    match (lock, mode) {
        (Lock::Shared(_), Mode::Shared { .. }) => holders.all(|holder| stuck.contains(holder)),
        _ => holders.any(|holder| stuck.contains(holder)),
    }
}
