//! Looking at the nodes without holding anything: the same questions for independent masters, a
//! master behind Sentinel, and a cluster.

use std::time::Duration;

use redis::Value;
use redislock_client::{Answer, Builder, LockStatus, NodeStatus, Observer, Verdict};

use crate::args::Where;
use crate::exit::Failure;
use crate::node_urls::{Login, NodeUrls};
use crate::summary::LockSummary;

/// What one node lists.
pub type Listing = Answer<Vec<(Vec<u8>, LockStatus)>>;

/// All nodes of a deployment.
pub struct View {
    pub observer: Observer,
    /// The nodes are masters of one cluster: each lock is on one of them.
    pub is_cluster: bool,
    /// Creates an observer of some of the nodes.
    builder: Builder,
    /// The URL of each node; none for the one behind Sentinel.
    urls: Vec<String>,
}

impl Where {
    /// Connects to nothing yet, except to a cluster to find its masters.
    pub async fn view(&self) -> Result<View, Failure> {
        let builder = self.builder(Duration::MAX)?;
        let (urls, is_cluster) = match self.urls()? {
            NodeUrls::Masters(urls) => (urls, false),
            NodeUrls::Sentinel {
                name, sentinels, ..
            } => {
                let observer = builder.clone().sentinel(name, sentinels).observe();
                return Ok(View {
                    observer: observer.map_err(Failure::connecting)?,
                    is_cluster: false,
                    builder,
                    urls: Vec::new(),
                });
            }
            NodeUrls::Cluster { login, seeds } => {
                let seeds = builder.clone().nodes(seeds).observe();
                let seeds = seeds.map_err(Failure::connecting)?;
                (masters(&login, &seeds).await?, true)
            }
        };
        View::new(builder, urls, is_cluster)
    }
}

impl View {
    fn new(builder: Builder, urls: Vec<String>, is_cluster: bool) -> Result<Self, Failure> {
        let observer = builder.clone().nodes(&urls).observe();
        Ok(Self {
            observer: observer.map_err(Failure::connecting)?,
            is_cluster,
            builder,
            urls,
        })
    }

    /// Leaves out the nodes that did not reply: waiting for each of them again takes long.
    pub fn without_silent<T>(self, answers: &[Answer<T>]) -> Result<Self, Failure> {
        let replied = |(_, answer): &(String, &Answer<T>)| answer.result.is_ok();
        let urls = self.urls.iter().cloned().zip(answers).filter(replied);
        let urls: Vec<String> = urls.map(|(url, _)| url).collect();
        if urls.is_empty() || urls.len() == self.urls.len() {
            return Ok(self);
        }
        Self::new(self.builder, urls, self.is_cluster)
    }

    /// A view of other nodes, asked in the same way.
    pub fn beside(&self, urls: Vec<String>) -> Result<Self, Failure> {
        Self::new(self.builder.clone(), urls, false)
    }

    /// The URL of each node; none behind Sentinel.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// The name of each node.
    pub fn names(&self) -> Vec<String> {
        self.observer.names().map(str::to_owned).collect()
    }

    /// A view of each node by itself.
    pub fn split(self) -> Result<Vec<Self>, Failure> {
        if self.urls.len() < 2 {
            return Ok(vec![self]);
        }
        let one =
            |url: &String| Self::new(self.builder.clone(), vec![url.clone()], self.is_cluster);
        self.urls.iter().map(one).collect()
    }

    /// What the nodes together know of a lock.
    pub async fn lock(&self, key: &str) -> LockSummary {
        LockSummary::of(&self.concerned(self.observer.lock(key).await))
    }

    /// What each node says about itself.
    pub async fn nodes(&self) -> Vec<Answer<NodeStatus>> {
        self.observer.nodes().await
    }

    /// The locks of each node.
    pub async fn locks(&self, pattern: Option<&str>) -> Vec<Listing> {
        self.observer.locks(pattern).await
    }

    /// Ends all holds of a lock; each node replies with the number of holders.
    pub async fn force(&self, key: &[u8]) -> Vec<Answer<u64>> {
        self.concerned(self.observer.force(key).await)
    }

    /// In a cluster only the master of the key's slot counts; the others reply MOVED. If that
    /// master does not reply, those that do not reply at all remain.
    fn concerned<T>(&self, answers: Vec<Answer<T>>) -> Vec<Answer<T>> {
        if !self.is_cluster {
            return answers;
        }
        let elsewhere = |verdict: &Verdict| match verdict {
            Verdict::Refused(error) => error.code() == Some("MOVED"),
            _ => false,
        };
        let replied = answers.iter().any(|answer| answer.result.is_ok());
        let counts = |answer: &Answer<T>| match &answer.result {
            Ok(_) => true,
            Err(verdict) => !replied && !elsewhere(verdict),
        };
        answers.into_iter().filter(counts).collect()
    }
}

/// The URLs of the masters of a cluster, as the first of its nodes that replies knows them.
async fn masters(login: &Login, seeds: &Observer) -> Result<Vec<String>, Failure> {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let answers = seeds.command(&slots).await;
    let mut problems = Vec::new();
    for answer in answers {
        let seed_host = answer.node.rsplit_once(':').map_or("", |(host, _)| host);
        match answer.result {
            Ok(slots) => {
                let mut urls: Vec<String> = addresses(&slots)
                    .into_iter()
                    .map(|(host, port)| {
                        let host = if host.is_empty() { seed_host } else { &host };
                        login.url(host, port)
                    })
                    .collect();
                urls.sort_unstable();
                urls.dedup();
                if !urls.is_empty() {
                    return Ok(urls);
                }
                problems.push((answer.node, "it knows no masters".to_owned()));
            }
            Err(verdict) => problems.push((answer.node, verdict.to_string())),
        }
    }
    Err(Failure::no_node_replies(&problems))
}

/// Host and port of the master of each range of CLUSTER SLOTS; a host that the node does not know
/// is empty: it is the host that was asked.
fn addresses(slots: &Value) -> Vec<(String, u64)> {
    let Value::Array(ranges) = slots else {
        return Vec::new();
    };
    let master = |range: &Value| {
        let Value::Array(range) = range else {
            return None;
        };
        let Some(Value::Array(master)) = range.get(2) else {
            return None;
        };
        let host = match master.first()? {
            Value::BulkString(host) => String::from_utf8_lossy(host).into_owned(),
            _ => String::new(),
        };
        match master.get(1)? {
            Value::Int(port) => Some((host, u64::try_from(*port).ok()?)),
            _ => None,
        }
    };
    ranges.iter().filter_map(master).collect()
}
