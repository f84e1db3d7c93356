//! One node: how it is queried, and what is known about it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redislock_client::{Moment, NodeStatus, Verdict};

use super::Level;
use super::budget::{COUNTERS_EVERY, KEYS_PER_SCAN, KEYS_PER_SECOND, LONGEST_NAME, share};
use crate::duration::shown;
use crate::raw_reply::{fields, info_fields, text};
use crate::refusal;
use crate::view::View;

/// What a node replied in one round.
pub struct Report {
    pub name: String,
    pub status: Result<NodeStatus, Verdict>,
    /// Its counters, if they were due and it may be asked for them.
    pub counters: Option<Counters>,
    pub sweep: Sweep,
}

/// The counters of a node at one time, and its warnings.
pub struct Counters {
    at: Moment,
    fields: BTreeMap<String, String>,
    warnings: Vec<String>,
}

/// The progress of the search for locks, and its results.
#[derive(Default)]
pub struct Sweep {
    /// The cursor of SCAN; empty at the start.
    cursor: Vec<u8>,
    pub names: Vec<Arc<[u8]>>,
    /// Names that are too long to ask about.
    pub too_long: usize,
    /// When it began with the first key.
    begun: Option<Moment>,
    /// All keys of the node were visited.
    pub complete: bool,
    pub problem: Option<String>,
}

impl Sweep {
    /// The cursor for the next round.
    pub fn next(&self) -> Self {
        Self {
            cursor: self.cursor.clone(),
            begun: self.begun,
            ..Self::default()
        }
    }
}

/// Queries a node: its state, its counters, its locks.
pub async fn ask(
    view: Arc<View>,
    mut sweep: Sweep,
    counters_due: bool,
    interval: Duration,
) -> Option<Report> {
    let answer = view.nodes().await.pop()?;
    let mut counters = None;
    if answer.result.is_ok() {
        if counters_due {
            counters = read_counters(&view).await;
        }
        for _ in 0..share(KEYS_PER_SECOND, interval).div_ceil(KEYS_PER_SCAN) {
            if !scan(&view, &mut sweep).await {
                break;
            }
        }
    }
    Some(Report {
        name: answer.node,
        status: answer.result,
        counters,
        sweep,
    })
}

/// One reply to a command, if the node gives one.
async fn reply(view: &View, words: &[&str]) -> Option<Value> {
    let mut command = redis::cmd(words.first()?);
    command.arg(&words[1..]);
    view.observer.command(&command).await.pop()?.result.ok()
}

async fn read_counters(view: &View) -> Option<Counters> {
    let info = reply(view, &["INFO", "lock"]).await;
    let node = fields(reply(view, &["LOCK.NODE"]).await?);
    let warnings = match node.get("warnings") {
        Some(Value::Array(warnings)) => warnings.iter().map(text).collect(),
        _ => Vec::new(),
    };
    Some(Counters {
        at: Moment::now(),
        fields: info
            .map(|info| info_fields(&text(&info)))
            .unwrap_or_default(),
        warnings,
    })
}

/// One page of SCAN; false at the end, or if there is none.
async fn scan(view: &View, sweep: &mut Sweep) -> bool {
    if sweep.cursor.is_empty() {
        sweep.cursor.push(b'0');
    }
    if sweep.cursor == b"0" {
        sweep.begun = Some(Moment::now());
    }
    let mut command = redis::cmd("SCAN");
    command.arg(&sweep.cursor).arg("TYPE").arg("redislock");
    command.arg("COUNT").arg(KEYS_PER_SCAN);
    let Some(answer) = view.observer.command(&command).await.pop() else {
        return false;
    };
    let page = match answer.result {
        Ok(page) => redis::from_redis_value::<(Vec<u8>, Vec<Vec<u8>>)>(page),
        Err(verdict) => {
            sweep.problem = Some(format!("SCAN: {verdict}"));
            return false;
        }
    };
    let Ok((cursor, names)) = page else {
        sweep.problem = Some("SCAN: not a page of keys".to_owned());
        return false;
    };
    for name in names {
        if name.len() > LONGEST_NAME {
            sweep.too_long += 1;
        } else {
            sweep.names.push(name.into());
        }
    }
    sweep.complete = cursor == b"0";
    sweep.cursor = cursor;
    !sweep.complete
}

/// What is known about a node.
pub struct Node {
    pub name: String,
    /// None while it does not reply.
    pub status: Option<NodeStatus>,
    /// Why it cannot grant locks now.
    pub problem: Option<String>,
    /// The verdict that a question about a lock gets while it does not reply.
    pub verdict: Option<Verdict>,
    /// Since when it replies, or does not.
    pub since: Moment,
    pub warnings: Vec<String>,
    /// Why its locks cannot be listed.
    pub sweep_problem: Option<String>,
    /// Names of the last visit to all keys that are too long to ask about.
    pub too_long: usize,
    /// The same for the current visit.
    too_long_so_far: usize,
    /// How often all its keys were visited.
    pub sweeps: u64,
    /// When the last visit to all of them began: locks that are newer may not be listed.
    pub listed: Option<Moment>,
    /// What it does in a second.
    pub rates: Option<Rates>,
    counters: Option<Counters>,
}

/// What a node does in a second.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Rates {
    pub grants: f64,
    pub releases: f64,
    pub denials: f64,
    pub expiries: f64,
}

impl Node {
    pub fn new(name: String) -> Self {
        Self {
            name,
            status: None,
            problem: Some("not asked yet".to_owned()),
            verdict: Some(Verdict::NotAsked),
            since: Moment::now(),
            warnings: Vec::new(),
            sweep_problem: None,
            too_long: 0,
            too_long_so_far: 0,
            sweeps: 0,
            listed: None,
            rates: None,
            counters: None,
        }
    }

    pub fn is_up(&self) -> bool {
        self.verdict.is_none()
    }

    /// What it does now, in a few words.
    pub fn state(&self) -> (Level, String) {
        let since = shown(Moment::now().since(self.since));
        let status = self.status.as_ref();
        let waits =
            |status: &NodeStatus| !status.quarantine.is_zero() && refusal::of(status).is_none();
        match (&self.verdict, &self.problem) {
            (Some(Verdict::NotAsked), _) => (Level::Warning, "not asked yet".to_owned()),
            (Some(verdict), _) => (Level::Bad, format!("DOWN for {since}: {verdict}")),
            (None, Some(problem)) if status.is_some_and(waits) => (Level::Warning, problem.clone()),
            (None, Some(problem)) => (Level::Bad, problem.clone()),
            (None, None) => (Level::Good, "grants locks".to_owned()),
        }
    }

    /// Whether its counters should be read again.
    pub fn counters_due(&self) -> bool {
        let read = self.counters.as_ref().map(|counters| counters.at);
        read.is_none_or(|at| Moment::now().since(at) >= COUNTERS_EVERY)
    }

    /// Stores its reply, and returns the names that it listed.
    pub fn learn(&mut self, report: Report) -> Vec<Arc<[u8]>> {
        self.name = report.name;
        match report.status {
            Ok(status) => {
                self.set_verdict(None);
                self.status = Some(status);
            }
            Err(verdict) => self.set_verdict(Some(verdict)),
        }
        if let Some(counters) = report.counters {
            self.count(counters);
        }
        let sweep = report.sweep;
        self.too_long_so_far += sweep.too_long;
        self.too_long = self.too_long.max(self.too_long_so_far);
        if sweep.complete {
            self.sweeps += 1;
            self.listed = sweep.begun;
            self.too_long = std::mem::take(&mut self.too_long_so_far);
        }
        self.sweep_problem = sweep.problem;
        sweep.names
    }

    /// It replies (none), or this is why it does not.
    pub fn set_verdict(&mut self, verdict: Option<Verdict>) {
        let is_new = matches!(self.verdict, Some(Verdict::NotAsked));
        if is_new || verdict.is_some() != self.verdict.is_some() {
            self.since = Moment::now();
        }
        if verdict.is_some() {
            // Its earlier reply is outdated, so it is not shown any more.
            self.status = None;
            self.rates = None;
            self.counters = None;
            self.warnings.clear();
            self.sweep_problem = None;
        }
        self.verdict = verdict;
    }

    fn count(&mut self, now: Counters) {
        self.warnings.clone_from(&now.warnings);
        self.rates = self
            .counters
            .as_ref()
            .and_then(|before| rates(before, &now));
        self.counters = Some(now);
    }
}

/// None if the node was restarted in between, or its counters were reset.
fn rates(before: &Counters, now: &Counters) -> Option<Rates> {
    let seconds = now.at.since(before.at).as_secs_f64();
    let rate = |field: &str| {
        let number = |counters: &Counters| counters.fields.get(field)?.parse::<u64>().ok();
        let more = number(now)?.checked_sub(number(before)?)?;
        (seconds > 0.0).then(|| more as f64 / seconds)
    };
    Some(Rates {
        grants: rate("lock_grants")?,
        releases: rate("lock_releases")?,
        denials: rate("lock_denials")?,
        expiries: rate("lock_expiries")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(at: Moment, grants: u64) -> Counters {
        let names = ["grants", "releases", "denials", "expiries"];
        let fields = names.map(|name| (format!("lock_{name}"), grants.to_string()));
        Counters {
            at,
            fields: fields.into(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn rates_are_differences_over_time_and_unknown_after_a_restart() {
        let start = Moment::now();
        let later = start + Duration::from_secs(2);
        let grown = rates(&counters(start, 10), &counters(later, 30));
        assert_eq!(grown.map(|rates| rates.grants), Some(10.0));
        assert_eq!(rates(&counters(start, 30), &counters(later, 10)), None);
    }

    #[test]
    fn a_node_that_is_gone_shows_nothing_old() {
        let mut node = Node::new("a".to_owned());
        node.count(counters(Moment::now(), 1));
        node.count(counters(Moment::now() + Duration::from_secs(1), 2));
        assert!(node.rates.is_some());
        node.warnings.push("this crash may lose grants".to_owned());
        node.sweep_problem = Some("SCAN: refused".to_owned());
        node.set_verdict(Some(Verdict::TimedOut(Duration::ZERO)));
        assert!(node.rates.is_none() && node.status.is_none() && !node.is_up());
        assert!(node.warnings.is_empty() && node.sweep_problem.is_none());
    }

    #[test]
    fn long_names_that_are_gone_are_not_reported_forever() {
        let mut node = Node::new("a".to_owned());
        let mut visit = |too_long, complete| {
            node.learn(Report {
                name: "a".to_owned(),
                status: Err(Verdict::NotAsked),
                counters: None,
                sweep: Sweep {
                    too_long,
                    complete,
                    ..Sweep::default()
                },
            });
            node.too_long
        };
        assert_eq!(
            (visit(1, false), visit(1, true), visit(0, false)),
            (1, 2, 2)
        );
        assert_eq!(visit(0, true), 0);
    }
}
