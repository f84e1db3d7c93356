//! The core as it is, or as it would be with one bug planted in it: the bug changes what goes in,
//! what comes out, or the state itself, in the way in which a wrong core would.

use redislock_core::lock::{Hold, Mode, Standing, Terms};
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Denial, Extended, Granted, Presence, Verdict};
use redislock_core::time::{Micros, MonoTime, Wait};
use redislock_core::token::{Key, Token};

use super::step::TICK;
use crate::node::{Change, Node, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    ReentryTakesANewFence,
    ReleaseIgnoresTheToken,
    ReleaseAllTakesOneOff,
    ReleaseCancelsWaitersWithoutAll,
    ExtensionShortensALease,
    OnceIsCounted,
    AnEndedHoldReenters,
    ANewcomerBargesPastTheQueue,
    SemaphoreLimitIsOffByOne,
    TheLastInIsTheFirstOut,
    TheLeaseOfAWaiterStartsAtTheRequest,
    AFlushResetsTheFence,
    AReloadRestartsLeases,
    ADisconnectedWaiterStaysInTheQueue,
    AnUndeliveredGrantStands,
    SeveralKeysAreTakenOneByOne,
    MaxHoldIsIgnored,
    EveryWaitOfAHolderIsADeadlock,
    ADeadlockIsNotSeen,
    TheReplicaMissesReleases,
    AStringIsWrittenOver,
}

impl Bug {
    pub const ALL: [Self; 21] = [
        Self::ReentryTakesANewFence,
        Self::ReleaseIgnoresTheToken,
        Self::ReleaseAllTakesOneOff,
        Self::ReleaseCancelsWaitersWithoutAll,
        Self::ExtensionShortensALease,
        Self::OnceIsCounted,
        Self::AnEndedHoldReenters,
        Self::ANewcomerBargesPastTheQueue,
        Self::SemaphoreLimitIsOffByOne,
        Self::TheLastInIsTheFirstOut,
        Self::TheLeaseOfAWaiterStartsAtTheRequest,
        Self::AFlushResetsTheFence,
        Self::AReloadRestartsLeases,
        Self::ADisconnectedWaiterStaysInTheQueue,
        Self::AnUndeliveredGrantStands,
        Self::SeveralKeysAreTakenOneByOne,
        Self::MaxHoldIsIgnored,
        Self::EveryWaitOfAHolderIsADeadlock,
        Self::ADeadlockIsNotSeen,
        Self::TheReplicaMissesReleases,
        Self::AStringIsWrittenOver,
    ];
}

/// A single-key request that waits, as a wrong core would remember it.
#[derive(Debug)]
struct Waiting {
    id: WaiterId,
    key: Key,
    terms: Terms,
    wait: Wait,
    since: MonoTime,
}

#[derive(Debug)]
pub struct Suspect {
    pub node: Node,
    pub bug: Option<Bug>,
    waiting: Vec<Waiting>,
    /// Names that the driver knows for requests that had to be queued again under another one.
    renamed: Vec<(WaiterId, WaiterId)>,
    told: Vec<(WaiterId, Answer)>,
}

impl Suspect {
    pub fn new(node: Node, bug: Option<Bug>) -> Self {
        Self {
            node,
            bug,
            waiting: Vec::new(),
            renamed: Vec::new(),
            told: Vec::new(),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// What the core calls the request that the driver knows as `id`.
    fn inner(&self, id: WaiterId) -> WaiterId {
        self.renamed
            .iter()
            .rev()
            .find(|(outer, _)| *outer == id)
            .map_or(id, |(_, inner)| *inner)
    }

    fn outer(&self, id: WaiterId) -> WaiterId {
        self.renamed
            .iter()
            .find(|(_, inner)| *inner == id)
            .map_or(id, |(outer, _)| *outer)
    }

    fn held_by(&self, key: &Key, token: &Token) -> Option<Hold> {
        let hold = self.node.lock(key)?.hold(token)?;
        (hold.end > self.node.table.lease_now(self.node.now.mono)).then(|| hold.clone())
    }

    /// Changes a hold behind the core's back.
    fn meddle(&mut self, key: &Key, token: &Token, change: impl FnOnce(&mut Hold)) {
        let Some(mut lock) = self.node.lock(key).cloned() else {
            return;
        };
        lock.change(token, change);
        self.put(key, &lock);
    }

    fn put(&mut self, key: &Key, lock: &redislock_core::lock::Lock) {
        let mut bytes = Vec::new();
        redislock_core::wire::put_whole(
            lock,
            self.node.table.lease_now(self.node.now.mono),
            &mut bytes,
        );
        let events = Default::default();
        self.node.replay(&Change {
            key: key.clone(),
            presence: Presence::Kept,
            bytes,
            events,
        });
    }

    pub fn acquire(&mut self, keys: &[Key], asked: &Terms, wait: Wait) -> Verdict {
        let mut terms = asked.clone();
        if self.has(Bug::OnceIsCounted) {
            terms.once = false;
        }
        if self.has(Bug::MaxHoldIsIgnored) {
            terms.max_hold = None;
        }
        if self.has(Bug::AStringIsWrittenOver) {
            let is_string = |value: &Value| matches!(value, Value::String(_));
            let asked_for = |key: &Key| keys.contains(key);
            self.node
                .keys
                .0
                .retain(|key, value| !(is_string(value) && asked_for(key)));
        }
        if let Mode::Shared { limit } = &mut terms.mode
            && self.has(Bug::SemaphoreLimitIsOffByOne)
            && let Some(limit) = limit
        {
            *limit += 1;
        }
        let held = keys
            .iter()
            .any(|key| self.held_by(key, &terms.token).is_some());
        let holds_any = self
            .node
            .keys
            .0
            .keys()
            .any(|key| self.held_by(key, &terms.token).is_some());
        let now = self.node.now;
        if self.has(Bug::AnEndedHoldReenters)
            && let [key] = keys
            && let Some(hold) = self.node.lock(key).and_then(|lock| lock.hold(&terms.token))
        {
            self.node.now.mono = now.mono.min(MonoTime(hold.end.0 - 1));
        }
        let mut verdict = self.node.acquire(keys, &terms, wait);
        self.node.now = now;
        match (self.bug, &verdict) {
            (Some(Bug::ReentryTakesANewFence), Verdict::Granted(Granted::One(fence))) if held => {
                verdict = Verdict::Granted(Granted::One(fence + 1));
            }
            (Some(Bug::ANewcomerBargesPastTheQueue), Verdict::Busy) => {
                if let [key] = keys
                    && let Some(mut lock) = self.node.lock(key).cloned()
                    && lock.standing(&terms.token, terms.mode, 9) == Standing::Open
                {
                    let fence = (self.node.table.fence() + 1).max(now.wall.0);
                    lock.grant(
                        Hold::new(&terms, fence, self.node.table.lease_now(now.mono)),
                        terms.mode,
                    );
                    self.put(key, &lock);
                    verdict = Verdict::Granted(Granted::One(fence));
                }
            }
            (Some(Bug::SeveralKeysAreTakenOneByOne), Verdict::Busy) if keys.len() > 1 => {
                self.node.acquire(&keys[..1], &terms, Wait::No);
            }
            (Some(Bug::EveryWaitOfAHolderIsADeadlock), Verdict::Waits(id)) if holds_any => {
                self.node.table.abandon(*id);
                verdict = Verdict::Denied(Denial::Deadlock);
            }
            (Some(Bug::ADeadlockIsNotSeen), Verdict::Denied(Denial::Deadlock)) => {
                verdict = Verdict::Busy
            }
            _ => {}
        }
        if let (Verdict::Waits(id), [key]) = (&verdict, keys) {
            self.wait(Waiting {
                id: *id,
                key: key.clone(),
                terms,
                wait,
                since: now.mono,
            });
        }
        verdict
    }

    fn wait(&mut self, waiting: Waiting) {
        if self.has(Bug::TheLastInIsTheFirstOut) {
            let same = self
                .waiting
                .iter()
                .position(|other| other.key == waiting.key);
            if let Some(other) = same.map(|at| self.waiting.remove(at)) {
                // The one that came before goes behind, if it still waits.
                let before = self.node.table.waiters();
                self.node.table.abandon(self.inner(other.id));
                if self.node.table.waiters() < before
                    && let Verdict::Waits(id) = self.node.acquire(
                        std::slice::from_ref(&other.key),
                        &other.terms,
                        other.wait,
                    )
                {
                    self.renamed.push((other.id, id));
                }
            }
        }
        self.waiting.push(waiting);
    }

    pub fn release_each(&mut self, keys: &[Key], token: &Token, all: bool) -> Vec<u32> {
        let mut token = token.clone();
        for key in keys {
            if self.has(Bug::ReleaseIgnoresTheToken)
                && let Some(hold) = self.node.lock(key).and_then(|lock| lock.holds().next())
            {
                token = hold.token.clone();
            }
            if self.has(Bug::ReleaseCancelsWaitersWithoutAll) && !all {
                let same = |waiting: &Waiting| waiting.key == *key && waiting.terms.token == token;
                for waiting in self.waiting.extract_if(.., |waiting| same(waiting)) {
                    let before = self.node.table.waiters();
                    self.node.table.abandon(waiting.id);
                    if self.node.table.waiters() < before {
                        self.told.push((waiting.id, Answer::Nothing));
                    }
                }
            }
        }
        let all = all && !self.has(Bug::ReleaseAllTakesOneOff);
        self.node.release_each(keys, &token, all)
    }

    pub fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Micros,
        fence: Option<u64>,
        connection: Option<u64>,
    ) -> Extended {
        let extended = self.node.extend(key, token, ttl, fence, connection);
        if self.has(Bug::ExtensionShortensALease) && matches!(extended, Extended::To(_)) {
            let end = self.node.table.lease_now(self.node.now.mono).plus(ttl);
            self.meddle(key, token, |hold| hold.end = end);
        }
        extended
    }

    pub fn flush(&mut self, db: Option<u32>) -> u64 {
        let last = self.node.flush(db);
        if self.has(Bug::AFlushResetsTheFence) && self.node.table.waiters() == 0 {
            let dumps: Vec<_> = self
                .node
                .keys
                .0
                .keys()
                .filter_map(|key| Some((key.clone(), self.node.dump(key)?)))
                .collect();
            let limits = self.node.table.limits;
            self.node.table = redislock_core::Table::new(limits);
            for (key, bytes) in dumps {
                self.node.restore(&key, &bytes);
            }
        }
        last.0
    }

    pub fn reload(&mut self, loading: u64) {
        self.node.reload(Micros(loading));
        (self.waiting, self.renamed) = (Vec::new(), Vec::new());
        if self.has(Bug::AReloadRestartsLeases) {
            let keys: Vec<_> = self.node.keys.0.keys().cloned().collect();
            for key in keys {
                let Some(token) = self
                    .node
                    .lock(&key)
                    .and_then(|lock| Some(lock.holds().next()?.token.clone()))
                else {
                    continue;
                };
                self.meddle(&key, &token, |hold| hold.end = hold.end.plus(Micros(TICK)));
            }
        }
    }

    pub fn abandon(&mut self, id: WaiterId) {
        if self.has(Bug::ADisconnectedWaiterStaysInTheQueue) {
            return self.node.serve();
        }
        self.node.abandon(self.inner(id));
    }

    /// Several requests leave in one step.
    pub fn abandon_all(&mut self, ids: impl Iterator<Item = WaiterId>) {
        if !self.has(Bug::ADisconnectedWaiterStaysInTheQueue) {
            for id in ids {
                let id = self.inner(id);
                self.node.table.abandon(id);
            }
        }
        self.node.serve();
    }

    pub fn undeliverable(&mut self, id: WaiterId) {
        if !self.has(Bug::AnUndeliveredGrantStands) {
            self.node.undeliverable(self.inner(id));
        }
    }

    pub fn delivered(&mut self, id: WaiterId) {
        self.node.table.delivered(self.inner(id));
    }

    pub fn take(&mut self) -> (Vec<Change>, Vec<(WaiterId, Answer)>) {
        let (mut changes, answers) = self.node.take();
        if self.has(Bug::TheReplicaMissesReleases) {
            changes.retain(|change| change.presence != Presence::Gone);
        }
        let mut told: Vec<_> = std::mem::take(&mut self.told);
        for (id, answer) in answers {
            if self.has(Bug::TheLeaseOfAWaiterStartsAtTheRequest)
                && let Answer::Granted(granted) = &answer
                && granted.len() == 1
                && let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id)
            {
                let Waiting {
                    key, terms, since, ..
                } = self.waiting.remove(at);
                let late = self.node.now.mono.since(since);
                self.meddle(&key, &terms.token, |hold| {
                    let late = late.min(terms.ttl.minus(Micros(1)));
                    hold.end = hold.end.minus(late);
                });
            }
            let id = self.outer(id);
            self.waiting.retain(|waiting| waiting.id != id);
            told.push((id, answer));
        }
        (changes, told)
    }

    /// The semaphore's size as a core with this bug would tell it.
    pub fn shown_limit(&self, limit: u32) -> u32 {
        if self.has(Bug::SemaphoreLimitIsOffByOne) {
            limit.saturating_sub(1)
        } else {
            limit
        }
    }
}
