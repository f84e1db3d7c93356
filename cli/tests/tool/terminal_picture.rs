//! A screen with colors as an SVG file, for the docs.

use std::fmt::Write;
use std::path::Path;

const CHARACTER: f64 = 8.0;
const LINE: f64 = 18.0;
const MARGIN: f64 = 16.0;

/// How the next characters look.
#[derive(Clone, Copy, Default, PartialEq)]
struct Look {
    color: Option<u8>,
    bold: bool,
    dim: bool,
    reversed: bool,
}

impl Look {
    /// One number of an SGR sequence.
    fn change(&mut self, code: u8) {
        match code {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            7 => self.reversed = true,
            22 => (self.bold, self.dim) = (false, false),
            27 => self.reversed = false,
            30..=37 => self.color = Some(code - 30),
            39 => self.color = None,
            _ => {}
        }
    }

    fn fill(self) -> &'static str {
        match (self.color, self.reversed, self.dim) {
            (_, true, _) => "#16181d",
            (Some(1), ..) => "#ff8d8a",
            (Some(2), ..) => "#5fd492",
            (Some(3), ..) => "#ffc266",
            (_, _, true) => "#8b93a3",
            _ => "#e9ecf2",
        }
    }
}

/// Writes the picture of a screen of this width.
pub fn save(screen: &str, columns: usize, file: &Path) {
    let lines: Vec<&str> = screen.lines().collect();
    let width = columns as f64 * CHARACTER + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        for (start, look, text) in pieces(line) {
            draw(&mut svg, row, start, look, &text);
        }
    }
    svg.push_str("</svg>\n");
    std::fs::write(file, svg).unwrap();
}

/// The pieces of a line that look the same, with their columns.
fn pieces(line: &str) -> Vec<(usize, Look, String)> {
    let (mut look, mut column) = (Look::default(), 0);
    let mut all: Vec<(usize, Look, String)> = Vec::new();
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        if c == '\x1b' {
            let sequence: String = characters.by_ref().take_while(|c| *c != 'm').collect();
            let codes = sequence.trim_start_matches('[').split(';');
            codes.for_each(|code| look.change(code.parse().unwrap_or(0)));
            continue;
        }
        match all.last_mut() {
            Some((_, last, text)) if *last == look => text.push(c),
            _ => all.push((column, look, c.to_string())),
        }
        column += 1;
    }
    all
}

fn draw(svg: &mut String, row: usize, start: usize, look: Look, text: &str) {
    let top = MARGIN + row as f64 * LINE;
    if look.reversed {
        let (x, width) = (start as f64, text.chars().count() as f64);
        let (x, width) = (MARGIN + x * CHARACTER, width * CHARACTER);
        let color = "#c9cfda";
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{LINE}\" fill=\"{color}\"/>"
        );
    }
    // Every word is pinned to its column, so that any font works.
    let mut column = start;
    for word in text.split_inclusive(' ') {
        let shown = word.trim_end();
        if !shown.is_empty() {
            let x = MARGIN + column as f64 * CHARACTER;
            let length = shown.chars().count() as f64 * CHARACTER;
            let weight = if look.bold {
                " font-weight=\"700\""
            } else {
                ""
            };
            let shown = shown.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{}\" textLength=\"{length}\" fill=\"{}\"{weight}>\
                 {shown}</text>",
                top + 13.0,
                look.fill()
            );
        }
        column += word.chars().count();
    }
}
