//! `redlock ls`: the locks of all nodes, merged.

use std::collections::BTreeMap;

use redislock_client::{Answer, LockStatus};
use serde_json::{Value, json};

use crate::args::Ls;
use crate::duration::shown;
use crate::exit::Failure;
use crate::merged::{Merged, readable, visible};
use crate::status::{painted, silent_nodes};
use crate::table::table;
use crate::voice::Voice;

type Listing = Answer<Vec<(Vec<u8>, LockStatus)>>;

/// Lists the locks, or those that match.
pub async fn ls(args: Ls, voice: &Voice) -> Result<u8, Failure> {
    let observer = args.place.observe()?;
    let listings = observer.locks(args.pattern.as_deref()).await;
    let locks = merged(&listings);
    silent_nodes(&Merged::of(&about(&listings, None)))?;
    let mut rows = vec![
        ["LOCK", "STATE", "HOLDER", "NODES", "LEASE LEFT", "WAITING"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut values: Vec<Value> = Vec::new();
    for (key, lock) in &locks {
        let name = readable(key);
        let first = lock.holders.first();
        rows.push(vec![
            visible(&name),
            lock.state.word().to_owned(),
            first.map_or_else(String::new, |holder| match lock.holders.len() {
                1 => holder.name(),
                more => format!("{} and {} more", holder.name(), more - 1),
            }),
            first.map_or_else(String::new, |holder| {
                format!("{} of {}", holder.nodes(), lock.nodes)
            }),
            first.map_or_else(String::new, |holder| {
                shown(holder.remaining(lock.majority()))
            }),
            lock.waiters.to_string(),
        ]);
        values.push(lock.json(&name));
    }
    let states: Vec<_> = locks.values().map(|lock| lock.state).collect();
    let paint = voice.paint;
    let mut text = match locks.is_empty() {
        true => "no locks\n".to_owned(),
        false => table(&rows, |row, column, cell| match (row, column) {
            (0, _) => paint.faint(cell),
            (row, 1) => painted(states[row - 1], paint),
            _ => cell.to_owned(),
        }),
    };
    let mut silent = Vec::new();
    for listing in &listings {
        if let Err(why) = &listing.result {
            text.push_str(&format!(
                "{}\n",
                paint.bad(&format!("{}: {why}", listing.node))
            ));
            silent.push(json!({ "node": listing.node, "problem": why.to_string() }));
        }
    }
    voice.result(&text, &json!({ "locks": values, "silent": silent }))?;
    Ok(0)
}

fn merged(listings: &[Listing]) -> BTreeMap<Vec<u8>, Merged> {
    let mut keys: Vec<&Vec<u8>> = Vec::new();
    for listing in listings {
        keys.extend(listing.result.iter().flatten().map(|(key, _)| key));
    }
    let mut locks = BTreeMap::new();
    for key in keys {
        if !locks.contains_key(key) {
            locks.insert(key.clone(), Merged::of(&about(listings, Some(key))));
        }
    }
    locks
}

/// What each node said about one of the locks.
fn about(listings: &[Listing], key: Option<&Vec<u8>>) -> Vec<Answer<Option<LockStatus>>> {
    let of_node = |listing: &Listing| {
        let result = listing.result.as_ref().map_err(Clone::clone).map(|locks| {
            // They come in the order of their names.
            let key = key?;
            let found = locks.binary_search_by(|(name, _)| name.cmp(key)).ok()?;
            locks.get(found).map(|(_, status)| status.clone())
        });
        Answer::new(listing.node.clone(), result)
    };
    listings.iter().map(of_node).collect()
}
