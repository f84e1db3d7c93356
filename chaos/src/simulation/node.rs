//! A simulated server: the real table of locks in a process that can be paused, killed and started
//! again, with a disk that keeps all, some or nothing of it.

use std::collections::BTreeMap;

use redislock_core::Table;
use redislock_core::payload::Origin;
use redislock_core::quarantine::Reason;
use redislock_core::queue::WaiterId;
use redislock_core::slots::LockId;
use redislock_core::table::{Answer, Found, Keyspace, Limits, Presence, Wanted};
use redislock_core::time::{Millis, MonoTime, Now, WallTime};
use redislock_core::token::{Key, Token};
use redislock_core::wire::save;

use super::clock::{Clock, Time};
use super::command;
use super::network::ConnectionId;
use super::resp::{Reply, take_command};

/// What a node that crashes finds when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Everything that it has acknowledged: `appendfsync always`.
    Durable,
    /// What it had about a second before: `appendfsync everysec`.
    EverySecond,
    /// Nothing.
    Volatile,
}

/// A protection that a node can be run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFlaw {
    /// It grants at once after it has lost its grants.
    NoQuarantine,
    /// It starts again without its fence counter.
    CounterNotSaved,
}

/// The keyspace: nothing but locks.
#[derive(Debug, Default)]
pub struct Keys(BTreeMap<Key, LockId>);

impl Keyspace for Keys {
    fn find(&mut self, _: &Table, key: &Key) -> Found {
        self.0
            .get(key)
            .map_or(Found::Nothing, |id| Found::Lock(*id))
    }
}

impl Keys {
    pub fn get(&self, key: &Key) -> Option<LockId> {
        self.0.get(key).copied()
    }

    /// What a request names.
    pub fn wanted<'a>(&self, key: &'a Key) -> Wanted<'a> {
        Wanted {
            db: key.db(),
            name: key.name(),
            lock: self.get(key),
            string: None,
        }
    }
}

/// What is on disk: every lock as it was when it last changed, and the fence counter.
#[derive(Clone, Debug, Default)]
struct Disk {
    locks: BTreeMap<Key, Vec<u8>>,
    fence: u64,
    quarantine: Millis,
}

/// One connection, as the server sees it.
#[derive(Debug, Default)]
pub struct Session {
    input: Vec<u8>,
    pub resp3: bool,
    /// Its request waits; the reply to it is an array if it names several locks.
    waiting: Option<(WaiterId, bool)>,
}

/// Whether the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Paused,
    /// The process has ended; the machine is up and resets its connections.
    Down,
    /// The machine is down too.
    PowerLost,
}

/// How a node is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub clock: Clock,
    /// The wall clock minus the monotonic one, in microseconds.
    pub wall: i64,
    pub memory: Memory,
    /// `lock.quarantine`, ms; 0: off.
    pub quarantine: u64,
    /// `lock.max-ttl`, ms.
    pub max_ttl: u64,
    pub flaw: Option<NodeFlaw>,
}

impl Setup {
    fn longest_lease(&self) -> Option<Millis> {
        (self.quarantine > 0).then_some(Millis(self.quarantine))
    }
}

/// Described at the top of this file.
#[derive(Debug)]
pub struct Node {
    pub setup: Setup,
    pub state: State,
    /// Counts the starts of the process.
    pub process: u64,
    pub place: usize,
    pub table: Table,
    pub keys: Keys,
    sessions: BTreeMap<ConnectionId, Session>,
    waiters: BTreeMap<WaiterId, ConnectionId>,
    written: Disk,
    synced: Disk,
    /// Requests and replies since they were last read, if a trace is wanted.
    pub journal: Option<Vec<String>>,
    /// Replies to be sent.
    pub outbox: Vec<(ConnectionId, Vec<u8>)>,
}

const LIMITS: Limits = Limits {
    max_hold: None,
    max_waiters: 10_000,
    max_holders: 10_000,
};
/// How much is done at once, by the place of the node. The module ends one lease at a time while a
/// child saves, and eight otherwise.
const STEPS: [usize; 3] = [1, 8, 32];

impl Node {
    pub fn new(place: usize, setup: Setup) -> Self {
        let mut node = Self {
            setup,
            state: State::Running,
            process: 0,
            place,
            table: Table::new(LIMITS),
            keys: Keys::default(),
            sessions: BTreeMap::new(),
            waiters: BTreeMap::new(),
            written: Disk::default(),
            synced: Disk::default(),
            outbox: Vec::new(),
            journal: None,
        };
        node.table.quarantine.configure(setup.longest_lease());
        node
    }

    /// Both clocks of the machine.
    pub fn now(&self, time: Time) -> Now {
        let mono = self.setup.clock.at(time);
        Now {
            mono: MonoTime(mono),
            wall: WallTime(mono.saturating_add_signed(self.setup.wall)),
        }
    }

    /// Whether its process exists.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Running | State::Paused)
    }

    /// Random, new with each start.
    pub fn incarnation(&self) -> String {
        format!("node-{}-process-{}", self.place, self.process)
    }

    /// The process ends.
    pub fn crash(&mut self, power: bool) {
        self.state = if power { State::PowerLost } else { State::Down };
        self.sessions.clear();
        self.waiters.clear();
        self.outbox.clear();
        self.written = match self.setup.memory {
            Memory::Durable => std::mem::take(&mut self.written),
            Memory::EverySecond => self.synced.clone(),
            Memory::Volatile => Disk::default(),
        };
        self.keys = Keys::default();
        self.table = Table::new(LIMITS);
    }

    /// The process starts with what is on disk.
    pub fn start(&mut self, time: Time) {
        let now = self.now(time);
        self.state = State::Running;
        self.process += 1;
        self.table = Table::new(LIMITS);
        let quarantine = &mut self.table.quarantine;
        quarantine.configure(self.setup.longest_lease());
        if self.setup.flaw != Some(NodeFlaw::NoQuarantine) {
            quarantine.remember(self.written.quarantine);
            quarantine.enter(Reason::Start, now.mono);
        }
        self.table.loading_began(now.mono);
        for (key, bytes) in &self.written.locks {
            let restored = self
                .table
                .restore(key.db(), key.name(), bytes, Origin::Trusted, now);
            if let Ok(id) = restored {
                self.keys.0.insert(key.clone(), id);
            }
        }
        if self.setup.flaw != Some(NodeFlaw::CounterNotSaved) {
            self.table.raise_fence(self.written.fence);
        }
        self.table.loading_ended(now.mono);
        self.synced = self.written.clone();
    }

    /// What is written reaches the disk.
    pub fn sync(&mut self) {
        if self.setup.memory == Memory::EverySecond {
            self.synced.clone_from(&self.written);
        }
    }

    pub fn is_connected(&self, connection: ConnectionId) -> bool {
        self.sessions.contains_key(&connection)
    }

    pub fn accept(&mut self, connection: ConnectionId) {
        self.sessions.insert(connection, Session::default());
    }

    /// Bytes have come in. Commands behind one that waits are read when that is answered.
    pub fn receive(&mut self, connection: ConnectionId, bytes: &[u8], time: Time) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.input.extend_from_slice(bytes);
        }
        self.read(connection, time);
    }

    fn read(&mut self, connection: ConnectionId, time: Time) {
        while let Some(session) = self.sessions.get_mut(&connection) {
            if session.waiting.is_some() {
                return;
            }
            match take_command(&mut session.input) {
                Ok(Some(args)) => self.run(connection, &args, time),
                Ok(None) => return,
                Err(_) => {
                    let problem = "ERR Protocol error".to_owned();
                    self.reply(connection, &Reply::Error(problem));
                    return self.disconnect(connection, time);
                }
            }
        }
    }

    fn run(&mut self, connection: ConnectionId, args: &[Vec<u8>], time: Time) {
        let done = command::run(self, connection, args, time);
        if let Some(journal) = &mut self.journal
            && args
                .first()
                .is_some_and(|name| name.starts_with(b"LOCK.") && name != b"LOCK.NODE")
        {
            journal.push(format!("{} -> {done:?}", show(args)));
        }
        match done {
            command::Done::Reply(reply) => self.reply(connection, &reply),
            command::Done::Waits(id, several) => {
                self.waiters.insert(id, connection);
                if let Some(session) = self.sessions.get_mut(&connection) {
                    session.waiting = Some((id, several));
                }
            }
        }
        self.apply(time);
    }

    pub fn session(&mut self, connection: ConnectionId) -> Option<&mut Session> {
        self.sessions.get_mut(&connection)
    }

    fn reply(&mut self, connection: ConnectionId, reply: &Reply) {
        if let Some(session) = self.sessions.get(&connection) {
            let mut bytes = Vec::new();
            reply.write(session.resp3, &mut bytes);
            self.outbox.push((connection, bytes));
        }
    }

    /// Applies what core has decided, as the module does: keys, disk, replies to the waiters.
    pub fn apply(&mut self, time: Time) {
        while self.table.has_output() {
            let now = self.now(time);
            let output = self.table.take_output(now, true, Box::default());
            for touched in &output.touched {
                let gone = touched.gone_from.clone();
                let Some(key) = gone.or_else(|| self.table.key(touched.id)) else {
                    continue;
                };
                if touched.presence == Presence::Gone {
                    self.keys.0.remove(&key);
                    self.written.locks.remove(&key);
                } else {
                    self.keys.0.insert(key.clone(), touched.id);
                    if let Some(lock) = self.table.as_seen(touched.id) {
                        let mut bytes = Vec::new();
                        save(&lock, self.table.lease_now(now.mono), &mut bytes);
                        self.written.locks.insert(key, bytes);
                    }
                }
            }
            self.written.fence = self.table.fence();
            self.written.quarantine = self.table.quarantine.to_save();
            let mut answered = Vec::new();
            for (id, answer) in &output.answers {
                answered.extend(self.answer(*id, answer));
            }
            for connection in answered {
                self.read(connection, time);
            }
        }
    }

    /// Replies to a waiter. What it has sent in the meantime is read next.
    fn answer(&mut self, id: WaiterId, answer: &Answer) -> Option<ConnectionId> {
        let connection = self.waiters.remove(&id)?;
        let session = self.sessions.get_mut(&connection)?;
        let (_, several) = session.waiting.take()?;
        let reply = command::answer(answer, several);
        if let Some(journal) = &mut self.journal {
            journal.push(format!("one who waited -> {reply:?}"));
        }
        self.reply(connection, &reply);
        self.table.delivered(id);
        Some(connection)
    }

    /// A connection has closed.
    pub fn disconnect(&mut self, connection: ConnectionId, time: Time) {
        let Some(session) = self.sessions.remove(&connection) else {
            return;
        };
        let now = self.now(time);
        if let Some((id, _)) = session.waiting {
            self.waiters.remove(&id);
            self.table.abandon(id);
            self.table.undeliverable(id, now, &mut self.keys);
        }
        self.table.hang_up(connection.name(), now.mono, now);
        self.tick(time);
    }

    /// Does what is due: what the module's timer does.
    pub fn tick(&mut self, time: Time) {
        let now = self.now(time);
        let step = STEPS[self.place % STEPS.len()];
        while self.table.time_out(step, now) {}
        self.table.quarantine_has_ended(now);
        loop {
            let (table, keys) = (&mut self.table, &mut self.keys);
            table.close(step, now, keys);
            table.sweep(step, keys);
            table.clear_remains(step);
            let more = table.expire(step, now, keys);
            table.serve_some(step, now, keys);
            // This also delivers the grants, so that the next ones can be decided.
            self.apply(time);
            let table = &self.table;
            let cleans = table.is_sweeping() || table.is_closing() || table.has_remains();
            if !more && !cleans && !table.has_more_to_serve(now) {
                break;
            }
        }
    }

    /// When something is due next, in true time.
    pub fn next_tick(&self) -> Option<Time> {
        let next = self.table.next_deadline()?;
        Some(self.setup.clock.when(next.0))
    }

    /// Whether this node surely refuses the lock to all other owners: `token` holds it, or the node
    /// grants nothing because it is down or in quarantine.
    pub fn keeps(&self, key: &Key, token: &Token, time: Time) -> bool {
        if !self.is_up() {
            return true;
        }
        self.table.pause(self.now(time).mono).is_some() || self.holds(key, token, time)
    }

    /// Whether this owner has the lock here.
    pub fn holds(&self, key: &Key, token: &Token, time: Time) -> bool {
        let now = self.now(time);
        let lock = self.keys.get(key).and_then(|id| self.table.as_seen(id));
        let end = lock.and_then(|lock| Some(lock.hold(token)?.end));
        end.is_some_and(|end| end > self.table.lease_now(now.mono))
    }
}

/// A command in one line, with its token shortened.
fn show(args: &[Vec<u8>]) -> String {
    let words = args.iter().map(|arg| match arg.len() {
        // A UUID as text: the client's tokens.
        36 => String::from_utf8_lossy(&arg[..6]).into_owned(),
        _ => String::from_utf8_lossy(arg).into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
