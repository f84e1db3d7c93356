//! Several keys in one request, beside a pipeline of requests; a guarded command, beside the
//! command alone.

use redislock_testkit::Connection;

use crate::Outcome;
use crate::locks::{Wording, name, token};
use crate::measure::{ROUNDS, Side, cpu_of, interleave};
use crate::measured::{self, pipeline, put};
use crate::report::{Row, Target, micros};

/// Keys of a request.
const KEYS: usize = 8;
/// Requests of a pipeline.
const REQUESTS: usize = 250;
/// Commands of a pipeline that is guarded.
const COMMANDS: usize = 4_000;
/// Pipelines of each round.
const PIPELINES: usize = 20;

pub fn measure() -> Outcome<Vec<Row>> {
    let server = measured::start(&[])?;
    let (mut control, mut connection) = (server.try_connect()?, server.try_connect()?);
    Ok(vec![
        several(&mut control, &mut connection)?,
        guarded(&mut control, &mut connection)?,
    ])
}

fn several(control: &mut Connection, connection: &mut Connection) -> Outcome<Row> {
    let what = "MACQUIRE + MRELEASE of 8 keys, over 8 pairs";
    let (ours, peer) = (
        together(),
        Wording::new(control)?.pairs(Side::Ours, 0..REQUESTS * KEYS),
    );
    let mut send = |side| match side {
        Side::Ours => pipeline(connection, &ours, 2 * REQUESTS),
        Side::Peer => pipeline(connection, &peer, 2 * REQUESTS * KEYS),
    };
    send(Side::Ours)?;
    send(Side::Peer)?;
    let found = interleave(what, ROUNDS, PIPELINES, |side| {
        Ok(cpu_of(control, || send(side))? / REQUESTS as f64)
    })?;
    Ok(Row::ratio(what, &found, Target::AtMost(0.6), micros))
}

/// Acquires all keys by eights, then releases them.
fn together() -> Vec<u8> {
    let mut buffer = Vec::new();
    let count = KEYS.to_string();
    for (command, ttl) in [("LOCK.MACQUIRE", Some("30000")), ("LOCK.MRELEASE", None)] {
        for request in 0..REQUESTS {
            let names: Vec<_> = (0..KEYS).map(|key| name(request * KEYS + key)).collect();
            let token = token(request);
            let mut words = vec![command, &count];
            words.extend(names.iter().map(String::as_str));
            words.push(&token);
            words.extend(ttl);
            put(&mut buffer, &words);
        }
    }
    buffer
}

fn guarded(control: &mut Connection, connection: &mut Connection) -> Outcome<Row> {
    let what = "GUARD SET, less SET";
    let (guard, token) = ("guard", token(0));
    control.try_call(&["LOCK.ACQUIRE", guard, &token, "600000"])?;
    let mut ours = Vec::new();
    let mut peer = Vec::new();
    for number in 0..COMMANDS {
        let name = format!("counter:{:03}", number % 1000);
        put(
            &mut ours,
            &["LOCK.GUARD", guard, &token, "SET", &name, "value"],
        );
        put(&mut peer, &["SET", &name, "value"]);
    }
    let mut send = |side| {
        let bytes = if side == Side::Ours { &ours } else { &peer };
        pipeline(connection, bytes, COMMANDS)
    };
    send(Side::Ours)?;
    send(Side::Peer)?;
    let found = interleave(what, ROUNDS, PIPELINES, |side| {
        Ok(cpu_of(control, || send(side))? / COMMANDS as f64)
    })?;
    Ok(Row {
        figure: found.difference(),
        unit: "µs",
        ..Row::ratio(what, &found, Target::AtMost(1.5), micros)
    })
}
