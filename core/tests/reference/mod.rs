//! The locks of a node as the contract describes them, done in the plainest way: lists, linear
//! scans, everything worked out again each time. It shares nothing with the crate that it judges.
//!
//! The contract leaves open in which order waiters of different keys are granted. So the model does
//! not predict the answers to those who waited: it is shown them one by one and says whether each
//! was right at that moment, and afterwards whether somebody was passed over.

mod deadlock;
mod outside;
mod queue;
mod request;

use std::collections::{BTreeMap, BTreeSet};

/// A database and a name in it.
pub type Key = (u32, u8);
/// An owner.
pub type Token = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    /// With the semaphore's size, 0 for none.
    Shared(u32),
}

/// What a request asks for. Times are µs, caps are ms.
#[derive(Clone)]
pub struct Request {
    pub keys: Vec<Key>,
    pub token: Token,
    pub ttl: u64,
    pub mode: Mode,
    pub once: bool,
    pub fence: u64,
    pub max_hold: u32,
    pub ephemeral: bool,
    pub connection: u64,
    pub owner: Option<u8>,
}

/// Short: a failure shows many of them.
impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            keys,
            token,
            ttl,
            mode,
            once,
            fence,
            max_hold,
            ephemeral,
            connection,
            owner,
        } = self;
        write!(f, "{token} wants {keys:?} {mode:?} for {ttl}")?;
        write!(
            f,
            ", once {once}, fence {fence}, max_hold {max_hold}, ephemeral {ephemeral} by \
             {connection}, {owner:?}"
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Mode,
    TooManyHolders,
    TooManyWaiters,
    /// µs left until the latest end that is allowed.
    OverCap(u64),
    Fence,
    Deadlock,
    /// µs left.
    Quarantine(u64),
    WrongType,
}

/// What a request for locks is told at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Fences(Vec<u64>),
    Busy,
    Waits,
    Error(Error),
}

/// What a request that waited is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Fences(Vec<u64>),
    Nothing,
    Unblocked,
    Error(Error),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub count: u32,
    pub fence: u64,
    pub end: u64,
    pub granted: u64,
    pub max_hold: u32,
    pub owner: Option<u8>,
    pub connection: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub mode: Mode,
    pub holds: BTreeMap<Token, Hold>,
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub id: u64,
    pub request: Request,
    pub until: Option<u64>,
    pub since: u64,
}

/// A grant that its client has not been seen to receive, and the holds (by key and fence) that it
/// added one to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Undelivered {
    id: u64,
    token: Token,
    added: Vec<(Key, u64)>,
    /// The holds that it has found, and left as they were.
    found: Vec<(Key, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_hold: u32,
    pub max_waiters: usize,
    pub max_holders: usize,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub limits: Limits,
    pub locks: BTreeMap<Key, Lock>,
    /// Keys with a value of another type.
    pub others: BTreeSet<Key>,
    /// Keys with a string of an old client.
    pub strings: BTreeSet<Key>,
    /// In order of arrival.
    pub queue: Vec<Waiter>,
    /// The highest fence so far.
    pub fence: u64,
    /// Nobody who waits is granted anything meanwhile.
    pub holds_back: bool,
    pub quarantine_until: u64,
    /// Monotonic, µs.
    pub now: u64,
    /// Wall clock, µs.
    pub wall: u64,
    undelivered: Vec<Undelivered>,
    /// What has to be told next, before anything else.
    owed: Vec<(u64, Answer)>,
}

impl Model {
    pub fn new(limits: Limits, now: u64, wall: u64) -> Self {
        Self {
            limits,
            locks: BTreeMap::new(),
            others: BTreeSet::new(),
            strings: BTreeSet::new(),
            queue: Vec::new(),
            fence: 0,
            holds_back: false,
            quarantine_until: 0,
            now,
            wall,
            undelivered: Vec::new(),
            owed: Vec::new(),
        }
    }

    /// Who holds `key` at this moment, and how.
    pub fn live(&self, key: Key) -> Option<Lock> {
        let mut lock = self.locks.get(&key)?.clone();
        lock.holds.retain(|_, hold| hold.end > self.now);
        (!lock.holds.is_empty()).then_some(lock)
    }

    pub fn holds(&self, key: Key, token: Token) -> bool {
        self.live(key)
            .is_some_and(|lock| lock.holds.contains_key(&token))
    }

    /// Everything that is held at this moment.
    pub fn held(&self) -> BTreeMap<Key, Lock> {
        let keys = self.locks.keys();
        keys.filter_map(|key| Some((*key, self.live(*key)?)))
            .collect()
    }

    /// Forgets leases that have ended: nothing that the model says depends on them.
    pub fn sweep(&mut self) {
        self.locks = self.held();
    }

    pub fn in_quarantine(&self) -> bool {
        self.quarantine_until > self.now
    }

    /// Whether it differs from `other` in nothing that cannot be seen, where all that can be seen
    /// is the same.
    pub fn is_like(&self, other: &Self) -> bool {
        self.undelivered == other.undelivered
    }

    pub fn owes_nothing(&self) -> bool {
        self.owed.is_empty()
    }

    /// The earliest moment at which a lease or a wait ends.
    pub fn next_end(&self) -> Option<u64> {
        let held = self.held();
        let holds = held.values().flat_map(|lock| lock.holds.values());
        let leases = holds.map(|hold| hold.end);
        leases
            .chain(self.queue.iter().filter_map(|waiter| waiter.until))
            .min()
    }
}

/// The tighter of two caps, where 0 is none.
fn tighter(a: u32, b: u32) -> u32 {
    [a, b]
        .into_iter()
        .filter(|cap| *cap != 0)
        .min()
        .unwrap_or(0)
}

fn millis(ms: u32) -> u64 {
    u64::from(ms) * 1000
}
