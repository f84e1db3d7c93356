//! Instructions of a command, counted by valgrind: the figure that a busy machine does not change.

mod saving;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Server, Value, encode};

use crate::Outcome;
use crate::handover::{CONNECTIONS, LIST, Turns, check_turn};
use crate::measure::{Figures, progress};
use crate::measured::{self, check_yes, pipeline, put};
use crate::memory::await_blocked;
use crate::pairs::AOF_SETTINGS;
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Way, Ways, bare_module, token};

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

/// How many commands are counted at once.
const COMMANDS: usize = 5_000;
/// How many hand-overs are counted at once.
const HANDOVERS: usize = 1_000;
/// How often they are counted: how many iterations of its event loop the server needs for a
/// hand-over depends on when the commands arrive.
const ROUNDS: usize = 5;
/// With these keys and the locks, the server's key table is nearly full and never shrinks.
const OTHER_KEYS: usize = 10_000;
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
    let mut counter = Counter::start(false)?;
    let found = counter.pairs()?;
    let [acquire, release, pair] = ["acquire", "release", "pair"].map(|part| {
        let figures = found.iter().map(|(way, acquire, release)| {
            let figure = match part {
                "acquire" => *acquire,
                "release" => *release,
                _ => acquire + release,
            };
            (way.name().to_owned(), Figures::one(figure))
        });
        figures.collect::<Vec<_>>()
    });
    let chart = |title, found| Chart::new(title, Unit::Instructions, found);
    let mut charts = vec![
        chart(ACQUIRE, acquire),
        chart(RELEASE, release),
        chart(PAIR, pair),
    ];
    progress("instructions: with an AOF");
    let with_aof = Counter::start(true)?.pairs()?;
    let with_aof = with_aof.iter().map(|(way, acquire, release)| {
        let name = way.name().to_owned();
        (name, Figures::one(acquire + release))
    });
    charts.push(chart(PAIR_AOF, with_aof.collect()));
    charts.push(chart(BESIDE, counter.beside_waiters(&found)?));
    charts.push(counter.hand_overs()?);
    charts.extend(counter.saves_and_loads()?);
    Ok(charts)
}

/// A server whose instructions are counted.
struct Counter {
    server: Server,
    connection: Connection,
    ways: Ways,
    dumps: usize,
}

impl Counter {
    fn start(aof: bool) -> Outcome<Self> {
        let tool = [
            "valgrind",
            "--tool=callgrind",
            // REDIS_SERVER may be a script that starts the server.
            "--trace-children=yes",
            "--callgrind-out-file=counts",
        ];
        // As little background work as possible: it is counted too.
        let mut settings = vec!["hz 1", "dynamic-hz no"];
        if aof {
            settings.extend(AOF_SETTINGS);
        }
        let bare = bare_module(aof);
        settings.extend(bare.as_deref());
        let server = measured::options(&settings).run_by(&tool).try_start()?;
        let mut connection = server.try_connect()?;
        let ways = Ways::of(&mut connection)?;
        let mut counter = Self {
            server,
            connection,
            ways,
            dumps: 0,
        };
        counter.fill()?;
        Ok(counter)
    }

    /// Instructions of an acquire and of a release, each way.
    fn pairs(&mut self) -> Outcome<Vec<(Way, f64, f64)>> {
        let mut found = Vec::new();
        for way in self.ways.all.clone() {
            progress(&format!("instructions: {}", way.name()));
            // The first commands also allocate and load what later ones reuse: not counted.
            self.acquires(way)?;
            self.releases(way)?;
            let (acquire, release) = self.pair(way)?;
            found.push((way, acquire, release));
        }
        Ok(found)
    }

    fn pair(&mut self, way: Way) -> Outcome<(f64, f64)> {
        let acquire = self.each(COMMANDS, |counter| counter.acquires(way))?;
        let release = self.each(COMMANDS, |counter| counter.releases(way))?;
        Ok((acquire, release))
    }

    /// Instructions of a pair while others wait for another lock, and while no client waits.
    fn beside_waiters(&mut self, found: &[(Way, f64, f64)]) -> Outcome<Vec<(String, Figures)>> {
        progress("instructions: while others wait");
        let waiting = self.waiters()?;
        let (acquire, release) = self.pair(Way::Ours)?;
        drop(waiting);
        let mut alone = found.iter().filter(|(way, ..)| *way == Way::Ours);
        let alone = alone
            .next()
            .map_or(f64::NAN, |(_, acquire, release)| acquire + release);
        await_blocked(&mut self.connection, 0)?;
        Ok(vec![
            (OURS.to_owned(), Figures::one(acquire + release)),
            (ALONE.to_owned(), Figures::one(alone)),
        ])
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

    /// Other keys, so many that the server's table does not grow or shrink while counting.
    fn fill(&mut self) -> Outcome<()> {
        let mut buffer = Vec::new();
        for number in 0..OTHER_KEYS {
            put(&mut buffer, &["SET", &format!("other:{number}"), "value"]);
        }
        pipeline(&mut self.connection, &buffer, OTHER_KEYS)
    }

    fn acquires(&mut self, way: Way) -> Outcome<()> {
        let acquires = self.ways.acquires(way, 0..COMMANDS, "600000");
        pipeline(&mut self.connection, &acquires, COMMANDS)
    }

    fn releases(&mut self, way: Way) -> Outcome<()> {
        let releases = self.ways.releases(way, 0..COMMANDS);
        pipeline(&mut self.connection, &releases, COMMANDS)
    }

    /// Connections that wait for a key that is held.
    fn waiters(&mut self) -> Outcome<Vec<Connection>> {
        self.connection
            .try_call(&["LOCK.ACQUIRE", "elsewhere", "holder", "600000"])?;
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

    /// Instructions of a hand-over: a connection releases the lock and waits for it again.
    fn hand_overs(&mut self) -> Outcome<Chart> {
        let has_bare = self.ways.all.contains(&Way::Bare);
        let mut names = vec![OURS, LIST];
        names.extend(has_bare.then_some(Way::Bare.name()));
        let ways = [Turns::Lock, Turns::List, Turns::Bare];
        let ways = &ways[..names.len()];
        let mut chart = Chart::curve(HANDOVER, Unit::Instructions, "connections", names);
        for connections in CONNECTIONS {
            for round in 1..=ROUNDS {
                for (which, turns) in ways.iter().enumerate() {
                    progress(&format!(
                        "instructions: hand-over, {connections} connections, round {round} of \
                         {ROUNDS}, {turns:?}"
                    ));
                    let figure = self.hand_over(connections, *turns)?;
                    chart.add(which, connections as u64, figure);
                }
            }
        }
        Ok(chart)
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
            await_blocked(&mut self.connection, turns.blocked_after(number + 1))?;
        }
        if turns == Turns::Bare {
            // It has no lock that the first one could hold.
            pipeline(&mut self.connection, &turns.commands(0).1, 1)?;
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
        if turns == Turns::Bare {
            // It does not know when a connection closes: nobody may wait then.
            let pass = turns.commands(0).1;
            while self.answer(&pass)? != Value::Null {}
        }
        drop(all);
        await_blocked(&mut self.connection, 0)?;
        self.connection.try_call(&["DEL", "turn", "turn-lock"])?;
        Ok(each)
    }

    fn answer(&mut self, command: &[u8]) -> Outcome<Value> {
        self.connection.try_send_raw(command)?;
        Ok(self.connection.try_receive()?)
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
