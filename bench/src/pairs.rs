//! Server CPU of an acquire and its release: pipelined, and one at a time, from one connection.
//!
//! Each server also holds the [`OTHERS`](crate::ways::OTHERS).

use std::time::Instant;

use crate::Outcome;
use crate::hosts::{AOF_SETTINGS, Host, Hosts};
use crate::measure::{Figures, ROUNDS, alternate, cpu_of, interleave};
use crate::measured::pipeline;
use crate::results::{Chart, Unit};
use crate::ways::{Place, Way};

/// The titles of the charts.
pub const PLAIN: &str = "acquire + release, no AOF";
pub const AOF: &str = "acquire + release, AOF everysec";
pub const ALONE: &str = "acquire, then release, without a pipeline";
pub const ALONE_CPU: &str = "acquire, then release, without a pipeline: the server";

/// Locks that one pipeline acquires and releases.
const PIPELINE: usize = 1_000;
/// Pipelines between two readings of the server's clock: so many that the reading hardly counts.
const AT_ONCE: usize = 5;
/// Readings of a round.
const STEPS: usize = 8;

/// Those that are compared without a pipeline: the ways that check the token.
const CHECKED: [Way; 3] = [Way::Ours, Way::Script, Way::DelIfEq];
/// Pairs of a round without a pipeline, each with one of [`PIPELINE`] locks.
const ALONE_PAIRS: usize = 5_000;
/// Many rounds, because they are short.
const ALONE_ROUNDS: usize = 21;

pub fn measure() -> Outcome<Vec<Chart>> {
    let mut plain = start(&[])?;
    let mut charts = vec![compare(PLAIN, &mut plain)?];
    charts.extend(compare_alone(&mut plain)?);
    drop(plain);
    charts.push(compare(AOF, &mut start(&AOF_SETTINGS)?)?);
    Ok(charts)
}

/// Servers that already hold other locks.
fn start(settings: &[&str]) -> Outcome<Hosts<Place>> {
    let mut hosts = Hosts::start(&Host::all(), |host| Place::start(host, settings))?;
    hosts.all_mut().try_for_each(Place::fill_with_locks)?;
    Ok(hosts)
}

fn compare(what: &str, hosts: &mut Hosts<Place>) -> Outcome<Chart> {
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

/// Two round trips for a pair: how long they take for the client, and the CPU time of the server.
fn compare_alone(hosts: &mut Hosts<Place>) -> Outcome<[Chart; 2]> {
    let measured = hosts.all().flat_map(|place| &place.ways.all);
    let measured: Vec<Way> = measured
        .copied()
        .filter(|way| CHECKED.contains(way))
        .collect();
    // The first commands are not measured.
    for way in &measured {
        hosts.of(way.host())?.pairs_alone(*way)?;
    }
    let mut cpu = vec![Figures::default(); measured.len()];
    let times = alternate(ALONE, ALONE_ROUNDS, measured.len(), |number| {
        let way = measured[number];
        let (time, used) = hosts.of(way.host())?.pairs_alone(way)?;
        cpu[number].push(used);
        Ok(time)
    })?;
    let named = |found: Vec<Figures>| {
        let names = measured.iter().map(|way| way.name().to_owned());
        names.zip(found).collect()
    };
    Ok([
        Chart::new(ALONE, Unit::Micros, named(times)),
        Chart::new(ALONE_CPU, Unit::MicrosOfCpu, named(cpu)),
    ])
}

impl Place {
    /// Acquires and releases one lock after the other, and waits for each reply: microseconds of a
    /// pair (the median), and of the server's CPU time (the mean).
    fn pairs_alone(&mut self, way: Way) -> Outcome<(f64, f64)> {
        let Self {
            connection,
            control,
            ways,
            ..
        } = self;
        let pairs: Vec<_> = (0..PIPELINE)
            .map(|number| {
                let acquire = ways.acquires(way, number..number + 1, "30000");
                (acquire, ways.releases(way, number..number + 1))
            })
            .collect();
        let mut times = Vec::with_capacity(ALONE_PAIRS);
        let used = cpu_of(control, || {
            for (acquire, release) in pairs.iter().cycle().take(ALONE_PAIRS) {
                let start = Instant::now();
                pipeline(connection, acquire, 1)?;
                pipeline(connection, release, 1)?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
            Ok(())
        })?;
        Ok((Figures::of(times).median(), used / ALONE_PAIRS as f64))
    }
}
