//! Memory of a held lock, compared with the same lock as a string with PX; and of a connection
//! that waits, compared with one in BLPOP.

use redislock_testkit::{Connection, Server, encode};

use crate::Outcome;
use crate::hosts::connect_unix;
use crate::measure::alternate;
use crate::measured::{await_blocked, check_yes, pipeline};
use crate::results::{Chart, OURS, Unit, counted};
use crate::waiters::allow_files;
use crate::ways::{Way, Ways, name, token};

/// The titles of the charts.
pub const LOCK: &str = "a held lock";
pub const WAITER: &str = "a waiting request, in addition to its connection";
/// The alternatives.
pub const STRING: &str = "string with PX";
pub const BLPOP: &str = "BLPOP";

const LOCKS: usize = 200_000;
const PIPELINE: usize = 1_000;
const WAITERS: [usize; 3] = [100, 1_000, 10_000];
/// The figures hardly vary.
const ROUNDS: usize = 3;

pub fn measure() -> Outcome<Vec<Chart>> {
    // Connections, and what else this process and the server have open.
    allow_files(WAITERS[WAITERS.len() - 1] + 200)?;
    let ways = [Way::Ours, Way::Script, Way::Bare];
    let ways: Vec<_> = ways.into_iter().filter(|way| way.host().exists()).collect();
    let found = alternate("memory of a lock", ROUNDS, ways.len(), |way| {
        lock(ways[way])
    })?;
    let names = [OURS, STRING, Way::Bare.name()].map(str::to_owned);
    let locks = Chart::new(LOCK, Unit::Bytes, names.into_iter().zip(found).collect());
    let names = [OURS, BLPOP, Way::Bare.name()];
    let names = names.into_iter().take(ways.len());
    let mut waiters = Chart::curve(WAITER, Unit::Bytes, "waiters", names);
    for number in WAITERS {
        let what = format!("memory of a waiter, {}", counted(number as u64, "waiters"));
        alternate(&what, ROUNDS, ways.len(), |way| {
            let figure = waiter(ways[way], number)?;
            waiters.add(way, number as u64, figure);
            Ok(figure)
        })?;
    }
    Ok(vec![locks, waiters])
}

pub fn used_memory(connection: &mut Connection) -> Outcome<f64> {
    Ok(connection
        .try_info("memory")?
        .number::<f64>("used_memory")?)
}

/// Bytes per lock, on a fresh server: memory that an earlier round leaves allocated would hide
/// what the next one needs.
fn lock(way: Way) -> Outcome<f64> {
    let server = way.host().start(&[])?;
    let mut connection = server.try_connect()?;
    let ways = Ways::of(way.host(), &mut connection)?;
    let before = used_memory(&mut connection)?;
    for start in (0..LOCKS).step_by(PIPELINE) {
        let acquires = ways.acquires(way, start..start + PIPELINE, "600000");
        pipeline(&mut connection, &acquires, PIPELINE)?;
    }
    Ok((used_memory(&mut connection)? - before) / LOCKS as f64)
}

/// Bytes per waiting connection, minus those that it needs before it waits.
fn waiter(way: Way, number: usize) -> Outcome<f64> {
    let mut settings = vec!["maxclients 10200", "hz 1", "dynamic-hz no"];
    if way == Way::Ours {
        settings.push("lock.max-waiters 20000");
    }
    let server = way.host().start(&settings)?;
    let mut control = server.try_connect()?;
    // The server would make the buffers of waiting connections smaller while others still connect.
    check_yes(&control.try_call(&["DEBUG", "REPLYBUFFER", "RESIZING", "0"])?)?;
    let mut connections = connections(&server, number)?;
    let held = match way {
        Way::Ours => Some("LOCK.ACQUIRE"),
        Way::Bare => Some("BARE.ACQUIRE"),
        _ => None,
    };
    if let Some(acquire) = held {
        check_yes(&control.try_call(&[acquire, &name(0), "holder", "600000"])?)?;
    }
    let wait = |connection: &mut Connection, place| {
        let (name, token) = (name(0), token(place));
        connection.try_send_raw(&match way {
            Way::Ours => encode(&["LOCK.ACQUIRE", &name, &token, "600000", "BLOCK", "0"]),
            Way::Bare => encode(&["BARE.WAIT", &name, &token]),
            _ => encode(&["BLPOP", "list", "0"]),
        })
    };
    // What the first waiter allocates for all of them does not count.
    let mut first = connect(&server)?;
    wait(&mut first, number)?;
    await_blocked(&mut control, 1)?;
    let before = used_memory(&mut control)?;
    for (place, connection) in connections.iter_mut().enumerate() {
        wait(connection, place)?;
    }
    await_blocked(&mut control, number + 1)?;
    Ok((used_memory(&mut control)? - before) / number as f64)
}

/// A connection that has already sent a long request, so that its buffers grow no more.
fn connect(server: &Server) -> Outcome<Connection> {
    let filler = format!("{:0200}", 0);
    let mut connection = connect_unix(server)?;
    connection.try_call(&["PING", &filler])?;
    Ok(connection)
}

fn connections(server: &Server, number: usize) -> Outcome<Vec<Connection>> {
    (0..number).map(|_| connect(server)).collect()
}
