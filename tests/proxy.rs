//! A link that can fail: a TCP proxy in front of a server, which passes everything on, holds
//! everything back, or cuts.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How quickly a change of mind is noticed.
const LOOK: Duration = Duration::from_millis(2);

const PASSES: u8 = 0;
const STALLED: u8 = 1;
const IS_CUT: u8 = 2;
const ENDED: u8 = 3;

struct State {
    mode: AtomicU8,
    target: AtomicU16,
    /// Bytes from the server that still pass before the link is cut.
    left: AtomicI64,
    /// Whoever comes from this address is held back, whatever the mode; 0: nobody.
    outcast: AtomicU32,
    /// What clients send is read and held back.
    mute: AtomicBool,
    /// Neither side is told that the other one has closed.
    hides_ends: AtomicBool,
}

impl State {
    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Relaxed)
    }

    /// The mode for a connection that comes from this address.
    fn mode_for(&self, source: u32) -> u8 {
        match self.mode() {
            PASSES if source == self.outcast.load(Ordering::Relaxed) => STALLED,
            mode => mode,
        }
    }

    /// Whether what this side sends is held back.
    fn is_mute(&self, is_server: bool) -> bool {
        !is_server && self.mode() == PASSES && self.mute.load(Ordering::Relaxed)
    }
}

pub struct Proxy {
    port: u16,
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A link to nowhere, until [`Proxy::lead_to`] says where.
    pub fn new() -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        listener.set_nonblocking(true).expect("a socket of ours");
        let state = Arc::new(State {
            mode: AtomicU8::new(PASSES),
            target: AtomicU16::new(0),
            left: AtomicI64::new(i64::MAX),
            outcast: AtomicU32::new(0),
            mute: AtomicBool::new(false),
            hides_ends: AtomicBool::new(false),
        });
        let shared = state.clone();
        let listener = std::thread::spawn(move || listen(&listener, &shared));
        Proxy {
            port,
            state,
            listener: Some(listener),
        }
    }

    pub fn to(port: u16) -> Proxy {
        let proxy = Proxy::new();
        proxy.lead_to(port);
        proxy
    }

    pub fn lead_to(&self, port: u16) {
        self.state.target.store(port, Ordering::Relaxed);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Holds back what is sent from now on, either way. Connections stay open.
    pub fn stall(&self) {
        self.turn(STALLED);
        // Whoever was in the middle of passing something on has seen it by now.
        std::thread::sleep(LOOK * 5);
    }

    /// [`Proxy::stall`] for those alone who come from this address. Only Linux has several of its
    /// own without being asked.
    #[cfg(target_os = "linux")]
    pub fn stall_from(&self, source: Ipv4Addr) {
        let outcast = source.to_bits();
        self.state.outcast.store(outcast, Ordering::Relaxed);
        std::thread::sleep(LOOK * 5);
    }

    /// Holds back what clients send from now on; what the server sends passes.
    pub fn mute_clients(&self) {
        self.state.mute.store(true, Ordering::Relaxed);
        std::thread::sleep(LOOK * 5);
    }

    /// What clients have sent passes again, late.
    pub fn unmute_clients(&self) {
        self.state.mute.store(false, Ordering::Relaxed);
    }

    /// Neither side is told any more that the other one has closed, until the link is healed.
    pub fn hide_ends(&self) {
        self.state.hides_ends.store(true, Ordering::Relaxed);
    }

    /// Closes all connections, and new ones at once.
    pub fn cut(&self) {
        self.turn(IS_CUT);
    }

    /// Cuts when that many more bytes came from the server.
    pub fn cut_after(&self, bytes: i64) {
        self.state.left.store(bytes, Ordering::Relaxed);
    }

    pub fn is_cut(&self) -> bool {
        self.state.mode() == IS_CUT
    }

    pub fn heal(&self) {
        self.state.left.store(i64::MAX, Ordering::Relaxed);
        self.state.outcast.store(0, Ordering::Relaxed);
        self.state.mute.store(false, Ordering::Relaxed);
        self.state.hides_ends.store(false, Ordering::Relaxed);
        self.turn(PASSES);
    }

    fn turn(&self, mode: u8) {
        self.state.mode.store(mode, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.turn(ENDED);
        if let Some(listener) = self.listener.take() {
            listener.join().expect("a listener that ends");
        }
    }
}

fn listen(listener: &TcpListener, state: &Arc<State>) {
    while state.mode() != ENDED {
        match listener.accept() {
            Ok((client, _)) if state.mode() != IS_CUT => {
                let state = state.clone();
                std::thread::spawn(move || link(client, &state));
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Passes on what one connection says, either way, until one side has enough.
fn link(client: TcpStream, state: &Arc<State>) {
    let source = match client.peer_addr().map(|address| address.ip()) {
        Ok(IpAddr::V4(source)) => source.to_bits(),
        _ => return,
    };
    while state.mode_for(source) == STALLED {
        std::thread::sleep(LOOK);
    }
    let target = state.target.load(Ordering::Relaxed);
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else {
        return;
    };
    let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let other = state.clone();
    let back = std::thread::spawn(move || pass(server, to_client, &other, source, true));
    pass(client, to_server, state, source, false);
    // Ends by itself: both sockets are shut down.
    let _ = back.join();
}

fn pass(mut from: TcpStream, mut to: TcpStream, state: &State, source: u32, is_server: bool) {
    let _ = from.set_nonblocking(false);
    let _ = from.set_read_timeout(Some(LOOK));
    let _ = to.set_nodelay(true);
    let mut bytes = [0; 4096];
    loop {
        match state.mode_for(source) {
            STALLED => std::thread::sleep(LOOK),
            PASSES => match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    // What was read while the link was being stalled is held back too.
                    while state.mode_for(source) == STALLED || state.is_mute(is_server) {
                        std::thread::sleep(LOOK);
                    }
                    if state.mode_for(source) != PASSES || to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                    if is_server && spend(state, count) {
                        state.mode.store(IS_CUT, Ordering::Relaxed);
                    }
                }
                Err(error) if is_idle(&error) => {}
                Err(_) => break,
            },
            _ => break,
        }
    }
    while state.mode() == PASSES && state.hides_ends.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Whether these were the last bytes that may pass.
fn spend(state: &State, count: usize) -> bool {
    let count = i64::try_from(count).expect("a small number");
    state.left.fetch_sub(count, Ordering::Relaxed) <= count
}

fn is_idle(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
