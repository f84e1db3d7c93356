//! Hand-over of one lock among many connections, beside BLPOP and LPUSH of one list element.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Server, Value, encode};

use crate::Outcome;
use crate::locks::token;
use crate::measure::{Comparison, Figures, Side, progress};
use crate::measured::{self, pipeline};
use crate::report::{Row, Target};

/// Many rounds, as they are short.
const ROUNDS: usize = 41;
/// How long each side runs in a round: short, so that whatever else the machine does, it does to
/// both.
const SLICE: Duration = Duration::from_millis(400);

pub fn measure() -> Outcome<Vec<Row>> {
    let server = measured::start(&[])?;
    let mut rows = Vec::new();
    for connections in [16, 64] {
        rows.extend(compare(&server, connections)?);
    }
    Ok(rows)
}

fn compare(server: &Server, connections: usize) -> Outcome<Vec<Row>> {
    let (mut rate, mut fairness, mut tail) = (
        Comparison::default(),
        Comparison::default(),
        Comparison::default(),
    );
    for round in 0..ROUNDS {
        progress(&format!(
            "hand-over, {connections} connections: round {} of {ROUNDS}",
            round + 1
        ));
        let mut sides = [Side::Ours, Side::Peer];
        sides.rotate_left(round % 2);
        let first = run(server, connections, sides[0])?;
        let second = run(server, connections, sides[1])?;
        let (ours, peer) = if sides[0] == Side::Ours {
            (first, second)
        } else {
            (second, first)
        };
        rate.push(ours.rate, peer.rate);
        fairness.push(ours.fairness, peer.fairness);
        tail.push(ours.tail, peer.tail);
    }
    progress("");
    let own = |figures: &Figures| format!("{:.3}", figures.median());
    Ok(vec![
        Row::ratio(
            format!("hand-over rate, {connections} connections"),
            &rate,
            Target::AtLeast(0.9),
            |rate| format!("{rate:.0}/s"),
        ),
        Row {
            what: format!("grants, slowest over fastest of {connections}"),
            ours: own(&fairness.ours),
            peer: own(&fairness.peer),
            figure: fairness.ours,
            unit: "×",
            target: Target::AtLeast(0.9),
        },
        Row::ratio(
            format!("p99 over median of the wait, {connections} connections"),
            &tail,
            Target::AtMost(1.25),
            |tail| format!("{tail:.2}"),
        ),
    ])
}

/// What one run has shown.
struct Run {
    /// Hand-overs a second.
    rate: f64,
    /// Grants of the slowest connection over those of the fastest.
    fairness: f64,
    /// 99th percentile over median of the wait.
    tail: f64,
}

/// One connection's part: how long it has waited each time.
type Waits = Vec<u64>;

fn run(server: &Server, connections: usize, side: Side) -> Outcome<Run> {
    let mut control = server.try_connect()?;
    if side == Side::Peer {
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
                take_turns(connection, side, number, &over).map_err(|error| error.to_string())
            }))
        })
        .collect::<Outcome<_>>()?;
    start.wait();
    let begin = Instant::now();
    thread::sleep(SLICE);
    over.store(true, Ordering::Relaxed);
    let elapsed = begin.elapsed().as_secs_f64();
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for thread in threads {
        let waits = thread
            .join()
            .map_err(|_| "a connection's thread ended early")??;
        counts.push(waits.len() as f64);
        all.extend(waits);
    }
    if side == Side::Peer {
        control.try_call(&["DEL", "turn"])?;
    }
    all.sort_unstable();
    let percentile = |permille: usize| {
        all.get(all.len() * permille / 1000)
            .map_or(f64::NAN, |wait| *wait as f64)
    };
    let (least, most) = counts
        .iter()
        .fold((f64::INFINITY, 0_f64), |(least, most), count| {
            (least.min(*count), most.max(*count))
        });
    Ok(Run {
        rate: all.len() as f64 / elapsed,
        fairness: least / most,
        tail: percentile(990) / percentile(500),
    })
}

/// Waits for its turn, passes it on, and starts again, until it is over.
fn take_turns(
    mut connection: Connection,
    side: Side,
    number: usize,
    over: &AtomicBool,
) -> Outcome<Waits> {
    let token = token(number);
    let (take, pass) = match side {
        Side::Ours => (
            encode(&["LOCK.ACQUIRE", "turn-lock", &token, "30000", "BLOCK", "0"]),
            encode(&["LOCK.RELEASE", "turn-lock", &token]),
        ),
        Side::Peer => (
            encode(&["BLPOP", "turn", "0"]),
            encode(&["LPUSH", "turn", "x"]),
        ),
    };
    let mut waits = Vec::with_capacity(1 << 16);
    while !over.load(Ordering::Relaxed) {
        let since = Instant::now();
        connection.try_send_raw(&take)?;
        let granted = match connection.try_receive()? {
            Value::Integer(fence) => fence > 0,
            Value::Array(popped) => popped.len() == 2,
            _ => false,
        };
        if !granted {
            return Err("a turn was not granted".into());
        }
        waits.push(since.elapsed().as_nanos() as u64);
        pipeline(&mut connection, &pass, 1)?;
    }
    Ok(waits)
}
