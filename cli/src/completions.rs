//! `redlock completions`: generated from the command line.

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::exit::Failure;
use crate::output::Output;

/// Prints the completion script for a shell.
pub fn print(shell: clap_complete::Shell, output: &Output) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_hidden_verbs(), "redlock", &mut script);
    output.print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Hidden verbs, which only the tool itself starts, would be completed otherwise.
fn without_hidden_verbs() -> Command {
    let whole = Cli::command();
    let shown = whole
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .cloned();
    let visible = Command::new("redlock").args(whole.get_arguments().cloned());
    visible.version(clap::crate_version!()).subcommands(shown)
}
