//! The network between the machines of the clients and the nodes.
//!
//! Connections behave as TCP does: bytes of one direction arrive in order or not at all; what is
//! lost is sent again, so it is late and holds up what is behind it; a cut may be one-way; the end
//! of a connection may be seen late, or by one side only. Connections overtake each other.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::task::Waker;

use super::clock::{MILLI, SECOND, Time};
use super::node::State;
use super::world::{Event, World};

/// A connection; each has its own number, during the whole simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

impl ConnectionId {
    /// What core calls it; 0 is nobody.
    pub fn name(self) -> u64 {
        self.0 as u64 + 1
    }
}

/// What lies between one machine and one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// How many faults keep requests from arriving.
    pub cut_up: u32,
    /// How many faults keep replies from arriving.
    pub cut_down: u32,
    /// How long a packet takes, in milliseconds: at least, and at most unless it is lost.
    pub latency: (u64, u64),
    /// How much longer it takes because of a fault, in milliseconds.
    pub slow: u64,
    /// How many packets of a thousand are lost and sent again.
    pub lossy: u64,
}

/// The state of the client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    Open,
    Broken(ErrorKind),
    /// The client has closed it, or is gone.
    Closed,
}

/// What is in transit in one direction.
#[derive(Debug, Default)]
struct Pipe {
    chunks: VecDeque<Chunk>,
    /// Whether an event for the first of them is in the queue.
    awaited: bool,
}

#[derive(Debug)]
struct Chunk {
    at: Time,
    /// Since when it cannot get through.
    stalled: Option<Time>,
    /// `None`: the end of the connection.
    bytes: Option<Vec<u8>>,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub machine: usize,
    pub process: usize,
    pub node: usize,
    pub stage: Stage,
    /// Bytes that the client has not read yet.
    pub inbox: VecDeque<u8>,
    /// The client's task that waits for it.
    pub waker: Option<Waker>,
    /// The process of the node that has accepted it, if it has not closed it.
    server: Option<u64>,
    up: Pipe,
    down: Pipe,
}

/// A packet that was lost is sent again after at least this long.
const RETRANSMIT: u64 = 200;
/// The first packet of a connection is sent again after this long.
const CONNECT_AGAIN: Time = SECOND;
/// A connection ends if the other side does not acknowledge for this long (TCP_USER_TIMEOUT).
const GIVE_UP: Time = 10 * SECOND;

impl World {
    pub fn link(&mut self, machine: usize, node: usize) -> &mut Link {
        let nodes = self.nodes.len();
        &mut self.links[machine * nodes + node]
    }

    /// How long the next packet takes.
    fn delay(&mut self, id: ConnectionId) -> Time {
        let connection = &self.connections[id.0];
        let link = *self.link(connection.machine, connection.node);
        let (least, most) = link.latency;
        let mut millis = self.rng.u64(least..=most);
        if !self.quiet {
            millis += link.slow;
            if self.rng.u64(0..1000) < link.lossy {
                millis += RETRANSMIT + self.rng.u64(0..=RETRANSMIT);
            }
        }
        millis * MILLI
    }

    fn later(&mut self, id: ConnectionId, event: Event) {
        let at = self.now() + self.delay(id);
        self.schedule(at, event);
    }

    /// A client begins to connect.
    pub fn connect(&mut self, machine: usize, process: usize, node: usize) -> ConnectionId {
        let id = ConnectionId(self.connections.len());
        self.connections.push(Connection {
            machine,
            process,
            node,
            stage: Stage::Connecting,
            inbox: VecDeque::new(),
            waker: None,
            server: None,
            up: Pipe::default(),
            down: Pipe::default(),
        });
        self.later(id, Event::Syn(id));
        id
    }

    fn is_cut_up(&mut self, id: ConnectionId) -> bool {
        let connection = &self.connections[id.0];
        let (machine, node) = (connection.machine, connection.node);
        self.link(machine, node).cut_up > 0 || self.nodes[node].state == State::PowerLost
    }

    fn is_cut_down(&mut self, id: ConnectionId) -> bool {
        let connection = &self.connections[id.0];
        let (machine, node) = (connection.machine, connection.node);
        self.link(machine, node).cut_down > 0
    }

    pub fn on_syn(&mut self, id: ConnectionId) {
        if self.connections[id.0].stage != Stage::Connecting {
            return;
        }
        if self.is_cut_up(id) {
            let at = self.now() + CONNECT_AGAIN;
            return self.schedule(at, Event::Syn(id));
        }
        let node = &mut self.nodes[self.connections[id.0].node];
        if node.state == State::Down {
            return self.later(id, Event::Break(id, ErrorKind::ConnectionRefused));
        }
        // The kernel accepts for a process that is paused.
        node.accept(id);
        self.connections[id.0].server = Some(node.process);
        self.later(id, Event::SynAck(id));
    }

    pub fn on_syn_ack(&mut self, id: ConnectionId) {
        if self.connections[id.0].stage != Stage::Connecting {
            return;
        }
        if self.is_cut_down(id) {
            let at = self.now() + CONNECT_AGAIN;
            return self.schedule(at, Event::SynAck(id));
        }
        self.connections[id.0].stage = Stage::Open;
        self.wake(id);
    }

    /// The client's machine learns that the connection is over.
    pub fn on_break(&mut self, id: ConnectionId, why: ErrorKind) {
        let is_local = why == ErrorKind::TimedOut;
        if !is_local && self.is_cut_down(id) {
            let at = self.now() + CONNECT_AGAIN;
            return self.schedule(at, Event::Break(id, why));
        }
        let connection = &mut self.connections[id.0];
        if matches!(connection.stage, Stage::Connecting | Stage::Open) {
            connection.stage = Stage::Broken(why);
            connection.inbox.clear();
            connection.down.chunks.clear();
            self.wake(id);
        }
    }

    fn wake(&mut self, id: ConnectionId) {
        if let Some(waker) = self.connections[id.0].waker.take() {
            waker.wake();
        }
    }

    /// The client sends bytes.
    pub fn send_up(&mut self, id: ConnectionId, bytes: &[u8]) {
        let at = self.now() + self.delay(id);
        self.push(id, Direction::Up, at, Some(bytes.to_vec()));
    }

    /// The node sends bytes, or closes the connection.
    pub fn send_down(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        let at = self.now() + self.delay(id);
        self.push(id, Direction::Down, at, Some(bytes));
    }

    fn pipe(&mut self, id: ConnectionId, direction: Direction) -> &mut Pipe {
        let connection = &mut self.connections[id.0];
        match direction {
            Direction::Up => &mut connection.up,
            Direction::Down => &mut connection.down,
        }
    }

    fn push(&mut self, id: ConnectionId, direction: Direction, at: Time, bytes: Option<Vec<u8>>) {
        let pipe = self.pipe(id, direction);
        let at = pipe.chunks.back().map_or(at, |last| last.at.max(at));
        let stalled = None;
        pipe.chunks.push_back(Chunk { at, stalled, bytes });
        self.await_first(id, direction);
    }

    fn await_first(&mut self, id: ConnectionId, direction: Direction) {
        let now = self.now();
        let pipe = self.pipe(id, direction);
        if let (Some(first), false) = (pipe.chunks.front(), pipe.awaited) {
            let at = first.at.max(now);
            pipe.awaited = true;
            self.schedule(at, Event::Arrival(id, direction));
        }
    }

    /// The client closes the connection, or its process is gone: the kernel notifies the node.
    pub fn close(&mut self, id: ConnectionId, tell: bool) {
        let connection = &mut self.connections[id.0];
        if connection.stage == Stage::Closed {
            return;
        }
        let is_known = !matches!(connection.stage, Stage::Broken(_)) && connection.server.is_some();
        connection.stage = Stage::Closed;
        connection.inbox.clear();
        if is_known && tell {
            let at = self.now() + self.delay(id);
            self.push(id, Direction::Up, at, None);
        }
    }

    /// The first chunk of a direction may have arrived.
    pub fn on_arrival(&mut self, id: ConnectionId, direction: Direction) {
        let now = self.now();
        let cut = match direction {
            Direction::Up => self.is_cut_up(id),
            Direction::Down => self.is_cut_down(id),
        };
        let again = now + (RETRANSMIT + self.rng.u64(0..=2 * RETRANSMIT)) * MILLI;
        let pipe = self.pipe(id, direction);
        pipe.awaited = false;
        let Some(first) = pipe.chunks.front_mut() else {
            return;
        };
        if cut {
            let stalled = *first.stalled.get_or_insert(now);
            first.at = again;
            if now - stalled > GIVE_UP {
                pipe.chunks.clear();
                return self.give_up(id, direction);
            }
        } else if first.at <= now
            && let Some(chunk) = pipe.chunks.pop_front()
        {
            match direction {
                Direction::Up => self.arrive_at_node(id, chunk.bytes),
                Direction::Down => self.arrive_at_client(id, chunk.bytes),
            }
        }
        self.await_first(id, direction);
    }

    fn give_up(&mut self, id: ConnectionId, direction: Direction) {
        match direction {
            Direction::Up => self.on_break(id, ErrorKind::TimedOut),
            Direction::Down => self.server_closes(id),
        }
    }

    /// The node's side of the connection ends.
    pub fn server_closes(&mut self, id: ConnectionId) {
        let node = self.connections[id.0].node;
        if self.connections[id.0].server.take().is_some() {
            self.at_node(node, |node, time| node.disconnect(id, time));
        }
    }

    fn arrive_at_node(&mut self, id: ConnectionId, bytes: Option<Vec<u8>>) {
        let connection = &self.connections[id.0];
        let place = connection.node;
        let node = &mut self.nodes[place];
        let is_known = connection.server == Some(node.process) && node.is_connected(id);
        match node.state {
            State::Running if is_known => match bytes {
                Some(bytes) => self.at_node(place, |node, time| node.receive(id, &bytes, time)),
                None => self.server_closes(id),
            },
            State::Paused if is_known => self.backlog[place].push_back((id, bytes)),
            // No process here has this connection, and the kernel resets it.
            _ if bytes.is_some() => self.later(id, Event::Break(id, ErrorKind::ConnectionReset)),
            _ => {}
        }
    }

    fn arrive_at_client(&mut self, id: ConnectionId, bytes: Option<Vec<u8>>) {
        let connection = &mut self.connections[id.0];
        match (bytes, connection.stage) {
            (Some(bytes), Stage::Open) => {
                connection.inbox.extend(bytes);
                self.wake(id);
            }
            // The machine resets a connection that no longer exists.
            (Some(_), Stage::Closed | Stage::Broken(_)) => self.server_closes(id),
            _ => {}
        }
    }

    /// Delivers what arrived while the process of the node was paused.
    pub fn read_backlog(&mut self, node: usize) {
        while let Some((id, bytes)) = self.backlog[node].pop_front() {
            self.arrive_at_node(id, bytes);
        }
    }

    /// The connections of a node's process are gone with it.
    pub fn lose_server(&mut self, node: usize, power: bool) {
        self.backlog[node].clear();
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            if connection.node == node && connection.server.take().is_some() && !power {
                let id = ConnectionId(at);
                self.later(id, Event::Break(id, ErrorKind::ConnectionReset));
            }
        }
    }

    /// The connections of a client's process are gone with it.
    pub fn lose_client(&mut self, process: usize, power: bool) {
        for at in 0..self.connections.len() {
            if self.connections[at].process == process {
                self.close(ConnectionId(at), !power);
            }
        }
    }

    /// Something in between ends the connections of a link: both sides learn of it, or only one.
    /// Returns whether there was a connection.
    pub fn reset(&mut self, machine: usize, node: usize) -> bool {
        let mut any = false;
        for at in 0..self.connections.len() {
            let (id, connection) = (ConnectionId(at), &self.connections[at]);
            let is_between = (connection.machine, connection.node) == (machine, node);
            if !is_between || connection.stage != Stage::Open {
                continue;
            }
            any = true;
            let who = self.rng.u8(0..3);
            if who != 0 {
                self.server_closes(id);
            }
            if who != 1 {
                self.later(id, Event::Break(id, ErrorKind::ConnectionReset));
            }
        }
        any
    }
}

/// From the client to the node, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Up,
    Down,
}
