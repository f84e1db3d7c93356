//! The results as pictures: absolute figures of each alternative, with their spread.
//!
//! The SVG has no background and two sets of colours, so that it can be read on a light and on a
//! dark page.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::results::{Chart, Point, Run, Unit, grouped};
use crate::{report, waiters};

const WIDTH: f64 = 860.0;
/// Left and right of the bars are names and figures.
const BARS: std::ops::Range<f64> = 230.0..640.0;
const ROW: f64 = 26.0;
/// Charts of a picture that shows all servers.
const MOST: usize = 12;
/// A curve: two of them stand side by side.
const CURVE: (f64, f64) = (420.0, 238.0);
/// The room of its lines within it: left, top, right, bottom. Above it are the title, the unit, and
/// rows of the legend, the first of which is included.
const INSIDE: [f64; 4] = [64.0, 70.0, 404.0, 194.0];
const LEGEND_ROW: f64 = 16.0;

const STYLE: &str = "\
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.axis { stroke: #d1d9e0 }
.c0 { fill: #0969da; stroke: #0969da }
.c1 { fill: #9a6700; stroke: #9a6700 }
.c2 { fill: #6e7781; stroke: #6e7781 }
rect { fill-opacity: .55; stroke: none }
polyline { fill: none !important; stroke-width: 2 }
line.spread { stroke-width: 2 }
.c3 { fill: #8250df; stroke: #8250df }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.small { fill: #9198a1 }
.axis { stroke: #3d444d }
.c0 { fill: #4493f8; stroke: #4493f8 }
.c1 { fill: #d29922; stroke: #d29922 }
.c2 { fill: #9198a1; stroke: #9198a1 }
.c3 { fill: #ab7df8; stroke: #ab7df8 }
}
</style>
";

/// One picture with all charts of a section.
pub fn picture(about: &str, servers: &BTreeMap<String, Run>) -> String {
    let mut drawing = Drawing::default();
    // A picture of very many charts is not one to look at: the tables have the other servers.
    let charts = servers.values().map(|run| report::shown(run).count());
    let shown = if charts.sum::<usize>() > MOST {
        1
    } else {
        servers.len()
    };
    for (server, run) in servers.iter().take(shown) {
        let (single, curves): (Vec<_>, Vec<_>) =
            report::shown(run).partition(|chart| chart.along.is_none());
        for chart in single {
            drawing.bars(server, chart);
        }
        drawing.curves(server, &curves);
    }
    drawing.finish(about, WIDTH)
}

/// A picture, as far as it is drawn.
#[derive(Default)]
pub struct Drawing {
    body: String,
    /// Where the next chart begins.
    pub bottom: f64,
}

impl Drawing {
    /// The whole picture.
    pub fn finish(self, about: &str, width: f64) -> String {
        let Self { body, bottom } = self;
        let about = escape(about);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {bottom}\" \
             width=\"{width}\" height=\"{bottom}\" role=\"img\" aria-label=\"{about}\">\n\
             {STYLE}{body}</svg>\n"
        )
    }

    /// One element; writing to a string does not fail.
    pub fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }

    pub fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">\
             {text}</text>"
        ));
    }

    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// A bar for each alternative: the median, and a line for the spread.
    fn bars(&mut self, server: &str, chart: &Chart) {
        let title = format!("{}, {server}", chart.head());
        self.text("title", "start", (0.0, self.bottom + 18.0), &title);
        self.bottom += 28.0;
        let points = chart.alternatives.iter();
        let points: Vec<_> = points
            .filter_map(|alternative| Some((&alternative.name, alternative.points.first()?)))
            .collect();
        let most = points.iter().map(|(_, point)| point.rounds.range()[1]);
        let most = most.fold(f64::MIN_POSITIVE, f64::max);
        let x = |figure: f64| BARS.start + (BARS.end - BARS.start) * figure / most;
        let Some((_, Point { rounds: ours, .. })) = points.first().copied() else {
            return;
        };
        for (number, (name, Point { rounds, .. })) in points.into_iter().enumerate() {
            let class = if number == 0 { "c0" } else { "c2" };
            let (top, middle) = (self.bottom, self.bottom + ROW / 2.0);
            self.text("", "end", (BARS.start - 8.0, middle + 4.5), name);
            let width = x(rounds.median()) - BARS.start;
            let (left, height) = (BARS.start, ROW - 8.0);
            self.put(format_args!(
                "<rect class=\"{class}\" x=\"{left}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{height}\" rx=\"2\"/>",
                top + 4.0
            ));
            let spread = format!("spread {class}");
            let ends = rounds.range().map(x);
            self.line(&spread, (ends[0], middle), (ends[1], middle));
            let mut figure = chart.unit.show(rounds.median());
            if number > 0 {
                // As in the tables: of the ratios of each round.
                let _ = write!(figure, "  ({:.2} ×)", rounds.over(ours).median());
            }
            self.text("", "start", (ends[1] + 8.0, middle + 4.5), &figure);
            self.bottom += ROW;
        }
        self.bottom += 10.0;
    }

    /// Curves, two in a row.
    fn curves(&mut self, server: &str, charts: &[&Chart]) {
        for pair in charts.chunks(2) {
            let rows = pair.iter().map(|chart| legend_rows(chart).len()).max();
            let legend = rows.unwrap_or(1).saturating_sub(1) as f64 * LEGEND_ROW;
            for (column, chart) in pair.iter().enumerate() {
                self.curve(server, chart, column as f64 * (CURVE.0 + 20.0), legend);
            }
            self.bottom += CURVE.1 + legend;
        }
    }

    /// A curve; `legend` is the height of the legend without its first row.
    fn curve(&mut self, server: &str, chart: &Chart, left: f64, legend: f64) {
        let growth = waiters::compares_growth(chart).then(|| chart.growth());
        let growth = growth.flatten();
        let (top, title) = (self.bottom, &chart.title);
        let chart = growth.as_ref().unwrap_or(chart);
        // What growth is relative to has room only on the second line.
        let relative = chart.title.strip_prefix(title).unwrap_or_default();
        let about = match relative.strip_prefix(", ") {
            Some(relative) => format!("{relative}, {}", chart.unit.better()),
            None => chart.unit.head(),
        };
        self.text("title", "start", (left, top + 16.0), title);
        self.text("small", "start", (left, top + 32.0), &about);
        let [x1, y1, x2, y2] = INSIDE;
        let places = Places::of(chart, left, top, [x1, y1 + legend, x2, y2 + legend]);
        let along = chart.along.as_deref().unwrap_or_default();
        self.axes(&places, chart.unit, &format!("{along} ({server})"));
        for (row, keys) in legend_rows(chart).into_iter().enumerate() {
            let y = top + 48.0 + row as f64 * LEGEND_ROW;
            for (number, x) in keys {
                let name = &chart.alternatives[number].name;
                self.key(&class(number), (left + x, y), name);
            }
        }
        for (number, alternative) in chart.alternatives.iter().enumerate() {
            self.series(&class(number), &places, &alternative.points);
        }
    }

    /// An entry of the legend.
    pub fn key(&mut self, class: &str, (left, y): (f64, f64), name: &str) {
        self.put(format_args!(
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/>",
            left + 5.0
        ));
        self.text("small", "start", (left + 13.0, y + 4.0), name);
    }

    /// Three lines with their values, the numbers along the axis, and the name of the axis.
    pub fn axes(&mut self, places: &Places, unit: Unit, along: &str) {
        let [left, _, right, bottom] = places.inside;
        for part in 0..=2 {
            let figure = places.most * f64::from(part) / 2.0;
            let y = places.y(figure);
            self.line("axis", (left, y), (right, y));
            let label = unit.show(figure);
            self.text("small", "end", (left - 6.0, y + 4.0), &label);
        }
        for at in places.labelled() {
            let place = (places.x(at), bottom + 16.0);
            self.text("small", "middle", place, &grouped(at as f64));
        }
        let middle = f64::midpoint(left, right);
        self.text("small", "middle", (middle, bottom + 31.0), along);
    }

    pub fn series(&mut self, class: &str, places: &Places, points: &[Point]) {
        let points = points
            .iter()
            .filter_map(|point| Some((point.at?, &point.rounds)));
        let mut line = String::new();
        for (at, rounds) in points {
            let (x, y) = (places.x(at), places.y(rounds.median()));
            let _ = write!(line, "{x:.1},{y:.1} ");
            let ends = rounds.range().map(|figure| places.y(figure));
            self.line(class, (x, ends[0]), (x, ends[1]));
            self.put(format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"
            ));
        }
        let line = line.trim_end();
        self.put(format_args!(
            "<polyline class=\"{class}\" points=\"{line}\"/>"
        ));
    }
}

/// The colour of a curve.
fn class(number: usize) -> String {
    format!("c{}", number.min(3))
}

/// The rows of the legend of a curve: which alternatives are in it, and where they begin.
fn legend_rows(chart: &Chart) -> Vec<Vec<(usize, f64)>> {
    let (mut rows, mut right) = (vec![Vec::new()], 0.0);
    for (number, alternative) in chart.alternatives.iter().enumerate() {
        // An estimate of the width of the text.
        let width = 28.0 + 6.0 * alternative.name.chars().count() as f64;
        if number > 0 && right + width > CURVE.0 {
            rows.push(Vec::new());
            right = 0.0;
        }
        if let Some(row) = rows.last_mut() {
            row.push((number, right));
        }
        right += width;
    }
    rows
}

/// Where the figures of a curve are: numbers along it by their logarithm, figures from 0.
pub struct Places {
    /// Left, top, right, bottom.
    inside: [f64; 4],
    along: Vec<u64>,
    most: f64,
}

impl Places {
    /// `inside`: the room of the lines, seen from the corner of the chart.
    pub fn of(chart: &Chart, left: f64, top: f64, inside: [f64; 4]) -> Self {
        let points = || chart.alternatives.iter().flat_map(|each| &each.points);
        let mut along: Vec<_> = points().filter_map(|point| point.at).collect();
        along.sort_unstable();
        along.dedup();
        let most = points().map(|point| point.rounds.range()[1]);
        let [x1, y1, x2, y2] = inside;
        Self {
            inside: [left + x1, top + y1, left + x2, top + y2],
            along,
            most: round_up(most.fold(f64::MIN_POSITIVE, f64::max)),
        }
    }

    /// The numbers along it whose labels have room: the last one, and of the others those that do
    /// not come too near to the next label.
    fn labelled(&self) -> Vec<u64> {
        // An estimate of the width of a number.
        let half = |at: u64| 3.3 * grouped(at as f64).chars().count() as f64;
        let mut labelled: Vec<u64> = Vec::new();
        for at in self.along.iter().rev().copied() {
            let has_room = labelled
                .last()
                .is_none_or(|next| self.x(at) + half(at) + 4.0 < self.x(*next) - half(*next));
            if has_room {
                labelled.push(at);
            }
        }
        labelled
    }

    fn x(&self, at: u64) -> f64 {
        let [left, _, right, _] = self.inside;
        let ends = [self.along.first(), self.along.last()];
        let [first, last] = ends.map(|end| (*end.unwrap_or(&1) as f64).max(1.0).ln());
        let width = right - left - 40.0;
        let share = ((at as f64).max(1.0).ln() - first) / (last - first).max(f64::MIN_POSITIVE);
        left + 20.0 + width * share.clamp(0.0, 1.0)
    }

    fn y(&self, figure: f64) -> f64 {
        let [_, top, _, bottom] = self.inside;
        bottom - (bottom - top) * figure / self.most
    }
}

/// The next figure that is easy to read: 1, 2, 4, 6, 8 and a power of ten.
fn round_up(figure: f64) -> f64 {
    let power = 10_f64.powf(figure.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    let fits = steps.into_iter().find(|step| step * power >= figure);
    fits.unwrap_or(10.0) * power
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_is_as_wide_as_its_chart() {
        let rows = |names: &[&str]| {
            let chart = Chart::curve("t", Unit::Micros, "locks", names.iter().copied());
            let rows = legend_rows(&chart).into_iter();
            rows.map(|row| row.len()).collect::<Vec<_>>()
        };
        let (short, long) = ("x".repeat(25), "x".repeat(100));
        assert_eq!(rows(&[&short, &short]), [2]);
        assert_eq!(rows(&[&short, &short, &short]), [2, 1]);
        assert_eq!(rows(&[&long, &long]), [1, 1]);
    }

    #[test]
    fn labels_that_would_overlap_are_left_out() {
        let mut chart = Chart::curve("t", Unit::Micros, "waiters", ["a"]);
        for at in [10, 100, 1_000, 10_000, 19_000, 50_000] {
            chart.add(0, at, 1.0);
        }
        let places = Places::of(&chart, 0.0, 0.0, INSIDE);
        assert_eq!(places.labelled(), [50_000, 10_000, 1_000, 100, 10]);
    }

    #[test]
    fn an_axis_ends_at_a_round_number() {
        let rounded = [0.9, 1.0, 1.1, 35.0, 61.0, 8_100.0].map(round_up);
        assert_eq!(rounded, [1.0, 1.0, 2.0, 40.0, 80.0, 10_000.0]);
    }
}
