//! Looking at nodes and locks from outside: without a quorum, without holding anything. Every node
//! answers for itself.

use std::time::{Duration, SystemTime};

use futures_util::future::{self, join_all};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::{Cmd, Value};

use crate::clock::Moment;
use crate::command::Request;
use crate::error::{Error, Verdict};
use crate::link::{Connection, Link};
use crate::reply::trouble;
use crate::status::{LockStatus, NodeStatus};

/// Keys that a node is asked to go through in one step of a listing.
const SCAN_COUNT: usize = 1_000;
/// Questions about listed locks that are under way at once.
const AT_ONCE: usize = 100;

/// Looks at each node by itself; made by [`Builder::observe`](crate::Builder::observe).
pub struct Observer {
    nodes: Vec<Watched>,
    connect_timeout: Duration,
    node_timeout: Duration,
}

/// One node, and the connection to it if there is one.
struct Watched {
    name: String,
    link: Link,
    line: tokio::sync::Mutex<Option<Connection>>,
}

/// What one node answered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The node's address, without user and password.
    pub node: String,
    /// The answer, or why there is none.
    pub result: Result<T, Verdict>,
}

impl<T> Answer<T> {
    /// An answer, for those who put several together.
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
            let problem = "a cluster is looked at master by master: list them as nodes";
            return Err(Error::Invalid(problem.to_owned()));
        }
        let watched = |(name, link)| Watched {
            name,
            link,
            line: tokio::sync::Mutex::default(),
        };
        Ok(Self {
            nodes: links.into_iter().map(watched).collect(),
            connect_timeout,
            node_timeout,
        })
    }

    /// What each node says about itself.
    pub async fn nodes(&self) -> Vec<Answer<NodeStatus>> {
        self.each(|watched| async move {
            let (mut connection, _line) = self.line(watched).await?;
            // The reading lies between question and answer: of our clock, the middle of the two is
            // compared.
            let (asked, wall) = (Moment::now(), SystemTime::now());
            let value = self.ask(&mut connection, redis::cmd("LOCK.NODE")).await?;
            let took = Moment::now().since(asked);
            NodeStatus::read(value, wall + took / 2, took)
        })
        .await
    }

    /// What each node knows of this lock; `None`: it is free there, and nobody waits.
    pub async fn lock(&self, name: impl AsRef<[u8]>) -> Vec<Answer<Option<LockStatus>>> {
        let name = name.as_ref();
        self.each(|watched| async move {
            let (mut connection, _line) = self.line(watched).await?;
            self.status(&mut connection, name).await
        })
        .await
    }

    /// Every lock of each node, or those that match a pattern as `KEYS` understands it, with what
    /// the node knows of them, in the order of their names.
    pub async fn locks(&self, pattern: Option<&str>) -> Vec<Answer<Vec<(Vec<u8>, LockStatus)>>> {
        self.each(|watched| async move {
            let (mut connection, _line) = self.line(watched).await?;
            let mut names = Vec::new();
            let mut cursor = b"0".to_vec();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("TYPE").arg("redislock");
                scan.arg("COUNT").arg(SCAN_COUNT);
                if let Some(pattern) = pattern {
                    scan.arg("MATCH").arg(pattern);
                }
                let page = self.ask(&mut connection, scan).await?;
                let (next, found) = page_of(page)?;
                names.extend(found);
                cursor = next;
                if cursor == b"0" {
                    break;
                }
            }
            names.sort_unstable();
            names.dedup();
            let look = |name: Vec<u8>| {
                let mut connection = connection.clone();
                async move {
                    let status = self.status(&mut connection, &name).await?;
                    // It may have been released since it was listed.
                    Ok(status.map(|status| (name, status)))
                }
            };
            let looks = stream::iter(names).map(look).buffered(AT_ONCE);
            looks.try_filter_map(future::ok).try_collect().await
        })
        .await
    }

    /// Ends every hold of this lock on every node, for administrators; each says how many holders
    /// there were.
    pub async fn force(&self, name: impl AsRef<[u8]>) -> Vec<Answer<u64>> {
        let name = name.as_ref();
        self.each(|watched| async move {
            let (mut connection, _line) = self.line(watched).await?;
            let mut force = redis::cmd("LOCK.FORCE");
            force.arg(name);
            match self.ask(&mut connection, force).await? {
                Value::Nil => Ok(0),
                Value::Int(holders) => Ok(u64::try_from(holders).unwrap_or(0)),
                _ => Err(Verdict::Garbage("neither a number nor null".to_owned())),
            }
        })
        .await
    }

    /// Sends any command to every node, for checks that the other methods do not cover. A command
    /// that names a key is for one master of a cluster: the others reply with an error.
    pub async fn command(&self, cmd: &Cmd) -> Vec<Answer<Value>> {
        self.each(|watched| async move {
            let (mut connection, _line) = self.line(watched).await?;
            self.ask(&mut connection, cmd.clone()).await
        })
        .await
    }

    async fn status(
        &self,
        connection: &mut Connection,
        name: &[u8],
    ) -> Result<Option<LockStatus>, Verdict> {
        let mut info = redis::cmd("LOCK.INFO");
        info.arg(name);
        match self.ask(connection, info).await? {
            Value::Nil => Ok(None),
            value => LockStatus::read(value).map(Some),
        }
    }

    /// The same question to all nodes at once.
    async fn each<'a, T, F>(&'a self, question: impl Fn(&'a Watched) -> F) -> Vec<Answer<T>>
    where
        F: Future<Output = Result<T, Verdict>> + 'a,
    {
        let answers = self.nodes.iter().map(|watched| {
            let asked = question(watched);
            async move {
                let result = asked.await;
                if result.is_err() {
                    // The next question begins with a new connection.
                    *watched.line.lock().await = None;
                }
                Answer {
                    node: watched.name.clone(),
                    result,
                }
            }
        });
        join_all(answers).await
    }

    /// The connection there is, or a new one.
    async fn line<'a>(&self, watched: &'a Watched) -> Result<(Connection, Line<'a>), Verdict> {
        let mut line = watched.line.lock().await;
        if let Some(connection) = line.as_ref() {
            return Ok((connection.clone(), line));
        }
        let opening = watched.link.open(self.connect_timeout);
        let connection = match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| trouble(&error))?,
            Err(_) => return Err(Verdict::TimedOut(self.connect_timeout)),
        };
        *line = Some(connection.clone());
        Ok((connection, line))
    }

    async fn ask(&self, connection: &mut Connection, cmd: Cmd) -> Result<Value, Verdict> {
        let request = Request::new(cmd, None);
        match tokio::time::timeout(self.node_timeout, connection.send(&request)).await {
            Ok(Ok(Value::ServerError(error))) => Err(trouble(&error.into())),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(trouble(&error)),
            Err(_) => Err(Verdict::TimedOut(self.node_timeout)),
        }
    }
}

/// One question at a time on a connection.
type Line<'a> = tokio::sync::MutexGuard<'a, Option<Connection>>;

/// A page of SCAN: where to go on, and what was found.
fn page_of(value: Value) -> Result<(Vec<u8>, Vec<Vec<u8>>), Verdict> {
    let garbage = || Verdict::Garbage("no page of SCAN".to_owned());
    let Value::Array(parts) = value else {
        return Err(garbage());
    };
    let mut parts = parts.into_iter();
    let (Some(Value::BulkString(cursor)), Some(Value::Array(found)), None) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(garbage());
    };
    let name = |value| match value {
        Value::BulkString(name) => Ok(name),
        _ => Err(garbage()),
    };
    Ok((
        cursor,
        found.into_iter().map(name).collect::<Result<_, _>>()?,
    ))
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.nodes.iter().map(|watched| &watched.name);
        out.debug_list().entries(names).finish()
    }
}
