//! `redlock top --once`: one frame as text.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use redislock_client::Moment;

use super::app::App;
use super::draw;
use crate::args::Top;
use crate::exit::Failure;
use crate::output::Output;
use crate::serve::data::{Topic, page};
use crate::watch::{Seen, Watch};

/// How long to look for locks: a server with many keys takes longer.
const LIMIT: Duration = Duration::from_secs(5);
/// Locks that are printed.
const LOCKS: usize = 50;
/// The width if standard output is not a terminal.
const WIDTH: u16 = 120;

/// Prints what is seen when all locks are known, or after a few seconds.
pub async fn print(args: Top, output: &Output) -> Result<u8, Failure> {
    let mut watch = Watch::start(args.place, args.interval).await?;
    let mut app = App::new(args.sort, args.filter);
    let begun = Moment::now();
    while !watch.seen().is_settled() && Moment::now().since(begun) < LIMIT {
        let _ = tokio::time::timeout(args.interval, watch.changed()).await;
    }
    let (text, value) = {
        let mut seen = watch.seen();
        if !seen.nodes.is_empty() && seen.nodes.iter().all(|node| !node.is_up()) {
            let why = seen.nodes.iter().map(|node| {
                let problem = node.problem.clone().unwrap_or_default();
                (node.name.clone(), problem)
            });
            return Err(Failure::no_node_replies(&why.collect::<Vec<_>>()));
        }
        if let Some(problem) = seen.problem.take().filter(|_| seen.nodes.is_empty()) {
            return Err(Failure::no_reply(&problem));
        }
        let text = frame(&mut app, &mut seen)?;
        (text, page(&mut seen, &Topic::of(app.query), Vec::new()))
    };
    output.result(&text, &value)?;
    Ok(0)
}

fn frame(app: &mut App, seen: &mut Seen) -> Result<String, Failure> {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    let width = size.map_or(WIDTH, |(width, _)| width.0.max(40));
    let rows = seen.locks.len().clamp(1, LOCKS) + seen.nodes.len() + 7;
    let backend = TestBackend::new(width, u16::try_from(rows).unwrap_or(u16::MAX));
    let unprinted = |error| Failure::io("cannot draw", &std::io::Error::other(error));
    let mut screen = Terminal::new(backend).map_err(|never| unprinted(never.to_string()))?;
    let drawn = screen.draw(|frame| draw::draw(frame, app, seen));
    drawn.map_err(|never| unprinted(never.to_string()))?;
    let buffer = screen.backend().buffer();
    let lines = buffer.content().chunks(usize::from(width)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    let mut lines: Vec<String> = lines.collect();
    // The last line says which keys there are.
    lines.pop();
    while lines.last().is_some_and(|line| line == "\n") {
        lines.pop();
    }
    Ok(lines.concat())
}
