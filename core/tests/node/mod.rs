//! A node without a server: the table and a keyspace that is a plain map, kept as the module keeps
//! the server's.

mod short;

use std::collections::BTreeMap;

use redislock_core::Table;
use redislock_core::lock::{Lock, Terms};
use redislock_core::payload::Origin;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{
    Answer, Denial, Events, Extended, Found, Keyspace, LegacyString, Limits, Loaded, Presence,
    Verdict, Wanted,
};
use redislock_core::time::{Micros, MonoTime, Now, Wait, WallTime};
use redislock_core::token::{Key, Token};
use redislock_core::wire::{Reader, save};
pub use short::{SECOND, SHARED, ephemeral, key, numbered, semaphore, terms, token};

/// What stands at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Lock(LockId),
    /// A lock of an old client: when it expires, if it does.
    String(Option<MonoTime>),
    Other,
}

/// The keyspace.
#[derive(Clone, Debug, Default)]
pub struct Keys(pub BTreeMap<Key, Value>);

impl Keyspace for Keys {
    fn find(&mut self, _: &Table, key: &Key) -> Found {
        match self.0.get(key) {
            None => Found::Nothing,
            Some(Value::Lock(id)) => Found::Lock(*id),
            Some(Value::String(end)) => Found::LegacyString(LegacyString { end: *end }),
            Some(Value::Other) => Found::Other,
        }
    }
}

/// A change of one lock, as the module would replicate it.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    pub presence: Presence,
    pub bytes: Vec<u8>,
    pub events: Events,
}

/// The table, its keyspace, the time, and what the calls since [`Node::take`] have led to.
#[derive(Debug)]
pub struct Node {
    pub table: Table,
    pub keys: Keys,
    pub now: Now,
    /// Values without a key that are not freed yet.
    pub unlinked: Vec<LockId>,
    /// Values that were flushed, and are freed again by the thread that the server chooses.
    flushed: Vec<LockId>,
    changes: Vec<Change>,
    answers: Vec<(WaiterId, Answer)>,
}

/// The clocks of a new node. Far from 0, so that there is a past to have been granted in.
pub const START: Now = Now {
    mono: MonoTime(1 << 40),
    wall: WallTime(1 << 50),
};

/// Limits that are in nobody's way.
pub const ROOMY: Limits = Limits {
    max_hold: None,
    max_waiters: 10_000,
    max_holders: 10_000,
};

impl Node {
    pub fn new(limits: Limits) -> Self {
        let (changes, answers) = (Vec::new(), Vec::new());
        Self {
            table: Table::new(limits),
            keys: Keys::default(),
            now: START,
            unlinked: Vec::new(),
            flushed: Vec::new(),
            changes,
            answers,
        }
    }

    /// Takes the changes and the answers since the last time.
    pub fn take(&mut self) -> (Vec<Change>, Vec<(WaiterId, Answer)>) {
        (
            std::mem::take(&mut self.changes),
            std::mem::take(&mut self.answers),
        )
    }

    /// The lock at a key.
    pub fn at(&self, key: &Key) -> Option<LockId> {
        match self.keys.0.get(key) {
            Some(Value::Lock(id)) => Some(*id),
            _ => None,
        }
    }

    pub fn lock(&self, key: &Key) -> Option<&Lock> {
        self.table.lock(self.at(key)?)
    }

    /// Applies what the calls so far have led to, as the module does.
    pub fn apply(&mut self) {
        let output = self.table.take_output(self.now, true, Box::default());
        for touched in &output.touched {
            let key = touched.gone_from.clone();
            let Some(key) = key.or_else(|| self.table.key(touched.id)) else {
                // It was flushed in the middle of the decision.
                continue;
            };
            let present = self.at(&key);
            match touched.presence {
                Presence::New => assert_eq!(present, None, "made where a lock is"),
                Presence::Kept => assert_eq!(present, Some(touched.id), "changed where it is not"),
                // One that was made by the same decision never had a key.
                Presence::Gone => assert!(present.is_none_or(|id| id == touched.id), "not its key"),
            }
            if touched.presence == Presence::Gone {
                self.keys.0.remove(&key);
            } else {
                self.keys.0.insert(key.clone(), Value::Lock(touched.id));
            }
            let bytes = output.effect[touched.change.clone()].to_vec();
            self.changes.push(Change {
                key,
                presence: touched.presence,
                bytes,
                events: touched.events,
            });
        }
        self.answers.extend(output.answers);
    }

    pub fn acquire(&mut self, keys: &[Key], terms: &Terms, wait: Wait) -> Verdict {
        for key in keys {
            // The adapter does not open such a key.
            if let Some(lock) = self.table.lock_to_wait_for(key, &terms.token) {
                assert_eq!(Some(lock), self.at(key), "the lock at {key:?}");
            }
        }
        let wanted: Vec<_> = keys.iter().map(|key| wanted(key, &self.keys)).collect();
        let verdict = self
            .table
            .acquire(&wanted, terms, wait, self.now, &mut self.keys);
        self.apply();
        verdict
    }

    /// A release without [`Node::apply`], so that several of them make one decision.
    pub fn decide_release(&mut self, key: &Key, token: &Token, all: bool) -> u32 {
        let wanted = wanted(key, &self.keys);
        let keys = &mut self.keys;
        self.table.release(&wanted, token, all, self.now, keys)
    }

    pub fn release(&mut self, key: &Key, token: &Token, all: bool) -> u32 {
        let taken = self.decide_release(key, token, all);
        self.apply();
        taken
    }

    pub fn release_each(&mut self, keys: &[Key], token: &Token, all: bool) -> Vec<u32> {
        let wanted: Vec<_> = keys.iter().map(|key| wanted(key, &self.keys)).collect();
        let wanted = wanted.into_iter();
        let (now, at) = (self.now, &mut self.keys);
        let taken = self.table.release_each(wanted, token, all, now, at);
        self.apply();
        taken
    }

    pub fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Micros,
        fence: Option<u64>,
        connection: Option<u64>,
    ) -> Extended {
        let lock = self.at(key);
        let extended = self.table.extend(
            lock,
            token,
            ttl,
            fence,
            connection,
            self.now,
            &mut self.keys,
        );
        self.apply();
        extended
    }

    pub fn guards(&mut self, key: &Key, token: &Token) -> Result<bool, Denial> {
        let guards = self
            .table
            .guards(self.at(key), token, self.now, &mut self.keys);
        self.apply();
        guards
    }

    pub fn force(&mut self, key: &Key) -> u64 {
        let wanted = wanted(key, &self.keys);
        let holders = self.table.force(&wanted, self.now, &mut self.keys);
        self.apply();
        holders
    }

    /// What the module's timer does.
    pub fn tick(&mut self) {
        while self.table.is_closing() {
            self.table.close(2, self.now, &mut self.keys);
        }
        self.end_strings();
        while self.table.expire(2, self.now, &mut self.keys) {}
        while self.table.time_out(2, self.now) {}
        self.table.quarantine_has_ended(self.now);
        self.serve();
        while self.table.has_remains() {
            self.table.clear_remains(2);
        }
    }

    /// Strings whose time is up are gone.
    fn end_strings(&mut self) {
        let now = self.now.mono;
        let ended = |value: &Value| matches!(value, Value::String(Some(end)) if *end <= now);
        self.keys.0.retain(|_, value| !ended(value));
        self.look_at_strings();
    }

    fn look_at_strings(&mut self) {
        for key in self.table.strings_due(usize::MAX, self.now.mono) {
            self.table.string_may_be_gone(&key);
        }
    }

    /// An old client acquires the key, which is free.
    pub fn set_string(&mut self, key: &Key, ttl: Option<Micros>) {
        assert_eq!(self.keys.0.get(key), None, "SET NX finds it free");
        let end = ttl.map(|ttl| self.now.mono.plus(ttl));
        self.keys.0.insert(key.clone(), Value::String(end));
    }

    pub fn serve(&mut self) {
        while self.table.is_sweeping() {
            self.table.sweep(2, &mut self.keys);
        }
        self.look_at_strings();
        loop {
            self.table.serve_some(2, self.now, &mut self.keys);
            self.apply();
            if !self.table.has_more_to_serve(self.now) || self.table.awaits_delivery() {
                break;
            }
        }
    }

    pub fn advance(&mut self, span: Micros) {
        self.now.mono = self.now.mono.plus(span);
    }

    /// The connection closes; its holds are taken off by the timer.
    pub fn hang_up(&mut self, connection: u64, grace: Micros) {
        self.table
            .hang_up(connection, self.now.mono.plus(grace), self.now);
    }

    pub fn abandon(&mut self, id: WaiterId) {
        self.table.abandon(id);
        self.serve();
    }

    pub fn undeliverable(&mut self, id: WaiterId) {
        self.table.undeliverable(id, self.now, &mut self.keys);
        self.serve();
    }

    /// Somebody else than a lock command removes the key.
    pub fn remove(&mut self, key: &Key) {
        match self.keys.0.remove(key) {
            Some(Value::Lock(id)) => {
                self.table.unlinked(id);
                self.table.forget(id);
            }
            Some(Value::String(_)) => self.table.string_may_be_gone(key),
            Some(Value::Other) | None => {}
        }
    }

    /// The key is removed, but its value is freed later.
    pub fn remove_lazily(&mut self, key: &Key) {
        if let Some(id) = self.at(key) {
            self.keys.0.remove(key);
            self.table.unlinked(id);
            self.unlinked.push(id);
        }
    }

    /// What was removed is freed.
    pub fn free(&mut self) {
        self.unlinked.append(&mut self.flushed);
        for id in std::mem::take(&mut self.unlinked) {
            self.table.forget(id);
        }
    }

    /// RENAME or MOVE.
    pub fn rename(&mut self, from: &Key, to: &Key) {
        let Some(value) = self.keys.0.get(from).copied() else {
            return;
        };
        if let Value::Lock(_) = value {
            self.keys.0.remove(from);
        } else {
            self.remove(from);
        }
        self.remove(to);
        self.keys.0.insert(to.clone(), value);
        if let Value::Lock(id) = value {
            self.table.unlinked(id);
            self.table.attach(id, to.clone());
        }
    }

    pub fn swap(&mut self, a: u32, b: u32) {
        let swapped = |key: &Key| match key.db() {
            db if db == a => key.in_db(b),
            db if db == b => key.in_db(a),
            _ => key.clone(),
        };
        self.keys.0 = self
            .keys
            .0
            .iter()
            .map(|(key, value)| (swapped(key), *value))
            .collect();
        self.table.swapped(a, b);
    }

    /// How long the last flushed lease had to go.
    pub fn flush(&mut self, db: Option<u32>) -> Micros {
        let is_flushed = |key: &Key| db.is_none_or(|db| db == key.db());
        for (_, value) in self.keys.0.iter().filter(|(key, _)| is_flushed(key)) {
            if let Value::Lock(id) = value {
                self.flushed.push(*id);
            }
        }
        // What is unlinked and not freed yet counts as gone, too.
        let stood_there = |id: &mut LockId| self.table.key(*id).is_some_and(|key| is_flushed(&key));
        self.flushed
            .extend(self.unlinked.extract_if(.., stood_there));
        self.keys.0.retain(|key, _| !is_flushed(key));
        self.table.flushed(db, self.now)
    }

    /// Whether values that were flushed are not freed yet.
    pub fn has_flushed(&self) -> bool {
        !self.flushed.is_empty()
    }

    /// The saved form of the lock at a key.
    pub fn dump(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        save(
            &*self.table.as_seen(self.at(key)?)?,
            self.table.lease_now(self.now.mono),
            &mut bytes,
        );
        Some(bytes)
    }

    /// A lock comes back from its saved form, in place of what stands there.
    pub fn restore(&mut self, key: &Key, bytes: &[u8]) {
        self.remove(key);
        let id = self
            .table
            .restore(key.db(), key.name(), bytes, Origin::Trusted, self.now)
            .expect("what was saved");
        self.keys.0.insert(key.clone(), Value::Lock(id));
    }

    /// The server starts again with what it had saved; loading takes a while.
    pub fn reload(&mut self, loading: Micros) {
        let dumps: Vec<_> = self
            .keys
            .0
            .keys()
            .filter_map(|key| Some((key.clone(), self.dump(key)?)))
            .collect();
        (self.unlinked, self.flushed) = (Vec::new(), Vec::new());
        let mut table = Table::new(self.table.limits);
        table.raise_fence(self.table.fence());
        table.loading_began(self.now.mono);
        self.table = table;
        self.keys
            .0
            .retain(|_, value| !matches!(value, Value::Lock(_)));
        for (key, bytes) in dumps {
            self.restore(&key, &bytes);
        }
        self.advance(loading);
        self.table.loading_ended(self.now.mono);
    }

    /// A replica starts again with what its master has.
    pub fn sync(&mut self, master: &Self) {
        (self.unlinked, self.flushed) = (Vec::new(), Vec::new());
        self.now = master.now;
        self.table = Table::new(master.table.limits);
        self.table.raise_fence(master.table.fence());
        self.keys
            .0
            .retain(|_, value| !matches!(value, Value::Lock(_)));
        for key in master.keys.0.keys() {
            if let Some(bytes) = master.dump(key) {
                self.restore(key, &bytes);
            }
        }
    }

    /// A replica receives what its master has changed.
    pub fn replay(&mut self, change: &Change) {
        let mut reader = Reader(&change.bytes);
        let read = reader
            .change(self.table.lease_now(self.now.mono))
            .expect("what the master wrote");
        assert!(reader.0.is_empty(), "nothing after it");
        match self
            .table
            .apply(change.key.clone(), self.at(&change.key), read)
        {
            Loaded::New(id) => {
                self.keys.0.insert(change.key.clone(), Value::Lock(id));
            }
            Loaded::Kept => {}
            Loaded::Gone => {
                self.keys.0.remove(&change.key);
            }
            Loaded::Refused => panic!("what the master did is refused"),
        }
    }
}

fn wanted<'a>(key: &'a Key, keys: &Keys) -> Wanted<'a> {
    let (mut lock, mut string) = (None, None);
    match keys.0.get(key) {
        Some(Value::Lock(id)) => lock = Some(*id),
        Some(Value::String(end)) => string = Some(LegacyString { end: *end }),
        Some(Value::Other) | None => {}
    }
    Wanted {
        db: key.db(),
        name: key.name(),
        lock,
        string,
    }
}
