//! How a node is reached: an address, a name that Sentinel resolves, or a whole cluster.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Value};

use crate::census::Census;
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

    /// Asks LOCK.NODE: one answer from a server, one a master from a cluster.
    pub(crate) async fn census(&mut self) -> Result<Vec<Census>, Verdict> {
        let asked = crate::clock::Moment::now();
        let value = match self.send(&command::node()).await {
            Ok(Value::ServerError(error)) => return Err(reply::trouble(&error.into())),
            Ok(value) => value,
            Err(error) => return Err(reply::trouble(&error)),
        };
        match self {
            Self::Single(_) => Ok(vec![Census::read(value, asked)?]),
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => match value {
                Value::Map(masters) => masters
                    .into_iter()
                    .map(|(_, master)| Census::read(master, asked))
                    .collect(),
                _ => Err(Verdict::Garbage("no map of masters".to_owned())),
            },
        }
    }
}

/// A request with a key goes to the master of its slot, one without to every master.
#[cfg(feature = "cluster")]
fn place_of(request: &Request) -> redis::cluster_routing::RoutingInfo {
    use redis::cluster_routing::{
        MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
    };
    match &request.key {
        Some(key) => {
            let route = Route::with_key(key, SlotAddr::Master);
            RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
        }
        None => RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None)),
    }
}
