//! Clients that repeatedly lock, hold, extend and release (or do not release), and record the
//! replies.
//!
//! They follow redirects and reconnect, and never use a token twice: an unknown outcome stays
//! unknown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::history::{Event, History, Operation, Outcome, now};
use crate::{Connection, Random, Value, encode, wait_patiently};

/// How long a client waits for a reply beyond what it asked to wait.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How often a request is sent on to another node.
const REDIRECTS: usize = 8;

static OWNERS: AtomicU64 = AtomicU64::new(1);

/// The rounds of a scenario: `CHAOS_ROUNDS` times as many as usual, which are reported as they
/// begin.
pub fn rounds(usual: usize) -> impl Iterator<Item = usize> {
    let times = std::env::var("CHAOS_ROUNDS").ok();
    let times = times.and_then(|times| times.parse().ok()).unwrap_or(1);
    (0..usual * times).inspect(move |round| {
        if times > 1 {
            let test = std::thread::current();
            let test = test.name().unwrap_or_default().to_owned();
            eprintln!("round {} of {}: {test}", round + 1, usual * times);
        }
    })
}

/// Where to send requests for a lock, unless a node says otherwise.
pub type Route = Arc<dyn Fn(&str) -> Option<u16> + Send + Sync>;

/// Everything to one port.
pub fn always_to(port: u16) -> Route {
    Arc::new(move |_| Some(port))
}

/// A client: its connections, and the redirects that it knows.
pub struct Client {
    route: Route,
    known: HashMap<String, u16>,
    connections: HashMap<u16, Connection>,
    /// Its requests and their results.
    pub history: History,
}

/// An owner that has, or may have, acquired a lock.
#[derive(Clone)]
pub struct Owner {
    /// A number that no other owner has.
    pub id: u64,
    /// The name of the lock.
    pub lock: String,
    /// A token that is never used again.
    pub token: String,
    /// The length of the lease.
    pub ttl: Duration,
}

impl Client {
    /// A client that follows this route.
    pub fn new(route: Route) -> Client {
        Client {
            route,
            known: HashMap::new(),
            connections: HashMap::new(),
            history: History::default(),
        }
    }

    /// One attempt with a new token, waiting this long if at all.
    pub fn acquire(
        &mut self,
        lock: &str,
        ttl: Duration,
        wait: Option<Duration>,
    ) -> (Owner, Outcome) {
        let id = OWNERS.fetch_add(1, Ordering::Relaxed);
        let owner = Owner {
            id,
            lock: lock.to_owned(),
            token: format!("owner-{id}"),
            ttl,
        };
        let block = wait.map_or(String::new(), |wait| format!(" BLOCK {}", wait.as_millis()));
        let line = format!(
            "LOCK.ACQUIRE {lock} {} {}{block}",
            owner.token,
            ttl.as_millis()
        );
        let outcome = self.recorded(&owner, Operation::Acquire, wait, &line);
        (owner, outcome)
    }

    /// Extends the lease.
    pub fn extend(&mut self, owner: &Owner) -> Outcome {
        let (lock, token, ttl) = (&owner.lock, &owner.token, owner.ttl.as_millis());
        let line = format!("LOCK.EXTEND {lock} {token} {ttl}");
        self.recorded(owner, Operation::Extend, None, &line)
    }

    /// Releases the lock.
    pub fn release(&mut self, owner: &Owner) -> Outcome {
        let line = format!("LOCK.RELEASE {} {}", owner.lock, owner.token);
        self.recorded(owner, Operation::Release, None, &line)
    }

    fn recorded(
        &mut self,
        owner: &Owner,
        operation: Operation,
        wait: Option<Duration>,
        line: &str,
    ) -> Outcome {
        let invoked = now();
        let outcome = self.ask(&owner.lock, line, wait.unwrap_or_default() + PATIENCE);
        self.history.events.push(Event {
            owner: owner.id,
            lock: owner.lock.clone(),
            operation,
            ttl: owner.ttl,
            waits: wait.is_some(),
            invoked,
            returned: now(),
            outcome: outcome.clone(),
        });
        outcome
    }

    fn ask(&mut self, lock: &str, line: &str, patience: Duration) -> Outcome {
        let mut asking = None;
        for _ in 0..REDIRECTS {
            let home = self.known.get(lock).copied().or_else(|| (self.route)(lock));
            let Some(port) = asking.or(home) else {
                return Outcome::Fail("NOWHERE".into());
            };
            let Some(connection) = self.connection(port) else {
                self.known.remove(lock);
                return Outcome::Fail("UNREACHABLE".into());
            };
            let reply = exchange(connection, asking.is_some(), line, patience);
            let Some(reply) = reply else {
                self.connections.remove(&port);
                self.known.remove(lock);
                return Outcome::Unknown;
            };
            let Value::Error(error) = reply else {
                return match reply {
                    Value::Integer(number) => Outcome::Ok(number),
                    _ => Outcome::Fail(String::new()),
                };
            };
            let words: Vec<&str> = error.split([' ', ':']).collect();
            asking = match (words[0], words.last().and_then(|port| port.parse().ok())) {
                ("MOVED", Some(port)) => {
                    self.known.insert(lock.to_owned(), port);
                    None
                }
                ("ASK", Some(port)) => Some(port),
                (class, _) => {
                    if ["READONLY", "UNBLOCKED", "CLUSTERDOWN", "NOREPLICAS"].contains(&class) {
                        self.known.remove(lock);
                        self.connections.remove(&port);
                    }
                    return Outcome::Fail(class.to_owned());
                }
            };
        }
        Outcome::Fail("REDIRECTED".into())
    }

    fn connection(&mut self, port: u16) -> Option<&mut Connection> {
        match self.connections.entry(port) {
            Entry::Occupied(there) => Some(there.into_mut()),
            Entry::Vacant(place) => Some(place.insert(Connection::try_open(port).ok()?)),
        }
    }
}

/// The reply, if one arrived.
fn exchange(
    connection: &mut Connection,
    asking: bool,
    line: &str,
    patience: Duration,
) -> Option<Value> {
    let mut ask = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        connection.try_send_raw(&encode(&words)).ok()?;
        if connection.is_silent_for(patience) {
            return None;
        }
        connection.try_receive().ok()
    };
    if asking {
        ask("ASKING")?;
    }
    ask(line)
}

/// What the clients of a load do.
#[derive(Clone)]
pub struct Plan {
    /// How many there are.
    pub clients: usize,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// The length of all leases.
    pub ttl: Duration,
}

impl Plan {
    /// Six clients for these locks.
    pub fn new(locks: &[&str], ttl: Duration) -> Plan {
        Plan {
            clients: 6,
            locks: locks.iter().map(|lock| (*lock).to_owned()).collect(),
            ttl,
        }
    }

    /// Starts the clients.
    pub fn start(self, route: Route) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let grants = Arc::new(AtomicUsize::new(0));
        let workers = (0..self.clients).map(|_| {
            let (plan, stop, grants) = (self.clone(), stop.clone(), grants.clone());
            let client = Client::new(route.clone());
            std::thread::spawn(move || work(client, &plan, &stop, &grants))
        });
        Load {
            workers: workers.collect(),
            stop,
            grants,
        }
    }
}

/// Clients at work.
pub struct Load {
    workers: Vec<JoinHandle<History>>,
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicUsize>,
}

impl Load {
    /// Waits until that many more locks were granted: a load that gets nothing shows nothing.
    #[track_caller]
    pub fn wait_for_grants(&self, more: usize) {
        let before = self.grants.load(Ordering::Relaxed);
        wait_patiently("locks are granted", || {
            self.grants.load(Ordering::Relaxed) >= before + more
        });
    }

    /// Ends the clients, and returns the results of all of them.
    pub fn stop(mut self) -> History {
        self.stop.store(true, Ordering::Relaxed);
        let mut events = Vec::new();
        for worker in self.workers.drain(..) {
            events.extend(worker.join().expect("a client that works").events);
        }
        History { events }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn work(mut client: Client, plan: &Plan, stop: &AtomicBool, grants: &AtomicUsize) -> History {
    let mut random = Random::seeded();
    let pause = |random: &mut Random, most: Duration| {
        let micros = u64::try_from(most.as_micros()).expect("a short time") + 1;
        std::thread::sleep(Duration::from_micros(random.below(micros)));
    };
    while !stop.load(Ordering::Relaxed) {
        let lock = &plan.locks[random.index(plan.locks.len())];
        let wait = (random.below(2) == 0).then_some(plan.ttl);
        let (owner, outcome) = client.acquire(lock, plan.ttl, wait);
        if !matches!(outcome, Outcome::Ok(_)) {
            pause(&mut random, Duration::from_millis(5));
            continue;
        }
        grants.fetch_add(1, Ordering::Relaxed);
        // After a wait, only an extension shows how long the client may rely on the lock.
        if wait.is_some() && client.extend(&owner) != outcome {
            client.release(&owner);
            continue;
        }
        pause(&mut random, plan.ttl / 8);
        if random.below(3) == 0 {
            client.extend(&owner);
            pause(&mut random, plan.ttl / 8);
        }
        if random.below(5) != 0 {
            client.release(&owner);
        }
    }
    client.history
}
