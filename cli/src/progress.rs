//! Reports what the tool waits for: a terminal gets a line that is rewritten, a log gets one line.

use std::convert::Infallible;
use std::time::Duration;

use redislock_client::Moment;
use serde_json::{Value, json};

use crate::args::Where;
use crate::duration::{WaitLimit, shown};
use crate::names::printable;
use crate::output::Output;
use crate::summary::{LockSummary, State, millis};
use crate::view::View;

/// A wait that is shorter than this is not mentioned.
const WORTH_REPORTING: Duration = Duration::from_millis(250);
/// How often the line on a terminal is rewritten.
const REWRITE_EVERY: Duration = Duration::from_millis(250);
/// How often the nodes are queried for this line.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A wait in progress.
struct Wait<'a> {
    key: &'a str,
    since: Moment,
    limit: WaitLimit,
}

/// Reports the wait until it is dropped.
pub async fn report(
    place: &Where,
    key: &str,
    since: Moment,
    limit: WaitLimit,
    output: &Output,
) -> Infallible {
    let wait = Wait { key, since, limit };
    tokio::time::sleep(WORTH_REPORTING).await;
    let mut view = None;
    let mut reported = false;
    loop {
        let looked = Moment::now();
        let (obstacle, lock) = look(place, &mut view, key).await;
        if !output.is_live() && !std::mem::replace(&mut reported, true) {
            output.message(&wait.line(&obstacle), wait.fields(&obstacle, &lock));
        }
        // Without a terminal the nodes are not asked again; a job may come to the foreground,
        // though.
        while !output.is_live() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        while output.is_live() && Moment::now().since(looked) < LOOK_EVERY {
            output.rewrite(&wait.line(&obstacle));
            tokio::time::sleep(REWRITE_EVERY).await;
        }
    }
}

/// What prevents the grant, and the lock as JSON if any node could be asked.
async fn look(place: &Where, view: &mut Option<View>, key: &str) -> (String, Value) {
    let view = match view {
        Some(view) => view,
        None => match place.view().await {
            Ok(new) => view.insert(new),
            Err(failure) => return (failure.text, Value::Null),
        },
    };
    let seen = view.lock(key).await;
    (obstacle(view, &seen).await, seen.json(key))
}

async fn obstacle(view: &View, seen: &LockSummary) -> String {
    if seen.state == State::Free {
        let nodes = view.nodes().await;
        let answered = nodes.iter().filter_map(|node| node.result.as_ref().ok());
        let left: Vec<Duration> = answered
            .map(|node| node.quarantine)
            .filter(|left| !left.is_zero())
            .collect();
        if let Some(longest) = left.iter().max() {
            return format!(
                "free, but {} of {} nodes are quarantined for up to {}",
                left.len(),
                nodes.len(),
                shown(*longest)
            );
        }
    }
    match seen.waiters {
        0 | 1 => seen.holder_line(),
        waiters => format!("{}, {waiters} waiting", seen.holder_line()),
    }
}

impl Wait<'_> {
    fn line(&self, obstacle: &str) -> String {
        let waited = shown(Moment::now().since(self.since));
        let of = match self.limit {
            WaitLimit::Forever => String::new(),
            WaitLimit::AtMost(wait) => format!(" of {}", shown(wait)),
        };
        let key = printable(self.key);
        format!("waiting for lock {key} ({waited}{of}): {obstacle}")
    }

    fn fields(&self, obstacle: &str, lock: &Value) -> Value {
        let gives_up = match self.limit {
            WaitLimit::Forever => None,
            WaitLimit::AtMost(wait) => Some(millis((self.since + wait).remaining())),
        };
        json!({
            "event": "waiting",
            "for": obstacle,
            "waited_ms": millis(Moment::now().since(self.since)),
            "gives_up_in_ms": gives_up,
            "lock": lock,
        })
    }
}
