//! A load that shows the compiler which parts of the module run often: `make trained`.

use std::thread;
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Value};

use crate::Outcome;
use crate::growth::{RELOAD, keys};
use crate::handover::{self, Turns};
use crate::hosts::{AOF_SETTINGS, Host};
use crate::measure::progress;
use crate::measured::{check_yes, pipeline, put};
use crate::ways::{Place, Way, name, token};

/// Locks of a pipeline.
const LOCKS: usize = 500;
/// How often each of them is acquired and released.
const TIMES: usize = 100;
/// How often the other commands are used with them.
const OTHERS: usize = 20;
/// How many connections hand one lock over.
const CONNECTIONS: usize = 16;
/// Keys of a request for several.
const KEYS: usize = 4;
/// Blocked connections are served in another way in a cluster, and by newer servers.
const CLUSTER: &str = "cluster-enabled yes";

/// Runs the load, without an AOF and with one. The servers end as an operator ends them: a module
/// that is built for it writes its profile then.
pub fn run() -> Outcome<()> {
    for settings in [&[][..], &AOF_SETTINGS, &[CLUSTER]] {
        progress(&format!("training: {settings:?}"));
        let mut place = Place::start(Host::Redislock, settings)?;
        if settings.contains(&CLUSTER) {
            let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
            check_yes(&place.control.try_call(&slots)?)?;
            await_cluster(&mut place.control)?;
        } else {
            for _ in 0..TIMES {
                use_locks(&mut place)?;
            }
            save_and_load(&mut place)?;
            let_leases_end(&mut place)?;
        }
        handover::run(&place.server, CONNECTIONS, Turns::Lock)?;
        let Place {
            connection,
            control,
            mut server,
            ..
        } = place;
        drop((connection, control));
        server.stop();
    }
    progress("");
    Ok(())
}

/// Mostly pairs of acquire and release, and some of everything else that is common.
fn use_locks(place: &mut Place) -> Outcome<()> {
    for commands in [
        place.ways.acquires(Way::Ours, 0..LOCKS, "30000"),
        place.ways.releases(Way::Ours, 0..LOCKS),
    ] {
        pipeline(&mut place.connection, &commands, LOCKS)?;
    }
    (0..OTHERS).try_for_each(|_| use_other_commands(&mut place.connection))
}

fn use_other_commands(connection: &mut Connection) -> Outcome<()> {
    let (name, token, other) = (name(0), token(0), token(1));
    let mut commands = Vec::new();
    put(&mut commands, &["LOCK.ACQUIRE", &name, &token, "30000"]);
    put(&mut commands, &["LOCK.EXTEND", &name, &token, "40000"]);
    put(&mut commands, &["LOCK.ACQUIRE", &name, &token, "30000"]);
    let guard = ["LOCK.GUARD", &name, &token, "SET", "data", "value"];
    put(&mut commands, &guard);
    put(&mut commands, &["LOCK.RELEASE", &name, &token, "ALL"]);
    for token in [&token, &other] {
        let words = ["LOCK.ACQUIRE", &name, token, "30000", "SHARED"];
        put(&mut commands, &words);
    }
    for token in [&token, &other] {
        put(&mut commands, &["LOCK.RELEASE", &name, token]);
    }
    let keys: Vec<_> = (0..KEYS).map(crate::ways::name).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let number = KEYS.to_string();
    let acquire = [&["LOCK.MACQUIRE", &number], &keys[..], &[&token, "30000"]].concat();
    let release = [&["LOCK.MRELEASE", &number], &keys[..], &[&token]].concat();
    put(&mut commands, &acquire);
    put(&mut commands, &release);
    connection.try_send_raw(&commands)?;
    (0..11).try_for_each(|_| check_yes(&connection.try_receive()?))?;
    refuse(connection, &name, [&token, &other])
}

/// Two requests of another owner that are refused: for a lock, and for its release.
fn refuse(connection: &mut Connection, name: &str, [owner, other]: [&str; 2]) -> Outcome<()> {
    check_yes(&connection.try_call(&["LOCK.ACQUIRE", name, owner, "30000"])?)?;
    for words in [
        &["LOCK.ACQUIRE", name, other, "30000"][..],
        &["LOCK.RELEASE", name, other],
    ] {
        let reply = connection.try_call(words)?;
        if reply != Value::Null {
            return Err(format!("{words:?} is not refused: {reply:?}").into());
        }
    }
    check_yes(&connection.try_call(&["LOCK.RELEASE", name, owner])?)
}

fn save_and_load(place: &mut Place) -> Outcome<()> {
    let locks = place.ways.acquires(Way::Ours, 0..LOCKS, "30000");
    pipeline(&mut place.connection, &locks, LOCKS)?;
    for _ in 0..TIMES {
        for words in [&["SAVE"][..], &["FLUSHALL"], &RELOAD] {
            check_yes(&place.connection.try_call(words)?)?;
        }
    }
    check_yes(&place.connection.try_call(&["FLUSHALL"])?)
}

fn let_leases_end(place: &mut Place) -> Outcome<()> {
    for _ in 0..TIMES / 10 {
        let locks = place.ways.acquires(Way::Ours, 0..LOCKS, "10");
        pipeline(&mut place.connection, &locks, LOCKS)?;
        while keys(&mut place.connection)? > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// A cluster serves keys a moment after it got its slots.
fn await_cluster(control: &mut Connection) -> Outcome<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        let state = control.try_call(&["CLUSTER", "INFO"])?;
        if matches!(state, Value::Bulk(text) if text.starts_with(b"cluster_state:ok")) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err("the cluster of one node does not serve".into())
}
