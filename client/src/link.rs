//! Connections to a node: a server, a master that Sentinel names, or a whole cluster.

#[cfg(feature = "cluster")]
mod cluster;
mod own;
#[cfg(feature = "sentinel")]
mod sentinel;
mod settings;
#[cfg(feature = "simulation")]
mod simulated;

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "sentinel", feature = "cluster"))]
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, ConnectionInfo, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisError, RedisResult, Value,
};

use crate::command::{self, Request};
use crate::error::Verdict;
use crate::host::Moment;
use crate::reply::{NodeStatus, value_of};

#[cfg(feature = "cluster")]
use cluster::Masters;
pub(crate) use own::{Idle, Own, Turns};
pub use settings::Credentials;
pub(crate) use settings::{Provider, Settings};

/// This many requests may be queued for the socket before a sender waits: more than a node can
/// accumulate before it counts as down, so that a release never waits for a full channel.
const PIPELINE: usize = 8192;
/// A connection that is idle for this long is probed …
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// … every two seconds …
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
/// … and closed after this many probes without an answer.
const KEEPALIVE_PROBES: u32 = 3;
/// The peer must acknowledge data, and answer a probe, within this time.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a node, and how to log in; made by [`Settings`].
pub(crate) enum Link {
    Single(Box<Server>),
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
    Cluster(cluster::Masters),
    /// To one master.
    #[cfg(feature = "cluster")]
    Slot(Box<cluster::SlotConnection>),
    #[cfg(feature = "simulation")]
    Simulated(simulated::Connection),
}

impl Link {
    /// Whether it is a connection to a cluster, which replaces broken connections by itself.
    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }

    /// Whether this shared connection of a cluster still uses credentials that have been replaced.
    /// A connection to a single server uses the credentials from when it was opened.
    pub(crate) async fn has_new_login(&self, _shared: &Connection) -> bool {
        match (self, _shared) {
            #[cfg(feature = "cluster")]
            (Self::Cluster(cluster), Connection::Cluster(masters)) => {
                cluster.has_new_login(masters).await
            }
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

    /// Opens a connection for one request that blocks its connection: to the master that
    /// [`Self::open`] has found, without asking Sentinels or other masters again. For a cluster,
    /// the connection opens with the first request, and takes turns with others if `in_turn` is
    /// set.
    pub(crate) async fn open_another(
        &self,
        patience: Duration,
        _in_turn: bool,
    ) -> RedisResult<Connection> {
        match self {
            Self::Single(server) => server.open_single(patience).await,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel
                .open_another(patience)
                .await
                .map(Connection::Single),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let connection = cluster::SlotConnection::new(Arc::clone(cluster), _in_turn);
                Ok(Connection::Slot(Box::new(connection)))
            }
        }
    }
}

impl Connection {
    /// Sends the request and waits for its reply, however long that takes. The futures of a cluster
    /// are boxed because they are large: 12 KB for each request, also to a single server, made an
    /// acquire over five nodes a fifth slower.
    pub(crate) async fn send(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => connection.send_packed_command(&request.cmd).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(Masters { connection, .. }) => {
                let place = cluster::place_of(request);
                Box::pin(connection.route_command(request.cmd.clone(), place)).await
            }
            #[cfg(feature = "cluster")]
            Self::Slot(connection) => Box::pin(connection.send(request)).await,
            #[cfg(feature = "simulation")]
            Self::Simulated(connection) => connection.redis.send_packed_command(&request.cmd).await,
        }
    }

    /// Sends the request after pending requests of a clone of this connection. The server executes
    /// them in this order, even if the connection is closed meanwhile.
    pub(crate) async fn send_behind(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Slot(connection) => connection.send_behind(request).await,
            one => one.send(request).await,
        }
    }

    /// How many connections to servers the shared connection of a cluster has opened, or begun to
    /// open. It does so for each connection that breaks, before it repeats a request that was
    /// pending there (but see [`Node::may_have_repeated`](crate::node::Node::may_have_repeated)).
    pub(crate) fn opened(&self) -> u64 {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(masters) => masters.opened(),
            _ => 0,
        }
    }

    /// Whether the server of this connection answers a new connection. Only connections to one
    /// master of a cluster are checked here; their node monitors the others.
    pub(crate) async fn is_served(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Slot(connection) => connection.is_served().await,
            _ => true,
        }
    }

    /// Sends LOCK.NODE. A server gives one answer; a cluster gives one for each master, or at least
    /// one if some masters do not answer in half of the time limit.
    pub(crate) async fn status(&mut self, _patience: Duration) -> Result<Answers, Verdict> {
        let asked = Moment::now();
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(masters) => {
                use redis::cluster_routing::ResponsePolicy;
                let first = cluster::every_master(Some(ResponsePolicy::OneSucceeded));
                let one = masters.connection.route_command(command::node().cmd, first);
                let one = node_status(one.await, asked);
                let all = async {
                    masters.name_connections().await;
                    let every = cluster::every_master(None);
                    masters
                        .connection
                        .route_command(command::node().cmd, every)
                        .await
                };
                let patience = (asked + _patience / 2).remaining();
                match tokio::time::timeout(patience, all).await {
                    Ok(Ok(Value::Map(masters))) => Ok(Answers {
                        masters: master_status(masters, asked)?,
                        all: true,
                    }),
                    _ => Ok(Answers {
                        masters: vec![one?],
                        all: false,
                    }),
                }
            }
            one => {
                let reply = one.send(&command::node()).await;
                Ok(Answers {
                    masters: vec![node_status(reply, asked)?],
                    all: true,
                })
            }
        }
    }
}

/// The answers to LOCK.NODE.
pub(crate) struct Answers {
    pub(crate) masters: Vec<NodeStatus>,
    /// Whether all masters have answered.
    pub(crate) all: bool,
}

impl Answers {
    /// Which processes have answered.
    pub(crate) fn names(&self) -> Vec<&str> {
        let masters = self.masters.iter();
        masters.map(|one| one.incarnation.as_str()).collect()
    }

    /// Whether a master cannot reach the rest of its cluster, which may have replaced it.
    pub(crate) fn is_cut_off(&self) -> bool {
        let mut masters = self.masters.iter();
        masters.any(|one| one.refusal.as_deref() == Some("cluster"))
    }
}

fn node_status(reply: RedisResult<Value>, asked: Moment) -> Result<NodeStatus, Verdict> {
    NodeStatus::read(value_of(reply)?, asked)?.checked()
}

/// A master that has just been replaced may answer as a replica. It is an error only if all answer
/// as replicas.
#[cfg(feature = "cluster")]
fn master_status(masters: Vec<(Value, Value)>, asked: Moment) -> Result<Vec<NodeStatus>, Verdict> {
    let mut found = Vec::with_capacity(masters.len());
    for (_, master) in masters {
        match node_status(Ok(master), asked) {
            Ok(one) => found.push(one),
            Err(Verdict::Replica) => {}
            Err(verdict) => return Err(verdict),
        }
    }
    if found.is_empty() {
        Err(Verdict::Replica)
    } else {
        Ok(found)
    }
}

/// One server.
#[derive(Clone)]
pub(crate) struct Server {
    info: ConnectionInfo,
    client_name: Option<Arc<str>>,
    provider: Option<Provider>,
}

impl Server {
    pub(crate) fn new(
        info: ConnectionInfo,
        client_name: Option<Arc<str>>,
        provider: Option<Provider>,
    ) -> Self {
        let tcp = with_limits(info.tcp_settings().clone());
        Self {
            info: info.set_tcp_settings(tcp),
            client_name,
            provider,
        }
    }

    /// The address, without user and password.
    #[cfg(any(feature = "cluster", feature = "sentinel", feature = "simulation"))]
    pub(crate) fn address(&self) -> String {
        self.info.addr().to_string()
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// The host alone.
    #[cfg(feature = "cluster")]
    pub(crate) fn host(&self) -> String {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            other => other.to_string(),
        }
    }

    /// The same settings at another address.
    #[cfg(any(feature = "sentinel", feature = "cluster"))]
    pub(crate) fn at(&self, host: String, port: u16) -> Self {
        let addr = match self.info.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let mut other = self.clone();
        other.info = other.info.set_addr(addr);
        other
    }

    /// Opens a connection as [`Self::open`] does.
    pub(crate) async fn open_single(&self, patience: Duration) -> RedisResult<Connection> {
        #[cfg(feature = "simulation")]
        if let Some(opened) = simulated::open(self, patience).await {
            return opened.map(Connection::Simulated);
        }
        self.open(patience).await.map(Connection::Single)
    }

    /// The settings for redis-rs. They have no login: this client logs in itself, because redis-rs
    /// reports every refusal as a wrong password or database. They have no time limits, which the
    /// caller sets.
    pub(crate) fn bare() -> (RedisConnectionInfo, AsyncConnectionConfig) {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        (info, config)
    }

    /// Opens a connection and logs in. It waits for replies without limit: the caller sets the
    /// limit, and late replies still count.
    pub(crate) async fn open(&self, patience: Duration) -> RedisResult<MultiplexedConnection> {
        let opening = async {
            let (bare, config) = Self::bare();
            let client = redis::Client::open(self.info.clone().set_redis_settings(bare))?;
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            self.log_in(&mut connection).await?;
            Ok(connection)
        };
        in_time(patience, opening).await
    }

    /// Sends user and password, database and names in one round trip.
    pub(crate) async fn log_in(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let settings = self.info.redis_settings();
        let credentials = match &self.provider {
            Some(provider) => Some(provider.ask().await?),
            None => Credentials::of(&self.info),
        };
        let mut steps = Pipeline::new();
        if settings.protocol() != ProtocolVersion::RESP2 {
            steps.add_command(command::hello(credentials.as_ref().map(Credentials::parts)));
        } else if let Some(credentials) = &credentials {
            steps.add_command(command::auth(credentials.parts()));
        }
        if settings.db() != 0 {
            steps.add_command(command::select(settings.db()));
        }
        let required = steps.len();
        self.name(&mut steps);
        if steps.is_empty() {
            return Ok(());
        }
        let count = steps.len();
        let replies = connection.send_packed_commands(&steps, 0, count).await?;
        for reply in replies.into_iter().take(required) {
            if let Value::ServerError(error) = reply {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Sets names for operators. Errors are ignored: servers before 7.2 do not have SETINFO.
    fn name(&self, steps: &mut Pipeline) {
        let settings = self.info.redis_settings();
        if !settings.skip_set_lib_name() {
            let library = settings.lib_name().unwrap_or(env!("CARGO_PKG_NAME"));
            let version = settings.lib_ver().unwrap_or(env!("CARGO_PKG_VERSION"));
            for (what, value) in [("LIB-NAME", library), ("LIB-VER", version)] {
                steps.add_command(command::set_info(what, value));
            }
        }
        if let Some(name) = &self.client_name {
            steps.add_command(command::set_name(name));
        }
    }
}

/// Runs the work with this time limit.
async fn in_time<T>(
    patience: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let done = tokio::time::timeout(patience, work).await;
    done.unwrap_or_else(|_| Err(late()))
}

/// The error of work that took too long.
fn late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Sets keepalive, so that a connection that a firewall has dropped does not look open forever.
/// Settings of the caller stay.
fn with_limits(tcp: TcpSettings) -> TcpSettings {
    let mut tcp = tcp.set_nodelay(true);
    if tcp.keepalive().is_none() {
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_EVERY)
            .with_retries(KEEPALIVE_PROBES);
        tcp = tcp.set_keepalive(keepalive);
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    if tcp.user_timeout().is_none() {
        tcp = tcp.set_user_timeout(USER_TIMEOUT);
    }
    tcp
}
