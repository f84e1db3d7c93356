//! Showing the stage: a terminal gets a picture that is redrawn in place, a file gets a line for everything that happened.

use std::io::{IsTerminal, Write};

use serde_json::json;

use super::frame::{Frame, Line, Style, clock};
use super::stage::Stage;
use crate::merged::millis;
use crate::voice::Voice;

/// See the module's text.
pub struct View<'a> {
    voice: &'a Voice,
    live: bool,
    colours: bool,
    /// Lines of the last picture, to be drawn over.
    drawn: usize,
    /// Events that were printed.
    printed: usize,
}

impl<'a> View<'a> {
    pub fn new(voice: &'a Voice) -> Self {
        let view = Self {
            voice,
            live: !voice.json && std::io::stdout().is_terminal() && voice.can_draw(),
            colours: voice.paint.is_on(),
            drawn: 0,
            printed: 0,
        };
        if view.live {
            // The cursor is of no use while it jumps about.
            view.write("\x1b[?25l");
        }
        view
    }

    pub fn draw(&mut self, stage: &Stage) {
        match self.live {
            true => self.redraw(&Frame::of(stage)),
            false => self.print(stage),
        }
    }

    fn print(&mut self, stage: &Stage) {
        for event in &stage.events[self.printed..] {
            let line = match self.voice.json {
                true => json!({ "at_ms": millis(event.at), "event": event.text }).to_string(),
                false => format!("{}  {}", clock(event.at), event.text),
            };
            self.write(&format!("{line}\n"));
        }
        self.printed = stage.events.len();
    }

    fn redraw(&mut self, frame: &Frame) {
        let size = terminal_size::terminal_size_of(std::io::stdout());
        let (width, height) = size.map_or((100, 40), |(width, height)| (width.0, height.0));
        let room = usize::from(height).saturating_sub(1).max(1);
        let lines = &frame.0[..frame.0.len().min(room)];
        let mut text = match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A"),
        };
        for line in lines {
            text.push_str("\x1b[2K");
            text.push_str(&self.painted(line, usize::from(width)));
            text.push('\n');
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        self.write(&text);
    }

    fn painted(&self, line: &Line, width: usize) -> String {
        let mut text = String::new();
        let mut room = width;
        for (style, piece) in line {
            let piece: String = piece.chars().take(room).collect();
            room -= piece.chars().count();
            match (self.colours, code(*style)) {
                (true, Some(code)) => text.push_str(&format!("\x1b[{code}m{piece}\x1b[0m")),
                _ => text.push_str(&piece),
            }
        }
        text
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // Nobody watches any more: the show goes on to its clean end.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if self.live {
            self.write("\x1b[?25h");
        }
    }
}

fn code(style: Style) -> Option<&'static str> {
    match style {
        Style::Plain => None,
        Style::Strong => Some("1"),
        Style::Faint => Some("2"),
        Style::Good => Some("32"),
        Style::Bad => Some("31"),
        Style::Doubtful => Some("33"),
        Style::Alarm => Some("1;37;41"),
    }
}
