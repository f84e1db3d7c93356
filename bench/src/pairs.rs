//! Server CPU of an acquire and its release, pipelined from one connection.

use crate::Outcome;
use crate::locks::Wording;
use crate::measure::{ROUNDS, Side, cpu_of, interleave};
use crate::measured::{self, pipeline};
use crate::report::{Row, Target, micros};

/// Locks that one pipeline acquires and releases.
const PIPELINE: usize = 1_000;
/// Pipelines between two readings of the server's clock: so many that the reading hardly counts.
const AT_ONCE: usize = 5;
/// Readings of a round.
const STEPS: usize = 8;

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
    let server = measured::start(settings)?;
    let (mut control, mut connection) = (server.try_connect()?, server.try_connect()?);
    let wording = Wording::new(&mut control)?;
    let pipelines = |side| -> Vec<Vec<u8>> {
        (0..AT_ONCE)
            .map(|number| wording.pairs(side, number * PIPELINE..(number + 1) * PIPELINE))
            .collect()
    };
    let (ours, peer) = (pipelines(Side::Ours), pipelines(Side::Peer));
    let mut send = |side| {
        let pipelines = if side == Side::Ours { &ours } else { &peer };
        pipelines
            .iter()
            .try_for_each(|bytes| pipeline(&mut connection, bytes, 2 * PIPELINE))
    };
    // What is done for the first time is no measure.
    send(Side::Ours)?;
    send(Side::Peer)?;
    let found = interleave(what, ROUNDS, STEPS, |side| {
        Ok(cpu_of(&mut control, || send(side))? / (AT_ONCE * PIPELINE) as f64)
    })?;
    Ok(Row::gain(what, &found, Target::AtLeast(target), micros))
}
