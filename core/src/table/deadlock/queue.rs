//! Who stands where in one wait queue, and whom somebody ahead keeps from going on.
//!
//! Most may go past nobody: the first that does not go on is in the way of all behind it. An owner
//! that holds something may go past some of those ahead; for all its places in a queue together,
//! the first one that it may not go past is known. So each place is looked at a fixed number of
//! times, but for comparisons of who may go past whom, which are counted and limited.

use foldhash::HashMap;

use super::search::Search;
use crate::queue::{Waiter, WaiterId};
use crate::token::Token;

/// A place in a wait queue.
pub(super) struct Place<'a> {
    pub(super) id: WaiterId,
    pub(super) waiter: &'a Waiter,
    /// Whether it has left the queue.
    has_left: bool,
    /// Whether the holders of the lock are in its way, and whether one of them that goes on is
    /// enough.
    pub(super) is_behind_holders: bool,
    pub(super) needs_any: bool,
    /// Whether somebody ahead is in its way.
    is_behind_others: bool,
    /// Those of [`Standing::passing`] for which this is the first in the way.
    in_the_way_of: Vec<usize>,
}

/// All places of an owner that may go past others.
struct Passing {
    places: Vec<usize>,
    /// How many of them have nobody in their way any more.
    free: usize,
    /// The first place that is in the way of the others.
    held_up_at: usize,
}

/// Who stands where at a lock.
#[derive(Default)]
pub(super) struct Standing<'a> {
    pub(super) places: Vec<Place<'a>>,
    passing: Vec<Passing>,
    by_owner: HashMap<&'a Token, usize>,
    /// For each place, one that is not behind the next that has not left.
    next: Vec<usize>,
    /// The first that has not left.
    first: usize,
    /// The first that has not left, and has another owner than `first`.
    second: usize,
    /// How many holders have a lease that runs, and how many of them are not known to go on.
    pub(super) holders: usize,
    pub(super) waiting_holders: usize,
}

/// How the requests of one owner depend on each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// All leave their queues together, and are not in each other's way.
    ByOwner,
    /// Each leaves when nothing is in its own way.
    ByRequest,
}

impl<'a> Standing<'a> {
    pub(super) fn add(&mut self, waiter: (WaiterId, &'a Waiter), holders: [bool; 2], waits: bool) {
        let at = self.places.len();
        self.next.push(at);
        self.places.push(Place {
            id: waiter.0,
            waiter: waiter.1,
            has_left: false,
            is_behind_holders: holders[0],
            needs_any: holders[1],
            is_behind_others: waits && at > 0,
            in_the_way_of: Vec::new(),
        });
    }

    /// The owner of the last place that was added may go past others.
    pub(super) fn may_pass(&mut self, owner: &'a Token) {
        let Some(at) = self.places.len().checked_sub(1).filter(|at| *at > 0) else {
            return;
        };
        let new = self.passing.len();
        let known = *self.by_owner.entry(owner).or_insert(new);
        match self.passing.get_mut(known) {
            Some(passing) => passing.places.push(at),
            None => self.passing.push(Passing {
                places: vec![at],
                free: 0,
                held_up_at: 0,
            }),
        }
    }

    /// How much is in the way of each place.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = (WaiterId, &'a Token, usize)> {
        self.places.iter().map(|place| {
            let both = [place.is_behind_holders, place.is_behind_others];
            let obstacles = both.into_iter().filter(|is_behind| *is_behind).count();
            (place.id, &place.waiter.terms.token, obstacles)
        })
    }

    /// All places are there: those whom nobody ahead keeps from going on.
    pub(super) fn begin(&mut self, search: &mut Search<'a>, together: Together) -> Vec<WaiterId> {
        let mut free = Vec::new();
        for owner in 0..self.passing.len() {
            self.look_ahead(owner, 0, search, together, &mut free);
        }
        self.advance(search, together, &mut free);
        free
    }

    /// A request leaves the queue: those whom nobody ahead keeps from going on any more.
    pub(super) fn leave(
        &mut self,
        id: WaiterId,
        search: &mut Search<'a>,
        together: Together,
    ) -> Vec<WaiterId> {
        let mut free = Vec::new();
        let at = self.places.binary_search_by_key(&id, |place| place.id);
        let Some((at, place)) = at.ok().and_then(|at| Some((at, self.places.get_mut(at)?))) else {
            return free;
        };
        place.has_left = true;
        if let Some(next) = self.next.get_mut(at) {
            *next = at + 1;
        }
        for owner in std::mem::take(&mut place.in_the_way_of) {
            self.look_ahead(owner, at + 1, search, together, &mut free);
        }
        self.advance(search, together, &mut free);
        free
    }

    /// The place of a request.
    pub(super) fn place(&self, id: WaiterId) -> Option<&Place<'a>> {
        let at = self.places.binary_search_by_key(&id, |place| place.id);
        self.places.get(at.ok()?)
    }

    /// The first request ahead of this one that is in its way.
    pub(super) fn first_in_the_way(&self, id: WaiterId) -> Option<WaiterId> {
        let place = self.place(id).filter(|place| place.is_behind_others)?;
        let passing = self.by_owner.get(&place.waiter.terms.token);
        let passing = passing.and_then(|owner| self.passing.get(*owner));
        let first = passing.map_or(self.first, |passing| passing.held_up_at);
        self.places.get(first).map(|place| place.id)
    }

    fn owner(&self, at: usize) -> Option<&'a Token> {
        self.places.get(at).map(|place| &place.waiter.terms.token)
    }

    /// Nobody ahead of a place is in its way any more.
    fn release(&mut self, at: usize, free: &mut Vec<WaiterId>) {
        if let Some(place) = self.places.get_mut(at)
            && std::mem::take(&mut place.is_behind_others)
        {
            free.push(place.id);
        }
    }

    /// The first place from this one on that has not left.
    fn staying(&mut self, mut at: usize) -> usize {
        while let Some(next) = self.next.get(at).copied().filter(|next| *next != at) {
            let after = self.next.get(next).copied().unwrap_or(next);
            if let Some(shortened) = self.next.get_mut(at) {
                *shortened = after;
            }
            at = next;
        }
        at
    }

    /// Goes on to the first place, from this one on, that an owner may not go past.
    fn look_ahead(
        &mut self,
        owner: usize,
        from: usize,
        search: &mut Search<'a>,
        together: Together,
        free: &mut Vec<WaiterId>,
    ) {
        let places = self.passing.get(owner).map(|passing| &passing.places);
        let ends = places.and_then(|places| Some((*places.first()?, *places.last()?)));
        let Some((token, last)) = ends.and_then(|(first, last)| Some((self.owner(first)?, last)))
        else {
            return;
        };
        let mut at = self.staying(from);
        while let Some(place) = self.places.get(at).filter(|_| at < last) {
            search.steps += 1;
            let is_own = place.waiter.terms.token == *token;
            let may_pass = if is_own {
                together == Together::ByOwner
            } else {
                search.may_pass(place.id, place.waiter, token)
            };
            if !may_pass {
                break;
            }
            at = self.staying(at + 1);
        }
        if let Some(passing) = self.passing.get_mut(owner) {
            passing.held_up_at = at;
        }
        while let Some(passing) = self.passing.get_mut(owner)
            && let Some(next) = passing.places.get(passing.free).copied()
            && next <= at
        {
            passing.free += 1;
            self.release(next, free);
        }
        // When the search is too long, nobody may go past others any more.
        if at < last
            && !search.is_order_exhausted()
            && let Some(place) = self.places.get_mut(at)
        {
            place.in_the_way_of.push(owner);
        }
    }

    /// Goes on to the first place that has not left: nobody is in its way, nor, where an owner's
    /// places are not in each other's way, in that of its owner's next ones.
    fn advance(&mut self, search: &mut Search<'a>, together: Together, free: &mut Vec<WaiterId>) {
        while self
            .places
            .get(self.first)
            .is_some_and(|place| place.has_left)
        {
            self.first += 1;
            search.steps += 1;
        }
        self.release(self.first, free);
        let Some(token) = self.owner(self.first) else {
            return;
        };
        if together == Together::ByRequest {
            return;
        }
        self.second = self.second.max(self.first + 1);
        while let Some(place) = self.places.get(self.second) {
            if !place.has_left {
                if place.waiter.terms.token != *token {
                    return;
                }
                self.release(self.second, free);
            }
            self.second += 1;
            search.steps += 1;
        }
    }
}
