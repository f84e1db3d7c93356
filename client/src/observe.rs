//! Inspecting nodes and locks, without a quorum and without acquiring anything. Every node answers
//! for itself.

mod ticket;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::{Cmd, Value};
use tokio::sync::{Mutex, MutexGuard};

use crate::command::{self, Request};
use crate::error::{Error, Verdict};
use crate::host::Moment;
use crate::link::{Connection, Link};
use crate::node::Node;
use crate::redlock::{Builder, Redlock};
use crate::reply::{LockStatus, NodeStatus, Reply, knows_no_count, trouble, value_of};
use crate::round::{Question, Round};

pub use ticket::Ticket;

/// The number of concurrent requests about listed locks.
const AT_ONCE: usize = 100;

/// What a node knows about several locks, in their order: `None` for a free lock without waiters,
/// an error for a lock that the node does not report.
pub type Statuses = Vec<Result<Option<LockStatus>, Verdict>>;

/// Inspects each node separately; made by [`Builder::observe`](crate::Builder::observe).
pub struct Observer {
    nodes: Vec<Arc<Watched>>,
}

impl Builder {
    /// Inspects the nodes without acquiring locks: also nodes that cannot serve, and without a
    /// quorum. It connects when the first request is sent.
    pub fn observe(self) -> Result<Observer, Error> {
        Observer::new(self.links()?, self.connect_timeout, self.node_timeout)
    }
}

impl Redlock {
    /// The longest lease that each node allows (`lock.max-ttl`), from its last answer to LOCK.NODE.
    /// Nothing is sent.
    pub fn longest_leases(&self) -> Vec<Answer<Duration>> {
        let nodes = self.client.fleet.nodes.iter();
        let answer = |node: &Arc<Node>| Answer::new(node.name.clone(), node.max_ttl());
        nodes.map(answer).collect()
    }
}

/// One node, and the connection to it, if there is one. Its lock allows one request at a time.
struct Watched {
    name: String,
    link: Link,
    connect_timeout: Duration,
    node_timeout: Duration,
    connection: Mutex<Option<Connection>>,
}

/// The answer of one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The node's address, without user and password.
    pub node: String,
    /// The answer, or why there is none.
    pub result: Result<T, Verdict>,
}

impl<T> Answer<T> {
    /// An answer, for callers that combine several.
    pub fn new(node: String, result: Result<T, Verdict>) -> Self {
        Self { node, result }
    }
}

impl Observer {
    pub(crate) fn new(
        links: Vec<(String, Link)>,
        connect_timeout: Duration,
        node_timeout: Duration,
    ) -> Result<Self, Error> {
        #[cfg(feature = "cluster")]
        if links
            .iter()
            .any(|(_, link)| matches!(link, Link::Cluster(_)))
        {
            let problem = "to observe a cluster, list its masters as nodes";
            return Err(Error::Invalid(problem.to_owned()));
        }
        let watched = |(name, link)| {
            Arc::new(Watched {
                name,
                link,
                connect_timeout,
                node_timeout,
                connection: Mutex::default(),
            })
        };
        let nodes = links.into_iter().map(watched).collect();
        Ok(Self { nodes })
    }

    /// The address of each node, without user and password.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// The status of each node.
    pub async fn nodes(&self) -> Vec<Answer<NodeStatus>> {
        self.each(|node| async move {
            let line = node.line().await?;
            let asked = Moment::now();
            NodeStatus::read(line.ask(&command::node()).await?, asked)
        })
        .await
    }

    /// What each node knows about this lock; `None` if it is free there and nobody waits.
    pub async fn lock(&self, name: impl AsRef<[u8]>) -> Vec<Answer<Option<LockStatus>>> {
        let name: Arc<[u8]> = name.as_ref().into();
        self.each(|node| {
            let name = Arc::clone(&name);
            async move { node.line().await?.status(&name, None).await }
        })
        .await
    }

    /// What each node knows about these locks, with at most this many holders of each. The requests
    /// are sent without waiting for each other's replies.
    pub async fn statuses(
        &self,
        names: impl Into<Arc<[Arc<[u8]>]>>,
        holders: usize,
    ) -> Vec<Answer<Statuses>> {
        let names = names.into();
        self.each(|node| {
            let names = Arc::clone(&names);
            async move { node.line().await?.statuses(&names, holders).await }
        })
        .await
    }

    /// Every lock of each node, or those that match a pattern (as in `KEYS`), with what the node
    /// knows about them, sorted by name.
    pub async fn locks(&self, pattern: Option<&str>) -> Vec<Answer<Vec<(Vec<u8>, LockStatus)>>> {
        self.each(|node| {
            let pattern = pattern.map(str::to_owned);
            async move { node.line().await?.locks(pattern.as_deref()).await }
        })
        .await
    }

    /// Ends every hold of this lock on every node, for administrators. Each node reports how many
    /// holders there were.
    pub async fn force(&self, name: impl AsRef<[u8]>) -> Vec<Answer<u64>> {
        let request = Arc::new(command::force(name.as_ref()));
        self.each(|node| {
            let request = Arc::clone(&request);
            async move {
                let value = node.line().await?.ask(&request).await?;
                match Reply::read(Ok(value), 1) {
                    Reply::Yes(holders) => Ok(holders),
                    Reply::No | Reply::Part => Ok(0),
                    Reply::Trouble(verdict) => Err(verdict),
                }
            }
        })
        .await
    }

    /// Sends any command to every node, for checks that the other methods do not cover. A command
    /// that names a key is for one master of a cluster: the others reply with an error. In a
    /// cluster it may run more than once when a connection breaks, so it should change nothing.
    pub async fn command(&self, cmd: &Cmd) -> Vec<Answer<Value>> {
        let request = Arc::new(command::any(cmd));
        self.each(|node| {
            let request = Arc::clone(&request);
            async move { node.line().await?.ask(&request).await }
        })
        .await
    }

    /// Sends the same request to all nodes at once. Each of its steps has its own time limit.
    async fn each<T, F>(&self, question: impl Fn(Arc<Watched>) -> F) -> Vec<Answer<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Verdict>> + Send + 'static,
    {
        let mut round: Round<Result<T, Verdict>> = Round::unlimited(self.nodes.len());
        let mut answers = Vec::with_capacity(self.nodes.len());
        for (place, node) in self.nodes.iter().enumerate() {
            let (node, asked) = (Arc::clone(node), question(Arc::clone(node)));
            answers.push(Answer::new(node.name.clone(), Err(Verdict::NotAsked)));
            round.push(Question::new(place, Moment::now()), async move {
                let result = asked.await;
                if result.is_err() {
                    // The next request opens a new connection.
                    *node.connection.lock().await = None;
                }
                result
            });
        }
        while let Some((question, result)) = round.next().await {
            answers[question.place].result = result;
        }
        answers
    }
}

impl Watched {
    /// The current connection, or a new one.
    async fn line(&self) -> Result<Line<'_>, Verdict> {
        let mut turn = self.connection.lock().await;
        let connection = match turn.as_ref() {
            Some(connection) => connection.clone(),
            None => {
                let opening = self.link.open(self.connect_timeout);
                let opened = tokio::time::timeout(self.connect_timeout, opening).await;
                let opened = opened.map_err(|_| Verdict::TimedOut(self.connect_timeout))?;
                opened.map_err(|error| trouble(&error))?
            }
        };
        *turn = Some(connection.clone());
        Ok(Line {
            connection,
            node_timeout: self.node_timeout,
            _turn: turn,
        })
    }
}

/// The right to ask a node.
struct Line<'a> {
    connection: Connection,
    node_timeout: Duration,
    _turn: MutexGuard<'a, Option<Connection>>,
}

impl Line<'_> {
    async fn ask(&self, request: &Request) -> Result<Value, Verdict> {
        let mut connection = self.connection.clone();
        match tokio::time::timeout(self.node_timeout, connection.send(request)).await {
            Ok(result) => value_of(result),
            Err(_) => Err(Verdict::TimedOut(self.node_timeout)),
        }
    }

    async fn status(
        &self,
        name: &[u8],
        holders: Option<usize>,
    ) -> Result<Option<LockStatus>, Verdict> {
        let mut answer = self.ask(&command::info(name, holders)).await;
        if holders.is_some() && knows_no_count(&answer) {
            answer = self.ask(&command::info(name, None)).await;
        }
        LockStatus::read(answer?)
    }

    /// Stops at the first request without a reply.
    async fn statuses(&self, names: &[Arc<[u8]>], holders: usize) -> Result<Statuses, Verdict> {
        let looks = names.iter().cloned().map(|name| async move {
            match self.status(&name, Some(holders)).await {
                Err(silent @ (Verdict::TimedOut(_) | Verdict::Unreachable(_))) => Err(silent),
                told => Ok(told),
            }
        });
        stream::iter(looks).buffered(AT_ONCE).try_collect().await
    }

    async fn locks(&self, pattern: Option<&str>) -> Result<Vec<(Vec<u8>, LockStatus)>, Verdict> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let page = self.ask(&command::scan(&cursor, pattern)).await?;
            let page = redis::from_redis_value::<(Vec<u8>, Vec<Vec<u8>>)>(page);
            let (next, found) =
                page.map_err(|_| Verdict::Garbage("not a SCAN reply".to_owned()))?;
            names.extend(found);
            cursor = next;
            if cursor == b"0" {
                break;
            }
        }
        names.sort_unstable();
        names.dedup();
        let looks = names.into_iter().map(|name| async {
            // It may have been released since it was listed.
            let status = self.status(&name, None).await?;
            Ok(status.map(|status| (name, status)))
        });
        let looks = stream::iter(looks).buffered(AT_ONCE);
        looks.try_filter_map(future::ok).try_collect().await
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.nodes.iter().map(|node| &node.name);
        out.debug_list().entries(names).finish()
    }
}
