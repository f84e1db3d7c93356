//! Server CPU of a request that has to wait, when very many owners wait for other locks.

use redislock_testkit::{Connection, Value, encode};

use crate::Outcome;
use crate::hosts::{Host, connect_unix};
use crate::measure::{ROUNDS, cpu_of, progress};
use crate::measured::{await_waiters, check_yes, put};
use crate::results::{Chart, Unit};
use crate::waiters::allow_files;
use crate::ways::token;

/// The title of the chart.
pub const WAIT: &str = "a request that begins to wait, with its deadlock check";
/// Its curves.
pub const OF_NOTHING: &str = "by an owner that holds nothing";
pub const OF_WAITED: &str = "by an owner whose locks others wait for";

/// Waiting owners; each holds a lock and waits for two others with one request.
const OWNERS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// Requests between two readings of the server's clock.
const REQUESTS: usize = 200;

/// Who requests a lock that another owner holds.
#[derive(Clone, Copy)]
enum Owner {
    /// It holds nothing: it is part of no cycle.
    OfNothing,
    /// It holds a lock that others wait for: a search is needed.
    OfWhatIsWaitedFor,
}

pub fn measure() -> Outcome<Vec<Chart>> {
    let most = OWNERS.into_iter().max().unwrap_or_default();
    allow_files(most + 200)?;
    let server = Host::Redislock.start(&["maxclients 10200", "lock.max-waiters 100000"])?;
    let mut control = server.try_connect()?;
    // All of them stay connected all the time, so that only the waiting differs.
    let mut waiters = (0..most)
        .map(|_| connect_unix(&server))
        .collect::<Outcome<Vec<_>>>()?;
    take(&mut control, "busy", "holder")?;
    take(&mut control, "mine", "asker")?;
    let mut next = connect_unix(&server)?;
    wait(
        &mut next,
        &["LOCK.ACQUIRE", "mine", "next", "600000", "BLOCK", "0"],
    )?;
    let owners = [Owner::OfNothing, Owner::OfWhatIsWaitedFor];
    let names = [OF_NOTHING, OF_WAITED];
    let mut chart = Chart::curve(WAIT, Unit::MicrosOfCpu, "waiting owners", names);
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
            for (which, owner) in owners.into_iter().enumerate() {
                let mut asker = server.try_connect()?;
                let used = cpu_of(&mut control, || ask(&mut asker, owner))?;
                chart.add(which, number as u64, used / REQUESTS as f64);
            }
        }
    }
    Ok(vec![chart])
}

fn take(control: &mut Connection, key: &str, token: &str) -> Outcome<()> {
    check_yes(&control.try_call(&["LOCK.ACQUIRE", key, token, "600000"])?)
}

fn wait(connection: &mut Connection, words: &[&str]) -> Outcome<()> {
    Ok(connection.try_send_raw(&encode(words))?)
}

/// Lets these connections wait, each for the locks of the two owners before it.
fn queue(control: &mut Connection, waiters: &mut [Connection], first: usize) -> Outcome<()> {
    let own = |number: usize| format!("own:{number:06}");
    for (number, connection) in (first..).zip(waiters) {
        let token = token(number);
        take(control, &own(number + 2), &token)?;
        let (one, two) = (own(number), own(number + 1));
        if number < 2 {
            // Nobody else holds these.
            take(control, &own(number), "first")?;
        }
        let words = [
            "LOCK.MACQUIRE",
            "2",
            &one,
            &two,
            &token,
            "600000",
            "BLOCK",
            "0",
        ];
        wait(connection, &words)?;
    }
    Ok(())
}

/// Requests that wait for a millisecond, each.
fn ask(asker: &mut Connection, owner: Owner) -> Outcome<()> {
    let token = match owner {
        Owner::OfNothing => "stranger",
        Owner::OfWhatIsWaitedFor => "asker",
    };
    let mut buffer = Vec::new();
    for _ in 0..REQUESTS {
        put(
            &mut buffer,
            &["LOCK.ACQUIRE", "busy", token, "1000", "BLOCK", "1"],
        );
    }
    asker.try_send_raw(&buffer)?;
    for _ in 0..REQUESTS {
        match asker.try_receive()? {
            Value::Null => {}
            other => return Err(format!("a wait for a lock that is held got {other:?}").into()),
        }
    }
    Ok(())
}
