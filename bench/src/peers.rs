//! Our libraries and the usual locks of each language, as `bench/peers/run.py` has measured them.

mod picture;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::Outcome;
use crate::measure::Figures as Rounds;
use crate::report::{Line, folded, missed_first, table, taken_by_host, with_spread};
use crate::results::{Unit, grouped};
use crate::targets::spread;

/// Where the results are kept, in the folder of the project.
pub const FILE: &str = "bench/peers/results.json";
/// Which locks are measured, and which of them ours are compared with.
const LANGUAGES: &str = "bench/peers/peers.json";
/// The targets are for this many workers on one server.
const TARGET: Place = (1, 16);

/// How many masters, and how many workers.
type Place = (u64, u64);

/// What was found, and what is compared.
pub struct Peers {
    found: Vec<Found>,
    languages: BTreeMap<String, Language>,
}

/// One lock at one place.
#[derive(Clone, Deserialize)]
struct Found {
    masters: u64,
    workers: u64,
    server: String,
    machine: String,
    /// The load average at the start; none: the machine was idle.
    load: Option<f64>,
    /// The commit that was measured; none in older results.
    commit: Option<String>,
    /// The day; none in older results.
    date: Option<String>,
    /// The library that the lock belongs to, or is built on, with its version; none in older
    /// results.
    library: Option<String>,
    /// Whether the module was built with a profile; none if it is not a build of this project.
    trained: Option<bool>,
    /// The share of the time in which the machine wanted to run that its host gave to others.
    stolen: Option<f64>,
    seconds: u64,
    rounds: u64,
    language: String,
    lock: String,
    /// Whether the usual locks ran on servers without the module.
    #[serde(default)]
    apart: bool,
    /// Every round; none in older results.
    #[serde(default)]
    each_round: Vec<Figures>,
    /// Why it could not be measured.
    failed: Option<String>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// Medians of the rounds; the longest wait and the share are the worst of all rounds.
#[derive(Clone, Deserialize)]
struct Figures {
    grants_per_second: f64,
    handovers_per_second: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
    wait_max_ms: f64,
    share: f64,
    commands_per_grant: f64,
    server_cpu_us_per_grant: f64,
    client_cpu_us_per_grant: f64,
}

#[derive(Deserialize)]
struct Language {
    /// Our locks, each with the usual ones that do the same work in the same way.
    beside: BTreeMap<String, Vec<String>>,
}

impl Peers {
    /// What the project keeps.
    pub fn read(project: &Path) -> Outcome<Self> {
        Self::of(project, &project.join(FILE))
    }

    fn of(project: &Path, file: &Path) -> Outcome<Self> {
        let text = fs::read_to_string(project.join(LANGUAGES))?;
        Ok(Self {
            found: serde_json::from_str(&fs::read_to_string(file)?)?,
            languages: serde_json::from_str(&text)?,
        })
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn places(&self) -> BTreeSet<Place> {
        self.found.iter().map(Found::place).collect()
    }

    fn at(&self, place: Place) -> impl Iterator<Item = &Found> {
        let found = self.found.iter();
        found.filter(move |found| found.place() == place)
    }

    /// A table for each place. All but those of the targets' number of workers are folded.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for place in self.places() {
            let (masters, workers) = place;
            let title = format!("{workers} workers, {}", servers(masters));
            let lines = table(&self.lines(place));
            let origins = self.origins(place);
            text += &if workers == TARGET.1 {
                format!("**{title}** ({origins})\n\n{lines}\n")
            } else {
                folded(&title, &format!("{origins}\n\n{lines}"))
            };
        }
        text
    }

    /// Where the figures of a table come from; if from several runs, which of them.
    fn origins(&self, place: Place) -> String {
        let mut origins: Vec<(String, Vec<&str>)> = Vec::new();
        for found in self.at(place) {
            let origin = found.origin();
            match origins.iter_mut().find(|(known, _)| *known == origin) {
                Some((_, locks)) => locks.push(&found.lock),
                None => origins.push((origin, vec![&found.lock])),
            }
        }
        origins.sort_by_key(|(_, locks)| locks.len());
        let Some((most, _)) = origins.pop() else {
            return String::new();
        };
        if origins.is_empty() {
            return most;
        }
        let few = origins.iter();
        let few = few.map(|(origin, locks)| format!("{}: {origin}; ", locks.join(", ")));
        format!("{}the others: {most}", String::from_iter(few))
    }

    fn lines(&self, place: Place) -> Vec<Line> {
        let (more, less) = (Unit::PerSecond.better(), Unit::Micros.better());
        let heads = [
            "lock".to_owned(),
            format!("grants/s, {more}"),
            "relative to ours".to_owned(),
            format!("hand-overs/s, {more}"),
            format!("wait p50 / p99 / longest of the worst round, ms, {less}"),
            "least/most served in the worst round, 1 is best".to_owned(),
            format!("commands/grant, {less}"),
            format!("server CPU, µs/grant, {less}"),
            format!("client CPU, µs/grant, {less}"),
        ];
        let heads = heads.to_vec();
        let cells = |found: &Found| {
            let library = found.library.as_ref();
            let library = library.map_or_else(String::new, |library| format!(" ({library})"));
            let mut line = vec![format!("{}{library}", found.lock)];
            line.extend(found.cells());
            line.insert(2, self.relative_to_ours(found));
            line
        };
        [heads]
            .into_iter()
            .chain(self.at(place).map(cells))
            .collect()
    }

    /// The grants of a usual lock, compared with those of each of our libraries that
    /// [`Peers::references`] names.
    fn relative_to_ours(&self, usual: &Found) -> String {
        let ratios = self.references(usual);
        let ratios = ratios.filter_map(|ours| {
            let ratio = with_spread(&usual.rates_over(ours)?, Unit::Times);
            Some(format!("{ratio} {}", ours.lock))
        });
        ratios.collect::<Vec<_>>().join("; ")
    }

    /// What a usual lock is compared with: our libraries for the same language; with several
    /// masters, our only client for them.
    fn references<'a>(&'a self, usual: &'a Found) -> impl Iterator<Item = &'a Found> {
        let language = self.languages.get(&usual.language);
        let is_beside = move |ours: &Found| {
            let usuals = language.and_then(|language| language.beside.get(&ours.lock));
            let is_listed = usuals.is_some_and(|usuals| usuals.contains(&usual.lock));
            is_listed || usual.masters > 1 && ours.is_ours()
        };
        let ours = self.at(usual.place());
        ours.filter(move |ours| !usual.is_ours() && is_beside(ours))
    }

    /// What the locks came to at each place: the lowest and the highest figure of ours, and of the
    /// usual ones.
    pub fn summary(&self) -> String {
        let (more, less) = (Unit::PerSecond.better(), Unit::Micros.better());
        let heads = vec![
            "workers".to_owned(),
            format!("grants/s of ours over each usual lock, {more}"),
            format!("longest wait of ours, {less}"),
            format!("longest wait of the usual locks, {less}"),
            "least/most served of ours, 1 is best".to_owned(),
            "least/most served of the usual locks, 1 is best".to_owned(),
        ];
        let mut lines = vec![heads];
        for place in self.places() {
            let all: Vec<_> = self.at(place).collect();
            let ratios = all.iter().flat_map(|usual| {
                let ratios = self.references(usual);
                ratios.filter_map(|ours| Some(ours.rates_over(usual)?.median()))
            });
            let of = |is_ours: bool, figure: fn(&Figures) -> f64| {
                let locks = all.iter().filter(|found| found.is_ours() == is_ours);
                let figures = locks.filter_map(|found| found.figures.as_ref());
                figures.map(figure).collect::<Vec<_>>()
            };
            let wait = |figures: &Figures| figures.wait_max_ms;
            let share = |figures: &Figures| figures.share;
            let waits = |wait: f64| format!("{} ms", short(wait));
            let shares = |share: f64| format!("{share:.2}");
            lines.push(vec![
                format!("{}, {}", place.1, servers(place.0)),
                ends(ratios.collect(), |ratio| format!("{ratio:.2} ×")),
                ends(of(true, wait), waits),
                ends(of(false, wait), waits),
                ends(of(true, share), shares),
                ends(of(false, share), shares),
            ]);
        }
        table(&lines)
    }

    /// Each library, compared with the usual locks of its language.
    pub fn targets(&self) -> String {
        let heads = ["library", "what", "figure", "target", ""];
        let mut lines = Vec::new();
        for found in self.at(TARGET) {
            let beside = self.languages.get(&found.language);
            let beside = beside.and_then(|language| language.beside.get(&found.lock));
            let Some(beside) = beside else { continue };
            let usual = self.at(TARGET);
            let usual = usual.filter(|usual| beside.contains(&usual.lock));
            for check in checks(found, usual).unwrap_or_default() {
                let [what, figure, target, verdict] = check;
                lines.push(vec![found.lock.clone(), what, figure, target, verdict]);
            }
        }
        missed_first(&heads, lines)
    }

    /// A picture for one server and one for several, with their names.
    pub fn pictures(&self) -> impl Iterator<Item = (&'static str, String)> {
        let drawn = |masters, name| Some((name, picture::of(&self.found, masters)?));
        drawn(1, "peers")
            .into_iter()
            .chain(drawn(5, "peers-five-masters"))
    }
}

/// Prints the results in a file.
pub fn print(project: &Path, file: &Path) -> Outcome<()> {
    let peers = Peers::of(project, file)?;
    for place in peers.places() {
        let (masters, workers) = place;
        println!("\n{workers} workers, {}\n", servers(masters));
        println!("{}", table(&peers.lines(place)));
        if place == TARGET {
            println!("{}", peers.targets());
        }
    }
    println!("\nIn short\n\n{}", peers.summary());
    Ok(())
}

fn servers(masters: u64) -> String {
    match masters {
        1 => "one server".to_owned(),
        5 => "five masters".to_owned(),
        many => format!("{many} masters"),
    }
}

/// What, the figure, the target, and whether it is met.
type Check = [String; 4];

/// None if it has no figures.
fn checks<'a>(ours: &Found, beside: impl Iterator<Item = &'a Found>) -> Option<Vec<Check>> {
    let own = ours.figures.as_ref()?;
    let mut checks = vec![
        at_least("least/most served".to_owned(), own.share, 0.9),
        at_most("commands per grant".to_owned(), own.commands_per_grant, 2.5),
    ];
    for found in beside {
        let (Some(usual), Some(rate)) = (&found.figures, ours.rates_over(found)) else {
            continue;
        };
        let name = &found.lock;
        let rate = rate.median();
        checks.push(at_least(format!("grants/s over {name}"), rate, 1.0));
        let wait = own.wait_max_ms / usual.wait_max_ms;
        checks.push(at_most(format!("longest wait over {name}"), wait, 0.5));
    }
    Some(checks)
}

fn at_least(what: String, figure: f64, bound: f64) -> Check {
    verdict(what, figure, format!("≥ {bound}"), figure >= bound)
}

fn at_most(what: String, figure: f64, bound: f64) -> Check {
    verdict(what, figure, format!("≤ {bound}"), figure <= bound)
}

fn verdict(what: String, figure: f64, target: String, is_met: bool) -> Check {
    let verdict = if is_met { "met" } else { "not met" };
    [what, format!("{figure:.2}"), target, verdict.to_owned()]
}

/// The lowest and the highest of these figures.
fn ends(mut figures: Vec<f64>, show: impl Fn(f64) -> String) -> String {
    figures.sort_by(f64::total_cmp);
    match (figures.first(), figures.last()) {
        (Some(least), Some(most)) if show(*least) != show(*most) => {
            format!("{} – {}", show(*least), show(*most))
        }
        (Some(only), _) => show(*only),
        _ => String::new(),
    }
}

/// Milliseconds, with more digits for short times.
fn short(wait: f64) -> String {
    match wait {
        ..1.0 => format!("{wait:.2}"),
        1.0..10.0 => format!("{wait:.1}"),
        _ => grouped(wait),
    }
}

impl Found {
    fn place(&self) -> Place {
        (self.masters, self.workers)
    }

    /// Is it a lock of this project?
    fn is_ours(&self) -> bool {
        self.lock.starts_with("redislock ")
    }

    /// Where the figures come from.
    fn origin(&self) -> String {
        let Self {
            server,
            machine,
            load,
            seconds,
            rounds,
            apart,
            ..
        } = self;
        let build = self.trained.filter(|trained| !trained);
        let build = build.map(|_| "built without a profile".to_owned());
        let code = [&self.commit, &self.date, &build].into_iter().flatten();
        let code: String = code.map(|part| format!("{part}, ")).collect();
        let apart = if *apart {
            ", the usual locks without the module"
        } else {
            ""
        };
        let rounds = match rounds {
            1 => format!("one round of {seconds} s"),
            many => format!("{many} rounds of {seconds} s"),
        };
        let load = load.map_or_else(
            || "idle".to_owned(),
            |load| format!("load average {load:.1} at the start"),
        );
        let stolen = taken_by_host(self.stolen);
        format!("{server}, {code}{machine}, {load}{stolen}, {rounds}{apart}")
    }

    /// Grants a second: of each round, or only their median in older results.
    fn rates(&self) -> Option<Rounds> {
        let median = self.figures.as_ref()?;
        let each = match &self.each_round[..] {
            [] => std::slice::from_ref(median),
            each => each,
        };
        let mut rates = Rounds::default();
        each.iter()
            .for_each(|figures| rates.push(figures.grants_per_second));
        Some(rates)
    }

    /// Grants a second over those of another lock: round by round if both took turns in one run,
    /// otherwise the ratio of the medians.
    fn rates_over(&self, other: &Self) -> Option<Rounds> {
        let (rates, others) = (self.rates()?, other.rates()?);
        let took_turns = self.origin() == other.origin() && rates.count() == others.count();
        Some(if took_turns {
            rates.over(&others)
        } else {
            Rounds::one(rates.median() / others.median())
        })
    }

    /// Grants a second, with the lowest and the highest round.
    fn shown_rate(&self, figures: &Figures) -> String {
        let range = self.rates().map(|rates| spread(&rates, grouped));
        let range = range.filter(|range| !range.is_empty());
        let range = range.map_or_else(String::new, |range| format!(" ({range})"));
        format!("{}{range}", grouped(figures.grants_per_second))
    }

    fn cells(&self) -> Line {
        let Some(figures) = &self.figures else {
            let reason = self.failed.as_deref().unwrap_or("no figures");
            let mut line = vec![format!("failed: {}", reason.replace('|', "/"))];
            line.resize(7, String::new());
            return line;
        };
        let waits = [
            figures.wait_p50_ms,
            figures.wait_p99_ms,
            figures.wait_max_ms,
        ];
        vec![
            self.shown_rate(figures),
            grouped(figures.handovers_per_second),
            waits.map(short).join(" / "),
            format!("{:.2}", figures.share),
            format!("{:.1}", figures.commands_per_grant),
            grouped(figures.server_cpu_us_per_grant),
            grouped(figures.client_cpu_us_per_grant),
        ]
    }
}

#[cfg(test)]
mod tests {
    use redislock_testkit::project_folder;

    use super::*;

    fn found(lock: &str, grants: f64, longest: f64) -> Found {
        let text = format!(
            r#"{{"masters": 1, "workers": 16, "server": "Redis", "machine": "m", "load": 0,
            "seconds": 5, "rounds": 3, "language": "go", "lock": "{lock}", "share": 0.9,
            "grants_per_second": {grants}, "handovers_per_second": 1, "wait_p50_ms": 1,
            "wait_p99_ms": 1, "wait_max_ms": {longest}, "commands_per_grant": 2.5,
            "server_cpu_us_per_grant": 1, "client_cpu_us_per_grant": 1}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn peers(ours: (f64, f64)) -> Peers {
        let beside = [("redislock on x".to_owned(), vec!["usual".to_owned()])].into();
        Peers {
            found: vec![
                found("redislock on x", ours.0, ours.1),
                found("usual", 100.0, 10.0),
            ],
            languages: [("go".to_owned(), Language { beside })].into(),
        }
    }

    fn targets(ours: (f64, f64)) -> String {
        peers(ours).targets()
    }

    #[test]
    fn the_table_compares_each_usual_lock_with_ours() {
        let lines = peers((200.0, 5.0)).lines(TARGET);
        let column: Vec<_> = lines.iter().map(|line| line[2].as_str()).collect();
        assert_eq!(column, ["relative to ours", "", "0.50 × redislock on x"]);
    }

    #[test]
    fn a_lock_is_compared_with_each_of_our_libraries() {
        let mut peers = peers((200.0, 5.0));
        peers.found.push(found("redislock on y", 400.0, 1.0));
        let beside = &mut peers.languages.get_mut("go").unwrap().beside;
        beside.insert("redislock on y".to_owned(), vec!["usual".to_owned()]);
        assert_eq!(
            peers.lines(TARGET)[2][2],
            "0.50 × redislock on x; 0.25 × redislock on y"
        );
        let summary = peers.summary();
        assert!(summary.contains("| 2.00 × – 4.00 ×"), "{summary}");
    }

    #[test]
    fn with_several_masters_all_are_compared_with_our_only_client() {
        let mut peers = peers((200.0, 5.0));
        for found in &mut peers.found {
            found.masters = 5;
        }
        peers.found[0].language = "rust".to_owned();
        assert_eq!(peers.lines((5, 16))[2][2], "0.50 × redislock on x");
    }

    #[test]
    fn rounds_are_compared_with_the_same_round_of_ours() {
        let mut peers = peers((200.0, 5.0));
        for (found, rates) in peers.found.iter_mut().zip([[200.0, 100.0], [100.0, 100.0]]) {
            let figures = found.figures.clone().unwrap();
            found.each_round = rates
                .map(|grants_per_second| Figures {
                    grants_per_second,
                    ..figures.clone()
                })
                .to_vec();
        }
        let lines = peers.lines(TARGET);
        assert_eq!(lines[2][2], "0.75 × (0.50 – 1.00) redislock on x");
        assert_eq!(lines[1][1], "200 (100 – 200)");
        // In another run, only the medians can be compared.
        peers.found[1].load = None;
        assert_eq!(peers.lines(TARGET)[2][2], "0.67 × redislock on x");
    }

    #[test]
    fn a_library_is_compared_with_the_usual_lock_of_its_language() {
        assert!(!targets((100.0, 5.0)).contains("not met"));
        let slower = targets((99.0, 5.1));
        assert_eq!(slower.matches("not met").count(), 2, "{slower}");
    }

    #[test]
    fn a_lock_that_failed_says_why() {
        let mut found = found("usual", 1.0, 1.0);
        (found.figures, found.failed) = (None, Some("no grant".to_owned()));
        assert_eq!(found.cells()[0], "failed: no grant");
        assert_eq!(found.cells().len(), 7);
    }

    #[test]
    fn figures_of_several_runs_are_kept_apart() {
        let mut all = ["a", "b", "c"].map(|name| found(name, 1.0, 1.0)).to_vec();
        all[1].load = None;
        let languages = BTreeMap::new();
        let peers = Peers {
            found: all,
            languages,
        };
        let (busy, idle) = (
            "load average 0.0 at the start, 3 rounds of 5 s",
            "idle, 3 rounds of 5 s",
        );
        assert_eq!(
            peers.origins(TARGET),
            format!("b: Redis, m, {idle}; the others: Redis, m, {busy}")
        );
    }

    #[test]
    fn every_library_has_been_measured() {
        let peers = Peers::read(&project_folder()).unwrap();
        for language in peers.languages.values() {
            let usual = language.beside.values().flatten();
            for name in language.beside.keys().chain(usual) {
                assert!(peers.at(TARGET).any(|found| found.lock == *name), "{name}");
            }
        }
    }
}
