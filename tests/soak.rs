//! Everything at once, for a long time: waiters that come and go, load, reloads, rewrites of the
//! AOF, replicas, flushes, defragmentation. Memory stays flat, no slice is long, nothing is left.
//!
//! `make soak` runs it (`SECONDS=600 WAITERS=10000`). Before that, it counts the instructions of
//! each slice.
//!
//! No slice may take more than 1 ms of CPU time. The clock of a thread also counts the interrupts
//! and pauses of the machine. So the instructions of each slice have a limit, and the clock may
//! show longer slices only as often as for other work, which has no reason of its own to take long.

mod slices;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redislock_testkit::{
    Connection, Options, Random, Server, Value, info_number, project_folder, wait_for_sync,
    wait_patiently,
};
use slices::Slices;

/// Keys that are waited for; each has as many waiters as there are connections for it.
const KEYS: usize = 500;
/// The rounds of a cycle, one for each thing that happens; all connections close at its end.
const ROUNDS: usize = EVENTS.len();
/// What happens in the rounds, in this order.
const EVENTS: [&str; 6] = ["rewrite", "reload", "replica", "flush", "swap", "load"];
/// The most instructions of a slice that ends as soon as its clock lets it, without those of the
/// kernel. Servers execute more than one in a nanosecond, so this is less than 0.3 ms, after the
/// 0.2 ms that a slice may take before its clock ends it.
const INSTRUCTIONS: u64 = 300_000;
/// The locks of a large flush.
const MANY: usize = 100_000;
/// How many times longer leases and waits are under callgrind, where a server is 20 to 50 times
/// slower: long enough for queues to form.
const CALLGRIND: u64 = 15;
/// Cycles without which nothing is shown.
const CYCLES: usize = 8;

fn setting(name: &str, usual: u64) -> u64 {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(usual, |value| value.parse().expect("a number"))
}

/// Waiters: connections that stay open, and some that close.
struct Crew {
    connections: Vec<Option<Connection>>,
    random: Random,
    round: usize,
    /// How many times slower than usual the server is: leases and waits are as much longer.
    slowness: u64,
}

impl Crew {
    fn new(server: &Server, size: usize, slowness: u64) -> Self {
        let connections = (0..size).map(|_| Some(server.connect())).collect();
        let (random, round) = (Random::seeded(), 0);
        Self {
            connections,
            random,
            round,
            slowness,
        }
    }

    /// All ask. Leases are short, so that the locks pass on by themselves.
    fn ask(&mut self) {
        self.round += 1;
        for (at, connection) in self.connections.iter_mut().enumerate() {
            let (key, lease) = (at % KEYS, 40 * self.slowness);
            let block = (200 + self.random.below(2_000)) * self.slowness;
            let round = self.round;
            let terms = format!("t{at}-{round} {lease} BLOCK {block}");
            let line = match self.random.below(8) {
                0 => {
                    let next = (key + 1) % KEYS;
                    format!("LOCK.MACQUIRE 2 k{key} k{next} {terms}")
                }
                1 => format!("LOCK.ACQUIRE semaphore{key} {terms} SHARED LIMIT 2"),
                kind => {
                    let mode = ["", "SHARED", "ONCE", "EPHEMERAL"][kind as usize % 4];
                    format!("LOCK.ACQUIRE k{key} {terms} {mode}")
                }
            };
            connection.as_mut().expect("open").send(&line);
        }
    }

    /// Some leave without a word.
    fn leave(&mut self) {
        for connection in &mut self.connections {
            if self.random.below(20) == 0 {
                drop(connection.take());
            }
        }
    }

    /// The others get their replies, and those that closed connect again.
    fn finish(&mut self, server: &Server) -> usize {
        let mut grants = 0;
        for connection in &mut self.connections {
            match connection {
                Some(connection) => {
                    let told = connection.receive();
                    assert!(!told.is_error(), "{told:?}");
                    grants += usize::from(is_grant(&told));
                }
                None => *connection = Some(server.connect()),
            }
        }
        grants
    }
}

fn is_grant(told: &Value) -> bool {
    !told.is_error() && *told != Value::Null
}

/// Ends the load, also if the test fails meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Load without waiting: pairs, re-entries, extensions, several keys.
fn load(server: &Server, stop: &AtomicBool, name: usize) -> u64 {
    let (mut c, mut pairs) = (server.connect(), 0);
    while !stop.load(Ordering::Relaxed) {
        let lines = [
            format!("LOCK.ACQUIRE own{name} me 5000 OWNER load"),
            format!("LOCK.ACQUIRE own{name} me 5000 ONCE"),
            format!("LOCK.EXTEND own{name} me 6000"),
            format!("LOCK.MACQUIRE 3 m1 m2 m3 load{name} 5000"),
            format!("LOCK.MRELEASE 3 m1 m2 m3 load{name} ALL"),
            format!("LOCK.RELEASE own{name} me ALL"),
        ];
        let told = c.pipeline(&lines);
        for error in told.iter().filter(|told| told.is_error()) {
            // While DEBUG LOADAOF loads, the server refuses all commands.
            assert_eq!(error.error_class(), "LOADING", "{error:?}");
        }
        // Acquired by the first and the fourth request.
        let acquired = [&told[0], &told[3]].map(|told| u64::from(is_grant(told)));
        pairs += acquired.iter().sum::<u64>();
        std::thread::sleep(Duration::from_millis(1));
    }
    pairs
}

/// What operators and machines do, in turn.
fn disturb(server: &Server, c: &mut Connection, round: usize) {
    match EVENTS[round % ROUNDS] {
        "rewrite" => {
            let told = format!("{:?}", c.call("BGREWRITEAOF"));
            assert!(
                told.contains("started") || told.contains("in progress"),
                "{told}"
            );
        }
        "reload" => _ = c.ok("DEBUG RELOAD"),
        "replica" => {
            let replica = Server::options().replica_of(server).start();
            wait_for_sync(c, &mut replica.connect());
        }
        "flush" => _ = c.ok("FLUSHALL ASYNC"),
        "swap" => _ = c.ok("SWAPDB 0 1"),
        _ => _ = c.ok("DEBUG LOADAOF"),
    }
}

/// What is left when no client holds, waits or is connected.
struct Sample {
    used: i64,
    resident: i64,
}

fn rest(c: &mut Connection) -> Sample {
    wait_patiently("all locks, waiters and connections are gone", || {
        let node = c.call("LOCK.NODE");
        let clients = info_number(c, "clients", "connected_clients");
        node.number("locks") == 0 && node.number("waiters") == 0 && clients == 1
    });
    c.call("MEMORY PURGE");
    Sample {
        used: settled(c),
        resident: info_number(c, "memory", "used_memory_rss"),
    }
}

/// What is used when the server has freed what it keeps for blocked clients: some of it each time
/// its cron comes by.
fn settled(c: &mut Connection) -> i64 {
    let (mut least, mut unchanged) = (i64::MAX, 0);
    while unchanged < 20 {
        std::thread::sleep(Duration::from_millis(20));
        let used = info_number(c, "memory", "used_memory");
        unchanged = if used < least { 0 } else { unchanged + 1 };
        least = least.min(used);
    }
    least
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> i64) -> i64 {
    let mut all: Vec<_> = samples.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// One round: everybody asks, something happens, some leave, the others are answered. Says how many
/// were granted a lock, and how many pairs the load made besides.
fn round(server: &Server, crew: &mut Crew, c: &mut Connection, at: usize) -> (usize, u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, at_the_end) = (&stop, Stop(&stop));
        let loads: Vec<_> = (0..2)
            .map(|name| scope.spawn(move || load(server, stop, name)))
            .collect();
        crew.ask();
        crew.leave();
        disturb(server, c, at);
        crew.leave();
        let grants = crew.finish(server);
        drop(at_the_end);
        let pairs = loads
            .into_iter()
            .map(|load| load.join().expect("the load ends"));
        (grants, pairs.sum())
    })
}

/// A server that as many waiters can connect to.
fn server_for(waiters: usize) -> Options {
    Server::options()
        .appendonly("everysec")
        .config(&format!("maxclients {}", waiters + 100))
        .config("lock.max-waiters 100000")
        .config("hz 100")
}

/// Under callgrind a server is so slow that the time of a slice is over after one step of each
/// kind: what is counted is what the clock of a slice cannot limit.
#[test]
#[ignore = "takes minutes, and needs valgrind and a module with symbols: make soak"]
fn no_slice_needs_many_instructions() {
    let size = setting("SOAK_WAITERS", 10_000) as usize;
    let tool = [
        "valgrind",
        "--tool=callgrind",
        "--trace-children=yes",
        "--callgrind-out-file=slice",
        // What other threads do does not count.
        "--separate-threads=yes",
        // One file for each slice, with the count of that slice alone.
        "--zero-before=redislock::events::time::catch_up",
        "--dump-after=redislock::events::time::catch_up",
    ];
    let server = server_for(size).run_by(&tool).start();
    let mut c = server.connect();
    let mut counts = Vec::new();
    let mut crew = Crew::new(&server, size, CALLGRIND);
    for (at, event) in EVENTS.iter().enumerate() {
        let (grants, _) = round(&server, &mut crew, &mut c, at);
        let before = counts.len();
        counts.extend(take_counts(server.folder()));
        let these = &counts[before..];
        let (most, many) = (these.iter().max(), these.len());
        println!("round with a {event}: {grants} grants, {many} slices, the longest {most:?}");
        assert!(many > 0, "no slice was counted: the module has no symbols");
        assert!(grants > KEYS, "{grants} grants: no queues have formed");
    }
    drop(crew);
    rest(&mut c);
    counts.extend(take_counts(server.folder()));
    let before = counts.len();
    flush_many(&mut c);
    loop {
        std::thread::sleep(Duration::from_secs(3));
        let these = take_counts(server.folder());
        if these.is_empty() {
            break;
        }
        counts.extend(these);
    }
    let these = &counts[before..];
    let (most, many) = (these.iter().max(), these.len());
    println!("after a flush of {MANY} locks: {many} slices, the longest {most:?}");
    assert!(
        many > MANY / 1000,
        "they were forgotten in {many} slices only"
    );
    counts.sort_unstable();
    let at = |share: f64| counts[(counts.len() as f64 * share) as usize];
    let (median, rare, most) = (at(0.5), at(0.999), counts[counts.len() - 1]);
    let many = counts.len();
    println!("{many} slices: {median} instructions (median), {rare} (99.9 %), {most} at most");
    assert!(most <= INSTRUCTIONS, "a slice of {most} instructions");
}

/// Very many locks go at once, in the order in which the server frees them. The module forgets them
/// in slices.
fn flush_many(c: &mut Connection) {
    for first in (0..MANY).step_by(1000) {
        let lines = (first..first + 1000).map(|key| format!("LOCK.ACQUIRE many{key} me 36000000"));
        c.pipeline(&lines.collect::<Vec<_>>());
    }
    c.ok("FLUSHALL");
}

/// The instructions of the slices since the last call. Their files are removed.
fn take_counts(folder: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(folder).expect("the folder of the server");
    let files = files.map(|file| file.expect("a file").path());
    let counts = files.filter_map(|path| {
        path.file_name()?
            .to_str()?
            .strip_prefix("slice.")?
            .strip_suffix("-01")?;
        let text = std::fs::read_to_string(&path).ok()?;
        let mut lines = text.lines();
        let total = lines.find_map(|line| line.strip_prefix("summary: "))?;
        // The last line, which a file that is still being written does not have. It is not the
        // count of the slice: some functions of the server are not reset when a slice begins.
        lines.find(|line| line.starts_with("totals: "))?;
        let total = total.trim().parse().ok();
        if total > Some(INSTRUCTIONS) {
            let kept = project_folder().join(format!("target/slice-{}", total.unwrap_or(0)));
            println!("callgrind_annotate --inclusive=yes {}", kept.display());
            std::fs::copy(&path, kept).expect("a folder for what is built");
        }
        std::fs::remove_file(&path).expect("the file was read");
        total
    });
    counts.collect()
}

#[test]
#[ignore = "takes ten minutes: make soak"]
fn memory_stays_flat_and_nothing_is_left() {
    let time = Duration::from_secs(setting("SOAK_SECONDS", 600));
    let size = setting("SOAK_WAITERS", 10_000) as usize;
    let server = server_for(size).start();
    let mut c = server.connect();
    let defrags = start_defragmentation(&mut c);
    let (mut samples, mut rounds, mut grants, mut pairs) = (Vec::new(), 0, 0, 0);
    let mut visits = 0;
    let mut slices = Slices::watch();
    let began = Instant::now();
    while began.elapsed() < time {
        let mut crew = Crew::new(&server, size, 1);
        for _ in 0..ROUNDS {
            slices.begin(&mut c);
            let (granted, more) = round(&server, &mut crew, &mut c, rounds);
            (rounds, grants, pairs) = (rounds + 1, grants + granted, pairs + more);
            visits += visited_by_defragmentation(&mut c);
            slices.add(&mut c);
        }
        drop(crew);
        let sample = rest(&mut c);
        let (used, resident) = (sample.used / 1024, sample.resident / 1024);
        let seconds = began.elapsed().as_secs();
        println!(
            "{seconds:4} s  {rounds} rounds  {grants} grants  {used} KB used  {resident} KB RSS"
        );
        samples.push(sample);
    }
    println!(
        "{rounds} rounds of {size} waiters, {grants} grants to them, {pairs} pairs besides, \
         {visits} visits of active defragmentation to keys"
    );
    assert!(!defrags || visits > 0, "active defragmentation did nothing");
    slices.report();
    assert_flat(&samples);
    assert!(
        grants > samples.len() * KEYS,
        "{grants} grants show nothing"
    );
    slices.assert_short();
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
    c.ok("SELECT 1");
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

/// Lets the server defragment its memory all the time. Returns false if it cannot, as the servers
/// that distributions build.
fn start_defragmentation(c: &mut Connection) -> bool {
    let can = !c.call("CONFIG SET activedefrag yes").is_error();
    if can {
        // Without these, it starts only at 100 MB of fragmentation, which soak never reaches.
        c.ok("CONFIG SET active-defrag-ignore-bytes 1");
        c.ok("CONFIG SET active-defrag-threshold-lower 0");
    }
    can
}

/// How many keys active defragmentation has visited since the statistics were reset.
fn visited_by_defragmentation(c: &mut Connection) -> i64 {
    ["active_defrag_key_hits", "active_defrag_key_misses"]
        .map(|field| info_number(c, "stats", field))
        .iter()
        .sum()
}

/// The last quarter of the cycles uses no more than the second: the first one warms up.
fn assert_flat(samples: &[Sample]) {
    let quarter = samples.len() / 4;
    assert!(
        samples.len() >= CYCLES,
        "{} cycles show nothing",
        samples.len()
    );
    let (early, late) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
    let used = [early, late].map(|part| median(part, |sample| sample.used));
    let resident = [early, late].map(|part| median(part, |sample| sample.resident));
    println!("used, then and now: {used:?}; resident: {resident:?}");
    // What the server itself keeps, for its AOF and backlog, goes up and down by a few per cent.
    assert!(used[1] <= used[0] + used[0] / 20, "memory grows: {used:?}");
    assert!(
        resident[1] <= resident[0] + resident[0] / 10,
        "memory grows: {resident:?}"
    );
}
