//! The Rust client over five masters, compared with rslock, and with a loop that sends as many
//! commands to as many masters without any lock logic.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redislock_client::{Redlock, Released};
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
const COMMANDS: &str = "a pair, also inside scripts";
pub const ACQUIRE: &str = "one acquire over five masters, median";
pub const STOPPED: &str = "acquire + release while some of five masters do not answer";
/// The alternatives.
pub const LOOP: &str = "SET NX PX + DEL in a loop";
pub const RSLOCK: &str = "rslock";
pub const MAJORITY: &str = "SET, until three masters reply";

const MASTERS: usize = 5;
/// Short rounds, many of them: what else the machine does affects neighbours alike.
const ROUND: Duration = Duration::from_millis(400);
/// Neighbouring rounds differ by up to a third.
const ROUNDS: usize = 41;
/// Rounds of the other charts.
const FEW_ROUNDS: usize = 11;
/// Acquires of a round whose median counts.
const ACQUIRES: usize = 500;
const TTL: Duration = Duration::from_secs(10);
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn measure() -> Outcome<Vec<Chart>> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let mut contenders = Contenders::start().await?;
        let mut charts = contenders.pairs().await?;
        charts.push(contenders.acquires().await?);
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

    /// How many commands each of them has run.
    fn commands(&mut self) -> Outcome<Vec<u64>> {
        let controls = self.controls.iter_mut();
        let commands = controls.map(|control| {
            let stats = control.try_info("stats")?;
            Ok(stats.number("total_commands_processed")?)
        });
        commands.collect()
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
        let commands = masters.commands()?.into_iter().sum::<u64>() as f64;
        let mut servers = 0.0;
        for control in &mut masters.controls {
            servers += server_cpu(control)?;
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
        let contenders = Self {
            ours: ours.connect().await?,
            plain,
            rslock: LockManager::new(without_module.urls().collect()),
            with_module,
            without_module,
        };
        // Some connect and load their scripts only now: not measured.
        for way in Way::ALL {
            within_patience(way, contenders.pair(way)).await?;
        }
        Ok(contenders)
    }

    /// Acquires and releases once.
    async fn pair(&self, way: Way) -> Outcome<()> {
        match way {
            Way::Ours => {
                let guard = self.ours.lock("lock").ttl(TTL).acquire().await?;
                match guard.release().await {
                    Released::WasHeld => {}
                    other => return Err(format!("the lock was not released: {other:?}").into()),
                }
            }
            Way::Loop => {
                let token = "0123456789abcdef0123456789abcdef";
                let mut set = redis::cmd("SET");
                set.arg("loop").arg(token).arg("NX").arg("PX").arg(10_000);
                let mut del = redis::cmd("DEL");
                del.arg("loop");
                self.send_to_all(&set, MASTERS).await?;
                self.send_to_all(&del, MASTERS).await?;
            }
            Way::Rslock => {
                let lock = self.rslock.lock("rslock", TTL).await;
                let lock = lock.map_err(|error| format!("rslock: {error:?}"))?;
                self.rslock.unlock(&lock).await;
            }
        }
        Ok(())
    }

    /// Sends a command to all masters and waits for so many replies, which must be successes.
    async fn send_to_all(&self, command: &redis::Cmd, replies: usize) -> Outcome<()> {
        let sent = self.plain.iter().map(|connection| {
            let mut connection = connection.clone();
            async move { command.query_async::<redis::Value>(&mut connection).await }
        });
        let mut sent: FuturesUnordered<_> = sent.collect();
        for _ in 0..replies {
            match sent.next().await.transpose()? {
                Some(redis::Value::Okay | redis::Value::Int(1)) => {}
                other => return Err(format!("not a yes: {other:?}").into()),
            }
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
        within_patience(way, async {
            let (start, mut pairs) = (Instant::now(), 0.0);
            while start.elapsed() < ROUND {
                self.pair(way).await?;
                pairs += 1.0;
            }
            Ok((pairs, start.elapsed().as_secs_f64()))
        })
        .await
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

    /// How long one acquire takes, compared with one command to all masters. Both end when a
    /// majority has replied.
    async fn acquires(&mut self) -> Outcome<Chart> {
        let mut found = [OURS, MAJORITY].map(|name| (name.to_owned(), Figures::default()));
        let mut set = redis::cmd("SET");
        set.arg("loop").arg("x").arg("PX").arg(10_000);
        for round in 0..FEW_ROUNDS {
            let what = "client, an acquire";
            progress(&format!("{what}: round {} of {FEW_ROUNDS}", round + 1));
            let mut times = [Vec::new(), Vec::new()];
            for number in 0..2 * ACQUIRES {
                let start = Instant::now();
                if number % 2 == 0 {
                    let guard = self.ours.lock("lock").ttl(TTL).acquire().await?;
                    times[0].push(micros_since(start));
                    guard.release().await;
                } else {
                    self.send_to_all(&set, MASTERS / 2 + 1).await?;
                    times[1].push(micros_since(start));
                }
            }
            for ((_, figures), times) in found.iter_mut().zip(times) {
                figures.push(Figures::of(times).median());
            }
        }
        Ok(Chart::new(ACQUIRE, Unit::Micros, found.into()))
    }

    /// Works with our client until it uses all masters.
    async fn until_all_masters_are_used(&mut self) -> Outcome<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let before = self.with_module.commands()?;
            self.pair(Way::Ours).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            let after = self.with_module.commands()?;
            // INFO itself is a command.
            if before
                .iter()
                .zip(&after)
                .all(|(before, after)| after - before > 1)
            {
                return Ok(());
            }
        }
        Err("the client does not use all masters again".into())
    }

    /// Our client while none, one or two of the masters are stopped.
    async fn without_some_masters(&mut self) -> Outcome<Chart> {
        let mut chart = Chart::curve(STOPPED, Unit::PerSecond, "running masters", [OURS]);
        for round in 0..FEW_ROUNDS {
            progress(&format!(
                "client, stopped masters: round {} of {FEW_ROUNDS}",
                round + 1
            ));
            for turn in 0..=2 {
                let stopped = (round + turn) % 3;
                let victims = &self.with_module.servers[MASTERS - stopped..];
                victims.iter().for_each(Server::pause);
                // The first pair notices it, and takes the timeout of a node.
                let pair = self.pair(Way::Ours).await;
                let rate = self.rate(Way::Ours).await;
                victims.iter().for_each(Server::resume);
                pair?;
                let (pairs, seconds) = rate?;
                chart.add(0, (MASTERS - stopped) as u64, pairs / seconds);
                self.until_all_masters_are_used().await?;
            }
        }
        Ok(chart)
    }
}

/// The work, or an error if it does not end: rslock waits for replies without a limit.
async fn within_patience<T>(way: Way, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let done = tokio::time::timeout(PATIENCE, work).await;
    done.map_err(|_| format!("{}: an acquire or a release does not end", way.name()))?
}

fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
