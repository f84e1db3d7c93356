//! What the clients do: workers that acquire locks, use a register under them, and release them;
//! and after the faults, every client uses every lock once.

use std::sync::Arc;
use std::time::Duration;

use redislock_client::{Error, Guard, Lock, Redlock, Released};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::clock::{MILLI, Time};
use super::executor::PORT;
use super::history::{Check, Claim, name_of};
use super::plan::{HEALED, LENGTH, Plan};
use super::register::Write;
use super::world::Shared;

/// After the faults, every lock must be acquired within this time. Until then leases, quarantines
/// and pauses before retries end, and every client acquires every lock once.
const RECOVERY: Time = LENGTH - HEALED - 6_000 * MILLI;

/// When nothing is left of the faults: clients that were able to work until then have found every
/// connection that had ended.
const SETTLED: Time = 20_000 * MILLI;
const ABLE_BY: Time = 8_000 * MILLI;

/// The lease of the locks that are acquired then, unless the nodes allow less. It outlasts the
/// checks, so that only a release ends it.
const LONG_LEASE: u64 = 3_000;
/// How long a client waits for such a lock.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a lock is held after the faults.
const USE: Duration = Duration::from_millis(50);

/// How often a holder with a long hold checks its guard.
const MANY_STEPS: u64 = 30;

/// A client of all nodes, connected in the background.
pub fn client(plan: &Plan) -> Result<Redlock, Error> {
    let protocol = if plan.resp3 { "?protocol=resp3" } else { "" };
    let url = |node: usize| format!("redis://node:{}/{protocol}", PORT + node);
    Redlock::builder()
        .nodes((0..plan.nodes).map(url))
        .node_timeout(Duration::from_millis(plan.node_timeout))
        .connect_timeout(Duration::from_millis(plan.connect_timeout))
        .connect_lazy()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One worker of a process.
pub struct Worker {
    world: Shared,
    client: Redlock,
    machine: usize,
    rng: fastrand::Rng,
    plan: Arc<Plan>,
}

/// The request of a worker.
struct Wish {
    lock: Lock,
    locks: Vec<usize>,
    exclusive: bool,
    ttl: u64,
}

impl Worker {
    pub fn new(world: Shared, client: Redlock, machine: usize, rng: fastrand::Rng) -> Self {
        let plan = Arc::clone(&world.lock().plan);
        Self {
            world,
            client,
            machine,
            rng,
            plan,
        }
    }

    /// Works until the faults are over.
    pub async fn work(mut self) {
        while self.world.lock().now() < HEALED {
            sleep(millis(self.rng.u64(0..=self.plan.idle))).await;
            let wish = self.wish();
            let invoked = self.world.lock().now();
            let Some(guard) = self.acquire(&wish).await else {
                continue;
            };
            let claim = self.claim(&wish, &guard, invoked);
            self.hold(&wish, &guard, claim).await;
            self.give_back(guard, claim).await;
        }
    }

    fn wish(&mut self) -> Wish {
        let rng = &mut self.rng;
        let locks = if self.plan.locks > 1 && rng.u8(0..6) == 0 {
            (0..self.plan.locks).collect()
        } else {
            vec![rng.usize(0..self.plan.locks)]
        };
        let shortest = 3 * self.plan.node_timeout + 20;
        let ttl = rng.u64(shortest..=self.plan.longest_ttl.max(shortest));
        let exclusive = !self.plan.shared || rng.u8(0..3) > 0;
        let names: Vec<_> = locks.iter().map(|lock| name_of(*lock)).collect();
        let mut lock = match names.as_slice() {
            [name] => self.client.lock(name),
            names => self.client.lock_all(names),
        };
        lock = lock.ttl(millis(ttl)).renew(rng.bool());
        if !exclusive {
            lock = lock.shared();
        }
        Wish {
            lock,
            locks,
            exclusive,
            ttl,
        }
    }

    /// Tries once, waits for some time, or gives up waiting at some moment.
    async fn acquire(&mut self, wish: &Wish) -> Option<Guard> {
        let acquired = match self.rng.u8(0..6) {
            0 => wish.lock.try_acquire().await,
            1 => {
                let patience = millis(self.rng.u64(1..=1_500));
                match timeout(patience, wish.lock.acquire()).await {
                    Ok(acquired) => acquired,
                    Err(_) => {
                        self.world.lock().history.counts.cancelled += 1;
                        return None;
                    }
                }
            }
            _ => {
                let wait = millis(self.rng.u64(100..=4_000));
                wish.lock.clone().wait(wait).acquire().await
            }
        };
        if acquired.is_err() {
            self.world.lock().history.counts.refused += 1;
        }
        acquired.ok()
    }

    fn claim(&self, wish: &Wish, guard: &Guard, invoked: Time) -> usize {
        let claim = Claim::new(
            self.machine,
            wish.locks.clone(),
            wish.exclusive,
            guard.fence(),
            token_of(guard),
            invoked,
        );
        let until = valid_until(guard);
        self.world.lock().acquired(claim, until)
    }

    /// Uses the lock: checks the guard now and then, and increments the register of each lock.
    async fn hold(&mut self, wish: &Wish, guard: &Guard, claim: usize) {
        // Some do not check whether they still hold the lock: then only the fence protects.
        let careless = self.rng.u8(0..4) == 0;
        // And some hold it for long, without renewal until it is lost.
        let steps = match self.rng.u8(0..6) {
            0 => MANY_STEPS,
            _ => self.rng.u64(0..=6),
        };
        let step = self.rng.u64(0..=wish.ttl / 3);
        // A holder with a write on its way cannot know the value: it writes no more.
        let mut waits = false;
        for _ in 0..steps {
            if self.world.lock().now() >= HEALED {
                return;
            }
            let read = if waits {
                Vec::new()
            } else {
                self.read(wish, claim)
            };
            sleep(millis(self.rng.u64(0..=step))).await;
            let until = valid_until(guard);
            match until {
                Some(until) => self.world.lock().observe(claim, until),
                None if careless => {}
                None => {
                    self.world.lock().history.counts.lost += 1;
                    return;
                }
            }
            if steps < MANY_STEPS && self.rng.u8(0..8) == 0 {
                let extended = guard.extend().await;
                if extended.is_ok() {
                    let until = valid_until(guard);
                    self.world.lock().extended(claim, until);
                }
            }
            waits |= self.write(wish, claim, &read);
        }
    }

    fn read(&self, wish: &Wish, claim: usize) -> Vec<(usize, u64)> {
        if !wish.exclusive {
            return Vec::new();
        }
        let mut world = self.world.lock();
        let locks = wish.locks.iter();
        let read = locks.filter_map(|lock| Some((*lock, world.read_register(claim, *lock)?)));
        read.collect()
    }

    /// Increments the registers that were read. Returns whether the writes are delayed: then they
    /// arrive while the holder goes on, after it has released, or when it is gone.
    fn write(&mut self, wish: &Wish, claim: usize, read: &[(usize, u64)]) -> bool {
        debug_assert!(wish.exclusive || read.is_empty());
        if read.is_empty() {
            return false;
        }
        let delayed = self.rng.u64(0..100) < self.plan.delayed_writes;
        for (lock, read) in read.iter().copied() {
            let delay = self.rng.u64(0..=3 * wish.ttl) * MILLI;
            let write = Write {
                claim,
                lock,
                read,
                delayed,
            };
            self.world.lock().send_write(write, delay);
        }
        delayed
    }

    async fn give_back(&mut self, guard: Guard, claim: usize) {
        if let Some(until) = valid_until(&guard) {
            self.world.lock().observe(claim, until);
        }
        self.world.lock().releasing(claim);
        match self.rng.u8(0..4) {
            0 => drop(guard),
            _ => {
                guard.release().await;
            }
        }
    }
}

/// What the guard reports, in microseconds of its machine's clock; `None`: it is no longer held.
fn valid_until(guard: &Guard) -> Option<u64> {
    let until = guard.valid_until().since_boot().as_micros();
    guard
        .is_valid()
        .then(|| u64::try_from(until).unwrap_or(u64::MAX))
}

fn token_of(guard: &Guard) -> Vec<u8> {
    guard.token().unwrap_or_default().to_vec()
}

/// Acquires every lock once after the faults: nothing may prevent that for long.
pub async fn recover(world: Shared, client: Redlock, machine: usize) {
    let (healed, plan) = {
        let world = world.lock();
        let left = (HEALED + MILLI).saturating_sub(world.now());
        (
            Instant::now() + Duration::from_micros(left),
            Arc::clone(&world.plan),
        )
    };
    sleep_until(healed).await;
    let deadline = Instant::now() + Duration::from_micros(RECOVERY);
    let ttl = millis(3 * plan.node_timeout + 200);
    for lock in 0..plan.locks {
        let wait = deadline.saturating_duration_since(Instant::now());
        let request = client.lock(name_of(lock)).ttl(ttl).wait(wait);
        let invoked = world.lock().now();
        match request.acquire().await {
            Ok(guard) => {
                world.lock().acquired_again();
                let token = token_of(&guard);
                use_once(&world, machine, lock, &guard, invoked).await;
                let released = guard.release().await;
                // Requests to the other nodes may still be on their way.
                sleep(millis(2 * plan.latency.1 + 1)).await;
                // Without a reply, the release is repeated in the background, and may be late.
                let mut world = world.lock();
                if released == Released::Unknown {
                    world.history.counts.repeated_releases += 1;
                } else {
                    world.check_gone(lock, &token);
                }
            }
            Err(error) => return cannot(&world, machine, "acquire", lock, &error),
        }
    }
    let settles = {
        let mut world = world.lock();
        world.history.recovered.insert(machine);
        let settles = world.now() < HEALED + ABLE_BY;
        if settles {
            world.history.settling.insert(machine);
        }
        settles
    };
    if settles {
        sleep_until(healed + Duration::from_micros(SETTLED)).await;
        release_everywhere(&world, &client, machine, &plan).await;
    }
}

/// Something that must be possible failed.
fn cannot(world: &Shared, machine: usize, what: &str, lock: usize, error: &Error) {
    let problem = format!("machine {machine} cannot {what} lock {lock}: {error}");
    world.lock().violated(Check::Liveness, problem);
}

/// Acquires every lock once more, at the same time as the other clients. Now a release reaches
/// every node at once, however it is given: nothing may be left until its lease ends.
async fn release_everywhere(world: &Shared, client: &Redlock, machine: usize, plan: &Plan) {
    let delivery = millis(4 * plan.latency.1 + 2 * plan.node_timeout);
    let ttl = millis(match plan.quarantine {
        0 => LONG_LEASE,
        quarantine => LONG_LEASE.min(quarantine),
    });
    for lock in 0..plan.locks {
        let request = client.lock(name_of(lock)).ttl(ttl).wait(PATIENCE);
        let patience = millis(plan.latency.1 * (1 + machine as u64));
        // The first request is dropped while it waits for replies or for its turn.
        if let Ok(Ok(guard)) = timeout(patience, request.acquire()).await {
            guard.release().await;
        }
        let guard = match request.acquire().await {
            Ok(guard) => guard,
            Err(error) => return cannot(world, machine, "acquire", lock, &error),
        };
        let token = token_of(&guard);
        for _ in 0..2 {
            // Also asks the nodes that did not grant at first.
            if let Err(error) = guard.extend().await {
                return cannot(world, machine, "extend", lock, &error);
            }
            sleep(USE).await;
        }
        match machine % 2 {
            0 => drop(guard),
            _ => {
                guard.release().await;
            }
        }
        sleep(delivery).await;
        world.lock().check_gone_everywhere(lock, &token);
    }
    let is_last = {
        let mut world = world.lock();
        world.history.settled.insert(machine);
        world.history.settled.len() == plan.machines
    };
    if is_last {
        sleep(delivery).await;
        world.lock().check_nothing_left();
    }
}

/// Increments the register of a lock that was acquired after the faults, as a worker does, and
/// begins to release.
async fn use_once(world: &Shared, machine: usize, lock: usize, guard: &Guard, invoked: Time) {
    let (fence, token) = (guard.fence(), token_of(guard));
    let claim = Claim::new(machine, vec![lock], true, fence, token, invoked);
    let until = valid_until(guard);
    let (claim, read) = {
        let mut world = world.lock();
        let claim = world.acquired(claim, until);
        (claim, world.read_register(claim, lock))
    };
    // Long enough for an overlap with another holder to be seen.
    sleep(USE).await;
    let until = valid_until(guard);
    let mut world = world.lock();
    match until {
        Some(until) => {
            world.observe(claim, until);
            if let Some(read) = read {
                world.write_register(Write {
                    claim,
                    lock,
                    read,
                    delayed: false,
                });
            }
        }
        None => world.history.counts.lost += 1,
    }
    world.releasing(claim);
}
