//! One screen of the demonstration: lines of styled text, for a terminal or an SVG file.

use std::time::Duration;

use crate::holder::{self, State};
use crate::scenario::{Activity, Scenario};

/// The number of lines of the log that are shown.
const EVENTS: usize = 10;

/// How a piece of text looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Warning,
    Alarm,
}

/// Pieces of one line.
pub type Line = Vec<(Style, String)>;

/// The whole screen.
#[derive(Clone, Default)]
pub struct Frame(pub Vec<Line>);

impl Frame {
    pub fn of(scenario: &Scenario) -> Self {
        let mut frame = Self::default();
        frame.head(scenario);
        frame.masters(scenario);
        frame.lock(scenario);
        frame.workers(scenario);
        frame.resource(scenario);
        frame.events(scenario);
        frame
    }

    /// The lines about the workers and about the resource, without their headings.
    pub fn parts(scenario: &Scenario) -> [Vec<Line>; 2] {
        let (mut workers, mut resource) = (Self::default(), Self::default());
        workers.workers(scenario);
        resource.resource(scenario);
        // A heading is an empty line and its text.
        [workers, resource].map(|part| part.0.into_iter().skip(2).collect())
    }

    fn line(&mut self, pieces: &[(Style, String)]) {
        self.0.push(pieces.to_vec());
    }

    fn heading(&mut self, text: &str) {
        self.line(&[]);
        self.line(&[(Style::Faint, text.to_owned())]);
    }

    fn head(&mut self, scenario: &Scenario) {
        let seconds = scenario.now().as_millis() / 100;
        let clock = format!("{:>4}.{}s", seconds / 10, seconds % 10);
        self.line(&[
            (Style::Strong, "make demo".to_owned()),
            (
                Style::Plain,
                format!(
                    "{:<67}",
                    "  five masters, four workers, one lock, one resource"
                ),
            ),
            (Style::Faint, clock),
        ]);
    }

    fn masters(&mut self, scenario: &Scenario) {
        self.heading("MASTER     STATE                        LOCKS  WAITING");
        for (place, master) in scenario.masters.iter().enumerate() {
            let answer = scenario
                .observed
                .nodes
                .get(place)
                .map(|answer| &answer.result);
            let (style, state, figures) = match (scenario.wanted[place], answer) {
                (false, _) => (Style::Bad, "killed".to_owned(), String::new()),
                (true, Some(Ok(node))) => {
                    let figures = format!("{:<5}  {}", node.locks, node.waiters);
                    if node.quarantine.is_zero() {
                        (Style::Good, "up".to_owned(), figures)
                    } else {
                        let left = shown(node.quarantine);
                        (Style::Warning, format!("quarantined for {left}"), figures)
                    }
                }
                (true, _) => (Style::Warning, "starting".to_owned(), String::new()),
            };
            self.line(&[
                (
                    Style::Plain,
                    format!("{} :{:<6}  ", place + 1, master.port()),
                ),
                (style, format!("{state:<27}  ")),
                (Style::Plain, figures),
            ]);
        }
    }

    fn lock(&mut self, scenario: &Scenario) {
        self.heading("LOCK, according to the masters");
        let (style, text) = match holder::state(&scenario.observed.lock) {
            State::Held(hold) => {
                let (owner, fence, left) = (hold.owner, hold.fence, shown(hold.left));
                let masters = format!("{} of {} masters", hold.masters, scenario.masters.len());
                let text = format!("held by {owner}, fence {fence}, on {masters}, lease {left}");
                (Style::Good, text)
            }
            State::Partial => (Style::Warning, "passing to the next worker".to_owned()),
            State::Free => (Style::Plain, "free".to_owned()),
            State::Unknown => (Style::Warning, "unknown".to_owned()),
        };
        self.line(&[(style, text)]);
    }

    fn workers(&mut self, scenario: &Scenario) {
        self.heading("WORKER");
        for (place, worker) in scenario.workers.iter().enumerate() {
            let (style, text) = match scenario.activity[place] {
                Activity::Holding { fence } if scenario.is_paused(place) => (
                    Style::Bad,
                    format!("PAUSED, and believes that it holds the lock with fence {fence}"),
                ),
                Activity::Holding { fence } if fence < scenario.resource.highest => (
                    Style::Warning,
                    format!(
                        "still works, and does not know that it lost the lock with fence {fence}"
                    ),
                ),
                Activity::Holding { fence } => {
                    (Style::Good, format!("holds the lock, fence {fence}"))
                }
                Activity::Waiting => (Style::Plain, "waiting".to_owned()),
                Activity::Resting => (Style::Faint, "not using the lock".to_owned()),
                Activity::Starting => (Style::Faint, "starting".to_owned()),
            };
            self.line(&[
                (Style::Plain, format!("{:<11}", worker.name)),
                (style, text),
            ]);
        }
    }

    fn resource(&mut self, scenario: &Scenario) {
        self.heading("RESOURCE");
        let resource = &scenario.resource;
        let refused = match resource.refused {
            0 => Style::Plain,
            _ => Style::Alarm,
        };
        self.line(&[
            (
                Style::Plain,
                format!(
                    "value {:<4} highest fence seen {:<17} ",
                    resource.value, resource.highest
                ),
            ),
            (Style::Good, format!("{} writes", resource.writes)),
            (Style::Plain, ", ".to_owned()),
            (refused, format!("{} refused", resource.refused)),
        ]);
    }

    fn events(&mut self, scenario: &Scenario) {
        self.heading("LOG");
        let first = scenario.events.len().saturating_sub(EVENTS);
        for event in &scenario.events[first..] {
            self.line(&[
                (Style::Faint, format!("{}  ", clock(event.at))),
                (event.style, event.text.clone()),
            ]);
        }
    }
}

/// `  7.3s`
pub fn clock(at: Duration) -> String {
    let tenths = at.as_millis() / 100;
    format!("{:>3}.{}s", tenths / 10, tenths % 10)
}

/// For people: only as exact as it matters.
fn shown(span: Duration) -> String {
    let millis = span.as_millis();
    match millis {
        0..1_000 => format!("{millis} ms"),
        _ => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
    }
}
