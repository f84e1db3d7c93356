//! `redlock ls`: the locks of all nodes, combined.

use std::collections::BTreeMap;

use redislock_client::{Answer, LockStatus};
use serde_json::{Value, json};

use crate::args::Ls;
use crate::duration::shown;
use crate::exit::Failure;
use crate::names::{key_text, printable};
use crate::output::{Colors, Output};
use crate::status::colored;
use crate::summary::LockSummary;
use crate::table::table;
use crate::view::Listing;

type Locks = BTreeMap<Vec<u8>, LockSummary>;

/// Lists all locks, or those whose names match.
pub async fn ls(args: Ls, output: &Output) -> Result<u8, Failure> {
    let view = args.place.view().await?;
    let listings = view.locks(args.pattern.as_deref()).await;
    LockSummary::of(&about(&listings, None)).check_any_reply()?;
    let locks = combined(&listings, view.is_cluster);
    let mut text = if locks.is_empty() {
        "no locks\n".to_owned()
    } else {
        rows(&locks, output.colors)
    };
    let mut silent = Vec::new();
    for listing in &listings {
        if let Err(why) = &listing.result {
            let line = output.colors.bad(&format!("{}: {why}", listing.node));
            text.push_str(&format!("{line}\n"));
            silent.push(json!({ "node": listing.node, "problem": why.to_string() }));
        }
    }
    let values = locks.iter().map(|(key, lock)| lock.json(&key_text(key)));
    let values: Vec<Value> = values.collect();
    output.result(&text, &json!({ "locks": values, "silent": silent }))?;
    Ok(0)
}

fn rows(locks: &Locks, colors: Colors) -> String {
    let heading = ["LOCK", "STATE", "HOLDER", "NODES", "LEASE LEFT", "WAITING"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (key, lock) in locks {
        let first = lock.holders.first();
        let name = first.map_or_else(String::new, |holder| match lock.holders.len() {
            1 => holder.name(),
            more => format!("{} and {} more", holder.name(), more - 1),
        });
        let nodes =
            |holder: &crate::summary::Holding| format!("{} of {}", holder.nodes(), lock.nodes);
        rows.push(vec![
            printable(&key_text(key)),
            lock.state.word().to_owned(),
            name,
            first.map_or_else(String::new, nodes),
            first.map_or_else(String::new, |holder| {
                shown(holder.remaining(lock.majority()))
            }),
            lock.waiters.to_string(),
        ]);
    }
    let states: Vec<_> = locks.values().map(|lock| lock.state).collect();
    table(&rows, |row, column, cell| match (row, column) {
        (0, _) => colors.faint(cell),
        (row, 1) => colored(states[row - 1], colors),
        _ => cell.to_owned(),
    })
}

/// One summary for each name. In a cluster only the nodes that list a lock count.
fn combined(listings: &[Listing], is_cluster: bool) -> Locks {
    let mut locks = BTreeMap::new();
    let names = listings.iter().flat_map(|listing| listing.result.iter());
    for (key, _) in names.flatten() {
        if !locks.contains_key(key) {
            let mut answers = about(listings, Some(key));
            if is_cluster {
                answers.retain(|answer| matches!(answer.result, Ok(Some(_))));
            }
            locks.insert(key.clone(), LockSummary::of(&answers));
        }
    }
    locks
}

/// What each node said about one of the locks.
fn about(listings: &[Listing], key: Option<&Vec<u8>>) -> Vec<Answer<Option<LockStatus>>> {
    let of_node = |listing: &Listing| {
        let result = listing.result.as_ref().map_err(Clone::clone).map(|locks| {
            // They are sorted by name.
            let key = key?;
            let found = locks.binary_search_by(|(name, _)| name.cmp(key)).ok()?;
            locks.get(found).map(|(_, status)| status.clone())
        });
        Answer::new(listing.node.clone(), result)
    };
    listings.iter().map(of_node).collect()
}
