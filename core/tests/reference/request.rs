//! What clients ask for.

use super::{Answer, Error, Hold, Key, Lock, Mode, Model, Reply, Request, Token, millis, tighter};

/// "More than 10 s ahead of the node's wall clock is an error."
const LEAD: u64 = 10_000_000;

/// Holds, by key and fence.
type Holds = Vec<(Key, u64)>;

/// How a request stands to the holders of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The holders leave room.
    Open,
    /// The token is one of them: a re-entry.
    Held,
    /// It has to wait for them.
    Excluded,
    /// It cannot be had like this.
    Refused(Error),
}

impl Model {
    pub fn standing(&self, key: Key, request: &Request) -> Standing {
        if self.strings.contains(&key) {
            return Standing::Excluded;
        }
        let Some(lock) = self.live(key) else {
            return Standing::Open;
        };
        let mine = lock.holds.contains_key(&request.token);
        match (lock.mode, request.mode) {
            (Mode::Exclusive, _) if mine => Standing::Held,
            (Mode::Exclusive, _) => Standing::Excluded,
            (Mode::Shared(_), Mode::Exclusive) if mine => Standing::Refused(Error::Mode),
            (Mode::Shared(_), Mode::Exclusive) => Standing::Excluded,
            (Mode::Shared(present), Mode::Shared(wanted)) if present != wanted => {
                Standing::Refused(Error::Mode)
            }
            (Mode::Shared(_), Mode::Shared(_)) if mine => Standing::Held,
            (Mode::Shared(limit), _) if limit != 0 && lock.holds.len() >= limit as usize => {
                Standing::Excluded
            }
            _ if lock.holds.len() >= self.limits.max_holders => {
                Standing::Refused(Error::TooManyHolders)
            }
            _ => Standing::Open,
        }
    }

    /// ACQUIRE and MACQUIRE. `block`: until when to wait, if at all.
    pub fn acquire(
        &mut self,
        request: &Request,
        block: Option<Option<u64>>,
        id: Option<u64>,
    ) -> Reply {
        if self.in_quarantine() {
            return Reply::Error(Error::Quarantine(self.quarantine_until - self.now));
        }
        for key in &request.keys {
            if let Standing::Refused(error) = self.standing(*key, request) {
                return Reply::Error(error);
            }
        }
        if let Err(error) = self.check(request) {
            return Reply::Error(error);
        }
        let end_of_queue = self.queue.len();
        if request
            .keys
            .iter()
            .all(|key| self.is_free(*key, request, end_of_queue))
        {
            let (fences, _, found) = self.grant(request);
            found
                .iter()
                .for_each(|(key, _)| self.confirm(*key, request.token));
            return Reply::Fences(fences);
        }
        let Some(until) = block else {
            return Reply::Busy;
        };
        if self.queue.len() >= self.limits.max_waiters {
            return Reply::Error(Error::TooManyWaiters);
        }
        if self.would_deadlock(request) {
            return Reply::Error(Error::Deadlock);
        }
        if let Some(id) = id {
            self.join(id, request.clone(), until);
        }
        Reply::Waits
    }

    /// Whether the lease fits under the caps and the fence may be wished for.
    pub fn check(&self, request: &Request) -> Result<(), Error> {
        let cap = tighter(request.max_hold, self.limits.max_hold);
        for key in &request.keys {
            let held = self
                .live(*key)
                .and_then(|lock| lock.holds.get(&request.token).cloned());
            let (granted, cap) = match held {
                Some(hold) => (hold.granted, tighter(cap, hold.max_hold)),
                None => (self.now, cap),
            };
            self.check_cap(granted, cap, request.ttl)?;
        }
        let is_new = request
            .keys
            .iter()
            .any(|key| !self.holds(*key, request.token));
        if is_new && request.fence > self.wall + LEAD {
            return Err(Error::Fence);
        }
        Ok(())
    }

    fn check_cap(&self, granted: u64, cap: u32, ttl: u64) -> Result<(), Error> {
        let last = granted + millis(cap);
        if cap != 0 && self.now + ttl > last {
            return Err(Error::OverCap(last.saturating_sub(self.now)));
        }
        Ok(())
    }

    /// Gives the request all its keys: the fences, the holds (by key and fence) whose count has
    /// grown, and those that it has left as they were.
    pub fn grant(&mut self, request: &Request) -> (Vec<u64>, Holds, Holds) {
        let token = request.token;
        let is_new = request.keys.iter().any(|key| !self.holds(*key, token));
        if is_new {
            self.fence = (self.fence + 1).max(self.wall).max(request.fence);
        }
        let (mut fences, mut grown, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for key in &request.keys {
            let is_reentry = self.holds(*key, token);
            let new = Hold {
                count: 0,
                fence: self.fence,
                end: 0,
                granted: self.now,
                max_hold: 0,
                owner: None,
                connection: None,
            };
            let mut lock = match self.live(*key) {
                Some(lock) => lock,
                None => Lock {
                    mode: request.mode,
                    holds: Default::default(),
                },
            };
            let hold = lock.holds.entry(token).or_insert(new);
            if is_reentry && request.once {
                found.push((*key, hold.fence));
            } else {
                hold.count += 1;
                grown.push((*key, hold.fence));
            }
            hold.end = hold.end.max(self.now + request.ttl);
            hold.max_hold = tighter(hold.max_hold, request.max_hold);
            hold.owner = request.owner.or(hold.owner);
            if request.ephemeral || hold.connection.is_some() {
                hold.connection = Some(request.connection);
            }
            fences.push(hold.fence);
            self.locks.insert(*key, lock);
        }
        (fences, grown, found)
    }

    /// RELEASE: how many holds were taken off, 0 for null.
    pub fn release(&mut self, key: Key, token: Token, all: bool) -> u32 {
        let taken = self.take_off(key, token, all);
        if all {
            let same = |request: &Request| request.token == token && request.keys.contains(&key);
            let cancelled: Vec<_> = self
                .queue
                .iter()
                .filter(|waiter| same(&waiter.request))
                .map(|w| w.id)
                .collect();
            self.queue.retain(|waiter| !same(&waiter.request));
            self.owed
                .extend(cancelled.into_iter().map(|id| (id, Answer::Nothing)));
        }
        taken
    }

    pub(super) fn take_off(&mut self, key: Key, token: Token, all: bool) -> u32 {
        let Some(mut lock) = self.live(key) else {
            return 0;
        };
        let Some(hold) = lock.holds.get_mut(&token) else {
            return 0;
        };
        let taken = if all { hold.count } else { 1 };
        hold.count -= taken;
        if hold.count == 0 {
            lock.holds.remove(&token);
        }
        if lock.holds.is_empty() {
            self.locks.remove(&key);
        } else {
            self.locks.insert(key, lock);
        }
        taken
    }

    /// EXTEND: the hold's fence, none for null.
    pub fn extend(
        &mut self,
        key: Key,
        token: Token,
        ttl: u64,
        fence: u64,
        by: u64,
    ) -> Result<Option<u64>, Error> {
        if self.in_quarantine() {
            return Err(Error::Quarantine(self.quarantine_until - self.now));
        }
        let (now, wall) = (self.now, self.wall);
        let Some(mut lock) = self.live(key) else {
            return Ok(None);
        };
        let Some(hold) = lock.holds.get_mut(&token) else {
            return Ok(None);
        };
        if fence > wall + LEAD {
            return Err(Error::Fence);
        }
        self.check_cap(
            hold.granted,
            tighter(hold.max_hold, self.limits.max_hold),
            ttl,
        )?;
        hold.end = hold.end.max(now + ttl);
        hold.fence = hold.fence.max(fence);
        hold.connection = hold.connection.map(|_| by);
        let fence = hold.fence;
        self.fence = self.fence.max(fence);
        self.locks.insert(key, lock);
        self.confirm(key, token);
        Ok(Some(fence))
    }

    /// GUARD: whether the command may run.
    pub fn guard(&mut self, key: Key, token: Token) -> Result<bool, Error> {
        if self.in_quarantine() {
            return Err(Error::Quarantine(self.quarantine_until - self.now));
        }
        let holds = self.holds(key, token);
        if holds {
            self.confirm(key, token);
        }
        Ok(holds)
    }

    /// FORCE: how many holders there were.
    pub fn force(&mut self, key: Key) -> usize {
        let holders = self.live(key).map_or(0, |lock| lock.holds.len());
        self.locks.remove(&key);
        holders
    }
}
