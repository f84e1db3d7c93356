//! The client itself: where its nodes are, and how to ask it for locks.

use std::sync::Arc;
use std::time::Duration;

use redis::IntoConnectionInfo;

use crate::client::Client;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::link::Link;
use crate::lock::Lock;
use crate::node::Node;
use crate::observer::Observer;
use crate::options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_NODE_TIMEOUT};
use crate::quorum::MAX_NODES;

/// A client of one or several masters. Clones share its connections; background work ends with the last clone, guard
/// and request.
#[derive(Clone)]
pub struct Redlock {
    pub(crate) client: Arc<Client>,
}

impl Redlock {
    /// Where the nodes are and how to treat them.
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

/// The settings of a client that is yet to be connected.
#[derive(Clone)]
pub struct Builder {
    places: Vec<Place>,
    node_timeout: Duration,
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    certificates: Option<redis::TlsCertificates>,
}

#[derive(Clone)]
enum Place {
    Single(String),
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
            #[cfg(feature = "tls")]
            certificates: None,
        }
    }
}

impl Builder {
    /// One more master: `redis://[user:password@]host[:port][/database]`, `rediss://…` (feature `tls`) or
    /// `unix:///path`.
    pub fn node(mut self, url: impl AsRef<str>) -> Self {
        self.places.push(Place::Single(url.as_ref().to_owned()));
        self
    }

    /// More masters. All clients of a lock must list the same ones, in the same order: waiters queue at the first.
    pub fn nodes<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.places.extend(
            urls.into_iter()
                .map(|url| Place::Single(url.as_ref().to_owned())),
        );
        self
    }

    /// The one master that these Sentinels know by `name`. User, password and database of the first URL are for the
    /// Sentinels and, unless a master differs, for the master too.
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

    /// The one cluster that some of these nodes belong to.
    #[cfg(feature = "cluster")]
    pub fn cluster<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls
            .into_iter()
            .map(|url| url.as_ref().to_owned())
            .collect();
        self.places.push(Place::Cluster(urls));
        self
    }

    /// How long one node may take to answer; 100 ms if not set. Keep it small against the ttl of the locks.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// How long a connection may take to open; 2 s if not set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The certificate (PEM) that signed those of the servers, for `rediss://` without a public authority.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = Some(redis::TlsCertificates {
            client_tls: None,
            root_cert: Some(pem.into()),
        });
        self
    }

    /// Connects to all nodes, and checks that they are masters with the module, each another server. A minority that
    /// cannot be reached is no error: it is tried again in the background.
    pub async fn connect(self) -> Result<Redlock, Error> {
        let node = |(name, link)| Arc::new(Node::new(name, link, self.connect_timeout));
        let nodes = self.links()?.into_iter().map(node).collect();
        let fleet = Fleet::new(nodes, self.node_timeout);
        let client = Client::start(fleet).await?;
        Ok(Redlock { client })
    }

    /// Looks at the nodes without asking them for anything: also at those that cannot serve, and without a quorum. Nothing
    /// is connected before the first question.
    pub fn observe(self) -> Result<Observer, Error> {
        Observer::new(self.links()?, self.connect_timeout, self.node_timeout)
    }

    fn links(&self) -> Result<Vec<(String, Link)>, Error> {
        let invalid = |problem: &str| Err(Error::Invalid(problem.to_owned()));
        if self.places.is_empty() {
            return invalid("no nodes: give the URL of at least one master");
        }
        if self.places.len() > MAX_NODES {
            return invalid("more than 64 nodes: five survive two failures");
        }
        if self.node_timeout.is_zero() || self.connect_timeout.is_zero() {
            return invalid("a timeout of zero leaves no time to answer");
        }
        let mut links: Vec<(String, Link)> = Vec::new();
        for place in &self.places {
            let several = self.places.len() > 1;
            if several && !matches!(place, Place::Single(_)) {
                return invalid(
                    "a Sentinel-named master or a cluster is the only node of its client",
                );
            }
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

    fn link(&self, place: &Place) -> Result<(String, Link), Error> {
        match place {
            Place::Single(url) => {
                let info = parsed(url)?;
                let name = info.addr().to_string();
                let client = self.open(info).map_err(|error| wrong(&name, &error))?;
                Ok((name, Link::Single(Box::new(client))))
            }
            #[cfg(feature = "sentinel")]
            Place::Sentinel { name, sentinels } => {
                use redis::sentinel::{
                    SentinelClient, SentinelNodeConnectionInfo, SentinelServerType,
                };
                let infos = sentinels
                    .iter()
                    .map(|url| parsed(url))
                    .collect::<Result<Vec<_>, _>>()?;
                let Some(first) = infos.first() else {
                    return Err(Error::Invalid(format!(
                        "no Sentinel is given for master {name}"
                    )));
                };
                let login = SentinelNodeConnectionInfo::default()
                    .set_redis_connection_info(first.redis_settings().clone());
                let shown = format!("master {name} of Sentinel {}", first.addr());
                let client = SentinelClient::build(
                    infos,
                    name.clone(),
                    Some(login),
                    SentinelServerType::Master,
                )
                .map_err(|error| wrong(&shown, &error))?;
                Ok((
                    shown,
                    Link::Sentinel(Box::new(tokio::sync::Mutex::new(client))),
                ))
            }
            #[cfg(feature = "cluster")]
            Place::Cluster(urls) => {
                let infos = urls
                    .iter()
                    .map(|url| parsed(url))
                    .collect::<Result<Vec<_>, _>>()?;
                let Some(first) = infos.first() else {
                    return Err(Error::Invalid("no node of the cluster is given".to_owned()));
                };
                let shown = format!("cluster of {}", first.addr());
                // Waiting for a lock may take any time, so no reply is ever late by itself. One node that does not let
                // anybody connect must not use up the time for all.
                let client = redis::cluster::ClusterClientBuilder::new(infos)
                    .connection_timeout(self.connect_timeout / 4)
                    .response_timeout(Duration::MAX)
                    .overall_response_timeout(None)
                    .build()
                    .map_err(|error| wrong(&shown, &error))?;
                Ok((shown, Link::Cluster(Box::new(client))))
            }
        }
    }

    fn open(&self, info: redis::ConnectionInfo) -> redis::RedisResult<redis::Client> {
        #[cfg(feature = "tls")]
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            // rustls panics where no provider is chosen; a choice that the program has made stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            if let Some(certificates) = &self.certificates {
                return redis::Client::build_with_tls(info, certificates.clone());
            }
        }
        redis::Client::open(info)
    }
}

/// The URL is not repeated: it may hold a password.
fn parsed(url: &str) -> Result<redis::ConnectionInfo, Error> {
    let info = url.into_connection_info();
    info.map_err(|error| {
        Error::Invalid(format!(
            "a node's URL does not parse: {error}; write redis://host:port"
        ))
    })
}

fn wrong(node: &str, error: &redis::RedisError) -> Error {
    Error::Invalid(format!("node {node}: {error}"))
}
