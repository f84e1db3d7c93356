//! Which owners can go on: those that wait for nobody, and then, step by step, those that wait only
//! for owners who can. All others wait for each other, or for the newcomer.
//!
//! Each place in a queue is looked at a fixed number of times, but for those of owners who may go
//! past others: these look at each one ahead of them once.

use std::ops::Range;

use foldhash::HashMap;

use super::search::{Search, needs_any};
use crate::lock::Lock;
use crate::queue::{Queue, Waiter, WaiterId};
use crate::token::Token;

/// A place in a wait queue.
struct Place<'a> {
    id: WaiterId,
    waiter: &'a Waiter,
    /// Whether its owner can go on.
    goes_on: bool,
    /// Whether the holders of the lock are in its way, and whether one of them that goes on is
    /// enough.
    is_behind_holders: bool,
    needs_any: bool,
    /// Whether somebody ahead was in its way at first.
    is_behind_others: bool,
    /// Whether it may go past some of those ahead.
    may_pass: bool,
    /// Those that may go past others, and for which this is the first in the way.
    in_the_way_of: Vec<usize>,
}

/// Who stands where at a lock.
#[derive(Default)]
struct Standing<'a> {
    places: Vec<Place<'a>>,
    /// The first whose owner is not known to go on.
    first: usize,
    /// How many holders have a lease that runs, and how many of them are not known to go on.
    holders: usize,
    waiting_holders: usize,
}

impl<'a> Standing<'a> {
    fn token(&self, at: usize) -> Option<&'a Token> {
        self.places.get(at).map(|place| &place.waiter.terms.token)
    }
}

/// Who can go on, among those that a search has reached.
pub(super) struct Progress<'s, 'a> {
    search: &'s mut Search<'a>,
    queues: Vec<Standing<'a>>,
    /// How much is in the way of each owner that waits.
    obstacles: HashMap<&'a Token, usize>,
    /// The owners that can go on, and whose dependents have not been looked at.
    going_on: Vec<&'a Token>,
}

impl<'s, 'a> Progress<'s, 'a> {
    /// Finds the owners that cannot go on, and the semaphores that none of the holders can release.
    pub(super) fn find(search: &'s mut Search<'a>) {
        let mut progress = Self {
            search,
            queues: Vec::new(),
            obstacles: HashMap::default(),
            going_on: Vec::new(),
        };
        for at in 0..progress.search.reached.len() {
            let reached = progress.search.reached.get(at);
            if let Some((queue, lock)) = reached.map(|reached| (reached.queue, reached.lock)) {
                progress.add_queue(queue, lock);
            }
        }
        let free = progress.obstacles.iter().filter(|(_, count)| **count == 0);
        progress.going_on = free.map(|(owner, _)| *owner).collect();
        while let Some(owner) = progress.going_on.pop() {
            progress.leave_queues(owner);
            progress.leave_locks(owner);
        }
        let Self {
            search,
            queues,
            obstacles,
            ..
        } = progress;
        let stuck = obstacles.into_iter().filter(|(_, count)| *count > 0);
        search.cannot_go_on = stuck.map(|(owner, _)| owner).collect();
        search.cannot_go_on.insert(search.newcomer);
        for (reached, queue) in search.reached.iter_mut().zip(queues) {
            reached.is_stuck = queue.waiting_holders == queue.holders;
        }
    }

    fn add_queue(&mut self, queue: &'a Queue, lock: Option<&'a Lock>) {
        let table = self.search.table;
        let mut standing = Standing {
            holders: lock.map_or(0, |lock| lock.live_holders(self.search.now)),
            waiting_holders: lock.map_or(0, |lock| self.search.waiting_holders(lock)),
            ..Standing::default()
        };
        for id in queue.waiting.iter() {
            let waiter = table.queues.get(*id);
            // The newcomer's own places in queues keep nobody from going on.
            let others = waiter.filter(|waiter| waiter.terms.token != *self.search.newcomer);
            if let Some(waiter) = others {
                self.add_place(*id, waiter, lock, &mut standing);
            }
        }
        self.search.steps += standing.places.len() as u64;
        self.queues.push(standing);
    }

    fn add_place(
        &mut self,
        id: WaiterId,
        waiter: &'a Waiter,
        lock: Option<&'a Lock>,
        queue: &mut Standing<'a>,
    ) {
        let (table, now) = (self.search.table, self.search.now);
        let (token, mode) = (&waiter.terms.token, waiter.terms.mode);
        let waits = !table.holds(lock, token, now);
        let needs_any = lock.is_some_and(|lock| needs_any(lock, mode));
        let stuck_if = if needs_any { queue.holders } else { 1 };
        let is_excluded = waits && lock.is_some_and(|lock| lock.excludes(mode, now));
        let own = queue.places.len();
        let mut place = Place {
            id,
            waiter,
            goes_on: false,
            is_behind_holders: is_excluded && queue.waiting_holders >= stuck_if,
            needs_any,
            is_behind_others: waits && own > 0,
            // Its other requests are not in its way either.
            may_pass: table.holdings.of(token).is_some() || table.queues.of(token).nth(1).is_some(),
            in_the_way_of: Vec::new(),
        };
        if place.is_behind_others && place.may_pass {
            let first = self.first_ahead(queue, 0..own, token);
            place.is_behind_others = first.is_some();
            if let Some(first) = first.and_then(|first| queue.places.get_mut(first)) {
                first.in_the_way_of.push(own);
            }
        }
        let obstacles = self.obstacles.entry(token).or_default();
        *obstacles += usize::from(place.is_behind_holders) + usize::from(place.is_behind_others);
        queue.places.push(place);
    }

    /// The first of these places that is in the way of a waiter behind them.
    fn first_ahead(
        &self,
        queue: &Standing<'a>,
        places: Range<usize>,
        token: &Token,
    ) -> Option<usize> {
        let others = |at: &usize| {
            let place = queue.places.get(*at);
            place.is_some_and(|place| {
                let in_the_way = !place.goes_on && place.waiter.terms.token != *token;
                in_the_way && !self.search.may_pass(place.id, place.waiter, token)
            })
        };
        places.into_iter().find(others)
    }

    /// An owner can go on: it is in nobody's way in the queues where it waits.
    fn leave_queues(&mut self, owner: &Token) {
        let table = self.search.table;
        for id in table.queues.of(owner) {
            let waiter = table.queues.get(id).into_iter();
            for key in waiter.flat_map(|waiter| &waiter.keys) {
                let at = self.search.by_key.get(key).copied();
                let Some(at) = at.filter(|at| *at < self.queues.len()) else {
                    continue;
                };
                let mut queue = std::mem::take(&mut self.queues[at]);
                self.leave_place(&mut queue, id);
                self.queues[at] = queue;
                self.search.steps += 1;
            }
        }
    }

    fn leave_place(&mut self, queue: &mut Standing<'a>, id: WaiterId) {
        let Ok(at) = queue.places.binary_search_by_key(&id, |place| place.id) else {
            return;
        };
        let Some(place) = queue.places.get_mut(at) else {
            return;
        };
        place.goes_on = true;
        for behind in std::mem::take(&mut place.in_the_way_of) {
            let Some(token) = queue.token(behind) else {
                continue;
            };
            let next = self.first_ahead(queue, at + 1..behind, token);
            match next.and_then(|next| queue.places.get_mut(next)) {
                Some(next) => next.in_the_way_of.push(behind),
                None => self.remove_obstacle(token),
            }
        }
        while queue
            .places
            .get(queue.first)
            .is_some_and(|place| place.goes_on)
        {
            queue.first += 1;
            if let Some(next) = queue.places.get(queue.first)
                && next.is_behind_others
                && !next.may_pass
            {
                self.remove_obstacle(&next.waiter.terms.token);
            }
        }
    }

    /// An owner can go on: it is in nobody's way at the locks that it holds.
    fn leave_locks(&mut self, owner: &Token) {
        for at in self.search.queues_for(owner) {
            let Some(queue) = self.queues.get_mut(at) else {
                continue;
            };
            queue.waiting_holders = queue.waiting_holders.saturating_sub(1);
            let (all, first) = (
                queue.waiting_holders == 0,
                queue.waiting_holders + 1 == queue.holders,
            );
            if !all && !first {
                continue;
            }
            let served = queue.places.iter_mut().filter(|place| {
                place.is_behind_holders && if place.needs_any { first } else { all }
            });
            let served: Vec<_> = served
                .map(|place| {
                    place.is_behind_holders = false;
                    &place.waiter.terms.token
                })
                .collect();
            self.search.steps += queue.places.len() as u64;
            served
                .into_iter()
                .for_each(|token| self.remove_obstacle(token));
        }
    }

    fn remove_obstacle(&mut self, owner: &'a Token) {
        if let Some(obstacles) = self.obstacles.get_mut(owner) {
            *obstacles -= 1;
            if *obstacles == 0 {
                self.going_on.push(owner);
            }
        }
    }
}
