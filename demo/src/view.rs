//! Shows the demonstration: a terminal gets a screen that is redrawn, a file gets one line per
//! event.

use std::io::{IsTerminal, Write};

use crate::frame::{Frame, Line, Style, clock};
use crate::scenario::Scenario;

/// Draws on standard output.
pub struct View {
    live: bool,
    colors: bool,
    /// Lines of the last screen, to be drawn over.
    drawn: usize,
    /// Events that were printed.
    printed: usize,
}

impl View {
    pub fn new() -> Self {
        let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let view = Self {
            live: std::io::stdout().is_terminal() && set("TERM") && !dumb,
            // See <https://no-color.org>.
            colors: !set("NO_COLOR"),
            drawn: 0,
            printed: 0,
        };
        if view.live {
            // The cursor would jump around.
            view.write("\x1b[?25l");
        }
        view
    }

    pub fn draw(&mut self, scenario: &Scenario) {
        if self.live {
            self.redraw(&Frame::of(scenario));
        } else {
            self.print(scenario);
        }
    }

    fn print(&mut self, scenario: &Scenario) {
        for event in &scenario.events[self.printed..] {
            self.write(&format!("{}  {}\n", clock(event.at), event.text));
        }
        self.printed = scenario.events.len();
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
            text.push_str(&self.styled(line, usize::from(width)));
            text.push('\n');
        }
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        self.write(&text);
    }

    fn styled(&self, line: &Line, width: usize) -> String {
        let mut text = String::new();
        let mut room = width;
        for (style, piece) in line {
            let piece: String = piece.chars().take(room).collect();
            room -= piece.chars().count();
            match (self.colors, code(*style)) {
                (true, Some(code)) => text.push_str(&format!("\x1b[{code}m{piece}\x1b[0m")),
                _ => text.push_str(&piece),
            }
        }
        text
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // If nobody reads any more, the demonstration still ends cleanly.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for View {
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
        Style::Warning => Some("33"),
        Style::Alarm => Some("1;37;41"),
    }
}
