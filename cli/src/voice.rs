//! What the tool says, and where: results to standard output, everything else to standard error, where it never disturbs
//! the command more than it must.

use std::cell::Cell;
use std::io::{IsTerminal, Write};

use nix::unistd::{getpgrp, tcgetpgrp};
use serde_json::Value;

use crate::exit::Failure;

/// Says things, as text or as JSON.
pub struct Voice {
    pub json: bool,
    /// Standard error is a terminal that can rewrite a line.
    live: bool,
    /// A line that is rewritten stands there.
    standing: Cell<bool>,
    pub paint: Paint,
}

impl Voice {
    pub fn new(json: bool) -> Self {
        Self {
            json,
            live: !json && std::io::stderr().is_terminal() && !is_dumb(),
            standing: Cell::new(false),
            paint: Paint::for_stdout(),
        }
    }

    /// Whether a line can be rewritten as things change: on a terminal, and not from the background, where somebody else
    /// writes to it.
    pub fn is_live(&self) -> bool {
        self.live && tcgetpgrp(std::io::stderr()) == Ok(getpgrp())
    }

    /// Whether a terminal could be drawn on.
    pub fn can_draw(&self) -> bool {
        !is_dumb()
    }

    /// A message, on a line of its own.
    pub fn say(&self, text: &str, fields: Value) {
        self.clear();
        let line = match self.json {
            true => fields.to_string(),
            false => format!("redlock: {text}"),
        };
        // Whoever has closed standard error does not want to know.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }

    /// A message that replaces the one before, on a terminal.
    pub fn rewrite(&self, text: &str) {
        let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |size| size.0.0);
        let room = usize::from(width).saturating_sub(1);
        let line: String = format!("redlock: {text}").chars().take(room).collect();
        let mut out = std::io::stderr().lock();
        let _ = write!(out, "\r\x1b[2K{line}");
        let _ = out.flush();
        self.standing.set(true);
    }

    /// Takes away the line that was rewritten.
    pub fn clear(&self) {
        if self.standing.replace(false) {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[2K");
            let _ = out.flush();
        }
    }

    pub fn fail(&self, failure: &Failure) {
        let fields = serde_json::json!({ "error": failure.text, "exit_code": failure.code });
        self.say(&failure.text, fields);
    }

    /// A result: the text, or the value as JSON.
    pub fn result(&self, text: &str, value: &Value) -> Result<(), Failure> {
        match self.json {
            true => self.print(&format!("{value}\n")),
            false => self.print(text),
        }
    }

    /// Writes to standard output. Nobody reads on: nothing is wrong with that.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::io("cannot write to standard output", &error))
            }
            _ => Ok(()),
        }
    }
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty())
}

/// Colours, where they are seen and wanted (<https://no-color.org>).
#[derive(Clone, Copy)]
pub struct Paint(bool);

impl Paint {
    pub fn for_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !is_dumb() && !unwanted)
    }

    pub fn is_on(self) -> bool {
        self.0
    }

    fn with(self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn doubtful(self, text: &str) -> String {
        self.with("33", text)
    }

    pub fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn faint(self, text: &str) -> String {
        self.with("2", text)
    }
}
