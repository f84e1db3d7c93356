//! What all connections of a client have in common: credentials, certificates, names.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::time::Duration;

use futures_util::future::FutureExt;
use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinel;
use super::{Link, Server};
use crate::command::Login;

/// A password, with the name of its user if that is not the default one.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// A user of the server's access control list.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            username: Some(username.into()),
            password: password.into(),
        }
    }

    /// The default user: `requirepass`.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            username: None,
            password: password.into(),
        }
    }

    /// The form that commands use.
    pub(crate) fn parts(&self) -> Login<'_> {
        (self.username.as_deref(), &self.password)
    }

    /// The credentials of a URL, if it has a password.
    pub(crate) fn of(info: &redis::ConnectionInfo) -> Option<Self> {
        let settings = info.redis_settings();
        Some(Self {
            username: settings.username().map(str::to_owned),
            password: settings.password()?.to_owned(),
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Asked = Pin<Box<dyn Future<Output = Result<Credentials, Failure>> + Send>>;

/// Asked for the credentials of every new connection.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> Asked + Send + Sync>);

impl Provider {
    pub(crate) fn new<F, R, E>(ask: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Failure>,
    {
        Self(Arc::new(move || {
            let asked = ask();
            Box::pin(async move { asked.await.map_err(Into::into) })
        }))
    }

    /// The current credentials. If the provider fails, the node is unreachable for now: the next
    /// call may succeed.
    pub(crate) async fn ask(&self) -> RedisResult<Credentials> {
        let failed = |error: Failure| {
            let what = "no credentials for the connection";
            RedisError::from((ErrorKind::Client, what, error.to_string()))
        };
        // A panic here would end the monitoring of the node.
        let asked = AssertUnwindSafe(async { (self.0)().await });
        let asked = asked.catch_unwind().await;
        let asked = asked.unwrap_or_else(|_| Err("the provider has panicked".into()));
        asked.map_err(failed)
    }
}

/// Names, credentials and certificates.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) client_name: Option<Arc<str>>,
    pub(crate) provider: Option<Provider>,
    #[cfg(feature = "tls")]
    pub(crate) root_certificate: Option<Vec<u8>>,
    /// A certificate and its key.
    #[cfg(feature = "tls")]
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    #[cfg(feature = "sentinel")]
    pub(crate) sentinel_credentials: Option<Credentials>,
    #[cfg(all(feature = "sentinel", feature = "tls"))]
    pub(crate) sentinel_master_tls: bool,
}

impl Settings {
    /// One server.
    pub(crate) fn single(&self, info: ConnectionInfo) -> RedisResult<Link> {
        Ok(Link::Single(Box::new(self.server(info)?)))
    }

    /// The master that these Sentinels know by this name. User, password and database of the first
    /// one's URL are the master's.
    #[cfg(feature = "sentinel")]
    pub(crate) fn sentinel(
        &self,
        name: String,
        first: &ConnectionInfo,
        infos: Vec<ConnectionInfo>,
    ) -> RedisResult<Link> {
        let master = self.master_of(first, &infos);
        let sentinel = |info: ConnectionInfo| {
            let mut login = redis::RedisConnectionInfo::default();
            if let Some(own) = &self.sentinel_credentials {
                login = login.set_password(&own.password);
                if let Some(username) = &own.username {
                    login = login.set_username(username);
                }
            }
            let info = self.with_certificates(info.set_redis_settings(login))?;
            Ok(Server::new(info, self.client_name.clone(), None))
        };
        // A password that is sent to the master with TLS is never sent without TLS.
        let is_secure =
            |info: &ConnectionInfo| matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. });
        let may_be_sent = !is_secure(&master) || infos.iter().all(is_secure);
        let same_login = match &self.sentinel_credentials {
            None if may_be_sent => Credentials::of(first),
            _ => None,
        };
        let sentinels = infos.into_iter().map(sentinel);
        let sentinels = sentinels.collect::<RedisResult<_>>()?;
        let sentinel = Sentinel::new(name, sentinels, same_login, self.server(master)?);
        Ok(Link::Sentinel(Box::new(sentinel)))
    }

    /// The settings of the master. If one Sentinel uses TLS, the master does, too: TLS is never
    /// silently dropped.
    #[cfg(feature = "sentinel")]
    fn master_of(&self, first: &ConnectionInfo, all: &[ConnectionInfo]) -> ConnectionInfo {
        use redis::ConnectionAddr;
        let login = first.redis_settings().clone();
        let is_secure =
            |info: &&ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if let Some(secure) = all.iter().find(is_secure) {
            return secure.clone().set_redis_settings(login);
        }
        #[cfg(feature = "tls")]
        if self.sentinel_master_tls
            && let ConnectionAddr::Tcp(host, port) = first.addr().clone()
        {
            let secure = ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            };
            return first.clone().set_addr(secure);
        }
        first.clone()
    }

    /// The cluster that these nodes belong to.
    #[cfg(feature = "cluster")]
    pub(crate) fn cluster(
        &self,
        infos: Vec<ConnectionInfo>,
        connect_timeout: Duration,
    ) -> RedisResult<Link> {
        let seeds = infos.into_iter().map(|info| self.server(info));
        let seeds = seeds.collect::<RedisResult<_>>()?;
        let cluster = Cluster::new(seeds, self.clone(), connect_timeout)?;
        Ok(Link::Cluster(Arc::new(cluster)))
    }

    fn server(&self, info: ConnectionInfo) -> RedisResult<Server> {
        let info = self.with_certificates(info)?;
        let name = self.client_name.clone();
        Ok(Server::new(info, name, self.provider.clone()))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    fn with_certificates(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        Ok(info)
    }

    /// Certificates that came with the settings of a server stay, if the client has none.
    #[cfg(feature = "tls")]
    fn with_certificates(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        // rustls panics if no provider is installed. A provider that the program has installed
        // stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match self.certificates() {
            Some(certificates) => {
                let client = redis::Client::build_with_tls(info, certificates)?;
                Ok(client.get_connection_info().clone())
            }
            None => Ok(info),
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> Option<redis::TlsCertificates> {
        if self.root_certificate.is_none() && self.client_certificate.is_none() {
            return None;
        }
        let client = self.client_certificate.clone();
        let client_tls = client.map(|(client_cert, client_key)| redis::ClientTlsConfig {
            client_cert,
            client_key,
        });
        Some(redis::TlsCertificates {
            client_tls,
            root_cert: self.root_certificate.clone(),
        })
    }
}
