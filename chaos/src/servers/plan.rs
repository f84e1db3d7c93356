//! The plan of a seed: deployments one after the other, and the faults in each of them. It
//! starts nothing and reads no clock: the same seed, length and families make the same plan.

use std::fmt;

/// Kinds of faults that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// A master is killed and starts again with all that it acknowledged.
    Kill,
    /// A master is killed and starts again with nothing.
    Amnesia,
    /// A master is paused.
    Pause,
    /// Links between clients and masters are cut: one or both ways, or in a ring of majorities.
    Partition,
    /// The wall clock of a master steps, or jumps back and forth.
    Clock,
    /// The disk of a master is full.
    Disk,
    /// Connections end at the moment of a grant, in the middle of a reply, or all at once.
    Cut,
    /// A client process is paused beyond its lease, or killed.
    Client,
    /// The master that sentinels watch is killed, paused or cut off.
    Sentinel,
    /// A master of a cluster is killed or paused, or hands over to its replica.
    Cluster,
    /// A slot with locks moves to another master of a cluster.
    Reshard,
}

/// All of them, with their names.
pub const FAMILIES: [(&str, Family); 11] = [
    ("kill", Family::Kill),
    ("amnesia", Family::Amnesia),
    ("pause", Family::Pause),
    ("partition", Family::Partition),
    ("clock", Family::Clock),
    ("disk", Family::Disk),
    ("cut", Family::Cut),
    ("client", Family::Client),
    ("sentinel", Family::Sentinel),
    ("cluster", Family::Cluster),
    ("reshard", Family::Reshard),
];

impl Family {
    /// Its name.
    pub fn name(self) -> &'static str {
        let known = FAMILIES.iter().find(|(_, family)| *family == self);
        known.map_or("", |(name, _)| name)
    }
}

/// What is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// Independent masters without persistence: `lock.quarantine` protects them.
    Volatile { nodes: usize },
    /// Independent masters that write everything to disk before they reply.
    Durable { nodes: usize },
    /// A master with two replicas and three sentinels.
    Sentinel,
    /// A cluster of three masters with two replicas each.
    Cluster,
}

impl Setup {
    fn families(self) -> &'static [Family] {
        use Family::*;
        match self {
            Setup::Volatile { .. } => &[Amnesia, Pause, Partition, Clock, Cut, Client],
            Setup::Durable { .. } => &[Kill, Pause, Partition, Clock, Disk, Cut, Client],
            Setup::Sentinel => &[Sentinel, Client],
            Setup::Cluster => &[Cluster, Reshard, Client],
        }
    }

    fn nodes(self) -> usize {
        match self {
            Setup::Volatile { nodes } | Setup::Durable { nodes } => nodes,
            Setup::Sentinel | Setup::Cluster => 3,
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setup::Volatile { nodes } => write!(out, "volatile-{nodes}"),
            Setup::Durable { nodes } => write!(out, "durable-{nodes}"),
            Setup::Sentinel => write!(out, "sentinel"),
            Setup::Cluster => write!(out, "cluster"),
        }
    }
}

/// One deployment, its clients and its faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// What is started.
    pub setup: Setup,
    /// The clients' own choices follow from it.
    pub seed: u64,
    /// How many client processes there are.
    pub workers: usize,
    /// How many locks there are.
    pub locks: usize,
    /// `lock.quarantine`, and the longest lease, in milliseconds.
    pub quarantine: u64,
    /// How long the faults last, in milliseconds.
    pub length: u64,
    /// What goes wrong, by when it begins.
    pub faults: Vec<Fault>,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins, in milliseconds.
    pub at: u64,
    /// How long it lasts, in milliseconds.
    pub length: u64,
    /// Its family.
    pub family: Family,
    /// What goes wrong.
    pub kind: Kind,
}

/// What goes wrong. A place of `None` means all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process ends at once and starts again when the fault ends.
    Kill { node: usize, keeps_data: bool },
    /// The process is stopped.
    Pause { node: usize },
    /// Nothing gets through: requests, replies or both.
    Block {
        worker: Option<usize>,
        node: Option<usize>,
        requests: bool,
        replies: bool,
    },
    /// Every client reaches all masters but one, each client a different set.
    Ring,
    /// The wall clock is wrong by this many milliseconds.
    Step { node: usize, by: i64 },
    /// The wall clock jumps back and forth by this many milliseconds.
    Strobe { node: usize, by: i64 },
    /// Nothing can be written.
    DiskFull { node: usize },
    /// The reply to the next request for a lock never arrives: the connections end instead.
    CutAtGrant { worker: usize },
    /// A connection ends after this many more bytes of replies.
    CutInReply { worker: usize, bytes: usize },
    /// All connections to a master end.
    Reset { node: usize },
    /// The client process is stopped.
    PauseClient { worker: usize },
    /// The client process ends, and another one starts when the fault ends.
    KillClient { worker: usize },
    /// The master that has this lock ends at once, and starts again when the fault ends.
    KillMaster { lock: usize },
    /// The master that has this lock is stopped.
    PauseMaster { lock: usize },
    /// Sentinels and replicas do not reach the master, clients that know it do.
    IsolateMaster,
    /// A replica of the master that has this lock takes over, in agreement with the master.
    HandOver { lock: usize },
    /// The slot of a lock moves to another master.
    MoveSlot { lock: usize },
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |name: &str, place: &Option<usize>| match place {
            Some(place) => format!("{name} {place}"),
            None => format!("every {name}"),
        };
        match self {
            Kind::Kill { node, keeps_data } => {
                let with = if *keeps_data { "with" } else { "without" };
                write!(out, "kill master {node}, restart {with} data")
            }
            Kind::Pause { node } => write!(out, "pause master {node}"),
            Kind::Block {
                worker,
                node,
                requests,
                replies,
            } => {
                let (worker, node) = (of("client", worker), of("master", node));
                let way = match (requests, replies) {
                    (true, false) => "->",
                    (false, true) => "<-",
                    _ => "<->",
                };
                write!(out, "cut {worker} {way} {node}")
            }
            Kind::Ring => write!(out, "ring of majorities"),
            Kind::Step { node, by } => write!(out, "step clock of master {node} by {by} ms"),
            Kind::Strobe { node, by } => write!(out, "strobe clock of master {node} by {by} ms"),
            Kind::DiskFull { node } => write!(out, "fill disk of master {node}"),
            Kind::CutAtGrant { worker } => write!(out, "cut client {worker} at its next grant"),
            Kind::CutInReply { worker, bytes } => {
                write!(out, "cut client {worker} after {bytes} bytes")
            }
            Kind::Reset { node } => write!(out, "end all connections to master {node}"),
            Kind::PauseClient { worker } => write!(out, "pause client {worker}"),
            Kind::KillClient { worker } => write!(out, "kill client {worker}"),
            Kind::KillMaster { lock } => write!(out, "kill the master of lock {lock}"),
            Kind::PauseMaster { lock } => write!(out, "pause the master of lock {lock}"),
            Kind::IsolateMaster => write!(out, "cut the master off from its replicas"),
            Kind::HandOver { lock } => write!(out, "hand over lock {lock} to a replica"),
            Kind::MoveSlot { lock } => write!(out, "move the slot of lock {lock}"),
        }
    }
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that determines it.
    pub seed: u64,
    /// One after the other.
    pub episodes: Vec<Episode>,
}

/// Setting up, recovering and checking an episode take about this long, in milliseconds.
const OVERHEAD: u64 = 12_000;
/// No episode is shorter than this, in milliseconds.
const SHORTEST: u64 = 8_000;

impl Plan {
    /// The plan of a seed, for about this many seconds and with faults of these families.
    pub fn new(seed: u64, seconds: u64, families: &[Family]) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let setups = [
            Setup::Volatile {
                nodes: [1, 3, 3, 5][rng.usize(0..4)],
            },
            Setup::Durable {
                nodes: [3, 5, 5][rng.usize(0..3)],
            },
            Setup::Sentinel,
            Setup::Cluster,
        ];
        let only_clients = |family: &&Family| **family == Family::Client;
        let wanted = |setup: &Setup| {
            let mut its = setup.families().iter().filter(|it| families.contains(it));
            let every = its.clone().count();
            let clients = its.by_ref().filter(only_clients).count();
            // Faults of clients alone need no more than the first deployment.
            every > clients || (every > 0 && *setup == setups[0] && families.len() == 1)
        };
        let setups: Vec<Setup> = setups.into_iter().filter(wanted).collect();
        let share = seconds * 1000 / setups.len().max(1) as u64;
        let length = share.saturating_sub(OVERHEAD).max(SHORTEST);
        let episodes = setups.iter().map(|setup| {
            let selected = setup.families().iter().filter(|it| families.contains(it));
            let selected: Vec<Family> = selected.copied().collect();
            Episode::new(*setup, rng.u64(..), length, &selected)
        });
        Self {
            seed,
            episodes: episodes.collect(),
        }
    }
}

impl Episode {
    fn new(setup: Setup, seed: u64, length: u64, families: &[Family]) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut episode = Self {
            setup,
            seed,
            workers: rng.usize(3..=4),
            locks: rng.usize(2..=3),
            quarantine: rng.u64(1_500..=2_500),
            length,
            faults: Vec::new(),
        };
        // Every family is used before one is used again.
        let mut turn = Vec::new();
        let mut busy = Vec::new();
        let mut at = 800;
        while at + 1_000 < length {
            if turn.is_empty() {
                turn = families.to_vec();
                rng.shuffle(&mut turn);
            }
            let Some(family) = turn.pop() else { break };
            let kind = episode.kind(family, &mut rng);
            let fault = Fault {
                at,
                length: duration(kind, &mut rng).min(length - at),
                family,
                kind,
            };
            // A place has one fault at a time, and then some time without faults.
            let place = kind.place();
            let is_free = |(other, until): &(Place, u64)| place != *other || *until <= at;
            if busy.iter().all(is_free) {
                busy.push((place, at + fault.length + place.rest()));
                episode.faults.push(fault);
            }
            at += rng.u64(100..=1_000);
        }
        episode
    }

    fn kind(&self, family: Family, rng: &mut fastrand::Rng) -> Kind {
        let (nodes, workers) = (self.setup.nodes(), self.workers);
        let (node, worker) = (rng.usize(0..nodes), rng.usize(0..workers));
        match family {
            Family::Kill | Family::Amnesia => Kind::Kill {
                node,
                keeps_data: family == Family::Kill,
            },
            Family::Pause => Kind::Pause { node },
            Family::Partition if rng.u8(0..4) == 0 && nodes > 1 => Kind::Ring,
            Family::Partition => {
                let way = rng.u8(0..3);
                let (some_worker, some_node) = [
                    (Some(worker), Some(node)),
                    (Some(worker), None),
                    (None, Some(node)),
                ][rng.usize(0..3)];
                Kind::Block {
                    worker: some_worker,
                    node: some_node,
                    requests: way != 0,
                    replies: way != 1,
                }
            }
            Family::Clock => self.clock_fault(rng),
            Family::Disk => Kind::DiskFull { node },
            Family::Cut => match rng.u8(0..3) {
                0 => Kind::CutAtGrant { worker },
                1 => Kind::CutInReply {
                    worker,
                    bytes: rng.usize(1..40),
                },
                _ => Kind::Reset { node },
            },
            Family::Client => match rng.u8(0..3) {
                0 => Kind::KillClient { worker },
                _ => Kind::PauseClient { worker },
            },
            // One master has all locks.
            Family::Sentinel => match rng.u8(0..3) {
                0 => Kind::KillMaster { lock: 0 },
                1 => Kind::PauseMaster { lock: 0 },
                _ => Kind::IsolateMaster,
            },
            Family::Cluster => match (rng.u8(0..3), rng.usize(0..self.locks)) {
                (0, lock) => Kind::KillMaster { lock },
                (1, lock) => Kind::PauseMaster { lock },
                (_, lock) => Kind::HandOver { lock },
            },
            Family::Reshard => Kind::MoveSlot {
                lock: rng.usize(0..self.locks),
            },
        }
    }

    /// With durable masters, a minority of the clocks may be wrong: by a little, so
    /// that the client counts their fences, or by far more than it counts. Otherwise the order of
    /// fences over a restart depends on clocks that are roughly right.
    fn clock_fault(&self, rng: &mut fastrand::Rng) -> Kind {
        let nodes = self.setup.nodes();
        let most = match self.setup {
            Setup::Durable { .. } => [200, 4_000, 3_600_000][rng.usize(0..3)],
            _ => 200,
        };
        let node = rng.usize(0..(nodes / 2).max(1));
        let by = rng.i64(-most..=most);
        if rng.bool() {
            Kind::Step { node, by }
        } else {
            Kind::Strobe { node, by }
        }
    }
}

/// What a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Node(usize),
    Clock(usize),
    Worker(usize),
    Links,
    Masters,
}

impl Place {
    /// How long it is left alone after a fault, in milliseconds. After a failover nothing is
    /// granted until the leases of the old master are over.
    fn rest(self) -> u64 {
        match self {
            Place::Masters => 5_000,
            _ => 500,
        }
    }
}

impl Kind {
    fn place(self) -> Place {
        match self {
            Kind::Kill { node, .. } | Kind::Pause { node } | Kind::DiskFull { node } => {
                Place::Node(node)
            }
            Kind::Step { node, .. } | Kind::Strobe { node, .. } => Place::Clock(node),
            Kind::PauseClient { worker } | Kind::KillClient { worker } => Place::Worker(worker),
            Kind::Block { .. }
            | Kind::Ring
            | Kind::CutAtGrant { .. }
            | Kind::CutInReply { .. }
            | Kind::Reset { .. } => Place::Links,
            Kind::KillMaster { .. }
            | Kind::PauseMaster { .. }
            | Kind::IsolateMaster
            | Kind::HandOver { .. }
            | Kind::MoveSlot { .. } => Place::Masters,
        }
    }
}

/// How long a fault lasts, in milliseconds. Elections and the replication lease take seconds.
fn duration(kind: Kind, rng: &mut fastrand::Rng) -> u64 {
    match kind {
        Kind::CutAtGrant { .. } | Kind::CutInReply { .. } => rng.u64(100..=800),
        Kind::Reset { .. } => 1,
        Kind::PauseClient { .. } => rng.u64(500..=5_000),
        Kind::KillMaster { .. } | Kind::PauseMaster { .. } | Kind::IsolateMaster => {
            rng.u64(3_000..=6_000)
        }
        Kind::HandOver { .. } => 2_000,
        Kind::MoveSlot { .. } => 200,
        // A loss of data is dangerous if the node is back at once.
        Kind::Kill {
            keeps_data: false, ..
        } if rng.u8(0..4) > 0 => rng.u64(10..=200),
        _ => match rng.u8(0..3) {
            0 => rng.u64(50..=400),
            1 => rng.u64(400..=2_000),
            _ => rng.u64(2_000..=5_000),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every fault of a cluster affects a lock, and every lock is affected.
    #[test]
    fn faults_of_a_cluster_name_the_locks_of_the_episode() {
        for seed in 1..50 {
            let plan = Plan::new(seed, 300, &[Family::Cluster, Family::Reshard]);
            let [episode] = plan.episodes.as_slice() else {
                panic!("seed {seed}: {:?}", plan.episodes);
            };
            let locks = episode.faults.iter().map(|fault| match fault.kind {
                Kind::KillMaster { lock }
                | Kind::PauseMaster { lock }
                | Kind::HandOver { lock }
                | Kind::MoveSlot { lock } => lock,
                other => panic!("seed {seed}: {other}"),
            });
            let mut locks: Vec<usize> = locks.collect();
            locks.sort_unstable();
            locks.dedup();
            assert_eq!(locks, Vec::from_iter(0..episode.locks), "seed {seed}");
        }
    }
}
