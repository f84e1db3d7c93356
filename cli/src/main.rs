//! `redlock`: distributed locks for the shell.
//!
//! `args.rs` is the command line, `help.rs` its longer texts. There is one file per verb (`run.rs`,
//! `acquire.rs`, `status.rs`, …). `hold.rs` gets the lock, `connect.rs` the connections;
//! `node_urls.rs` reads their URLs. `supervise.rs` watches the command of `run`, with
//! `process_group.rs`, `signals.rs` and `terminal.rs`. `view.rs` asks the nodes, `summary.rs`
//! combines what they say about a lock. `doctor/` checks a deployment, `exporter/` serves metrics.
//! `watch/` asks the nodes again and again; `top/` shows that in the terminal, `serve/` on a web
//! page, with the server in `http/`; `sort.rs` has the orders of locks. `raw_reply.rs` reads
//! replies, `names.rs` shows names of others, `output.rs` prints.

#![deny(unsafe_code)]

mod acquire;
mod args;
mod command_path;
mod completions;
mod connect;
mod doctor;
mod duration;
mod exit;
mod exporter;
mod force;
mod help;
mod hold;
mod http;
mod ls;
mod man_page;
mod min_hold;
mod names;
mod node_urls;
mod nodes;
mod output;
mod process_group;
mod progress;
mod raw_reply;
mod refusal;
mod remedy;
mod run;
mod serve;
mod signals;
mod sort;
mod status;
mod summary;
mod supervise;
mod table;
mod terminal;
mod top;
mod view;
mod watch;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Cli, Verb};
use crate::exit::Failure;
use crate::output::Output;

/// The number of files that running a command under a lock of three nodes needs.
const FILES: usize = 12;

fn main() -> ExitCode {
    let (json, result) = match Cli::try_parse() {
        Ok(cli) => (cli.json, start(cli)),
        Err(error) => (has_json_flag(), not_parsed(&error)),
    };
    // The code alone does not show it: `--conflict-exit-code 0` makes it 0.
    let failed = !matches!(result, Ok(0));
    let code = result.unwrap_or_else(|failure| {
        if !failure.is_silent {
            Output::new(json).failure(&failure);
        }
        failure.code
    });
    if failed && !json && verb_given().is_some_and(|verb| verb == "acquire") {
        // If this cannot be printed either, nothing is left to try.
        let _ = Output::new(json).print_all(acquire::NOT_ACQUIRED);
    }
    ExitCode::from(code)
}

fn start(cli: Cli) -> Result<u8, Failure> {
    has_room_for_files().map_err(|error| Failure::io("cannot start, try ulimit -n 64", &error))?;
    let output = Output::new(cli.json);
    // One thread: it starts the command, and the kernel kills the command when that thread ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start", &error))?;
    let result = runtime.block_on(carry_out(cli.verb, &output));
    runtime.shutdown_background();
    output.clear();
    result
}

/// The runtime panics if it cannot open its own files: better to fail before that.
fn has_room_for_files() -> std::io::Result<()> {
    let error = std::io::stderr();
    let files = (0..FILES).map(|_| error.as_fd().try_clone_to_owned());
    files.collect::<Result<Vec<_>, _>>().map(drop)
}

async fn carry_out(verb: Verb, output: &Output) -> Result<u8, Failure> {
    match verb {
        Verb::Run(args) => {
            let quiet = args.wanted.quiet;
            silenced(run::run(args, output).await, quiet)
        }
        Verb::Acquire(args) => {
            let quiet = args.wanted.quiet;
            silenced(acquire::acquire(args, output).await, quiet)
        }
        Verb::Extend(args) => acquire::extend(args, output).await,
        Verb::Release(args) => acquire::release(args, output).await,
        Verb::Status(args) => status::status(args, output).await,
        Verb::Ls(args) => ls::ls(args, output).await,
        Verb::Force(args) => force::force(args, output).await,
        Verb::Nodes(args) => nodes::nodes(args, output).await,
        Verb::Doctor(args) => doctor::doctor(args, output).await,
        Verb::Exporter(args) => exporter::exporter(args, output).await,
        Verb::Top(args) => top::top(args, output).await,
        Verb::Serve(args) => serve::serve(args, output).await,
        Verb::Completions { shell } => completions::print(shell, output),
        Verb::Man { verb } => man_page::print(verb.as_deref(), output),
    }
}

/// With `--quiet`, a lock that another client holds is reported only by the exit code.
fn silenced(result: Result<u8, Failure>, quiet: bool) -> Result<u8, Failure> {
    result.map_err(|failure| Failure {
        is_silent: quiet && failure.is_busy,
        ..failure
    })
}

/// Help and version are not errors; everything else is one sentence that says what to change.
fn not_parsed(error: &clap::Error) -> Result<u8, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that has closed the pipe is not an error.
            let _ = error.print();
            Ok(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(exit::USAGE)
        }
        kind => {
            let whole = error.to_string();
            let first = match kind {
                // clap would list the hidden ones, too.
                ErrorKind::MissingSubcommand => "no subcommand: try redlock run",
                ErrorKind::UnknownArgument if is_command_of_run(error) => {
                    "the command goes after --, as in: redlock run --key NAME -- COMMAND"
                }
                _ => whole.split("\n\n").next().unwrap_or(&whole),
            };
            let words: Vec<&str> = first.split_whitespace().collect();
            let sentence = words.join(" ");
            let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
            let sentence = format!("{sentence} (see redlock --help)");
            Err(Failure::usage(sentence))
        }
    }
}

/// Users of flock(1) forget the `--`.
fn is_command_of_run(error: &clap::Error) -> bool {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    !unknown.starts_with('-') && verb_given().is_some_and(|verb| verb == "run")
}

/// The arguments before `--`, for command lines that cannot be parsed.
fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip(1).take_while(|word| word != "--")
}

fn has_json_flag() -> bool {
    arguments().any(|word| word == "--json")
}

fn verb_given() -> Option<OsString> {
    arguments().find(|word| !word.as_encoded_bytes().starts_with(b"-"))
}
