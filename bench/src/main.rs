//! What the locks cost, beside what people use instead: ratios in one run on one server, ours and
//! the peer alternating.
//!
//! `redislock-bench [section ...] [--plots folder]`. Without a section all of them run. The figures
//! decide nothing: the exit code is 0 unless something could not be measured.

mod deadlock;
mod expiry;
mod handover;
mod instructions;
mod locks;
mod measure;
mod measured;
mod memory;
mod pairs;
mod plot;
mod report;
mod several;
mod waiters;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use report::Row;

/// What can go wrong is told to a person, not to a program.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What can be measured by itself.
struct Section {
    name: &'static str,
    measure: fn() -> Outcome<Vec<Row>>,
}

const SECTIONS: &[Section] = &[
    Section {
        name: "pairs",
        measure: pairs::measure,
    },
    Section {
        name: "instructions",
        measure: instructions::measure,
    },
    Section {
        name: "memory",
        measure: memory::measure,
    },
    Section {
        name: "expiry",
        measure: expiry::measure,
    },
    Section {
        name: "handover",
        measure: handover::measure,
    },
    Section {
        name: "waiters",
        measure: waiters::measure,
    },
    Section {
        name: "deadlock",
        measure: deadlock::measure,
    },
    Section {
        name: "several",
        measure: several::measure,
    },
];

fn main() -> ExitCode {
    let wishes = Wishes::read(std::env::args().skip(1));
    match wishes.and_then(|wishes| run(&wishes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What the command line asks for.
struct Wishes {
    sections: Vec<&'static Section>,
    plots: Option<PathBuf>,
}

impl Wishes {
    fn read(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let (mut sections, mut plots) = (Vec::new(), None);
        while let Some(word) = words.next() {
            if word == "--plots" {
                plots = Some(words.next().ok_or("--plots needs a folder")?.into());
                continue;
            }
            let section = SECTIONS.iter().find(|section| section.name == word);
            sections.push(section.ok_or_else(|| {
                let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
                format!("no section {word}; there are: {}", names.join(", "))
            })?);
        }
        if sections.is_empty() {
            sections = SECTIONS.iter().collect();
        }
        Ok(Self { sections, plots })
    }
}

fn run(wishes: &Wishes) -> Outcome<()> {
    let mut all = Vec::new();
    for section in &wishes.sections {
        let start = Instant::now();
        let rows = (section.measure)().map_err(|error| format!("{}: {error}", section.name))?;
        measure::progress("");
        eprintln!(
            "{} took {:.0} s",
            section.name,
            start.elapsed().as_secs_f64()
        );
        if let Some(folder) = &wishes.plots {
            plot::draw(folder, section.name, &rows)?;
        }
        all.extend(rows);
    }
    println!("{}", report::table(&all));
    Ok(())
}
