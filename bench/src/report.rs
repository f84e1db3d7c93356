//! What was found: a table of ratios beside their targets.

use crate::measure::{Comparison, Figures};

/// What a ratio should be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for what it tells.
    None,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    pub what: String,
    pub ours: String,
    pub peer: String,
    pub figure: Figures,
    pub unit: &'static str,
    pub target: Target,
}

impl Row {
    /// Ours over the peer's; `show` writes either of them with its unit.
    pub fn ratio(
        what: impl Into<String>,
        found: &Comparison,
        target: Target,
        show: impl Fn(f64) -> String,
    ) -> Self {
        Self {
            what: what.into(),
            ours: show(found.ours.median()),
            peer: show(found.peer.median()),
            figure: found.ratio.clone(),
            unit: "×",
            target,
        }
    }

    /// The peer's over ours: how many times cheaper ours is.
    pub fn gain(
        what: impl Into<String>,
        found: &Comparison,
        target: Target,
        show: impl Fn(f64) -> String,
    ) -> Self {
        Self {
            figure: found.inverted(),
            ..Self::ratio(what, found, target, show)
        }
    }

    /// Whether the target is met, if there is one.
    pub fn is_met(&self) -> Option<bool> {
        let median = self.figure.median();
        match self.target {
            Target::AtLeast(bound) => Some(median >= bound),
            Target::AtMost(bound) => Some(median <= bound),
            Target::None => None,
        }
    }

    fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "not met",
            None => "",
        }
    }

    fn cells(&self) -> [String; 7] {
        let Self { figure, unit, .. } = self;
        let digits = if figure.median() < 100.0 { 2 } else { 0 };
        let (least, most) = (figure.least(), figure.most());
        [
            self.what.clone(),
            self.ours.clone(),
            self.peer.clone(),
            format!("{:.digits$} {unit}", figure.median()),
            format!("{least:.digits$}–{most:.digits$}"),
            match self.target {
                Target::AtLeast(bound) => format!("≥ {bound} {unit}"),
                Target::AtMost(bound) => format!("≤ {bound} {unit}"),
                Target::None => String::new(),
            },
            self.verdict().to_owned(),
        ]
    }
}

/// The table, in Markdown, so that it can be read and kept as it is.
pub fn table(rows: &[Row]) -> String {
    let heads = ["what", "ours", "peer", "figure", "spread", "target", ""];
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            text += &format!("| {cell:width$} ");
        }
        text += "|\n";
        if number == 0 {
            for width in &widths {
                text += &format!("|{}", "-".repeat(width + 2));
            }
            text += "|\n";
        }
    }
    text
}

/// Microseconds.
pub fn micros(figure: f64) -> String {
    format!("{figure:.2} µs")
}

/// Bytes.
pub fn bytes(figure: f64) -> String {
    format!("{figure:.0} B")
}
