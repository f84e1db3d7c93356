//! Which owners can continue: those that wait for nobody, and then, step by step, those that wait
//! only for owners that can. All others wait for each other, or for a newcomer.

use foldhash::HashMap;

use super::queue::{Standing, Together};
use super::search::{Search, needs_any};
use crate::lock::Lock;
use crate::queue::{Queue, Waiter, WaiterId};
use crate::token::Token;

/// Which of the requests that a search has reached can continue.
pub(super) struct Progress<'s, 'a> {
    search: &'s mut Search<'a>,
    together: Together,
    queues: Vec<Standing<'a>>,
    /// How many obstacles each request has.
    obstacles: HashMap<WaiterId, (&'a Token, usize)>,
    /// How many requests of each owner are not known to continue.
    owners: HashMap<&'a Token, usize>,
    /// The requests that can continue, and whose dependents have not been checked yet.
    going_on: Vec<WaiterId>,
}

impl<'s, 'a> Progress<'s, 'a> {
    /// Finds the owners that cannot continue, and the semaphores that no holder can release.
    pub(super) fn find(search: &'s mut Search<'a>) {
        let Self {
            search,
            queues,
            owners,
            ..
        } = Self::new(search, Together::ByOwner);
        let stuck = owners.into_iter().filter(|(_, count)| *count > 0);
        search.cannot_go_on = stuck.map(|(owner, _)| owner).collect();
        search.cannot_go_on.extend(search.newcomer);
        for (reached, queue) in search.reached.iter_mut().zip(queues) {
            reached.is_stuck = queue.waiting_holders == queue.holders;
        }
    }

    /// Finds the requests that cannot continue.
    pub(super) fn by_request(search: &'s mut Search<'a>) -> Self {
        Self::new(search, Together::ByRequest)
    }

    /// The requests that cannot continue and whose owners match, by arrival.
    pub(super) fn stuck(&self, is_wanted: impl Fn(&Token) -> bool) -> Vec<WaiterId> {
        let stuck = self.obstacles.iter().filter(|(_, (_, count))| *count > 0);
        let wanted = stuck.filter(|(_, (owner, _))| is_wanted(owner));
        let mut wanted: Vec<_> = wanted.map(|(id, _)| *id).collect();
        wanted.sort_unstable();
        wanted
    }

    /// A request is refused: it no longer blocks others. Neither does its owner, if it has no other
    /// waiting request.
    pub(super) fn is_refused(&mut self, id: WaiterId) {
        if let Some((_, obstacles)) = self.obstacles.get_mut(&id) {
            *obstacles = 0;
            self.going_on.push(id);
            self.go_on();
        }
    }

    /// A cycle of requests, each of which waits for the next one. It is found by following a
    /// request that cannot continue to one that blocks it, and so on; the first request is in the
    /// cycle or behind it. None if it is not fully known which request may overtake which.
    pub(super) fn cycle_from(&mut self, start: WaiterId) -> Vec<(WaiterId, &'a Token)> {
        let (mut path, mut places) = (Vec::new(), HashMap::default());
        let mut next = start;
        while let Some((owner, _)) = self.obstacles.get(&next).copied()
            && !self.search.is_order_exhausted()
        {
            if let Some(first) = places.insert(next, path.len()) {
                return path.split_off(first);
            }
            path.push((next, owner));
            match self.in_the_way_of(next) {
                Some(ahead) => next = ahead,
                None => break,
            }
        }
        Vec::new()
    }

    /// A request that blocks this one, and cannot continue either.
    fn in_the_way_of(&mut self, id: WaiterId) -> Option<WaiterId> {
        let table = self.search.table;
        table.queues.get(id)?.keys.iter().find_map(|key| {
            self.search.steps += 1;
            let at = *self.search.by_key.get(key)?;
            let queue = self.queues.get(at)?;
            let place = queue.place(id)?;
            let holder = place.is_behind_holders.then(|| self.stuck_holder(at));
            match holder.flatten() {
                Some(owner) => table.queues.of(owner).find(|id| self.is_stuck(*id)),
                None => queue.first_in_the_way(id).filter(|id| self.is_stuck(*id)),
            }
        })
    }

    /// Whether a request cannot continue.
    pub(super) fn is_stuck(&self, id: WaiterId) -> bool {
        self.obstacles.get(&id).is_some_and(|(_, count)| *count > 0)
    }

    /// A holder of the lock of a queue that cannot continue.
    fn stuck_holder(&self, at: usize) -> Option<&'a Token> {
        let lock = self.search.reached.get(at)?.lock?;
        let holders = self.search.table.waiting_holders(lock);
        holders.into_iter().find(|owner| {
            let is_stuck = self.owners.get(owner).is_some_and(|count| *count > 0);
            is_stuck && self.search.table.holds(Some(lock), owner, self.search.now)
        })
    }

    fn new(search: &'s mut Search<'a>, together: Together) -> Self {
        let mut progress = Self {
            search,
            together,
            queues: Vec::new(),
            obstacles: HashMap::default(),
            owners: HashMap::default(),
            going_on: Vec::new(),
        };
        let waiting_holders = progress.count_waiting_holders();
        for (at, waiting_holders) in waiting_holders.into_iter().enumerate() {
            let reached = progress.search.reached.get(at);
            if let Some((queue, lock)) = reached.map(|reached| (reached.queue, reached.lock)) {
                progress.add_queue(queue, lock, waiting_holders);
            }
        }
        let free = progress
            .obstacles
            .iter()
            .filter(|(_, (_, count))| *count == 0);
        progress.going_on = free.map(|(id, _)| *id).collect();
        for (owner, _) in progress.obstacles.values() {
            *progress.owners.entry(owner).or_default() += 1;
        }
        progress.go_on();
        progress
    }

    /// Lets all requests continue that can, and then those that they blocked.
    fn go_on(&mut self) {
        while let Some(id) = self.going_on.pop() {
            self.note_progress_of(id);
        }
    }

    /// How many holders of the lock of each queue wait; the newcomer is about to.
    fn count_waiting_holders(&mut self) -> Vec<usize> {
        let owners = self.search.waiting_owners().chain(self.search.newcomer);
        let owners: Vec<_> = owners.collect();
        let mut counts = vec![0; self.search.reached.len()];
        for owner in owners {
            for at in self.search.waited_for_of(owner).iter() {
                if let Some(count) = counts.get_mut(*at) {
                    *count += 1;
                }
            }
        }
        counts
    }

    fn add_queue(&mut self, queue: &'a Queue, lock: Option<&'a Lock>, waiting_holders: usize) {
        let table = self.search.table;
        let mut standing = Standing::default();
        standing.holders = lock.map_or(0, |lock| lock.live_holders(self.search.now));
        standing.waiting_holders = waiting_holders;
        for id in queue.waiting.iter() {
            let waiter = table.queues.get(*id);
            // The newcomer's own places in queues do not block anybody.
            let others = waiter.filter(|waiter| Some(&waiter.terms.token) != self.search.newcomer);
            if let Some(waiter) = others {
                self.add_place(*id, waiter, lock, &mut standing);
            }
        }
        self.search.steps += standing.places.len() as u64;
        // A request that is free from the beginning has no obstacles.
        standing.begin(self.search, self.together);
        for (id, owner, obstacles) in standing.obstacles() {
            self.obstacles.entry(id).or_insert((owner, 0)).1 += obstacles;
        }
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
        let waits = !table.is_leaving(id) && !table.holds(lock, token, now);
        let needs_any = lock.is_some_and(|lock| needs_any(lock, mode));
        let stuck_if = if needs_any { queue.holders } else { 1 };
        let is_excluded = waits && lock.is_some_and(|lock| lock.excludes(mode, now));
        let is_behind_holders = is_excluded && queue.waiting_holders >= stuck_if;
        queue.add((id, waiter), [is_behind_holders, needs_any], waits);
        if waits && table.holdings.of(token).is_some() {
            queue.may_pass();
        }
    }

    /// A request can continue; its owner can if all its requests can.
    fn note_progress_of(&mut self, id: WaiterId) {
        let Some((owner, _)) = self.obstacles.get(&id).copied() else {
            return;
        };
        let left = self.owners.entry(owner).or_insert(1);
        *left -= 1;
        let is_last = *left == 0;
        match self.together {
            Together::ByRequest => self.leave_queues(id),
            Together::ByOwner if is_last => {
                let table = self.search.table;
                table.queues.of(owner).for_each(|id| self.leave_queues(id));
            }
            Together::ByOwner => {}
        }
        if is_last {
            self.leave_locks(owner);
        }
    }

    /// A request no longer blocks others in the queues where it waits.
    fn leave_queues(&mut self, id: WaiterId) {
        let waiter = self.search.table.queues.get(id).into_iter();
        for key in waiter.flat_map(|waiter| &waiter.keys) {
            let at = self.search.by_key.get(key).copied();
            if let Some(queue) = at.and_then(|at| self.queues.get_mut(at)) {
                self.search.steps += 1;
                let free = queue.leave(id, self.search, self.together);
                free.into_iter().for_each(|id| self.remove_obstacle(id));
            }
        }
    }

    /// An owner can continue: it no longer blocks the waiters of the locks that it holds.
    fn leave_locks(&mut self, owner: &'a Token) {
        for at in self.search.waited_for_of(owner).iter().copied() {
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
                    place.id
                })
                .collect();
            self.search.steps += queue.places.len() as u64;
            served.into_iter().for_each(|id| self.remove_obstacle(id));
        }
    }

    fn remove_obstacle(&mut self, id: WaiterId) {
        // A request that was refused has left already.
        let obstacles = self.obstacles.get_mut(&id).map(|(_, obstacles)| obstacles);
        if let Some(obstacles) = obstacles.filter(|obstacles| **obstacles > 0) {
            *obstacles -= 1;
            if *obstacles == 0 {
                self.going_on.push(id);
            }
        }
    }
}
