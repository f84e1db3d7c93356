//! `redlock status`: one lock, as all nodes together see it.

use crate::args::{Status, key_of};
use crate::duration::shown;
use crate::exit::Failure;
use crate::merged::{Merged, State, visible};
use crate::table::table;
use crate::voice::{Paint, Voice};

/// Shows who holds the lock and who waits.
pub async fn status(args: Status, voice: &Voice) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "its name")?;
    let observer = args.place.observe()?;
    let merged = Merged::of(&observer.lock(&key).await);
    silent_nodes(&merged)?;
    voice.result(&text(&key, &merged, voice.paint), &merged.json(&key))?;
    Ok(0)
}

/// Nobody answers: there is nothing to show.
pub fn silent_nodes(merged: &Merged) -> Result<(), Failure> {
    match merged.answered {
        0 => Err(Failure::usage(format!(
            "no node answers ({}): check --node or REDLOCK_NODES, and that the servers run",
            merged
                .silent
                .iter()
                .map(|(node, why)| format!("{node}: {why}"))
                .collect::<Vec<_>>()
                .join("; ")
        ))),
        _ => Ok(()),
    }
}

/// The state in its colour.
pub fn painted(state: State, paint: Paint) -> String {
    match state {
        State::Free => paint.good(state.word()),
        State::Held => paint.strong(state.word()),
        State::Partial | State::Unknown => paint.doubtful(state.word()),
    }
}

fn text(key: &str, merged: &Merged, paint: Paint) -> String {
    let mut text = format!("{}: {}", visible(key), painted(merged.state, paint));
    if merged.state == State::Held {
        text.push_str(&format!(", {}", merged.mode));
    }
    match merged.waiters {
        0 => {}
        1 => text.push_str(&format!(", 1 waits since {}", shown(merged.oldest_wait))),
        more => text.push_str(&format!(
            ", {more} wait, the first since {}",
            shown(merged.oldest_wait)
        )),
    }
    text.push('\n');
    if !merged.holders.is_empty() {
        let heading = ["HOLDER", "NODES", "LEASE LEFT", "HELD FOR", "FENCE"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(merged.holders.iter().map(|holder| {
            vec![
                holder.name(),
                format!("{} of {}", holder.nodes(), merged.nodes),
                shown(holder.remaining(merged.majority())),
                shown(holder.age),
                holder.fence.to_string(),
            ]
        }));
        text.push_str(&table(&rows, |row, _, cell| match row {
            0 => paint.faint(cell),
            _ => cell.to_owned(),
        }));
    }
    for (node, why) in &merged.silent {
        text.push_str(&format!("{}\n", paint.bad(&format!("{node}: {why}"))));
    }
    text
}
