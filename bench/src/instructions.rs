//! Instructions of a command, counted by valgrind: the figure that a busy machine does not change.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Server, encode};

use crate::Outcome;
use crate::locks::{Wording, token};
use crate::measure::{Comparison, Side, progress};
use crate::measured::{self, pipeline, put};
use crate::report::{Row, Target};

/// Commands of each count.
const COMMANDS: usize = 5_000;
/// With them and the locks the server's table is nearly full, and is never nearly empty.
const OTHER_KEYS: usize = 10_000;
/// Connections that wait elsewhere.
const WAITERS: usize = 100;
/// How long valgrind may take to write down what it has counted.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn measure() -> Outcome<Vec<Row>> {
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        eprintln!("instructions: not counted, valgrind is not installed");
        return Ok(Vec::new());
    }
    let mut counter = Counter::start()?;
    counter.fill()?;
    // What is done for the first time is no measure.
    for side in [Side::Ours, Side::Peer] {
        counter.acquires(side)?;
        counter.releases(side)?;
    }
    progress("instructions: ours");
    let (acquire, release) = counter.pair(Side::Ours)?;
    let alone = counter.one_by_one()?;
    progress("instructions: SET NX PX and EVALSHA");
    let (set, script) = counter.pair(Side::Peer)?;
    progress("instructions: while others wait");
    let waiting = counter.waiters()?;
    let (beside_waiters, release_beside_waiters) = counter.pair(Side::Ours)?;
    let alone_beside_waiters = counter.one_by_one()?;
    drop(waiting);
    progress("");
    let none = Target::None;
    Ok(vec![
        gain(
            "instructions of an acquire, beside SET NX PX",
            acquire,
            set,
            none,
        ),
        gain(
            "instructions of a release, beside EVALSHA",
            release,
            script,
            none,
        ),
        gain(
            "instructions of a pair",
            acquire + release,
            set + script,
            none,
        ),
        Row::ratio(
            format!("instructions of a pair while {WAITERS} wait elsewhere, over nobody"),
            &once(beside_waiters + release_beside_waiters, acquire + release),
            Target::AtMost(1.03),
            whole,
        ),
        Row::ratio(
            "the same, each command sent by itself",
            &once(alone_beside_waiters, alone),
            Target::AtMost(1.03),
            whole,
        ),
    ])
}

fn gain(what: &str, ours: f64, peer: f64, target: Target) -> Row {
    Row::gain(what, &once(ours, peer), target, whole)
}

/// A count is the same each time.
fn once(ours: f64, peer: f64) -> Comparison {
    let mut found = Comparison::default();
    found.push(ours, peer);
    found
}

fn whole(figure: f64) -> String {
    format!("{figure:.0}")
}

/// A server whose instructions are counted.
struct Counter {
    server: Server,
    connection: Connection,
    wording: Wording,
    dumps: usize,
}

impl Counter {
    fn start() -> Outcome<Self> {
        let tool = [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=counts",
        ];
        // Housekeeping as seldom as possible: it is counted too.
        let server = measured::options(&["hz 1", "dynamic-hz no"])
            .run_by(&tool)
            .try_start()?;
        let mut connection = server.try_connect()?;
        let wording = Wording::new(&mut connection)?;
        Ok(Self {
            server,
            connection,
            wording,
            dumps: 0,
        })
    }

    /// Instructions of an acquire and of a release.
    fn pair(&mut self, side: Side) -> Outcome<(f64, f64)> {
        let acquire = self.each(|counter| counter.acquires(side))?;
        let release = self.each(|counter| counter.releases(side))?;
        Ok((acquire, release))
    }

    /// Instructions of a pair whose commands are sent each by itself.
    fn one_by_one(&mut self) -> Outcome<f64> {
        let each = self.each(|counter| {
            for number in 0..COMMANDS / 2 {
                let (mut acquire, mut release) = (Vec::new(), Vec::new());
                counter
                    .wording
                    .acquire(Side::Ours, &mut acquire, number, "600000");
                counter.wording.release(Side::Ours, &mut release, number);
                pipeline(&mut counter.connection, &acquire, 1)?;
                pipeline(&mut counter.connection, &release, 1)?;
            }
            Ok(())
        })?;
        Ok(2.0 * each)
    }

    /// Instructions of each command of this work, less what the server does by itself in the same
    /// time: a counted server is so slow that its housekeeping would show.
    fn each(&mut self, work: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<f64> {
        self.count()?;
        let start = Instant::now();
        work(self)?;
        let took = start.elapsed();
        let busy = self.count()?;
        std::thread::sleep(took);
        let idle = self.count()?;
        Ok((busy - idle) / COMMANDS as f64)
    }

    /// Other keys, so many that the server's table does not grow or shrink while counting.
    fn fill(&mut self) -> Outcome<()> {
        let mut buffer = Vec::new();
        for number in 0..OTHER_KEYS {
            put(&mut buffer, &["SET", &format!("other:{number}"), "value"]);
        }
        pipeline(&mut self.connection, &buffer, OTHER_KEYS)
    }

    fn acquires(&mut self, side: Side) -> Outcome<()> {
        let mut buffer = Vec::new();
        for number in 0..COMMANDS {
            self.wording.acquire(side, &mut buffer, number, "600000");
        }
        pipeline(&mut self.connection, &buffer, COMMANDS)
    }

    fn releases(&mut self, side: Side) -> Outcome<()> {
        let mut buffer = Vec::new();
        for number in 0..COMMANDS {
            self.wording.release(side, &mut buffer, number);
        }
        pipeline(&mut self.connection, &buffer, COMMANDS)
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
        while self
            .connection
            .try_info("lock_state")?
            .number::<f64>("lock_waiters")?
            < WAITERS as f64
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(waiting)
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
