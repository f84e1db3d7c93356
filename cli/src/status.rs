//! `redlock status`: one lock, combined from the replies of all nodes.

use crate::args::{Status, key_of};
use crate::duration::shown;
use crate::exit::{Failure, NO, UNAVAILABLE};
use crate::names::printable;
use crate::output::{Colors, Output};
use crate::summary::{LockSummary, State};
use crate::table::table;

/// Shows who holds the lock and who waits.
pub async fn status(args: Status, output: &Output) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "NAME")?;
    let summary = args.place.view().await?.lock(&key).await;
    summary.check_any_reply()?;
    if !args.quiet {
        output.result(&text(&key, &summary, output.colors), &summary.json(&key))?;
    }
    Ok(match summary.state {
        _ if !args.check => 0,
        State::Free => 0,
        State::Held | State::Partial => NO,
        State::Unknown => UNAVAILABLE,
    })
}

/// The state in its color.
pub fn colored(state: State, colors: Colors) -> String {
    match state {
        State::Free => colors.good(state.word()),
        State::Held => colors.strong(state.word()),
        State::Partial | State::Unknown => colors.warning(state.word()),
    }
}

fn text(key: &str, summary: &LockSummary, colors: Colors) -> String {
    let mut text = format!("{}: {}", printable(key), colored(summary.state, colors));
    if summary.state == State::Held {
        text.push_str(&format!(", {}", summary.mode));
    }
    match summary.waiters {
        0 => {}
        1 => text.push_str(&format!(", 1 waiting for {}", shown(summary.oldest_wait))),
        more => text.push_str(&format!(
            ", {more} waiting, the first for {}",
            shown(summary.oldest_wait)
        )),
    }
    text.push('\n');
    if !summary.holders.is_empty() {
        text.push_str(&holders(summary, colors));
    }
    for (node, why) in &summary.silent {
        text.push_str(&format!("{}\n", colors.bad(&format!("{node}: {why}"))));
    }
    text
}

fn holders(summary: &LockSummary, colors: Colors) -> String {
    let heading = ["HOLDER", "NODES", "LEASE LEFT", "HELD FOR", "FENCE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(summary.holders.iter().map(|holder| {
        vec![
            holder.name(),
            format!("{} of {}", holder.nodes(), summary.nodes),
            shown(holder.remaining(summary.majority())),
            shown(holder.age),
            holder.fence.to_string(),
        ]
    }));
    table(&rows, |row, _, cell| match row {
        0 => colors.faint(cell),
        _ => cell.to_owned(),
    })
}
