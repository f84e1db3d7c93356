//! Deadlock, by a plain graph search. The owners are the points. An owner that waits depends on the
//! holders that exclude it (on all of them; where a semaphore is full, on any one of them) and on
//! those ahead of it. A deadlock is a cycle of owners none of whom can go on. A newcomer is refused
//! if its wait would be part of one, for what it *holds*.

use std::collections::BTreeSet;

use super::request::Standing;
use super::{Key, Mode, Model, Request, Token};

/// What one key of one request depends on: on every one of a set, and on one of another set.
#[derive(Default)]
struct Needs {
    every: BTreeSet<Token>,
    one: BTreeSet<Token>,
}

impl Model {
    pub(super) fn would_deadlock(&self, newcomer: &Request) -> bool {
        // The newcomer's places in queues keep nobody from going on, only its holds do.
        let waiting = self.queue.iter().enumerate();
        let needs: Vec<_> = waiting
            .filter(|(_, waiter)| waiter.request.token != newcomer.token)
            .flat_map(|(place, waiter)| {
                let needs = self.needs(&waiter.request, place, Some(newcomer.token));
                needs.into_iter().map(|needs| (waiter.request.token, needs))
            })
            .collect();
        // Everybody who waits, less those who can go on.
        let mut stuck: BTreeSet<_> = needs.iter().map(|(owner, _)| *owner).collect();
        stuck.insert(newcomer.token);
        loop {
            let still = needs.iter().filter(|(_, needs)| needs.are_stuck(&stuck));
            let mut still: BTreeSet<_> = still.map(|(owner, _)| *owner).collect();
            still.insert(newcomer.token);
            if still == stuck {
                break;
            }
            stuck = still;
        }
        // Those of them from whom a chain of waits leads to the newcomer.
        let mut behind = BTreeSet::from([newcomer.token]);
        loop {
            let before = behind.len();
            let more = needs
                .iter()
                .filter(|(_, needs)| needs.lead_to(&behind, &stuck));
            let more: Vec<_> = more.map(|(owner, _)| *owner).collect();
            behind.extend(more);
            if behind.len() == before {
                break;
            }
        }
        self.needs(newcomer, self.queue.len(), None)
            .iter()
            .any(|needs| needs.lead_to(&behind, &stuck))
    }

    /// What a request depends on, key by key; the places of `not` in queues do not count.
    fn needs(&self, request: &Request, place: usize, not: Option<Token>) -> Vec<Needs> {
        let keys = request
            .keys
            .iter()
            .filter(|key| !self.holds(**key, request.token));
        keys.map(|key| {
            let mut needs = Needs::default();
            self.add_holders(*key, request, &mut needs);
            let ahead = self.ahead(*key, request, place).into_iter();
            let ahead = ahead.map(|waiter| waiter.request.token);
            let others = ahead.filter(|token| *token != request.token && Some(*token) != not);
            needs.every.extend(others);
            needs
        })
        .collect()
    }

    /// The holders that exclude a request from a key.
    fn add_holders(&self, key: Key, request: &Request, needs: &mut Needs) {
        if self.standing(key, request) == Standing::Excluded
            && let Some(lock) = self.live(key)
        {
            let is_full = matches!(
                (lock.mode, request.mode),
                (Mode::Shared(_), Mode::Shared(_))
            );
            let set = if is_full {
                &mut needs.one
            } else {
                &mut needs.every
            };
            set.extend(lock.holds.keys());
        }
    }

    /// The requests that wait forever, unless a lease or a wait ends: every one needs another one
    /// of them to be granted, or an owner of one of them to release something.
    pub fn stuck(&self) -> BTreeSet<u64> {
        let mut stuck: BTreeSet<_> = self.queue.iter().map(|waiter| waiter.id).collect();
        loop {
            let owners = self
                .queue
                .iter()
                .filter(|waiter| stuck.contains(&waiter.id));
            let owners: BTreeSet<_> = owners.map(|waiter| waiter.request.token).collect();
            let still = self.queue.iter().enumerate().filter(|(place, waiter)| {
                let request = &waiter.request;
                let mut keys = request.keys.iter();
                stuck.contains(&waiter.id)
                    && keys.any(|key| {
                        let mut needs = Needs::default();
                        self.add_holders(*key, request, &mut needs);
                        let mut ahead = self.ahead(*key, request, *place).into_iter();
                        !self.holds(*key, request.token)
                            && (needs.are_stuck(&owners) || ahead.any(|it| stuck.contains(&it.id)))
                    })
            });
            let still: BTreeSet<_> = still.map(|(_, waiter)| waiter.id).collect();
            if still == stuck {
                return stuck;
            }
            stuck = still;
        }
    }

    /// Whether a request that waits forever keeps itself waiting: a chain of such requests, each of
    /// which needs the next one, leads from it back to it. Others are only behind a deadlock.
    pub fn is_in_deadlock(&self, id: u64) -> bool {
        let stuck = self.stuck();
        let (mut reached, mut next) = (BTreeSet::new(), vec![id]);
        while let Some(at) = next.pop() {
            let needed = self.stuck_before(at, &stuck).into_iter();
            next.extend(needed.filter(|needed| reached.insert(*needed)));
        }
        reached.contains(&id)
    }

    /// Those of these requests that one of them needs to be granted, or to be released after.
    fn stuck_before(&self, id: u64, stuck: &BTreeSet<u64>) -> BTreeSet<u64> {
        let waiting = self
            .queue
            .iter()
            .filter(|waiter| stuck.contains(&waiter.id));
        let waiting: Vec<_> = waiting.collect();
        let owners: BTreeSet<_> = waiting.iter().map(|waiter| waiter.request.token).collect();
        let mut before = BTreeSet::new();
        for (place, waiter) in self.queue.iter().enumerate().filter(|(_, it)| it.id == id) {
            let request = &waiter.request;
            let keys = request.keys.iter();
            for key in keys.filter(|key| !self.holds(**key, request.token)) {
                let mut needs = Needs::default();
                self.add_holders(*key, request, &mut needs);
                let needs_one = needs.needs_one_of(&owners);
                let holds = |token: &Token| {
                    needs.every.contains(token) || needs_one && needs.one.contains(token)
                };
                let of_holders = waiting.iter().filter(|it| holds(&it.request.token));
                before.extend(of_holders.map(|it| it.id));
                let ahead = self.ahead(*key, request, place).into_iter();
                before.extend(ahead.map(|it| it.id).filter(|id| stuck.contains(id)));
            }
        }
        before
    }
}

impl Needs {
    fn are_stuck(&self, stuck: &BTreeSet<Token>) -> bool {
        !self.every.is_disjoint(stuck) || self.needs_one_of(stuck)
    }

    fn needs_one_of(&self, stuck: &BTreeSet<Token>) -> bool {
        !self.one.is_empty() && self.one.is_subset(stuck)
    }

    /// Whether what cannot go on here depends on one of these.
    fn lead_to(&self, these: &BTreeSet<Token>, stuck: &BTreeSet<Token>) -> bool {
        !self.every.is_disjoint(these) || (self.needs_one_of(stuck) && !self.one.is_disjoint(these))
    }
}
