//! The places in one wait queue, and which of them a place ahead keeps from continuing.
//!
//! Most may go past nobody: the first that does not go on is in the way of all behind it. An owner
//! that holds what others wait for may go past some of those ahead. Those who hold the same are in
//! one group, for which the first place that they may not go past is known. Nobody may go past a
//! request for this key alone: a group behind one is not looked at before that one has left. So
//! each place is looked at a fixed number of times, but for comparisons of groups with requests for
//! several keys, which are counted and limited.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::search::{self, OVERTAKES_NOBODY, Search};
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
    /// The group of its owner, if that may go past others.
    group: Option<usize>,
    /// The groups for which this is the first in the way.
    in_the_way_of: Vec<usize>,
}

impl Place<'_> {
    /// Whether nobody behind it may go past it: it waits for this lock alone.
    fn is_barrier(&self) -> bool {
        self.waiter.keys.len() == 1
    }

    /// Nobody ahead is in its way any more.
    fn is_released(&mut self, free: &mut Vec<WaiterId>) {
        if std::mem::take(&mut self.is_behind_others) {
            free.push(self.id);
        }
    }
}

/// The places of those who may go past the same others.
struct Group<'a> {
    /// What the search calls them.
    group: search::Group,
    /// The owner, if it is only one, whose places are not in each other's way.
    passes_itself: Option<&'a Token>,
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
    /// The places of owners that may go past others.
    passing: Vec<usize>,
    groups: Vec<Group<'a>>,
    /// The groups that are behind the barrier, by the first of their places there.
    asleep: BTreeMap<usize, Vec<usize>>,
    /// The first that has not left, and that nobody may go past.
    barrier: usize,
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
            group: None,
            in_the_way_of: Vec::new(),
        });
    }

    /// The owner of the last place that was added holds something, and may go past others.
    pub(super) fn may_pass(&mut self) {
        self.passing.extend(self.places.len().checked_sub(1));
    }

    /// How much is in the way of each place.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = (WaiterId, &'a Token, usize)> {
        self.places.iter().map(|place| {
            let both = [place.is_behind_holders, place.is_behind_others];
            let obstacles = both.into_iter().filter(|is_behind| *is_behind).count();
            (place.id, &place.waiter.terms.token, obstacles)
        })
    }

    /// All places are added: returns those that no place ahead keeps from continuing.
    pub(super) fn begin(&mut self, search: &mut Search<'a>, together: Together) -> Vec<WaiterId> {
        let mut free = Vec::new();
        self.form_groups(search, together);
        self.find_barrier(0);
        for group in 0..self.groups.len() {
            self.look_ahead(group, 0, search, &mut free);
        }
        self.advance(search, together, &mut free);
        free
    }

    /// Puts those together who hold the same of what others wait for. An owner that may go past its
    /// own places has a group of its own.
    fn form_groups(&mut self, search: &mut Search<'a>, together: Together) {
        let mut by_group: HashMap<search::Group, usize> = HashMap::default();
        let alone = match together {
            Together::ByOwner => self.owners_with_several_places(search),
            Together::ByRequest => HashMap::default(),
        };
        let mut groups_alone: HashMap<&'a Token, usize> = HashMap::default();
        for at_place in std::mem::take(&mut self.passing) {
            let Some(place) = self.places.get_mut(at_place) else {
                continue;
            };
            let owner = &place.waiter.terms.token;
            let group = search.group_of(owner);
            if group == OVERTAKES_NOBODY {
                continue;
            }
            let is_alone = alone.get(owner).is_some_and(|places| *places > 1);
            let new = self.groups.len();
            let at = if is_alone {
                *groups_alone.entry(owner).or_insert(new)
            } else {
                *by_group.entry(group).or_insert(new)
            };
            place.group = Some(at);
            match self.groups.get_mut(at) {
                Some(group) => group.places.push(at_place),
                None => self.groups.push(Group {
                    group,
                    passes_itself: is_alone.then_some(owner),
                    places: vec![at_place],
                    free: 0,
                    held_up_at: 0,
                }),
            }
        }
    }

    /// How many places here have the owners that may go past others and have several requests.
    fn owners_with_several_places(&self, search: &Search<'a>) -> HashMap<&'a Token, usize> {
        let mut counts = HashMap::default();
        let places = self.passing.iter().filter_map(|at| self.places.get(*at));
        let owners = places.map(|place| &place.waiter.terms.token);
        let queues = &search.table.queues;
        for owner in owners.filter(|owner| queues.waits_of(owner).is_some_and(|it| it.len() > 1)) {
            *counts.entry(owner).or_default() += 1;
        }
        counts
    }

    /// Goes on to the first place, from this one on, that nobody may go past.
    fn find_barrier(&mut self, from: usize) {
        let mut rest = self.places.iter().skip(from);
        let ahead = rest.position(|place| !place.has_left && place.is_barrier());
        self.barrier = ahead.map_or(self.places.len(), |ahead| from + ahead);
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
        for group in std::mem::take(&mut place.in_the_way_of) {
            self.look_ahead(group, at + 1, search, &mut free);
        }
        if at == self.barrier {
            self.lift_barrier(search, &mut free);
        }
        self.advance(search, together, &mut free);
        free
    }

    /// The place of a request.
    pub(super) fn place(&self, id: WaiterId) -> Option<&Place<'a>> {
        let at = self.places.binary_search_by_key(&id, |place| place.id);
        self.places.get(at.ok()?)
    }

    /// A request ahead of this one that is in its way.
    pub(super) fn first_in_the_way(&self, id: WaiterId) -> Option<WaiterId> {
        let at = self
            .places
            .binary_search_by_key(&id, |place| place.id)
            .ok()?;
        let place = self.places.get(at).filter(|place| place.is_behind_others)?;
        let group = place.group.and_then(|group| self.groups.get(group));
        let first = match group {
            Some(group) if group.passes_itself.is_some() || self.barrier >= at => group.held_up_at,
            Some(_) => self.barrier,
            None => self.first,
        };
        self.places.get(first).map(|place| place.id)
    }

    fn owner(&self, at: usize) -> Option<&'a Token> {
        self.places.get(at).map(|place| &place.waiter.terms.token)
    }

    /// Nobody ahead of a place is in its way any more.
    fn release(&mut self, at: usize, free: &mut Vec<WaiterId>) {
        if let Some(place) = self.places.get_mut(at) {
            place.is_released(free);
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

    /// The barrier has left: those who were asleep until the next one are looked at.
    fn lift_barrier(&mut self, search: &mut Search<'a>, free: &mut Vec<WaiterId>) {
        let before = self.barrier;
        self.find_barrier(before + 1);
        search.steps += (self.barrier - before) as u64;
        while let Some(first) = self.asleep.first_entry()
            && *first.key() <= self.barrier
        {
            for group in first.remove() {
                let from = self.groups.get(group).map_or(0, |group| group.held_up_at);
                self.look_ahead(group, from, search, free);
            }
        }
    }

    /// Goes on to the first place, from this one on, that a group may not go past.
    fn look_ahead(
        &mut self,
        at_group: usize,
        from: usize,
        search: &mut Search<'a>,
        free: &mut Vec<WaiterId>,
    ) {
        if self.sleeps(at_group, from) {
            return;
        }
        let at = self.first_not_passed(at_group, from, search);
        let Some(group) = self.groups.get_mut(at_group) else {
            return;
        };
        while let Some(next) = group
            .places
            .get(group.free)
            .copied()
            .filter(|next| *next <= at)
        {
            group.free += 1;
            if let Some(place) = self.places.get_mut(next) {
                place.is_released(free);
            }
        }
        let is_done = group.free == group.places.len();
        // When the search is too long, nobody may go past others any more.
        if !is_done
            && !self.sleeps(at_group, at)
            && !search.is_order_exhausted()
            && let Some(place) = self.places.get_mut(at)
        {
            place.in_the_way_of.push(at_group);
        }
    }

    /// Whether a group, which may go past all before this place, is not looked at any more before
    /// the barrier has left.
    fn sleeps(&mut self, at_group: usize, at: usize) -> bool {
        let Some(group) = self.groups.get_mut(at_group) else {
            return true;
        };
        group.held_up_at = at;
        let behind = group
            .places
            .get(group.free)
            .filter(|_| group.passes_itself.is_none());
        let behind = behind.copied().filter(|behind| self.barrier < *behind);
        if let Some(behind) = behind {
            self.asleep.entry(behind).or_default().push(at_group);
        }
        behind.is_some()
    }

    /// The first place that has not left, from this one on, that a group may not go past.
    fn first_not_passed(&mut self, at_group: usize, from: usize, search: &mut Search<'a>) -> usize {
        let mut at = self.staying(from);
        let Some(Group {
            group,
            passes_itself,
            places,
            ..
        }) = self.groups.get(at_group)
        else {
            return at;
        };
        let (group, passes_itself) = (*group, *passes_itself);
        let last = places.last().copied().unwrap_or(0);
        while let Some(place) = self.places.get(at).filter(|_| at < last) {
            search.steps += 1;
            let is_own = passes_itself == Some(&place.waiter.terms.token);
            if !is_own && !search.may_pass(place.id, place.waiter, group) {
                break;
            }
            at = self.staying(at + 1);
        }
        at
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
