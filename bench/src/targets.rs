//! The targets for the figures.

use crate::measure::Figures;
use crate::memory::STRING;
use crate::results::{Chart, OURS, Run, Unit, counted};
use crate::{client, deadlock, growth, handover, instructions, memory, pairs, several, waiters};

/// What a figure is compared with.
#[derive(Clone, Copy)]
enum Beside {
    /// Itself.
    Nothing,
    /// Divided by that of another one.
    Over(&'static str),
    /// Minus that of another one.
    Less(&'static str),
    /// Divided by its own figure at this small number.
    OverAt(u64),
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

use Beside::{Less, Nothing, Over, OverAt};
use Bound::{AtLeast, AtMost};

/// One figure of a chart, what it is compared with, and its limit.
struct Target {
    section: &'static str,
    chart: &'static str,
    of: &'static str,
    at: Option<u64>,
    beside: Beside,
    bound: Bound,
}

const fn target(
    (section, chart): (&'static str, &'static str),
    of: &'static str,
    at: Option<u64>,
    beside: Beside,
    bound: Bound,
) -> Target {
    Target {
        section,
        chart,
        of,
        at,
        beside,
        bound,
    }
}

const SCRIPT: &str = "SET NX PX + EVALSHA";
const DELIFEQ: &str = "SET NX PX + DELIFEQ";
const SCRIPT_BESIDE: &str = "SET NX PX + EVALSHA, same server";
const DELIFEQ_BESIDE: &str = "SET NX PX + DELIFEQ, same server";
const PAIRS: (&str, &str) = ("pairs", pairs::PLAIN);
const PAIRS_AOF: (&str, &str) = ("pairs", pairs::AOF);
const COUNTED: (&str, &str) = ("instructions", instructions::PAIR);
const COUNTED_AOF: (&str, &str) = ("instructions", instructions::PAIR_AOF);
const BESIDE_WAITERS: (&str, &str) = ("instructions", instructions::BESIDE);
const COUNTED_HANDOVER: (&str, &str) = ("instructions", instructions::HANDOVER);
const COUNTED_SAVE: (&str, &str) = ("instructions", instructions::SAVE);
const COUNTED_LOAD: (&str, &str) = ("instructions", instructions::LOAD);
const LOCK: (&str, &str) = ("memory", memory::LOCK);
const RATE: (&str, &str) = ("handover", handover::RATE);
const FAIRNESS: (&str, &str) = ("handover", handover::FAIRNESS);
const AMONG: (&str, &str) = ("growth", growth::PAIR);
const SAVE: (&str, &str) = ("growth", growth::SAVE);
const LOAD: (&str, &str) = ("growth", growth::LOAD);
const EXPIRY: (&str, &str) = ("growth", growth::EXPIRY);
const SLICE: (&str, &str) = ("growth", growth::SLICE);
const ONE_KEY: (&str, &str) = ("waiters", waiters::ONE_KEY);
const KEY_EACH: (&str, &str) = ("waiters", waiters::KEY_EACH);
const DEADLOCK: (&str, &str) = ("deadlock", deadlock::WAIT);
const CLIENT: (&str, &str) = ("client", client::RATE);
const CLIENT_CPU: (&str, &str) = ("client", client::CLIENT_CPU);
const ONE_ACQUIRE: (&str, &str) = ("client", client::ACQUIRE);
const STOPPED: (&str, &str) = ("client", client::STOPPED);
const MANY: Option<u64> = Some(10_000);
const HUNDRED_THOUSAND: Option<u64> = Some(100_000);
const MILLION: Option<u64> = Some(1_000_000);
const TEN_MILLION: Option<u64> = Some(10_000_000);

const TARGETS: &[Target] = &[
    target(PAIRS, SCRIPT, None, Over(OURS), AtLeast(1.8)),
    target(PAIRS, DELIFEQ, None, Over(OURS), AtLeast(1.0)),
    target(PAIRS_AOF, SCRIPT, None, Over(OURS), AtLeast(1.5)),
    target(PAIRS_AOF, DELIFEQ, None, Over(OURS), AtLeast(0.95)),
    target(PAIRS, SCRIPT_BESIDE, None, Over(OURS), AtLeast(1.8)),
    target(PAIRS, DELIFEQ_BESIDE, None, Over(OURS), AtLeast(1.0)),
    target(PAIRS_AOF, SCRIPT_BESIDE, None, Over(OURS), AtLeast(1.5)),
    target(PAIRS_AOF, DELIFEQ_BESIDE, None, Over(OURS), AtLeast(0.95)),
    target(AMONG, SCRIPT, Some(1_000), Over(OURS), AtLeast(1.8)),
    target(AMONG, SCRIPT, MANY, Over(OURS), AtLeast(1.8)),
    target(AMONG, SCRIPT, HUNDRED_THOUSAND, Over(OURS), AtLeast(1.8)),
    target(AMONG, SCRIPT, MILLION, Over(OURS), AtLeast(1.8)),
    target(AMONG, SCRIPT, TEN_MILLION, Over(OURS), AtLeast(1.8)),
    target(COUNTED, SCRIPT, None, Over(OURS), AtLeast(1.8)),
    target(COUNTED, DELIFEQ, None, Over(OURS), AtLeast(1.0)),
    target(COUNTED_AOF, SCRIPT, None, Over(OURS), AtLeast(1.5)),
    target(COUNTED_AOF, DELIFEQ, None, Over(OURS), AtLeast(0.95)),
    target(
        BESIDE_WAITERS,
        OURS,
        None,
        Over(instructions::ALONE),
        AtMost(1.03),
    ),
    target(
        COUNTED_HANDOVER,
        OURS,
        Some(16),
        Over(handover::LIST),
        AtMost(1.2),
    ),
    target(
        COUNTED_HANDOVER,
        OURS,
        Some(64),
        Over(handover::LIST),
        AtMost(1.2),
    ),
    target(
        COUNTED_HANDOVER,
        OURS,
        Some(256),
        Over(handover::LIST),
        AtMost(1.2),
    ),
    target(COUNTED_SAVE, STRING, None, Over(OURS), AtLeast(0.8)),
    target(COUNTED_LOAD, STRING, None, Over(OURS), AtLeast(0.8)),
    target(RATE, OURS, Some(16), Over(handover::LIST), AtLeast(0.95)),
    target(RATE, OURS, Some(64), Over(handover::LIST), AtLeast(0.95)),
    target(RATE, OURS, Some(256), Over(handover::LIST), AtLeast(0.95)),
    target(
        FAIRNESS,
        OURS,
        Some(64),
        Over(handover::LIST),
        AtLeast(0.95),
    ),
    target(LOCK, OURS, None, Over(STRING), AtMost(1.3)),
    target(SAVE, STRING, MILLION, Over(OURS), AtLeast(0.8)),
    target(SAVE, STRING, TEN_MILLION, Over(OURS), AtLeast(0.8)),
    target(LOAD, STRING, MILLION, Over(OURS), AtLeast(0.8)),
    target(LOAD, STRING, TEN_MILLION, Over(OURS), AtLeast(0.8)),
    target(EXPIRY, OURS, MILLION, Over(STRING), AtMost(1.0)),
    target(EXPIRY, OURS, TEN_MILLION, Over(STRING), AtMost(1.0)),
    target(SLICE, OURS, HUNDRED_THOUSAND, Nothing, AtMost(1_000.0)),
    target(SLICE, OURS, MILLION, Nothing, AtMost(1_000.0)),
    target(SLICE, OURS, TEN_MILLION, Nothing, AtMost(1_000.0)),
    target(ONE_KEY, OURS, MANY, OverAt(10), AtMost(1.2)),
    target(KEY_EACH, OURS, MANY, OverAt(10), AtMost(1.2)),
    target(DEADLOCK, deadlock::NO_SEARCH, MANY, OverAt(1), AtMost(1.5)),
    target(
        DEADLOCK,
        deadlock::NONE_REACHED,
        MANY,
        OverAt(1),
        AtMost(1.5),
    ),
    target(
        ("several", several::SEVERAL),
        OURS,
        None,
        Over(several::ONE_BY_ONE),
        AtMost(0.6),
    ),
    target(
        ("several", several::GUARDED),
        OURS,
        None,
        Less(several::SET),
        AtMost(1.5),
    ),
    target(CLIENT, OURS, None, Over(client::LOOP), AtLeast(0.95)),
    target(CLIENT, OURS, None, Over(client::RSLOCK), AtLeast(1.1)),
    target(CLIENT_CPU, OURS, None, Over(client::RSLOCK), AtMost(1.0)),
    target(ONE_ACQUIRE, OURS, None, Over(client::MAJORITY), AtMost(1.5)),
    target(STOPPED, OURS, Some(4), OverAt(5), AtLeast(1.0)),
];

/// A target, compared with the measured figure.
pub struct Checked {
    pub what: String,
    pub found: String,
    pub spread: String,
    pub wanted: String,
    pub verdict: String,
}

/// The targets of a section, as far as this run has their figures.
pub fn check(section: &str, run: &Run) -> Vec<Checked> {
    let targets = TARGETS.iter().filter(|target| target.section == section);
    targets.filter_map(|target| target.check_in(run)).collect()
}

/// The targets of a section for which none of these runs has a figure.
pub fn not_measured<'a>(section: &str, runs: impl Iterator<Item = &'a Run> + Clone) -> Vec<String> {
    let targets = TARGETS.iter().filter(|target| target.section == section);
    targets
        .filter(|target| runs.clone().all(|run| target.check_in(run).is_none()))
        .map(|target| target.what(target.chart, ""))
        .collect()
}

impl Target {
    fn check_in(&self, run: &Run) -> Option<Checked> {
        let mut charts = run.charts.iter();
        self.check(charts.find(|chart| chart.title == self.chart)?)
    }

    fn check(&self, chart: &Chart) -> Option<Checked> {
        let own = chart.figures(self.of, self.at)?;
        let figures = match self.beside {
            Nothing => own.clone(),
            Over(other) => own.over(chart.figures(other, self.at)?),
            Less(other) => own.less(chart.figures(other, self.at)?),
            OverAt(few) => own.over(chart.figures(self.of, Some(few))?),
        };
        let show = |figure| self.show(chart.unit, figure);
        let wanted = match self.bound {
            AtLeast(bound) => format!("≥ {}", show(bound)),
            AtMost(bound) => format!("≤ {}", show(bound)),
        };
        let title = format!("{} ({})", chart.title, chart.unit.name());
        Some(Checked {
            what: self.what(&title, chart.along.as_deref().unwrap_or_default()),
            found: show(figures.median()),
            spread: spread(&figures, show),
            wanted,
            verdict: self.verdict(&figures),
        })
    }

    /// The median decides. If there is only one round, or if some rounds are on the other side, the
    /// verdict says so.
    fn verdict(&self, figures: &Figures) -> String {
        let is_met = |figure: f64| match self.bound {
            AtLeast(bound) => figure >= bound,
            AtMost(bound) => figure <= bound,
        };
        let verdict = if is_met(figures.median()) {
            "met"
        } else {
            "not met"
        };
        let detail = if figures.count() == 1 {
            ", one round"
        } else if figures
            .range()
            .map(is_met)
            .iter()
            .all(|met| *met == is_met(figures.median()))
        {
            ""
        } else {
            " in most rounds"
        };
        format!("{verdict}{detail}")
    }

    fn what(&self, title: &str, along: &str) -> String {
        let of = self.of;
        let place = self.at;
        let place = place.map_or_else(String::new, |at| {
            format!(", {}", counted(at, along).trim_end())
        });
        let compared = match self.beside {
            Nothing => of.to_owned(),
            Over(other) => format!("{of} over {other}"),
            Less(other) => format!("{of} minus {other}"),
            OverAt(few) => format!("{of}, over {}", counted(few, along)),
        };
        format!("{title}{place}: {compared}")
    }

    fn show(&self, unit: Unit, figure: f64) -> String {
        match self.beside {
            Nothing | Less(_) => unit.show(figure),
            Over(_) | OverAt(_) => format!("{figure:.2} ×"),
        }
    }
}

/// The [`Figures::range`].
pub fn spread(figures: &Figures, show: impl Fn(f64) -> String) -> String {
    let [least, most] = figures.range().map(show);
    if least == most {
        return String::new();
    }
    format!("{least} – {most}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ways::Way;

    #[test]
    fn a_target_is_reported_as_missed_or_met() {
        let found = |ours, script| {
            let names = [(OURS, ours), (SCRIPT, script)];
            let names = names.map(|(name, figure)| (name.to_owned(), Figures::one(figure)));
            let chart = Chart::new(pairs::PLAIN, Unit::MicrosOfCpu, names.to_vec());
            Run {
                version: String::new(),
                commit: None,
                trained: None,
                date: None,
                alternatives: None,
                machine: String::new(),
                load: 0.0,
                stolen: None,
                charts: vec![chart],
            }
        };
        let verdict = |ours, script| check("pairs", &found(ours, script))[0].verdict.clone();
        assert_eq!(verdict(1.0, 1.8), "met, one round");
        assert_eq!(verdict(1.0, 1.79), "not met, one round");
        let figures = |rounds: [f64; 3]| {
            let mut figures = Figures::one(rounds[0]);
            rounds[1..].iter().for_each(|round| figures.push(*round));
            figures
        };
        assert_eq!(TARGETS[0].verdict(&figures([1.9, 1.8, 1.8])), "met");
        assert_eq!(
            TARGETS[0].verdict(&figures([1.9, 1.8, 1.7])),
            "met in most rounds"
        );
        assert_eq!(
            TARGETS[0].verdict(&figures([1.9, 1.7, 1.7])),
            "not met in most rounds"
        );
    }

    #[test]
    fn a_target_without_a_figure_is_named() {
        let missing = not_measured("growth", std::iter::empty());
        assert_eq!(missing.len(), 14);
        let save = "RDB save, 10,000,000: string with PX over redislock";
        assert!(missing.iter().any(|what| what == save), "{missing:?}");
    }

    #[test]
    fn the_names_are_those_of_the_charts() {
        assert_eq!((SCRIPT, DELIFEQ), (Way::Script.name(), Way::DelIfEq.name()));
        let beside = (Way::ScriptBeside.name(), Way::DelIfEqBeside.name());
        assert_eq!((SCRIPT_BESIDE, DELIFEQ_BESIDE), beside);
    }
}
