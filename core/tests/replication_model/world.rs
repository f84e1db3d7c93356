//! Nodes, their clocks and roles, and the links between them.

use redislock_core::replication_lease::{Listed, Look, Rule};
use redislock_core::time::MonoTime;

use super::flaw::{Flaw, Suspect};

/// A clock that is ahead of the true time and runs at so many percent of its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Clock {
    pub ahead: u64,
    pub percent: u64,
}

impl Clock {
    pub const TRUE: Self = Self {
        ahead: 0,
        percent: 100,
    };

    fn at(self, time: u64) -> MonoTime {
        MonoTime(self.ahead + time * self.percent / 100)
    }
}

/// Where the nodes are.
const ADDRESSES: [[u8; 1]; 5] = [[0], [1], [2], [3], [4]];

/// What passes on a link; what does not pass waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    Everything,
    NoAcknowledgements,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time goes by.
    Advance(u64),
    /// The first node follows the second from now on, whatever it was.
    Attach(usize, usize),
    /// A replica becomes a master.
    Promote(usize),
    /// A node restarts and has lost everything.
    Crash(usize),
    /// The master of this link notices that the replica has left.
    Notice(usize),
    /// The master of this link closes it.
    Close(usize),
    /// Something is held back on this link from now on, or no longer.
    Hold(usize, Flow),
    /// A node stands still, or goes on.
    Pause(usize),
}

/// A connection of a replica to the node that it follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    replica: usize,
    master: usize,
    /// Whether the replica still uses it. A replica uses one at a time.
    used: bool,
    /// Whether the master knows of it. One that stands still does not.
    listed: bool,
    received: u64,
    acknowledged: u64,
    flow: Flow,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Node {
    clock: Clock,
    /// While it is a master.
    lease: Option<Suspect>,
    position: u64,
    paused: bool,
    /// When the last lease ends that it has granted and still knows of.
    granted_until: u64,
}

/// All nodes follow one lock. Every lease has the full length, and every master grants whenever it
/// may.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub time: u64,
    rule: Rule,
    flaw: Flaw,
    lease: u64,
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// When the last lease ends whose master has lost it or is none any more.
    forgotten_until: u64,
}

impl World {
    /// The first node is a master and may grant. The others follow it, or each the one before it.
    pub fn settled(clocks: Vec<Clock>, chained: bool, rule: Rule, flaw: Flaw, lease: u64) -> Self {
        let nodes = clocks.into_iter().map(|clock| Node {
            clock,
            lease: None,
            position: 0,
            paused: false,
            granted_until: 0,
        });
        let mut world = Self {
            time: 1,
            rule,
            flaw,
            lease,
            nodes: nodes.collect(),
            links: Vec::new(),
            forgotten_until: 0,
        };
        world.begin(0);
        for replica in 1..world.nodes.len() {
            world.attach(replica, if chained { replica - 1 } else { 0 });
        }
        let wait = world.rule.wait.0;
        for span in [wait, wait / 8, 1, 1] {
            assert!(world.step(Step::Advance(span)));
        }
        assert!(
            world.nodes[0].granted_until > world.time,
            "the first node grants"
        );
        world
    }

    /// What may happen to nodes and links at this moment.
    pub fn events(&self) -> Vec<Step> {
        let mut events = self.telling_events();
        events.extend((0..self.nodes.len()).map(Step::Crash));
        for (at, link) in self.links.iter().enumerate() {
            if !self.nodes[link.master].paused && link.used {
                events.push(Step::Close(at));
            }
            events.push(Step::Hold(at, Flow::Nothing));
        }
        events
    }

    /// The same without what only keeps a master from granting.
    pub fn telling_events(&self) -> Vec<Step> {
        let nodes = 0..self.nodes.len();
        let pairs = nodes
            .clone()
            .flat_map(|a| nodes.clone().map(move |b| (a, b)));
        let mut events: Vec<_> = pairs
            .filter(|(replica, master)| replica != master)
            .map(|(replica, master)| Step::Attach(replica, master))
            .collect();
        let is_master = |node: usize| self.nodes[node].lease.is_some();
        for node in nodes {
            events.push(if is_master(node) {
                Step::Crash(node)
            } else {
                Step::Promote(node)
            });
        }
        for (at, link) in self.links.iter().enumerate() {
            if !is_master(link.master) || self.nodes[link.master].paused {
                continue;
            }
            if !link.used {
                events.push(Step::Notice(at));
            }
            events.push(Step::Hold(
                at,
                match link.flow {
                    Flow::Everything => Flow::NoAcknowledgements,
                    _ => Flow::Everything,
                },
            ));
        }
        events
    }

    /// Does one step; whether no two masters have granted at the same time.
    pub fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Advance(by) => self.time += by,
            Step::Attach(replica, master) => self.attach(replica, master),
            Step::Promote(node) => {
                self.leave(node);
                self.begin(node);
            }
            Step::Crash(node) => {
                self.leave(node);
                self.links.retain(|link| link.master != node);
                self.nodes[node].paused = false;
                if self.nodes[node].lease.is_some() {
                    self.begin(node);
                }
            }
            Step::Notice(link) | Step::Close(link) => {
                let link = self.links.remove(link);
                self.look(link.master);
            }
            Step::Hold(link, flow) => self.links[link].flow = flow,
            Step::Pause(node) => {
                self.nodes[node].paused ^= true;
                self.accept(node);
            }
        }
        self.flow();
        self.beat();
        self.flow();
        (0..self.nodes.len()).all(|node| {
            self.look(node);
            self.grant(node)
        })
    }

    /// A replica stops using its link. What it has sent may still arrive.
    fn leave(&mut self, replica: usize) {
        for link in &mut self.links {
            link.used &= link.replica != replica;
        }
    }

    fn attach(&mut self, replica: usize, master: usize) {
        self.leave(replica);
        self.forget(replica);
        self.nodes[replica].lease = None;
        self.links.push(Link {
            replica,
            master,
            used: true,
            listed: false,
            received: 0,
            acknowledged: 0,
            flow: Flow::Everything,
        });
        self.accept(master);
    }

    /// A node that runs comes to know of those that follow it, one by one.
    fn accept(&mut self, node: usize) {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.master == node && !link.listed && !self.nodes[node].paused {
                link.listed = true;
                self.look(node);
            }
        }
    }

    /// A node is a master from now on, and knows nothing of earlier grants.
    fn begin(&mut self, node: usize) {
        self.forget(node);
        let now = self.nodes[node].clock.at(self.time);
        self.nodes[node].lease = Some(Suspect::new(self.rule, self.flaw, now));
        self.look(node);
    }

    fn forget(&mut self, node: usize) {
        let granted = std::mem::take(&mut self.nodes[node].granted_until);
        self.forgotten_until = self.forgotten_until.max(granted);
    }

    /// Links pass on what they may.
    fn flow(&mut self) {
        for link in &mut self.links {
            let (replica, master) = (&self.nodes[link.replica], &self.nodes[link.master]);
            if link.used && link.flow != Flow::Nothing && !replica.paused {
                link.received = master.position;
            }
            if link.flow == Flow::Everything && link.listed && !master.paused {
                link.acknowledged = link.received;
            }
        }
    }

    /// Every master writes a heartbeat. Positions are moments, so that equal worlds look equal.
    fn beat(&mut self) {
        for at in 0..self.nodes.len() {
            self.look(at);
            let node = &mut self.nodes[at];
            if node.lease.is_some() && !node.paused {
                node.position = self.time + 1;
            }
        }
    }

    /// A master reads its list of replicas.
    fn look(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let now = node.clock.at(self.time);
        let Some(lease) = node.lease.as_mut().filter(|_| !node.paused) else {
            return;
        };
        let links = self.links.iter();
        let links = links.filter(|link| link.master == at && link.listed);
        let listed = links.map(|link| Listed {
            address: &ADDRESSES[link.replica],
            acknowledged: link.acknowledged,
        });
        lease.observe(Look {
            before: now,
            after: now,
            position: node.position,
            replicas: &Vec::from_iter(listed),
        });
    }

    /// A master grants if it may; whether nobody else's lease is running.
    fn grant(&mut self, node: usize) -> bool {
        let now = self.nodes[node].clock.at(self.time);
        let may = self.nodes[node]
            .lease
            .as_ref()
            .is_some_and(|lease| lease.permits(now));
        if !may || self.nodes[node].paused {
            return true;
        }
        self.nodes[node].granted_until = self.time + self.lease;
        let mut others = self.nodes.iter().enumerate().filter(|(at, _)| *at != node);
        self.forgotten_until <= self.time
            && others.all(|(_, other)| other.granted_until <= self.time)
    }
}
