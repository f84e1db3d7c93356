//! How a node is reached: a server, a master that Sentinel names, or a whole cluster.

#[cfg(feature = "cluster")]
mod cluster;
mod credentials;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server;
mod settings;

#[cfg(feature = "cluster")]
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use crate::census::Census;
use crate::clock::Moment;
use crate::command::{self, Request};
use crate::error::Verdict;
use crate::reply;

pub use credentials::Credentials;
pub(crate) use credentials::Provider;
#[cfg(feature = "simulation")]
pub(crate) use server::Server;
pub(crate) use settings::Settings;

/// Where a node is, and how to log in; made by [`Settings`].
pub(crate) enum Link {
    Single(Box<server::Server>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<sentinel::Sentinel>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<cluster::Cluster>),
}

/// An open connection. Clones share it; it closes with the last of them.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    /// To all masters.
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
    /// To one master.
    #[cfg(feature = "cluster")]
    Slot(Box<cluster::SlotConnection>),
    #[cfg(feature = "simulation")]
    Simulated(crate::simulation::Connection),
}

impl Link {
    /// Whether a broken connection to one server is replaced without our doing: a cluster has
    /// others.
    pub(crate) fn heals(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }

    /// Whether the shared connection of a cluster logs in to masters with credentials that have
    /// been replaced. A connection to one server is opened with those of its time.
    pub(crate) async fn has_new_login(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.has_new_login().await,
            _ => false,
        }
    }

    /// Opens the connection that all requests share. It waits for replies without limit: the caller
    /// sets the limit, and late replies still count.
    pub(crate) async fn open(&self, patience: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(server) => server.open_single(patience).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.open(patience).await.map(Connection::Single),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.open().await.map(Connection::Cluster),
        }
    }

    /// Opens a connection for one request that makes a connection wait: to the master that
    /// [`Self::open`] has found, without asking Sentinels or other masters again.
    pub(crate) async fn open_another(&self, patience: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(server) => server.open_single(patience).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel
                .open_another(patience)
                .await
                .map(Connection::Single),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let connection = cluster::SlotConnection::new(Arc::clone(cluster));
                Ok(Connection::Slot(Box::new(connection)))
            }
        }
    }
}

impl Connection {
    /// Sends the request and waits for its reply, however long that takes.
    pub(crate) async fn send(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => connection.send_packed_command(&request.cmd).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => {
                let place = cluster::place_of(request);
                connection.route_command(request.cmd.clone(), place).await
            }
            #[cfg(feature = "cluster")]
            Self::Slot(connection) => connection.send(request).await,
            #[cfg(feature = "simulation")]
            Self::Simulated(connection) => connection.redis.send_packed_command(&request.cmd).await,
        }
    }

    /// Asks LOCK.NODE: one answer from a server; from a cluster one for each master, or at least
    /// one when they do not all answer in half of the time there is. Says whether all did.
    pub(crate) async fn census(
        &mut self,
        _patience: Duration,
    ) -> Result<(Vec<Census>, bool), Verdict> {
        let asked = Moment::now();
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => {
                use redis::cluster_routing::ResponsePolicy;
                let first = cluster::every_master(Some(ResponsePolicy::OneSucceeded));
                let one = connection.route_command(command::node().cmd, first);
                let one = said(one.await, asked);
                let every = cluster::every_master(None);
                let all = connection.route_command(command::node().cmd, every);
                let patience = (asked + _patience / 2).remaining();
                match tokio::time::timeout(patience, all).await {
                    Ok(Ok(Value::Map(masters))) => Ok((masters_say(masters, asked)?, true)),
                    _ => Ok((vec![one?], false)),
                }
            }
            one => Ok((vec![said(one.send(&command::node()).await, asked)?], true)),
        }
    }
}

fn said(result: RedisResult<Value>, asked: Moment) -> Result<Census, Verdict> {
    match result {
        Ok(Value::ServerError(error)) => Err(reply::trouble(&error.into())),
        Ok(value) => Census::read(value, asked),
        Err(error) => Err(reply::trouble(&error)),
    }
}

/// A master that has just been replaced may be among those asked; only a cluster of nothing else is
/// none.
#[cfg(feature = "cluster")]
fn masters_say(masters: Vec<(Value, Value)>, asked: Moment) -> Result<Vec<Census>, Verdict> {
    let mut census = Vec::with_capacity(masters.len());
    for (_, master) in masters {
        match said(Ok(master), asked) {
            Ok(one) => census.push(one),
            Err(Verdict::Replica) => {}
            Err(verdict) => return Err(verdict),
        }
    }
    match census.is_empty() {
        true => Err(Verdict::Replica),
        false => Ok(census),
    }
}
