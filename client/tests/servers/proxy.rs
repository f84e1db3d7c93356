//! A TCP proxy between client and server that can delay, hold, lose, falsify or count what passes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// What happens to bytes on their way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Flow {
    #[default]
    Pass,
    /// They arrive when the flow is let pass again.
    Hold,
    /// They never arrive.
    Lose,
}

/// See the module's text. It ends when dropped.
pub struct Proxy {
    pub port: u16,
    rules: Arc<Rules>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Rules {
    requests: watch::Sender<Flow>,
    replies: watch::Sender<Flow>,
    cut: watch::Sender<u64>,
    delay: AtomicU64,
    /// Of the same length, so that a reply stays well-formed.
    falsified: Mutex<Option<(String, String)>>,
    misread: Mutex<Option<(String, String)>>,
    /// The byte that says what kind of reply it is.
    other_kind: Mutex<Option<(u8, u8)>>,
    /// A request with these words stops the replies.
    trap: Mutex<Option<String>>,
    gate: Mutex<Option<Arc<Gate>>>,
}

/// Lets so many messages pass, in both directions and of all proxies that share it, and no more
/// until it is opened.
pub struct Gate {
    limit: usize,
    seen: AtomicUsize,
    reached: Notify,
    open: watch::Sender<bool>,
}

impl Gate {
    pub fn after(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            seen: AtomicUsize::new(0),
            reached: Notify::new(),
            open: watch::Sender::new(false),
        })
    }

    /// Returns when a message has come to the closed gate.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        if self.seen.fetch_add(1, Ordering::SeqCst) >= self.limit {
            self.reached.notify_one();
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
    }
}

impl Proxy {
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rules = Arc::new(Rules::default());
        let task = tokio::spawn(accept(listener, server, Arc::clone(&rules)));
        Self { port, rules, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn requests(&self, flow: Flow) {
        self.rules.requests.send_replace(flow);
    }

    pub fn replies(&self, flow: Flow) {
        self.rules.replies.send_replace(flow);
    }

    /// From the first request on that has these words, replies are held.
    pub fn hold_replies_once_asked(&self, words: &str) {
        *self.rules.trap.lock().unwrap() = Some(words.to_owned());
    }

    /// Every reply takes this much longer.
    pub fn delay_replies(&self, delay: Duration) {
        let millis = delay.as_millis() as u64;
        self.rules.delay.store(millis, Ordering::Relaxed);
    }

    /// Falsifies every reply from now on.
    pub fn replace_in_replies(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        *self.rules.falsified.lock().unwrap() = Some((from.to_owned(), to.to_owned()));
    }

    /// Falsifies every request from now on.
    pub fn replace_in_requests(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        *self.rules.misread.lock().unwrap() = Some((from.to_owned(), to.to_owned()));
    }

    /// Makes replies of one kind look like another.
    pub fn replace_the_kind(&self, from: u8, to: u8) {
        *self.rules.other_kind.lock().unwrap() = Some((from, to));
    }

    /// Every message has to pass this gate.
    pub fn set_gate(&self, gate: &Arc<Gate>) {
        *self.rules.gate.lock().unwrap() = Some(Arc::clone(gate));
    }

    /// Closes all connections there are.
    pub fn cut(&self) {
        self.rules.cut.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, server: u16, rules: Arc<Rules>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
            continue;
        };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let rules = Arc::clone(&rules);
        tokio::spawn(async move {
            let mut cut = rules.cut.subscribe();
            tokio::select! {
                () = requests(from_client, to_server, &rules) => {}
                () = replies(from_server, to_client, &rules) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rules: &Rules) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..count];
        replace(bytes, &rules.misread);
        let trap = rules.trap.lock().unwrap().take_if(|words| {
            let mut parts = bytes.windows(words.len());
            parts.any(|part| part == words.as_bytes())
        });
        if trap.is_some() {
            rules.replies.send_replace(Flow::Hold);
        }
        if !pass_on(&mut to, bytes, &rules.requests, rules).await {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rules: &Rules) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &mut buffer[..count];
        rules.falsify(bytes);
        let delay = Duration::from_millis(rules.delay.load(Ordering::Relaxed));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if !pass_on(&mut to, bytes, &rules.replies, rules).await {
            return;
        }
    }
}

impl Rules {
    fn falsify(&self, bytes: &mut [u8]) {
        if let Some((from, to)) = *self.other_kind.lock().unwrap()
            && bytes[0] == from
        {
            bytes[0] = to;
        }
        replace(bytes, &self.falsified);
    }
}

fn replace(bytes: &mut [u8], words: &Mutex<Option<(String, String)>>) {
    if let Some((from, to)) = &*words.lock().unwrap() {
        for at in 0..bytes.len() {
            if bytes[at..].starts_with(from.as_bytes()) {
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
}

/// False when the other side is gone.
async fn pass_on(
    to: &mut OwnedWriteHalf,
    bytes: &[u8],
    flow: &watch::Sender<Flow>,
    rules: &Rules,
) -> bool {
    let gate = rules.gate.lock().unwrap().clone();
    if let Some(gate) = gate {
        gate.pass().await;
    }
    match flow.subscribe().wait_for(|flow| *flow != Flow::Hold).await {
        Ok(now) if *now == Flow::Pass => {}
        Ok(_) => return true,
        Err(_) => return false,
    }
    to.write_all(bytes).await.is_ok()
}
