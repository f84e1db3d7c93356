//! Memory of a held lock, compared with the same lock as a string with PX; and of a connection
//! that waits, compared with one in BLPOP.

use std::time::Duration;

use redislock_testkit::{Connection, Server, encode};

use crate::Outcome;
use crate::measure::alternate;
use crate::measured::{self, connect_unix, pipeline};
use crate::results::{Chart, OURS, Unit};
use crate::ways::{Way, Ways, bare_module, name, token};

/// The titles of the charts.
pub const LOCK: &str = "a held lock";
pub const WAITER: &str = "a waiting request, in addition to its connection";
/// The alternatives.
pub const STRING: &str = "string with PX";
pub const BLPOP: &str = "BLPOP";

const LOCKS: usize = 200_000;
const PIPELINE: usize = 1_000;
const WAITERS: usize = 1_000;
/// The figures hardly vary.
const ROUNDS: usize = 3;

pub fn measure() -> Outcome<Vec<Chart>> {
    let bare = bare_module(false);
    let with_bare = usize::from(bare.is_some());
    let settings: Vec<_> = bare.iter().map(String::as_str).collect();
    let ways = [Way::Ours, Way::Script, Way::Bare];
    let found = alternate("memory of a lock", ROUNDS, 2 + with_bare, |way| {
        lock(&settings, ways[way])
    })?;
    let names = [OURS, STRING, Way::Bare.name()].map(str::to_owned);
    let locks = Chart::new(LOCK, Unit::Bytes, names.into_iter().zip(found).collect());
    let found = alternate("memory of a waiter", ROUNDS, 2 + with_bare, |way| {
        waiter(&settings, ways[way])
    })?;
    let names = [OURS, BLPOP, Way::Bare.name()].map(str::to_owned);
    let waiters = Chart::new(WAITER, Unit::Bytes, names.into_iter().zip(found).collect());
    Ok(vec![locks, waiters])
}

pub fn used_memory(connection: &mut Connection) -> Outcome<f64> {
    Ok(connection
        .try_info("memory")?
        .number::<f64>("used_memory")?)
}

/// Bytes per lock, on a fresh server: memory that an earlier round leaves allocated would hide
/// what the next one needs.
fn lock(settings: &[&str], way: Way) -> Outcome<f64> {
    let server = measured::start(settings)?;
    let mut connection = server.try_connect()?;
    let ways = Ways::of(&mut connection)?;
    let before = used_memory(&mut connection)?;
    for start in (0..LOCKS).step_by(PIPELINE) {
        let acquires = ways.acquires(way, start..start + PIPELINE, "600000");
        pipeline(&mut connection, &acquires, PIPELINE)?;
    }
    Ok((used_memory(&mut connection)? - before) / LOCKS as f64)
}

/// Bytes per waiting connection, minus those that it needs before it waits.
fn waiter(settings: &[&str], way: Way) -> Outcome<f64> {
    let server = measured::start(settings)?;
    let mut control = server.try_connect()?;
    let mut connections = waiters(&server)?;
    control.try_call(&["LOCK.ACQUIRE", &name(0), "holder", "600000"])?;
    let before = used_memory(&mut control)?;
    for (number, connection) in connections.iter_mut().enumerate() {
        let (name, token) = (name(0), token(number));
        connection.try_send_raw(&match way {
            Way::Ours => encode(&["LOCK.ACQUIRE", &name, &token, "600000", "BLOCK", "0"]),
            Way::Bare => encode(&["BARE.WAIT", &name, &token]),
            _ => encode(&["BLPOP", "list", "0"]),
        })?;
    }
    await_blocked(&mut control, WAITERS)?;
    Ok((used_memory(&mut control)? - before) / WAITERS as f64)
}

/// Connections that have already sent a long request, so that their buffers grow no more.
fn waiters(server: &Server) -> Outcome<Vec<Connection>> {
    let filler = format!("{:0200}", 0);
    (0..WAITERS)
        .map(|_| {
            let mut connection = connect_unix(server)?;
            connection.try_call(&["PING", &filler])?;
            Ok(connection)
        })
        .collect()
}

/// Waits until this many clients are blocked.
pub fn await_blocked(control: &mut Connection, number: usize) -> Outcome<()> {
    let blocked = |control: &mut Connection| {
        let clients = control.try_info("clients")?;
        clients.number::<usize>("blocked_clients")
    };
    while blocked(control)? != number {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
