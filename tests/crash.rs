//! SIGKILL at any moment, restart at once: with a quarantine nobody is granted what somebody else
//! still relies on, fences grow whatever was lost, and with `appendfsync always` nothing that was
//! acknowledged is lost.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use redislock_testkit::history::{History, Operation, Outcome, Violation};
use redislock_testkit::load::{Client, Owner, Plan, always_to, rounds};
use redislock_testkit::{Connection, Options, Random, Server, Value, granted, refused, wait_until};

const QUARANTINE: Duration = Duration::from_millis(400);

/// What the server keeps over a crash.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    Nothing,
    Snapshots,
    /// Whatever the disk has seen: the rest of the file is cut off, as by a loss of power.
    AllButTheTail,
    Everything,
}

impl Keeps {
    fn options(self) -> Options {
        match self {
            Keeps::Nothing => Server::options(),
            // Snapshots are made by the tests.
            Keeps::Snapshots => Server::options().config("save 3600 1000000"),
            Keeps::AllButTheTail => Server::options().appendonly("everysec"),
            Keeps::Everything => Server::options().appendonly("always"),
        }
    }

    fn quarantined(self) -> Options {
        self.options()
            .config(&format!("lock.quarantine {}", QUARANTINE.as_millis()))
    }
}

pub fn length(path: &PathBuf) -> u64 {
    fs::metadata(path).expect("the AOF").len()
}

pub fn cut(path: &PathBuf, length: u64) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let file = file.expect("the AOF can be opened");
    file.set_len(length).expect("the AOF can be cut");
}

fn survive_crashes_under_load(keeps: Keeps) {
    let mut random = Random::seeded();
    let mut server = keeps.quarantined().start();
    let plan = Plan::new(&["job", "report", "import"], QUARANTINE / 2);
    let load = plan.start(always_to(server.port()));
    for round in rounds(3) {
        load.wait_for_grants(20);
        let written = (keeps == Keeps::AllButTheTail).then(|| length(&server.growing_aof()));
        if keeps == Keeps::Snapshots && round % 2 == 0 {
            server.connect().ok("BGSAVE");
        }
        std::thread::sleep(Duration::from_millis(random.below(200)));
        server.kill();
        if let Some(written) = written {
            let file = server.growing_aof();
            cut(&file, written + random.below(length(&file) - written + 1));
        }
        server.start_again();
    }
    load.wait_for_grants(20);
    let history = load.stop();
    history.assert_safe();
    assert_eq!(history.violations_of_one_counter(), []);
    assert!(history.refusals("QUARANTINE") > 0);
    assert!(server.is_alive());
}

#[test]
fn crashes_under_load_without_persistence() {
    survive_crashes_under_load(Keeps::Nothing);
}

#[test]
fn crashes_under_load_with_snapshots() {
    survive_crashes_under_load(Keeps::Snapshots);
}

#[test]
fn crashes_under_load_with_an_aof_whose_tail_is_cut() {
    survive_crashes_under_load(Keeps::AllButTheTail);
}

#[test]
fn crashes_under_load_with_a_whole_aof() {
    survive_crashes_under_load(Keeps::Everything);
}

/// One owner acquires, the server crashes and forgets it, another owner asks until it is granted.
fn forget_a_grant(keeps: Keeps, options: Options, ttl: Duration) -> History {
    let mut server = options.start();
    let mut client = Client::new(always_to(server.port()));
    let acquire = |client: &mut Client| {
        wait_until("the lock is granted", || {
            matches!(client.acquire("job", ttl, None).1, Outcome::Ok(_))
        });
    };
    wait_until("the first quarantine is over", || {
        server.connect().call("LOCK.NODE").number("quarantine") == 0
    });
    if keeps == Keeps::Snapshots {
        server.connect().ok("SAVE");
    }
    let written = (keeps == Keeps::AllButTheTail).then(|| length(&server.growing_aof()));
    acquire(&mut client);
    server.kill();
    if let Some(written) = written {
        cut(&server.growing_aof(), written);
    }
    server.start_again();
    assert_eq!(server.connect().call("EXISTS job"), Value::Integer(0));
    acquire(&mut client);
    client.history
}

#[test]
fn a_forgotten_grant_is_not_given_to_somebody_else_while_it_counts() {
    for keeps in [Keeps::Nothing, Keeps::Snapshots, Keeps::AllButTheTail] {
        forget_a_grant(keeps, keeps.quarantined(), QUARANTINE).assert_safe();
    }
}

/// What the test before would miss without its protection: the checker sees the double grant.
#[test]
fn without_a_quarantine_a_forgotten_grant_is_given_twice() {
    for keeps in [Keeps::Nothing, Keeps::Snapshots, Keeps::AllButTheTail] {
        // The restart must be over before the lease is.
        let lease = Duration::from_secs(60);
        let violations = forget_a_grant(keeps, keeps.options(), lease).violations();
        assert!(
            matches!(violations[..], [Violation::Overlap(..)]),
            "{violations:?}"
        );
    }
}

/// What each lock must be after a crash, by what its only client was told. None: not known.
fn ledger(history: &History) -> HashMap<u64, (String, Option<i64>)> {
    let mut ledger = HashMap::new();
    for event in &history.events {
        let lock = event.lock.clone();
        match (event.operation, &event.outcome) {
            (Operation::Acquire, Outcome::Ok(fence)) => {
                ledger.insert(event.owner, (lock, Some(*fence)));
            }
            (Operation::Release, Outcome::Ok(_)) => {
                ledger.insert(event.owner, (lock, None));
            }
            (Operation::Release, Outcome::Unknown) => {
                ledger.remove(&event.owner);
            }
            _ => {}
        }
    }
    ledger
}

/// What the server does not know of what it has acknowledged.
fn lost(c: &mut Connection, owners: &[Owner], history: &History) -> Vec<String> {
    let ledger = ledger(history);
    let mut lost = Vec::new();
    for owner in owners {
        let Some((lock, promised)) = ledger.get(&owner.id) else {
            continue;
        };
        let hold = c.call(&format!("LOCK.INFO {lock} {}", owner.token));
        let found = (hold != Value::Null).then(|| hold.number("fence"));
        if found != *promised {
            lost.push(format!("{lock}: {promised:?} was told, {found:?} is there"));
        }
    }
    lost
}

/// Several clients, each with locks of its own, until the server is killed under their hands.
/// Meanwhile it is told this.
fn crash_among_acknowledgements(server: &mut Server, meanwhile: &str) -> (Vec<Owner>, History) {
    let ttl = Duration::from_secs(600);
    let port = server.port();
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            std::thread::spawn(move || {
                let mut client = Client::new(always_to(port));
                let mut owners = Vec::new();
                for n in 0.. {
                    let lock = format!("job-{worker}-{port}-{n}");
                    let (owner, outcome) = client.acquire(&lock, ttl, None);
                    owners.push(owner.clone());
                    // The server no longer replies.
                    if matches!(outcome, Outcome::Fail(_)) {
                        break;
                    }
                    if n % 3 == 0 {
                        client.release(&owner);
                    }
                }
                (owners, client.history)
            })
        })
        .collect();
    let mut c = server.connect();
    wait_until("some locks are held", || {
        c.call("LOCK.NODE").number("locks") > 20
    });
    c.ok(meanwhile);
    std::thread::sleep(Duration::from_millis(Random::seeded().below(150)));
    server.kill();
    let (mut owners, mut history) = (Vec::new(), History::default());
    for worker in workers {
        let (more, events) = worker.join().expect("a client that works");
        owners.extend(more);
        history.events.extend(events.events);
    }
    (owners, history)
}

/// Whatever was acknowledged is there after each crash, and fences go on from there.
fn crash_and_keep_everything(mut server: Server, meanwhile: &str) {
    for _ in rounds(3) {
        wait_until("what was loaded is on disk", || {
            server.connect().call("LOCK.NODE").number("durable") == 1
        });
        let (owners, history) = crash_among_acknowledgements(&mut server, meanwhile);
        server.start_again();
        let mut c = server.connect();
        assert_eq!(lost(&mut c, &owners, &history), Vec::<String>::new());
        let told = history
            .events
            .iter()
            .filter_map(|event| match event.outcome {
                Outcome::Ok(fence) => Some(fence),
                _ => None,
            });
        let next = granted(&c.call("LOCK.ACQUIRE after the-crash 1000"));
        assert!(next > told.max().unwrap_or(0));
        c.ok("FLUSHALL");
    }
}

#[test]
fn under_always_everything_that_was_acknowledged_is_there_after_a_crash() {
    crash_and_keep_everything(Keeps::Everything.options().start(), "PING");
}

#[test]
fn under_always_a_crash_in_the_middle_of_a_rewrite_loses_nothing() {
    for preamble in ["yes", "no"] {
        let options = Keeps::Everything.options();
        let options = options.config(&format!("aof-use-rdb-preamble {preamble}"));
        crash_and_keep_everything(options.start(), "BGREWRITEAOF");
    }
}

/// Without `always` the tail of the file is not promised to be on the disk.
#[test]
fn without_always_something_that_was_acknowledged_is_lost() {
    let mut server = Keeps::AllButTheTail.options().start();
    let written = length(&server.growing_aof());
    let (owners, history) = crash_among_acknowledgements(&mut server, "PING");
    cut(&server.growing_aof(), written);
    server.start_again();
    let mut c = server.connect();
    assert_eq!(c.call("LOCK.NODE").number("durable"), 0);
    assert!(!lost(&mut c, &owners, &history).is_empty());
}

#[test]
fn restarts_within_a_quarantine_do_not_shorten_it_for_a_forgotten_grant() {
    let mut server = Keeps::Nothing.quarantined().start();
    let mut client = Client::new(always_to(server.port()));
    wait_until("the lock is granted", || {
        matches!(client.acquire("job", QUARANTINE, None).1, Outcome::Ok(_))
    });
    for _ in 0..3 {
        server.kill();
        server.start_again();
        refused(
            &server.connect().call("LOCK.ACQUIRE job me 100"),
            "QUARANTINE",
        );
    }
    wait_until("the lock is granted again", || {
        matches!(client.acquire("job", QUARANTINE, None).1, Outcome::Ok(_))
    });
    client.history.assert_safe();
}

/// What the server has now, in a new snapshot or AOF.
fn write_again(keeps: Keeps, preamble: &str, server: &Server) {
    let mut c = server.connect();
    if keeps == Keeps::Snapshots {
        c.ok("SAVE");
        return;
    }
    crate::persistence::rewrite_aof(&mut c);
    // Without a preamble, the next effect has what is not part of any lock.
    wait_until("an effect is in the AOF", || {
        preamble == "yes" || length(&server.growing_aof()) > 0
    });
}

/// The saved value is the longest lease that may be out there, also if the value was lowered and
/// the server killed twice.
#[test]
fn a_lowered_quarantine_counts_only_when_the_higher_one_is_over() {
    let long = Duration::from_secs(60);
    for (keeps, preamble) in [
        (Keeps::Snapshots, "yes"),
        (Keeps::Everything, "yes"),
        (Keeps::Everything, "no"),
    ] {
        let mut server = keeps
            .options()
            .config(&format!("aof-use-rdb-preamble {preamble}"))
            .config(&format!("lock.quarantine {}", long.as_millis()))
            .start();
        write_again(keeps, preamble, &server);
        server.kill();
        server.reconfigure(|options| options.config("lock.quarantine 100"));
        for _ in 0..2 {
            server.start_again();
            let left = server.connect().call("LOCK.NODE").number("quarantine");
            assert!(left > 30_000, "{left}");
            // Written again in the middle: what is saved now must not forget it.
            write_again(keeps, preamble, &server);
            server.kill();
        }
    }
}

/// What is saved counts for fences too: a clock that is behind after the crash does not take them
/// back.
#[cfg(target_os = "linux")]
mod clock {
    use super::*;
    use redislock_testkit::SteppedServer;

    fn fences_over_a_crash_with_a_clock_behind(keeps: Keeps) -> Vec<Violation> {
        let mut stepped = SteppedServer::start(keeps.options());
        let mut client = Client::new(always_to(stepped.server.port()));
        for _ in 0..2 {
            let ttl = Duration::from_millis(20);
            let (owner, outcome) = client.acquire("job", ttl, None);
            assert!(matches!(outcome, Outcome::Ok(_)), "{outcome:?}");
            client.release(&owner);
            if keeps == Keeps::Snapshots {
                stepped.server.connect().ok("SAVE");
            }
            stepped.server.kill();
            stepped.step(-86_400);
            stepped.server.start_again();
            // A request on the connection of before is unknown, and is not sent again.
            client.release(&owner);
        }
        client.history.violations()
    }

    #[test]
    fn fences_grow_over_a_crash_with_a_clock_that_is_behind() {
        for keeps in [Keeps::Snapshots, Keeps::Everything] {
            assert_eq!(fences_over_a_crash_with_a_clock_behind(keeps), []);
        }
    }

    /// What nothing is saved of comes from the clock alone: the promise assumes one or the other.
    #[test]
    fn without_persistence_a_clock_that_is_behind_takes_fences_back() {
        let violations = fences_over_a_crash_with_a_clock_behind(Keeps::Nothing);
        assert!(
            matches!(violations[..], [Violation::Disordered(..)]),
            "{violations:?}"
        );
    }
}
