//! Very many locks that end together, beside as many strings.

use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Value};

use crate::Outcome;
use crate::locks::{name, token};
use crate::measure::{Comparison, Figures, Side, progress};
use crate::measured::{self, pipeline, put};
use crate::report::{Row, Target};

const LOCKS: usize = 1_000_000;
const PIPELINE: usize = 10_000;
const ROUNDS: usize = 5;

pub fn measure() -> Outcome<Vec<Row>> {
    let mut found = Comparison::default();
    let (mut slices, mut slices_cpu) = (Figures::default(), Figures::default());
    // Room to make them all before they end; then it is known how long that takes.
    let mut room = Duration::from_secs(10);
    for round in 0..ROUNDS {
        // A fresh server each time, as the longest slice is one since the start.
        let server = measured::start(&[])?;
        let mut connection = server.try_connect()?;
        let mut time = |side| {
            progress(&format!(
                "a million at once: round {} of {ROUNDS}, {side:?}",
                round + 1
            ));
            until_gone(&mut connection, side, &mut room)
        };
        let (ours, peer) = if round % 2 == 0 {
            let ours = time(Side::Ours)?;
            (ours, time(Side::Peer)?)
        } else {
            let peer = time(Side::Peer)?;
            (time(Side::Ours)?, peer)
        };
        found.push(ours, peer);
        let state = connection.try_info("lock_state")?;
        slices.push(state.number::<f64>("lock_longest_expiry_slice_us")?);
        slices_cpu.push(state.number::<f64>("lock_longest_expiry_slice_cpu_us")?);
    }
    progress("");
    Ok(vec![
        Row::ratio(
            "a million leases that end at once, until all are gone",
            &found,
            Target::AtMost(1.5),
            |seconds| format!("{seconds:.2} s"),
        ),
        longest(
            "longest slice of expiry, time of the main thread",
            slices_cpu,
            Target::AtMost(5_000.0),
        ),
        longest(
            "the same by the wall clock, with what else the machine did",
            slices,
            Target::None,
        ),
    ])
}

fn longest(what: &str, slices: Figures, target: Target) -> Row {
    Row {
        what: what.to_owned(),
        ours: format!("{:.0} µs", slices.median()),
        peer: String::new(),
        figure: slices,
        unit: "µs",
        target,
    }
}

/// Seconds from a common deadline until the last has gone.
fn until_gone(connection: &mut Connection, side: Side, room: &mut Duration) -> Outcome<f64> {
    loop {
        if let Some(filled) = fill(connection, side, *room)? {
            *room = (*room).min(filled.took * 2 + Duration::from_millis(500));
            return gone(connection, filled.deadline);
        }
        // A machine that is busy with other things takes longer.
        connection.try_call(&["FLUSHALL"])?;
        *room *= 2;
    }
}

struct Filled {
    deadline: Instant,
    took: Duration,
}

/// Makes all of them, each to end when `room` has passed from now, if that is long enough.
fn fill(connection: &mut Connection, side: Side, room: Duration) -> Outcome<Option<Filled>> {
    let start = Instant::now();
    let deadline = start + room;
    for first in (0..LOCKS).step_by(PIPELINE) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let ttl = left.as_millis().max(1).to_string();
        let mut buffer = Vec::with_capacity(PIPELINE * 128);
        for number in first..first + PIPELINE {
            let (name, token) = (name(number), token(number));
            match side {
                Side::Ours => put(&mut buffer, &["LOCK.ACQUIRE", &name, &token, &ttl]),
                Side::Peer => put(&mut buffer, &["SET", &name, &token, "NX", "PX", &ttl]),
            }
        }
        pipeline(connection, &buffer, PIPELINE)?;
    }
    if Instant::now() >= deadline || size(connection)? != LOCKS as i64 {
        return Ok(None);
    }
    Ok(Some(Filled {
        deadline,
        took: start.elapsed(),
    }))
}

/// Seconds from the deadline until the last has gone.
fn gone(connection: &mut Connection, deadline: Instant) -> Outcome<f64> {
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    let start = Instant::now();
    while size(connection)? > 0 {
        if start.elapsed() > Duration::from_secs(120) {
            return Err("not all are gone two minutes later".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(start.elapsed().as_secs_f64())
}

/// How many keys there are, expired ones that are still there too.
fn size(connection: &mut Connection) -> Outcome<i64> {
    match connection.try_call(&["DBSIZE"])? {
        Value::Integer(size) => Ok(size),
        other => Err(format!("DBSIZE: {other:?}").into()),
    }
}
