//! What all deployments can do: start, undergo faults, recover, and be inspected.

use std::io;

use redislock_testkit::{Options, Server, Value};

use super::clustered::Clustered;
use super::independent::Independent;
use super::plan::{Episode, Kind, Setup};
use super::watched::Watched;
use super::worker::Reach;

/// A deployment of real servers. Everything that it has started ends when it is dropped.
pub trait Deployment {
    /// How this client reaches it.
    fn reach(&self, worker: usize) -> Reach;
    /// A fault begins.
    fn begin(&mut self, kind: &Kind);
    /// It ends. Returns whether it had an effect.
    fn end(&mut self, kind: &Kind) -> bool;
    /// Some milliseconds have passed.
    fn tick(&mut self) {}
    /// All faults are over: waits until every server runs again.
    fn heal(&mut self);
    /// The servers, all of which must run now.
    fn servers(&mut self) -> Vec<&mut Server>;
    /// Problems that were noticed during the run.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Starts what an episode needs.
pub fn start(episode: &Episode, options: Options) -> Box<dyn Deployment> {
    let options = options.end_with_this_process();
    let quarantine = format!("lock.quarantine {}", episode.quarantine);
    match episode.setup {
        Setup::Volatile { nodes } => {
            let options = options.config(&quarantine);
            Box::new(Independent::start(nodes, episode.workers, options, false))
        }
        Setup::Durable { nodes } => {
            let options = options.appendonly("always");
            Box::new(Independent::start(nodes, episode.workers, options, true))
        }
        Setup::Sentinel => Box::new(Watched::start(replicated(options, &quarantine))),
        Setup::Cluster => Box::new(Clustered::start(replicated(options, &quarantine))),
    }
}

/// The configuration of docs/OPERATIONS.md, with shorter times.
fn replicated(options: Options, quarantine: &str) -> Options {
    let options = options.appendonly("everysec").config(quarantine);
    options.configs(["min-replicas-to-write 1", "min-replicas-max-lag 1"])
}

/// The last lines of a log, the last one first.
pub fn last_lines(log: &str) -> String {
    let last: Vec<_> = log.lines().rev().take(3).collect();
    last.join(" | ")
}

/// What a node reports about itself, if it replies.
pub fn node(server: &Server) -> io::Result<Value> {
    server.try_connect()?.try_call(&["LOCK.NODE"])
}

/// Whether the node replies as a master.
pub fn is_master(server: &Server) -> bool {
    node(server).is_ok_and(|node| node.field("role").text() == "master")
}

/// What a server has logged that it should never log.
pub fn complaints(server: &Server) -> Vec<String> {
    const NEVER: [&str; 4] = [
        "BUG REPORT START",
        "panicked",
        "internal error",
        "ASSERTION FAILED",
    ];
    let log = server.whole_log();
    let lines = log.lines();
    lines
        .filter(|line| NEVER.iter().any(|never| line.contains(never)))
        .map(str::to_owned)
        .collect()
}
