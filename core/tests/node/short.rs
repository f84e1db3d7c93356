//! Short requests, for tests.

use redislock_core::lock::{Mode, Terms};
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Verdict};
use redislock_core::time::{Micros, Wait};
use redislock_core::token::{Key, Token};

use super::Node;

/// A request for the exclusive lock, without options.
pub fn terms(token: &Token, ttl: Micros) -> Terms {
    Terms::exclusive(token.clone(), ttl)
}

/// The same, for a hold that ends with the connection.
pub fn ephemeral(token: &Token, ttl: Micros, connection: u64) -> Terms {
    Terms {
        ephemeral: true,
        connection: Some(connection),
        ..terms(token, ttl)
    }
}

/// The token of this name.
pub fn token(name: &str) -> Token {
    Token::new(name.as_bytes()).expect("a token")
}

/// The key of this name in database 0.
pub fn key(name: &str) -> Key {
    Key::new(0, name.as_bytes())
}

/// One of many keys.
pub fn numbered(n: usize) -> Key {
    key(&format!("key-{n}"))
}

/// A second.
pub const SECOND: Micros = Micros(1_000_000);

/// Short requests: an owner, its keys (a letter each), ten seconds.
impl Node {
    pub fn ask(&mut self, owner: &str, keys: &str, mode: Mode, wait: Wait) -> Verdict {
        let keys: Vec<_> = keys.chars().map(|name| key(&name.to_string())).collect();
        let terms = Terms {
            mode,
            ..terms(&token(owner), 10 * SECOND)
        };
        self.acquire(&keys, &terms, wait)
    }

    /// The same for the exclusive locks of keys with longer names.
    pub fn request(&mut self, owner: &str, keys: &[Key], wait: Wait) -> Verdict {
        self.acquire(keys, &terms(&token(owner), 10 * SECOND), wait)
    }

    /// Acquires the exclusive locks, which are free; their fences.
    pub fn hold(&mut self, owner: &str, keys: &str) -> Vec<u64> {
        match self.ask(owner, keys, Mode::Exclusive, Wait::No) {
            Verdict::Granted(granted) => granted.to_vec(),
            other => panic!("{owner} should have {keys}: {other:?}"),
        }
    }

    /// Waits forever for the exclusive locks.
    pub fn wait(&mut self, owner: &str, keys: &str) -> WaiterId {
        self.wait_in(owner, keys, Mode::Exclusive)
    }

    pub fn wait_in(&mut self, owner: &str, keys: &str, mode: Mode) -> WaiterId {
        match self.ask(owner, keys, mode, Wait::Forever) {
            Verdict::Waits(id) => id,
            other => panic!("{owner} should wait for {keys}: {other:?}"),
        }
    }

    /// Releases one hold.
    pub fn let_go(&mut self, owner: &str, name: &str) -> u32 {
        self.release(&key(name), &token(owner), false)
    }

    /// Who was answered since this was asked last; each was granted what it waited for.
    pub fn granted(&mut self) -> Vec<WaiterId> {
        let (_, answers) = self.take();
        let granted = |(id, answer): (WaiterId, Answer)| match answer {
            Answer::Granted(_) => id,
            other => panic!("{id:?} was answered {other:?}"),
        };
        answers.into_iter().map(granted).collect()
    }

    /// Serves until nobody is left who can be; every grant arrives.
    pub fn serve_all(&mut self) -> Vec<WaiterId> {
        let mut all = Vec::new();
        loop {
            self.serve();
            let granted = self.granted();
            if granted.is_empty() {
                return all;
            }
            granted.iter().for_each(|id| self.table.delivered(*id));
            all.extend(granted);
        }
    }

    pub fn holds(&self, owner: &str, name: &str) -> bool {
        let lock = self.lock(&key(name));
        lock.is_some_and(|lock| lock.hold(&token(owner)).is_some())
    }
}

pub const SHARED: Mode = Mode::Shared { limit: None };

/// A semaphore of this size.
pub fn semaphore(limit: u32) -> Mode {
    Mode::Shared { limit: Some(limit) }
}
