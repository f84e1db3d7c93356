//! What readers compare first: a few figures of ours on each server, and those of the alternatives.

use std::collections::BTreeSet;

use crate::report::{Line, table, times, with_spread};
use crate::results::{BARE, Results, UNTRAINED, counted};
use crate::ways::Way;
use crate::{client, growth, handover, memory, pairs};

/// A section, a chart, and the place on a curve.
type Figure = (&'static str, &'static str, Option<u64>);

/// What README.md shows.
pub const FIRST: &[Figure] = &[
    ("pairs", pairs::PLAIN, None),
    ("pairs", pairs::AOF, None),
    ("memory", memory::LOCK, None),
    ("memory", memory::WAITER, Some(10_000)),
    ("handover", handover::RATE, Some(16)),
    ("handover", handover::RATE, Some(64)),
    ("handover", handover::RATE, Some(256)),
];

/// What docs/PERFORMANCE.md shows beside them.
pub const FURTHER: &[Figure] = &[
    ("growth", growth::SAVE, Some(1_000_000)),
    ("growth", growth::LOAD, Some(1_000_000)),
    ("growth", growth::EXPIRY, Some(1_000_000)),
    ("client", client::RATE, None),
];

/// Whether an alternative is one that users can choose, not one that explains a figure.
pub fn is_a_choice(name: &str) -> bool {
    let explain = [
        BARE,
        UNTRAINED,
        Way::ScriptBeside.name(),
        Way::DelIfEqBeside.name(),
    ];
    !explain.contains(&name)
}

/// A line for each figure, and one for each alternative, relative to it; a column for each server
/// that has one of the figures.
pub fn table_of(results: &Results, figures: &[Figure]) -> String {
    let runs = figures
        .iter()
        .filter_map(|(section, ..)| results.0.get(*section));
    let servers: Vec<&str> = runs
        .flat_map(|servers| servers.keys().map(String::as_str))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let heads = [""].into_iter().chain(servers.iter().copied());
    let mut lines: Vec<Line> = vec![heads.map(str::to_owned).collect()];
    for (section, title, at) in figures.iter().copied() {
        let chart = |server: &str| {
            let run = results.0.get(section)?.get(server)?;
            run.charts.iter().find(|chart| chart.title == title)
        };
        let charts: Vec<_> = servers.iter().map(|server| chart(server)).collect();
        // Servers differ in what they can be compared with.
        let most = charts.iter().flatten();
        let Some(all) = most.max_by_key(|chart| chart.alternatives.len()) else {
            continue;
        };
        let names = all.alternatives.iter().map(|way| way.name.as_str());
        let names: Vec<_> = names.filter(|name| is_a_choice(name)).collect();
        let Some((ours, others)) = names.split_first() else {
            continue;
        };
        let along = all.along.as_deref().unwrap_or_default();
        let place = at.map_or_else(String::new, |at| format!(", {}", counted(at, along)));
        let mut line = vec![format!("**{}{place}** ({})", all.title, all.unit.head())];
        line.extend(charts.iter().map(|chart| {
            let own = chart.and_then(|chart| Some((chart, chart.figures(ours, at)?)));
            own.map_or_else(String::new, |(chart, own)| with_spread(own, chart.unit))
        }));
        lines.push(line);
        for name in others {
            let mut line = vec![(*name).to_owned()];
            line.extend(charts.iter().map(|chart| {
                let both = chart
                    .and_then(|chart| Some((chart.figures(name, at)?, chart.figures(ours, at)?)));
                both.map_or_else(String::new, |(other, own)| times(other, own))
            }));
            lines.push(line);
        }
    }
    table(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figures;
    use crate::results::{Chart, OURS, Run, Unit};

    fn run(found: &[(&str, f64)]) -> Run {
        let text = r#"{"version": "1", "machine": "m", "load": 0.0, "charts": []}"#;
        let mut run: Run = serde_json::from_str(text).unwrap();
        let found = found.iter();
        let found = found.map(|(name, figure)| ((*name).to_owned(), Figures::one(*figure)));
        run.charts = vec![Chart::new(pairs::PLAIN, Unit::MicrosOfCpu, found.collect())];
        run
    }

    #[test]
    fn each_server_has_its_column_and_each_alternative_its_ratio() {
        let mut results = Results::default();
        let (one, two) = ("SET", "DELIFEQ");
        results.put("pairs", "A", run(&[(OURS, 2.0), (one, 4.0), (BARE, 1.0)]));
        results.put("pairs", "B", run(&[(OURS, 4.0), (one, 4.0), (two, 2.0)]));
        let table = table_of(&results, FIRST);
        let lines: Vec<Vec<_>> = table
            .lines()
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(lines[0][2..4], ["A", "B"]);
        assert_eq!(lines[2][2..4], ["2.00 µs", "4.00 µs"]);
        assert_eq!(lines[3][1..4], [one, "2.00 ×", "1.00 ×"]);
        assert_eq!(lines[4][1..4], [two, "", "0.50 ×"]);
        assert_eq!(lines.len(), 5, "{table}");
    }
}
