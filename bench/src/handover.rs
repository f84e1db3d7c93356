//! Hand-over of one lock among many connections, compared with BLPOP and LPUSH of one list element.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Server, Value, encode};

use crate::Outcome;
use crate::hosts::{Host, Hosts};
use crate::measure::{progress, server_cpu};
use crate::measured::pipeline;
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Way, token};

/// The titles of the charts.
pub const RATE: &str = "hand-overs of one lock";
pub const CPU: &str = "a hand-over";
pub const FAIRNESS: &str = "grants of the least over the most served client";
pub const TAIL: &str = "99th percentile of the wait";
/// The alternative.
pub const LIST: &str = "BLPOP + LPUSH";

/// How many compete.
pub const CONNECTIONS: [usize; 3] = [16, 64, 256];
/// Many rounds, because they are short.
const ROUNDS: usize = 21;
/// How long each runs in a round: short, so that other work on the machine affects both alike.
const SLICE: Duration = Duration::from_millis(400);

/// What one run has shown.
pub struct Run {
    /// Hand-overs a second, without those after the end.
    rate: f64,
    /// Server CPU of each, µs; also of those after the end.
    cpu: f64,
    /// Grants in time of the least served connection divided by those of the most served one.
    fairness: f64,
    /// 99th percentile of the wait, ms.
    tail: f64,
}

/// The ways to pass a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    Lock,
    List,
    /// By the bare module.
    Bare,
}

impl Turns {
    /// Those whose hosts can be started.
    pub fn all() -> Vec<Self> {
        let all = [Self::Lock, Self::List, Self::Bare];
        all.into_iter()
            .filter(|turns| turns.host().exists())
            .collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => OURS,
            Self::List => LIST,
            Self::Bare => Way::Bare.name(),
        }
    }

    /// How a connection waits for its turn, and how it passes it on.
    pub fn commands(self, number: usize) -> (Vec<u8>, Vec<u8>) {
        let token = token(number);
        match self {
            Self::Lock => (
                encode(&["LOCK.ACQUIRE", "turn-lock", &token, "30000", "BLOCK", "0"]),
                encode(&["LOCK.RELEASE", "turn-lock", &token]),
            ),
            Self::List => (
                encode(&["BLPOP", "turn", "0"]),
                encode(&["LPUSH", "turn", "x"]),
            ),
            Self::Bare => (
                encode(&["BARE.WAIT", "turn-lock", &token]),
                encode(&["BARE.PASS", "turn-lock", &token]),
            ),
        }
    }

    /// Where it is measured.
    pub fn host(self) -> Host {
        match self {
            Self::Lock => Host::Redislock,
            Self::List => Host::Plain,
            Self::Bare => Host::Bare,
        }
    }
}

pub fn measure() -> Outcome<Vec<Chart>> {
    let ways = Turns::all();
    let hosts: Vec<_> = ways.iter().map(|turns| turns.host()).collect();
    let mut servers = Hosts::start(&hosts, |host| host.start(&[]))?;
    let names = || ways.iter().map(|turns| turns.name());
    let curve = |title, unit| Chart::curve(title, unit, "connections", names());
    let mut charts = [
        curve(RATE, Unit::PerSecond),
        curve(CPU, Unit::MicrosOfCpu),
        curve(TAIL, Unit::Millis),
        curve(FAIRNESS, Unit::Share),
    ];
    for connections in CONNECTIONS {
        for round in 0..ROUNDS {
            progress(&format!(
                "hand-over, {connections} connections: round {} of {ROUNDS}",
                round + 1
            ));
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                let turns = ways[which];
                let run = run(servers.of(turns.host())?, connections, turns)?;
                let figures = [run.rate, run.cpu, run.tail, run.fairness];
                for (chart, figure) in charts.iter_mut().zip(figures) {
                    chart.add(which, connections as u64, figure);
                }
            }
        }
    }
    Ok(charts.into())
}

/// The result of one connection.
struct Taken {
    /// How long each of its waits took, ns.
    waits: Vec<u64>,
    /// How many of them ended in time: each connection still gets its turn after the end.
    in_time: usize,
}

/// Lets this many connections pass turns for a while.
pub fn run(server: &Server, connections: usize, turns: Turns) -> Outcome<Run> {
    let mut control = server.try_connect()?;
    if turns == Turns::List {
        control.try_call(&["LPUSH", "turn", "x"])?;
    }
    let (over, start) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Barrier::new(connections + 1)),
    );
    let threads: Vec<_> = (0..connections)
        .map(|number| {
            let connection = server.try_connect()?;
            let (over, start) = (over.clone(), start.clone());
            Ok(thread::spawn(move || {
                start.wait();
                take_turns(connection, turns, number, &over).map_err(|error| error.to_string())
            }))
        })
        .collect::<Outcome<_>>()?;
    let used_before = server_cpu(&mut control)?;
    start.wait();
    let begin = Instant::now();
    thread::sleep(SLICE);
    over.store(true, Ordering::Relaxed);
    let elapsed = begin.elapsed().as_secs_f64();
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for thread in threads {
        let taken = thread
            .join()
            .map_err(|_| "a connection's thread ended early")??;
        counts.push(taken.in_time as f64);
        all.extend(taken.waits);
    }
    let used = server_cpu(&mut control)? - used_before;
    if turns == Turns::List {
        control.try_call(&["DEL", "turn"])?;
    }
    all.sort_unstable();
    let last = all.get(all.len() * 99 / 100);
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = counts.iter().copied().fold(0.0, f64::max);
    Ok(Run {
        rate: counts.iter().sum::<f64>() / elapsed,
        cpu: used / all.len() as f64,
        fairness: least / most.max(1.0),
        tail: last.map_or(f64::NAN, |wait| *wait as f64 / 1e6),
    })
}

/// Waits for its turn, passes it on, and starts again, until it is over.
fn take_turns(
    mut connection: Connection,
    turns: Turns,
    number: usize,
    over: &AtomicBool,
) -> Outcome<Taken> {
    let (take, pass) = turns.commands(number);
    let (mut waits, mut in_time) = (Vec::with_capacity(1 << 16), 0);
    while !over.load(Ordering::Relaxed) {
        let since = Instant::now();
        connection.try_send_raw(&take)?;
        check_turn(&connection.try_receive()?)?;
        waits.push(since.elapsed().as_nanos() as u64);
        in_time += usize::from(!over.load(Ordering::Relaxed));
        pipeline(&mut connection, &pass, 1)?;
    }
    Ok(Taken { waits, in_time })
}

/// An error unless the reply says that it is this connection's turn.
pub fn check_turn(reply: &Value) -> Outcome<()> {
    match reply {
        Value::Integer(fence) if *fence > 0 => Ok(()),
        Value::Array(popped) if popped.len() == 2 => Ok(()),
        other => Err(format!("a turn was not granted: {other:?}").into()),
    }
}
