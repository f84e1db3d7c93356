//! Everything that is printed: results on standard output, messages on standard error.

use std::cell::Cell;
use std::io::{IsTerminal, Write};

use nix::unistd::{getpgrp, tcgetpgrp};
use serde_json::Value;

use crate::exit::Failure;
use crate::names::printable;

/// Prints text or JSON.
pub struct Output {
    pub json: bool,
    /// Standard error is a terminal that can rewrite a line.
    live: bool,
    /// The cursor is at the end of a line that will be rewritten.
    unfinished: Cell<bool>,
    pub colors: Colors,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self {
            json,
            live: !json && std::io::stderr().is_terminal() && !is_dumb(),
            unfinished: Cell::new(false),
            colors: Colors::for_stdout(),
        }
    }

    /// Whether a line can be rewritten: on a terminal, but not from the background, where another
    /// program writes to it.
    pub fn is_live(&self) -> bool {
        self.live && tcgetpgrp(std::io::stderr()) == Ok(getpgrp())
    }

    /// Prints a message on its own line.
    pub fn message(&self, text: &str, fields: Value) {
        self.clear();
        let line = if self.json {
            fields.to_string()
        } else {
            format!("redlock: {}", printable(text))
        };
        // Standard error may be closed: then there is no reader.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// Prints a message over the previous one, on a terminal.
    pub fn rewrite(&self, text: &str) {
        let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |size| size.0.0);
        let room = usize::from(width).saturating_sub(1);
        let line: String = format!("redlock: {text}").chars().take(room).collect();
        let mut out = std::io::stderr().lock();
        let _ = write!(out, "\r\x1b[2K{line}");
        let _ = out.flush();
        self.unfinished.set(true);
    }

    /// Removes the line that was rewritten.
    pub fn clear(&self) {
        if self.unfinished.replace(false) {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[2K");
            let _ = out.flush();
        }
    }

    pub fn failure(&self, failure: &Failure) {
        let fields = serde_json::json!({ "error": failure.text, "exit_code": failure.code });
        self.message(&failure.text, fields);
    }

    /// Prints a result: the text, or the value as JSON.
    pub fn result(&self, text: &str, value: &Value) -> Result<(), Failure> {
        if self.json {
            self.print(&format!("{value}\n"))
        } else {
            self.print(&harmless(text))
        }
    }

    /// Writes to standard output. A reader that has closed the pipe is not an error.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        match self.print_all(text) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::io("cannot write to standard output", &error))
            }
            _ => Ok(()),
        }
    }

    /// Writes to standard output; that must succeed.
    pub fn print_all(&self, text: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The text without what others may have put into it to control the terminal: of escape sequences
/// only the colors that [`Colors`] writes pass.
fn harmless(text: &str) -> String {
    const CODES: [&str; 6] = ["0m", "1m", "2m", "31m", "32m", "33m"];
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let mut shown = by_line(first);
    for part in parts {
        let is_color = CODES.iter().any(|code| part.starts_with(code));
        shown.push_str(if is_color { "\x1b[" } else { "\\u{1b}[" });
        shown.push_str(&by_line(part));
    }
    shown
}

fn by_line(text: &str) -> String {
    text.split('\n')
        .map(printable)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether the terminal cannot move its cursor.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty())
}

/// Colors, on terminals and if they are wanted (<https://no-color.org>).
#[derive(Clone, Copy)]
pub struct Colors(bool);

impl Colors {
    pub fn for_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !is_dumb() && !unwanted)
    }

    fn with(self, code: &str, text: &str) -> String {
        if !self.0 {
            return text.to_owned();
        }
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn warning(self, text: &str) -> String {
        self.with("33", text)
    }

    pub fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn faint(self, text: &str) -> String {
        self.with("2", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_colors_reach_the_terminal() {
        let own = format!("{}\n", Colors(true).bad("down"));
        assert_eq!(harmless(&own), own);
        let hostile = "a\x1b[2Jb\x1b]0;title\x07\n\u{202e}c\x1b[";
        assert_eq!(
            harmless(hostile),
            "a\\u{1b}[2Jb\\u{1b}]0;title\\u{7}\n\\u{202e}c\\u{1b}["
        );
    }
}
