//! Shell completions and the manual, both made from the command line's own description.

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::exit::Failure;
use crate::voice::Voice;

/// Prints the completions for a shell.
pub fn completions(shell: clap_complete::Shell, voice: &Voice) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut for_people(), "redlock", &mut script);
    voice.print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// The command line without what only the tool itself starts: hidden verbs would be offered for completion otherwise.
fn for_people() -> Command {
    let whole = Cli::command();
    let shown = whole
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .cloned();
    let people = Command::new("redlock").args(whole.get_arguments().cloned());
    people.version(clap::crate_version!()).subcommands(shown)
}

/// Prints a page of the manual.
pub fn manual(verb: Option<&str>, voice: &Voice) -> Result<u8, Failure> {
    let mut whole = Cli::command();
    whole.build();
    let page = match verb {
        None => whole,
        Some(verb) => match whole.find_subcommand(verb) {
            Some(page) => page.clone(),
            None => {
                let text = format!("there is no page about {verb}: try redlock --help");
                return Err(Failure::usage(text));
            }
        },
    };
    let mut text = Vec::new();
    let rendered = clap_mangen::Man::new(page).render(&mut text);
    rendered.map_err(|error| Failure::io("cannot write the page", &error))?;
    // What stands below the options is named for what it is.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH EXAMPLES AND NOTES");
    voice.print(&text)?;
    Ok(0)
}
