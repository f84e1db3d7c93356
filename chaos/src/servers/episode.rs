//! One episode: a deployment, its clients, its faults, its recovery, and the result.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redislock_client::Moment;
use redislock_testkit::history::{Claims, Entry, What};
use redislock_testkit::{Options, Server, wait_until};

use super::client::{Client, Log};
use super::deployment::{self, Deployment, complaints, is_master, last_lines, node};
use super::name_of;
use super::plan::{Episode, Fault, Kind};
use super::worker::Job;

/// How often the runner checks the clock.
const TICK: Duration = Duration::from_millis(25);
/// A client that has not ended by then could not acquire a lock, although nothing prevents it. This
/// is far longer than a client needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// Clients wait this long for one node, in milliseconds.
const NODE_TIMEOUT: u64 = 150;
/// A client that replaces another one has a number that is this much higher.
pub const NEXT: u32 = 100;

/// A protection that is left out, to check that a run notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The clients do not make a majority accept one fence.
    NoWriteBack,
    /// The module grants at once after a loss of memory.
    NoQuarantine,
    /// The module releases a lock for any token.
    NoTokenCheck,
    /// The registers do not compare fences.
    NoFenceCheck,
}

impl Flaw {
    /// All of them, with their names on the command line.
    pub const ALL: [(&'static str, Flaw); 4] = [
        ("no-write-back", Flaw::NoWriteBack),
        ("no-quarantine", Flaw::NoQuarantine),
        ("no-token-check", Flaw::NoTokenCheck),
        ("no-fence-check", Flaw::NoFenceCheck),
    ];

    /// What a module that is built with the feature `failpoints` leaves out.
    fn of_module(self) -> Option<&'static str> {
        match self {
            Flaw::NoWriteBack | Flaw::NoFenceCheck => None,
            Flaw::NoQuarantine => Some("quarantine"),
            Flaw::NoTokenCheck => Some("token-check"),
        }
    }
}

/// The settings of a run, in addition to its plan.
#[derive(Clone)]
pub struct Settings {
    /// The program of the clients, and its first words.
    pub program: Vec<String>,
    /// A build of the module; none: the usual one.
    pub module: Option<PathBuf>,
    /// What is left out.
    pub flaw: Option<Flaw>,
    /// Set when the run has to end.
    pub interrupted: Arc<AtomicBool>,
    /// Shows the progress.
    pub progress: fn(&str),
}

/// The result of an episode.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was planned.
    pub episode: Episode,
    /// The journal of the clients and the runner.
    pub entries: Vec<Entry>,
    /// When the faults were over, in microseconds.
    pub healed: u64,
    /// Violations and other problems.
    pub problems: Vec<String>,
}

/// The faults of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// How many were planned.
    pub planned: usize,
    /// How many of them had an effect.
    pub happened: usize,
}

impl Record {
    /// The faults of each family.
    pub fn faults(&self) -> BTreeMap<&str, Faults> {
        let mut faults: BTreeMap<&str, Faults> = BTreeMap::new();
        for entry in &self.entries {
            if let What::Fault {
                family,
                begins,
                happened,
                ..
            } = &entry.what
            {
                let faults = faults.entry(family).or_default();
                faults.planned += usize::from(*begins);
                faults.happened += usize::from(*happened == Some(true));
            }
        }
        faults
    }
}

fn now() -> u64 {
    u64::try_from(Moment::now().since_boot().as_micros()).unwrap_or(u64::MAX)
}

/// Everything that runs during an episode. The clients end first.
struct Stage<'a> {
    episode: &'a Episode,
    settings: &'a Settings,
    log: Log,
    clients: Vec<Client>,
    /// How many clients there were at each place.
    generations: Vec<u32>,
    deployment: Box<dyn Deployment>,
    register: Server,
    problems: Vec<String>,
}

/// Runs an episode. None if the run was interrupted. A panic is a problem, and the journal until
/// then is kept.
pub fn run(episode: &Episode, settings: &Settings) -> Result<Option<Record>, String> {
    let log = Log::default();
    match catch_unwind(AssertUnwindSafe(|| run_with(episode, settings, &log))) {
        Ok(done) => done,
        Err(_) => {
            let entries = std::mem::take(&mut *log.entries());
            let mut problems = vec!["the runner panicked: see its message above".to_owned()];
            problems.extend(found_in(&entries));
            Ok(Some(Record {
                episode: episode.clone(),
                entries,
                healed: now(),
                problems,
            }))
        }
    }
}

/// What the checker finds in a journal.
fn found_in(entries: &[Entry]) -> Vec<String> {
    let claims = Claims::of(entries);
    let millis = |at: &Duration| {
        let since = at.as_micros().saturating_sub(start_of(entries).into());
        since / 1000
    };
    let violations = claims.violations(true);
    let violations = violations.iter();
    let violations = violations.map(|(at, what)| format!("{what:?} at {} ms", millis(at)));
    let miscounts = claims.miscounts();
    let miscounts = miscounts.iter();
    let miscounts = miscounts.map(|(at, what)| format!("Miscount at {} ms: {what}", millis(at)));
    violations.chain(miscounts).collect()
}

/// After this many acquisitions, some locks must have been re-entered on a server.
const MANY: usize = 100;

fn run_with(episode: &Episode, settings: &Settings, log: &Log) -> Result<Option<Record>, String> {
    let mut stage = Stage::set(episode, settings, log)?;
    if !stage.apply_faults()? {
        return Ok(None);
    }
    let healed = now();
    stage.recover();
    stage.check_servers();
    let mut problems = std::mem::take(&mut stage.problems);
    // If a check panics, the log still has everything.
    let entries = stage.log.entries().clone();
    problems.extend(found_in(&entries));
    let claims = Claims::of(&entries);
    let acquired = claims.all().filter(|claim| claim.held.is_some()).count();
    if acquired == 0 || episode.faults.is_empty() {
        problems.push("no work was done: this run shows nothing".to_owned());
    }
    let is_reentry = |entry: &Entry| matches!(entry.what, What::Reentered { .. });
    if acquired >= MANY && !entries.iter().any(is_reentry) {
        problems.push("no lock was re-entered on a server".to_owned());
    }
    Ok(Some(Record {
        episode: episode.clone(),
        entries,
        healed,
        problems,
    }))
}

/// When the first line was written.
pub fn start_of(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.at).min().unwrap_or(0)
}

impl<'a> Stage<'a> {
    fn set(episode: &'a Episode, settings: &'a Settings, log: &Log) -> Result<Self, String> {
        (settings.progress)(&format!("{}: starting servers", episode.setup));
        let mut options = Options::default();
        if let Some(module) = &settings.module {
            options = options.module(module);
        }
        if let Some(lacks) = settings.flaw.and_then(Flaw::of_module) {
            options = options.environment("REDISLOCK_WITHOUT", lacks);
        }
        let register = Options::default().without_module().end_with_this_process();
        let mut stage = Self {
            episode,
            settings,
            log: log.clone(),
            clients: Vec::new(),
            generations: vec![0; episode.workers],
            deployment: deployment::start(episode, options),
            register: register.start(),
            problems: Vec::new(),
        };
        // New nodes are quarantined too: the faults start when locks are granted.
        for server in stage.deployment.servers() {
            let grants = || !is_master(server) || in_quarantine(server) == Some(0);
            wait_until("the first quarantine is over", grants);
        }
        for worker in 0..episode.workers {
            let client = stage.client(worker)?;
            stage.clients.push(client);
        }
        Ok(stage)
    }

    fn client(&mut self, worker: usize) -> Result<Client, String> {
        let generation = self.generations[worker];
        self.generations[worker] += 1;
        let client = generation * NEXT + worker as u32;
        let job = Job {
            client,
            seed: self.episode.seed.wrapping_add(u64::from(client)),
            reach: self.deployment.reach(worker),
            locks: (0..self.episode.locks).map(name_of).collect(),
            register: self.register.port(),
            longest_ttl: self.episode.quarantine,
            node_timeout: NODE_TIMEOUT,
            no_write_back: self.settings.flaw == Some(Flaw::NoWriteBack),
            no_fence_check: self.settings.flaw == Some(Flaw::NoFenceCheck),
        };
        Client::start(&self.settings.program, &job, &self.log)
    }

    /// Lets the faults happen. False if the run was interrupted.
    fn apply_faults(&mut self) -> Result<bool, String> {
        let faults = &self.episode.faults;
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (number, fault) in faults.iter().enumerate() {
            events.push((fault.at, true, number));
            events.push((fault.at + fault.length, false, number));
        }
        events.sort_unstable();
        let mut events = events.into_iter().peekable();
        let start = Instant::now();
        let length = Duration::from_millis(self.episode.length);
        let mut said = Instant::now();
        while start.elapsed() < length || events.peek().is_some() {
            if self.settings.interrupted.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let due = |(at, ..): &(u64, bool, usize)| start.elapsed() >= Duration::from_millis(*at);
            if let Some((_, begins, number)) = events.next_if(due) {
                self.fault(number, begins)?;
                continue;
            }
            self.deployment.tick();
            if said.elapsed() >= Duration::from_secs(1) {
                said = Instant::now();
                self.say(start.elapsed());
            }
            std::thread::sleep(TICK);
        }
        Ok(true)
    }

    fn say(&self, elapsed: Duration) {
        let entries = self.log.entries();
        let count = |wanted: fn(&What) -> bool| entries.iter().filter(|e| wanted(&e.what)).count();
        let acquired = count(|what| matches!(what, What::Held { .. }));
        let faults = count(|what| matches!(what, What::Fault { begins: true, .. }));
        (self.settings.progress)(&format!(
            "{}: {} of {} s, {faults} faults, {acquired} acquisitions",
            self.episode.setup,
            elapsed.as_secs(),
            self.episode.length / 1000
        ));
    }

    fn fault(&mut self, number: usize, begins: bool) -> Result<(), String> {
        let fault = self.episode.faults[number];
        // A beginning is written first, and an end when its effect is known.
        if begins {
            self.write(&fault, None);
            self.begin(&fault.kind);
        } else {
            let happened = self.end(&fault.kind)?;
            self.write(&fault, Some(happened));
        }
        Ok(())
    }

    fn write(&self, fault: &Fault, happened: Option<bool>) {
        self.log.entries().push(Entry {
            at: now(),
            client: 0,
            claim: 0,
            what: What::Fault {
                name: fault.kind.to_string(),
                family: fault.family.name().to_owned(),
                begins: happened.is_none(),
                happened,
            },
        });
    }

    fn begin(&mut self, kind: &Kind) {
        match *kind {
            Kind::PauseClient { worker } | Kind::KillClient { worker } => {
                let client = &mut self.clients[worker];
                if !client.is_alive() {
                    let problem = format!("client {worker} ended before the fault '{kind}'");
                    self.problems.push(problem);
                }
                match kind {
                    Kind::PauseClient { .. } => client.pause(),
                    _ => client.kill(),
                }
            }
            _ => self.deployment.begin(kind),
        }
    }

    /// Whether the fault had an effect.
    fn end(&mut self, kind: &Kind) -> Result<bool, String> {
        match *kind {
            Kind::PauseClient { worker } => self.clients[worker].resume(),
            Kind::KillClient { worker } => self.clients[worker] = self.client(worker)?,
            _ => return Ok(self.deployment.end(kind)),
        }
        Ok(true)
    }

    /// After the faults, every client acquires every lock, and then nothing is left.
    fn recover(&mut self) {
        (self.settings.progress)(&format!("{}: recovering", self.episode.setup));
        self.deployment.heal();
        self.problems.extend(self.deployment.problems());
        self.clients.iter_mut().for_each(Client::recover);
        for (worker, client) in self.clients.drain(..).enumerate() {
            if let Err(problem) = client.end(PATIENCE) {
                self.problems.push(format!(
                    "Liveness: client {worker} does not recover: {problem}"
                ));
            }
        }
    }

    fn check_servers(&mut self) {
        for (number, server) in self.deployment.servers().into_iter().enumerate() {
            if !server.is_alive() {
                let log = last_lines(&server.whole_log());
                self.problems.push(format!(
                    "Crash: server {number} has ended by itself; its log: {log}"
                ));
                continue;
            }
            let problem = match replies_soon(server) {
                Err(error) => Some(format!("Hang: server {number} does not reply: {error}")),
                Ok(()) if is_master(server) && !is_empty_soon(server) => {
                    Some(format!("Orphan: server {number} keeps a lock or a waiter"))
                }
                Ok(()) => None,
            };
            self.problems.extend(problem);
            let lines = complaints(server).into_iter();
            let lines = lines.map(|line| format!("Crash: server {number}: {line}"));
            self.problems.extend(lines);
        }
    }
}

/// Waits until a server, master or replica, replies to LOCK.NODE.
fn replies_soon(server: &Server) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match node(server) {
            Ok(_) => return Ok(()),
            Err(error) if start.elapsed() > redislock_testkit::PATIENCE => {
                return Err(error.to_string());
            }
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

fn in_quarantine(server: &Server) -> Option<i64> {
    node(server).ok().map(|node| node.number("quarantine"))
}

/// Whether no lock and no waiter is left once every lease is over.
fn is_empty_soon(server: &Server) -> bool {
    let start = Instant::now();
    loop {
        let left = node(server).map(|node| node.number("locks") + node.number("waiters"));
        match left {
            Ok(0) => return true,
            _ if start.elapsed() > redislock_testkit::PATIENCE => return false,
            _ => std::thread::sleep(TICK),
        }
    }
}
