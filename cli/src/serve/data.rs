//! What the page and the API show, as JSON.

use std::time::Duration;

use redislock_client::Moment;
use serde_json::{Value, json};

use crate::names::{printable, shown_key, shown_text};
use crate::sort::Sort;
use crate::summary::{Holding, State, millis};
use crate::watch::{LONGEST_FILTER, Lock, Node, Query, Seen, Waiter};

/// Locks on one page.
const ROWS: usize = 50;
/// How far back the timeline of a row goes, in ms.
const TIMELINE: i64 = 60_000;
/// Spans of a row's timeline.
const SPANS: usize = 40;
/// The last page that can be asked for.
const LAST_PAGE: usize = 1_000_000;

/// What a page shows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Topic {
    query: Query,
    page: usize,
    /// The lock that is shown in detail.
    lock: Option<u64>,
}

impl Topic {
    /// The first page of a query.
    pub fn of(query: Query) -> Self {
        Self {
            query,
            ..Self::default()
        }
    }

    /// Reads `sort=wait&filter=text&page=0&lock=7`.
    pub fn parse(text: Option<&str>) -> Result<Self, &'static str> {
        let mut topic = Self::default();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            match name.as_ref() {
                "sort" => {
                    let sort = Sort::named(&value);
                    topic.query.sort =
                        sort.ok_or("sort is wait, waiters, held, lease, fence or name")?;
                }
                "filter" if value.len() > LONGEST_FILTER => return Err("the filter is too long"),
                "filter" => topic.query.filter = value.into_owned(),
                "page" => {
                    let page = value.parse().ok().filter(|page| *page <= LAST_PAGE);
                    topic.page = page.ok_or("page is a number, 0 for the first one")?;
                }
                "lock" => topic.lock = Some(value.parse().map_err(|_| "lock is an id")?),
                _ => return Err("the parameters are sort, filter, page and lock"),
            }
        }
        Ok(topic)
    }
}

/// All that an open page shows.
pub fn page(seen: &mut Seen, topic: &Topic, notes: Vec<Value>) -> Value {
    let nodes: Vec<Value> = seen.nodes.iter().map(|one| node(seen, one)).collect();
    let mut value = locks(seen, topic);
    value["nodes"] = nodes.into();
    value["notes"] = notes.into();
    let lock = topic.lock.and_then(|id| seen.locks.get(id));
    value["detail"] = lock.map_or(Value::Null, |lock| detail(seen, lock));
    if let Some(id) = topic.lock {
        seen.locks.want_queue(id);
    }
    value
}

/// `/api/locks`.
pub fn locks(seen: &mut Seen, topic: &Topic) -> Value {
    let first = topic.page * ROWS;
    let (found, matching) = topic.query.find(&seen.locks, first, ROWS);
    let ids: Vec<u64> = found.iter().map(|lock| lock.id).collect();
    let rows: Vec<Value> = found.iter().map(|lock| row(seen, lock)).collect();
    let mut value = json!({
        "overview": overview(seen),
        "matching": matching,
        "page": topic.page,
        "pages": matching.div_ceil(ROWS).max(1),
        "locks": rows,
    });
    value["sort"] = topic.query.sort.word().into();
    ids.into_iter().for_each(|id| seen.locks.want(id));
    value
}

/// `/api/nodes`.
pub fn nodes(seen: &Seen) -> Value {
    let nodes: Vec<Value> = seen.nodes.iter().map(|one| node(seen, one)).collect();
    json!({ "overview": overview(seen), "nodes": nodes })
}

fn overview(seen: &Seen) -> Value {
    let (level, verdict) = seen.verdict();
    let too_long: usize = seen.nodes.iter().map(|node| node.too_long).sum();
    json!({
        "time_ms": seen.now(),
        "round": seen.rounds,
        "interval_ms": millis(seen.interval),
        "age_ms": millis(Moment::now().since(seen.updated)),
        "stale_ms": millis(seen.stale_after()),
        "nodes": seen.nodes.len(),
        "granting": seen.granting(),
        "quorum": seen.quorum,
        "cluster": seen.is_cluster,
        "locks": seen.locks.len(),
        "told_locks": seen.reported_locks(),
        "waiters": seen.reported_waiters(),
        "contended": seen.locks.waited_for(),
        "grants_per_s": round(seen.grants_per_second()),
        "level": level.word(),
        "verdict": printable(&verdict),
        "complete": seen.is_complete(),
        "blind": seen.is_blind(),
        "asked": seen.locks.asked,
        "oldest_ms": millis(seen.oldest_look()),
        "list_age_ms": seen.list_age().map(millis),
        "gaps": seen.gaps(),
        "overflow": seen.locks.overflow,
        "too_long_names": too_long,
    })
}

/// One decimal.
fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

fn node(seen: &Seen, node: &Node) -> Value {
    let warnings: Vec<String> = node.warnings.iter().map(|text| printable(text)).collect();
    let since = millis(Moment::now().since(node.since));
    let (level, state) = node.state();
    let mut value = json!({
        "node": printable(&node.name),
        "up": node.is_up(),
        "level": level.word(),
        "state": printable(&state),
        "since_ms": since,
        "problem": node.problem.as_deref().map(printable),
        "sweep_problem": node.sweep_problem.as_deref().map(printable),
        "warnings": warnings,
        "sweeps": node.sweeps,
    });
    if let Some(status) = &node.status {
        // The quarantine went on since the node was asked.
        let passed = Moment::now().since(seen.updated);
        value["version"] = status.version.clone().into();
        value["role"] = status.role.clone().into();
        value["quarantine_ms"] = millis(status.quarantine.saturating_sub(passed)).into();
        value["durable"] = status.durable.into();
        value["clock_lead_us"] = status.clock_lead.into();
        value["locks"] = status.locks.into();
        value["waiters"] = status.waiters.into();
        value["fence"] = status.fence.into();
        value["round_trip_us"] = u64::try_from(status.round_trip.as_micros())
            .unwrap_or(u64::MAX)
            .into();
    }
    if let Some(rates) = node.rates {
        value["grants_per_s"] = round(rates.grants).into();
        value["releases_per_s"] = round(rates.releases).into();
        value["denials_per_s"] = round(rates.denials).into();
        value["expiries_per_s"] = round(rates.expiries).into();
    }
    value
}

fn row(seen: &Seen, lock: &Lock) -> Value {
    let passed = Moment::now().since(lock.seen);
    let stale = passed > seen.stale_after();
    let mut value = json!({
        "id": lock.id,
        "key": shown_key(&lock.key),
        "seen_ms": millis(passed),
        "stale": stale,
    });
    match &lock.summary {
        None => value["state"] = "not asked yet".into(),
        Some(summary) => {
            let holder = |one: &Holding| holder(one, summary.majority(), passed);
            let holders: Vec<Value> = summary.holders.iter().map(holder).collect();
            let wait = match summary.waiters {
                0 => Duration::ZERO,
                _ => summary.oldest_wait.saturating_add(passed),
            };
            value["state"] = summary.state.word().into();
            value["held"] = (summary.state == State::Held).into();
            value["mode"] = summary.mode.clone().into();
            value["nodes"] = summary.nodes.into();
            value["waiters"] = summary.waiters.into();
            value["oldest_wait_ms"] = millis(wait).into();
            value["holders"] = holders.into();
        }
    }
    spans(&mut value, seen.now() - TIMELINE, SPANS, lock);
    value
}

fn holder(holder: &Holding, majority: usize, passed: Duration) -> Value {
    let left = holder.remaining(majority).saturating_sub(passed);
    json!({
        "owner": holder.owner.as_deref().map(shown_text),
        "fence": holder.fence,
        "nodes": holder.nodes(),
        "ttl_ms": millis(left),
        "age_ms": millis(holder.age.saturating_add(passed)),
    })
}

/// The holds and waits since a time, at most this many of each.
fn spans(value: &mut Value, since: i64, count: usize, lock: &Lock) {
    let Some(history) = &lock.history else {
        return;
    };
    let after = |end: Option<i64>| end.is_none_or(|end| end >= since);
    let holds = history.holds.iter().rev().filter(|hold| after(hold.end));
    let holds = holds.take(count).map(|hold| {
        json!({
            "owner": hold.owner.as_deref().map(shown_text),
            "fence": hold.fence,
            "start": hold.start,
            "end": hold.end,
        })
    });
    let waits = history.waits.iter().rev().filter(|wait| after(wait.end));
    let waits = waits
        .take(count)
        .map(|wait| json!({ "start": wait.start, "end": wait.end, "most": wait.most }));
    value["holds"] = holds.collect::<Vec<_>>().into();
    value["waits"] = waits.collect::<Vec<_>>().into();
    value["holds_seen"] = history.count.into();
}

/// A lock with all that is known of it.
fn detail(seen: &Seen, lock: &Lock) -> Value {
    let mut value = row(seen, lock);
    spans(&mut value, i64::MIN, usize::MAX, lock);
    if let Some(queue) = seen.locks.queue(lock.id) {
        let passed = Moment::now().since(queue.seen);
        let waiter = |one: &Waiter| {
            json!({
                "owner": one.owner.as_deref().map(shown_text),
                "mode": printable(&one.mode),
                "wait_ms": millis(one.wait.saturating_add(passed)),
            })
        };
        let waiters = queue.waiters.as_ref();
        let waiters = waiters.map(|all| all.iter().map(waiter).collect::<Vec<_>>());
        value["queue"] = waiters.into();
        value["queue_seen_ms"] = millis(passed).into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked() {
        let topic = Topic::parse(Some("sort=name&filter=a%26b&page=3&lock=9"));
        let expected = Topic {
            query: Query {
                sort: Sort::Name,
                filter: "a&b".to_owned(),
            },
            page: 3,
            lock: Some(9),
        };
        assert_eq!(topic, Ok(expected));
        assert_eq!(Topic::parse(None), Ok(Topic::default()));
        for wrong in [
            "sort=else",
            "page=-1",
            "page=9999999999",
            "lock=x",
            "other=1",
        ] {
            assert!(Topic::parse(Some(wrong)).is_err(), "{wrong}");
        }
        let long = format!("filter={}", "x".repeat(201));
        assert!(Topic::parse(Some(&long)).is_err());
    }
}
