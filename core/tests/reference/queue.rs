//! Waiting: who is ahead of whom, whose turn it is, what may be told.

use super::request::Standing;
use super::{Answer, Error, Key, Model, Request, Token, Undelivered, Waiter};

impl Model {
    pub(super) fn join(&mut self, id: u64, request: Request, until: Option<u64>) {
        self.queue.push(Waiter {
            id,
            request,
            until,
            since: self.now,
        });
    }

    /// Whether `waiter` waits for something that `token` holds.
    fn waits_for(&self, waiter: &Request, token: Token) -> bool {
        let keys = waiter.keys.iter();
        keys.into_iter()
            .any(|key| self.holds(*key, token) && self.standing(*key, waiter) == Standing::Excluded)
    }

    /// Those of the first `place` in the queue who are ahead of `request` in the queue of `key`.
    pub(super) fn ahead(&self, key: Key, request: &Request, place: usize) -> Vec<&Waiter> {
        let earlier = self.queue.iter().take(place);
        earlier
            .filter(|other| other.request.keys.contains(&key))
            .filter(|other| !self.waits_for(&other.request, request.token))
            .collect()
    }

    /// Whether a request at `place` in the queue can have this key.
    pub(super) fn is_free(&self, key: Key, request: &Request, place: usize) -> bool {
        match self.standing(key, request) {
            Standing::Held => true,
            Standing::Open => self.ahead(key, request, place).is_empty(),
            Standing::Excluded | Standing::Refused(_) => false,
        }
    }

    /// Whether nothing is left that a waiter would have to wait for: it has to be answered now, one
    /// way or the other.
    pub fn turn_has_come(&self, place: usize) -> bool {
        let request = &self.queue[place].request;
        request
            .keys
            .iter()
            .all(|key| match self.standing(*key, request) {
                Standing::Held => true,
                Standing::Excluded => false,
                Standing::Open | Standing::Refused(_) => {
                    self.ahead(*key, request, place).is_empty()
                }
            })
    }

    /// Everyone whose turn has come and who was not answered.
    pub fn passed_over(&self) -> Vec<u64> {
        let places = (0..self.queue.len()).filter(|place| self.turn_has_come(*place));
        places.map(|place| self.queue[place].id).collect()
    }

    /// A waiter was told this. Whether that is right at this moment; if so, it is done.
    pub fn accepts(&mut self, id: u64, answer: &Answer) -> bool {
        if let Some(owed) = self.owed.first() {
            return *owed == (id, answer.clone()) && !self.owed.drain(..1).as_slice().is_empty();
        }
        let Some(place) = self.queue.iter().position(|waiter| waiter.id == id) else {
            return false;
        };
        if self.holds_back || self.in_quarantine() {
            return false;
        }
        let request = self.queue[place].request.clone();
        let others = request.keys.iter().any(|key| self.others.contains(key));
        let is_right = match answer {
            Answer::Nothing | Answer::Unblocked => false,
            Answer::Error(Error::WrongType) => others,
            // What has happened since it began to wait has led to a deadlock.
            Answer::Error(Error::Deadlock) => self.is_in_deadlock(id),
            Answer::Error(error @ (Error::Mode | Error::TooManyHolders)) => {
                let refused = Standing::Refused(error.clone());
                request
                    .keys
                    .iter()
                    .any(|key| self.standing(*key, &request) == refused)
            }
            Answer::Error(error) => {
                self.turn_has_come(place) && self.check(&request).as_ref() == Err(error)
            }
            Answer::Fences(_) => {
                let free = request
                    .keys
                    .iter()
                    .all(|key| self.is_free(*key, &request, place));
                free && !others && self.check(&request).is_ok()
            }
        };
        if !is_right {
            return false;
        }
        self.queue.remove(place);
        if let Answer::Fences(told) = answer {
            let (fences, added, found) = self.grant(&request);
            self.undelivered.push(Undelivered {
                id,
                token: request.token,
                added,
                found,
            });
            return fences == *told;
        }
        true
    }

    /// The time to wait is up for some: they are told so, the earliest first.
    pub fn time_out(&mut self) {
        let mut overdue: Vec<_> = self
            .queue
            .iter()
            .filter_map(|waiter| Some((waiter.until?, waiter.id)))
            .collect();
        overdue.retain(|(until, _)| *until <= self.now);
        overdue.sort_unstable();
        for (_, id) in overdue {
            self.queue.retain(|waiter| waiter.id != id);
            self.owed.push((id, Answer::Nothing));
        }
    }

    /// Everyone who waits, or waits for `key`, is told to come again.
    pub fn unblock(&mut self, key: Option<Key>) {
        let (told, rest) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition(|waiter: &Waiter| key.is_none_or(|key| waiter.request.keys.contains(&key)));
        self.queue = rest;
        self.owed
            .extend(told.iter().map(|waiter| (waiter.id, Answer::Unblocked)));
    }

    /// The connection of a waiter closes.
    pub fn abandon(&mut self, id: u64) {
        self.queue.retain(|waiter| waiter.id != id);
    }

    /// The waiter `id` has received its grant.
    pub fn delivered(&mut self, id: u64) {
        for grant in self
            .undelivered
            .extract_if(.., |grant| grant.id == id)
            .collect::<Vec<_>>()
        {
            let found = grant.found.iter();
            found.for_each(|(key, _)| self.confirm(*key, grant.token));
        }
    }

    /// The waiter `id` was granted and is gone: what it added is taken off again.
    pub fn undeliverable(&mut self, id: u64) {
        let (gone, rest) = std::mem::take(&mut self.undelivered)
            .into_iter()
            .partition(|grant| grant.id == id);
        self.undelivered = rest;
        let gone: Vec<Undelivered> = gone;
        for grant in gone {
            for (key, fence) in grant.added {
                // Another one on its way has found this hold, and answers for it now.
                let mut others = self.undelivered.iter_mut();
                let other = others.find(|other| {
                    other.token == grant.token && other.found.contains(&(key, fence))
                });
                if let Some(other) = other {
                    other.found.retain(|found| *found != (key, fence));
                    other.added.push((key, fence));
                    continue;
                }
                let same = self
                    .live(key)
                    .and_then(|lock| Some(lock.holds.get(&grant.token)?.fence == fence));
                if same == Some(true) {
                    self.take_off(key, grant.token, false);
                }
            }
        }
    }

    /// The owner was told that it holds `key`: no grant of it is taken back.
    pub(super) fn confirm(&mut self, key: Key, token: Token) {
        for grant in self
            .undelivered
            .iter_mut()
            .filter(|grant| grant.token == token)
        {
            grant.added.retain(|(added, _)| *added != key);
        }
    }
}
