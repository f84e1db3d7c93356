//! What the clients were told, and the checks of it, made at the moment at which it is told.
//!
//! The checks know true time and look into every node. A claim is what a guard says: held until
//! this reading of the machine's clock. It is over when the holder begins to release.

use std::collections::BTreeSet;
use std::fmt;

use redislock_core::token::{Key, Token};

use super::clock::{MILLI, Time};
use super::plan::HEALED;
use super::world::{Event, World};

/// A promise that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Two that exclude each other claim a lock at the same time (G2).
    Overlap,
    /// A guard says that it is still held, and somebody else has held the lock since.
    FalselyHeld,
    /// A guard claims a lock that no majority of the nodes keeps for it.
    Unbacked,
    /// A later holder has no higher fence (G1).
    FenceOrder,
    /// A write to a register that compares fences has overwritten one that it had not read.
    LostUpdate,
    /// After everybody has released and every lease is over, a node has a lock or a waiter.
    Orphan,
    /// After the faults, a lock cannot be acquired.
    Liveness,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which promise.
    pub check: Check,
    /// When, in microseconds.
    pub at: Time,
    /// Who, and how.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:?} at {} ms: {}",
            self.check,
            self.at / MILLI,
            self.text
        )
    }
}

/// What a guard says.
#[derive(Clone, Debug)]
pub struct Claim {
    pub machine: usize,
    pub locks: Vec<usize>,
    pub exclusive: bool,
    pub fence: u64,
    pub token: Vec<u8>,
    /// When it was asked for.
    pub invoked: Time,
    /// Until when it is held, by its machine's clock, in microseconds.
    until: u64,
    released: bool,
}

/// A resource that compares fences: it registers the fence of a reader, and refuses lower ones.
#[derive(Clone, Copy, Debug, Default)]
struct Register {
    fence: u64,
    value: u64,
}

/// What has been done, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Locks that were acquired.
    pub acquired: u64,
    /// Requests that failed: busy, or no quorum.
    pub refused: u64,
    /// Requests that were dropped while they waited.
    pub cancelled: u64,
    /// Holds whose holders noticed that they were lost.
    pub lost: u64,
    /// Writes that the registers accepted.
    pub writes: u64,
    /// Reads and writes that the registers refused because of the fence.
    pub fenced_off: u64,
    /// How long after the faults the last lock could be acquired, in microseconds.
    pub recovery: Time,
}

/// See the module's text.
pub struct History {
    claims: Vec<Claim>,
    /// Claims that are not released and may not be over.
    active: Vec<usize>,
    /// For each lock: the last claim, the last exclusive one, and the highest exclusive fence.
    last: Vec<Option<usize>>,
    last_exclusive: Vec<Option<usize>>,
    highest: Vec<u64>,
    fences: Vec<BTreeSet<u64>>,
    registers: Vec<Register>,
    pub violation: Option<Violation>,
    pub counts: Counts,
    pub trace: Option<Vec<(Time, String)>>,
    /// Machines that have acquired every lock after the faults.
    pub recovered: BTreeSet<usize>,
}

impl History {
    pub fn new(locks: usize, tracing: bool) -> Self {
        Self {
            claims: Vec::new(),
            active: Vec::new(),
            last: vec![None; locks],
            last_exclusive: vec![None; locks],
            highest: vec![0; locks],
            fences: vec![BTreeSet::new(); locks],
            registers: vec![Register::default(); locks],
            violation: None,
            counts: Counts::default(),
            trace: tracing.then(Vec::new),
            recovered: BTreeSet::new(),
        }
    }

    /// Writes a line of the trace, if there is one.
    pub fn note(&mut self, at: Time, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push((at, text()));
        }
    }
}

/// The name of a lock.
pub fn name_of(lock: usize) -> String {
    format!("lock-{lock}")
}

impl World {
    /// A promise is broken. The first one counts.
    pub fn violated(&mut self, check: Check, text: String) {
        let at = self.now();
        self.history
            .note(at, || format!("VIOLATION {check:?}: {text}"));
        let first = Violation { check, at, text };
        self.history.violation.get_or_insert(first);
    }

    /// The highest fence of those who have held these locks so far: a later one must be higher.
    pub fn fence_floor(&self, locks: &[usize]) -> u64 {
        let highest = locks.iter().map(|lock| self.history.highest[*lock]);
        highest.max().unwrap_or(0)
    }

    /// A lock was acquired. `until`: what the guard says, if it says that it is valid.
    pub fn acquired(&mut self, claim: Claim, floor: u64, until: Option<u64>) -> usize {
        let now = self.now();
        let id = self.history.claims.len();
        self.mix(claim.fence);
        self.history.counts.acquired += 1;
        self.history.note(now, || {
            let mode = if claim.exclusive {
                "exclusive"
            } else {
                "shared"
            };
            let Claim {
                machine,
                locks,
                fence,
                invoked,
                ..
            } = &claim;
            let since = invoked / MILLI;
            format!(
                "machine {machine} acquires {locks:?} {mode}, fence {fence}, claim {id}, \
                 asked at {since} ms"
            )
        });
        if claim.exclusive {
            self.check_fence(&claim, floor);
        }
        self.history.claims.push(claim);
        if let Some(until) = until {
            self.begin(id);
            self.observe(id, until);
        }
        id
    }

    fn check_fence(&mut self, claim: &Claim, floor: u64) {
        let promised = self.plan.promises_fences();
        let mut is_new = true;
        for lock in &claim.locks {
            let highest = &mut self.history.highest[*lock];
            *highest = claim.fence.max(*highest);
            is_new &= self.history.fences[*lock].insert(claim.fence);
        }
        if promised && (claim.fence <= floor || !is_new) {
            let Claim {
                machine,
                locks,
                fence,
                ..
            } = claim;
            let problem = format!(
                "machine {machine} got fence {fence} of {locks:?}, and {floor} was given before \
                 it asked"
            );
            self.violated(Check::FenceOrder, problem);
        }
    }

    /// The guard was valid when the acquisition returned.
    fn begin(&mut self, id: usize) {
        let claim = self.history.claims[id].clone();
        self.history.active.push(id);
        for lock in claim.locks {
            self.history.last[lock] = Some(id);
            if claim.exclusive {
                self.history.last_exclusive[lock] = Some(id);
            }
        }
    }

    /// A guard says that it is valid, and until when.
    pub fn observe(&mut self, id: usize, until: u64) {
        self.history.claims[id].until = until;
        self.check_others(id);
        self.check_backed(id);
        let machine = self.history.claims[id].machine;
        let end = self.machines[machine].clock.when(until);
        let last = end.saturating_sub(1) / MILLI * MILLI;
        if last > self.now() {
            self.schedule(last, Event::LastMoment(id, until));
        }
    }

    fn is_claimed(&self, id: usize) -> bool {
        let claim = &self.history.claims[id];
        let clock = self.machines[claim.machine].clock.at(self.now());
        !claim.released && clock < claim.until
    }

    fn check_others(&mut self, id: usize) {
        let mut active = std::mem::take(&mut self.history.active);
        active.retain(|other| self.is_claimed(*other));
        let mine = &self.history.claims[id];
        let excludes = |other: &Claim| {
            (mine.exclusive || other.exclusive)
                && mine.locks.iter().any(|lock| other.locks.contains(lock))
        };
        let overlap = active
            .iter()
            .find(|other| **other != id && excludes(&self.history.claims[**other]));
        let problem = overlap.map(|other| {
            let theirs = &self.history.claims[*other];
            format!(
                "claim {id} (machine {}, fence {}) and claim {other} (machine {}, fence {})",
                mine.machine, mine.fence, theirs.machine, theirs.fence
            )
        });
        let since = mine.locks.iter().find_map(|lock| {
            let last = match mine.exclusive {
                true => self.history.last[*lock],
                false => self.history.last_exclusive[*lock],
            };
            last.filter(|last| *last > id)
        });
        self.history.active = active;
        if let Some(problem) = problem {
            self.violated(Check::Overlap, problem);
        } else if let Some(since) = since {
            let problem = format!("claim {id} is valid, and claim {since} has come after it");
            self.violated(Check::FalselyHeld, problem);
        }
    }

    /// Whether a majority of the nodes keeps everybody else from these locks.
    fn check_backed(&mut self, id: usize) {
        let claim = &self.history.claims[id];
        let Some(token) = Token::new(&claim.token) else {
            return;
        };
        let now = self.now();
        let keys: Vec<_> = claim
            .locks
            .iter()
            .map(|lock| Key::new(0, name_of(*lock).as_bytes()))
            .collect();
        let keeps = |place: &usize| {
            let node = &self.nodes[*place];
            keys.iter().all(|key| node.keeps(key, &token, now))
        };
        let keepers: Vec<_> = (0..self.nodes.len()).filter(keeps).collect();
        if keepers.len() <= self.nodes.len() / 2 {
            let left = claim.until - self.machines[claim.machine].clock.at(now);
            let problem = format!(
                "claim {id} (machine {}, fence {}) says {} ms are left, and only nodes \
                 {keepers:?} of {} keep it",
                claim.machine,
                claim.fence,
                left / MILLI,
                self.nodes.len()
            );
            self.violated(Check::Unbacked, problem);
        }
    }

    /// The last millisecond of a claim.
    pub fn check_last_moment(&mut self, id: usize, until: u64) {
        if self.history.claims[id].until == until && self.is_claimed(id) {
            self.check_backed(id);
        }
    }

    /// The holder begins to release.
    pub fn releasing(&mut self, id: usize) {
        self.history.claims[id].released = true;
        let now = self.now();
        self.history.note(now, || format!("claim {id} is released"));
    }

    /// A holder reads the register of a lock. `None`: it is fenced off.
    pub fn read_register(&mut self, lock: usize, fence: u64) -> Option<u64> {
        let register = &mut self.history.registers[lock];
        if fence < register.fence {
            self.history.counts.fenced_off += 1;
            return None;
        }
        register.fence = fence;
        Some(register.value)
    }

    /// A holder writes the register of a lock, one more than it has `read`.
    pub fn write_register(&mut self, lock: usize, fence: u64, read: u64) {
        let register = &mut self.history.registers[lock];
        if fence < register.fence {
            self.history.counts.fenced_off += 1;
            return;
        }
        let present = register.value;
        register.value = read + 1;
        self.history.counts.writes += 1;
        if present != read && self.plan.promises_fences() {
            let problem = format!("fence {fence} read {read} and has overwritten {present}");
            self.violated(Check::LostUpdate, problem);
        }
    }

    /// A lock was acquired after the faults.
    pub fn acquired_again(&mut self) {
        let recovery = self.now().saturating_sub(HEALED);
        let counts = &mut self.history.counts;
        counts.recovery = counts.recovery.max(recovery);
    }

    /// Everything is over: nothing may be left, and everybody must have got every lock.
    pub fn check_end(&mut self) {
        for machine in 0..self.machines.len() {
            if !self.history.recovered.contains(&machine) {
                let problem = format!("machine {machine} has not acquired every lock by the end");
                self.violated(Check::Liveness, problem);
            }
        }
        for place in 0..self.nodes.len() {
            let (locks, waiters) = {
                let table = &self.nodes[place].table;
                (table.locks(), table.waiters())
            };
            if locks + waiters > 0 {
                let problem = format!("node {place} has {locks} locks and {waiters} waiters left");
                self.violated(Check::Orphan, problem);
            }
        }
    }
}

impl Claim {
    pub fn new(
        machine: usize,
        locks: Vec<usize>,
        exclusive: bool,
        fence: u64,
        token: Vec<u8>,
        invoked: Time,
    ) -> Self {
        Self {
            machine,
            locks,
            exclusive,
            fence,
            token,
            invoked,
            until: 0,
            released: false,
        }
    }
}
