//! The known locks, and which of them to query next.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redislock_client::Moment;

use super::budget::LOCKS;
use super::history::History;
use super::queue::Queue;
use crate::summary::{LockSummary, State};

/// How long a lock that became free stays in the list, so that a lock that is handed over does
/// not blink.
const KEEP_FREE: Duration = Duration::from_secs(30);
/// Locks with a history.
const HISTORIES: usize = 2_000;
/// Free locks that are kept.
const FREE: usize = 1_000;

/// One lock.
pub struct Lock {
    pub id: u64,
    pub key: Arc<[u8]>,
    /// What the nodes said; none if they were not asked yet.
    pub summary: Option<LockSummary>,
    /// When they said it.
    pub seen: Moment,
    /// Which node of a cluster listed it last.
    pub place: usize,
    pub history: Option<Box<History>>,
    freed: Option<Moment>,
}

/// All locks that are known.
#[derive(Default)]
pub struct Locks {
    by_key: HashMap<Arc<[u8]>, u64>,
    all: BTreeMap<u64, Lock>,
    next_id: u64,
    /// The order in which they are queried. It may contain locks that are gone.
    turns: VecDeque<u64>,
    /// Locks that were listed and not queried since: they come first.
    fresh: BTreeSet<u64>,
    /// Locks with waiters.
    waited_for: BTreeSet<u64>,
    free: BTreeSet<u64>,
    histories: usize,
    /// Locks that a view shows now.
    wanted: BTreeSet<u64>,
    /// Locks that have a view of their own, and their queues.
    detailed: BTreeSet<u64>,
    queues: BTreeMap<u64, Queue>,
    /// How many were queried.
    pub asked: usize,
    /// When the lock that has not been queried for longest was queried.
    pub oldest: Option<Moment>,
    /// There are more locks than are remembered.
    pub overflow: bool,
}

impl Locks {
    /// The locks that are listed: all of them, in the order in which they were found.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Lock> {
        self.all.values()
    }

    pub fn get(&self, id: u64) -> Option<&Lock> {
        self.all.get(&id)
    }

    /// How many are known that are not free.
    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// How many of them have waiters.
    pub fn waited_for(&self) -> usize {
        self.waited_for.len()
    }

    /// How many requests wait, as far as that is known.
    pub fn waiters(&self) -> u64 {
        let waited_for = self.waited_for.iter().filter_map(|id| self.all.get(id));
        let summaries = waited_for.filter_map(|lock| lock.summary.as_ref());
        summaries.map(|summary| summary.waiters).sum()
    }

    /// A node has listed this lock.
    pub fn found(&mut self, key: Arc<[u8]>, place: usize) {
        if let Some(lock) = self.by_key.get(&key).and_then(|id| self.all.get_mut(id)) {
            lock.place = place;
            if lock.freed.is_some() {
                self.fresh.insert(lock.id);
            }
            return;
        }
        if self.all.len() >= LOCKS {
            self.overflow = true;
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.by_key.insert(Arc::clone(&key), id);
        self.turns.push_back(id);
        self.fresh.insert(id);
        self.all.insert(
            id,
            Lock {
                id,
                key,
                summary: None,
                seen: Moment::now(),
                place,
                history: None,
                freed: None,
            },
        );
    }

    /// A view shows this lock: it is looked at in the next round.
    pub fn want(&mut self, id: u64) {
        self.wanted.insert(id);
    }

    /// A view shows only this lock: its queue is queried in the next round, too.
    pub fn want_queue(&mut self, id: u64) {
        self.want(id);
        self.detailed.insert(id);
    }

    /// The queue of a lock that is shown in its own view.
    pub fn queue(&self, id: u64) -> Option<&Queue> {
        self.queues.get(&id)
    }

    pub fn set_queue(&mut self, id: u64, queue: Queue) {
        self.queues.insert(id, queue);
    }

    /// The locks whose queues to query in this round; those that were not queried for longest come
    /// first. Queues that no view shows are forgotten.
    pub fn queue_turn(&mut self, limit: usize) -> Vec<u64> {
        let detailed = std::mem::take(&mut self.detailed);
        self.queues.retain(|id, _| detailed.contains(id));
        let is_known = |id: &u64| self.all.contains_key(id);
        let mut ids: Vec<u64> = detailed.into_iter().filter(is_known).collect();
        ids.sort_by_key(|id| self.queues.get(id).map(|queue| queue.seen));
        ids.truncate(limit);
        ids
    }

    /// Which locks to query in this round. Those on a screen and those with waiters get up to a
    /// third of the queries each; those that were not queried for longest come first. The others
    /// take turns.
    pub fn turn(&mut self, looks: usize) -> Vec<u64> {
        let mut chosen: BTreeSet<u64> = BTreeSet::new();
        let wanted = std::mem::take(&mut self.wanted);
        chosen.extend(self.longest_unseen(&wanted, looks / 3));
        chosen.extend(self.longest_unseen(&self.waited_for, looks / 3));
        while chosen.len() < looks
            && let Some(id) = self.fresh.pop_first()
        {
            chosen.insert(id);
        }
        for _ in 0..self.turns.len() {
            if chosen.len() >= looks {
                break;
            }
            let Some(id) = self.turns.pop_front() else {
                break;
            };
            if self.all.contains_key(&id) {
                chosen.insert(id);
                self.turns.push_back(id);
            }
        }
        chosen.into_iter().collect()
    }

    /// Of these locks, those whose last query is the oldest.
    fn longest_unseen(&self, ids: &BTreeSet<u64>, limit: usize) -> Vec<u64> {
        let seen = |id: &u64| self.all.get(id).map(|lock| lock.seen);
        let is_known = |id: &u64| self.all.contains_key(id);
        let mut ids: Vec<u64> = ids.iter().copied().filter(is_known).collect();
        if ids.len() > limit && limit > 0 {
            ids.select_nth_unstable_by_key(limit - 1, seen);
        }
        ids.truncate(limit);
        ids
    }

    /// Stores the replies of the nodes about a lock at the time `now`, in ms since the start.
    pub fn learn(&mut self, id: u64, mut summary: LockSummary, now: i64) {
        let Some(lock) = self.all.get_mut(&id) else {
            return;
        };
        lock.seen = Moment::now();
        // The nodes are shown by themselves: one text for each lock would fill the memory.
        summary.silent = Vec::new();
        let is_free = summary.state == State::Free && summary.waiters == 0;
        if lock.history.is_none() && !is_free && self.histories < HISTORIES {
            self.histories += 1;
            lock.history = Some(Box::default());
        }
        if let Some(history) = &mut lock.history {
            history.note(now, &summary);
        }
        if summary.waiters > 0 {
            self.waited_for.insert(id);
        } else {
            self.waited_for.remove(&id);
        }
        if is_free {
            lock.freed.get_or_insert(lock.seen);
            self.free.insert(id);
        } else {
            lock.freed = None;
            self.free.remove(&id);
        }
        self.asked += usize::from(lock.summary.is_none());
        lock.summary = Some(summary);
    }

    /// A node of a cluster no longer has this lock; another one will list it.
    pub fn forget(&mut self, id: u64) {
        if let Some(lock) = self.all.remove(&id) {
            self.by_key.remove(&lock.key);
            self.histories -= usize::from(lock.history.is_some());
            self.asked -= usize::from(lock.summary.is_some());
            self.waited_for.remove(&id);
            self.free.remove(&id);
            self.fresh.remove(&id);
        }
    }

    /// Whether all locks that were found have been queried.
    pub fn all_asked(&self) -> bool {
        self.asked == self.all.len()
    }

    /// Forgets what has been free for long, and the oldest histories if there are many.
    pub fn tidy(&mut self) {
        let now = Moment::now();
        let old = |id: &u64| {
            let freed = self.all.get(id).and_then(|lock| lock.freed);
            freed.is_none_or(|freed| now.since(freed) > KEEP_FREE)
        };
        let mut gone: Vec<u64> = self.free.iter().copied().filter(old).collect();
        let left = self.free.len() - gone.len();
        let too_many = left.saturating_sub(FREE);
        let kept = self.free.iter().copied().filter(|id| !old(id));
        gone.extend(kept.take(too_many));
        for id in gone {
            self.forget(id);
        }
        self.thin_histories();
        self.overflow &= self.all.len() >= LOCKS;
        let asked = self.all.values().filter(|lock| lock.summary.is_some());
        self.oldest = asked.map(|lock| lock.seen).min();
    }

    /// Makes room for the histories of locks that change now.
    fn thin_histories(&mut self) {
        if self.histories < HISTORIES {
            return;
        }
        let changed = |lock: &Lock| Some((lock.history.as_ref()?.changed, lock.id));
        let mut all: Vec<(i64, u64)> = self.all.values().filter_map(changed).collect();
        all.sort_unstable();
        for (_, id) in all.into_iter().take(HISTORIES / 4) {
            if let Some(lock) = self.all.get_mut(&id) {
                lock.history = None;
                self.histories -= 1;
            }
        }
    }
}
