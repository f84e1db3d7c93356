//! The same hand-over in core, without a server. A waiter needs no connection there, so there can
//! be more of them than a process may have files open.

use std::collections::HashMap;
use std::time::Instant;

use redislock_core::Table;
use redislock_core::lock::Terms;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{Answer, Found, Keyspace, Limits, Presence, Verdict, Wanted};
use redislock_core::time::{Micros, MonoTime, Now, Wait, WallTime};
use redislock_core::token::{Key, Token};

use super::{HANDOVERS, Place, mean_of_most};
use crate::Outcome;

/// The time does not pass: no lease or wait ends.
const NOW: Now = Now {
    mono: MonoTime(1 << 40),
    wall: WallTime(1 << 50),
};
const TTL: Micros = Micros(600_000_000);

/// Microseconds of a release that grants the lock to a waiter, with `size` of them waiting.
pub fn hand_over(size: usize, place: Place) -> Outcome<f64> {
    let mut node = Node::new();
    let keys: Vec<_> = match place {
        Place::OneKey => vec![Key::new(0, b"waited")],
        Place::KeyEach => (0..size).map(|number| name(number, "waited")).collect(),
    };
    let host = token("host")?;
    for key in &keys {
        node.hold(key, &host)?;
    }
    let key_of = |number: usize| keys.get(number % keys.len()).ok_or("no key");
    let mut waiting = Vec::new();
    for number in 0..size {
        let token = token(&format!("waiter-{number:030}"))?;
        let id = node.wait(key_of(number)?, &token)?;
        waiting.push((token, id));
    }
    let (mut times, mut holder) = (Vec::new(), None);
    for turn in 0..HANDOVERS {
        let number = turn % size;
        let (key, (token, id)) = (key_of(number)?, waiting.get(number).ok_or("no waiter")?);
        let releasing = holder.and_then(|number: usize| waiting.get(number));
        let releasing = releasing.map_or(&host, |(token, _)| token);
        times.push(node.release(key, releasing, Some(*id))?);
        match place {
            Place::OneKey => {
                if let Some(before) = holder.replace(number)
                    && let Some((token, id)) = waiting.get_mut(before)
                {
                    *id = node.wait(key, token)?;
                }
            }
            Place::KeyEach => {
                node.release(key, token, None)?;
                node.hold(key, &host)?;
                if let Some((token, id)) = waiting.get_mut(number) {
                    *id = node.wait(key, token)?;
                }
            }
        }
    }
    Ok(mean_of_most(times))
}

fn name(number: usize, prefix: &str) -> Key {
    Key::new(0, format!("{prefix}:{number:06}").as_bytes())
}

fn token(name: &str) -> Outcome<Token> {
    Ok(Token::new(name.as_bytes()).ok_or("not a token")?)
}

/// The table, and the keys of a server.
struct Node {
    table: Table,
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
    fn new() -> Self {
        Self {
            table: Table::new(Limits {
                max_waiters: usize::MAX,
                ..Limits::DEFAULT
            }),
            keys: Keys(HashMap::new()),
        }
    }

    fn request(&mut self, key: &Key, token: &Token, wait: Wait) -> Verdict {
        let (wanted, terms) = (
            [self.keys.wanted(key)],
            Terms::exclusive(token.clone(), TTL),
        );
        let verdict = self
            .table
            .acquire(&wanted, &terms, wait, NOW, &mut self.keys);
        self.apply();
        verdict
    }

    fn hold(&mut self, key: &Key, token: &Token) -> Outcome<()> {
        match self.request(key, token, Wait::No) {
            Verdict::Granted(_) => Ok(()),
            other => Err(format!("a free lock: {other:?}").into()),
        }
    }

    fn wait(&mut self, key: &Key, token: &Token) -> Outcome<WaiterId> {
        match self.request(key, token, Wait::Forever) {
            Verdict::Waits(id) => Ok(id),
            other => Err(format!("a lock of another: {other:?}").into()),
        }
    }

    /// Releases a lock, which must be granted to this waiter. Microseconds of the decision.
    fn release(&mut self, key: &Key, token: &Token, next: Option<WaiterId>) -> Outcome<f64> {
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
