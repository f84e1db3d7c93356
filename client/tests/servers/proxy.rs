//! A TCP proxy between client and server that can delay, hold, lose or falsify what passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to bytes on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    Pass,
    /// They arrive when the flow is let pass again.
    Hold,
    /// They never arrive.
    Lose,
}

/// See the module's text. It ends when dropped.
pub struct Proxy {
    pub port: u16,
    requests: Arc<watch::Sender<Flow>>,
    replies: Arc<watch::Sender<Flow>>,
    delay: Arc<AtomicU64>,
    swaps: Arc<Mutex<Swaps>>,
    cut: Arc<watch::Sender<u64>>,
    task: JoinHandle<()>,
}

/// What a server's replies are falsified by.
#[derive(Default)]
struct Swaps {
    first: Option<(u8, u8)>,
    text: Option<(String, String)>,
}

impl Swaps {
    fn apply(&self, bytes: &mut [u8]) {
        if let (Some(byte), Some((from, to))) = (bytes.first_mut(), self.first)
            && *byte == from
        {
            *byte = to;
        }
        let Some((from, to)) = &self.text else {
            return;
        };
        for at in 0..bytes.len() {
            if bytes[at..].starts_with(from.as_bytes()) {
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
    }
}

impl Proxy {
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(watch::Sender::new(Flow::Pass));
        let replies = Arc::new(watch::Sender::new(Flow::Pass));
        let cut = Arc::new(watch::Sender::new(0));
        let delay = Arc::new(AtomicU64::new(0));
        let swaps = Arc::new(Mutex::new(Swaps::default()));
        let task = {
            let (requests, replies) = (Arc::clone(&requests), Arc::clone(&replies));
            let (cut, delay) = (Arc::clone(&cut), Arc::clone(&delay));
            let swaps = Arc::clone(&swaps);
            tokio::spawn(async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                        continue;
                    };
                    client.set_nodelay(true).unwrap();
                    server.set_nodelay(true).unwrap();
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let there = pump(
                        from_client,
                        to_server,
                        requests.subscribe(),
                        Arc::default(),
                        Arc::default(),
                    );
                    let back = pump(
                        from_server,
                        to_client,
                        replies.subscribe(),
                        Arc::clone(&delay),
                        Arc::clone(&swaps),
                    );
                    let mut cut = cut.subscribe();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = there => {}
                            () = back => {}
                            _ = cut.changed() => {}
                        }
                    });
                }
            })
        };
        Self {
            port,
            requests,
            replies,
            delay,
            swaps,
            cut,
            task,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn requests(&self, flow: Flow) {
        self.requests.send_replace(flow);
    }

    pub fn replies(&self, flow: Flow) {
        self.replies.send_replace(flow);
    }

    /// Every reply takes this much longer.
    pub fn delay_replies(&self, delay: Duration) {
        self.delay
            .store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Falsifies every reply from now on: the same length, so that it stays well-formed.
    pub fn replace_in_replies(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        self.swaps.lock().unwrap().text = Some((from.to_owned(), to.to_owned()));
    }

    /// The same for the byte that says what kind of reply it is.
    pub fn replace_the_first_byte(&self, from: u8, to: u8) {
        self.swaps.lock().unwrap().first = Some((from, to));
    }

    /// Closes all connections there are.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut flow: watch::Receiver<Flow>,
    delay: Arc<AtomicU64>,
    swaps: Arc<Mutex<Swaps>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        swaps.lock().unwrap().apply(&mut buffer[..count]);
        let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let now = match flow.wait_for(|flow| *flow != Flow::Hold).await {
            Ok(now) => *now,
            Err(_) => return,
        };
        if now == Flow::Pass && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
