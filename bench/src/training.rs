//! A load that shows the compiler which parts of the module run often: `make trained`.

use crate::Outcome;
use crate::handover::{self, Turns};
use crate::hosts::{AOF_SETTINGS, Host};
use crate::measure::progress;
use crate::measured::{check_yes, pipeline, put};
use crate::ways::{Place, Way, name, token};

/// Locks of a pipeline.
const LOCKS: usize = 500;
/// How often each of them is acquired and released.
const TIMES: usize = 100;
/// How many connections hand one lock over.
const CONNECTIONS: usize = 16;
/// Keys of a request for several.
const KEYS: usize = 4;

/// Runs the load, without an AOF and with one. The servers end as an operator ends them: a module
/// that is built for it writes its profile then.
pub fn run() -> Outcome<()> {
    for settings in [&[][..], &AOF_SETTINGS] {
        progress(&format!("training: {settings:?}"));
        let mut place = Place::start(Host::Redislock, settings)?;
        for _ in 0..TIMES {
            use_locks(&mut place)?;
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

/// Mostly pairs of acquire and release, and a few of everything else that is common.
fn use_locks(place: &mut Place) -> Outcome<()> {
    for commands in [
        place.ways.acquires(Way::Ours, 0..LOCKS, "30000"),
        place.ways.releases(Way::Ours, 0..LOCKS),
    ] {
        pipeline(&mut place.connection, &commands, LOCKS)?;
    }
    let (name, token) = (name(0), token(0));
    let mut commands = Vec::new();
    put(&mut commands, &["LOCK.ACQUIRE", &name, &token, "30000"]);
    put(&mut commands, &["LOCK.EXTEND", &name, &token, "40000"]);
    put(&mut commands, &["LOCK.ACQUIRE", &name, &token, "30000"]);
    put(&mut commands, &["LOCK.RELEASE", &name, &token, "ALL"]);
    let keys: Vec<_> = (0..KEYS).map(crate::ways::name).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    let number = KEYS.to_string();
    let acquire = [&["LOCK.MACQUIRE", &number], &keys[..], &[&token, "30000"]].concat();
    let release = [&["LOCK.MRELEASE", &number], &keys[..], &[&token]].concat();
    put(&mut commands, &acquire);
    put(&mut commands, &release);
    place.connection.try_send_raw(&commands)?;
    (0..6).try_for_each(|_| check_yes(&place.connection.try_receive()?))
}
