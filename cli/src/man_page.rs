//! `redlock man`: generated from the command line.

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::Failure;
use crate::output::Output;

/// Prints the page of a subcommand, or of `redlock` itself.
pub fn print(verb: Option<&str>, output: &Output) -> Result<u8, Failure> {
    let mut whole = Cli::command();
    whole.build();
    let page = match verb {
        None => whole,
        Some(verb) => whole
            .find_subcommand(verb)
            .cloned()
            .ok_or_else(|| Failure::usage(format!("no page about {verb}: see redlock --help")))?,
    };
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(page).render(&mut text);
    rendered.map_err(|error| Failure::io("cannot write the page", &error))?;
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH EXAMPLES AND NOTES");
    output.print(&text)?;
    Ok(0)
}
