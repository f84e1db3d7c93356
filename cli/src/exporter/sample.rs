//! What the nodes report at one time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redislock_client::{Answer, Moment, NodeStatus, Verdict};
use serde_json::json;

use crate::args::Where;
use crate::exit::Failure;
use crate::node_urls::NodeUrls;
use crate::nodes::problem;
use crate::output::Output;
use crate::raw_reply::{fields, info_fields, integer, text};
use crate::remedy::remedy;
use crate::view::View;

/// All nodes at one time.
pub struct Sample {
    pub nodes: Vec<Node>,
    /// How many nodes must grant for a lock to be held.
    pub quorum: usize,
    /// How long it took to query all nodes.
    pub took: Duration,
}

/// One node.
pub struct Node {
    pub name: String,
    /// None if it does not reply to LOCK.NODE.
    pub status: Option<NodeStatus>,
    /// What the client does not read.
    pub details: Option<Details>,
    /// The fields of `INFO server lock`; empty if they cannot be read.
    pub info: BTreeMap<String, String>,
    /// Whether it can grant locks now.
    pub grants: bool,
    /// The kind of its problem, if it has one.
    pub problem: Option<&'static str>,
}

/// What LOCK.NODE says beyond the state that the client reads.
#[derive(PartialEq, Debug)]
pub struct Details {
    /// The fence counter less the clock, in µs; 0 before the first fence.
    pub fence_lead: i64,
    pub warnings: usize,
    /// Why the server refuses new locks; none if the module is too old to say.
    pub refusal: Option<String>,
}

/// Asks the nodes again and again, and reports on standard error when one of them changes.
pub struct Collector {
    place: Where,
    urls: NodeUrls,
    /// Each node by itself: one that hangs does not delay the others, and is asked once.
    nodes: Vec<Arc<View>>,
    /// The problem of each node when it was asked last.
    reported: BTreeMap<String, Option<String>>,
    json: bool,
}

impl Collector {
    pub fn new(place: Where, json: bool) -> Result<Self, Failure> {
        let urls = place.urls()?;
        place.builder(Duration::MAX)?;
        Ok(Self {
            place,
            urls,
            nodes: Vec::new(),
            reported: BTreeMap::new(),
            json,
        })
    }

    /// Asks all nodes.
    pub async fn collect(&mut self) -> Sample {
        let begun = Moment::now();
        self.look_for_nodes().await;
        let nodes = ask(&self.nodes).await;
        let quorum = match &self.urls {
            NodeUrls::Masters(urls) => urls.len() / 2 + 1,
            NodeUrls::Sentinel { .. } => 1,
            NodeUrls::Cluster { .. } => nodes.len().max(1),
        };
        for (node, why) in &nodes {
            self.report(&node.name, why.as_deref());
        }
        let mut nodes: Vec<Node> = nodes.into_iter().map(|(node, _)| node).collect();
        // A name that is listed twice would make the page invalid.
        let mut names = BTreeSet::new();
        nodes.retain(|node| names.insert(node.name.clone()));
        Sample {
            nodes,
            quorum,
            took: Moment::now().since(begun),
        }
    }

    /// The masters of a cluster change: they are looked up each time. If nobody replies, the last
    /// ones known are asked.
    async fn look_for_nodes(&mut self) {
        let is_cluster = matches!(self.urls, NodeUrls::Cluster { .. });
        if !self.nodes.is_empty() && !is_cluster {
            return;
        }
        match self.place.view().await.and_then(View::split) {
            Ok(nodes) => {
                self.nodes = nodes.into_iter().map(Arc::new).collect();
                self.report("cluster", None);
            }
            Err(failure) => self.report("cluster", Some(&failure.text)),
        }
    }

    /// Reports once that a node has a problem, or no longer has one.
    fn report(&mut self, name: &str, problem: Option<&str>) {
        let before = self
            .reported
            .insert(name.to_owned(), problem.map(str::to_owned));
        let text = match (problem, before.flatten()) {
            (Some(now), before) if before.as_deref() != Some(now) => {
                format!("{name}: {now}")
            }
            (None, Some(_)) => format!("{name}: it replies again"),
            _ => return,
        };
        let fields = json!({ "event": "node", "node": name, "problem": problem });
        Output::new(self.json).message(&text, fields);
    }
}

/// What one node replied. It is asked no further if it does not reply to the first question.
struct Replies {
    status: Answer<NodeStatus>,
    info: Option<Result<Value, Verdict>>,
    raw: Option<Result<Value, Verdict>>,
}

/// Each node, with what is to be reported about it.
async fn ask(nodes: &[Arc<View>]) -> Vec<(Node, Option<String>)> {
    let asked: Vec<_> = nodes
        .iter()
        .map(|view| tokio::spawn(ask_one(Arc::clone(view))))
        .collect();
    let (mut statuses, mut rest) = (Vec::new(), Vec::new());
    for replies in asked {
        // A task that was ended with the program has no result.
        if let Ok(Some(replies)) = replies.await {
            statuses.push(replies.status);
            rest.push((replies.info, replies.raw));
        }
    }
    let grants: Vec<bool> = (0..statuses.len())
        .map(|place| problem(&statuses, place).is_none())
        .collect();
    let all = statuses.into_iter().zip(rest).zip(grants);
    all.map(|((status, (info, raw)), grants)| node(status, info, raw, grants))
        .collect()
}

async fn ask_one(view: Arc<View>) -> Option<Replies> {
    let status = view.nodes().await.pop()?;
    let (mut info, mut raw) = (None, None);
    if status.result.is_ok() {
        let mut command = redis::cmd("INFO");
        command.arg("server").arg("lock");
        let mut answers = view.observer.command(&command).await;
        info = answers.pop().map(|answer| answer.result);
        let mut answers = view.observer.command(&redis::cmd("LOCK.NODE")).await;
        raw = answers.pop().map(|answer| answer.result);
    }
    Some(Replies { status, info, raw })
}

fn node(
    status: Answer<NodeStatus>,
    info: Option<Result<Value, Verdict>>,
    raw: Option<Result<Value, Verdict>>,
    grants: bool,
) -> (Node, Option<String>) {
    let of_info = info.as_ref().and_then(|info| info.as_ref().err());
    let failed = status.result.as_ref().err().or(of_info);
    let why = failed.map(|verdict| {
        let problem = verdict.to_string();
        format!("{problem}: {}", remedy(&problem))
    });
    let problem = failed.map(kind_of);
    let info = info.and_then(Result::ok);
    let node = Node {
        name: status.node,
        problem,
        status: status.result.ok(),
        details: raw.and_then(Result::ok).map(details),
        info: info
            .map(|info| info_fields(&text(&info)))
            .unwrap_or_default(),
        grants,
    };
    (node, why)
}

fn details(raw: Value) -> Details {
    let fields = fields(raw);
    let number = |name: &str| fields.get(name).map_or(0, integer);
    let warnings = match fields.get("warnings") {
        Some(Value::Array(warnings)) => warnings.len(),
        _ => 0,
    };
    let lead = match number("fence") {
        0 => 0,
        fence => fence.saturating_sub(number("time")),
    };
    Details {
        fence_lead: lead,
        warnings,
        refusal: fields.get("refusal").map(text),
    }
}

/// The kinds of problems, as few as alerts need.
fn kind_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::TimedOut(_) => "timeout",
        Verdict::Unreachable(_) => "unreachable",
        Verdict::ModuleMissing | Verdict::ModuleTooOld { .. } => "module",
        Verdict::Refused(error) => match error.code() {
            Some("NOPERM" | "NOAUTH" | "WRONGPASS") | None => "permission",
            Some(_) => "refused",
        },
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_given_no_fence_is_not_behind_its_clock() {
        let node = |fence: i64| {
            let name = |text: &str| Value::SimpleString(text.to_owned());
            let pairs = [(name("fence"), fence), (name("time"), 5)];
            let pairs = pairs.map(|(name, number)| (name, Value::Int(number)));
            details(Value::Map(pairs.into()))
        };
        assert_eq!((node(0).fence_lead, node(7).fence_lead), (0, 2));
        assert_eq!(node(0).refusal, None);
    }
}
