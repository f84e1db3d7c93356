//! `redlock`: distributed locks for the shell.
//!
//! `args.rs` is the command line; a file a verb (`run.rs`, `acquire.rs`, `status.rs`, …); `supervise.rs` looks after the
//! command of `run` with `child.rs`, `signals.rs` and `terminal.rs`; `merged.rs` makes one picture of what all nodes
//! say; `voice.rs` is everything that is printed; `demo/` is the show.

#![deny(unsafe_code)]

mod acquire;
mod args;
mod child;
mod demo;
mod duration;
mod exit;
mod force;
mod ls;
mod merged;
mod nodes;
mod nodes_given;
mod pages;
mod program;
mod run;
mod signals;
mod status;
mod supervise;
mod table;
mod terminal;
mod voice;
mod waiting;

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Cli, Verb};
use crate::exit::Failure;
use crate::voice::Voice;

/// As many files as one needs to run a command under a lock of three nodes.
const FILES: usize = 12;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    let voice = Voice::new(cli.json);
    if let Err(error) = room_for_files() {
        voice.fail(&Failure::io("cannot start, try ulimit -n 64", &error));
        return ExitCode::from(exit::IO);
    }
    // One thread: it starts the command, which the kernel ends when that very thread is gone.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(carry_out(cli.verb, &voice));
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(Failure::io("cannot start", &error)),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            voice.fail(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// The runtime panics where it cannot open its own files: better to know before.
fn room_for_files() -> std::io::Result<()> {
    let error = std::io::stderr();
    let files = (0..FILES).map(|_| error.as_fd().try_clone_to_owned());
    files.collect::<Result<Vec<_>, _>>().map(drop)
}

async fn carry_out(verb: Verb, voice: &Voice) -> Result<u8, Failure> {
    match verb {
        Verb::Run(args) => run::run(args, voice).await,
        Verb::Acquire(args) => acquire::acquire(args, voice).await,
        Verb::Extend(args) => acquire::extend(args, voice).await,
        Verb::Release(args) => acquire::release(args, voice).await,
        Verb::Status(args) => status::status(args, voice).await,
        Verb::Ls(args) => ls::ls(args, voice).await,
        Verb::Force(args) => force::force(args, voice).await,
        Verb::Nodes(args) => nodes::nodes(args, voice).await,
        Verb::Demo(args) => demo::demo(args, voice).await,
        Verb::DemoWorker(args) => demo::work(args).await,
        Verb::Completions { shell } => pages::completions(shell, voice),
        Verb::Man { verb } => pages::manual(verb.as_deref(), voice),
    }
}

/// Help and version are no errors; everything else is one sentence that says what to change.
fn misunderstood(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nobody reads on: nothing is wrong with that.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(exit::USAGE)
        }
        kind => {
            let whole = error.to_string();
            let first = match kind {
                // Would list the hidden ones, too.
                ErrorKind::MissingSubcommand => "no subcommand is given: try run",
                ErrorKind::UnknownArgument if is_command_of_run(error) => {
                    "the command stands after --, as in: redlock run --key NAME -- COMMAND"
                }
                _ => whole.split("\n\n").next().unwrap_or(&whole),
            };
            let words: Vec<&str> = first.split_whitespace().collect();
            let sentence = words.join(" ");
            let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
            let json = std::env::args_os()
                .take_while(|word| word != "--")
                .any(|word| word == "--json");
            Voice::new(json).fail(&Failure::usage(format!("{sentence} (see redlock --help)")));
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Whoever is used to flock(1) forgets the `--`.
fn is_command_of_run(error: &clap::Error) -> bool {
    let unknown = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(unknown)) => unknown,
        _ => return false,
    };
    !unknown.starts_with('-') && std::env::args_os().skip(1).any(|word| word == "run")
}
