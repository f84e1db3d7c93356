//! What was measured: every round, as [`FILE`] and [`LAST`] keep it.
//!
//! A file has one entry for each section and server. A later run of the same section on the same
//! kind of server replaces it, so that several servers can stand side by side.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::measure::Figures;

/// The results that docs/PERFORMANCE.md shows, in the folder of the project.
pub const FILE: &str = "bench/results.json";
/// The results of runs without `--keep`, in the target directory: they and [`FILE`] do not mix.
pub const LAST: &str = "bench/results.json";

/// How the module is named among its alternatives: it comes first in every chart.
pub const OURS: &str = "redislock";
/// The module as `make build` makes it, beside the one that `make release` makes.
pub const UNTRAINED: &str = "redislock of make build";
/// The module that makes only the API calls that every lock needs.
pub const BARE: &str = "bare module (lower bound)";

/// Section → server → what was found.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results(pub BTreeMap<String, BTreeMap<String, Run>>);

/// One run of a section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The version of the module.
    pub version: String,
    /// The commit that was measured, with a "+" if the working tree had changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the module was built with a profile; none if it is not a build of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<bool>,
    /// The day: "2026-11-18".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Where the alternatives ran; none in older results: on the server with the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternatives: Option<String>,
    /// The processor, and how many of its cores.
    pub machine: String,
    /// The load average of the last minute, at the start.
    pub load: f64,
    /// The share of the time in which the machine wanted to run that its host gave to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// What was found.
    pub charts: Vec<Chart>,
}

/// One chart: a figure or a curve for each alternative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// The unit of the figures.
    pub unit: Unit,
    /// What grows along a curve; none for single figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub along: Option<String>,
    /// The alternatives; the first one is what the others are compared with.
    pub alternatives: Vec<Alternative>,
}

/// The figures of one alternative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Its name.
    pub name: String,
    /// One point, or those of a curve.
    pub points: Vec<Point>,
}

/// One figure of many rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where on the curve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// All rounds, in their order.
    pub rounds: Figures,
}

/// What the figures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds of the server's CPU time.
    MicrosOfCpu,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
    /// Instructions.
    Instructions,
    /// Commands.
    Commands,
    /// Bytes.
    Bytes,
    /// Events per second.
    PerSecond,
    /// Steps of an algorithm.
    Steps,
    /// A share of 1.
    Share,
    /// How many times as much as something else.
    Times,
}

impl Chart {
    /// A chart with one figure for each of these alternatives.
    pub fn new(title: impl Into<String>, unit: Unit, found: Vec<(String, Figures)>) -> Self {
        let alternatives = found.into_iter().map(|(name, rounds)| Alternative {
            name,
            points: vec![Point { at: None, rounds }],
        });
        Self {
            title: title.into(),
            unit,
            along: None,
            alternatives: alternatives.collect(),
        }
    }

    /// A chart with a curve for each of these alternatives, without points at first.
    pub fn curve(
        title: impl Into<String>,
        unit: Unit,
        along: &str,
        names: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let alternatives = names.into_iter().map(|name| Alternative {
            name: name.into(),
            points: Vec::new(),
        });
        Self {
            title: title.into(),
            unit,
            along: Some(along.to_owned()),
            alternatives: alternatives.collect(),
        }
    }

    /// The title of its table, with the unit and which figures are better.
    pub fn head(&self) -> String {
        format!("{} ({})", self.title, self.unit.head())
    }

    /// Adds a round of one alternative at one place of the curve.
    pub fn add(&mut self, alternative: usize, at: u64, figure: f64) {
        let Some(alternative) = self.alternatives.get_mut(alternative) else {
            return;
        };
        let at = Some(at);
        match alternative.points.iter_mut().find(|point| point.at == at) {
            Some(point) => point.rounds.push(figure),
            None => alternative.points.push(Point {
                at,
                rounds: Figures::one(figure),
            }),
        }
    }

    /// The curves relative to their own first figures, round by round; none without a curve.
    pub fn growth(&self) -> Option<Self> {
        let along = self.along.as_ref()?;
        let first = self.alternatives.first()?.points.first()?.at?;
        let mut relative = self.clone();
        relative.title += &format!(", relative to {}", counted(first, along));
        relative.unit = Unit::Times;
        for alternative in &mut relative.alternatives {
            let own = self.figures(&alternative.name, Some(first))?;
            for point in &mut alternative.points {
                point.rounds = point.rounds.over(own);
            }
        }
        Some(relative)
    }

    /// The figures of an alternative.
    pub fn figures(&self, name: &str, at: Option<u64>) -> Option<&Figures> {
        let mut all = self.alternatives.iter();
        let alternative = all.find(|alternative| alternative.name == name)?;
        let mut points = alternative.points.iter();
        Some(&points.find(|point| point.at == at)?.rounds)
    }
}

impl Unit {
    /// The figure with its unit, short enough for a cell.
    pub fn show(self, figure: f64) -> String {
        format!("{}{}", self.number(figure), self.sign())
    }

    /// The figure without its unit.
    pub fn number(self, figure: f64) -> String {
        match self {
            Self::MicrosOfCpu | Self::Micros | Self::Millis | Self::Seconds | Self::Commands => {
                digits(figure)
            }
            Self::Instructions | Self::Steps | Self::Bytes | Self::PerSecond => grouped(figure),
            Self::Share | Self::Times => format!("{figure:.2}"),
        }
    }

    /// What stands behind a figure.
    fn sign(self) -> &'static str {
        match self {
            Self::MicrosOfCpu | Self::Micros => " µs",
            Self::Millis => " ms",
            Self::Seconds => " s",
            Self::Bytes => " B",
            Self::PerSecond => "/s",
            Self::Times => " ×",
            Self::Instructions | Self::Commands | Self::Steps | Self::Share => "",
        }
    }

    /// What the figures count, and which of them are better, for a title.
    pub fn head(self) -> String {
        let (name, better) = (self.name(), self.better());
        if name == better {
            name.to_owned()
        } else {
            format!("{name}, {better}")
        }
    }

    /// Which figures are better.
    pub fn better(self) -> &'static str {
        match self {
            Self::Share => "1 is best",
            Self::PerSecond => "more is better",
            _ => "less is better",
        }
    }

    /// What the figures count.
    pub fn name(self) -> &'static str {
        match self {
            Self::MicrosOfCpu => "µs of server CPU",
            Self::Micros => "µs",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::Instructions => "instructions",
            Self::Commands => "commands",
            Self::Steps => "steps",
            Self::Bytes => "bytes",
            Self::PerSecond => "per second",
            Self::Share => "1 is best",
            Self::Times => "ratio",
        }
    }
}

/// Three significant digits.
fn digits(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => grouped(figure),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// How many of what: "1 waiter", "12,345 waiters".
pub fn counted(number: u64, plural: &str) -> String {
    let noun = if number == 1 {
        plural.strip_suffix('s').unwrap_or(plural)
    } else {
        plural
    };
    format!("{} {noun}", grouped(number as f64))
}

/// A whole number with commas: 12,345.
pub fn grouped(figure: f64) -> String {
    let plain = format!("{:.0}", figure.abs());
    let mut text = String::new();
    for (place, digit) in plain.chars().enumerate() {
        if place > 0 && (plain.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if figure <= -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

impl Results {
    /// The results in a file; empty if there is no file yet.
    pub fn read(path: &Path) -> Outcome<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(serde_json::from_str(&text)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, path: &Path) -> Outcome<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(fs::write(path, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Adds a run to a file. Entries of other sections and servers stay.
    pub fn add_to(path: &Path, section: &str, server: &str, run: Run) -> Outcome<()> {
        let mut all = Self::read(path)?;
        all.put(section, server, run);
        all.write(path)
    }

    /// Adds a run.
    pub fn put(&mut self, section: &str, server: &str, run: Run) {
        let servers = self.0.entry(section.to_owned()).or_default();
        servers.insert(server.to_owned(), run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(Unit::Instructions.show(1_234_567.4), "1,234,567");
        assert_eq!(Unit::Bytes.show(-1234.0), "-1,234 B");
        assert_eq!(Unit::MicrosOfCpu.show(3.456), "3.46 µs");
        assert_eq!(Unit::Seconds.show(34.56), "34.6 s");
        assert_eq!(Unit::Millis.show(0.0), "0 ms");
        assert_eq!(Unit::PerSecond.show(999.6), "1,000/s");
        assert_eq!(counted(1, "waiting owners"), "1 waiting owner");
        assert_eq!(counted(10_000, "locks"), "10,000 locks");
    }

    #[test]
    fn a_run_replaces_only_the_entry_of_its_section_and_server() {
        let run = |version: &str| -> Run {
            let text =
                format!(r#"{{"version": "{version}", "machine": "m", "load": 0.0, "charts": []}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let folder = format!("redislock-bench-test.{}", std::process::id());
        let path = std::env::temp_dir().join(&folder).join("results.json");
        for (section, version) in [("pairs", "1"), ("memory", "2"), ("pairs", "3")] {
            Results::add_to(&path, section, "Redis", run(version)).unwrap();
        }
        let all = Results::read(&path).unwrap();
        let of = |section| all.0[section]["Redis"].version.as_str();
        assert_eq!((of("pairs"), of("memory")), ("3", "2"));
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_title_says_which_figures_are_better() {
        let head = |unit| Chart::new("t", unit, Vec::new()).head();
        assert_eq!(head(Unit::Bytes), "t (bytes, less is better)");
        assert_eq!(head(Unit::PerSecond), "t (per second, more is better)");
        assert_eq!(head(Unit::Share), "t (1 is best)");
    }

    #[test]
    fn a_curve_is_compared_with_its_first_figure() {
        let mut chart = Chart::curve("t", Unit::Micros, "locks", ["a"]);
        for (at, figure) in [(10, 2.0), (100, 3.0)] {
            chart.add(0, at, figure);
        }
        let growth = chart.growth().unwrap();
        assert_eq!(growth.title, "t, relative to 10 locks");
        let last = growth.figures("a", Some(100));
        assert_eq!(last.map(Figures::median), Some(1.5));
    }

    #[test]
    fn rounds_of_one_place_stand_together() {
        let mut chart = Chart::curve("t", Unit::Micros, "locks", ["a", "b"]);
        for (at, figure) in [(10, 1.0), (100, 2.0), (10, 3.0)] {
            chart.add(1, at, figure);
        }
        assert_eq!(chart.figures("b", Some(10)).map(Figures::median), Some(2.0));
        assert_eq!(chart.figures("a", Some(10)), None);
    }
}
