//! The plan of a seed: a deployment, its clients, and the faults.

use std::fmt;

use redislock_client::simulation::Flaw;

use super::clock::{MILLI, SECOND, Time};
use super::node::{Memory, NodeFlaw};

/// How long a simulation lasts.
pub const LENGTH: Time = 60 * SECOND;
/// When the last fault has ended and the workers stop; what follows is recovery.
pub const HEALED: Time = 32 * SECOND;
/// The shortest quarantine with which fences are promised after a loss of data: FENCE may lead by
/// 10 s, and the clocks of the nodes may differ by two more.
const LONG_QUARANTINE: u64 = 12_500;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins, in microseconds.
    pub at: Time,
    /// How long it lasts, in microseconds.
    pub length: Time,
    /// What goes wrong.
    pub kind: Kind,
}

/// What goes wrong. A place of `None` means all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing gets through: requests, replies or both.
    Cut {
        machine: Option<usize>,
        node: Option<usize>,
        up: bool,
        down: bool,
    },
    /// Every machine reaches all nodes but one, each machine a different set.
    Ring,
    /// Packets take this many more milliseconds.
    Slow {
        machine: Option<usize>,
        node: Option<usize>,
        by: u64,
    },
    /// This many packets of a thousand are lost, and sent again.
    Lossy {
        machine: Option<usize>,
        node: Option<usize>,
        permille: u64,
    },
    /// The connections between them end, for both sides or for one.
    Reset { machine: usize, node: usize },
    /// A node's process ends, or its machine does, and starts again.
    Crash { node: usize, power: bool },
    /// A node's process is paused.
    PauseNode { node: usize },
    /// A client's machine is paused.
    PauseMachine { machine: usize },
    /// A client's process ends, or its machine does, and starts again.
    CrashMachine { machine: usize, power: bool },
    /// A node's wall clock is set, in microseconds, and set back when the fault ends.
    StepClock { node: usize, by: i64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.at / MILLI, (self.at + self.length) / MILLI);
        write!(out, "{from:>6} ms to {to:>6} ms  {:?}", self.kind)
    }
}

/// A protection that is left out, to check that the simulation notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// In every client.
    Client(Flaw),
    /// In every node.
    Node(NodeFlaw),
    /// In every register: it does not compare fences.
    Register,
}

/// Every flaw that can be planted, with its name on the command line.
pub const FLAWS: [(&str, Planted); 8] = [
    ("valid-from-reply", Planted::Client(Flaw::ValidFromReply)),
    ("half-is-enough", Planted::Client(Flaw::HalfIsEnough)),
    (
        "no-drift-allowance",
        Planted::Client(Flaw::NoDriftAllowance),
    ),
    ("no-write-back", Planted::Client(Flaw::NoWriteBack)),
    ("no-release", Planted::Client(Flaw::NoRelease)),
    ("no-quarantine", Planted::Node(NodeFlaw::NoQuarantine)),
    (
        "counter-not-saved",
        Planted::Node(NodeFlaw::CounterNotSaved),
    ),
    ("no-fence-check", Planted::Register),
];

/// Described at the top of this file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that determines the rest.
    pub seed: u64,
    /// Masters.
    pub nodes: usize,
    /// Machines that clients run on.
    pub machines: usize,
    /// Workers on each of them.
    pub workers: usize,
    /// Locks that they compete for.
    pub locks: usize,
    /// What a node that crashes finds when it starts again.
    pub memory: Memory,
    /// `lock.quarantine`, ms.
    pub quarantine: u64,
    /// Clocks run too fast or too slow by at most this, in parts per million.
    pub drift: i64,
    /// Whether the wall clocks of a minority of the nodes may show anything.
    pub wild_clocks: bool,
    /// How long a packet takes, in milliseconds.
    pub latency: (u64, u64),
    /// How many packets of a thousand are lost and sent again.
    pub lossy: u64,
    /// A setting of the clients, in milliseconds.
    pub node_timeout: u64,
    /// A setting of the clients, in milliseconds.
    pub connect_timeout: u64,
    /// The longest lease that a worker asks for, in milliseconds.
    pub longest_ttl: u64,
    /// Workers pause for at most this long between two locks, in milliseconds.
    pub idle: u64,
    /// Whether some holders share a lock.
    pub shared: bool,
    /// How many writes of a hundred are delayed in the network, often beyond the lease.
    pub delayed_writes: u64,
    /// Whether the clients speak version 3 of the protocol.
    pub resp3: bool,
    /// What goes wrong, by when it begins.
    pub faults: Vec<Fault>,
    /// What is left out of the clients or the nodes.
    pub flaw: Option<Planted>,
}

impl Plan {
    /// The plan of a seed. With `nodes`, the number of nodes does not depend on it.
    pub fn new(seed: u64, nodes: Option<usize>, flaw: Option<Planted>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let by_seed = [1, 3, 3, 3, 5, 5, 5, 1, 3, 5][rng.usize(0..10)];
        let nodes = nodes.unwrap_or(by_seed);
        let memory = match rng.u8(0..4) {
            0 | 1 => Memory::Durable,
            2 => Memory::EverySecond,
            _ => Memory::Volatile,
        };
        let node_timeout = rng.u64(30..=100);
        let quarantine = match (memory, rng.bool()) {
            (Memory::Durable, true) => 0,
            (_, true) => LONG_QUARANTINE,
            (_, false) => rng.u64(1_000..=4_000),
        };
        let wild_clocks = memory == Memory::Durable && rng.bool();
        let longest = rng.u64(700..=4_000);
        let mut plan = Self {
            seed,
            nodes,
            machines: rng.usize(2..=3),
            workers: rng.usize(1..=2),
            locks: rng.usize(1..=2),
            memory,
            quarantine,
            drift: if rng.bool() {
                4_975
            } else {
                rng.i64(0..=1_000)
            },
            wild_clocks,
            latency: (rng.u64(0..=2), rng.u64(2..=12)),
            lossy: rng.u64(0..=10),
            node_timeout,
            connect_timeout: rng.u64(200..=2_000),
            longest_ttl: if quarantine == 0 {
                longest
            } else {
                longest.min(quarantine)
            },
            idle: rng.u64(20..=1_000),
            shared: rng.u8(0..4) == 0,
            resp3: rng.bool(),
            delayed_writes: 0,
            faults: Vec::new(),
            flaw,
        };
        for _ in 0..rng.usize(3..=14) {
            let fault = plan.fault(&mut rng);
            plan.faults.push(fault);
        }
        if wild_clocks {
            let steps = (0..3).map(|_| Fault {
                kind: plan.step(rng.usize(0..nodes.div_ceil(2)), &mut rng),
                ..plan.fault(&mut rng)
            });
            let steps: Vec<_> = steps.collect();
            plan.faults.extend(steps);
        }
        plan.faults.sort_by_key(|fault| fault.at);
        plan.delayed_writes = rng.u64(0..=10);
        plan
    }

    /// Whether the guarantee on fences (G1) covers this deployment: the nodes keep their counters,
    /// or their quarantine is longer than any fence can lead their clocks.
    pub fn promises_fences(&self) -> bool {
        self.memory == Memory::Durable || self.quarantine >= LONG_QUARANTINE
    }

    /// After the faults, leases that nobody can release and quarantines end within this time.
    pub fn longest_recovery(&self) -> Time {
        (self.longest_ttl + self.quarantine) * MILLI
    }

    /// The wall clock of a node is wrong by at most this, in microseconds, and a step of it is no
    /// larger. Nodes refuse fences that are 10 s ahead of their clocks, so without a majority of
    /// clocks that roughly agree no lock is granted.
    pub fn wall_error(&self, node: usize) -> i64 {
        let may_be_wild = self.nodes == 1 || node < self.nodes / 2;
        if self.wild_clocks && may_be_wild {
            3_600 * SECOND as i64
        } else {
            SECOND as i64 / 4
        }
    }

    fn step(&self, node: usize, rng: &mut fastrand::Rng) -> Kind {
        let most = self.wall_error(node);
        let by = rng.i64(-most..=most);
        Kind::StepClock { node, by }
    }

    fn fault(&self, rng: &mut fastrand::Rng) -> Fault {
        let (machine, node) = (rng.usize(0..self.machines), rng.usize(0..self.nodes));
        let somewhere = match rng.u8(0..3) {
            0 => (Some(machine), Some(node)),
            1 => (Some(machine), None),
            _ => (None, Some(node)),
        };
        let at = SECOND / 2 + rng.u64(0..(HEALED - SECOND) / MILLI) * MILLI;
        let longest = HEALED - at;
        let length = match rng.u8(0..3) {
            0 => rng.u64(1..=300) * MILLI,
            1 => rng.u64(300..=3_000) * MILLI,
            _ => rng.u64(3_000..=9_000) * MILLI,
        };
        let (machine_or_all, node_or_all) = somewhere;
        let kind = match rng.u8(0..13) {
            0 | 1 => {
                let way = rng.u8(0..3);
                Kind::Cut {
                    machine: machine_or_all,
                    node: node_or_all,
                    up: way != 0,
                    down: way != 1,
                }
            }
            2 => Kind::Ring,
            3 => Kind::Slow {
                machine: machine_or_all,
                node: node_or_all,
                by: rng.u64(5..=600),
            },
            4 => Kind::Lossy {
                machine: machine_or_all,
                node: node_or_all,
                permille: rng.u64(20..=400),
            },
            5 => Kind::Reset { machine, node },
            6..=8 => Kind::Crash {
                node,
                power: rng.bool(),
            },
            9 => Kind::PauseNode { node },
            10 => Kind::PauseMachine { machine },
            11 => Kind::CrashMachine {
                machine,
                power: rng.bool(),
            },
            _ => self.step(node, rng),
        };
        let length = length.min(longest);
        Fault { at, length, kind }
    }
}
