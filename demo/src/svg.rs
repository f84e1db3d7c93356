//! A screen as an SVG file, for the README.

use crate::frame::{Frame, Style};

/// Columns of the picture; longer lines are cut.
const COLUMNS: usize = 104;
const CHARACTER: f64 = 8.0;
const LINE: f64 = 18.0;
const MARGIN: f64 = 18.0;

/// Draws the screen. Every piece is pinned to its column, so that any font works.
pub fn draw(frame: &Frame) -> String {
    let width = COLUMNS as f64 * CHARACTER + 2.0 * MARGIN;
    let height = frame.0.len() as f64 * LINE + 2.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" \
         font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (row, line) in frame.0.iter().enumerate() {
        let mut column = 0;
        for (style, piece) in line {
            for (start, word) in words(piece) {
                place(&mut text, *style, row, column + start, word);
            }
            column += piece.chars().count();
        }
    }
    text.push_str("</svg>\n");
    text
}

/// Splits at gaps of two blanks, which separate columns: each text and its position.
fn words(piece: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut column = 0;
    for word in piece.split("  ") {
        let begins = word.trim_start();
        let start = column + word.chars().count() - begins.chars().count();
        if !begins.is_empty() {
            words.push((start, begins.trim_end()));
        }
        column += word.chars().count() + 2;
    }
    words
}

fn place(text: &mut String, style: Style, row: usize, column: usize, word: &str) {
    let word: String = word.chars().take(COLUMNS.saturating_sub(column)).collect();
    let x = MARGIN + column as f64 * CHARACTER;
    let y = MARGIN + (row as f64 + 0.75) * LINE;
    let length = word.chars().count() as f64 * CHARACTER;
    if style == Style::Alarm {
        let top = MARGIN + row as f64 * LINE;
        text.push_str(&format!(
            "<rect x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{LINE}\" rx=\"3\" \
             fill=\"#a4262c\"/>\n",
            x - 3.0,
            length + 6.0
        ));
    }
    text.push_str(&format!(
        "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\" \
         lengthAdjust=\"spacingAndGlyphs\" {}>{}</text>\n",
        color(style),
        escaped(&word)
    ));
}

fn color(style: Style) -> &'static str {
    match style {
        Style::Plain => "fill=\"#d6d9df\"",
        Style::Strong => "fill=\"#ffffff\" font-weight=\"bold\"",
        Style::Faint => "fill=\"#7d8590\"",
        Style::Good => "fill=\"#57c27d\"",
        Style::Bad => "fill=\"#ff7b72\"",
        Style::Warning => "fill=\"#e3b341\"",
        Style::Alarm => "fill=\"#ffffff\" font-weight=\"bold\"",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_in_their_columns() {
        assert_eq!(words("A   BC  D E"), [(0, "A"), (4, "BC"), (8, "D E")]);
        assert_eq!(words("   "), []);
    }

    #[test]
    fn what_is_markup_is_shown_as_text() {
        let frame = Frame(vec![vec![(Style::Alarm, "a<b>&c".to_owned())]]);
        assert!(draw(&frame).contains(">a&lt;b&gt;&amp;c</text>"));
    }
}
