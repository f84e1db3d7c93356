//! The Rust client over five masters, compared with rslock, and with a loop that sends as many
//! commands to as many masters without any lock logic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redislock_client::Redlock;
use redislock_testkit::{Connection, Server};
use rslock::LockManager;
use rustix::time::{ClockId, clock_gettime};

use crate::Outcome;
use crate::hosts::Host;
use crate::measure::{Figures, progress, server_cpu};
use crate::results::{Chart, OURS, Unit};

/// The titles of the charts.
pub const RATE: &str = "acquire + release over five masters";
pub const CLIENT_CPU: &str = "CPU time of the client for a pair";
const SERVER_CPU: &str = "a pair, all five servers together";
const COMMANDS: &str = "a pair";
pub const ACQUIRE: &str = "one acquire over five masters, median";
pub const GRANTS: &str = "grants of one lock to 16 workers, five masters";
pub const WAIT: &str = "longest wait of the 16 workers";
pub const SHARE: &str = "grants of the least over the most served of the 16 workers";
pub const STOPPED: &str = "acquire + release while some of five masters do not answer";
/// The alternatives.
pub const LOOP: &str = "SET NX PX + DEL in a loop";
pub const RSLOCK: &str = "rslock";
pub const ROUND_TRIPS: &str = "1.5 round trips + four sends";

const MASTERS: usize = 5;
/// Short rounds, many of them: what else the machine does affects neighbours alike.
const ROUND: Duration = Duration::from_millis(400);
/// Neighbouring rounds differ by up to a third.
const ROUNDS: usize = 41;
/// Rounds of everything else.
const FEW_ROUNDS: usize = 11;
/// Acquires of a round whose median counts.
const ACQUIRES: usize = 500;
/// Long enough to see long waits.
const CONTENDED: Duration = Duration::from_secs(3);
const CONTENDED_ROUNDS: usize = 5;
const WORKERS: usize = 16;
const TTL: Duration = Duration::from_secs(10);

pub fn measure() -> Outcome<Vec<Chart>> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let mut contenders = Contenders::start().await?;
        let mut charts = contenders.pairs().await?;
        charts.push(contenders.acquires().await?);
        charts.extend(contenders.compete().await?);
        charts.push(contenders.without_some_masters().await?);
        Ok(charts)
    })
}

/// Servers, and a connection to each that reads the figures.
struct Masters {
    controls: Vec<Connection>,
    servers: Vec<Server>,
}

impl Masters {
    fn start(host: Host) -> Outcome<Self> {
        let servers = (0..MASTERS).map(|_| host.start(&[]));
        let servers = servers.collect::<Outcome<Vec<_>>>()?;
        let controls = servers.iter().map(|server| Ok(server.try_connect()?));
        Ok(Self {
            controls: controls.collect::<Outcome<_>>()?,
            servers,
        })
    }

    fn urls(&self) -> impl Iterator<Item = String> {
        self.servers.iter().map(Server::url)
    }
}

/// CPU time and commands so far.
struct Meters {
    client: f64,
    servers: f64,
    commands: f64,
}

impl Meters {
    fn read(masters: &mut Masters) -> Outcome<Self> {
        let (mut servers, mut commands) = (0.0, 0.0);
        for control in &mut masters.controls {
            servers += server_cpu(control)?;
            let stats = control.try_info("stats")?;
            commands += stats.number::<f64>("total_commands_processed")?;
        }
        Ok(Self {
            client: own_cpu(),
            servers,
            commands,
        })
    }
}

/// Microseconds of CPU that this process has used.
fn own_cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The clients that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ours,
    Loop,
    Rslock,
}

impl Way {
    const ALL: [Self; 3] = [Self::Ours, Self::Loop, Self::Rslock];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Loop => LOOP,
            Self::Rslock => RSLOCK,
        }
    }
}

struct Contenders {
    ours: Redlock,
    plain: Vec<MultiplexedConnection>,
    rslock: LockManager,
    /// For our client.
    with_module: Masters,
    /// For the others.
    without_module: Masters,
}

impl Contenders {
    async fn start() -> Outcome<Self> {
        let with_module = Masters::start(Host::Redislock)?;
        let without_module = Masters::start(Host::Plain)?;
        let mut plain = Vec::new();
        for url in without_module.urls() {
            let client = redis::Client::open(url)?;
            plain.push(client.get_multiplexed_async_connection().await?);
        }
        let ours = Redlock::builder().nodes(with_module.urls());
        Ok(Self {
            ours: ours.connect().await?,
            plain,
            rslock: LockManager::new(without_module.urls().collect()),
            with_module,
            without_module,
        })
    }

    /// Acquires and releases once.
    async fn pair(&self, way: Way) -> Outcome<()> {
        match way {
            Way::Ours => {
                let guard = self.ours.lock("lock").ttl(TTL).acquire().await?;
                guard.release().await;
            }
            Way::Loop => {
                let token = "0123456789abcdef0123456789abcdef";
                let mut set = redis::cmd("SET");
                set.arg("loop").arg(token).arg("NX").arg("PX").arg(10_000);
                let mut del = redis::cmd("DEL");
                del.arg("loop");
                self.send_to_all(&set).await?;
                self.send_to_all(&del).await?;
            }
            Way::Rslock => {
                let lock = self.rslock.lock("rslock", TTL).await;
                let lock = lock.map_err(|error| format!("rslock: {error:?}"))?;
                self.rslock.unlock(&lock).await;
            }
        }
        Ok(())
    }

    /// Sends a command to all masters and waits for all replies.
    async fn send_to_all(&self, command: &redis::Cmd) -> Outcome<()> {
        let replies = self.plain.iter().map(|connection| {
            let mut connection = connection.clone();
            async move { connection.send_packed_command(command).await }
        });
        for reply in join_all(replies).await {
            reply?;
        }
        Ok(())
    }

    fn meters(&mut self, way: Way) -> Outcome<Meters> {
        Meters::read(match way {
            Way::Ours => &mut self.with_module,
            Way::Loop | Way::Rslock => &mut self.without_module,
        })
    }

    /// How many pairs one worker makes in a round, and in how many seconds.
    async fn rate(&self, way: Way) -> Outcome<(f64, f64)> {
        let (start, mut pairs) = (Instant::now(), 0.0);
        while start.elapsed() < ROUND {
            self.pair(way).await?;
            pairs += 1.0;
        }
        Ok((pairs, start.elapsed().as_secs_f64()))
    }

    /// One worker without competition.
    async fn pairs(&mut self) -> Outcome<Vec<Chart>> {
        let mut found = [(); 4].map(|()| Way::ALL.map(|way| (way, Figures::default())));
        for round in 0..ROUNDS {
            progress(&format!(
                "client, one worker: round {} of {ROUNDS}",
                round + 1
            ));
            for turn in 0..Way::ALL.len() {
                let which = (round + turn) % Way::ALL.len();
                let way = Way::ALL[which];
                let before = self.meters(way)?;
                let (pairs, seconds) = self.rate(way).await?;
                let after = self.meters(way)?;
                let figures = [
                    pairs / seconds,
                    (after.client - before.client) / pairs,
                    (after.servers - before.servers) / pairs,
                    (after.commands - before.commands) / pairs,
                ];
                for (found, figure) in found.iter_mut().zip(figures) {
                    found[which].1.push(figure);
                }
            }
        }
        let charts = [
            (RATE, Unit::PerSecond),
            (CLIENT_CPU, Unit::Micros),
            (SERVER_CPU, Unit::MicrosOfCpu),
            (COMMANDS, Unit::Commands),
        ];
        let charts = charts.into_iter().zip(found).map(|((title, unit), found)| {
            let found = found.map(|(way, figures)| (way.name().to_owned(), figures));
            Chart::new(title, unit, found.into())
        });
        Ok(charts.collect())
    }

    /// How long one acquire takes, compared with one round trip and a half. Sending to five masters
    /// takes longer than sending to one, for whoever does it.
    async fn acquires(&mut self) -> Outcome<Chart> {
        let mut found = [OURS, ROUND_TRIPS].map(|name| (name.to_owned(), Figures::default()));
        let mut set = redis::cmd("SET");
        set.arg("loop").arg("x").arg("PX").arg(10_000);
        for round in 0..FEW_ROUNDS {
            progress(&format!(
                "client, an acquire: round {} of {FEW_ROUNDS}",
                round + 1
            ));
            let (mut acquire, mut one, mut all) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ACQUIRES {
                let start = Instant::now();
                let mut connection = self.plain[0].clone();
                connection.send_packed_command(&set).await?;
                one.push(micros_since(start));
                let start = Instant::now();
                self.send_to_all(&set).await?;
                all.push(micros_since(start));
                let start = Instant::now();
                let guard = self.ours.lock("lock").ttl(TTL).acquire().await?;
                acquire.push(micros_since(start));
                guard.release().await;
            }
            let [acquire, one, all] = [acquire, one, all].map(|times| Figures::of(times).median());
            found[0].1.push(acquire);
            found[1].1.push(1.5 * one + (all - one));
        }
        Ok(Chart::new(ACQUIRE, Unit::Micros, found.into()))
    }

    /// Several workers of one process that want the same lock.
    async fn compete(&mut self) -> Outcome<[Chart; 3]> {
        let ways = [Way::Ours, Way::Rslock];
        let mut found =
            [(); 3].map(|()| ways.map(|way| (way.name().to_owned(), Figures::default())));
        for round in 0..CONTENDED_ROUNDS {
            progress(&format!(
                "client, {WORKERS} workers: round {} of {CONTENDED_ROUNDS}",
                round + 1
            ));
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                let served = match ways[which] {
                    Way::Ours => our_workers(&self.ours).await?,
                    _ => rslock_workers(&self.rslock).await?,
                };
                for (found, figure) in found.iter_mut().zip(served.figures()) {
                    found[which].1.push(figure);
                }
            }
        }
        let [grants, wait, share] = found.map(Vec::from);
        Ok([
            Chart::new(GRANTS, Unit::PerSecond, grants),
            Chart::new(WAIT, Unit::Millis, wait),
            Chart::new(SHARE, Unit::Share, share),
        ])
    }

    /// Our client while none, one or two of the masters are stopped.
    async fn without_some_masters(&mut self) -> Outcome<Chart> {
        let mut chart = Chart::curve(STOPPED, Unit::PerSecond, "running masters", [OURS]);
        for round in 0..FEW_ROUNDS {
            progress(&format!(
                "client, stopped masters: round {} of {FEW_ROUNDS}",
                round + 1
            ));
            for stopped in 0..=2 {
                let victims = &self.with_module.servers[MASTERS - stopped..];
                victims.iter().for_each(Server::pause);
                // The first pair notices it, and takes the timeout of a node.
                let pair = self.pair(Way::Ours).await;
                let rate = self.rate(Way::Ours).await;
                victims.iter().for_each(Server::resume);
                pair?;
                let (pairs, seconds) = rate?;
                chart.add(0, (MASTERS - stopped) as u64, pairs / seconds);
                // Until the client uses them again.
                tokio::time::sleep(ROUND).await;
            }
        }
        Ok(chart)
    }
}

fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// What the workers of one round got.
struct Served {
    grants: Vec<f64>,
    longest: Duration,
    seconds: f64,
}

impl Served {
    /// Grants a second, the longest wait in ms, and the least over the most served worker.
    fn figures(&self) -> [f64; 3] {
        let least = self.grants.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.grants.iter().copied().fold(1.0, f64::max);
        [
            self.grants.iter().sum::<f64>() / self.seconds,
            self.longest.as_secs_f64() * 1e3,
            least / most,
        ]
    }
}

async fn our_workers(client: &Redlock) -> Outcome<Served> {
    let client = client.clone();
    work(move || {
        let client = client.clone();
        async move {
            let start = Instant::now();
            let guard = client.lock("contended").ttl(TTL).acquire().await;
            let guard = guard.map_err(|error| error.to_string())?;
            let waited = start.elapsed();
            guard.release().await;
            Ok(waited)
        }
    })
    .await
}

async fn rslock_workers(manager: &LockManager) -> Outcome<Served> {
    let manager = manager.clone();
    work(move || {
        let manager = manager.clone();
        async move {
            let start = Instant::now();
            let lock = manager.acquire_no_guard("contended", TTL).await;
            let lock = lock.map_err(|error| format!("rslock: {error:?}"))?;
            let waited = start.elapsed();
            manager.unlock(&lock).await;
            Ok(waited)
        }
    })
    .await
}

/// Lets each worker take turns, which return how long they waited, until the time is over.
async fn work<F, T>(turn: F) -> Outcome<Served>
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = Result<Duration, String>> + Send,
{
    let (turn, start) = (Arc::new(turn), Instant::now());
    let tasks = (0..WORKERS).map(|_| {
        let turn = turn.clone();
        tokio::spawn(async move {
            let (mut grants, mut longest) = (0.0, Duration::ZERO);
            while start.elapsed() < CONTENDED {
                longest = longest.max(turn().await?);
                grants += 1.0;
            }
            Ok::<_, String>((grants, longest))
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut grants, mut longest) = (Vec::new(), Duration::ZERO);
    for task in tasks {
        let (count, wait) = task.await??;
        grants.push(count);
        longest = longest.max(wait);
    }
    Ok(Served {
        grants,
        longest,
        seconds: start.elapsed().as_secs_f64(),
    })
}
