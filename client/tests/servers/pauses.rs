//! A client process that is stopped (SIGSTOP) at the worst moment: as a holder, and while it
//! acquires.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::slice::from_ref;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use redislock_testkit::process::outcome;
use redislock_testkit::{Flow, Proxy, Server, Shifts};
use rustix::process::{Pid, Signal, kill_process};

use crate::contention::waiters;
use crate::examples::example;
use crate::{patient, until};

/// `examples/fenced_worker.rs` as a process of its own.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Worker {
    fn start(resource: &Server, nodes: impl IntoIterator<Item = String>) -> Self {
        let mut child = example("fenced_worker")
            .arg(resource.url())
            .args(nodes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, output) = channel();
        let from = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            output,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line, without its first words, which must be these.
    fn says(&self, words: &str) -> String {
        let line = self.output.recv_timeout(Duration::from_secs(30)).unwrap();
        let rest = line.strip_prefix(words);
        rest.unwrap_or_else(|| panic!("{line}, not {words}"))
            .trim()
            .to_owned()
    }

    /// The fence with which it holds; validity must not be over by then.
    fn holds(&self) -> u64 {
        let text = self.says("holding fence ");
        let (fence, left) = text.split_once(" for ").unwrap();
        let left = left.strip_suffix(" ms").unwrap();
        assert!(left.parse::<u64>().unwrap() > 0, "{text}");
        fence.parse().unwrap()
    }

    fn add(&mut self, amount: i64) {
        writeln!(self.input.as_ref().unwrap(), "{amount}").unwrap();
    }

    /// Waits for its end, and returns the result of its lock.
    fn ends(&mut self) -> String {
        self.input = None;
        self.says("released: ")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

fn a_paused_holder(servers: &[Server]) {
    let resource = Server::options().without_module().start();
    let mut paused = Worker::start(&resource, urls(servers));
    let first = paused.holds();
    assert_eq!(paused.says("read "), "0");
    paused.signal(Signal::STOP);
    let mut second = Worker::start(&resource, urls(servers));
    let later = second.holds();
    assert!(later > first);
    assert_eq!(second.says("read "), "0");
    second.add(100);
    assert_eq!(second.says("wrote "), "100");
    // What it does first when it wakes up is to write, before it could have learned anything.
    paused.add(1);
    paused.signal(Signal::CONT);
    let mut lines = [paused.says(""), paused.says("")];
    lines.sort();
    assert_eq!(lines[0], "lost");
    assert!(
        lines[1].starts_with("refused: ") && lines[1].ends_with(&later.to_string()),
        "{lines:?}"
    );
    assert_eq!(paused.ends(), "WasLost");
    assert_eq!(second.ends(), "WasHeld");
    assert_eq!(resource.run::<i64>(&["GET", "account:balance"]), 100);
}

#[test]
fn a_holder_that_was_paused_beyond_its_ttl_is_notified_and_its_write_is_refused() {
    a_paused_holder(&Server::start_many::<1>());
    a_paused_holder(&Server::start_many::<3>());
}

async fn a_pause_while_acquiring(servers: &[Server]) {
    let resource = Server::options().without_module().start();
    let mut proxies = Vec::new();
    for server in servers {
        let proxy = Proxy::to(server.port());
        proxy.hold_replies_once_asked("LOCK.ACQUIRE");
        proxies.push(proxy);
    }
    let mut paused = Worker::start(&resource, proxies.iter().map(Proxy::url));
    until("all have granted", || {
        servers.iter().all(|server| !server.is_free("account"))
    })
    .await;
    paused.signal(Signal::STOP);
    // All it asked for is granted to it, and waits in its sockets.
    proxies.iter().for_each(|proxy| proxy.replies(Flow::Pass));
    let mut second = Worker::start(&resource, urls(servers));
    let later = second.holds();
    paused.signal(Signal::CONT);
    // At the first node that it can reach.
    let waiting = || servers.iter().any(|server| waiters(server, "account") == 1);
    until("it has asked again", waiting).await;
    let early = paused.output.try_recv();
    assert!(early.is_err(), "{early:?} while another one holds");
    assert_eq!(second.says("read "), "0");
    second.add(100);
    assert_eq!(second.says("wrote "), "100");
    assert_eq!(second.ends(), "WasHeld");
    assert!(paused.holds() > later);
    assert_eq!(paused.says("read "), "100");
    assert_eq!(paused.ends(), "WasHeld");
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_are_read_after_a_long_pause_give_no_lock() {
    a_pause_while_acquiring(&Server::start_many::<1>()).await;
    a_pause_while_acquiring(&Server::start_many::<3>()).await;
}

/// The host is suspended, which stops its monotonic clock but not the lease. The test runs itself
/// again with a clock that it can shift.
#[test]
fn a_hold_ends_while_the_host_is_suspended() {
    let Some(clocks) = Shifts::of_this_process() else {
        let clocks = Shifts::new();
        let mut again = Command::new(std::env::current_exe().unwrap());
        again
            .args(["pauses::a_hold_ends_while_the_host_is_suspended", "--exact"])
            .envs(clocks.environment())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let again = outcome(again);
        let passed = again.code == Some(0) && again.out.contains("1 passed");
        assert!(passed, "{again:?}");
        return;
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = Server::start();
        let client = patient(from_ref(&server)).await;
        // A renewal after the first suspension would put off the end.
        let lock = client.lock("x").ttl(Duration::from_secs(600)).renew(false);
        let guard = lock.acquire().await.unwrap();
        clocks.suspended_for(500);
        assert!(guard.is_valid());
        clocks.suspended_for(601);
        assert!(!guard.is_valid());
    });
}
