//! How a node is reached: an address, a name that Sentinel resolves, or a whole cluster.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Value};

use crate::census::Census;
use crate::clock::Moment;
use crate::command::{self, Request};
use crate::error::Verdict;
use crate::reply;

/// So many requests may be on their way to the socket before a sender has to wait: more than a node can pile up
/// before it is believed down, so that a release is never stuck behind a full channel.
const PIPELINE: usize = 8192;

/// Where a node is, and how to log in.
pub(crate) enum Link {
    Single(Box<redis::Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<tokio::sync::Mutex<redis::sentinel::SentinelClient>>),
    #[cfg(feature = "cluster")]
    Cluster(Box<redis::cluster::ClusterClient>),
}

/// An open connection. Clones share it; it closes with the last of them.
#[derive(Clone)]
pub(crate) enum Connection {
    Single(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

impl Link {
    /// Whether a broken connection to one server is replaced without our doing: a cluster has others.
    pub(crate) fn heals(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }

    /// Opens a connection. It waits for replies without limit: who asks sets the limit, and late replies still count.
    pub(crate) async fn open(&self, patience: Duration) -> RedisResult<Connection> {
        match self {
            Self::Single(client) => single(client, patience).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let master = sentinel.lock().await.async_get_client().await?;
                single(&master, patience).await
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(client) => Ok(Connection::Cluster(client.get_async_connection().await?)),
        }
    }
}

async fn single(client: &redis::Client, patience: Duration) -> RedisResult<Connection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(patience))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    Ok(Connection::Single(connection))
}

impl Connection {
    /// Sends the request and waits for its reply, however long that takes.
    pub(crate) async fn send(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => connection.send_packed_command(&request.cmd).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => {
                connection
                    .route_command(request.cmd.clone(), place_of(request))
                    .await
            }
        }
    }

    /// Asks LOCK.NODE: one answer from a server; from a cluster one a master, or at least one when they do not all
    /// answer in half of the time there is.
    pub(crate) async fn census(&mut self, _patience: Duration) -> Result<Vec<Census>, Verdict> {
        let asked = Moment::now();
        match self {
            Self::Single(connection) => {
                let value = connection.send_packed_command(&command::node().cmd).await;
                Ok(vec![said(value, asked)?])
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => {
                let first = Some(redis::cluster_routing::ResponsePolicy::OneSucceeded);
                let one = connection.route_command(command::node().cmd, every_master(first));
                let one = said(one.await, asked);
                let all = connection.route_command(command::node().cmd, every_master(None));
                let patience = (asked + _patience / 2).remaining();
                match tokio::time::timeout(patience, all).await {
                    Ok(Ok(Value::Map(masters))) => masters_say(masters, asked),
                    _ => Ok(vec![one?]),
                }
            }
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

/// A master that has just been replaced may be among those asked; only a cluster of nothing else is none.
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

#[cfg(feature = "cluster")]
fn every_master(
    policy: Option<redis::cluster_routing::ResponsePolicy>,
) -> redis::cluster_routing::RoutingInfo {
    use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, policy))
}

/// A request with a key goes to the master of its slot, one without to every master.
#[cfg(feature = "cluster")]
fn place_of(request: &Request) -> redis::cluster_routing::RoutingInfo {
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
    match &request.key {
        Some(key) => {
            let route = Route::with_key(key, SlotAddr::Master);
            RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
        }
        None => every_master(None),
    }
}
