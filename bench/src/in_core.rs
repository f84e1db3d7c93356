//! Core without a server: a table of locks, and the keys that a server would have.

use std::collections::HashMap;
use std::time::Instant;

use redislock_core::Table;
use redislock_core::lock::Terms;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{Answer, Found, Keyspace, Limits, Presence, Verdict, Wanted};
use redislock_core::time::{Micros, MonoTime, Now, Wait, WallTime};
use redislock_core::token::{Key, Token};

use crate::Outcome;

/// The time does not pass: no lease or wait ends.
const NOW: Now = Now {
    mono: MonoTime(1 << 40),
    wall: WallTime(1 << 50),
};
const TTL: Micros = Micros(600_000_000);

pub fn name(number: usize, prefix: &str) -> Key {
    Key::new(0, format!("{prefix}:{number:06}").as_bytes())
}

pub fn token(name: &str) -> Outcome<Token> {
    Ok(Token::new(name.as_bytes()).ok_or("not a token")?)
}

/// The table, and the keys of a server.
pub struct Node {
    pub table: Table,
    keys: Keys,
}

struct Keys(HashMap<Key, LockId>);

impl Keyspace for Keys {
    fn find(&mut self, _: &Table, key: &Key) -> Found {
        self.0
            .get(key)
            .map_or(Found::Nothing, |id| Found::Lock(*id))
    }
}

impl Keys {
    fn wanted<'a>(&self, key: &'a Key) -> Wanted<'a> {
        Wanted {
            db: key.db(),
            name: key.name(),
            lock: self.0.get(key).copied(),
            string: None,
        }
    }
}

impl Node {
    pub fn new() -> Self {
        Self {
            table: Table::new(Limits {
                max_waiters: usize::MAX,
                ..Limits::DEFAULT
            }),
            keys: Keys(HashMap::new()),
        }
    }

    /// Requests all of these keys, or none of them.
    pub fn request(&mut self, keys: &[&Key], token: &Token, wait: Wait) -> Verdict {
        let wanted = keys.iter().map(|key| self.keys.wanted(key));
        let wanted: Vec<_> = wanted.collect();
        let terms = Terms::exclusive(token.clone(), TTL);
        let verdict = self
            .table
            .acquire(&wanted, &terms, wait, NOW, &mut self.keys);
        self.apply();
        verdict
    }

    pub fn hold(&mut self, key: &Key, token: &Token) -> Outcome<()> {
        match self.request(&[key], token, Wait::No) {
            Verdict::Granted(_) => Ok(()),
            other => Err(format!("a free lock: {other:?}").into()),
        }
    }

    pub fn wait(&mut self, keys: &[&Key], token: &Token) -> Outcome<WaiterId> {
        match self.request(keys, token, Wait::Forever) {
            Verdict::Waits(id) => Ok(id),
            other => Err(format!("a lock of another: {other:?}").into()),
        }
    }

    /// Ends a wait, as when its connection closes.
    pub fn end_wait(&mut self, id: WaiterId) -> Outcome<()> {
        if !self.table.abandon(id) {
            return Err("a wait has ended before".into());
        }
        self.table.serve(NOW, &mut self.keys);
        Ok(())
    }

    /// Releases a lock, which must be granted to this waiter. Microseconds of the decision.
    pub fn release(&mut self, key: &Key, token: &Token, next: Option<WaiterId>) -> Outcome<f64> {
        let (wanted, begin) = (self.keys.wanted(key), Instant::now());
        let released = self
            .table
            .release(&wanted, token, false, NOW, &mut self.keys);
        let time = begin.elapsed().as_secs_f64() * 1e6;
        let answers = self.apply();
        let is_as_expected = match (&answers[..], next) {
            ([(id, Answer::Granted(_))], Some(next)) => *id == next,
            ([], None) => true,
            _ => false,
        };
        if released != 1 || !is_as_expected {
            return Err(format!("a release: {released}, {answers:?} for {next:?}").into());
        }
        Ok(time)
    }

    /// Applies the decision: keys are made and deleted, and waiters get their answers.
    fn apply(&mut self) -> Vec<(WaiterId, Answer)> {
        let output = self.table.take_output(NOW, true, Box::default());
        for touched in &output.touched {
            let key = touched.gone_from.clone();
            let Some(key) = key.or_else(|| self.table.key(touched.id)) else {
                continue;
            };
            if touched.presence == Presence::Gone {
                self.keys.0.remove(&key);
            } else {
                self.keys.0.insert(key, touched.id);
            }
        }
        for (id, _) in &output.answers {
            self.table.delivered(*id);
        }
        output.answers
    }
}
