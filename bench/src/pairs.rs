//! Server CPU of an acquire and its release, pipelined from one connection.

use crate::Outcome;
use crate::measure::{ROUNDS, cpu_of, interleave};
use crate::measured::{self, pipeline};
use crate::results::{Chart, Unit};
use crate::ways::{Way, Ways, bare_module};

/// The titles of the charts.
pub const PLAIN: &str = "acquire + release, no AOF";
pub const AOF: &str = "acquire + release, AOF everysec";

/// Locks that one pipeline acquires and releases.
const PIPELINE: usize = 1_000;
/// Pipelines between two readings of the server's clock: so many that the reading hardly counts.
const AT_ONCE: usize = 5;
/// Readings of a round.
const STEPS: usize = 8;

/// The settings of a server that writes an AOF.
pub const AOF_SETTINGS: [&str; 2] = ["appendonly yes", "appendfsync everysec"];

pub fn measure() -> Outcome<Vec<Chart>> {
    Ok(vec![compare(PLAIN, &[])?, compare(AOF, &AOF_SETTINGS)?])
}

fn compare(what: &str, settings: &[&str]) -> Outcome<Chart> {
    let mut settings = settings.to_vec();
    let bare = bare_module(!settings.is_empty());
    settings.extend(bare.as_deref());
    let server = measured::start(&settings)?;
    let (mut control, mut connection) = (server.try_connect()?, server.try_connect()?);
    let ways = Ways::of(&mut control)?;
    let pipelines = |way: &Way| -> Vec<Vec<u8>> {
        let pair = |number: usize| {
            let locks = number * PIPELINE..(number + 1) * PIPELINE;
            let acquires = ways.acquires(*way, locks.clone(), "30000");
            [acquires, ways.releases(*way, locks)].concat()
        };
        (0..AT_ONCE).map(pair).collect()
    };
    let pipelines: Vec<_> = ways.all.iter().map(pipelines).collect();
    let mut send = |way: usize| {
        pipelines[way]
            .iter()
            .try_for_each(|bytes| pipeline(&mut connection, bytes, 2 * PIPELINE))
    };
    // The first commands also allocate and load what later ones reuse: not measured.
    (0..ways.all.len()).try_for_each(&mut send)?;
    let found = interleave(what, ROUNDS, STEPS, ways.all.len(), |way| {
        Ok(cpu_of(&mut control, || send(way))? / (AT_ONCE * PIPELINE) as f64)
    })?;
    let names = ways.all.iter().map(|way| way.name().to_owned());
    Ok(Chart::new(
        what,
        Unit::MicrosOfCpu,
        names.zip(found).collect(),
    ))
}
