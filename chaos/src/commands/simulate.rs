//! `redislock-chaos simulate`: runs seeds on all cores, and reduces the first that fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redislock_chaos::simulation::{Counts, FLAWS, Outcome, Plan, Planted, reduce, run};

pub const USAGE: &str = "\
usage: redislock-chaos simulate [--seeds COUNT] [--first SEED] [--seed SEED] [--nodes N]
                                [--jobs THREADS] [--flaw NAME] [--trace]
  --seeds COUNT   how many seeds to run (1000)
  --first SEED    the first of them (1)
  --seed SEED     only this one
  --nodes N       with so many nodes, whatever the seed says
  --jobs THREADS  how many at the same time (one for each core)
  --flaw NAME     without a protection, to see that it is noticed
  --trace         print what happened, also if no promise is broken (with --seed)";

/// What the command line asks for.
struct Options {
    first: u64,
    count: u64,
    nodes: Option<usize>,
    jobs: usize,
    flaw: Option<Planted>,
    trace: bool,
}

/// Runs the command; false if a promise was broken.
pub fn command(args: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(args)?;
    simulate(&options).map_err(|error| error.to_string())
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = std::thread::available_parallelism();
        let mut options = Self {
            first: 1,
            count: 1000,
            nodes: None,
            jobs: cores.map_or(1, usize::from),
            flaw: None,
            trace: false,
        };
        while let Some(name) = args.next() {
            if name == "--trace" {
                options.trace = true;
                continue;
            }
            let value = args
                .next()
                .ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{name} needs a number"))
            };
            match name.as_str() {
                "--seeds" => options.count = number()?,
                "--first" => options.first = number()?,
                "--seed" => (options.first, options.count) = (number()?, 1),
                "--nodes" => options.nodes = Some(number()? as usize),
                "--jobs" => options.jobs = (number()? as usize).max(1),
                "--flaw" => options.flaw = Some(flaw(&value)?),
                _ => return Err(format!("unknown option {name}\n{USAGE}")),
            }
        }
        Ok(options)
    }

    fn plan(&self, seed: u64) -> Plan {
        Plan::new(seed, self.nodes, self.flaw)
    }
}

fn flaw(wanted: &str) -> Result<Planted, String> {
    let known = FLAWS.iter().find(|(name, _)| *name == wanted);
    let names = FLAWS.map(|(name, _)| name).join(", ");
    known
        .map(|(_, flaw)| *flaw)
        .ok_or_else(|| format!("no such flaw; there are: {names}"))
}

/// The sum of all runs.
#[derive(Default)]
struct Report {
    by_nodes: [u64; 6],
    /// Seeds in which the order of fences is promised, and so checked.
    ordered: u64,
    failed: Vec<u64>,
    /// Faults in the plans; `counts` has those that happened.
    planned: u64,
    machines: u64,
    events: u64,
    counts: Counts,
}

/// So many seeds must have a register that refuses a late write: otherwise the run shows nothing
/// about them.
const MANY: u64 = 100;

impl Report {
    fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        self.by_nodes[plan.nodes.min(5)] += 1;
        self.ordered += u64::from(plan.promises_fences());
        self.planned += plan.faults.len() as u64;
        self.events += outcome.events;
        let (sum, one) = (&mut self.counts, &outcome.counts);
        sum.faults += one.faults;
        sum.acquired += one.acquired;
        sum.refused += one.refused;
        sum.cancelled += one.cancelled;
        sum.lost += one.lost;
        sum.writes += one.writes;
        sum.fenced_off += one.fenced_off;
        sum.delayed += one.delayed;
        sum.recovery = sum.recovery.max(one.recovery);
        sum.late = sum.late.max(one.late);
        sum.settled += one.settled;
        sum.repeated_releases += one.repeated_releases;
        self.machines += plan.machines as u64;
        if let Some(violation) = &outcome.violation {
            println!("seed {} (N = {}): {violation}", plan.seed, plan.nodes);
            self.failed.push(plan.seed);
        }
    }

    fn lacks_late_writes(&self) -> bool {
        let seeds: u64 = self.by_nodes.iter().sum();
        seeds >= MANY && self.counts.delayed.refused == 0
    }

    fn print(&self, took: Duration) {
        let Counts {
            faults,
            acquired,
            refused,
            cancelled,
            lost,
            writes,
            fenced_off,
            delayed,
            recovery,
            late,
            settled,
            repeated_releases,
        } = self.counts;
        let [_, one, _, three, _, five] = self.by_nodes;
        let seeds: u64 = self.by_nodes.iter().sum();
        println!(
            "{seeds} seeds in {:.0} s (N = 1: {one}, N = 3: {three}, N = 5: {five}), {} events",
            took.as_secs_f64(),
            self.events
        );
        println!(
            "{} faults planned, {faults} happened: the others changed nothing, such as a crash of \
             a node that is down",
            self.planned
        );
        println!(
            "{acquired} acquisitions, {refused} refused, {cancelled} cancelled, {lost} lost; \
             {writes} writes, {fenced_off} fenced off"
        );
        println!(
            "{} writes were delayed in the network, {} of them arrived after the hold was over, \
             {} of these were refused",
            delayed.all, delayed.late, delayed.refused
        );
        if self.lacks_late_writes() {
            println!("PROBLEM no register refused a late write: this run shows nothing about them");
        }
        println!(
            "slowest recovery {} ms; at most {} ms more than the longest lease and the quarantine; \
             {settled} of {} machines used every lock once more; {repeated_releases} releases got \
             no reply",
            recovery / 1000,
            late / 1000,
            self.machines
        );
        println!("the order of fences was checked in {} seeds", self.ordered);
        println!("{} seeds broke a promise", self.failed.len());
    }
}

/// Runs seeds until there are none left.
fn work(options: &Options, next: &AtomicU64, report: &Mutex<Report>) -> std::io::Result<()> {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= options.count {
            return Ok(());
        }
        let plan = options.plan(options.first + at);
        let outcome = run(&plan, options.trace)?;
        print_trace(&outcome);
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.add(&plan, &outcome);
    }
}

fn simulate(options: &Options) -> std::io::Result<bool> {
    let (start, next) = (Instant::now(), AtomicU64::new(0));
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        let threads = (0..options.jobs).map(|_| scope.spawn(|| work(options, &next, &report)));
        let threads: Vec<_> = threads.collect();
        let mut done = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.try_for_each(|done| done)
    })?;
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.print(start.elapsed());
    report.failed.sort_unstable();
    if let Some(seed) = report.failed.first() {
        explain(&options.plan(*seed))?;
    }
    Ok(report.failed.is_empty() && !report.lacks_late_writes())
}

/// Shows the smallest plan of this kind that still fails.
fn explain(plan: &Plan) -> std::io::Result<()> {
    println!("\nreducing seed {}", plan.seed);
    let (smallest, outcome) = reduce(plan)?;
    println!("{smallest:#?}");
    print_trace(&outcome);
    Ok(())
}

fn print_trace(outcome: &Outcome) {
    for (at, text) in &outcome.trace {
        println!("{at:>6} ms  {text}");
    }
}
