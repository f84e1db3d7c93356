//! The cost of each operation with more and more locks, compared with as many strings with PX, and
//! for an acquire and its release also with as many locks of the bare module.

use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Value};

use crate::measure::{cpu_of, progress};
use crate::measured::{check_yes, pipeline};
use crate::memory::{STRING, used_memory};
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Place, Way, Ways};
use crate::{Outcome, Scale, up_to};

/// The titles of the charts; all figures are per lock.
pub const PAIR: &str = "acquire + release among N locks";
pub const MEMORY: &str = "memory";
pub const SAVE: &str = "RDB save";
pub const LOAD: &str = "RDB load";
pub const EXPIRY: &str = "removing leases that end together, per lease";
pub const SLICE: &str = "longest slice of removing ended leases";

pub const SIZES: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const ROUNDS: usize = 3;
/// The largest size takes so long that it is measured once.
const ONCE_FROM: usize = 10_000_000;
const PIPELINE: usize = 1_000;
/// Locks that are acquired and released among the others.
const PAIRS: usize = 50_000;
/// Those that are compared by an acquire and its release.
const PAIRED: [Way; 4] = [Way::Ours, Way::Script, Way::Del, Way::Bare];
/// What the servers are filled with.
const FILLED: [Way; 3] = [Way::Ours, Way::Script, Way::Bare];
/// Loads what SAVE has saved into a server that is empty.
pub const RELOAD: [&str; 4] = ["DEBUG", "RELOAD", "NOSAVE", "NOFLUSH"];
/// If the used memory has not fallen for this long, freeing is over.
const STILL: Duration = Duration::from_millis(500);
/// Memory that an empty server may use more than before: buffers, and tables that stay.
const ROOM: f64 = 400_000.0;
/// The longest that freeing may take; that of five million locks takes half a minute.
const FREEING: Duration = Duration::from_secs(300);

pub fn measure(scale: &Scale) -> Outcome<Vec<Chart>> {
    let is_there = |way: &Way| way.host().exists();
    let filled: Vec<_> = FILLED.into_iter().filter(is_there).collect();
    let names = PAIRED.into_iter().filter(is_there).map(Way::name);
    let curve = |title, unit| Chart::curve(title, unit, "locks", [OURS, STRING]);
    let mut charts = Charts {
        pair: Chart::curve(PAIR, Unit::MicrosOfCpu, "locks", names),
        memory: curve(MEMORY, Unit::Bytes),
        save: curve(SAVE, Unit::MicrosOfCpu),
        load: curve(LOAD, Unit::MicrosOfCpu),
        expiry: curve(EXPIRY, Unit::Micros),
        slice: Chart::curve(SLICE, Unit::Micros, "locks", [OURS]),
    };
    for size in up_to(&SIZES, scale.locks) {
        let rounds = if size >= ONCE_FROM { 1 } else { ROUNDS };
        for round in 0..rounds {
            for turn in 0..filled.len() {
                let way = filled[(round + turn) % filled.len()];
                progress(&format!(
                    "growth, {size} locks: round {} of {rounds}, {}",
                    round + 1,
                    if way == Way::Script {
                        STRING
                    } else {
                        way.name()
                    }
                ));
                charts.round(way, size, round)?;
            }
        }
    }
    let Charts {
        pair,
        memory,
        save,
        load,
        expiry,
        slice,
    } = charts;
    Ok(vec![pair, memory, save, load, expiry, slice])
}

struct Charts {
    pair: Chart,
    memory: Chart,
    save: Chart,
    load: Chart,
    expiry: Chart,
    slice: Chart,
}

impl Charts {
    /// One way with this many locks, on a fresh server.
    fn round(&mut self, way: Way, size: usize, round: usize) -> Outcome<()> {
        let Place {
            server: _server,
            mut control,
            mut connection,
            ways,
        } = Place::start(way.host(), &[])?;
        let (at, each) = (size as u64, size as f64);

        let before = used_memory(&mut control)?;
        fill(&mut connection, &ways, way, 0..size, || {
            Some("3600000".to_owned())
        })?;
        let used = used_memory(&mut control)? - before;

        // A string can be released in two ways.
        let mut paired: Vec<_> = PAIRED
            .iter()
            .enumerate()
            .filter(|(_, paired)| paired.host() == way.host())
            .collect();
        let first = round % paired.len();
        paired.rotate_left(first);
        for (number, paired) in paired {
            let among = pairs(&mut control, &mut connection, &ways, *paired, size)?;
            self.pair.add(number, at, among);
        }
        let which = match way {
            Way::Ours => 0,
            Way::Script => 1,
            // The bare module has no leases, and other sections have its memory and its files.
            _ => return Ok(()),
        };
        self.memory.add(which, at, used / each);
        // A little of what very many locks used stays.
        let before = before + used / 100.0;

        let call = |control: &mut Connection, words: &[&str]| check_yes(&control.try_call(words)?);
        let save = cpu_of(&mut control, || call(&mut connection, &["SAVE"]))?;
        self.save.add(which, at, save / each);

        empty(&mut connection, before)?;
        let load = cpu_of(&mut control, || call(&mut connection, &RELOAD))?;
        if keys(&mut connection)? != size as i64 {
            return Err("not all locks were loaded".into());
        }
        self.load.add(which, at, load / each);

        empty(&mut connection, before)?;
        let seconds = until_gone(&mut connection, &ways, way, size)?;
        self.expiry.add(which, at, seconds * 1e6 / each);
        if way == Way::Ours {
            let state = connection.try_info("lock_state")?;
            let slice = state.number::<f64>("lock_longest_expiry_slice_cpu_us")?;
            self.slice.add(0, at, slice);
        }
        Ok(())
    }
}

/// Acquires a range of locks with the lease that `ttl` returns; false if it returns none.
fn fill(
    connection: &mut Connection,
    ways: &Ways,
    way: Way,
    numbers: std::ops::Range<usize>,
    ttl: impl Fn() -> Option<String>,
) -> Outcome<bool> {
    for start in numbers.clone().step_by(PIPELINE) {
        let Some(ttl) = ttl() else {
            return Ok(false);
        };
        let part = start..numbers.end.min(start + PIPELINE);
        let acquires = ways.acquires(way, part.clone(), &ttl);
        pipeline(connection, &acquires, part.len())?;
    }
    Ok(true)
}

/// Server CPU of an acquire and its release, of locks that are not among the `size` first ones.
fn pairs(
    control: &mut Connection,
    connection: &mut Connection,
    ways: &Ways,
    way: Way,
    size: usize,
) -> Outcome<f64> {
    let parts = (0..PAIRS / PIPELINE).map(|part| size + part * PIPELINE);
    let parts = parts.map(|start| start..start + PIPELINE);
    let requests: Vec<_> = parts
        .map(|part| {
            [
                ways.acquires(way, part.clone(), "60000"),
                ways.releases(way, part),
            ]
            .concat()
        })
        .collect();
    let used = cpu_of(control, || {
        let mut requests = requests.iter();
        requests.try_for_each(|bytes| pipeline(connection, bytes, 2 * PIPELINE))
    })?;
    Ok(used / PAIRS as f64)
}

/// Seconds from a common deadline of this many leases until the last one is removed.
fn until_gone(connection: &mut Connection, ways: &Ways, way: Way, size: usize) -> Outcome<f64> {
    // Enough time to create all of them before they end, also on a busy machine.
    let mut room = Duration::from_micros(size as u64 * 8) + Duration::from_millis(500);
    loop {
        check_yes(&connection.try_call(&["FLUSHALL"])?)?;
        let deadline = Instant::now() + room;
        let ttl = || {
            let left = deadline.saturating_duration_since(Instant::now());
            (!left.is_zero()).then(|| left.as_millis().max(1).to_string())
        };
        let made = fill(connection, ways, way, 0..size, ttl)?;
        if made && Instant::now() < deadline && keys(connection)? == size as i64 {
            return gone(connection, deadline);
        }
        room *= 2;
    }
}

/// Seconds from the deadline until the last one is removed.
fn gone(connection: &mut Connection, deadline: Instant) -> Outcome<f64> {
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    let start = Instant::now();
    while keys(connection)? > 0 {
        if start.elapsed() > Duration::from_secs(600) {
            return Err("not all are gone ten minutes later".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Removes all keys, and waits until the server has finished: flushed locks are forgotten in
/// slices, which would count towards the next measurement. Their memory is freed only at the end,
/// so the used memory must also fall to what it was before, with a little room.
pub fn empty(connection: &mut Connection, before: f64) -> Outcome<()> {
    check_yes(&connection.try_call(&["FLUSHALL"])?)?;
    let start = Instant::now();
    let mut used = used_memory(connection)?;
    loop {
        std::thread::sleep(STILL);
        let now = used_memory(connection)?;
        if now >= used && now < before + ROOM {
            return Ok(());
        }
        if start.elapsed() > FREEING {
            return Err(format!("{now} bytes are used after FLUSHALL, {before} before").into());
        }
        used = now;
    }
}

/// The number of keys, including expired ones that have not been removed.
pub fn keys(connection: &mut Connection) -> Outcome<i64> {
    match connection.try_call(&["DBSIZE"])? {
        Value::Integer(size) => Ok(size),
        other => Err(format!("DBSIZE: {other:?}").into()),
    }
}
