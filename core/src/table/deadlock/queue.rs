//! The places in one wait queue, and which of them a place ahead keeps from continuing.
//!
//! Most requests may not overtake any other: the first one that cannot continue blocks all behind
//! it. An owner that holds what others wait for may overtake some of the requests ahead. Owners
//! that hold the same locks form a group, for which the first place that they may not overtake is
//! known. No request may overtake a request for only this key: a group behind such a place is not
//! checked before that place has left. So each place is visited a fixed number of times, except for
//! comparisons of groups with requests for several keys, which are counted and limited.

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
    /// Whether the holders of the lock block it, and whether it is enough that one of them
    /// continues.
    pub(super) is_behind_holders: bool,
    pub(super) needs_any: bool,
    /// Whether a place ahead blocks it.
    is_behind_others: bool,
    /// The group of its owner, if that may overtake others.
    group: Option<usize>,
    /// The groups for which this is the first place that blocks them.
    in_the_way_of: Vec<usize>,
}

impl Place<'_> {
    /// Whether no place behind may overtake it, because it waits only for this lock.
    fn is_barrier(&self) -> bool {
        self.waiter.keys.len() == 1
    }

    /// No place ahead blocks it any more.
    fn is_released(&mut self, free: &mut Vec<WaiterId>) {
        if std::mem::take(&mut self.is_behind_others) {
            free.push(self.id);
        }
    }
}

/// The places of owners that may overtake the same others.
struct Group<'a> {
    /// Their name in the search.
    group: search::Group,
    /// The owner, if there is only one: its places do not block each other.
    passes_itself: Option<&'a Token>,
    places: Vec<usize>,
    /// How many of them are not blocked any more.
    free: usize,
    /// The first place that blocks the others.
    held_up_at: usize,
}

/// The wait queue of a lock.
#[derive(Default)]
pub(super) struct Standing<'a> {
    pub(super) places: Vec<Place<'a>>,
    /// The places of owners that may overtake others.
    passing: Vec<usize>,
    groups: Vec<Group<'a>>,
    /// The groups that are behind the barrier, by the first of their places there.
    asleep: BTreeMap<usize, Vec<usize>>,
    /// The first place that has not left and that nobody may overtake.
    barrier: usize,
    /// For each place, one that is at or before the next place that has not left.
    next: Vec<usize>,
    /// The first place that has not left.
    first: usize,
    /// The first place that has not left and has another owner than `first`.
    second: usize,
    /// How many holders have a running lease, and how many of them are not known to continue.
    pub(super) holders: usize,
    pub(super) waiting_holders: usize,
}

/// How the requests of one owner depend on each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// All leave their queues together, and do not block each other.
    ByOwner,
    /// Each leaves when nothing blocks it.
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

    /// The owner of the place that was added last holds something, and may overtake others.
    pub(super) fn may_pass(&mut self) {
        self.passing.extend(self.places.len().checked_sub(1));
    }

    /// How many obstacles each place has.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = (WaiterId, &'a Token, usize)> {
        self.places.iter().map(|place| {
            let both = [place.is_behind_holders, place.is_behind_others];
            let obstacles = both.into_iter().filter(|is_behind| *is_behind).count();
            (place.id, &place.waiter.terms.token, obstacles)
        })
    }

    /// All places are added. Returns those that no place ahead blocks.
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

    /// Groups owners that hold the same locks that others wait for. An owner that may overtake its
    /// own places has its own group.
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

    /// How many places in this queue belong to owners that may overtake others and have several
    /// requests.
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

    /// Moves the barrier to the first place, from this one on, that nobody may overtake.
    fn find_barrier(&mut self, from: usize) {
        let mut rest = self.places.iter().skip(from);
        let ahead = rest.position(|place| !place.has_left && place.is_barrier());
        self.barrier = ahead.map_or(self.places.len(), |ahead| from + ahead);
    }

    /// A request leaves the queue. Returns those that no place ahead blocks any more.
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

    /// A request ahead of this one that blocks it.
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

    /// No place ahead blocks this place any more.
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

    /// The barrier has left: checks the groups that are before the next one.
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

    /// Finds the first place, from this one on, that a group may not overtake.
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
        // When the search is too long, no request may overtake others any more.
        if !is_done
            && !self.sleeps(at_group, at)
            && !search.is_order_exhausted()
            && let Some(place) = self.places.get_mut(at)
        {
            place.in_the_way_of.push(at_group);
        }
    }

    /// Whether a group that may overtake everything before this place is not checked again before
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

    /// The first place that has not left, from this one on, that a group may not overtake.
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

    /// Moves to the first place that has not left: nothing blocks it. If the places of an owner do
    /// not block each other, nothing blocks its owner's next places either.
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
