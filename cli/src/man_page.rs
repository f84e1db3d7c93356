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
    output.print(&with_notes_as_written(&String::from_utf8_lossy(&text)))?;
    Ok(0)
}

/// The notes have commands and tables: troff must not join their lines (.nf to .fi).
fn with_notes_as_written(page: &str) -> String {
    let Some((before, notes)) = page.split_once(".SH EXTRA\n") else {
        return page.to_owned();
    };
    let (notes, after) = notes.split_at(notes.find("\n.SH ").map_or(notes.len(), |at| at + 1));
    format!("{before}.SH EXAMPLES AND NOTES\n.nf\n{notes}.fi\n{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_notes_stay_lines_and_other_sections_are_filled() {
        let page = ".SH NAME\nx\n.SH EXTRA\nExamples:\n  a\n  b\n.SH VERSION\nv1\n";
        let expected = ".SH NAME\nx\n.SH EXAMPLES AND NOTES\n.nf\nExamples:\n  a\n  b\n.fi\n\
                        .SH VERSION\nv1\n";
        assert_eq!(with_notes_as_written(page), expected);
        let last = with_notes_as_written(".SH EXTRA\n  a\n");
        assert_eq!(last, ".SH EXAMPLES AND NOTES\n.nf\n  a\n.fi\n");
        assert_eq!(with_notes_as_written(".SH NAME\nx\n"), ".SH NAME\nx\n");
    }
}
