//! A worker: acquires the lock, reads the number, works, writes the number plus one, releases. Like
//! most programs it does not check the lock again before it writes: that check would prove nothing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redislock_client::{Guard, Owner, Redlock, Released};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::resource::Report;
use super::{KEY, TTL, bound};
use crate::args::DemoWorker;
use crate::exit::Failure;
use crate::signals::Signals;

/// Shortest and longest time of work under the lock, and between two locks, in ms.
const WORK: (u64, u64) = (250, 700);
const REST: (u64, u64) = (100, 500);
/// Releases that are on their way when the worker ends get this long.
const FAREWELL: Duration = Duration::from_millis(500);

/// The process of a worker, ended when dropped.
pub struct Worker {
    pub name: &'static str,
    child: Child,
}

impl Worker {
    pub fn start(name: &'static str, urls: &[String], socket: &Path) -> Result<Self, Failure> {
        let ourselves = std::env::current_exe();
        let ourselves = ourselves.map_err(|error| Failure::io("cannot start a worker", &error))?;
        let mut command = Command::new(ourselves);
        command
            .args(["demo-worker", "--name", name, "--resource"])
            .arg(socket)
            .env("REDLOCK_NODES", urls.join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        bound(&mut command);
        match command.spawn() {
            Ok(child) => Ok(Self { name, child }),
            Err(error) => Err(Failure::io("cannot start a worker", &error)),
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It may have just ended.
            let _ = kill(Pid::from_raw(pid), signal);
        }
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

/// The work itself. Ends on SIGTERM, or with the demonstration.
pub async fn work(args: DemoWorker) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let client = args.place.connect(TTL).await?;
    let working = async {
        let mut resource = Line::open(&args.resource, &args.name).await?;
        loop {
            round(&client, &args.name, &mut resource).await?;
            tokio::time::sleep(random_time(REST)).await;
        }
    };
    let ended: Result<std::convert::Infallible, Failure> = tokio::select! {
        ended = working => ended,
        signal = signals.end() => Err(Failure::signalled(signal)),
    };
    client.close(FAREWELL).await;
    match ended {
        Err(failure) => Err(failure),
    }
}

async fn round(client: &Redlock, name: &str, resource: &mut Line) -> Result<(), Failure> {
    resource.report(Report::Waits).await?;
    let owner = Owner::named(name);
    let lock = client.lock(KEY).ttl(TTL).owner(&owner);
    let guard = match lock.acquire().await {
        Ok(guard) => guard,
        Err(error) => return Err(Failure::acquiring(error, crate::exit::BUSY)),
    };
    let fence = guard.fence();
    resource.report(Report::Holds { fence }).await?;
    increment(&guard, resource).await?;
    match guard.release().await {
        Released::WasLost => resource.report(Report::Lost { fence }).await?,
        _ => resource.report(Report::Released).await?,
    };
    Ok(())
}

async fn increment(guard: &Guard, resource: &mut Line) -> Result<(), Failure> {
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
    async fn open(socket: &Path, name: &str) -> Result<Self, Failure> {
        let gone = |error| Failure::io("cannot reach the resource", &error);
        let stream = UnixStream::connect(socket).await.map_err(gone)?;
        let (input, mut output) = stream.into_split();
        let hello = format!("{name}\n");
        output.write_all(hello.as_bytes()).await.map_err(gone)?;
        let input = BufReader::new(input).lines();
        Ok(Self { input, output })
    }

    /// Sends a report and returns the answer: a number for yes, nothing for no.
    async fn report(&mut self, report: Report) -> Result<Option<u64>, Failure> {
        let gone = |error| Failure::io("cannot reach the resource", &error);
        let line = report.line();
        self.output.write_all(line.as_bytes()).await.map_err(gone)?;
        let Some(reply) = self.input.next_line().await.map_err(gone)? else {
            return Err(gone(std::io::ErrorKind::UnexpectedEof.into()));
        };
        let number = reply.strip_prefix("yes ");
        Ok(number.and_then(|number| number.parse().ok()))
    }
}
