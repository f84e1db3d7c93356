//! Server CPU of a request that has to wait, when very many owners wait for each other's locks, and
//! how many steps its search for a deadlock takes.

mod in_core;

use redislock_testkit::{Connection, Value, encode};

use crate::Outcome;
use crate::hosts::{Host, connect_unix};
use crate::measure::{ROUNDS, cpu_of, progress};
use crate::measured::{await_waiters, check_yes, put};
use crate::results::{Chart, Unit};
use crate::waiters::allow_files;
use crate::ways::token;

/// The titles of the charts.
pub const WAIT: &str = "a request that has to wait, with its deadlock check";
pub const STEPS: &str = "the search of this check";
/// Their curves: how far the search comes.
pub const NO_SEARCH: &str = "no search: its owner holds nothing";
pub const NONE_REACHED: &str = "none reached: the holder does not wait";
pub const ALL_REACHED: &str = "all reached: the holder waits for them";
pub const CLOSING: &str = "all reached, and refused: a deadlock";

/// Waiting owners; each holds a lock and waits for those of the two owners before it with one
/// request. So all of them can be reached from the last one.
const OWNERS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// Requests between two readings of the server's clock: fewer if each takes long.
const REQUESTS: std::ops::RangeInclusive<usize> = 20..=200;
/// Reached owners between two readings, if there are enough of them.
const REACHED: usize = 50_000;
/// Longer than the measurement.
const LEASE: &str = "3600000";

/// The locks: of an owner that does not wait, of the requester, of the owners of the chain.
const BUSY: &str = "busy";
const MINE: &str = "mine";
const OWN: &str = "own";
/// The owners: of [`BUSY`], of [`MINE`], one that waits for that, one that holds nothing, and the
/// one whose locks the first of the chain wait for.
const HOLDER: &str = "holder";
const ASKER: &str = "asker";
const NEXT: &str = "next";
const STRANGER: &str = "stranger";
const FIRST: &str = "first";

/// Who requests what.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    /// An owner that holds nothing is part of no cycle.
    NoSearch,
    /// Others wait for a lock of the owner, so a search is needed; but the holder of the wanted
    /// lock waits for nothing.
    NoneReached,
    /// The same owner wants the lock of the last owner of the chain.
    AllReached,
    /// The owner that the chain waits for wants the same lock.
    Closing,
}

impl Request {
    const ALL: [Self; 4] = [
        Self::NoSearch,
        Self::NoneReached,
        Self::AllReached,
        Self::Closing,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::NoSearch => NO_SEARCH,
            Self::NoneReached => NONE_REACHED,
            Self::AllReached => ALL_REACHED,
            Self::Closing => CLOSING,
        }
    }

    fn owner(self) -> &'static str {
        match self {
            Self::NoSearch => STRANGER,
            Self::NoneReached | Self::AllReached => ASKER,
            Self::Closing => FIRST,
        }
    }

    /// Whether it wants the lock of the last owner of the chain, or else the busy one.
    fn wants_last(self) -> bool {
        matches!(self, Self::AllReached | Self::Closing)
    }

    /// How many are measured at once.
    fn times(self, owners: usize) -> usize {
        let (least, most) = REQUESTS.into_inner();
        match self {
            Self::NoSearch | Self::NoneReached => most,
            Self::AllReached | Self::Closing => (REACHED / owners).clamp(least, most),
        }
    }
}

pub fn measure() -> Outcome<Vec<Chart>> {
    Ok(vec![on_a_server()?, steps()?])
}

fn on_a_server() -> Outcome<Chart> {
    let most = OWNERS.into_iter().max().unwrap_or_default();
    allow_files(most + 200)?;
    let server = Host::Redislock.start(&["maxclients 10200", "lock.max-waiters 100000"])?;
    let mut control = server.try_connect()?;
    // All of them stay connected all the time, so that only the waiting differs.
    let mut waiters = (0..most)
        .map(|_| connect_unix(&server))
        .collect::<Outcome<Vec<_>>>()?;
    take(&mut control, BUSY, HOLDER)?;
    take(&mut control, MINE, ASKER)?;
    let mut next = connect_unix(&server)?;
    wait(
        &mut next,
        &["LOCK.ACQUIRE", MINE, NEXT, LEASE, "BLOCK", "0"],
    )?;
    for number in 0..2 {
        take(&mut control, &own(number), FIRST)?;
    }
    let mut chart = chart(WAIT, Unit::MicrosOfCpu);
    let mut waiting = 0;
    // Ten thousand waiters cannot leave and join again in each round, so the queue only grows.
    for number in OWNERS {
        progress(&format!("a wait among {number} waiting owners"));
        queue(
            &mut control,
            waiters.get_mut(waiting..number).unwrap_or_default(),
            waiting,
        )?;
        waiting = number;
        await_waiters(&mut control, number + 1)?;
        for _ in 0..ROUNDS {
            for (which, request) in Request::ALL.into_iter().enumerate() {
                let mut asker = server.try_connect()?;
                let used = cpu_of(&mut control, || ask(&mut asker, request, number))?;
                let each = used / request.times(number) as f64;
                chart.add(which, number as u64, each);
            }
        }
    }
    Ok(chart)
}

/// The steps are always the same: one round.
fn steps() -> Outcome<Chart> {
    let mut chart = chart(STEPS, Unit::Steps);
    let mut chain = in_core::Chain::new()?;
    for number in OWNERS {
        chain.grow(number)?;
        for (which, request) in Request::ALL.into_iter().enumerate() {
            chart.add(which, number as u64, chain.steps(request)? as f64);
        }
    }
    Ok(chart)
}

fn chart(title: &str, unit: Unit) -> Chart {
    let names = Request::ALL.map(Request::name);
    Chart::curve(title, unit, "waiting owners", names)
}

fn own(number: usize) -> String {
    format!("{OWN}:{number:06}")
}

fn take(control: &mut Connection, key: &str, token: &str) -> Outcome<()> {
    check_yes(&control.try_call(&["LOCK.ACQUIRE", key, token, LEASE])?)
}

fn wait(connection: &mut Connection, words: &[&str]) -> Outcome<()> {
    Ok(connection.try_send_raw(&encode(words))?)
}

/// Lets these connections wait, each for the locks of the two owners before it.
fn queue(control: &mut Connection, waiters: &mut [Connection], first: usize) -> Outcome<()> {
    for (number, connection) in (first..).zip(waiters) {
        let token = token(number);
        take(control, &own(number + 2), &token)?;
        let (one, two) = (own(number), own(number + 1));
        let words = [
            "LOCK.MACQUIRE",
            "2",
            &one,
            &two,
            &token,
            LEASE,
            "BLOCK",
            "0",
        ];
        wait(connection, &words)?;
    }
    Ok(())
}

/// Requests that wait for a millisecond, each, or are refused.
fn ask(asker: &mut Connection, request: Request, owners: usize) -> Outcome<()> {
    let key = if request.wants_last() {
        own(owners + 1)
    } else {
        BUSY.to_owned()
    };
    let words = ["LOCK.ACQUIRE", &key, request.owner(), "1000", "BLOCK", "1"];
    let mut buffer = Vec::new();
    for _ in 0..request.times(owners) {
        put(&mut buffer, &words);
    }
    asker.try_send_raw(&buffer)?;
    for _ in 0..request.times(owners) {
        match (asker.try_receive()?, request) {
            (Value::Error(text), Request::Closing) if text.starts_with("DEADLOCK") => {}
            (Value::Null, request) if request != Request::Closing => {}
            (other, _) => {
                return Err(format!("a wait for a lock that is held got {other:?}").into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_visits_the_owners_that_it_reaches_and_no_others() {
        let chart = steps().unwrap();
        let of = |name, at| chart.figures(name, Some(at)).unwrap().median();
        for at in OWNERS.map(|owners| owners as u64) {
            assert!(of(NO_SEARCH, at) == 0.0 && of(NONE_REACHED, at) <= 2.0);
            let owners = at as f64;
            assert!(of(ALL_REACHED, at) >= owners && of(ALL_REACHED, at) <= 6.0 * owners + 10.0);
            assert!(of(CLOSING, at) > of(ALL_REACHED, at));
        }
    }
}
