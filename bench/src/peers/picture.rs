//! Grants and longest waits by the number of workers: ours and the usual locks of each language.
//!
//! The pictures are narrow enough to be read on a phone.

use super::{Figures, Found, servers};
use crate::plot::{Drawing, Places};
use crate::results::{Chart, Unit};

const WIDTH: f64 = 430.0;
/// Two charts stand side by side.
const COLUMN: f64 = WIDTH / 2.0;
/// The room of the lines in one: left, top, right, bottom.
const INSIDE: [f64; 4] = [60.0, 28.0, 210.0, 138.0];
const HEIGHT: f64 = 180.0;

/// More colours than the other pictures need, and a second line of ours.
const STYLE: &str = "\
<style>
.c3 { fill: #8250df; stroke: #8250df }
.c4 { fill: #1a7f37; stroke: #1a7f37 }
polyline.second { stroke-dasharray: 5 3 }
circle.second { fill-opacity: .3 }
@media (prefers-color-scheme: dark) {
.c3 { fill: #ab7df8; stroke: #ab7df8 }
.c4 { fill: #3fb950; stroke: #3fb950 }
}
</style>";

type Figure = fn(&Figures) -> f64;

/// The figures that are drawn.
const CHARTS: [(&str, Unit, Figure); 2] = [
    ("grants/s", Unit::PerSecond, |figures| {
        figures.grants_per_second
    }),
    ("longest wait", Unit::Millis, |figures| figures.wait_max_ms),
];

/// None if nothing was measured with this many masters.
pub fn of(found: &[Found], masters: u64) -> Option<String> {
    let found = found.iter().filter(|found| found.masters == masters);
    let found: Vec<_> = found.collect();
    let mut languages: Vec<&str> = Vec::new();
    for one in &found {
        if !languages.contains(&one.language.as_str()) {
            languages.push(&one.language);
        }
    }
    let mut drawing = Drawing::default();
    drawing.put(format_args!("{STYLE}"));
    if masters == 1 {
        for language in &languages {
            let its = found.iter().filter(|one| one.language == *language);
            draw(
                &mut drawing,
                title(language),
                &its.copied().collect::<Vec<_>>(),
            );
        }
    } else {
        // Ours is one of them: side by side, whatever their languages.
        draw(&mut drawing, "A majority of five masters", &found);
    }
    let about = format!("Workers that compete for one lock on {}", servers(masters));
    (!languages.is_empty()).then(|| drawing.finish(&about, WIDTH))
}

/// How a language is written.
fn title(language: &str) -> &str {
    match language {
        "python" => "Python",
        "node" => "Node.js",
        "go" => "Go",
        "java" => "Java",
        "rust" => "Rust",
        other => other,
    }
}

/// The legend and the charts of some locks, ours first.
fn draw(drawing: &mut Drawing, title: &str, found: &[&Found]) {
    let mut names: Vec<(&str, bool)> = Vec::new();
    for one in found {
        if !names.iter().any(|(name, _)| *name == one.lock) {
            names.push((&one.lock, one.is_ours()));
        }
    }
    names.sort_by_key(|(_, is_ours)| !is_ours);
    let classes = classes(&names);
    drawing.text("title", "start", (0.0, drawing.bottom + 18.0), title);
    drawing.bottom += 36.0;
    for (row, keys) in names.chunks(2).zip(classes.chunks(2)).enumerate() {
        let y = drawing.bottom + row as f64 * 17.0;
        for (column, ((name, _), class)) in keys.0.iter().zip(keys.1).enumerate() {
            drawing.key(class, (column as f64 * COLUMN, y), name);
        }
    }
    drawing.bottom += names.len().div_ceil(2) as f64 * 17.0;
    for (column, (title, unit, figure)) in CHARTS.into_iter().enumerate() {
        let chart = chart(title, unit, &names, found, figure);
        let (left, top) = (column as f64 * COLUMN, drawing.bottom);
        let place = (left + INSIDE[0], top + 12.0);
        let title = format!("{title}, {}", unit.better());
        drawing.text("small", "start", place, &title);
        let places = Places::of(&chart, left, top, INSIDE);
        drawing.axes(&places, unit, "workers");
        for (alternative, class) in chart.alternatives.iter().zip(&classes) {
            drawing.series(class, &places, &alternative.points);
        }
    }
    drawing.bottom += HEIGHT;
}

/// Ours have one colour and differ by their lines, the others have a colour each.
fn classes(names: &[(&str, bool)]) -> Vec<String> {
    let (mut ours, mut others) = (0, 0);
    let classes = names.iter().map(|(_, is_ours)| {
        if *is_ours {
            ours += 1;
            String::from(if ours == 1 { "c0" } else { "c0 second" })
        } else {
            others += 1;
            format!("c{}", others.min(4))
        }
    });
    classes.collect()
}

fn chart(
    title: &str,
    unit: Unit,
    names: &[(&str, bool)],
    found: &[&Found],
    figure: Figure,
) -> Chart {
    let mut chart = Chart::curve(title, unit, "workers", names.iter().map(|(name, _)| *name));
    for (number, (name, _)) in names.iter().enumerate() {
        for one in found.iter().filter(|one| one.lock == *name) {
            let each = one.each_round.iter().chain(&one.figures);
            // The last one is the median of the others, or all there is.
            for figures in each.take(one.each_round.len().max(1)) {
                chart.add(number, one.workers, figure(figures));
            }
        }
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_share_a_colour_and_the_others_have_one_each() {
        let names = [("a", true), ("b", true), ("c", false), ("d", false)];
        assert_eq!(classes(&names), ["c0", "c0 second", "c1", "c2"]);
    }
}
