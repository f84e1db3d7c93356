//! The cost of the locks, compared with the alternatives: in one run, taking turns, on the same
//! server program, which has loaded our module only for our locks.
//!
//! `redislock-bench [section ...] [--locks n] [--waiters n] [--keep]` measures; without a section,
//! all of them. It prints tables and adds every round to `target/bench/results.json`, or with
//! `--keep` only to `bench/results.json`, which docs/PERFORMANCE.md shows. The figures do not
//! affect the exit code: it is 0 unless something could not be measured. A tool that is missing
//! (valgrind, cc) is not a failure: a line says so. `REDISLOCK_SO` is the module; if
//! `REDISLOCK_UNTRAINED` names another one, built without a profile, that is measured beside it.
//!
//! `redislock-bench report` measures nothing: it writes the tables and pictures of
//! docs/PERFORMANCE.md from `bench/results.json` and from what `bench/peers/run.py` has found.
//! `redislock-bench peers file` prints the tables of what it has found, and `redislock-bench train`
//! uses the module as `make trained` needs it.

mod client;
mod deadlock;
mod document;
mod growth;
mod handover;
mod hosts;
mod in_core;
mod instructions;
mod measure;
mod measured;
mod memory;
mod pairs;
mod peers;
mod plot;
mod report;
mod results;
mod several;
mod summary;
mod sweeper;
mod targets;
mod training;
mod waiters;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use redislock_testkit::project_folder;
use results::{Chart, Results, Run};

/// Errors are texts, for the person who runs it.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The largest numbers in the sections with growing numbers.
struct Scale {
    locks: usize,
    waiters: usize,
}

/// What can be measured by itself.
struct Section {
    name: &'static str,
    /// What it shows.
    about: &'static str,
    /// Where the alternatives run; none if it has no alternatives.
    alternatives: Option<&'static str>,
    measure: fn(&Scale) -> Outcome<Vec<Chart>>,
}

const fn section(
    name: &'static str,
    about: &'static str,
    alternatives: Option<&'static str>,
    measure: fn(&Scale) -> Outcome<Vec<Chart>>,
) -> Section {
    Section {
        name,
        about,
        alternatives,
        measure,
    }
}

const APART: Option<&str> = Some("the alternatives ran on a server without the module");
const TOGETHER: Option<&str> =
    Some("the alternatives ran on the server with the module, which is not called by them");

const SECTIONS: &[Section] = &[
    section(
        "pairs",
        "CPU time of an acquire and its release",
        APART,
        |_| pairs::measure(),
    ),
    section(
        "instructions",
        "Instructions, counted by valgrind",
        APART,
        |_| instructions::measure(),
    ),
    section("memory", "Memory", APART, |_| memory::measure()),
    section("handover", "Hand-over under contention", APART, |_| {
        handover::measure()
    }),
    section("growth", "More and more locks", APART, growth::measure),
    section(
        "waiters",
        "More and more waiters",
        TOGETHER,
        waiters::measure,
    ),
    section("deadlock", "The search for deadlocks", None, |_| {
        deadlock::measure()
    }),
    section("several", "Several keys, guarded commands", APART, |_| {
        several::measure()
    }),
    section("client", "The Rust client over five masters", APART, |_| {
        client::measure()
    }),
];

fn main() -> ExitCode {
    let wishes = Wishes::read(std::env::args().skip(1));
    let done = wishes.and_then(|wishes| match wishes {
        Wishes::Measure {
            sections,
            scale,
            keep,
        } => with_sweeper(|| run(&sections, &scale, keep)),
        Wishes::Report => document::write(&project_folder()),
        Wishes::Peers(file) => peers::print(&project_folder(), &file),
        Wishes::Train => with_sweeper(training::run),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Does the work, and leaves no temporary directory, also if a signal ends this process.
fn with_sweeper(work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let _sweeper = sweeper::Sweeper::start()?;
    work()
}

/// What the command line asks for.
enum Wishes {
    Measure {
        sections: Vec<&'static Section>,
        scale: Scale,
        /// Whether the results replace those of the project.
        keep: bool,
    },
    Report,
    Peers(PathBuf),
    Train,
}

impl Wishes {
    fn read(words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut words = words.peekable();
        for (name, wish) in [("report", Self::Report), ("train", Self::Train)] {
            if words.next_if(|word| word == name).is_some() {
                return match words.next() {
                    None => Ok(wish),
                    Some(word) => Err(format!("{name} takes no {word}").into()),
                };
            }
        }
        if words.next_if(|word| word == "peers").is_some() {
            let file = words.next().ok_or("peers needs a file")?;
            return Ok(Self::Peers(file.into()));
        }
        let mut sections = Vec::new();
        let mut scale = Scale {
            locks: 1_000_000,
            waiters: 50_000,
        };
        let mut keep = false;
        let mut limited = Vec::new();
        while let Some(word) = words.next() {
            let mut number = || -> Outcome<usize> {
                let given = words
                    .next()
                    .ok_or_else(|| format!("{word} needs a number"))?;
                Ok(given
                    .parse()
                    .map_err(|_| format!("{word} {given}: no number"))?)
            };
            match word.as_str() {
                "--locks" => {
                    scale.locks = allowed(&word, number()?, &growth::SIZES)?;
                    limited.push((word, "growth"));
                }
                "--waiters" => {
                    scale.waiters = allowed(&word, number()?, &waiters::SIZES)?;
                    limited.push((word, "waiters"));
                }
                "--keep" => keep = true,
                _ => {
                    let section = SECTIONS.iter().find(|section| section.name == word);
                    sections.push(section.ok_or_else(|| {
                        let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
                        format!("no section {word}; there are: {}", names.join(", "))
                    })?);
                }
            }
        }
        if sections.is_empty() {
            sections = SECTIONS.iter().collect();
        }
        for (word, name) in limited {
            if !sections.iter().any(|section| section.name == name) {
                return Err(format!("{word} is only for the section {name}").into());
            }
        }
        Ok(Self::Measure {
            sections,
            scale,
            keep,
        })
    }
}

/// A number within the measured sizes.
fn allowed(word: &str, number: usize, sizes: &[usize]) -> Outcome<usize> {
    let (least, most) = (sizes[0], sizes[sizes.len() - 1]);
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    Err(format!("{word} {number}: {least} to {most} are allowed").into())
}

/// The sizes up to this number, and the number itself.
fn up_to(sizes: &[usize], most: usize) -> Vec<usize> {
    let smaller = sizes.iter().copied().filter(|size| *size < most);
    smaller.chain([most]).collect()
}

/// Measures these sections. One that fails does not stop the others.
fn run(sections: &[&Section], scale: &Scale, keep: bool) -> Outcome<()> {
    let path = if keep {
        project_folder().join(results::FILE)
    } else {
        target_folder().join(results::LAST)
    };
    let trained = hosts::is_trained();
    if keep && trained != Some(true) {
        return Err(
            "--keep needs the module with a profile: make bench KEEP=1, with rustup".into(),
        );
    }
    if trained.is_none() {
        eprintln!(
            "the module is not a build of this project: the tables do not say how it was built"
        );
    }
    let server = measured::server_name()?;
    // At the start: the results change the working tree.
    let (commit, date) = (measured::commit(), measured::date());
    let mut now = Results::default();
    let mut failed = Vec::new();
    for (number, section) in sections.iter().enumerate() {
        let Section { name, .. } = section;
        measure::set_part(format!("[{}/{} {name}] ", number + 1, sections.len()));
        let (start, load) = (Instant::now(), measured::load());
        let times = measured::Times::now();
        let found = (section.measure)(scale);
        measure::progress("");
        let charts = match found {
            Ok(charts) => charts,
            Err(error) => {
                eprintln!("{name} could not be measured: {error}");
                failed.push(*name);
                continue;
            }
        };
        eprintln!("{name} took {:.0} s", start.elapsed().as_secs_f64());
        if charts.is_empty() {
            continue;
        }
        let run = Run {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.clone(),
            trained,
            date: date.clone(),
            alternatives: section.alternatives.map(str::to_owned),
            machine: measured::machine(),
            load,
            stolen: times.and_then(measured::Times::stolen_since),
            charts,
        };
        // Written at once: a later section may not end.
        Results::add_to(&path, name, &server, run.clone())?;
        now.put(name, &server, run);
        println!("## {}\n\n{}", section.about, report::section(&now, name));
    }
    println!("## Targets\n\n{}", report::targets(&now));
    eprintln!("every round: {}", path.display());
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("not measured: {}", failed.join(", ")).into())
    }
}

/// Where cargo builds.
fn target_folder() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR");
    chosen.map_or_else(|| project_folder().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Outcome<Wishes> {
        Wishes::read(words.split(' ').map(str::to_owned))
    }

    #[test]
    fn a_number_that_gives_nothing_is_refused_with_those_that_are_allowed() {
        for (words, reason) in [
            ("--waiters 5", "--waiters 5: 10 to 50000 are allowed"),
            (
                "--waiters 50001",
                "--waiters 50001: 10 to 50000 are allowed",
            ),
            ("--locks 500", "--locks 500: 1000 to 10000000 are allowed"),
            ("--locks 1e6", "--locks 1e6: no number"),
            (
                "pairs --locks 1000",
                "--locks is only for the section growth",
            ),
        ] {
            let refused = read(words).err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), Some(reason));
        }
        assert!(read("--locks 1000 --waiters 50000").is_ok());
        assert!(read("growth --locks 5000000").is_ok());
    }

    #[test]
    fn a_number_between_two_sizes_is_measured_after_those_below() {
        assert_eq!(up_to(&[10, 100, 1_000], 500), [10, 100, 500]);
        assert_eq!(up_to(&[10, 100, 1_000], 100), [10, 100]);
        assert_eq!(up_to(&[10, 100, 1_000], 10), [10]);
    }
}
