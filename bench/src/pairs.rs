//! Server CPU of an acquire and its release, pipelined from one connection.

use crate::Outcome;
use crate::hosts::{AOF_SETTINGS, Host, Hosts};
use crate::measure::{ROUNDS, cpu_of, interleave};
use crate::measured::pipeline;
use crate::results::{Chart, Unit};
use crate::ways::{Place, Way};

/// The titles of the charts.
pub const PLAIN: &str = "acquire + release, no AOF";
pub const AOF: &str = "acquire + release, AOF everysec";

/// Locks that one pipeline acquires and releases.
const PIPELINE: usize = 1_000;
/// Pipelines between two readings of the server's clock: so many that the reading hardly counts.
const AT_ONCE: usize = 5;
/// Readings of a round.
const STEPS: usize = 8;

pub fn measure() -> Outcome<Vec<Chart>> {
    Ok(vec![compare(PLAIN, &[])?, compare(AOF, &AOF_SETTINGS)?])
}

fn compare(what: &str, settings: &[&str]) -> Outcome<Chart> {
    let mut hosts = Hosts::start(&Host::all(), |host| Place::start(host, settings))?;
    let mut pipelines: Vec<(Way, Vec<Vec<u8>>)> = Vec::new();
    for ways in hosts.all().map(|place| &place.ways) {
        let pairs = |way: Way| {
            let pair = |number: usize| {
                let locks = number * PIPELINE..(number + 1) * PIPELINE;
                let acquires = ways.acquires(way, locks.clone(), "30000");
                [acquires, ways.releases(way, locks)].concat()
            };
            (way, (0..AT_ONCE).map(pair).collect())
        };
        pipelines.extend(ways.all.iter().copied().map(pairs));
    }
    let mut cpu = |number: usize| {
        let (way, pipelines) = &pipelines[number];
        let place = hosts.of(way.host())?;
        let used = cpu_of(&mut place.control, || {
            let mut pipelines = pipelines.iter();
            pipelines.try_for_each(|bytes| pipeline(&mut place.connection, bytes, 2 * PIPELINE))
        })?;
        Ok(used / (AT_ONCE * PIPELINE) as f64)
    };
    // The first commands also allocate and load what later ones reuse: not measured.
    (0..pipelines.len()).try_for_each(|number| cpu(number).map(drop))?;
    let found = interleave(what, ROUNDS, STEPS, pipelines.len(), cpu)?;
    let names = pipelines.iter().map(|(way, _)| way.name().to_owned());
    let found = names.zip(found).collect();
    Ok(Chart::new(what, Unit::MicrosOfCpu, found))
}
