//! The results that the clients saw, and the checks of them.
//!
//! A claim is what a guard reports: held until this reading of the machine's clock. It is over when
//! the holder begins to release. Claims are written into a journal, in true time, which the checker
//! of the testkit checks at the end, as for real servers. What only a simulation can see is
//! checked at the moment at which it happens: whether a majority of the nodes backs a claim.

use std::collections::BTreeSet;
use std::fmt;

use redislock_core::token::{Key, Token};
use redislock_testkit::history::{self, Claims, DelayedWrites, Entry, What};

use super::clock::{MILLI, SECOND, Time};
use super::plan::HEALED;
use super::register::Register;
use super::world::{Event, World};

/// When leases and quarantines are over after the faults, every client must acquire every lock
/// within this time: they may have to connect first, and use the locks one after the other.
const LATE: Time = 3 * SECOND;

/// A promise that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Two owners that exclude each other claim a lock at the same time (G2).
    Overlap,
    /// A guard reports that it is still held, and another owner has held the lock since.
    FalselyHeld,
    /// A guard claims a lock that no majority of the nodes keeps for it.
    Unbacked,
    /// A later holder has no higher fence (G1).
    FenceOrder,
    /// A write to a register that compares fences has overwritten one that it had not read.
    LostUpdate,
    /// After a release, a majority of the nodes still has the lock, or any node has it although
    /// there is no fault any more; or after everybody has released, a node has a lock or a waiter.
    Orphan,
    /// After the faults, a lock cannot be acquired or extended, or not soon enough.
    Liveness,
}

impl Check {
    fn of(violation: &history::Violation) -> Self {
        use history::Violation::*;
        match violation {
            Overlap(..) => Check::Overlap,
            FalselyHeld(..) => Check::FalselyHeld,
            Doubled(..) | Disordered(..) | Changed(..) => Check::FenceOrder,
            LostUpdate(..) => Check::LostUpdate,
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which promise.
    pub check: Check,
    /// When, in microseconds.
    pub at: Time,
    /// When the last result was seen that shows it, in microseconds.
    pub shown: Time,
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

/// What a guard reports.
#[derive(Clone, Debug)]
pub struct Claim {
    pub machine: usize,
    pub locks: Vec<usize>,
    pub exclusive: bool,
    pub fence: u64,
    pub token: Vec<u8>,
    /// When it was requested.
    pub invoked: Time,
    /// Until when it is held, by its machine's clock, in microseconds.
    until: u64,
    released: bool,
}

/// What has been done, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Faults that changed something when they began.
    pub faults: u64,
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
    /// What became of the writes that were delayed in the network.
    pub delayed: DelayedWrites,
    /// How long after the faults the last lock could be acquired, in microseconds.
    pub recovery: Time,
    /// How much longer that took than the longest lease and the quarantine together.
    pub late: Time,
    /// Machines that have also used and released every lock when nothing was left of the faults.
    pub settled: u64,
    /// Releases after the faults without a reply, which clients repeat in the background.
    pub repeated_releases: u64,
}

/// Described at the top of this file.
pub struct History {
    pub claims: Vec<Claim>,
    /// The journal that the clients would write, in true time.
    pub journal: Vec<Entry>,
    pub registers: Vec<Register>,
    pub violation: Option<Violation>,
    pub counts: Counts,
    pub trace: Option<Vec<(Time, String)>>,
    /// Machines that have acquired every lock after the faults.
    pub recovered: BTreeSet<usize>,
    /// Machines that begin to use every lock once more, when nothing is left of the faults.
    pub settling: BTreeSet<usize>,
    /// Those of them that have done it.
    pub settled: BTreeSet<usize>,
}

impl History {
    pub fn new(locks: usize, tracing: bool) -> Self {
        Self {
            claims: Vec::new(),
            journal: Vec::new(),
            registers: vec![Register::default(); locks],
            violation: None,
            counts: Counts::default(),
            trace: tracing.then(Vec::new),
            recovered: BTreeSet::new(),
            settling: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// Writes a line of the journal.
    pub fn write(&mut self, at: Time, id: usize, what: What) {
        let client = self.claims.get(id).map_or(0, |claim| claim.machine as u32);
        self.journal.push(Entry {
            at,
            client,
            claim: id as u64,
            what,
        });
    }

    /// Writes a line of the trace, if there is one.
    pub fn note(&mut self, at: Time, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push((at, text()));
        }
    }

    /// Writes a violation that was found at the end into the trace, at the time when it happened.
    fn note_before(&mut self, violation: &Violation) {
        if let Some(trace) = &mut self.trace {
            let place = trace.partition_point(|(at, _)| *at <= violation.at);
            let Violation {
                check, at, text, ..
            } = violation;
            trace.insert(place, (*at, format!("VIOLATION {check:?}: {text}")));
        }
    }
}

/// The name of a lock.
pub fn name_of(lock: usize) -> String {
    format!("lock-{lock}")
}

fn key_of(lock: usize) -> Key {
    Key::new(0, name_of(lock).as_bytes())
}

impl World {
    /// A promise is broken. The first one counts.
    pub fn violated(&mut self, check: Check, text: String) {
        let at = self.now();
        self.history
            .note(at, || format!("VIOLATION {check:?}: {text}"));
        let first = Violation {
            check,
            at,
            shown: at,
            text,
        };
        self.history.violation.get_or_insert(first);
    }

    /// A lock was acquired. `until`: what the guard says, if it says that it is valid.
    pub fn acquired(&mut self, claim: Claim, until: Option<u64>) -> usize {
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
        let (invoked, fence, shared) = (claim.invoked, claim.fence, !claim.exclusive);
        let locks = claim.locks.iter().map(|lock| name_of(*lock)).collect();
        self.history.claims.push(claim);
        self.history.write(invoked, id, What::Ask { locks, shared });
        // A guard that is over already claims nothing.
        let end = until.map_or(invoked, |until| self.true_time(id, until));
        let held = What::Held { fence, until: end };
        self.history.write(now, id, held);
        if let Some(until) = until {
            self.observe(id, until);
        }
        id
    }

    /// When the clock of a claim's machine shows this.
    fn true_time(&self, id: usize, reading: u64) -> Time {
        let machine = self.history.claims[id].machine;
        self.machines[machine].clock.when(reading)
    }

    /// A guard says that it is valid, and until when.
    pub fn observe(&mut self, id: usize, until: u64) {
        self.history.claims[id].until = until;
        let (now, end) = (self.now(), self.true_time(id, until));
        self.history.write(now, id, What::Valid { until: end });
        self.check_backed(id);
        let last = end.saturating_sub(1) / MILLI * MILLI;
        if last > now {
            self.schedule(last, Event::LastMoment(id, until));
        }
    }

    /// An extension has succeeded: the guard must be valid, and a majority must keep the lock.
    pub fn extended(&mut self, id: usize, until: Option<u64>) {
        match until {
            Some(until) => self.observe(id, until),
            None => {
                let problem = format!("claim {id} was extended, and its guard is not valid");
                self.violated(Check::Unbacked, problem);
            }
        }
    }

    /// Whether its holder may rely on it now.
    pub fn is_claimed(&self, id: usize) -> bool {
        let claim = &self.history.claims[id];
        let clock = self.machines[claim.machine].clock.at(self.now());
        !claim.released && clock < claim.until
    }

    /// Whether a majority of the nodes refuses these locks to all other owners.
    fn check_backed(&mut self, id: usize) {
        let claim = &self.history.claims[id];
        let token = Token::new(&claim.token).expect("the token that a guard shows");
        let now = self.now();
        let keys: Vec<_> = claim.locks.iter().map(|lock| key_of(*lock)).collect();
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
        self.history.write(now, id, What::Release);
        self.history.note(now, || format!("claim {id} is released"));
    }

    /// A lock was acquired after the faults.
    pub fn acquired_again(&mut self) {
        let recovery = self.now().saturating_sub(HEALED);
        let late = recovery.saturating_sub(self.plan.longest_recovery());
        let counts = &mut self.history.counts;
        counts.recovery = counts.recovery.max(recovery);
        counts.late = counts.late.max(late);
        if late > LATE {
            let problem = format!(
                "a lock was acquired {} ms after the faults",
                recovery / MILLI
            );
            self.violated(Check::Liveness, problem);
        }
    }

    /// A lock was released, and no fault prevents it: a majority must have forgotten this owner.
    pub fn check_gone(&mut self, lock: usize, token: &[u8]) {
        self.check_holders(lock, token, self.nodes.len() / 2);
    }

    /// The same when nothing is left of the faults: every node must have forgotten this owner.
    pub fn check_gone_everywhere(&mut self, lock: usize, token: &[u8]) {
        self.check_holders(lock, token, 0);
    }

    fn check_holders(&mut self, lock: usize, token: &[u8], most: usize) {
        let token = Token::new(token).expect("the token that a guard shows");
        let (key, now) = (key_of(lock), self.now());
        let holds = |place: &usize| self.nodes[*place].holds(&key, &token, now);
        let holders: Vec<_> = (0..self.nodes.len()).filter(holds).collect();
        if holders.len() > most {
            let problem = format!("lock {lock} was released, and nodes {holders:?} still have it");
            self.violated(Check::Orphan, problem);
        }
    }

    /// What the journal shows. The earliest violation counts.
    pub fn check_journal(&mut self) {
        let claims = Claims::of(&self.history.journal);
        self.history.counts.delayed = claims.delayed_writes();
        let found = claims.violations(self.plan.promises_fences());
        let Some((at, what)) = found.into_iter().next() else {
            return;
        };
        let at = Time::try_from(at.as_micros()).unwrap_or(Time::MAX);
        // The earlier holder learned later that it still holds the lock.
        let look = match &what {
            history::Violation::FalselyHeld(_, before, _) => {
                let before = claims.all().find(|claim| claim.id == *before);
                before.map_or(at, |before| before.last_look)
            }
            _ => at,
        };
        let violation = Violation {
            check: Check::of(&what),
            at,
            shown: look.max(at),
            text: format!("{what:?}"),
        };
        self.history.note_before(&violation);
        let earlier = &mut self.history.violation;
        if earlier.as_ref().is_none_or(|earlier| at < earlier.at) {
            *earlier = Some(violation);
        }
    }

    /// The end of a run: nothing may be left, and every client must have acquired every lock.
    pub fn check_end(&mut self) {
        for machine in 0..self.machines.len() {
            if !self.history.recovered.contains(&machine) {
                let problem = format!("machine {machine} has not acquired every lock by the end");
                self.violated(Check::Liveness, problem);
            }
        }
        let unsettled = self.history.settling.difference(&self.history.settled);
        if let Some(machine) = unsettled.min().copied() {
            let problem = format!("machine {machine} has not used every lock again by the end");
            self.violated(Check::Liveness, problem);
        }
        self.history.counts.settled = self.history.settled.len() as u64;
        self.check_nothing_left();
    }

    /// Everybody has released: no node may have a lock or a waiter.
    pub fn check_nothing_left(&mut self) {
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
