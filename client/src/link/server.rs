//! One server: its address, the login, and how a connection to it is opened.

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "sentinel", feature = "cluster"))]
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisResult, Value,
};

use super::Connection;
use super::credentials::{Credentials, Provider};

/// So many requests may be on their way to the socket before a sender has to wait: more than a node
/// can pile up before it is believed down, so that a release is never stuck behind a full channel.
const PIPELINE: usize = 8192;
/// A connection that is idle for this long is probed …
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// … every two seconds …
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
/// … and given up after so many probes without an answer.
const KEEPALIVE_PROBES: u32 = 3;
/// The other side must confirm what it was sent, and answer a probe, within this time.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(10);

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
    #[cfg(any(feature = "sentinel", feature = "simulation"))]
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
        if let Some(opened) = crate::simulation::open(self, patience).await {
            return opened.map(Connection::Simulated);
        }
        self.open(patience).await.map(Connection::Single)
    }

    /// How redis-rs is to connect: without a login, which is our own, as redis-rs calls every
    /// refusal a wrong password or database; and without limits, which are the caller's.
    pub(crate) fn bare() -> (RedisConnectionInfo, AsyncConnectionConfig) {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        (
            RedisConnectionInfo::default().set_skip_set_lib_name(),
            config,
        )
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
        match tokio::time::timeout(patience, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// One round trip: user and password, database, names.
    pub(crate) async fn log_in(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let settings = self.info.redis_settings();
        let credentials = match &self.provider {
            Some(provider) => Some(provider.ask().await?),
            None => Credentials::of(&self.info),
        };
        let mut steps = Pipeline::new();
        if settings.protocol() != ProtocolVersion::RESP2 {
            steps.add_command(hello(credentials.as_ref()));
        } else if let Some(credentials) = &credentials {
            steps.add_command(credentials.command());
        }
        if settings.db() != 0 {
            steps.cmd("SELECT").arg(settings.db());
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

    /// Names for operators. Nothing depends on them: servers before 7.2 know no SETINFO.
    fn name(&self, steps: &mut Pipeline) {
        let settings = self.info.redis_settings();
        if !settings.skip_set_lib_name() {
            let library = settings.lib_name().unwrap_or(env!("CARGO_PKG_NAME"));
            let version = settings.lib_ver().unwrap_or(env!("CARGO_PKG_VERSION"));
            for (what, value) in [("LIB-NAME", library), ("LIB-VER", version)] {
                steps.cmd("CLIENT").arg("SETINFO").arg(what).arg(value);
            }
        }
        if let Some(name) = &self.client_name {
            steps.cmd("CLIENT").arg("SETNAME").arg(&**name);
        }
    }
}

/// `HELLO 3 [AUTH username password]`.
fn hello(credentials: Option<&Credentials>) -> Cmd {
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(credentials) = credentials {
        let username = credentials.username.as_deref().unwrap_or("default");
        hello.arg("AUTH").arg(username).arg(&credentials.password);
    }
    hello
}

/// A connection that a firewall has forgotten must not look open forever. What the caller has set
/// stays.
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
