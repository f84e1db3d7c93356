//! Instructions of a command, counted by valgrind: the figure that a busy machine does not change.

mod saving;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Server, encode};

use crate::Outcome;
use crate::handover::{CONNECTIONS, Turns, check_turn};
use crate::hosts::{AOF_SETTINGS, Host, Hosts};
use crate::measure::{Figures, alternate, progress};
use crate::measured::{await_blocked, check_yes, pipeline, put};
use crate::results::{Chart, OURS, Unit};
use crate::ways::{OTHERS, Way, Ways, name, token};

pub use saving::{LOAD, SAVE};

/// The titles of the charts.
pub const ACQUIRE: &str = "an acquire, no AOF";
pub const RELEASE: &str = "a release, no AOF";
pub const PAIR: &str = "acquire + release, no AOF";
pub const PAIR_AOF: &str = "acquire + release, AOF everysec";
pub const BESIDE: &str = "acquire + release of redislock, while 100 clients wait for another lock";
pub const HANDOVER: &str = "a hand-over of one lock";
/// What [`BESIDE`] is compared with.
pub const ALONE: &str = "while no client waits";
/// Commands of clients that use no lock of ours.
const PLAIN: [&str; 3] = ["a plain SET with PX", "a plain GET", "a plain DEL"];
const WITH: &str = "server with redislock";
const WITHOUT: &str = "server without it";

/// How many commands are counted at once.
const COMMANDS: usize = 2_000;
/// How often: each round begins with another way.
const ROUNDS: usize = 3;
/// How often plain commands are counted: their spread shows the error of the method.
const PLAIN_ROUNDS: usize = 5;
/// How many hand-overs are counted at once.
const HANDOVERS: usize = 1_000;
/// How often they are counted: how many iterations of its event loop the server needs for a
/// hand-over depends on when the commands arrive.
const HANDOVER_ROUNDS: usize = 5;
/// Connections that wait elsewhere.
const WAITERS: usize = 100;
/// How long valgrind may take to write its counts.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn measure() -> Outcome<Vec<Chart>> {
    let tried = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if tried.is_err() {
        eprintln!("instructions: not counted, valgrind is not installed");
        return Ok(Vec::new());
    }
    let chart = |title, found| Chart::new(title, Unit::Instructions, found);
    let mut counters = Counters::start(&[])?;
    // First, while the servers differ only in the module.
    let plain = counters.plain_commands()?;
    counters.fill_with_locks()?;
    let [acquire, release, pair] = counters.pairs("no AOF")?;
    let mut charts = vec![
        chart(ACQUIRE, acquire),
        chart(RELEASE, release),
        chart(PAIR, pair),
    ];
    let mut with_aof = Counters::start(&AOF_SETTINGS)?;
    with_aof.fill_with_locks()?;
    let [.., pair] = with_aof.pairs("AOF everysec")?;
    drop(with_aof);
    charts.push(chart(PAIR_AOF, pair));
    charts.push(chart(BESIDE, counters.beside_waiters()?));
    charts.extend(plain);
    charts.push(counters.hand_overs()?);
    charts.extend(counters.saves_and_loads()?);
    Ok(charts)
}

/// The figures of each alternative.
type Found = Vec<(String, Figures)>;

/// A counter for each host.
struct Counters(Hosts<Counter>);

impl Counters {
    fn start(settings: &[&str]) -> Outcome<Self> {
        let start = |host| Counter::start(host, settings);
        Ok(Self(Hosts::start(&Host::all(), start)?))
    }

    fn of(&mut self, host: Host) -> Outcome<&mut Counter> {
        self.0.of(host)
    }

    fn ways(&self) -> Vec<Way> {
        let ways = self.0.all().flat_map(|counter| &counter.ways.all);
        ways.copied().collect()
    }

    fn fill_with_locks(&mut self) -> Outcome<()> {
        let mut counters = self.0.all_mut();
        counters.try_for_each(|counter| counter.ways.fill_with_locks(&mut counter.connection))
    }

    /// Instructions of an acquire, of a release, and of both, each way.
    fn pairs(&mut self, what: &str) -> Outcome<[Found; 3]> {
        let ways = self.ways();
        for way in &ways {
            progress(&format!(
                "instructions, {what}: first commands, {}",
                way.name()
            ));
            // The first commands also allocate and load what later ones reuse: not counted.
            let counter = self.of(way.host())?;
            counter.acquires(*way, COMMANDS)?;
            counter.releases(*way)?;
        }
        let found = || -> Found {
            let names = ways.iter().map(|way| way.name().to_owned());
            names.map(|name| (name, Figures::default())).collect()
        };
        let mut all = [found(), found(), found()];
        alternate(
            &format!("instructions, {what}"),
            ROUNDS,
            ways.len(),
            |number| {
                let way = ways[number];
                let (acquire, release) = self.of(way.host())?.pair(way)?;
                let figures = [acquire, release, acquire + release];
                for (found, figure) in all.iter_mut().zip(figures) {
                    found[number].1.push(figure);
                }
                Ok(acquire + release)
            },
        )?;
        Ok(all)
    }

    /// Instructions of a pair of ours while others wait for another lock, and while no client
    /// waits.
    fn beside_waiters(&mut self) -> Outcome<Found> {
        let counter = self.of(Host::Redislock)?;
        let found = alternate("instructions, while others wait", ROUNDS, 2, |which| {
            let waiting = if which == 0 {
                counter.waiters()?
            } else {
                Vec::new()
            };
            let (acquire, release) = counter.pair(Way::Ours)?;
            drop(waiting);
            await_blocked(&mut counter.connection, 0)?;
            counter.connection.try_call(&["DEL", "elsewhere"])?;
            Ok(acquire + release)
        })?;
        let names = [OURS, ALONE].map(str::to_owned);
        Ok(names.into_iter().zip(found).collect())
    }

    /// What our module costs the commands of those who do not use it.
    fn plain_commands(&mut self) -> Outcome<Vec<Chart>> {
        let hosts = [Host::Redislock, Host::Plain];
        let names = [WITH, WITHOUT];
        let mut found = PLAIN.map(|_| names.map(|name| (name.to_owned(), Figures::default())));
        for host in hosts {
            let counter = self.of(host)?;
            counter.fill_with_strings()?;
            // The first commands are not counted.
            counter.plain_commands()?;
        }
        alternate(
            "instructions, plain commands",
            PLAIN_ROUNDS,
            hosts.len(),
            |which| {
                let figures = self.of(hosts[which])?.plain_commands()?;
                for (found, figure) in found.iter_mut().zip(figures) {
                    found[which].1.push(figure);
                }
                Ok(figures.iter().sum())
            },
        )?;
        let charts = PLAIN.into_iter().zip(found);
        let chart =
            |(title, found): (_, [_; 2])| Chart::new(title, Unit::Instructions, found.into());
        Ok(charts.map(chart).collect())
    }

    /// Instructions of a hand-over: a connection releases the lock and waits for it again.
    fn hand_overs(&mut self) -> Outcome<Chart> {
        let ways = Turns::all();
        let names = ways.iter().map(|turns| turns.name());
        let mut chart = Chart::curve(HANDOVER, Unit::Instructions, "connections", names);
        for connections in CONNECTIONS {
            let what = format!("instructions, hand-over, {connections} connections");
            alternate(&what, HANDOVER_ROUNDS, ways.len(), |which| {
                let turns = ways[which];
                let figure = self.of(turns.host())?.hand_over(connections, turns)?;
                chart.add(which, connections as u64, figure);
                Ok(figure)
            })?;
        }
        Ok(chart)
    }
}

/// A server whose instructions are counted.
struct Counter {
    connection: Connection,
    ways: Ways,
    dumps: usize,
    server: Server,
}

impl Counter {
    fn start(host: Host, settings: &[&str]) -> Outcome<Self> {
        let tool = [
            "valgrind",
            "--tool=callgrind",
            // REDIS_SERVER may be a script that starts the server.
            "--trace-children=yes",
            "--callgrind-out-file=counts",
        ];
        // As little background work as possible: it is counted too.
        let settings = [&["hz 1", "dynamic-hz no"], settings].concat();
        let server = host.options(&settings)?.run_by(&tool).try_start()?;
        let mut connection = server.try_connect()?;
        let ways = Ways::of(host, &mut connection)?;
        Ok(Self {
            connection,
            ways,
            dumps: 0,
            server,
        })
    }

    fn pair(&mut self, way: Way) -> Outcome<(f64, f64)> {
        let acquire = self.each(COMMANDS, |counter| counter.acquires(way, COMMANDS))?;
        let release = self.each(COMMANDS, |counter| counter.releases(way))?;
        Ok((acquire, release))
    }

    /// Instructions of each of [`PLAIN`].
    fn plain_commands(&mut self) -> Outcome<[f64; 3]> {
        let mut figures = [0.0; 3];
        for (command, figure) in figures.iter_mut().enumerate() {
            let mut buffer = Vec::new();
            for number in 0..COMMANDS {
                let (name, token) = (name(number), token(number));
                match command {
                    0 => put(&mut buffer, &["SET", &name, &token, "PX", "600000"]),
                    1 => put(&mut buffer, &["GET", &name]),
                    _ => put(&mut buffer, &["DEL", &name]),
                }
            }
            *figure = self.each(COMMANDS, |counter| {
                pipeline(&mut counter.connection, &buffer, COMMANDS)
            })?;
        }
        Ok(figures)
    }

    /// Instructions of each part of this work, minus the background work of the server in the same
    /// time: under valgrind the server is so slow that it would matter.
    fn each(&mut self, times: usize, work: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<f64> {
        self.count()?;
        let start = Instant::now();
        work(self)?;
        let took = start.elapsed();
        let busy = self.count()?;
        std::thread::sleep(took);
        let idle = self.count()?;
        Ok((busy - idle) / times as f64)
    }

    /// Fills the server with other strings that have a TTL.
    fn fill_with_strings(&mut self) -> Outcome<()> {
        let mut buffer = Vec::new();
        for number in OTHERS {
            put(
                &mut buffer,
                &["SET", &name(number), "value", "PX", "6000000"],
            );
        }
        pipeline(&mut self.connection, &buffer, OTHERS.len())
    }

    fn acquires(&mut self, way: Way, locks: usize) -> Outcome<()> {
        let acquires = self.ways.acquires(way, 0..locks, "600000");
        pipeline(&mut self.connection, &acquires, locks)
    }

    fn releases(&mut self, way: Way) -> Outcome<()> {
        let releases = self.ways.releases(way, 0..COMMANDS);
        pipeline(&mut self.connection, &releases, COMMANDS)
    }

    /// Connections that wait for a key that is held.
    fn waiters(&mut self) -> Outcome<Vec<Connection>> {
        let held = ["LOCK.ACQUIRE", "elsewhere", "holder", "600000"];
        check_yes(&self.connection.try_call(&held)?)?;
        let waiting = (0..WAITERS)
            .map(|number| {
                let mut connection = self.server.try_connect()?;
                let token = token(number);
                let words = ["LOCK.ACQUIRE", "elsewhere", &token, "600000", "BLOCK", "0"];
                connection.try_send_raw(&encode(&words))?;
                Ok(connection)
            })
            .collect::<Outcome<Vec<_>>>()?;
        await_blocked(&mut self.connection, WAITERS)?;
        Ok(waiting)
    }

    fn hand_over(&mut self, connections: usize, turns: Turns) -> Outcome<f64> {
        let mut all = (0..connections)
            .map(|_| Ok(self.server.try_connect()?))
            .collect::<Outcome<Vec<_>>>()?;
        if turns == Turns::List {
            self.connection.try_call(&["LPUSH", "turn", "x"])?;
        }
        // The first one gets its turn at once, the others wait in their order.
        for (number, connection) in all.iter_mut().enumerate() {
            connection.try_send_raw(&turns.commands(number).0)?;
            await_blocked(&mut self.connection, number)?;
        }
        let each = self.each(HANDOVERS, |_| {
            for turn in 0..HANDOVERS {
                let number = turn % connections;
                let (take, pass) = turns.commands(number);
                let connection = &mut all[number];
                check_turn(&connection.try_receive()?)?;
                connection.try_send_raw(&pass)?;
                check_yes(&connection.try_receive()?)?;
                connection.try_send_raw(&take)?;
            }
            Ok(())
        })?;
        drop(all);
        await_blocked(&mut self.connection, 0)?;
        self.connection.try_call(&["DEL", "turn", "turn-lock"])?;
        Ok(each)
    }

    /// Instructions since the last count.
    fn count(&mut self) -> Outcome<f64> {
        let told = Command::new("callgrind_control")
            .args(["--dump", &self.server.process_id().to_string()])
            .output()?;
        if !told.status.success() {
            let error = String::from_utf8_lossy(&told.stderr).into_owned();
            return Err(format!("callgrind_control: {error}").into());
        }
        self.dumps += 1;
        let path = self.server.folder().join(format!("counts.{}", self.dumps));
        total(&path)
    }
}

/// The total of a file that valgrind is about to write.
fn total(path: &PathBuf) -> Outcome<f64> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        // The totals are its last line.
        if let Some(total) = text.lines().find_map(|line| line.strip_prefix("totals: ")) {
            return Ok(total.trim().parse()?);
        }
        if start.elapsed() > PATIENCE {
            return Err("valgrind has written no counts".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
