//! A client process: it acquires locks, uses a fenced register under them, releases them, and
//! writes a journal to standard output. The runner pauses and kills it at any moment.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redislock_client::simulation::{Flaw, plant};
use redislock_client::{Error, Guard, Lock, Moment, Owner, Redlock, Released};
use redislock_testkit::history::{Entry, What};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::companion_of;
use super::reentry::re_enter;
use super::register::Register;

/// How many of them work at the same time in one process.
const TASKS: u64 = 2;
/// After the faults, every lock must be acquired within this time. It is far longer than a lease
/// and a quarantine take, also on a busy machine.
pub const RECOVERY: Duration = Duration::from_secs(90);
/// How long releases that are not delivered yet may take when the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How the nodes are reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// Independent masters at these addresses.
    Nodes(Vec<String>),
    /// A master that the sentinels at these addresses name.
    Sentinel(String, Vec<String>),
    /// A cluster with these nodes.
    Cluster(Vec<String>),
}

impl Reach {
    /// Whether one server at a time has a lock, so that its fence is the fence of the guard.
    fn is_single(&self) -> bool {
        match self {
            Reach::Nodes(urls) => urls.len() == 1,
            Reach::Sentinel(..) | Reach::Cluster(_) => true,
        }
    }
}

/// The instructions of a worker when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number; a process that replaces a killed one has another.
    pub client: u32,
    /// Its choices depend on this, and on the results of its requests.
    pub seed: u64,
    /// How the nodes are reached.
    pub reach: Reach,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// The port of the server that has the registers.
    pub register: u16,
    /// The longest lease that it requests, in milliseconds.
    pub longest_ttl: u64,
    /// How long it waits for one node, in milliseconds.
    pub node_timeout: u64,
    /// Whether its clients leave out the write-back.
    pub no_write_back: bool,
    /// Whether the registers leave out the comparison of fences.
    pub no_fence_check: bool,
}

/// The journal, and which number comes next.
struct Journal {
    client: u32,
    next: AtomicU64,
    out: Mutex<std::io::Stdout>,
}

impl Journal {
    fn claim(&self) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        u64::from(self.client) << 32 | number
    }

    fn write(&self, at: u64, claim: u64, what: What) {
        let client = self.client;
        let line = Entry {
            at,
            client,
            claim,
            what,
        }
        .line();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // It fails only if the runner is gone, and then this process ends.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

fn micros(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_micros()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    micros(Moment::now())
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn client(job: &Job) -> Result<Redlock, Error> {
    let builder = Redlock::builder().node_timeout(millis(job.node_timeout));
    let builder = match &job.reach {
        Reach::Nodes(urls) => builder.nodes(urls),
        Reach::Sentinel(name, urls) => builder.sentinel(name, urls),
        Reach::Cluster(urls) => builder.cluster(urls),
    };
    builder.connect_lazy()
}

/// Works until a line arrives, then acquires every lock once more. Ends at once if the runner has
/// ended.
pub async fn work(job: Job) -> Result<(), String> {
    if job.no_write_back {
        plant(Flaw::NoWriteBack);
    }
    let redlock = client(&job).map_err(|error| error.to_string())?;
    let journal = Arc::new(Journal {
        client: job.client,
        next: AtomicU64::new(1),
        out: Mutex::new(std::io::stdout()),
    });
    let healed = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let worker = Worker {
                client: redlock.clone(),
                journal: Arc::clone(&journal),
                register: Register::at(job.register, !job.no_fence_check),
                late_writes: JoinSet::new(),
                rng: fastrand::Rng::with_seed(job.seed.wrapping_mul(31).wrapping_add(task)),
                healed: Arc::clone(&healed),
                job: job.clone(),
            };
            tokio::spawn(worker.work())
        })
        .collect();
    let mut word = [0; 1];
    let told = tokio::io::stdin().read_exact(&mut word).await;
    told.map_err(|_| "the runner is gone".to_owned())?;
    healed.store(true, Ordering::Relaxed);
    let mut late_writes = Vec::new();
    for task in tasks {
        late_writes.push(task.await.map_err(|error| error.to_string())?);
    }
    recover(&redlock, &journal, &job).await?;
    for writes in late_writes {
        writes.join_all().await;
    }
    redlock.close(CLOSE_TIMEOUT).await;
    Ok(())
}

/// Acquires every lock once after the faults: nothing may prevent that for long.
async fn recover(client: &Redlock, journal: &Journal, job: &Job) -> Result<(), String> {
    for lock in &job.locks {
        let claim = journal.claim();
        let locks = vec![lock.clone()];
        let ttl = millis(job.longest_ttl);
        let (asked, shared) = (now(), false);
        journal.write(asked, claim, What::Ask { locks, shared });
        let guard = client.lock(lock).ttl(ttl).wait(RECOVERY).acquire().await;
        let guard = guard.map_err(|error| format!("{lock}: {error}"))?;
        let (at, held) = held(&guard, asked);
        journal.write(at, claim, held);
        journal.write(now(), claim, What::Release);
        let held = was_held(guard.release().await);
        journal.write(now(), claim, What::Released { held });
    }
    Ok(())
}

/// What a new guard reports, and when. A guard that is no longer valid claims nothing.
fn held(guard: &Guard, asked: u64) -> (u64, What) {
    let (at, fence) = (now(), guard.fence());
    let end = micros(guard.valid_until());
    let until = if guard.is_valid() { end } else { asked };
    (at, What::Held { fence, until })
}

fn was_held(released: Released) -> Option<bool> {
    match released {
        Released::WasHeld | Released::StillHeld => Some(true),
        Released::WasLost => Some(false),
        _ => None,
    }
}

/// One of the tasks of a process.
struct Worker {
    client: Redlock,
    journal: Arc<Journal>,
    register: Register,
    /// Writes that are still on their way.
    late_writes: JoinSet<()>,
    rng: fastrand::Rng,
    healed: Arc<AtomicBool>,
    job: Job,
}

/// The current request of a worker.
struct Wish {
    claim: u64,
    lock: Lock,
    names: Vec<String>,
    shared: bool,
    ttl: u64,
}

impl Wish {
    /// The lock whose register is used.
    fn register(&self) -> &str {
        &self.names[0]
    }
}

impl Worker {
    /// Returns the writes that are still on their way.
    async fn work(mut self) -> JoinSet<()> {
        while !self.is_over() {
            sleep(millis(self.rng.u64(0..=120))).await;
            let wish = self.wish();
            let (locks, shared) = (wish.names.clone(), wish.shared);
            let asked = now();
            let ask = What::Ask { locks, shared };
            self.journal.write(asked, wish.claim, ask);
            let Some(guard) = self.acquire(&wish).await else {
                continue;
            };
            let (at, held) = held(&guard, asked);
            self.journal.write(at, wish.claim, held);
            self.hold(&wish, &guard).await;
            self.give_back(&wish, guard).await;
        }
        self.late_writes
    }

    fn is_over(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    fn note(&self, wish: &Wish, what: What) {
        self.journal.write(now(), wish.claim, what);
    }

    fn wish(&mut self) -> Wish {
        let name = self.job.locks[self.rng.usize(0..self.job.locks.len())].clone();
        let companion = companion_of(&name);
        let shareable = companion_of(&self.job.locks[0]);
        let mut names = match self.rng.u8(0..8) {
            0 | 1 => vec![name, companion],
            2 | 3 => vec![companion],
            _ => vec![name],
        };
        // Only the companion of the first lock has holders that share it, when it is requested
        // alone. The other locks have one owner at a time: porcupine checks only these.
        let shared = names == [shareable];
        self.rng.shuffle(&mut names);
        let shortest = 3 * self.job.node_timeout + 100;
        let ttl = self.rng.u64(shortest..=self.job.longest_ttl.max(shortest));
        let lock = self.client.lock_all(&names).ttl(millis(ttl));
        let lock = lock.renew(self.rng.bool()).owner(&Owner::new());
        Wish {
            claim: self.journal.claim(),
            lock: if shared { lock.shared() } else { lock },
            names,
            shared,
            ttl,
        }
    }

    /// Tries once, gives up waiting at some moment, or waits for some time.
    async fn acquire(&mut self, wish: &Wish) -> Option<Guard> {
        let wait = millis(self.rng.u64(100..=6_000));
        let acquired = match self.rng.u8(0..8) {
            0 => wish.lock.try_acquire().await,
            1 => match timeout(wait / 4, wish.lock.acquire()).await {
                Ok(acquired) => acquired,
                Err(_) => {
                    let why = "cancelled".to_owned();
                    self.note(wish, What::Failed { why });
                    return None;
                }
            },
            _ => wish.lock.clone().wait(wait).acquire().await,
        };
        if let Err(error) = &acquired {
            let why = match error {
                Error::Busy { .. } => "busy",
                Error::NoQuorum { .. } => "no-quorum",
                _ => "other",
            };
            let why = why.to_owned();
            self.note(wish, What::Failed { why });
        }
        acquired.ok()
    }

    /// Uses the lock: checks the guard now and then, and increments the register.
    async fn hold(&mut self, wish: &Wish, guard: &Guard) {
        // Some do not check whether they still hold the lock: then only the fence protects.
        let careless = self.rng.u8(0..4) == 0;
        let steps = match self.rng.u8(0..10) {
            0 => 12,
            _ => self.rng.u64(0..=3),
        };
        let longest = (wish.ttl / 4).min(150);
        // Those who share do not write. A holder with a write on its way cannot know the value: it
        // writes no more.
        let mut waits = wish.shared;
        for _ in 0..steps {
            if self.is_over() {
                return;
            }
            let read = if waits {
                None
            } else {
                self.register.read(wish.register(), guard.fence())
            };
            sleep(millis(self.rng.u64(0..=longest))).await;
            if !self.look(wish, guard) && !careless {
                return;
            }
            if !wish.shared && self.rng.u8(0..6) == 0 {
                match (wish.names.as_slice(), guard.token()) {
                    ([lock], Some(token)) if self.rng.bool() => {
                        self.enter_on_servers(wish, guard, lock, token).await;
                    }
                    _ => self.enter_again(wish, guard).await,
                }
            }
            match read {
                Some(read) if self.rng.u8(0..6) == 0 => {
                    self.count_up_late(wish, guard.fence(), read);
                    waits = true;
                }
                Some(read) => self.count_up(wish, guard.fence(), read),
                None => {}
            }
        }
    }

    /// Whether the guard reports that it is held. The clock is read first: what is reported
    /// later is also true at that moment.
    fn look(&self, wish: &Wish, guard: &Guard) -> bool {
        let at = now();
        let until = micros(guard.valid_until());
        let is_valid = guard.is_valid();
        let what = if is_valid {
            What::Valid { until }
        } else {
            What::Lost
        };
        self.journal.write(at, wish.claim, what);
        is_valid
    }

    /// The same owner re-enters the lock and releases the re-entry.
    async fn enter_again(&mut self, wish: &Wish, guard: &Guard) {
        let asked = now();
        let Ok(inner) = wish.lock.try_acquire().await else {
            return;
        };
        let fence = inner.fence();
        // If the hold was lost in between, this is another one.
        let is_same = guard.is_valid();
        if is_same {
            self.note(wish, What::Again { fence, asked });
        }
        let asked = now();
        if inner.release().await == Released::StillHeld && is_same {
            self.note(wish, What::Leave { asked });
        }
    }

    /// The owner re-enters the lock on the servers, and releases the re-entry there.
    async fn enter_on_servers(&self, wish: &Wish, guard: &Guard, lock: &str, token: &[u8]) {
        let asked = now();
        let patience = millis(self.job.node_timeout);
        let replies = re_enter(&self.job.reach, lock, token, wish.ttl, patience).await;
        for reply in replies {
            if let What::Reentered { fences, .. } = &reply
                && self.job.reach.is_single()
                && guard.is_valid()
            {
                let fence = fences[1];
                self.note(wish, What::Again { fence, asked });
                self.note(wish, What::Leave { asked });
            }
            self.note(wish, reply);
        }
    }

    fn count_up(&self, wish: &Wish, fence: u64, read: u64) {
        if let Some(was) = self.register.write(wish.register(), fence, read) {
            let lock = wish.register().to_owned();
            let what = What::Write {
                lock,
                fence,
                read,
                was: was.accepted(),
                arrived: None,
            };
            self.note(wish, what);
        }
    }

    /// The same, delayed in the network for longer than the lease, while the holder goes on.
    fn count_up_late(&mut self, wish: &Wish, fence: u64, read: u64) {
        let lock = wish.register().to_owned();
        let Some(write) = self.register.write_late(&lock, fence, read) else {
            return;
        };
        let delay = millis(wish.ttl + self.rng.u64(0..=wish.ttl));
        let (journal, claim) = (Arc::clone(&self.journal), wish.claim);
        self.late_writes.spawn(async move {
            sleep(delay).await;
            let arrived = Some(now());
            if let Some(was) = write.arrive() {
                let what = What::Write {
                    lock,
                    fence,
                    read,
                    was: was.accepted(),
                    arrived,
                };
                journal.write(now(), claim, what);
            }
        });
    }

    async fn give_back(&mut self, wish: &Wish, guard: Guard) {
        self.look(wish, &guard);
        self.note(wish, What::Release);
        let held = match self.rng.u8(0..5) {
            0 => {
                drop(guard);
                None
            }
            _ => was_held(guard.release().await),
        };
        self.note(wish, What::Released { held });
    }
}
