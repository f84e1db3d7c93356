//! Connecting: the first answers of all nodes, and what they say about the configuration.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::census::Census;
use crate::clock::Moment;
use crate::error::{Error, Verdict};
use crate::fleet::Fleet;
use crate::node::Node;

/// Clocks further apart than this, in µs, are worth a warning.
const CLOCKS_APART: u64 = 1_000_000;

/// What a node said when it was first asked; nothing if it did not answer in time.
type Answer = Option<Result<Vec<Census>, Verdict>>;

impl Fleet {
    /// Connects to every node at once and checks what they say about themselves. Once a majority is
    /// connected, the others get as long again, and at least the node timeout. Those that are later
    /// than that are connected in the background.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        let started = Moment::now();
        let nodes = self.nodes.iter().enumerate();
        let dialled = nodes.map(|(place, node)| async move { (place, node.dial().await) });
        let mut dialled: FuturesUnordered<_> = dialled.collect();
        let mut answers: Vec<Answer> = vec![None; self.nodes.len()];
        let mut end: Option<Moment> = None;
        loop {
            let patience = end.map_or(Duration::MAX, |end| end.remaining());
            let next = tokio::time::timeout(patience, dialled.next()).await;
            let Ok(Some((place, dialled))) = next else {
                break;
            };
            let answer =
                dialled.and_then(|(connection, census)| match self.doubled(place, &census) {
                    Some(doubled) => Err(doubled),
                    None => {
                        self.nodes[place].install(connection, &census);
                        Ok(census)
                    }
                });
            answers[place] = Some(answer);
            let connected = answers
                .iter()
                .flatten()
                .filter(|answer| answer.is_ok())
                .count();
            if end.is_none() && connected >= self.majority() {
                let now = Moment::now();
                end = Some(now + self.node_timeout.max(now.since(started)));
            }
        }
        let judged = self.judge(&answers, Moment::now().since(started));
        self.asked_all();
        judged?;
        self.warn_about_each(&answers).await;
        self.warn_about_all();
        Ok(())
    }

    /// One server twice, a replica and a missing module are errors whatever the others say; too few
    /// nodes are, too. A node that cannot serve right now is like one that cannot be reached.
    fn judge(&self, answers: &[Answer], waited: Duration) -> Result<(), Error> {
        let mut problem = None;
        let mut verdicts = Vec::with_capacity(answers.len());
        for (place, answer) in answers.iter().enumerate() {
            let verdict = match answer {
                Some(Ok(_)) => Verdict::NotAsked,
                Some(Err(verdict)) => verdict.clone(),
                None => Verdict::TimedOut(waited),
            };
            if !matches!(answer, Some(Ok(_))) {
                self.nodes[place].bar(verdict.clone());
            }
            problem = problem.or(misconfigured(&verdict));
            verdicts.push(verdict);
        }
        let reports = self.reports(|place| verdicts[place].clone());
        if let Some(problem) = problem {
            return Err(Error::Misconfigured {
                problem: problem.to_owned(),
                nodes: reports,
            });
        }
        let connected = answers.iter().flatten().filter(|answer| answer.is_ok());
        if connected.count() < self.majority() {
            return Err(Error::NoQuorum {
                lock: "the connection".to_owned(),
                nodes: reports,
            });
        }
        Ok(())
    }

    async fn warn_about_each(&self, answers: &[Answer]) {
        let warnings = self.nodes.iter().zip(answers).map(|(node, answer)| async move {
            let Some(Ok(census)) = answer else {
                return;
            };
            let forgetful = census.iter().any(|one| !one.durable && !one.quarantined);
            if forgetful && !quarantine_is_set(node).await {
                tracing::warn!(
                    node = %node.name,
                    "neither durable nor quarantined: after a restart it may grant a lock that is \
                     still held; set lock.quarantine, or appendonly with appendfsync always"
                );
            }
        });
        join_all(warnings).await;
    }

    fn warn_about_all(&self) {
        if self.nodes.len().is_multiple_of(2) {
            tracing::warn!(
                nodes = self.nodes.len(),
                "an even number of nodes survives no more failures than one node less"
            );
        }
        let now = Moment::now();
        let mut up: Vec<_> = self.nodes.iter().filter(|node| node.is_up()).collect();
        up.sort_by_key(|node| node.clock(now));
        if let [behind, .., ahead] = up.as_slice()
            && ahead.clock(now) - behind.clock(now) > CLOCKS_APART
        {
            tracing::warn!(
                behind = %behind.name,
                ahead = %ahead.name,
                apart_ms = (ahead.clock(now) - behind.clock(now)) / 1_000,
                "the nodes' clocks are more than a second apart: their fences will need a second \
                 round trip; synchronize them"
            );
        }
    }
}

/// What somebody has to change before this node can serve; nothing if waiting may help.
fn misconfigured(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::SameAs { .. } => Some("one server is listed twice: list each once"),
        Verdict::Replica => Some("a replica is listed: list masters only"),
        Verdict::ModuleMissing => Some("a server lacks the redislock module: load it there"),
        Verdict::ModuleTooOld { .. } => Some("a server has an old redislock module: upgrade it"),
        Verdict::Garbage(_) => Some("a server is no redislock node: check its address"),
        Verdict::Refused(_) if verdict.is_final() => {
            Some("a server refuses LOCK.NODE: check the user and the password in its URL")
        }
        _ => None,
    }
}

/// LOCK.NODE tells a quarantine only while it lasts; the setting itself is read where that is
/// allowed.
async fn quarantine_is_set(node: &Node) -> bool {
    let Ok((_, mut connection)) = node.shared() else {
        return false;
    };
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg("GET").arg("lock.quarantine");
    let request = crate::command::Request::new(cmd, Some(&Vec::new()));
    let Ok(Ok(value)) = tokio::time::timeout(node.connect_timeout, connection.send(&request)).await
    else {
        return false;
    };
    let fields = crate::reply::Fields::read(value, "CONFIG GET");
    fields
        .and_then(|fields| fields.number("lock.quarantine"))
        .is_ok_and(|ms| ms > 0)
}
