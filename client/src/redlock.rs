//! The client: its settings, how to connect it, and how to request locks.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};

use crate::client::{Client, Metrics};
use crate::command::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_NODE_TIMEOUT};
use crate::error::{Error, invalid_if};
use crate::fleet::Fleet;
use crate::host::Background;
use crate::link::{Credentials, Link, Provider, Settings};
use crate::lock::Lock;
use crate::node::Node;
use crate::quorum::MAX_NODES;

/// How often [`Redlock::close`] checks whether everything is delivered.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// A client of one or several masters. Clones share its connections; background work ends with the
/// last clone, guard and request.
#[derive(Clone)]
pub struct Redlock {
    pub(crate) client: Arc<Client>,
}

impl Redlock {
    /// Returns a builder for the addresses and the settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects to these nodes with the default settings.
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().nodes(urls).connect().await
    }

    /// A request for the lock of this name: any bytes.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(Arc::clone(&self.client), vec![name.as_ref().to_vec()])
    }

    /// A request for several locks at once: all or none, without deadlock.
    pub fn lock_all<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        let keys = names
            .into_iter()
            .map(|name| name.as_ref().to_vec())
            .collect();
        Lock::new(Arc::clone(&self.client), keys)
    }

    /// Waits until all releases in the background are delivered, but no longer than this. Use it in
    /// programs that end right after a request failed or was cancelled, or a guard was dropped, so
    /// that nothing stays held. Guards, locks and elections that still exist keep the client open,
    /// so drop them first.
    pub async fn close(self, patience: Duration) {
        // A task that still releases something keeps a reference to the client.
        let client = Arc::downgrade(&self.client);
        drop(self);
        let closed = async {
            while client.strong_count() > 0 {
                tokio::time::sleep(CLOSING_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(patience, closed).await;
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<&str> = self
            .client
            .fleet
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        out.debug_struct("Redlock")
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}

/// The settings of a client that is not connected yet.
#[derive(Clone)]
pub struct Builder {
    places: Vec<Place>,
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    settings: Settings,
    metrics: Option<Arc<dyn Metrics>>,
}

#[derive(Clone)]
enum Place {
    Url(String),
    Info(Box<ConnectionInfo>),
    #[cfg(feature = "sentinel")]
    Sentinel {
        name: String,
        sentinels: Vec<String>,
    },
    #[cfg(feature = "cluster")]
    Cluster(Vec<String>),
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            node_timeout: DEFAULT_NODE_TIMEOUT,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            settings: Settings::default(),
            metrics: None,
        }
    }
}

impl Builder {
    /// Adds a master: `redis://[user:password@]host[:port][/database]`, `rediss://…` (feature
    /// `tls`) or `unix:///path`.
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.places.push(Place::Url(url.as_ref().to_owned()));
        self
    }

    /// Adds masters. All clients of a lock must list the same ones, in the same order: waiters
    /// queue at the first one.
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        for url in urls {
            self = self.node(url);
        }
        self
    }

    /// Adds a master with the settings of redis-rs: TCP options, the protocol, a library name,
    /// certificates. Keepalive and the TCP user timeout are set unless the settings contain them.
    pub fn node_info(mut self, info: ConnectionInfo) -> Self {
        self.places.push(Place::Info(Box::new(info)));
        self
    }

    /// Adds a master with the settings of this redis-rs client.
    pub fn node_client(self, client: &redis::Client) -> Self {
        self.node_info(client.get_connection_info().clone())
    }

    /// Uses the master that these Sentinels know as `name`. User, password and database of the
    /// first URL are for the master; a Sentinel that requires a password gets the same one, unless
    /// [`Self::sentinel_credentials`] are set. With `rediss://` (feature `tls`), the client
    /// connects to the Sentinels and the master with TLS.
    #[cfg(feature = "sentinel")]
    pub fn sentinel<U: AsRef<str>>(
        mut self,
        name: impl Into<String>,
        urls: impl IntoIterator<Item = U>,
    ) -> Self {
        let sentinels = urls
            .into_iter()
            .map(|url| url.as_ref().to_owned())
            .collect();
        let name = name.into();
        self.places.push(Place::Sentinel { name, sentinels });
        self
    }

    /// The login for the Sentinels, if it is not that of the master.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_credentials(mut self, credentials: Credentials) -> Self {
        self.settings.sentinel_credentials = Some(credentials);
        self
    }

    /// Connects to the master with TLS, even if the Sentinels do not use it.
    #[cfg(all(feature = "sentinel", feature = "tls"))]
    pub fn sentinel_master_tls(mut self) -> Self {
        self.settings.sentinel_master_tls = true;
        self
    }

    /// Uses the cluster that these nodes belong to. A few of its nodes are enough.
    #[cfg(feature = "cluster")]
    pub fn cluster<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls
            .into_iter()
            .map(|url| url.as_ref().to_owned())
            .collect();
        self.places.push(Place::Cluster(urls));
        self
    }

    /// How long one node may take to reply; 100 ms if not set. Keep it small compared with the ttl
    /// of the locks.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// How long a connection may take to open; 2 s if not set. For the connection of a waiter, the
    /// time begins again whenever another waiter's connection opens.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The name of the connections in CLIENT LIST. In a cluster, a connection that replaces another
    /// one gets the name after at most 500 ms, while the client is in use.
    pub fn client_name(mut self, name: impl AsRef<str>) -> Self {
        self.settings.client_name = Some(name.as_ref().into());
        self
    }

    /// Asks `provider` for the user and the password of every new connection to a master, in place
    /// of those in the URLs: for passwords that rotate and tokens that expire. If a server closes
    /// connections when a token expires, the client reconnects with the next token. In a cluster,
    /// if one connection is missing, the connections to all masters are opened again with the next
    /// token.
    pub fn credentials<F, R, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.settings.provider = Some(Provider::new(provider));
        self
    }

    /// Sets a hook that receives events about the locks of this client: waits, holds, losses,
    /// retries.
    pub fn metrics(mut self, metrics: impl Metrics) -> Self {
        self.metrics = Some(Arc::new(metrics));
        self
    }

    /// The CA certificate (PEM) of the servers, for `rediss://` without a public authority. It is
    /// used for nodes, Sentinels and their master, and clusters.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.root_certificate = Some(pem.into());
        self
    }

    /// The certificate and its key (both PEM) with which the client identifies itself, for servers
    /// with `tls-auth-clients yes`.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.settings.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Connects to all nodes, and checks that they are masters with the module, and all different
    /// servers. A minority that cannot be reached or cannot serve now is not an error: the client
    /// retries in the background. It does not wait for a minority that hangs.
    pub async fn connect(self) -> Result<Redlock, Error> {
        let fleet = self.fleet()?;
        fleet.connect().await?;
        let client = Client::start(fleet, self.metrics, Background::own());
        Ok(Redlock { client })
    }

    /// Connects in the background, now or when the nodes can be reached: a program may start before
    /// its servers. The first request waits for the first answers of the nodes, at most for the
    /// connect timeout and no longer than its own wait. What [`Self::connect`] would report as an
    /// error is logged, and errors of requests name the nodes that cannot serve.
    pub fn connect_lazy(self) -> Result<Redlock, Error> {
        let Some(background) = Background::current() else {
            let problem = "connect_lazy works in the background: call it inside a Tokio runtime";
            return Err(Error::Invalid(problem.to_owned()));
        };
        let client = Client::start_lazily(self.fleet()?, self.metrics, background);
        Ok(Redlock { client })
    }

    fn fleet(&self) -> Result<Fleet, Error> {
        let node = |(name, link)| Arc::new(Node::new(name, link, self.connect_timeout));
        let nodes = self.links()?.into_iter().map(node).collect();
        Ok(Fleet::new(nodes, self.node_timeout))
    }

    pub(crate) fn links(&self) -> Result<Vec<(String, Link)>, Error> {
        self.check()?;
        let mut links: Vec<(String, Link)> = Vec::new();
        for place in &self.places {
            let (name, link) = self.link(place)?;
            if links.iter().any(|(known, _)| *known == name) {
                return Err(Error::Invalid(format!(
                    "node {name} is listed twice: list each once"
                )));
            }
            links.push((name, link));
        }
        Ok(links)
    }

    fn check(&self) -> Result<(), Error> {
        let nodes = self.places.len();
        let is_server = |place: &Place| matches!(place, Place::Url(_) | Place::Info(_));
        let printable = |name: &Arc<str>| name.bytes().all(|byte| byte.is_ascii_graphic());
        invalid_if(
            nodes == 0,
            format_args!("no nodes: give the URL of at least one master"),
        )?;
        invalid_if(
            nodes > MAX_NODES,
            format_args!("more than {MAX_NODES} nodes: use three or five"),
        )?;
        invalid_if(
            nodes > 1 && !self.places.iter().all(is_server),
            format_args!("a master named by Sentinel, or a cluster, must be the only node"),
        )?;
        invalid_if(
            self.node_timeout.is_zero() || self.connect_timeout.is_zero(),
            format_args!("a timeout must be longer than zero"),
        )?;
        invalid_if(
            !self.settings.client_name.iter().all(printable),
            format_args!("a client name must be printable ASCII without spaces"),
        )
    }

    fn link(&self, place: &Place) -> Result<(String, Link), Error> {
        let settings = &self.settings;
        let (name, link) = match place {
            Place::Url(url) => {
                let info = parsed(url)?;
                (info.addr().to_string(), settings.single(info))
            }
            Place::Info(info) => (info.addr().to_string(), settings.single((**info).clone())),
            #[cfg(feature = "sentinel")]
            Place::Sentinel { name, sentinels } => {
                let infos = all_parsed(sentinels)?;
                let Some(first) = infos.first().cloned() else {
                    let problem = format!("no Sentinel is given for master {name}");
                    return Err(Error::Invalid(problem));
                };
                let shown = format!("master {name} of Sentinel {}", first.addr());
                (shown, settings.sentinel(name.clone(), &first, infos))
            }
            #[cfg(feature = "cluster")]
            Place::Cluster(urls) => {
                let infos = all_parsed(urls)?;
                let Some(first) = infos.first() else {
                    return Err(Error::Invalid("no node of the cluster is given".to_owned()));
                };
                let shown = format!("cluster of {}", first.addr());
                (shown, settings.cluster(infos, self.connect_timeout))
            }
        };
        match link {
            Ok(link) => Ok((name, link)),
            Err(error) => Err(Error::Invalid(format!("node {name}: {error}"))),
        }
    }
}

#[cfg(any(feature = "sentinel", feature = "cluster"))]
fn all_parsed(urls: &[String]) -> Result<Vec<ConnectionInfo>, Error> {
    urls.iter().map(|url| parsed(url)).collect()
}

/// The URL is not repeated: it may hold a password.
fn parsed(url: &str) -> Result<ConnectionInfo, Error> {
    let info = url.into_connection_info();
    info.map_err(|error| {
        Error::Invalid(format!(
            "invalid node URL: {error}; write redis://host:port"
        ))
    })
}
