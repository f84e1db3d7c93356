//! Main-thread time of the LOCK.RELEASE that hands a lock over, when very many wait and when few
//! do.

use std::time::Duration;

use redislock_testkit::{Connection, Server, Value, encode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Outcome;
use crate::measure::{ROUNDS, Side, alternate};
use crate::measured::{self, check_yes, connect_unix, pipeline, put};
use crate::report::{Row, Target, micros};

/// Many and few.
const MANY: usize = 10_000;
const FEW: usize = 10;
/// Hand-overs of each round.
const HANDOVERS: usize = 1_000;

pub fn measure() -> Outcome<Vec<Row>> {
    allow_files(MANY + 200)?;
    let server = measured::start(&[
        "maxclients 10100",
        "lock.max-waiters 100000",
        "slowlog-max-len 100000",
        "slowlog-log-slower-than -1",
    ])?;
    let mut control = server.try_connect()?;
    // All of them stay connected all the time, so that only the waiting differs.
    let mut connections = (0..MANY)
        .map(|_| Waiting::connect(&server))
        .collect::<Outcome<Vec<_>>>()?;
    let places: [(&str, Place); 2] = [("one key", Place::OneKey), ("a key each", Place::KeyEach)];
    let mut rows = Vec::new();
    for (how, place) in places {
        rows.push(compare(
            format!("release with {MANY} waiters on {how}, over {FEW}"),
            Target::AtMost(1.2),
            &mut connections,
            |waiting| hand_over(&mut control, waiting, place),
        )?);
    }
    rows.push(compare(
        format!("LPUSH with {MANY} in BLPOP on a key each, over {FEW}"),
        Target::None,
        &mut connections,
        |waiting| push(&mut control, waiting),
    )?);
    Ok(rows)
}

/// With many waiting, over the same with few.
fn compare(
    what: String,
    target: Target,
    connections: &mut [Waiting],
    mut micros_of: impl FnMut(&mut [Waiting]) -> Outcome<f64>,
) -> Outcome<Row> {
    let found = alternate(&what, ROUNDS, |side| {
        let waiting = if side == Side::Ours { MANY } else { FEW };
        micros_of(connections.get_mut(..waiting).unwrap_or_default())
    })?;
    Ok(Row::ratio(what, &found, target, micros))
}

/// Where the connections wait.
#[derive(Clone, Copy)]
enum Place {
    OneKey,
    KeyEach,
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
    let token = |number: usize| format!("waiter-{number:030}");
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

/// What the server itself needs for the like: microseconds of an LPUSH to a list for which one
/// connection waits, and the others for others.
fn push(control: &mut Connection, waiting: &mut [Waiting]) -> Outcome<f64> {
    let key = |number: usize| format!("list:{number:06}");
    let pop = |number: usize| encode(&["BLPOP", &key(number), "0"]);
    for (number, waiter) in waiting.iter_mut().enumerate() {
        waiter.connection.try_send_raw(&pop(number))?;
    }
    let all = waiting.len() as f64;
    while control
        .try_info("clients")?
        .number::<f64>("blocked_clients")?
        != all
    {
        std::thread::sleep(Duration::from_millis(1));
    }
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

fn start_timing(control: &mut Connection) -> Outcome<()> {
    control.try_call(&["SLOWLOG", "RESET"])?;
    control.try_call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"])?;
    Ok(())
}

/// The mean time of a command in SLOWLOG, without the slowest tenth: those in which the machine did
/// something else.
fn mean_time(control: &mut Connection, name: &str) -> Outcome<f64> {
    control.try_call(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"])?;
    let Value::Array(entries) = control.try_call(&["SLOWLOG", "GET", "-1"])? else {
        return Err("SLOWLOG GET: no array".into());
    };
    let mut times: Vec<i64> = entries
        .iter()
        .filter_map(|entry| time_of(entry, name))
        .collect();
    if times.len() != HANDOVERS {
        return Err(format!("SLOWLOG has {} times {name}", times.len()).into());
    }
    times.sort_unstable();
    times.truncate(HANDOVERS * 9 / 10);
    Ok(times.iter().sum::<i64>() as f64 / times.len() as f64)
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
    await_waiters(control, 0)
}

fn take(control: &mut Connection, key: &str, token: &str) -> Outcome<()> {
    check_yes(&control.try_call(&["LOCK.ACQUIRE", key, token, "600000"])?)
}

pub fn await_waiters(control: &mut Connection, number: usize) -> Outcome<()> {
    while waiters(control)? != number {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn grants(control: &mut Connection) -> Outcome<usize> {
    Ok(control
        .try_info("lock_stats")?
        .number::<f64>("lock_grants")? as usize)
}

fn waiters(control: &mut Connection) -> Outcome<usize> {
    Ok(control
        .try_info("lock_state")?
        .number::<f64>("lock_waiters")? as usize)
}

/// Lets this process have so many files open, and the server that it starts.
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
