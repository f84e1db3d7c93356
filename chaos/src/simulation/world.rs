//! Everything outside of the clients: machines, nodes, the network, and what happens when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::clock::{Clock, MILLI, SECOND, Time};
use super::history::History;
use super::network::{Connection, ConnectionId, Direction, Link};
use super::node::{Node, Setup, State};
use super::plan::{HEALED, Kind, Plan, Planted};
use super::register::Write;

/// Something that happens at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Syn(ConnectionId),
    SynAck(ConnectionId),
    /// The client's machine learns that a connection is over.
    Break(ConnectionId, ErrorKind),
    Arrival(ConnectionId, Direction),
    /// Something is due at a node.
    Tick(usize),
    /// What a node has written reaches its disk.
    Sync(usize),
    FaultBegins(usize),
    FaultEnds(usize),
    /// The claim ends at this reading of its machine's clock: is it backed until then?
    LastMoment(usize, u64),
    /// A delayed write arrives at a register.
    Write(Write),
    Healed,
}

/// What the world reports to the code that runs the clients' tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The tasks of this machine may run again.
    Thaw(usize),
    /// This process is gone.
    Kill(usize),
    /// A process starts on this machine.
    Boot(usize),
}

/// A machine that clients run on.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub clock: Clock,
    /// How many faults pause it.
    pub paused: u32,
    /// The process that runs there, if one does.
    pub process: Option<usize>,
}

/// Described at the top of this file.
pub struct World {
    pub plan: Arc<Plan>,
    pub rng: fastrand::Rng,
    pub machines: Vec<Machine>,
    pub nodes: Vec<Node>,
    pub links: Vec<Link>,
    pub connections: Vec<Connection>,
    /// What has arrived at nodes that are paused.
    pub backlog: Vec<VecDeque<(ConnectionId, Option<Vec<u8>>)>>,
    /// The network has no faults.
    pub quiet: bool,
    pub history: History,
    pub orders: Vec<Order>,
    /// Equal for two runs of one seed.
    pub digest: u64,
    /// How many events have happened.
    pub count: u64,
    queue: BinaryHeap<Reverse<(Time, u32, u64, Event)>>,
    serial: u64,
    ticks: Vec<Option<Time>>,
    start: Instant,
    waker: Option<Waker>,
}

/// A handle on the world.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    /// The world at the beginning of a plan. Called inside the runtime whose clock it follows.
    pub fn new(plan: Arc<Plan>, tracing: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(plan.seed ^ 0x0057_4f52_4c44);
        let clock = |rng: &mut fastrand::Rng| Clock {
            start: rng.u64(SECOND..=10_000_000 * SECOND),
            ppm: if rng.bool() { plan.drift } else { -plan.drift },
        };
        let wall = 1_700_000_000_000_000_i64;
        let flaw = match plan.flaw {
            Some(Planted::Node(flaw)) => Some(flaw),
            _ => None,
        };
        let nodes = (0..plan.nodes).map(|place| {
            let clock = clock(&mut rng);
            let most = plan.wall_error(place);
            let error = rng.i64(-most..=most);
            let setup = Setup {
                clock,
                wall: wall - clock.start as i64 + error,
                memory: plan.memory,
                quarantine: plan.quarantine,
                max_ttl: 60_000,
                flaw,
            };
            let mut node = Node::new(place, setup);
            node.journal = tracing.then(Vec::new);
            node
        });
        let nodes: Vec<_> = nodes.collect();
        let machines = (0..plan.machines).map(|_| Machine {
            clock: clock(&mut rng),
            paused: 0,
            process: None,
        });
        let machines: Vec<_> = machines.collect();
        let link = Link {
            latency: plan.latency,
            lossy: plan.lossy,
            ..Link::default()
        };
        let mut world = Self {
            links: vec![link; plan.machines * plan.nodes],
            backlog: vec![VecDeque::new(); plan.nodes],
            ticks: vec![None; plan.nodes],
            history: History::new(plan.locks, tracing),
            rng,
            machines,
            nodes,
            connections: Vec::new(),
            quiet: false,
            orders: (0..plan.machines).map(Order::Boot).collect(),
            digest: plan.seed,
            count: 0,
            queue: BinaryHeap::new(),
            serial: 0,
            start: Instant::now(),
            waker: None,
            plan,
        };
        for (at, fault) in Arc::clone(&world.plan).faults.iter().enumerate() {
            world.schedule(fault.at, Event::FaultBegins(at));
            world.schedule(fault.at + fault.length, Event::FaultEnds(at));
        }
        for node in 0..world.nodes.len() {
            world.schedule(SECOND, Event::Sync(node));
        }
        world.schedule(HEALED + MILLI, Event::Healed);
        world
    }

    /// True time.
    pub fn now(&self) -> Time {
        Time::try_from(self.start.elapsed().as_micros()).unwrap_or(Time::MAX)
    }

    /// What the clock of this machine shows.
    pub fn clock_of(&self, machine: usize) -> Duration {
        Duration::from_micros(self.machines[machine].clock.at(self.now()))
    }

    /// Events of the same millisecond happen in an order that the seed decides.
    pub fn schedule(&mut self, at: Time, event: Event) {
        let at = at.div_ceil(MILLI) * MILLI;
        self.serial += 1;
        let chance = self.rng.u32(..);
        let is_first = self.queue.peek().is_none_or(|next| at < next.0.0);
        self.queue.push(Reverse((at, chance, self.serial, event)));
        if is_first && let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// What a run does, as a number: two runs that differ anywhere differ in it.
    pub fn mix(&mut self, value: u64) {
        let mixed = (self.digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest = mixed ^ (mixed >> 29);
    }

    /// Lets a node do something, sends its replies, and schedules the next event there.
    pub fn at_node(&mut self, place: usize, act: impl FnOnce(&mut Node, Time)) {
        let time = self.now();
        let node = &mut self.nodes[place];
        act(node, time);
        for line in node.journal.iter_mut().flat_map(std::mem::take) {
            self.history.note(time, || format!("node {place}: {line}"));
        }
        let node = &mut self.nodes[place];
        let digest = node_digest(node);
        self.mix(digest);
        let node = &mut self.nodes[place];
        let next = node.next_tick().filter(|_| node.state == State::Running);
        for (connection, bytes) in std::mem::take(&mut node.outbox) {
            self.send_down(connection, bytes);
        }
        if let Some(next) = next {
            let next = next.max(time + 1).div_ceil(MILLI) * MILLI;
            if self.ticks[place].is_none_or(|known| next < known || known <= time) {
                self.ticks[place] = Some(next);
                self.schedule(next, Event::Tick(place));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Syn(id) => self.on_syn(id),
            Event::SynAck(id) => self.on_syn_ack(id),
            Event::Break(id, why) => self.on_break(id, why),
            Event::Arrival(id, direction) => self.on_arrival(id, direction),
            Event::Tick(node) => {
                self.ticks[node] = None;
                if self.nodes[node].state == State::Running {
                    self.at_node(node, Node::tick);
                }
            }
            Event::Sync(node) => {
                if self.nodes[node].state == State::Running {
                    self.nodes[node].sync();
                }
                let at = self.now() + SECOND;
                self.schedule(at, Event::Sync(node));
            }
            Event::FaultBegins(at) => self.fault(at, true),
            Event::FaultEnds(at) => self.fault(at, false),
            Event::LastMoment(claim, until) => self.check_last_moment(claim, until),
            Event::Write(write) => self.write_register(write),
            Event::Healed => self.quiet = true,
        }
    }

    /// Changes these links. Returns whether `change` was true for a link that is in use: a client
    /// runs on its machine, and its node is up.
    fn each_link(
        &mut self,
        machine: Option<usize>,
        node: Option<usize>,
        change: impl Fn(&mut Link) -> bool,
    ) -> bool {
        let mut any = false;
        for at_machine in 0..self.machines.len() {
            for at_node in 0..self.nodes.len() {
                let is_there = machine.is_none_or(|machine| machine == at_machine)
                    && node.is_none_or(|node| node == at_node);
                if is_there {
                    let changed = change(self.link(at_machine, at_node));
                    any |= changed && self.is_in_use(at_machine, at_node);
                }
            }
        }
        any
    }

    fn is_in_use(&self, machine: usize, node: usize) -> bool {
        self.machines[machine].process.is_some() && self.nodes[node].is_up()
    }

    fn fault(&mut self, at: usize, begins: bool) {
        let kind = self.plan.faults[at].kind;
        let word = if begins { "begins" } else { "ends" };
        self.history
            .note(self.now(), || format!("fault {word}: {kind:?}"));
        let happened = self.change(kind, begins);
        if begins && happened {
            self.history.counts.faults += 1;
        } else if begins {
            self.history
                .note(self.now(), || "this fault has no effect".to_owned());
        }
    }

    /// Begins or ends a fault. Returns whether that changes anything: a crash of a node that is
    /// down does not.
    fn change(&mut self, kind: Kind, begins: bool) -> bool {
        let plan = Arc::clone(&self.plan);
        // True if no other fault of this kind was there.
        let step = |count: &mut u32| {
            if begins {
                *count += 1
            } else {
                *count = count.saturating_sub(1)
            }
            begins && *count == 1
        };
        match kind {
            Kind::Cut {
                machine,
                node,
                up,
                down,
            } => self.each_link(machine, node, |link| {
                let cuts_up = up && step(&mut link.cut_up);
                let cuts_down = down && step(&mut link.cut_down);
                cuts_up || cuts_down
            }),
            Kind::Ring => {
                let mut any = false;
                for machine in 0..plan.machines {
                    let node = machine % plan.nodes;
                    any |= self.each_link(Some(machine), Some(node), |link| {
                        let cuts_up = step(&mut link.cut_up);
                        let cuts_down = step(&mut link.cut_down);
                        cuts_up || cuts_down
                    });
                }
                any
            }
            Kind::Slow { machine, node, by } => self.each_link(machine, node, |link| {
                link.slow = if begins {
                    link.slow + by
                } else {
                    link.slow.saturating_sub(by)
                };
                by > 0
            }),
            Kind::Lossy {
                machine,
                node,
                permille,
            } => self.each_link(machine, node, |link| {
                let before = link.lossy;
                link.lossy = if begins { permille } else { plan.lossy };
                link.lossy != before
            }),
            Kind::Reset { machine, node } => begins && self.reset(machine, node),
            Kind::Crash { node, power } => self.crash(node, power, begins),
            Kind::PauseNode { node } => self.pause(node, begins),
            Kind::PauseMachine { machine } => {
                let Machine {
                    paused, process, ..
                } = &mut self.machines[machine];
                let pauses = step(paused) && process.is_some();
                if *paused == 0 {
                    self.orders.push(Order::Thaw(machine));
                }
                pauses
            }
            Kind::CrashMachine { machine, power } => self.crash_machine(machine, power, begins),
            Kind::StepClock { node, by } => {
                let node = &mut self.nodes[node];
                node.setup.wall += if begins { by } else { -by };
                by != 0 && node.is_up()
            }
        }
    }

    fn crash(&mut self, place: usize, power: bool, begins: bool) -> bool {
        let node = &mut self.nodes[place];
        match (begins, node.state) {
            (true, State::Running | State::Paused) => {
                node.crash(power);
                self.lose_server(place, power);
                true
            }
            (false, State::Down | State::PowerLost) => {
                self.at_node(place, Node::start);
                true
            }
            _ => false,
        }
    }

    fn pause(&mut self, place: usize, begins: bool) -> bool {
        let node = &mut self.nodes[place];
        match (begins, node.state) {
            (true, State::Running) => {
                node.state = State::Paused;
                true
            }
            (false, State::Paused) => {
                node.state = State::Running;
                // Timers and requests of the time in between: either may come first.
                let timers_first = self.rng.bool();
                if timers_first {
                    self.at_node(place, Node::tick);
                }
                self.read_backlog(place);
                self.at_node(place, Node::tick);
                true
            }
            _ => false,
        }
    }

    fn crash_machine(&mut self, machine: usize, power: bool, begins: bool) -> bool {
        let process = self.machines[machine].process;
        match (begins, process) {
            (true, Some(process)) => {
                self.machines[machine].process = None;
                self.lose_client(process, power);
                self.orders.push(Order::Kill(process));
                true
            }
            (false, None) => {
                self.orders.push(Order::Boot(machine));
                true
            }
            _ => false,
        }
    }
}

fn node_digest(node: &Node) -> u64 {
    let locks = node.table.locks() as u64;
    node.table.fence() ^ (locks << 56) ^ ((node.table.waiters() as u64) << 48)
}

/// Runs one event that is due at each call, so that tasks run in between. Returns when the
/// next one is due.
pub fn poll_world(world: &Shared, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
    let mut world = world.lock();
    let now = world.now();
    let next = world.queue.peek().map(|next| next.0.0);
    match next {
        Some(at) if at <= now => {
            if let Some(Reverse((_, _, _, event))) = world.queue.pop() {
                world.count += 1;
                world.mix(now);
                world.happen(event);
            }
            Poll::Pending
        }
        next => {
            world.waker = Some(cx.waker().clone());
            Poll::Ready(next.map(|at| world.start + Duration::from_micros(at)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Fault, Kind, Plan};
    use super::super::run;
    use super::SECOND;

    fn happened(faults: &[Fault]) -> u64 {
        let mut plan = Plan::new(1, Some(3), None);
        plan.faults = faults.to_vec();
        let outcome = run(&plan, false).unwrap();
        assert!(outcome.violation.is_none());
        outcome.counts.faults
    }

    fn fault(second: u64, kind: Kind) -> Fault {
        Fault {
            at: second * SECOND,
            length: 4 * SECOND,
            kind,
        }
    }

    #[test]
    fn a_fault_that_changes_nothing_does_not_count() {
        let crash = |node| Kind::Crash { node, power: false };
        let cut = Kind::Cut {
            machine: None,
            node: Some(0),
            up: true,
            down: true,
        };
        let pause = Kind::PauseNode { node: 0 };
        assert_eq!(happened(&[fault(2, crash(0)), fault(3, crash(1))]), 2);
        for useless in [crash(0), pause, cut] {
            assert_eq!(happened(&[fault(2, crash(0)), fault(3, useless)]), 1);
        }
        assert_eq!(happened(&[fault(2, cut), fault(3, cut)]), 1);
        assert_eq!(happened(&[fault(2, cut), fault(7, cut)]), 2);
    }
}
