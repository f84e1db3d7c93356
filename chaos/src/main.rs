//! `redislock-chaos simulate`: runs seeds of the simulation. `redislock-chaos run`: chaos on real
//! servers. It starts itself again as `redislock-chaos worker`, a client process.

#![forbid(unsafe_code)]

mod commands;

use std::process::ExitCode;

use commands::{chaos, simulate};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some("simulate") => simulate::command(args),
        Some("run") => chaos::command(args),
        Some("worker") => chaos::worker(args).map(|()| true),
        _ => Err(format!("{}\n{}", simulate::USAGE, chaos::USAGE)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}
