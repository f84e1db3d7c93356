//! Draws the screen.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, Wrap};
use redislock_client::Moment;

use super::app::{App, Mode};
use super::detail;
use crate::duration::shown;
use crate::names::{printable, shown_key, shown_text};
use crate::summary::State;
use crate::watch::{Level, Lock, Node, Seen};

/// Nodes that are shown in full; the others are counted.
const NODES: usize = 9;
const KEYS: &str = "q quit  Enter one lock  / filter  s order  f force  ? help";
const HELP: &str = "\
Up, Down, PgUp, PgDn, Home, End   move
Enter        one lock: holders, queue, history
Esc          back, or remove the filter
/            filter by name or holder
s            next order: wait, waiters, held, lease, fence, name
f            release the lock by force (asks first)
ctrl-L       draw again
q            quit

Held: a majority of all nodes reports a holder. Partly held: fewer do.
Data that was not updated recently is shown with its age.

Press any key to continue.";

pub const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
pub const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

pub fn color(level: Level) -> Style {
    Style::new().fg(match level {
        Level::Good => Color::Green,
        Level::Warning => Color::Yellow,
        Level::Bad => Color::Red,
    })
}

/// Draws all of it.
pub fn draw(frame: &mut Frame, app: &mut App, seen: &mut Seen) {
    let nodes = seen.nodes.len().min(NODES + 1);
    let parts = [
        Constraint::Length(2),
        Constraint::Length(u16::try_from(nodes).unwrap_or(0) + 2),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [head, nodes, locks, foot] = Layout::vertical(parts).areas(frame.area());
    draw_head(frame, head, seen);
    draw_nodes(frame, nodes, seen);
    match app.mode {
        Mode::Detail(id) => detail::draw(frame, locks, app, seen, id),
        _ => draw_locks(frame, locks, app, seen),
    }
    draw_foot(frame, foot, app, seen);
    match app.mode {
        Mode::Help => popup(frame, "Help", HELP.lines().map(Line::from).collect()),
        Mode::Confirm(id) => popup(frame, "Release by force?", question(seen, id)),
        _ => {}
    }
}

fn draw_head(frame: &mut Frame, area: Rect, seen: &Seen) {
    let (level, text) = seen.verdict();
    let age = Moment::now().since(seen.updated);
    let stale = seen.rounds > 0 && age > seen.stale_after();
    let mut first = vec![
        Span::styled("redlock top  ", STRONG),
        Span::styled(printable(&text), color(level).add_modifier(Modifier::BOLD)),
    ];
    if stale {
        let text = format!("  OLD: this was {} ago", shown(age));
        first.push(Span::styled(text, color(Level::Bad)));
    }
    let locks = seen.reported_locks().max(seen.locks.len() as u64);
    let mut figures = format!(
        "{locks} locks, {} waiting, {:.1} grants/s",
        seen.reported_waiters(),
        seen.grants_per_second()
    );
    if seen.locks.overflow {
        figures.push_str(", more than can be listed");
    }
    let mut second = vec![Span::styled(figures, FAINT)];
    if let Some(gaps) = seen.gaps() {
        second.push(Span::styled(format!("; {gaps}"), color(Level::Warning)));
    }
    let lines = vec![Line::from(first), Line::from(second)];
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_nodes(frame: &mut Frame, area: Rect, seen: &Seen) {
    let mut rows: Vec<Row> = seen.nodes.iter().take(NODES).map(node_row).collect();
    if seen.nodes.len() > NODES {
        let more = format!("and {} more", seen.nodes.len() - NODES);
        rows.push(Row::new([more]).style(FAINT));
    }
    let heading = [
        "NODE", "STATE", "LOCKS", "WAITING", "GRANTS/S", "FENCE", "REPLY",
    ];
    let widths = [
        Constraint::Length(22),
        Constraint::Fill(1),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(17),
        Constraint::Length(7),
    ];
    let table = Table::new(rows, widths).header(Row::new(heading).style(FAINT));
    frame.render_widget(table, area);
}

fn node_row(node: &Node) -> Row<'static> {
    let (level, state) = node.state();
    let state = match node.warnings.len() {
        0 => state,
        1 => format!("{state}, 1 warning"),
        more => format!("{state}, {more} warnings"),
    };
    let mut cells = vec![
        Span::raw(printable(&node.name)),
        Span::styled(printable(&state), color(level)),
    ];
    if let Some(status) = &node.status {
        let rate = node.rates.map(|rates| format!("{:.1}", rates.grants));
        cells.extend([
            Span::raw(status.locks.to_string()),
            Span::raw(status.waiters.to_string()),
            Span::raw(rate.unwrap_or_else(|| "-".to_owned())),
            Span::raw(status.fence.to_string()),
            Span::raw(shown(status.round_trip)),
        ]);
    }
    Row::new(cells)
}

/// The locks on the screen. The cursor stays on its lock when the order changes.
fn visible<'a>(app: &mut App, seen: &'a Seen) -> Vec<&'a Lock> {
    let (_, matching) = app.query.find(&seen.locks, 0, 0);
    let place = app.selected.and_then(|id| app.query.place(&seen.locks, id));
    app.matching = matching;
    app.cursor = place.unwrap_or(app.cursor).min(matching.saturating_sub(1));
    app.first = app
        .first
        .min(app.cursor)
        .max((app.cursor + 1).saturating_sub(app.room));
    let (visible, _) = app.query.find(&seen.locks, app.first, app.room);
    app.selected = visible.get(app.cursor - app.first).map(|lock| lock.id);
    visible
}

fn draw_locks(frame: &mut Frame, area: Rect, app: &mut App, seen: &mut Seen) {
    app.room = usize::from(area.height).saturating_sub(1).max(1);
    let visible = visible(app, seen);
    let wide = Width::of(area.width);
    let rows: Vec<Row> = visible
        .iter()
        .map(|lock| {
            let row = lock_row(lock, seen, wide);
            if app.selected == Some(lock.id) {
                row.style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                row
            }
        })
        .collect();
    let ids: Vec<u64> = visible.iter().map(|lock| lock.id).collect();
    if rows.is_empty() {
        let text = match (app.query.filter.is_empty(), seen.is_complete()) {
            _ if seen.is_blind() && seen.rounds > 0 => "not known: too few nodes list their locks",
            (false, _) => "no lock matches the filter",
            (true, true) => "nobody holds a lock, and nobody waits",
            (true, false) => "looking for locks",
        };
        frame.render_widget(Paragraph::new(Line::styled(text, FAINT)), area);
        return;
    }
    let table = Table::new(rows, wide.columns()).header(Row::new(wide.heading()).style(FAINT));
    frame.render_widget(table, area);
    ids.into_iter().for_each(|id| seen.locks.want(id));
}

/// Which columns there is room for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Narrow,
    Usual,
    Wide,
}

impl Width {
    fn of(width: u16) -> Self {
        match width {
            0..76 => Self::Narrow,
            76..118 => Self::Usual,
            _ => Self::Wide,
        }
    }

    fn columns(self) -> Vec<Constraint> {
        let mut columns = vec![
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(10),
            Constraint::Length(7),
            Constraint::Length(9),
        ];
        if self != Self::Narrow {
            columns.insert(2, Constraint::Length(13));
        }
        if self == Self::Wide {
            columns.extend([Constraint::Length(9), Constraint::Length(6)]);
            columns.push(Constraint::Length(16));
        }
        columns
    }

    fn heading(self) -> Vec<&'static str> {
        let mut heading = vec!["LOCK", "HOLDER", "LEASE LEFT", "WAITING", "LONGEST"];
        if self != Self::Narrow {
            heading.insert(2, "STATE");
        }
        if self == Self::Wide {
            heading.extend(["HELD FOR", "NODES", "FENCE"]);
        }
        heading
    }
}

/// The state of a lock, with its age if that is old.
pub fn state_of(lock: &Lock, seen: &Seen) -> (Style, String) {
    let age = Moment::now().since(lock.seen);
    let Some(summary) = &lock.summary else {
        return (FAINT, "not asked yet".to_owned());
    };
    if age > seen.stale_after() {
        return (
            FAINT,
            format!("{} {} ago", summary.state.word(), shown(age)),
        );
    }
    let style = match summary.state {
        State::Held => Style::new(),
        State::Free => FAINT,
        State::Partial | State::Unknown => color(Level::Warning),
    };
    (style, summary.state.word().to_owned())
}

fn lock_row(lock: &Lock, seen: &Seen, wide: Width) -> Row<'static> {
    let passed = Moment::now().since(lock.seen);
    let (style, state) = state_of(lock, seen);
    let mut cells = vec![Span::raw(shown_key(&lock.key)), Span::raw(String::new())];
    let empty = || Span::raw(String::new());
    let summary = lock.summary.as_ref();
    let holder = summary.and_then(|summary| Some((summary, summary.holders.first()?)));
    let mut lease = empty();
    let mut rest = vec![empty(), empty(), empty()];
    if let Some((summary, first)) = holder {
        let name = first.owner.as_deref().map(shown_text);
        let name = name.unwrap_or_else(|| "an unnamed client".to_owned());
        cells[1] = Span::raw(match summary.holders.len() {
            1 => name,
            more => format!("{name} and {} more", more - 1),
        });
        let left = first.remaining(summary.majority()).saturating_sub(passed);
        lease = Span::raw(shown(left));
        rest = vec![
            Span::raw(shown(first.age.saturating_add(passed))),
            Span::raw(format!("{} of {}", first.nodes(), summary.nodes)),
            Span::raw(first.fence.to_string()),
        ];
    }
    let waiters = summary.map_or(0, |summary| summary.waiters);
    let waited = summary.map_or(Duration::ZERO, |all| all.oldest_wait.saturating_add(passed));
    let (count, longest) = match waiters {
        0 => (empty(), empty()),
        some => (
            Span::styled(some.to_string(), color(Level::Warning)),
            Span::styled(shown(waited), color(Level::Warning)),
        ),
    };
    if wide != Width::Narrow {
        cells.push(Span::styled(state, style));
    }
    cells.extend([lease, count, longest]);
    if wide == Width::Wide {
        cells.extend(rest);
    }
    Row::new(cells)
}

fn draw_foot(frame: &mut Frame, area: Rect, app: &App, seen: &Seen) {
    let line = match (&app.mode, &app.message) {
        (Mode::Filter, _) => {
            let filter = printable(&app.query.filter);
            Line::from(format!(
                "filter: {filter}_   Enter keeps it, Esc removes it"
            ))
        }
        (_, Some(message)) => Line::styled(printable(message), color(Level::Warning)),
        (Mode::Detail(_), None) => {
            Line::styled("Esc back  f force  Up, Down scroll  q quit", FAINT)
        }
        _ => {
            let filter = match app.query.filter.as_str() {
                "" => String::new(),
                text => format!("  filter: {}", printable(text)),
            };
            let (sort, place) = (app.query.sort.word(), app.cursor + 1);
            let all = app.matching;
            let place = if all == 0 { 0 } else { place };
            let order = format!("{place} of {all}  order: {sort}{filter}   {KEYS}");
            Line::styled(order, FAINT)
        }
    };
    let unlisted = seen
        .nodes
        .iter()
        .find_map(|node| node.sweep_problem.as_deref());
    let line = match unlisted {
        Some(problem) if app.message.is_none() && app.mode == Mode::List => Line::styled(
            format!("locks cannot be listed: {}", printable(problem)),
            color(Level::Bad),
        ),
        _ => line,
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn question(seen: &Seen, id: u64) -> Vec<Line<'static>> {
    let Some(lock) = seen.locks.get(id) else {
        return vec![Line::from("The lock is gone. Press any key.")];
    };
    let holder = lock.summary.as_ref();
    let holder = holder.map_or_else(String::new, |summary| summary.holder_line());
    vec![
        Line::styled(shown_key(&lock.key), STRONG),
        Line::from(format!("It is {holder}.")),
        Line::from("The holder does not notice until its next renewal."),
        Line::from("Another client can acquire the lock before that."),
        Line::from(""),
        Line::styled(
            "y releases it, any other key does not.",
            color(Level::Warning),
        ),
    ]
}

fn popup(frame: &mut Frame, title: &'static str, lines: Vec<Line<'static>>) {
    let whole = frame.area();
    let longest = lines.iter().map(Line::width).max().unwrap_or(0);
    let width = u16::try_from(longest).unwrap_or(u16::MAX).saturating_add(4);
    let height = u16::try_from(lines.len())
        .unwrap_or(u16::MAX)
        .saturating_add(4);
    let (width, height) = (
        width.clamp(20, whole.width.max(20)),
        height.min(whole.height),
    );
    let area = Rect {
        x: whole.width.saturating_sub(width) / 2,
        y: whole.height.saturating_sub(height) / 2,
        width: width.min(whole.width),
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    let text = Paragraph::new(lines)
        .block(block)
        .wrap(Wrap { trim: false });
    frame.render_widget(text, area);
}
