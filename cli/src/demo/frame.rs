//! One picture of the stage: lines of text in a few styles, for a terminal and for a file alike.

use super::stage::{Doing, Stage};
use crate::duration::shown;
use crate::merged::{Merged, State};

/// So many lines of the record are shown.
const EVENTS: usize = 10;

/// How a piece of text looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Doubtful,
    Alarm,
}

/// Pieces of one line.
pub type Line = Vec<(Style, String)>;

/// The whole picture.
#[derive(Clone, Default)]
pub struct Frame(pub Vec<Line>);

impl Frame {
    pub fn of(stage: &Stage) -> Self {
        let mut frame = Self::default();
        frame.head(stage);
        frame.masters(stage);
        frame.lock(stage);
        frame.workers(stage);
        frame.resource(stage);
        frame.events(stage);
        frame
    }

    fn line(&mut self, pieces: &[(Style, String)]) {
        self.0.push(pieces.to_vec());
    }

    fn heading(&mut self, text: &str) {
        self.line(&[]);
        self.line(&[(Style::Faint, text.to_owned())]);
    }

    fn head(&mut self, stage: &Stage) {
        let seconds = stage.now().as_millis() / 100;
        let clock = format!("{:>4}.{}s", seconds / 10, seconds % 10);
        self.line(&[
            (Style::Strong, "redlock demo".to_owned()),
            (
                Style::Plain,
                format!(
                    "{:<64}",
                    "  five masters, four workers, one lock, one resource"
                ),
            ),
            (Style::Faint, clock),
        ]);
    }

    fn masters(&mut self, stage: &Stage) {
        self.heading("MASTER     STATE                        LOCKS  WAITING");
        for (place, master) in stage.masters.iter().enumerate() {
            let answer = stage.seen.nodes.get(place).map(|answer| &answer.result);
            let (style, state, figures) = match (stage.wanted[place], answer) {
                (false, _) => (Style::Bad, "killed".to_owned(), String::new()),
                (true, Some(Ok(node))) => {
                    let figures = format!("{:<5}  {}", node.locks, node.waiters);
                    match node.quarantine.is_zero() {
                        true => (Style::Good, "up".to_owned(), figures),
                        false => {
                            let left = shown(node.quarantine);
                            (Style::Doubtful, format!("quarantined for {left}"), figures)
                        }
                    }
                }
                (true, _) => (Style::Doubtful, "starting".to_owned(), String::new()),
            };
            self.line(&[
                (Style::Plain, format!("{} :{:<6}  ", place + 1, master.port)),
                (style, format!("{state:<27}  ")),
                (Style::Plain, figures),
            ]);
        }
    }

    fn lock(&mut self, stage: &Stage) {
        self.heading("LOCK, as the masters see it");
        let merged = Merged::of(&stage.seen.lock);
        let (style, text) = match (merged.state, merged.holders.first()) {
            (State::Held, Some(holder)) => (
                Style::Good,
                format!(
                    "held by {}, fence {}, on {} of {} masters, lease {}",
                    holder.name(),
                    holder.fence,
                    holder.nodes(),
                    merged.nodes,
                    shown(holder.remaining(merged.majority()))
                ),
            ),
            (State::Partial, _) => (Style::Doubtful, "being handed over".to_owned()),
            (State::Free, _) => (Style::Plain, "free".to_owned()),
            _ => (Style::Doubtful, "unknown".to_owned()),
        };
        self.line(&[(style, text)]);
    }

    fn workers(&mut self, stage: &Stage) {
        self.heading("WORKER");
        for (place, worker) in stage.workers.iter().enumerate() {
            let (style, text) = match stage.doing[place] {
                Doing::Holding { fence } if stage.is_paused(place) => (
                    Style::Bad,
                    format!("PAUSED, and would say that it holds the lock with fence {fence}"),
                ),
                Doing::Holding { fence } if fence < stage.resource.highest => (
                    Style::Doubtful,
                    format!("works on, and does not know that it lost the lock with fence {fence}"),
                ),
                Doing::Holding { fence } => (Style::Good, format!("holds the lock, fence {fence}")),
                Doing::Waiting => (Style::Plain, "waits".to_owned()),
                Doing::Resting => (Style::Faint, "does something else".to_owned()),
                Doing::Starting => (Style::Faint, "starts".to_owned()),
            };
            self.line(&[
                (Style::Plain, format!("{:<11}", worker.name)),
                (style, text),
            ]);
        }
    }

    fn resource(&mut self, stage: &Stage) {
        self.heading("RESOURCE");
        let resource = &stage.resource;
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

    fn events(&mut self, stage: &Stage) {
        self.heading("WHAT HAPPENED");
        let first = stage.events.len().saturating_sub(EVENTS);
        for event in &stage.events[first..] {
            self.line(&[
                (Style::Faint, format!("{}  ", clock(event.at))),
                (event.style, event.text.clone()),
            ]);
        }
    }
}

/// `  7.3s`
pub fn clock(at: std::time::Duration) -> String {
    let tenths = at.as_millis() / 100;
    format!("{:>3}.{}s", tenths / 10, tenths % 10)
}
