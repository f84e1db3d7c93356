//! Several keys in one request, compared with a pipeline of requests; a guarded command, compared
//! with the command alone.

use crate::Outcome;
use crate::hosts::{Host, Hosts};
use crate::measure::{Figures, ROUNDS, cpu_of, interleave};
use crate::measured::{check_yes, pipeline, put};
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Place, Way, name, token};

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
    let hosts = [Host::Redislock, Host::Plain];
    let mut hosts = Hosts::start(&hosts, |host| Place::start(host, &[]))?;
    Ok(vec![several(&mut hosts)?, guarded(&mut hosts)?])
}

/// A pipeline, the host that it is for, and the number of its replies.
type Request = (Host, Vec<u8>, usize);

/// Server CPU of each request, divided by `parts`.
fn compare(
    title: &str,
    hosts: &mut Hosts<Place>,
    requests: &[Request],
    parts: usize,
) -> Outcome<Vec<Figures>> {
    let mut cpu = |which: usize| {
        let (host, bytes, replies) = &requests[which];
        let place = hosts.of(*host)?;
        let send = || pipeline(&mut place.connection, bytes, *replies);
        Ok(cpu_of(&mut place.control, send)? / parts as f64)
    };
    // The first commands also allocate what later ones reuse: not measured.
    (0..requests.len()).try_for_each(|which| cpu(which).map(drop))?;
    interleave(title, ROUNDS, PIPELINES, requests.len(), cpu)
}

fn several(hosts: &mut Hosts<Place>) -> Outcome<Chart> {
    let mut pairs = |way: Way| -> Outcome<Request> {
        let ways = &hosts.of(way.host())?.ways;
        let locks = 0..REQUESTS * KEYS;
        let acquires = ways.acquires(way, locks.clone(), "30000");
        let bytes = [acquires, ways.releases(way, locks)].concat();
        Ok((way.host(), bytes, 2 * REQUESTS * KEYS))
    };
    let requests = [
        (Host::Redislock, together(), 2 * REQUESTS),
        pairs(Way::Ours)?,
        pairs(Way::Script)?,
    ];
    let found = compare(SEVERAL, hosts, &requests, REQUESTS)?;
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

fn guarded(hosts: &mut Hosts<Place>) -> Outcome<Chart> {
    let (guard, token) = ("guard", token(0));
    let control = &mut hosts.of(Host::Redislock)?.control;
    check_yes(&control.try_call(&["LOCK.ACQUIRE", guard, &token, "600000"])?)?;
    let mut bytes = [Vec::new(), Vec::new()];
    for number in 0..COMMANDS {
        let name = format!("counter:{:03}", number % 1000);
        put(
            &mut bytes[0],
            &["LOCK.GUARD", guard, &token, "SET", &name, "value"],
        );
        put(&mut bytes[1], &["SET", &name, "value"]);
    }
    let [guarded, alone] = bytes;
    let requests = [
        (Host::Redislock, guarded, COMMANDS),
        (Host::Plain, alone, COMMANDS),
    ];
    let found = compare(GUARDED, hosts, &requests, COMMANDS)?;
    let names = [OURS, SET].map(str::to_owned);
    let found = names.into_iter().zip(found).collect();
    Ok(Chart::new(GUARDED, Unit::MicrosOfCpu, found))
}
