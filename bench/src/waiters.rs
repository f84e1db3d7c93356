//! Main-thread time of the LOCK.RELEASE that hands a lock over, with few and with very many
//! waiters, compared with what wakes other blocked clients.

mod in_core;

use redislock_testkit::{Connection, Server, Value, encode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::hosts::{Host, bare_module, connect_unix};
use crate::measure::progress;
use crate::measured::{await_blocked, await_waiters, check_yes, pipeline, put};
use crate::results::{Chart, OURS, Unit};
use crate::ways::Way;
use crate::{Outcome, Scale, up_to};

/// The titles of the charts.
pub const ONE_KEY: &str = "hand-over while all wait for one key";
pub const KEY_EACH: &str = "hand-over while each waits for its own key";
pub const ONE_KEY_IN_CORE: &str = "the part of core while all wait for one key";
pub const KEY_EACH_IN_CORE: &str = "the part of core while each waits for its own key";
/// An alternative, besides the bare module.
pub const LPUSH: &str = "LPUSH to a client in BLPOP";

/// 19,000 connections need a little less than the 20,000 files that many systems allow.
pub const SIZES: [usize; 6] = [10, 100, 1_000, 10_000, 19_000, 50_000];
const ROUNDS: usize = 5;
/// Hand-overs of each round.
const HANDOVERS: usize = 1_000;

/// Whether only the growth of these curves can be compared: SLOWLOG does not contain the time in
/// which the server passes an element on, after LPUSH.
pub fn compares_growth(chart: &Chart) -> bool {
    chart
        .alternatives
        .iter()
        .any(|alternative| alternative.name == LPUSH)
}

pub fn measure(scale: &Scale) -> Outcome<Vec<Chart>> {
    let mut charts = with_connections(scale)?;
    charts.extend(in_core(scale)?);
    Ok(charts)
}

/// The part of core, which needs no connections.
fn in_core(scale: &Scale) -> Outcome<Vec<Chart>> {
    let places = [
        (ONE_KEY_IN_CORE, Place::OneKey),
        (KEY_EACH_IN_CORE, Place::KeyEach),
    ];
    let mut charts = Vec::new();
    for (title, place) in places {
        let mut chart = Chart::curve(title, Unit::Micros, "waiters", [OURS]);
        for round in 0..ROUNDS {
            progress(&format!("{title}: round {} of {ROUNDS}", round + 1));
            for size in up_to(&SIZES, scale.waiters) {
                chart.add(0, size as u64, in_core::hand_over(size, place)?);
            }
        }
        charts.push(chart);
    }
    Ok(charts)
}

fn with_connections(scale: &Scale) -> Outcome<Vec<Chart>> {
    let sizes = up_to(&SIZES, scale.waiters).into_iter();
    let sizes: Vec<_> = sizes.take_while(|size| has_files(size + 200)).collect();
    let most = sizes.last().copied().ok_or("too few open files")?;
    if most < scale.waiters {
        progress("");
        eprintln!("waiters: {most} connections at most, see `ulimit -Hn`");
    }
    let maxclients = format!("maxclients {}", most + 100);
    let mut settings = vec![
        maxclients,
        "lock.max-waiters 100000".to_owned(),
        "slowlog-max-len 100000".to_owned(),
        "slowlog-log-slower-than -1".to_owned(),
    ];
    let mut names = vec![OURS, LPUSH];
    // On the same server, because there are not enough files for as many connections to another.
    if let Some(library) = bare_module() {
        settings.push(format!("loadmodule {}", library.display()));
        names.push(Way::Bare.name());
    }
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let server = Host::Redislock.start(&settings)?;
    let mut control = server.try_connect()?;
    // All of them stay connected all the time, so that only the waiting differs.
    let mut connections = (0..most)
        .map(|_| Waiting::connect(&server))
        .collect::<Outcome<Vec<_>>>()?;
    let places = [(ONE_KEY, Place::OneKey), (KEY_EACH, Place::KeyEach)];
    let mut charts = Vec::new();
    for (title, place) in places {
        let mut chart = Chart::curve(title, Unit::Micros, "waiters", names.clone());
        for round in 0..ROUNDS {
            for size in &sizes {
                progress(&format!("{title}, {size}: round {} of {ROUNDS}", round + 1));
                let waiting = connections.get_mut(..*size).unwrap_or_default();
                for turn in 0..names.len() {
                    let which = (round + turn) % names.len();
                    let figure = match which {
                        0 => hand_over(&mut control, waiting, place)?,
                        1 => push(&mut control, waiting, place)?,
                        _ => pass(&mut control, waiting, place)?,
                    };
                    chart.add(which, *size as u64, figure);
                }
            }
        }
        charts.push(chart);
    }
    Ok(charts)
}

/// Where the connections wait.
#[derive(Clone, Copy)]
enum Place {
    OneKey,
    KeyEach,
}

fn token(number: usize) -> String {
    format!("waiter-{number:030}")
}

/// A connection that waits.
struct Waiting {
    connection: Connection,
    id: String,
}

impl Waiting {
    fn connect(server: &Server) -> Outcome<Self> {
        let mut connection = connect_unix(server)?;
        match connection.try_call(&["CLIENT", "ID"])? {
            Value::Integer(id) => Ok(Self {
                connection,
                id: id.to_string(),
            }),
            other => Err(format!("CLIENT ID: {other:?}").into()),
        }
    }

    fn wait_for(&mut self, key: &str, token: &str) -> Outcome<()> {
        let words = ["LOCK.ACQUIRE", key, token, "600000", "BLOCK", "0"];
        Ok(self.connection.try_send_raw(&encode(&words))?)
    }

    fn is_granted(&mut self) -> Outcome<()> {
        match self.connection.try_receive()? {
            Value::Integer(_) => Ok(()),
            other => Err(format!("a waiter got {other:?}").into()),
        }
    }
}

/// Microseconds of a LOCK.RELEASE that hands over, as SLOWLOG has them, with all of `waiting`
/// waiting.
fn hand_over(control: &mut Connection, waiting: &mut [Waiting], place: Place) -> Outcome<f64> {
    let key = |number: usize| match place {
        Place::OneKey => "waited".to_owned(),
        Place::KeyEach => format!("waited:{number:06}"),
    };
    let held = match place {
        Place::OneKey => 1,
        Place::KeyEach => waiting.len(),
    };
    let mut buffer = Vec::new();
    for number in 0..held {
        put(
            &mut buffer,
            &["LOCK.ACQUIRE", &key(number), "host", "600000"],
        );
    }
    pipeline(control, &buffer, held)?;
    for (number, waiter) in waiting.iter_mut().enumerate() {
        waiter.wait_for(&key(number), &token(number))?;
        // One after the other where the order matters.
        if matches!(place, Place::OneKey) && number % 256 == 255 {
            await_waiters(control, number + 1)?;
        }
    }
    await_waiters(control, waiting.len())?;
    start_timing(control)?;
    let granted_before = grants(control)?;
    // On one key the waiter that was served last holds the lock, and comes again when it has
    // released it.
    let mut holder = None;
    for turn in 0..HANDOVERS {
        let number = turn % waiting.len();
        let key = key(number);
        let releasing = holder.map_or_else(|| "host".to_owned(), token);
        check_yes(&control.try_call(&["LOCK.RELEASE", &key, &releasing])?)?;
        let next = waiting.get_mut(number).ok_or("nobody waits")?;
        next.is_granted()?;
        match place {
            Place::OneKey => {
                if let Some(number) = holder.replace(number) {
                    let again = waiting.get_mut(number).ok_or("nobody comes again")?;
                    again.wait_for(&key, &token(number))?;
                }
            }
            Place::KeyEach => {
                check_yes(&control.try_call(&["LOCK.FORCE", &key])?)?;
                take(control, &key, "host")?;
                next.wait_for(&key, &token(number))?;
            }
        }
    }
    let (left, by_host) = match place {
        Place::OneKey => (waiting.len() - 1, 0),
        Place::KeyEach => (waiting.len(), HANDOVERS),
    };
    await_waiters(control, left)?;
    if grants(control)? - granted_before != HANDOVERS + by_host {
        return Err("a release has woken more than one".into());
    }
    let micros = mean_time(control, "LOCK.RELEASE")?;
    end_waits(control, waiting, holder)?;
    control.try_call(&["FLUSHALL"])?;
    Ok(micros)
}

/// What the server itself needs to wake a waiter: microseconds of an LPUSH for a connection
/// in BLPOP. It runs on the same server: SLOWLOG has the time of the command alone, in which the
/// server does not call our module.
fn push(control: &mut Connection, waiting: &mut [Waiting], place: Place) -> Outcome<f64> {
    let key = |number: usize| match place {
        Place::OneKey => "list".to_owned(),
        Place::KeyEach => format!("list:{number:06}"),
    };
    let pop = |number: usize| encode(&["BLPOP", &key(number), "0"]);
    for (number, waiter) in waiting.iter_mut().enumerate() {
        waiter.connection.try_send_raw(&pop(number))?;
        // One after the other where the order matters.
        if matches!(place, Place::OneKey) && number % 256 == 255 {
            await_blocked(control, number + 1)?;
        }
    }
    await_blocked(control, waiting.len())?;
    start_timing(control)?;
    for turn in 0..HANDOVERS {
        let number = turn % waiting.len();
        check_yes(&control.try_call(&["LPUSH", &key(number), "x"])?)?;
        let next = waiting.get_mut(number).ok_or("nobody waits")?;
        match next.connection.try_receive()? {
            Value::Array(popped) if popped.len() == 2 => {}
            other => return Err(format!("a waiter popped {other:?}").into()),
        }
        next.connection.try_send_raw(&pop(number))?;
    }
    let micros = mean_time(control, "LPUSH")?;
    end_waits(control, waiting, None)?;
    Ok(micros)
}

/// The same hand-over by the bare module, which has one queue for all keys: microseconds of a
/// BARE.PASS. It does not call our module, which does not listen to events of modules.
fn pass(control: &mut Connection, waiting: &mut [Waiting], place: Place) -> Outcome<f64> {
    let key = |number: usize| match place {
        Place::OneKey => "bare".to_owned(),
        Place::KeyEach => format!("bare:{number:06}"),
    };
    let held = match place {
        Place::OneKey => 1,
        Place::KeyEach => waiting.len(),
    };
    let for_all = |words: &dyn Fn(&str) -> Vec<u8>| {
        let keys = (0..held).map(|number| words(&key(number)));
        keys.collect::<Vec<_>>().concat()
    };
    let wait = |number: usize| encode(&["BARE.WAIT", &key(number), &token(number)]);
    let acquires = for_all(&|key| encode(&["BARE.ACQUIRE", key, "host", "600000"]));
    pipeline(control, &acquires, held)?;
    for (number, waiter) in waiting.iter_mut().enumerate() {
        waiter.connection.try_send_raw(&wait(number))?;
        // One after the other, because the order matters for each key.
        if number % 256 == 255 {
            await_blocked(control, number + 1)?;
        }
    }
    await_blocked(control, waiting.len())?;
    start_timing(control)?;
    let mut holder = None;
    for turn in 0..HANDOVERS {
        let number = turn % waiting.len();
        check_yes(&control.try_call(&["BARE.PASS", &key(number), "host"])?)?;
        waiting
            .get_mut(number)
            .ok_or("nobody waits")?
            .is_granted()?;
        let comes_again = match place {
            Place::OneKey => holder.replace(number),
            Place::KeyEach => Some(number),
        };
        if let Some(number) = comes_again {
            let again = waiting.get_mut(number).ok_or("nobody comes again")?;
            again.connection.try_send_raw(&wait(number))?;
        }
    }
    await_blocked(control, waiting.len() - usize::from(holder.is_some()))?;
    let micros = mean_time(control, "BARE.PASS")?;
    end_waits(control, waiting, holder)?;
    let releases = for_all(&|key| encode(&["BARE.RELEASE", key, "host"]));
    pipeline(control, &releases, held)?;
    Ok(micros)
}

fn start_timing(control: &mut Connection) -> Outcome<()> {
    control.try_call(&["SLOWLOG", "RESET"])?;
    control.try_call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"])?;
    Ok(())
}

/// The mean time of a command in SLOWLOG, without the slowest tenth, in which the machine did
/// other work.
fn mean_time(control: &mut Connection, name: &str) -> Outcome<f64> {
    control.try_call(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"])?;
    let Value::Array(entries) = control.try_call(&["SLOWLOG", "GET", "-1"])? else {
        return Err("SLOWLOG GET: no array".into());
    };
    let times = entries.iter().filter_map(|entry| time_of(entry, name));
    let times: Vec<_> = times.map(|time| time as f64).collect();
    if times.len() != HANDOVERS {
        return Err(format!("SLOWLOG has {} times {name}", times.len()).into());
    }
    Ok(mean_of_most(times))
}

/// The mean without the highest tenth.
fn mean_of_most(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.truncate(times.len() * 9 / 10);
    times.iter().sum::<f64>() / times.len() as f64
}

/// Microseconds of an entry of SLOWLOG, if it is of this command.
fn time_of(entry: &Value, name: &str) -> Option<i64> {
    let Value::Array(fields) = entry else {
        return None;
    };
    match (fields.get(2)?, fields.get(3)?) {
        (Value::Integer(micros), Value::Array(words))
            if words.first() == Some(&Value::Bulk(name.as_bytes().to_vec())) =>
        {
            Some(*micros)
        }
        _ => None,
    }
}

/// Ends all waits; the one that holds the lock does not wait.
fn end_waits(
    control: &mut Connection,
    waiting: &mut [Waiting],
    holder: Option<usize>,
) -> Outcome<()> {
    let waiting = waiting
        .iter_mut()
        .enumerate()
        .filter(|(number, _)| holder != Some(*number));
    let mut waiting: Vec<_> = waiting.map(|(_, waiter)| waiter).collect();
    let mut buffer = Vec::new();
    for waiter in &waiting {
        put(&mut buffer, &["CLIENT", "UNBLOCK", &waiter.id]);
    }
    pipeline(control, &buffer, waiting.len())?;
    for waiter in &mut waiting {
        match waiter.connection.try_receive()? {
            Value::Null | Value::NullArray => {}
            other => return Err(format!("a waiter that was sent home got {other:?}").into()),
        }
    }
    await_waiters(control, 0)?;
    await_blocked(control, 0)
}

fn take(control: &mut Connection, key: &str, token: &str) -> Outcome<()> {
    check_yes(&control.try_call(&["LOCK.ACQUIRE", key, token, "600000"])?)
}

fn grants(control: &mut Connection) -> Outcome<usize> {
    Ok(control
        .try_info("lock_stats")?
        .number::<f64>("lock_grants")? as usize)
}

/// Whether this process, and the server that it starts, may open this many files. The limit is
/// raised if need be.
fn has_files(number: usize) -> bool {
    allow_files(number).is_ok()
}

/// Allows this process, and the server that it starts, to open this many files.
pub fn allow_files(number: usize) -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = number as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        if limit.maximum.is_some_and(|maximum| maximum < wanted) {
            return Err(format!("{number} open files are needed: raise `ulimit -Hn`").into());
        }
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(())
}
