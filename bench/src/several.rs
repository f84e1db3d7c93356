//! Several keys in one request, compared with a pipeline of requests; a guarded command, compared
//! with the command alone.

use redislock_testkit::Connection;

use crate::Outcome;
use crate::measure::{ROUNDS, cpu_of, interleave};
use crate::measured::{self, pipeline, put};
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Way, Ways, name, token};

/// The titles of the charts.
pub const SEVERAL: &str = "acquire + release of 8 keys";
pub const GUARDED: &str = "a guarded SET";
/// The alternatives.
pub const ONE_BY_ONE: &str = "8 × redislock in a pipeline";
pub const SET: &str = "SET alone";

/// Keys of a request.
const KEYS: usize = 8;
/// Requests of a pipeline.
const REQUESTS: usize = 250;
/// Commands of a pipeline that is guarded.
const COMMANDS: usize = 4_000;
/// Pipelines of each round.
const PIPELINES: usize = 20;

pub fn measure() -> Outcome<Vec<Chart>> {
    let server = measured::start(&[])?;
    let (mut control, mut connection) = (server.try_connect()?, server.try_connect()?);
    Ok(vec![
        several(&mut control, &mut connection)?,
        guarded(&mut control, &mut connection)?,
    ])
}

fn several(control: &mut Connection, connection: &mut Connection) -> Outcome<Chart> {
    let ways = Ways::of(control)?;
    let pairs = |way| {
        let locks = 0..REQUESTS * KEYS;
        [
            ways.acquires(way, locks.clone(), "30000"),
            ways.releases(way, locks),
        ]
        .concat()
    };
    let requests = [
        (together(), 2 * REQUESTS),
        (pairs(Way::Ours), 2 * REQUESTS * KEYS),
        (pairs(Way::Script), 2 * REQUESTS * KEYS),
    ];
    let mut send = |which: usize| {
        let (bytes, replies) = &requests[which];
        pipeline(connection, bytes, *replies)
    };
    (0..requests.len()).try_for_each(&mut send)?;
    let found = interleave(SEVERAL, ROUNDS, PIPELINES, requests.len(), |which| {
        Ok(cpu_of(control, || send(which))? / REQUESTS as f64)
    })?;
    let names = [OURS, ONE_BY_ONE, "8 × SET NX PX + EVALSHA in a pipeline"].map(str::to_owned);
    let found = names.into_iter().zip(found).collect();
    Ok(Chart::new(SEVERAL, Unit::MicrosOfCpu, found))
}

/// Acquires all keys, eight in each request, then releases them.
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

fn guarded(control: &mut Connection, connection: &mut Connection) -> Outcome<Chart> {
    let (guard, token) = ("guard", token(0));
    control.try_call(&["LOCK.ACQUIRE", guard, &token, "600000"])?;
    let mut requests = [Vec::new(), Vec::new()];
    for number in 0..COMMANDS {
        let name = format!("counter:{:03}", number % 1000);
        put(
            &mut requests[0],
            &["LOCK.GUARD", guard, &token, "SET", &name, "value"],
        );
        put(&mut requests[1], &["SET", &name, "value"]);
    }
    let mut send = |which: usize| pipeline(connection, &requests[which], COMMANDS);
    (0..2).try_for_each(&mut send)?;
    let found = interleave(GUARDED, ROUNDS, PIPELINES, 2, |which| {
        Ok(cpu_of(control, || send(which))? / COMMANDS as f64)
    })?;
    let names = [OURS, SET].map(str::to_owned);
    let found = names.into_iter().zip(found).collect();
    Ok(Chart::new(GUARDED, Unit::MicrosOfCpu, found))
}
