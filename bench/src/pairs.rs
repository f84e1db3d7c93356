//! Server CPU of an acquire and its release, pipelined from one connection.

use crate::Outcome;
use crate::locks::Wording;
use crate::measure::{ROUNDS, Side, cpu_of, interleave};
use crate::report::{Row, Target, micros};
use crate::server::Server;

/// Locks that one pipeline acquires and releases.
const PIPELINE: usize = 1_000;
/// Pipelines of a round.
const PIPELINES: usize = 30;

pub fn measure() -> Outcome<Vec<Row>> {
    Ok(vec![
        compare("acquire + release, no AOF", &[], 1.8)?,
        compare(
            "acquire + release, AOF everysec",
            &["appendonly yes", "appendfsync everysec"],
            1.5,
        )?,
    ])
}

fn compare(what: &str, settings: &[&str], target: f64) -> Outcome<Row> {
    let server = Server::start(settings)?;
    let (mut control, mut connection) = (server.connect()?, server.connect()?);
    let wording = Wording::new(&mut control)?;
    let pipelines = |side| -> Vec<Vec<u8>> {
        (0..PIPELINES)
            .map(|number| wording.pairs(side, number * PIPELINE..(number + 1) * PIPELINE))
            .collect()
    };
    let (ours, peer) = (pipelines(Side::Ours), pipelines(Side::Peer));
    let mut send = |side, number: usize| {
        let pipelines = if side == Side::Ours { &ours } else { &peer };
        let Some(bytes) = pipelines.get(number) else {
            return Ok(());
        };
        connection.pipeline(bytes, 2 * PIPELINE)
    };
    // What is done for the first time is no measure.
    send(Side::Ours, 0)?;
    send(Side::Peer, 0)?;
    let found = interleave(what, ROUNDS, PIPELINES, |side, number| {
        Ok(cpu_of(&mut control, || send(side, number))? / PIPELINE as f64)
    })?;
    Ok(Row::gain(what, &found, Target::AtLeast(target), micros))
}
