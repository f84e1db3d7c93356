//! A worker: acquires the lock, reads the number, works, writes the number plus one, releases. Like
//! most programs it does not check the lock again before it writes: that check would prove nothing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redislock_client::{Guard, Owner, Redlock, Released};
use redislock_testkit::process::end_with_this_process;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{SignalKind, signal};

use crate::resource::Report;
use crate::{KEY, Outcome, TTL};

/// Shortest and longest time of work under the lock, and between two locks, in ms.
const WORK: (u64, u64) = (250, 700);
const REST: (u64, u64) = (100, 500);
/// Releases that are on their way when the worker ends get this long.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The process of a worker, ended when dropped.
pub struct Worker {
    pub name: &'static str,
    child: Child,
}

impl Worker {
    pub fn start(name: &'static str, urls: &[String], socket: &Path) -> Outcome<Self> {
        let failed = |error| format!("cannot start a worker: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["worker", name])
            .arg(socket)
            .args(urls)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        end_with_this_process(&mut command);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { name, child })
    }

    pub fn signal(&self, signal: Signal) {
        // It may have just ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The work itself. Ends on SIGTERM, which releases the lock, or with the demonstration.
pub async fn work(name: &str, socket: &Path, urls: &[&str]) -> Outcome<()> {
    let mut end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let client = Redlock::builder().nodes(urls).connect().await;
    let client = client.map_err(|error| error.to_string())?;
    let working = async {
        let mut resource = Line::open(socket, name).await?;
        loop {
            round(&client, name, &mut resource).await?;
            tokio::time::sleep(random_time(REST)).await;
        }
    };
    let ended: Outcome<()> = tokio::select! {
        ended = working => ended,
        _ = end.recv() => Ok(()),
    };
    client.close(CLOSE_TIMEOUT).await;
    ended
}

async fn round(client: &Redlock, name: &str, resource: &mut Line) -> Outcome<()> {
    resource.report(Report::Waits).await?;
    let owner = Owner::named(name);
    let lock = client.lock(KEY).ttl(TTL).owner(&owner);
    let guard = lock.acquire().await.map_err(|error| error.to_string())?;
    let fence = guard.fence();
    resource.report(Report::Holds { fence }).await?;
    increment(&guard, resource).await?;
    match guard.release().await {
        Released::WasLost => resource.report(Report::Lost { fence }).await?,
        _ => resource.report(Report::Released).await?,
    };
    Ok(())
}

async fn increment(guard: &Guard, resource: &mut Line) -> Outcome<()> {
    let fence = guard.fence();
    if let Some(value) = resource.report(Report::Reads { fence }).await? {
        tokio::time::sleep(random_time(WORK)).await;
        let value = value + 1;
        resource.report(Report::Writes { fence, value }).await?;
    }
    Ok(())
}

/// A random time in this range of ms.
fn random_time((least, most): (u64, u64)) -> Duration {
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    Duration::from_millis(least + seed % (most - least))
}

/// The connection to the resource.
struct Line {
    input: Lines<BufReader<OwnedReadHalf>>,
    output: OwnedWriteHalf,
}

impl Line {
    async fn open(socket: &Path, name: &str) -> Outcome<Self> {
        let gone = |error: std::io::Error| format!("cannot reach the resource: {error}");
        let stream = UnixStream::connect(socket).await.map_err(gone)?;
        let (input, mut output) = stream.into_split();
        let hello = format!("{name}\n");
        output.write_all(hello.as_bytes()).await.map_err(gone)?;
        let input = BufReader::new(input).lines();
        Ok(Self { input, output })
    }

    /// Sends a report and returns the answer: a number for yes, nothing for no.
    async fn report(&mut self, report: Report) -> Outcome<Option<u64>> {
        let gone = |error: std::io::Error| format!("cannot reach the resource: {error}");
        let line = report.line();
        self.output.write_all(line.as_bytes()).await.map_err(gone)?;
        let Some(reply) = self.input.next_line().await.map_err(gone)? else {
            return Err(gone(std::io::ErrorKind::UnexpectedEof.into()));
        };
        let number = reply.strip_prefix("yes ");
        Ok(number.and_then(|number| number.parse().ok()))
    }
}
