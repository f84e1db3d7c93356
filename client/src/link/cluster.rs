//! A Redis Cluster: one shared connection to all masters, and one to the master of its slot for
//! each waiter.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, Slot,
    SlotAddr,
};
use redis::io::AsyncDNSResolver;
use redis::{ErrorKind, RedisError, RedisFuture, RedisResult, Value};

use super::settings::{Credentials, Settings};
use super::{Server, Turns, in_time, late};
use crate::command::{self, Request};
use crate::host::{Moment, locked};

/// A request follows the slot this many times before it fails.
const REDIRECTIONS: u32 = 5;

/// The cluster that some given nodes belong to.
pub(crate) struct Cluster {
    /// At least one.
    seeds: Vec<Server>,
    settings: Settings,
    connect_timeout: Duration,
    /// The last known masters of slots.
    masters: Mutex<HashMap<Slot, Server>>,
    /// By address.
    servers: Mutex<HashMap<String, Arc<ServerState>>>,
}

/// What the waiters at one server of a cluster share.
struct ServerState {
    turns: Turns,
    /// Whether the last connection did not open in time, or the server does not serve the cluster.
    comes_last: AtomicBool,
    /// When it was last checked whether the server answers a new connection, and the result.
    served: tokio::sync::Mutex<Option<(Moment, bool)>>,
}

/// A connection to all masters, and the credentials for each new connection to one of them.
#[derive(Clone)]
pub(crate) struct Masters {
    pub(super) connection: ClusterConnection,
    login: Option<Arc<Credentials>>,
    openings: Openings,
    /// The name for operators, and how many connections had been opened when all had it.
    name: Option<Arc<str>>,
    named: Arc<AtomicU64>,
}

impl Masters {
    /// How many connections it has opened, or tried to open.
    pub(super) fn opened(&self) -> u64 {
        self.openings.0.load(SeqCst)
    }

    /// Names all connections if any was opened since the last time: redis-rs opens connections
    /// without a name. The name is only for operators, so errors are ignored.
    pub(super) async fn name_connections(&mut self) {
        let opened = self.opened();
        let Some(name) = self.name.as_deref() else {
            return;
        };
        if self.named.load(SeqCst) == opened {
            return;
        }
        let naming = self
            .connection
            .route_command(command::set_name(name), every_master(None));
        if naming.await.is_ok() {
            self.named.store(opened, SeqCst);
        }
    }
}

/// Counts the connections that redis-rs opens for a shared connection: each begins with a look at
/// the host's address.
#[derive(Clone, Default)]
struct Openings(Arc<AtomicU64>);

impl AsyncDNSResolver for Openings {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        self.0.fetch_add(1, SeqCst);
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, port)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

impl Cluster {
    /// Checks that the nodes agree on user, password and TLS.
    pub(crate) fn new(
        seeds: Vec<Server>,
        settings: Settings,
        connect_timeout: Duration,
    ) -> RedisResult<Self> {
        let cluster = Self {
            seeds,
            settings,
            connect_timeout,
            masters: Mutex::default(),
            servers: Mutex::default(),
        };
        cluster.builder().build()?;
        Ok(cluster)
    }

    fn builder(&self) -> ClusterClientBuilder {
        let infos = self.seeds.iter().map(|seed| seed.info().clone());
        // Waiting for a lock may take any time, so replies have no time limit here. One node that
        // accepts no connections must not use up the time for all.
        let builder = ClusterClientBuilder::new(infos)
            .connection_timeout(self.connect_timeout / 4)
            .response_timeout(Duration::MAX)
            .overall_response_timeout(None);
        let builder = match self.seeds.first() {
            Some(seed) => builder.tcp_settings(seed.info().tcp_settings().clone()),
            None => builder,
        };
        #[cfg(feature = "tls")]
        let builder = match self.settings.certificates() {
            Some(certificates) => builder.certs(certificates),
            None => builder,
        };
        builder
    }

    /// One connection to all masters.
    pub(crate) async fn open(&self) -> RedisResult<Masters> {
        let openings = Openings::default();
        let mut builder = self.builder().async_dns_resolver(openings.clone());
        let mut login = None;
        if let Some(provider) = &self.settings.provider {
            let credentials = provider.ask().await?;
            login = Some(Arc::new(credentials.clone()));
            builder = builder.password(credentials.password);
            if let Some(username) = credentials.username {
                builder = builder.username(username);
            }
        }
        let connection = builder.build()?.get_async_connection().await?;
        Ok(Masters {
            connection,
            login,
            openings,
            name: self.settings.client_name.clone(),
            named: Arc::default(),
        })
    }

    /// Whether the provider now has other credentials than this connection.
    pub(crate) async fn has_new_login(&self, masters: &Masters) -> bool {
        let Some(provider) = &self.settings.provider else {
            return false;
        };
        match tokio::time::timeout(self.connect_timeout, provider.ask()).await {
            Ok(Ok(credentials)) => masters.login.as_deref() != Some(&credentials),
            _ => false,
        }
    }

    /// A connection to the last known master of the slot, or to any node, which knows where the
    /// slot is. Servers that did not open the last connection in time, or that are outside of the
    /// cluster, come last.
    async fn open_for(
        &self,
        slot: Slot,
        in_turn: bool,
    ) -> RedisResult<(Server, MultiplexedConnection)> {
        let known = locked(&self.masters).get(&slot).cloned();
        let mut places: Vec<Server> = known.into_iter().collect();
        places.extend(self.seeds.iter().cloned());
        places.sort_by_cached_key(|server| self.state_of(server).comes_last.load(SeqCst));
        let share = self.connect_timeout / 4;
        let mut problem = RedisError::from((ErrorKind::Io, "no node of the cluster answers"));
        for server in places {
            match self.open_at(&server, share, in_turn).await {
                Ok(connection) => return Ok((server, connection)),
                Err(error) => problem = error,
            }
        }
        locked(&self.masters).remove(&slot);
        Err(problem)
    }

    fn state_of(&self, server: &Server) -> Arc<ServerState> {
        let mut servers = locked(&self.servers);
        let state = servers.entry(server.address()).or_insert_with(|| {
            Arc::new(ServerState {
                turns: Turns::default(),
                comes_last: AtomicBool::default(),
                served: tokio::sync::Mutex::default(),
            })
        });
        Arc::clone(state)
    }

    /// A connection to this server. With `in_turn`, waiters do not all open one at the same time,
    /// and a waiter gives up its turn if the server turns out to be slow meanwhile.
    async fn open_at(
        &self,
        server: &Server,
        patience: Duration,
        in_turn: bool,
    ) -> RedisResult<MultiplexedConnection> {
        let state = self.state_of(server);
        let opened = if in_turn {
            let was_slow = state.comes_last.load(SeqCst);
            let opening = async {
                let _turn = state.turns.next().await;
                if state.comes_last.load(SeqCst) && !was_slow {
                    return Err(late());
                }
                let opened = server.open(Duration::MAX).await;
                if opened.is_ok() {
                    state.turns.opened();
                }
                opened
            };
            let opened = state.turns.take(patience, opening).await;
            opened.unwrap_or_else(|| Err(late()))
        } else {
            server.open(patience).await
        };
        match &opened {
            Ok(_) => state.comes_last.store(false, SeqCst),
            Err(error) if error.is_timeout() => state.comes_last.store(true, SeqCst),
            Err(_) => {}
        }
        opened
    }

    /// Whether this server answers a new connection, or at least refuses it. Callers at the same
    /// time share the answer.
    async fn is_served(&self, server: &Server) -> bool {
        let (state, asked) = (self.state_of(server), Moment::now());
        let mut served = state.served.lock().await;
        if let Some((_, served)) = served.filter(|(at, _)| *at >= asked) {
            return served;
        }
        let (at, patience) = (Moment::now(), self.connect_timeout);
        let answered = async {
            let mut connection = server.open(patience).await?;
            // There may be nothing to log in with.
            connection.send_packed_command(&redis::cmd("PING")).await
        };
        let answered = in_time(patience, answered).await;
        let is_served = answered.map_or_else(|error| error.code().is_some(), |_| true);
        *served = Some((at, is_served));
        is_served
    }
}

/// A connection for commands that block it: to one master, opened by the first request, and to
/// another master when the slot has moved there.
#[derive(Clone)]
pub(crate) struct SlotConnection {
    cluster: Arc<Cluster>,
    /// Whether it waits for its turn to open.
    in_turn: bool,
    /// Clones share it, even if it is opened after they were made.
    open: Arc<Mutex<Option<(Server, MultiplexedConnection)>>>,
}

impl SlotConnection {
    pub(crate) fn new(cluster: Arc<Cluster>, in_turn: bool) -> Self {
        Self {
            cluster,
            in_turn,
            open: Arc::default(),
        }
    }

    /// Sends the request after pending ones; there are none while it is not open.
    pub(crate) async fn send_behind(&self, request: &Request) -> RedisResult<Value> {
        let open = locked(&self.open).clone();
        match open {
            Some((_, mut connection)) => connection.send_packed_command(&request.cmd).await,
            None => Ok(Value::Nil),
        }
    }

    /// Whether its master answers a new connection.
    pub(crate) async fn is_served(&self) -> bool {
        let open = locked(&self.open).clone();
        match open {
            Some((server, _)) => self.cluster.is_served(&server).await,
            None => true,
        }
    }

    /// Sends the request to the master of its slot.
    pub(crate) async fn send(&self, request: &Request) -> RedisResult<Value> {
        let slot = Slot::for_key(request.key.as_deref().unwrap_or_default());
        let mut asking = false;
        for _ in 0..REDIRECTIONS {
            let open = locked(&self.open).clone();
            let (server, mut connection) = match open {
                Some(open) => open,
                None => {
                    let new = self.cluster.open_for(slot, self.in_turn).await?;
                    *locked(&self.open) = Some(new.clone());
                    new
                }
            };
            let result = if asking {
                send_asking(&mut connection, request).await
            } else {
                connection.send_packed_command(&request.cmd).await
            };
            let Some((kind, host, port)) = redirection(&result, &server) else {
                match &result {
                    // The successor of a dead master is found by asking the others.
                    Err(error) if error.code().is_none() => {
                        locked(&self.cluster.masters).remove(&slot);
                        *locked(&self.open) = None;
                    }
                    result if is_outside(result) => {
                        locked(&self.cluster.masters).remove(&slot);
                        *locked(&self.open) = None;
                        self.cluster
                            .state_of(&server)
                            .comes_last
                            .store(true, SeqCst);
                    }
                    Err(_) | Ok(Value::ServerError(_)) => {}
                    // The slot is still moving there.
                    Ok(_) if asking => {}
                    Ok(_) => {
                        locked(&self.cluster.masters).insert(slot, server);
                    }
                }
                return result;
            };
            asking = kind == Redirection::Once;
            let server = server.at(host, port);
            if !asking {
                locked(&self.cluster.masters).insert(slot, server.clone());
            }
            let (cluster, patience) = (&self.cluster, self.cluster.connect_timeout);
            *locked(&self.open) = None;
            drop(connection);
            let connection = cluster.open_at(&server, patience, self.in_turn).await?;
            *locked(&self.open) = Some((server, connection));
        }
        let problem = "the slot moved too often while the request followed it";
        Err(RedisError::from((ErrorKind::Client, problem)))
    }
}

/// Whether the server says that nobody serves the slot: it was removed from the cluster, or it is
/// cut off from the others.
fn is_outside(result: &RedisResult<Value>) -> bool {
    let code = match result {
        Ok(Value::ServerError(error)) => error.code().to_owned(),
        Err(error) => error.code().unwrap_or_default().to_owned(),
        Ok(_) => return false,
    };
    code == "CLUSTERDOWN"
}

#[derive(PartialEq, Eq)]
enum Redirection {
    /// `MOVED`: the slot is there.
    ForGood,
    /// `ASK`: the slot is moving there.
    Once,
}

/// Where the server redirects the request to. A server that does not know its own host leaves it
/// out.
fn redirection(result: &RedisResult<Value>, server: &Server) -> Option<(Redirection, String, u16)> {
    let refusal = match result {
        Ok(Value::ServerError(error)) => RedisError::from(error.clone()),
        Err(error) => error.clone(),
        Ok(_) => return None,
    };
    let kind = match refusal.code() {
        Some("MOVED") => Redirection::ForGood,
        Some("ASK") => Redirection::Once,
        _ => return None,
    };
    let (address, _) = refusal.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match host {
        "" | "?" => server.host(),
        host => host.to_owned(),
    };
    Some((kind, host, port.parse().ok()?))
}

async fn send_asking(
    connection: &mut MultiplexedConnection,
    request: &Request,
) -> RedisResult<Value> {
    let mut steps = redis::pipe();
    steps.cmd("ASKING").add_command(request.cmd.clone());
    let mut replies = connection.send_packed_commands(&steps, 0, 2).await?;
    let missing = || RedisError::from((ErrorKind::UnexpectedReturnType, "no reply after ASKING"));
    replies.pop().ok_or_else(missing)
}

pub(crate) fn every_master(policy: Option<ResponsePolicy>) -> RoutingInfo {
    RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, policy))
}

/// A request with a key goes to the master of its slot, one without to every master.
pub(crate) fn place_of(request: &Request) -> RoutingInfo {
    match &request.key {
        Some(key) => {
            let route = Route::with_key(key, SlotAddr::Master);
            RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
        }
        None => every_master(None),
    }
}

#[cfg(test)]
mod tests;
