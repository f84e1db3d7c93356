//! What the locks cost, beside what people use instead: ratios in one run on one server, ours and the peer alternating.
//!
//! `redislock-bench [section ...] [--plots folder]`. Without a section all of them run. The figures decide nothing: the exit
//! code is 0 unless something could not be measured.

mod crowd;
mod expiry;
mod handover;
mod instructions;
mod locks;
mod measure;
mod memory;
mod pairs;
mod report;
mod resp;
mod server;
mod several;

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
        name: "crowd",
        measure: crowd::measure,
    },
    Section {
        name: "several",
        measure: several::measure,
    },
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    match run(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wanted: &[String]) -> Outcome<()> {
    let names = || {
        SECTIONS
            .iter()
            .map(|section| section.name)
            .collect::<Vec<_>>()
    };
    if let Some(unknown) = wanted.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(format!("no section {unknown}; there are: {}", names().join(", ")).into());
    }
    let mut rows = Vec::new();
    for section in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|name| name == section.name) {
            let start = Instant::now();
            rows.extend((section.measure)().map_err(|error| format!("{}: {error}", section.name))?);
            measure::progress("");
            eprintln!(
                "{} took {:.0} s",
                section.name,
                start.elapsed().as_secs_f64()
            );
        }
    }
    println!("{}", report::table(&rows));
    Ok(())
}
