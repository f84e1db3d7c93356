//! The results as tables in Markdown.

use crate::measure::Figures;
use crate::results::{Alternative, Chart, OURS, Results, Run, Unit, counted};
use crate::targets::{self, spread};
use crate::{handover, waiters};

/// The tables of a section: one for each server and shape. Those of all servers but the first one
/// are folded.
pub fn section(results: &Results, name: &str) -> String {
    let mut text = String::new();
    let servers = results.0.get(name).into_iter().flatten();
    for (number, (server, run)) in servers.enumerate() {
        let (single, curves): (Vec<_>, Vec<_>) =
            shown(run).partition(|chart| chart.along.is_none());
        let mut tables = format!("{}\n\n", origin(name, server, run));
        if !single.is_empty() {
            tables += &format!("{}\n", table(&bars(&single)));
        }
        for chart in curves {
            tables += &format!("{}\n", table(&curve(chart)));
        }
        text += &if number == 0 {
            tables
        } else {
            folded(server, &tables)
        };
    }
    text
}

/// Text that a page shows only on demand.
pub fn folded(summary: &str, text: &str) -> String {
    let text = text.trim_end();
    format!("<details><summary>{summary}</summary>\n\n{text}\n\n</details>\n\n")
}

/// The charts that tables and pictures show: fairness has only a target.
pub fn shown(run: &Run) -> impl Iterator<Item = &Chart> {
    let charts = run.charts.iter();
    charts.filter(|chart| chart.title != handover::FAIRNESS)
}

/// Where the figures come from.
fn origin(section: &str, server: &str, run: &Run) -> String {
    let Run {
        version,
        machine,
        load,
        ..
    } = run;
    let build = run.trained.filter(|trained| !trained);
    let build = build.map(|_| "built without a profile".to_owned());
    let code = [&run.commit, &run.date, &build].into_iter().flatten();
    let code: Vec<_> = code.map(String::as_str).collect();
    let code = if code.is_empty() {
        String::new()
    } else {
        format!(" ({})", code.join(", "))
    };
    let mut sections = crate::SECTIONS.iter();
    let section = sections.find(|known| known.name == section);
    let alternatives = section.and_then(|section| section.alternatives).map(|_| {
        let alternatives = run.alternatives.as_deref().unwrap_or(WITH_MODULE);
        format!("; {alternatives}")
    });
    let alternatives = alternatives.unwrap_or_default();
    let stolen = taken_by_host(run.stolen);
    format!(
        "{server}, redislock {version}{code}, {machine}, load average {load:.1} at the start\
         {stolen}{alternatives}:"
    )
}

/// What the host of a virtual machine gave to others, if it is half a percent or more.
pub fn taken_by_host(stolen: Option<f64>) -> String {
    let stolen = stolen.filter(|stolen| *stolen >= 0.005);
    stolen.map_or_else(String::new, |stolen| {
        let percent = stolen * 100.0;
        format!(", {percent:.0} % of the time taken by the host")
    })
}

/// Where the alternatives of older results ran.
const WITH_MODULE: &str = "the alternatives ran on the server with the module";

/// The cells of a line.
pub type Line = Vec<String>;

/// The column of the spread in the table of single figures.
const SPREAD: usize = 3;

/// Each alternative with its figure, its spread, and its ratio to redislock.
fn bars(charts: &[&Chart]) -> Vec<Line> {
    let heads = ["", "", "median", "spread", "relative to redislock"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for chart in charts {
        let Some(first) = chart.alternatives.first() else {
            continue;
        };
        for (number, alternative) in chart.alternatives.iter().enumerate() {
            let Some(figures) = single(alternative) else {
                continue;
            };
            let what = if number == 0 {
                chart.head()
            } else {
                String::new()
            };
            let show = |figure| chart.unit.show(figure);
            let ratio = single(first).filter(|_| number > 0);
            let ratio = ratio.map_or_else(String::new, |first| times(figures, first));
            lines.push(vec![
                what,
                alternative.name.clone(),
                show(figures.median()),
                spread(figures, show),
                ratio,
            ]);
        }
    }
    let spreads = |line: &Line| line.get(SPREAD).is_none_or(String::is_empty);
    if lines.iter().skip(1).all(spreads) {
        for line in &mut lines {
            line.remove(SPREAD);
        }
    }
    lines
}

fn single(alternative: &Alternative) -> Option<&Figures> {
    alternative.points.first().map(|point| &point.rounds)
}

pub fn times(figures: &Figures, first: &Figures) -> String {
    with_spread(&figures.over(first), Unit::Times)
}

/// A figure with its spread.
pub fn with_spread(figures: &Figures, unit: Unit) -> String {
    let range = spread(figures, |figure| unit.number(figure));
    let range = if range.is_empty() {
        range
    } else {
        format!(" ({range})")
    };
    format!("{}{range}", unit.show(figures.median()))
}

/// Each alternative along a curve, and the ratios of the others to redislock.
fn curve(chart: &Chart) -> Vec<Line> {
    let mut places: Vec<u64> = Vec::new();
    for alternative in &chart.alternatives {
        places.extend(alternative.points.iter().filter_map(|point| point.at));
    }
    places.sort_unstable();
    places.dedup();
    let along = chart.along.as_deref().unwrap_or_default();
    let mut heads = vec![chart.head()];
    heads.extend(places.iter().map(|at| counted(*at, along)));
    let mut lines = vec![heads];
    let cells = |name: &str, show: &dyn Fn(u64) -> Option<String>| {
        let mut line = vec![name.to_owned()];
        line.extend(places.iter().map(|at| show(*at).unwrap_or_default()));
        line
    };
    let figures = |name: &str, at| chart.figures(name, Some(at));
    for Alternative { name, .. } in &chart.alternatives {
        lines.push(cells(name, &|at| {
            Some(with_spread(figures(name, at)?, chart.unit))
        }));
    }
    let growth = waiters::compares_growth(chart).then(|| chart.growth());
    if let Some(growth) = growth.flatten() {
        let first = places.first().map(|at| counted(*at, along));
        let first = first.unwrap_or_default();
        for Alternative { name, .. } in &growth.alternatives {
            lines.push(cells(&format!("{name}, relative to {first}"), &|at| {
                let figures = growth.figures(name, Some(at))?;
                Some(with_spread(figures, Unit::Times))
            }));
        }
    } else if chart
        .alternatives
        .first()
        .is_some_and(|first| first.name == OURS)
    {
        for Alternative { name, .. } in chart.alternatives.iter().skip(1) {
            lines.push(cells(&format!("{name}, relative to redislock"), &|at| {
                Some(times(figures(name, at)?, figures(OURS, at)?))
            }));
        }
    }
    lines
}

/// The figures, compared with the targets: those that miss them, then, folded, the others.
pub fn targets(results: &Results) -> String {
    let heads = ["what", "server", "figure", "spread", "target", ""];
    let mut lines = Vec::new();
    let order = crate::SECTIONS.iter().map(|section| section.name);
    for name in order {
        let Some(servers) = results.0.get(name) else {
            continue;
        };
        for (server, run) in servers {
            for checked in targets::check(name, run) {
                lines.push(vec![
                    checked.what,
                    server.clone(),
                    checked.found,
                    checked.spread,
                    checked.wanted,
                    checked.verdict,
                ]);
            }
        }
        for what in targets::not_measured(name, servers.values()) {
            let mut line = vec![String::new(); heads.len()];
            line[0] = what;
            line[heads.len() - 1] = "not measured".to_owned();
            lines.push(line);
        }
    }
    missed_first(&heads, lines)
}

/// A table of the targets that are missed, and a folded one of those that are met. The last cell of
/// a line is the verdict.
pub fn missed_first(heads: &[&str], lines: Vec<Line>) -> String {
    let is_met = |line: &Line| {
        line.last()
            .is_some_and(|verdict| verdict.starts_with("met"))
    };
    let (met, missed): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_met);
    let heads: Line = heads.iter().map(|head| (*head).to_owned()).collect();
    let (missing, reached) = (missed.len(), met.len());
    let of = |lines: Vec<Line>| table(&[vec![heads.clone()], lines].concat());
    let mut text = format!(
        "**Missed or not measured: {missing} of {}**\n\n",
        missing + reached
    );
    if missing > 0 {
        text += &format!("{}\n", of(missed));
    }
    if reached > 0 {
        text += &folded(&format!("Met: {reached}"), &of(met));
    }
    text
}

/// A table whose columns are also aligned in a terminal.
pub fn table(lines: &[Line]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
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
