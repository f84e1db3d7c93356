//! Chaos on real servers: real client processes use locks while faults happen to servers, links,
//! clocks, disks and the clients themselves, as a seed determines. The results that the clients saw
//! are checked by the same functions as in the simulation.

mod client;
mod clustered;
mod deployment;
mod episode;
mod independent;
mod plan;
mod porcupine;
mod reentry;
mod register;
mod report;
mod timeline;
mod watched;
mod worker;

pub use episode::{Flaw, Record, Settings, run};
pub use plan::{Episode, FAMILIES, Family, Plan};
pub use porcupine::{Porcupine, Verdict};
pub use report::{journal, summary, without_effect};
pub use timeline::draw;
pub use worker::{Job, work};

/// The name of a lock.
pub fn name_of(lock: usize) -> String {
    format!("lock-{lock}")
}

/// The name of a second lock in the same slot of a cluster, for requests for both.
pub fn companion_of(name: &str) -> String {
    format!("{{{name}}}-companion")
}
