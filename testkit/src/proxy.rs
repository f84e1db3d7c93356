//! A link that can fail: a TCP proxy in front of a server that forwards, stalls, loses, changes or
//! delays data, or closes connections.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Gate;

/// How long [`Proxy::stall`] waits for bytes that are just being passed on. A receiver whose buffer
/// is full may keep them longer.
const SETTLE: Duration = Duration::from_secs(1);

/// What happens to bytes on their way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Flow {
    /// They arrive.
    #[default]
    Pass,
    /// They arrive when the flow passes again.
    Hold,
    /// They never arrive.
    Lose,
}

/// A proxy. It ends when dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
}

#[derive(Default)]
struct Rules {
    target: u16,
    requests: Flow,
    replies: Flow,
    /// Nothing passes either way, and no end of a connection either.
    stalled: bool,
    /// The same for connections from this address.
    stalled_source: Option<Ipv4Addr>,
    hides_ends: bool,
    is_cut: bool,
    has_ended: bool,
    /// Bytes from the server that still pass before the link is cut.
    bytes_left: Option<usize>,
    delay: Duration,
    in_requests: Option<Replacement>,
    in_replies: Option<Replacement>,
    kind: Option<(u8, u8)>,
    /// A request that contains this stops the replies.
    trap: Option<String>,
    /// A request that contains this stops what its own connection says this way.
    to_hold_back: Option<(String, Way)>,
    held_back: Option<(u64, Way)>,
    gate: Option<Arc<Gate>>,
    /// The open connections by number: the client's side and the server's.
    links: HashMap<u64, (TcpStream, TcpStream)>,
    next_link: u64,
    /// Threads that are writing.
    passing: usize,
}

/// Of the same length, so that a message stays well-formed.
struct Replacement {
    from: String,
    to: String,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Request,
    Reply,
}

impl Proxy {
    /// A link without a target, until [`Proxy::lead_to`] sets one.
    pub fn new() -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        Proxy {
            port,
            shared,
            listener: Some(std::thread::spawn(move || listen(&listener, &own))),
        }
    }

    /// A link to this port.
    pub fn to(port: u16) -> Proxy {
        let proxy = Proxy::new();
        proxy.lead_to(port);
        proxy
    }

    /// New connections lead to this port.
    pub fn lead_to(&self, port: u16) {
        self.change(|rules| rules.target = port);
    }

    /// The port of the proxy itself.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What happens to requests from now on.
    pub fn requests(&self, flow: Flow) {
        self.change(|rules| rules.requests = flow);
        self.settle();
    }

    /// What happens to replies from now on.
    pub fn replies(&self, flow: Flow) {
        self.change(|rules| rules.replies = flow);
        self.settle();
    }

    /// Holds back what is sent from now on, either way, and the ends of connections.
    pub fn stall(&self) {
        self.change(|rules| rules.stalled = true);
        self.settle();
    }

    /// [`Proxy::stall`] for connections from this address. Only Linux has several local addresses
    /// without any set-up.
    #[cfg(target_os = "linux")]
    pub fn stall_from(&self, source: Ipv4Addr) {
        self.change(|rules| rules.stalled_source = Some(source));
        self.settle();
    }

    /// Neither side learns that the other one has closed, until the link is healed.
    pub fn hide_ends(&self) {
        self.change(|rules| rules.hides_ends = true);
    }

    /// Closes all open connections; new ones pass.
    pub fn close_connections(&self) {
        self.change(Rules::close_all);
    }

    /// Closes all connections, new ones too, until the link is healed.
    pub fn cut(&self) {
        self.change(Rules::cut);
    }

    /// Cuts when that many more bytes came from the server.
    pub fn cut_after(&self, bytes: usize) {
        self.change(|rules| rules.bytes_left = Some(bytes));
    }

    /// Whether it is cut.
    pub fn is_cut(&self) -> bool {
        self.shared.rules().is_cut
    }

    /// Everything passes again, and what was held back passes late.
    pub fn heal(&self) {
        self.change(|rules| {
            rules.requests = Flow::Pass;
            rules.replies = Flow::Pass;
            rules.stalled = false;
            rules.stalled_source = None;
            rules.hides_ends = false;
            rules.is_cut = false;
            rules.bytes_left = None;
            rules.trap = None;
            (rules.to_hold_back, rules.held_back) = (None, None);
        });
    }

    /// The first request that contains these words is held back, and its client sees that the
    /// connection has ended. Other connections pass; the request arrives when the link is healed.
    pub fn hold_back_request(&self, words: &str) {
        self.change(|rules| rules.to_hold_back = Some((words.to_owned(), Way::Request)));
    }

    /// The connection of the first request that contains these words gets no more replies, until
    /// the link is healed. Other connections pass.
    pub fn silence(&self, words: &str) {
        self.change(|rules| rules.to_hold_back = Some((words.to_owned(), Way::Reply)));
    }

    /// Whether that has happened.
    pub fn has_held_back(&self) -> bool {
        self.shared.rules().held_back.is_some()
    }

    /// After the first request that contains these words, replies are stalled.
    pub fn hold_replies_once_asked(&self, words: &str) {
        self.change(|rules| rules.trap = Some(words.to_owned()));
    }

    /// Every reply takes this much longer.
    pub fn delay_replies(&self, delay: Duration) {
        self.change(|rules| rules.delay = delay);
    }

    /// Changes every reply from now on.
    pub fn replace_in_replies(&self, from: &str, to: &str) {
        self.change(|rules| rules.in_replies = Some(Replacement::new(from, to)));
    }

    /// Changes every request from now on.
    pub fn replace_in_requests(&self, from: &str, to: &str) {
        self.change(|rules| rules.in_requests = Some(Replacement::new(from, to)));
    }

    /// Makes replies of one kind look like another: the first byte says which kind it is.
    pub fn replace_the_kind(&self, from: u8, to: u8) {
        self.change(|rules| rules.kind = Some((from, to)));
    }

    /// Every message has to pass this gate.
    pub fn set_gate(&self, gate: &Arc<Gate>) {
        self.change(|rules| rules.gate = Some(Arc::clone(gate)));
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.rules());
        self.shared.changed.notify_all();
    }

    /// Waits until nobody passes on what the rules of before allowed.
    fn settle(&self) {
        let rules = self.shared.rules();
        let is_busy = |rules: &mut Rules| rules.passing > 0;
        let changed = &self.shared.changed;
        drop(changed.wait_timeout_while(rules, SETTLE, is_busy));
    }
}

impl Default for Proxy {
    fn default() -> Proxy {
        Proxy::new()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|rules| {
            rules.has_ended = true;
            rules.cut();
        });
        // Wakes the listener.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(listener) = self.listener.take() {
            // It has no reason to panic; if it did, the test has failed already.
            let _ = listener.join();
        }
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl FnMut(&mut Rules) -> bool) -> MutexGuard<'_, Rules> {
        let waited = self.changed.wait_while(self.rules(), condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rules {
    fn is_stalled(&self, source: Ipv4Addr) -> bool {
        self.stalled || self.stalled_source == Some(source)
    }

    /// Checks whether the connection of this request must be stalled from now on.
    fn hold_back_if_asked(&mut self, number: u64, bytes: &[u8]) {
        let has = |(words, _): &mut (String, Way)| contains(bytes, words.as_bytes());
        let Some((_, way)) = self.to_hold_back.take_if(has) else {
            return;
        };
        self.held_back = Some((number, way));
        if let (Way::Request, Some((client, _))) = (way, self.links.get(&number)) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    fn is_held(&self, link: &Link) -> bool {
        self.held_back == Some((link.number, link.way))
            || self.is_stalled(link.source)
            || self.flow(link.way) == Flow::Hold
    }

    fn flow(&self, way: Way) -> Flow {
        match way {
            Way::Request => self.requests,
            Way::Reply => self.replies,
        }
    }

    fn close_all(&mut self) {
        for (_, (client, server)) in self.links.drain() {
            // Fails only if it is closed already.
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    fn cut(&mut self) {
        self.is_cut = true;
        self.close_all();
    }

    /// What the rules make of a message.
    fn rewrite(&mut self, way: Way, bytes: &mut [u8]) {
        let replacement = match way {
            Way::Request => &self.in_requests,
            Way::Reply => {
                if let Some((from, to)) = self.kind
                    && bytes[0] == from
                {
                    bytes[0] = to;
                }
                &self.in_replies
            }
        };
        if let Some(replacement) = replacement {
            replacement.apply(bytes);
        }
        let has = |words: &mut String| contains(bytes, words.as_bytes());
        if way == Way::Request && self.trap.take_if(has).is_some() {
            self.replies = Flow::Hold;
        }
    }
}

impl Replacement {
    fn new(from: &str, to: &str) -> Replacement {
        assert_eq!(from.len(), to.len(), "a message must keep its length");
        Replacement {
            from: from.to_owned(),
            to: to.to_owned(),
        }
    }

    fn apply(&self, bytes: &mut [u8]) {
        for at in 0..bytes.len() {
            if bytes[at..].starts_with(self.from.as_bytes()) {
                bytes[at..at + self.to.len()].copy_from_slice(self.to.as_bytes());
            }
        }
    }
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|part| part == words)
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let rules = shared.rules();
        if rules.has_ended {
            return;
        }
        if let (Ok(client), false) = (client, rules.is_cut) {
            let shared = Arc::clone(shared);
            std::thread::spawn(move || link(client, &shared));
        }
    }
}

/// Passes on what one connection says, either way, until one side has closed.
fn link(client: TcpStream, shared: &Arc<Shared>) -> Option<()> {
    let IpAddr::V4(source) = client.peer_addr().ok()?.ip() else {
        return None;
    };
    let rules = shared.wait_while(|rules| rules.is_stalled(source) && !rules.is_cut);
    let target = rules.target;
    drop(rules);
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let number = {
        let mut rules = shared.rules();
        if rules.is_cut {
            return None;
        }
        rules.next_link += 1;
        let number = rules.next_link;
        let both = (client.try_clone().ok()?, server.try_clone().ok()?);
        rules.links.insert(number, both);
        number
    };
    let link = |way| Link {
        shared: Arc::clone(shared),
        number,
        source,
        way,
    };
    let (replies, requests) = (link(Way::Reply), link(Way::Request));
    let (to_client, to_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    std::thread::spawn(move || replies.pass(server, to_client));
    requests.pass(client, to_server);
    Some(())
}

/// One way of one connection.
struct Link {
    shared: Arc<Shared>,
    number: u64,
    source: Ipv4Addr,
    way: Way,
}

impl Link {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes)
            && self.pass_on(&mut to, &mut bytes[..count])
        {}
        let mut rules = self.shared.wait_while(|rules| {
            self.is_open(rules) && (rules.is_stalled(self.source) || rules.hides_ends)
        });
        if let Some((client, server)) = rules.links.remove(&self.number) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    fn is_open(&self, rules: &Rules) -> bool {
        rules.links.contains_key(&self.number)
    }

    /// False when the link is closed.
    fn pass_on(&self, to: &mut TcpStream, bytes: &mut [u8]) -> bool {
        let (delay, gate) = {
            let mut rules = self.shared.rules();
            rules.rewrite(self.way, bytes);
            if self.way == Way::Request {
                rules.hold_back_if_asked(self.number, bytes);
            }
            (rules.delay, rules.gate.clone())
        };
        if self.way == Way::Reply {
            std::thread::sleep(delay);
        }
        if let Some(gate) = gate {
            gate.pass();
        }
        // Also what was read before the rules changed.
        let mut rules = self
            .shared
            .wait_while(|rules| self.is_open(rules) && rules.is_held(self));
        if !self.is_open(&rules) {
            return false;
        }
        if rules.flow(self.way) == Flow::Lose {
            return true;
        }
        let allowed = match rules.bytes_left {
            Some(left) if self.way == Way::Reply => left.min(bytes.len()),
            _ => bytes.len(),
        };
        rules.passing += 1;
        drop(rules);
        let written = to.write_all(&bytes[..allowed]);
        let mut rules = self.shared.rules();
        rules.passing -= 1;
        if let (Way::Reply, Some(left)) = (self.way, rules.bytes_left) {
            rules.bytes_left = left.checked_sub(allowed).filter(|left| *left > 0);
            if rules.bytes_left.is_none() {
                rules.cut();
            }
        }
        self.shared.changed.notify_all();
        written.is_ok()
    }
}
