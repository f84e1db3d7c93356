//! The owners that cannot continue before a newcomer releases something: those from which a chain
//! of waits leads to it. And whether its own wait would depend on one of them.

use foldhash::{HashMap, HashSet};

use super::search::{Group, OVERTAKES_NOBODY, Search, needs_any};
use crate::lock::{Hold, Lock, Mode};
use crate::queue::{Waiter, WaiterId};
use crate::token::{Key, Token};

/// Requests for more keys than this are not compared with each other.
const KEYS_COMPARED: usize = 16;

/// What a waiter wants. Only this decides who may overtake it, if it holds none of it.
type Kind<'a> = (&'a [Key], Mode);

/// Waiters of one queue, in order.
type Places<'a> = Vec<(WaiterId, &'a Waiter)>;

/// The waiters of one queue whose owners are in one group.
struct Free<'a> {
    group: Group,
    places: Places<'a>,
    /// The last of the places, or one that was behind it.
    last: WaiterId,
}

impl Free<'_> {
    fn is_behind(&self, id: WaiterId) -> bool {
        self.last > id
    }

    /// The last places have been taken out.
    fn find_last(&mut self) {
        self.last = self.places.last().map_or(WaiterId(0), |(last, _)| *last);
    }
}

/// What is known about a queue.
struct Known<'a> {
    /// The waiters that are not known to be stuck, and some that are: by the group of their owners,
    /// as soon as that makes a difference.
    free: Vec<Free<'a>>,
    is_grouped: bool,
    /// Whether the waiters that a stuck holder excludes have been found.
    is_held_up: bool,
    /// For each kind, the first stuck waiter behind which all waiters were checked. An owner that
    /// may overtake it may also overtake the others of its kind.
    passed: HashMap<Kind<'a>, WaiterId>,
}

/// The owners that cannot continue before the newcomer releases something.
pub(super) struct Stuck<'s, 'a> {
    search: &'s mut Search<'a>,
    newcomer: &'a Token,
    /// As [`Search::reached`].
    queues: Vec<Known<'a>>,
    /// The queues that are not blocked, among others that are blocked meanwhile, and their number.
    open: Vec<usize>,
    still_open: usize,
    /// The newcomer is one of them, for what it holds.
    owners: HashSet<&'a Token>,
    /// The ones whose dependents have not been checked yet.
    spreading: Vec<&'a Token>,
    /// Which groups may overtake the current waiter, as far as it is known.
    may_pass: Vec<Option<bool>>,
    known_groups: Vec<usize>,
}

impl<'s, 'a> Stuck<'s, 'a> {
    /// Finds them in the reached queues.
    pub(super) fn find(search: &'s mut Search<'a>, newcomer: &'a Token) -> Self {
        let (table, now) = (search.table, search.now);
        let mut queues = Vec::with_capacity(search.reached.len());
        for reached in &search.reached {
            let waiters = reached.queue.waiting.iter();
            let waiters = waiters.filter_map(|id| Some((*id, &**table.queues.get(*id)?)));
            let waiters = waiters.filter(|(id, waiter)| {
                let token = &waiter.terms.token;
                let is_gone = token == newcomer || table.is_leaving(*id);
                !is_gone && !table.holds(reached.lock, token, now)
            });
            let waiters: Places<'_> = waiters.collect();
            search.steps += waiters.len() as u64;
            queues.push(Known {
                free: vec![Free {
                    group: OVERTAKES_NOBODY,
                    last: WaiterId(u64::MAX),
                    places: waiters,
                }],
                is_grouped: false,
                is_held_up: false,
                passed: HashMap::default(),
            });
        }
        let mut stuck = Self {
            newcomer,
            open: (0..queues.len()).collect(),
            still_open: queues.len(),
            queues,
            owners: HashSet::from_iter([newcomer]),
            spreading: vec![newcomer],
            may_pass: Vec::new(),
            known_groups: Vec::new(),
            search,
        };
        while let Some(owner) = stuck.spreading.pop() {
            stuck.spread_from_holder(owner);
            // The newcomer's own places in queues do not block anybody; only its holds do.
            if owner != newcomer {
                stuck.spread_from_waiter(owner);
            }
        }
        stuck
    }

    /// A waiter for something that a stuck owner holds is stuck. Visits what the owner holds or the
    /// queues that are not blocked yet, whichever are fewer.
    fn spread_from_holder(&mut self, owner: &'a Token) {
        let Some(held) = self.search.table.holdings.of(owner) else {
            return;
        };
        self.search.steps += held.len().min(self.still_open) as u64;
        let is_open = |at: &usize| self.queues.get(*at).is_some_and(|queue| !queue.is_held_up);
        let holds = |at: &usize| self.search.holds_at(*at, owner);
        let found: Vec<_> = if held.len() <= self.still_open {
            let queues = held.iter().filter_map(|id| self.search.by_lock.get(id));
            let queues = queues.filter(|at| is_open(at) && holds(at));
            queues.copied().collect()
        } else {
            self.open.retain(is_open);
            self.open.iter().filter(|at| holds(at)).copied().collect()
        };
        found.into_iter().for_each(|at| self.hold_up(at));
    }

    /// A holder of the lock of a queue is stuck.
    fn hold_up(&mut self, at: usize) {
        let (Some(queue), Some(reached)) = (self.queues.get_mut(at), self.search.reached.get(at))
        else {
            return;
        };
        queue.is_held_up = true;
        self.still_open -= 1;
        let (lock, is_stuck, now) = (reached.lock, reached.is_stuck, self.search.now);
        let is_excluded = |(_, waiter): &mut (WaiterId, &Waiter)| {
            let mode = waiter.terms.mode;
            lock.is_some_and(|lock| {
                (is_stuck || !needs_any(lock, mode)) && lock.excludes(mode, now)
            })
        };
        let free = queue.free.iter_mut();
        let excluded = free.flat_map(|free| free.places.extract_if(.., is_excluded));
        let excluded = excluded.collect();
        self.are_now_stuck(excluded);
    }

    /// A waiter behind a stuck owner that it may not overtake is stuck.
    fn spread_from_waiter(&mut self, owner: &'a Token) {
        let table = self.search.table;
        let holds_nothing = table.holdings.of(owner).is_none();
        let requests = table.queues.of(owner).filter(|id| !table.is_leaving(*id));
        for (id, ahead) in requests.filter_map(|id| Some((id, table.queues.get(id)?))) {
            let kind = (holds_nothing && ahead.keys.len() <= KEYS_COMPARED)
                .then_some((&*ahead.keys, ahead.terms.mode));
            for key in &ahead.keys {
                if let Some(at) = self.search.by_key.get(key).copied() {
                    self.spread_behind(at, id, ahead, kind);
                }
            }
            for group in self.known_groups.drain(..) {
                if let Some(known) = self.may_pass.get_mut(group) {
                    *known = None;
                }
            }
        }
    }

    /// In one queue, a waiter that is behind a stuck one and may not overtake it is stuck.
    fn spread_behind(&mut self, at: usize, id: WaiterId, ahead: &Waiter, kind: Option<Kind<'a>>) {
        self.search.steps += 1;
        let Some(queue) = self.queues.get_mut(at) else {
            return;
        };
        if let Some(kind) = kind {
            let first = queue.passed.entry(kind).or_insert(id);
            if *first < id {
                return;
            }
            *first = id;
        }
        if ahead.keys.len() > 1 {
            self.group(at);
        }
        let mut found = Vec::new();
        let mut free = self.take_free(at);
        for some in free.iter_mut().filter(|some| some.is_behind(id)) {
            if !self.may_group_pass(id, ahead, some) {
                let first = some.places.partition_point(|(waiter, _)| *waiter <= id);
                found.extend(some.places.drain(first..));
                some.find_last();
            }
        }
        self.search.count_looks(free.len() as u64);
        if !found.is_empty() {
            free.retain(|some| !some.places.is_empty());
        }
        if let Some(queue) = self.queues.get_mut(at) {
            queue.free = free;
        }
        self.are_now_stuck(found);
    }

    fn take_free(&mut self, at: usize) -> Vec<Free<'a>> {
        let queue = self.queues.get_mut(at);
        queue.map_or_else(Vec::new, |queue| std::mem::take(&mut queue.free))
    }

    /// Groups the waiters of a queue that may overtake the same others.
    fn group(&mut self, at: usize) {
        let queue = self.queues.get_mut(at).filter(|queue| !queue.is_grouped);
        let Some(queue) = queue else {
            return;
        };
        queue.is_grouped = true;
        let mut by_group: HashMap<Group, Places<'a>> = HashMap::default();
        let all = std::mem::take(&mut queue.free).into_iter();
        for (id, waiter) in all.flat_map(|free| free.places) {
            let group = self.search.group_of(&waiter.terms.token);
            by_group.entry(group).or_default().push((id, waiter));
        }
        let free = by_group.into_iter().map(|(group, places)| {
            let last = WaiterId(u64::MAX);
            let mut free = Free {
                group,
                places,
                last,
            };
            free.find_last();
            free
        });
        queue.free = free.collect();
    }

    /// Whether the waiters of a group that are not stuck may overtake the current waiter.
    fn may_group_pass(&mut self, id: WaiterId, ahead: &Waiter, free: &mut Free<'a>) -> bool {
        let group = free.group;
        if group == OVERTAKES_NOBODY || ahead.keys.len() == 1 {
            return false;
        }
        if let Some(Some(known)) = self.may_pass.get(group.0) {
            return *known;
        }
        let is_stuck =
            |(_, waiter): &mut (WaiterId, &Waiter)| self.owners.contains(&waiter.terms.token);
        while free.places.pop_if(is_stuck).is_some() {}
        free.find_last();
        if !free.is_behind(id) {
            return true;
        }
        let may_pass = self.search.may_pass(id, ahead, group);
        if self.may_pass.len() <= group.0 {
            self.may_pass.resize(group.0 + 1, None);
        }
        if let Some(known) = self.may_pass.get_mut(group.0) {
            *known = Some(may_pass);
            self.known_groups.push(group.0);
        }
        may_pass
    }

    /// The first of them is checked next: those behind it are usually of the same kind.
    fn are_now_stuck(&mut self, mut waiters: Places<'a>) {
        self.search.steps += waiters.len() as u64;
        waiters.sort_unstable_by_key(|(id, _)| *id);
        for (_, waiter) in waiters.iter().rev() {
            let token = &waiter.terms.token;
            if self.owners.insert(token) {
                self.spreading.push(token);
            }
        }
    }

    /// Whether the newcomer's wait depends on a stuck owner.
    pub(super) fn includes(&mut self, wanted: &[(&'a Key, Option<&'a Lock>)], mode: Mode) -> bool {
        let (table, now) = (self.search.table, self.search.now);
        let others = self.owners.iter().filter(|owner| **owner != self.newcomer);
        let requests = others.flat_map(|owner| table.queues.of(owner));
        let requests: HashSet<_> = requests.filter(|id| !table.is_leaving(*id)).collect();
        let group = self.search.group_of(self.newcomer);
        wanted.iter().any(|(key, lock)| {
            let excluded = lock.filter(|lock| lock.excludes(mode, now));
            if excluded.is_some_and(|lock| self.are_holders_stuck(lock, mode)) {
                return true;
            }
            let queue = table.queues.at(key);
            let ahead = queue.into_iter().flat_map(|queue| queue.waiting.iter());
            let ahead = ahead.filter(|id| requests.contains(id));
            let mut ahead = ahead.filter_map(|id| Some((*id, table.queues.get(*id)?)));
            ahead.any(|(id, ahead)| !self.search.may_pass(id, ahead, group))
        })
    }

    fn are_holders_stuck(&self, lock: &Lock, mode: Mode) -> bool {
        let (table, now) = (self.search.table, self.search.now);
        let lives = |hold: &&Hold| table.end_of(hold) > now;
        let mut holders = lock.holds().filter(lives);
        if needs_any(lock, mode) {
            let mut one_is_stuck = false;
            let none_can_go_on = holders.all(|hold| {
                one_is_stuck |= self.owners.contains(&hold.token);
                self.search.cannot_go_on.contains(&hold.token)
            });
            none_can_go_on && one_is_stuck
        } else if lock.holders() <= self.owners.len() {
            holders.any(|hold| self.owners.contains(&hold.token))
        } else {
            let mut stuck = self.owners.iter();
            stuck.any(|token| table.holds(Some(lock), token, now))
        }
    }
}
