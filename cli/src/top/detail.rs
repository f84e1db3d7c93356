//! One lock: holders, queue, and what was seen of it since the start.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use redislock_client::Moment;

use super::app::App;
use super::draw::{FAINT, STRONG, color, state_of};
use crate::duration::shown;
use crate::names::{shown_key, shown_text};
use crate::summary::{Holding, LockSummary, State};
use crate::watch::{History, Hold, Level, Lock, Queue, Seen};

/// How far back the timeline goes, in ms.
const TIMELINE: i64 = 60_000;

/// Draws one lock.
pub fn draw(frame: &mut Frame, area: Rect, app: &mut App, seen: &mut Seen, id: u64) {
    seen.locks.want_queue(id);
    let lines = match seen.locks.get(id) {
        Some(lock) => lines(lock, seen, usize::from(area.width)),
        None => vec![Line::styled(
            "This lock is free, and nobody has used it for a while.",
            FAINT,
        )],
    };
    let room = usize::from(area.height);
    app.scrolled = app.scrolled.min(lines.len().saturating_sub(room));
    let lines: Vec<Line> = lines.into_iter().skip(app.scrolled).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn lines(lock: &Lock, seen: &Seen, width: usize) -> Vec<Line<'static>> {
    let passed = Moment::now().since(lock.seen);
    let (style, state) = state_of(lock, seen);
    let mut lines = vec![Line::from(vec![
        Span::styled(shown_key(&lock.key), STRONG),
        Span::raw("  "),
        Span::styled(state, style),
    ])];
    if let Some(summary) = &lock.summary {
        lines.push(queue(summary, passed));
        lines.push(Line::default());
        lines.push(Line::styled("HOLDERS", FAINT));
        let holder = |one: &Holding| holder(one, summary, passed);
        lines.extend(summary.holders.iter().map(holder));
        if summary.holders.is_empty() {
            lines.push(Line::styled("none", FAINT));
        }
        if summary.waiters > 0 {
            lines.push(Line::default());
            lines.extend(waiters(summary.waiters, seen.locks.queue(lock.id), seen));
        }
    }
    if let Some(history) = &lock.history {
        lines.push(Line::default());
        lines.extend(timeline(history, seen.now(), width));
        lines.push(Line::default());
        let title = format!("HISTORY: {} holds seen since the start", history.count);
        lines.push(Line::styled(title, FAINT));
        let is_unknown = |all: &LockSummary| all.state == State::Unknown;
        let is_old = passed > seen.stale_after() || lock.summary.as_ref().is_some_and(is_unknown);
        let past = |hold: &Hold| past(hold, seen.now(), is_old);
        lines.extend(history.holds.iter().rev().map(past));
    }
    lines
}

fn queue(summary: &LockSummary, passed: Duration) -> Line<'static> {
    match summary.waiters {
        0 => Line::styled("nobody waits", FAINT),
        some => {
            let waited = shown(summary.oldest_wait.saturating_add(passed));
            let text = format!("{some} waiting, the first for {waited}");
            Line::styled(text, color(Level::Warning))
        }
    }
}

/// Who waits, in order of arrival.
fn waiters(all: u64, queue: Option<&Queue>, seen: &Seen) -> Vec<Line<'static>> {
    let mut title = "QUEUE".to_owned();
    let passed = queue.map_or(Duration::ZERO, |queue| Moment::now().since(queue.seen));
    if passed > seen.stale_after() {
        title = format!("QUEUE, seen {} ago", shown(passed));
    }
    let mut lines = vec![Line::styled(title, FAINT)];
    let Some(queue) = queue else {
        lines.push(Line::styled("loading the queue", FAINT));
        return lines;
    };
    let Some(waiters) = &queue.waiters else {
        let text = "this version of the module does not report who waits";
        lines.push(Line::styled(text, FAINT));
        return lines;
    };
    lines.extend(waiters.iter().map(|one| {
        let mode = if one.mode == "shared" { ", shared" } else { "" };
        let waited = shown(one.wait.saturating_add(passed));
        let owner = name(one.owner.as_deref());
        Line::from(format!("{owner}  waiting for {waited}{mode}"))
    }));
    let more = all.saturating_sub(waiters.len() as u64);
    if more > 0 {
        lines.push(Line::styled(format!("and {more} more"), FAINT));
    }
    lines
}

fn name(owner: Option<&str>) -> String {
    owner.map_or_else(|| "an unnamed client".to_owned(), shown_text)
}

fn holder(holder: &Holding, summary: &LockSummary, passed: Duration) -> Line<'static> {
    let left = holder.remaining(summary.majority()).saturating_sub(passed);
    let age = holder.age.saturating_add(passed);
    Line::from(format!(
        "{}  {}, lease {} left, held for {}, on {} of {} nodes, fence {}",
        name(holder.owner.as_deref()),
        summary.mode,
        shown(left),
        shown(age),
        holder.nodes(),
        summary.nodes,
        holder.fence
    ))
}

/// Holds and waits of the last minute, a character for a part of it.
fn timeline(history: &History, now: i64, width: usize) -> Vec<Line<'static>> {
    let columns = width.saturating_sub(8).clamp(10, 120);
    let from = now - TIMELINE;
    let step = TIMELINE / i64::try_from(columns).unwrap_or(1);
    let drawn = |spans: &[(i64, Option<i64>)], mark: char| -> String {
        let column = |place: usize| {
            let start = from + i64::try_from(place).unwrap_or(0) * step;
            let covers = |(begin, end): &(i64, Option<i64>)| {
                *begin < start + step && end.is_none_or(|end| end > start)
            };
            if spans.iter().any(covers) { mark } else { ' ' }
        };
        (0..columns).map(column).collect()
    };
    let holds: Vec<_> = history
        .holds
        .iter()
        .map(|one| (one.start, one.end))
        .collect();
    let waits: Vec<_> = history
        .waits
        .iter()
        .map(|one| (one.start, one.end))
        .collect();
    vec![
        Line::styled("THE LAST 60 s", FAINT),
        Line::from(vec![
            Span::styled("held    ", FAINT),
            Span::styled(drawn(&holds, '#'), color(Level::Good)),
        ]),
        Line::from(vec![
            Span::styled("waiting ", FAINT),
            Span::styled(drawn(&waits, '-'), color(Level::Warning)),
        ]),
    ]
}

fn past(hold: &Hold, now: i64, is_old: bool) -> Line<'static> {
    let span = |millis: i64| shown(Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
    let owner = name(hold.owner.as_deref());
    let fence = hold.fence;
    match hold.end {
        None => {
            let held = span(now - hold.start);
            let state = if is_old {
                "held when last seen"
            } else {
                "holds it now"
            };
            Line::from(format!("{owner}  for {held}, {state}, fence {fence}"))
        }
        Some(end) => {
            let (held, ago) = (span(end - hold.start), span(now - end));
            let text = format!("{owner}  for {held}, ended {ago} ago, fence {fence}");
            Line::styled(text, FAINT)
        }
    }
}
