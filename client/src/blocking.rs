//! The same names for programs without an async runtime. (Looking at nodes from outside,
//! `Builder::observe`, is for tools, and async only.)
//!
//! The work is done by a thread of the client. Every call may be made anywhere, inside another
//! runtime too; there it blocks the thread that makes it.
//!
//! ```no_run
//! use redislock_client::blocking::Redlock;
//!
//! # fn main() -> Result<(), redislock_client::Error> {
//! let client = Redlock::connect(["redis://127.0.0.1:6379"])?;
//! let guard = client.lock("nightly-report").acquire()?;
//! println!("holding it with fence {}", guard.fence());
//! guard.release();
//! # Ok(())
//! # }
//! ```

mod background;

use std::sync::Arc;
use std::time::Duration;

use background::Background;

use crate::{CancellationToken, Error, Held, Moment, Owner, Released};

/// A client of one or several masters, with a thread of its own.
#[derive(Clone, Debug)]
pub struct Redlock {
    inner: crate::Redlock,
    background: Arc<Background>,
}

impl Redlock {
    /// Connects to these nodes with the default settings.
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().nodes(urls).connect()
    }

    /// Where the nodes are and how to treat them.
    pub fn builder() -> Builder {
        Builder(crate::Redlock::builder())
    }

    fn start<C>(connect: C) -> Result<Self, Error>
    where
        C: Future<Output = Result<crate::Redlock, Error>> + Send + 'static,
    {
        let started = Background::start();
        let background = started
            .map_err(|error| Error::Invalid(format!("no thread for the client: {error}")))?;
        let inner = background.run(connect)?;
        Ok(Self { inner, background })
    }

    /// A request for the lock of this name: any bytes.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        self.request(self.inner.lock(name))
    }

    /// A request for several locks at once: all or none, without deadlock.
    pub fn lock_all<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.request(self.inner.lock_all(names))
    }

    /// See [`crate::Redlock::close`].
    pub fn close(self, patience: Duration) {
        let Self { inner, background } = self;
        background.run(async move { inner.close(patience).await });
    }

    fn request(&self, inner: crate::Lock) -> Lock {
        let background = Arc::clone(&self.background);
        Lock { inner, background }
    }
}

/// The settings of a client that is yet to be connected; they are those of [`crate::Builder`].
#[derive(Clone)]
pub struct Builder(crate::Builder);

impl Builder {
    /// See [`crate::Builder::node`].
    pub fn node(self, url: impl AsRef<str>) -> Self {
        Self(self.0.node(url))
    }

    /// See [`crate::Builder::nodes`].
    pub fn nodes<U: AsRef<str>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        Self(self.0.nodes(urls))
    }

    /// See [`crate::Builder::node_info`].
    pub fn node_info(self, info: redis::ConnectionInfo) -> Self {
        Self(self.0.node_info(info))
    }

    /// See [`crate::Builder::node_client`].
    pub fn node_client(self, client: &redis::Client) -> Self {
        Self(self.0.node_client(client))
    }

    /// See [`crate::Builder::sentinel`].
    #[cfg(feature = "sentinel")]
    pub fn sentinel<U: AsRef<str>>(
        self,
        name: impl Into<String>,
        urls: impl IntoIterator<Item = U>,
    ) -> Self {
        Self(self.0.sentinel(name, urls))
    }

    /// See [`crate::Builder::sentinel_credentials`].
    #[cfg(feature = "sentinel")]
    pub fn sentinel_credentials(self, credentials: crate::Credentials) -> Self {
        Self(self.0.sentinel_credentials(credentials))
    }

    /// See [`crate::Builder::sentinel_master_tls`].
    #[cfg(all(feature = "sentinel", feature = "tls"))]
    pub fn sentinel_master_tls(self) -> Self {
        Self(self.0.sentinel_master_tls())
    }

    /// See [`crate::Builder::cluster`].
    #[cfg(feature = "cluster")]
    pub fn cluster<U: AsRef<str>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        Self(self.0.cluster(urls))
    }

    /// See [`crate::Builder::node_timeout`].
    pub fn node_timeout(self, timeout: Duration) -> Self {
        Self(self.0.node_timeout(timeout))
    }

    /// See [`crate::Builder::connect_timeout`].
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self(self.0.connect_timeout(timeout))
    }

    /// See [`crate::Builder::client_name`].
    pub fn client_name(self, name: impl AsRef<str>) -> Self {
        Self(self.0.client_name(name))
    }

    /// See [`crate::Builder::credentials`]; here the provider may block.
    pub fn credentials<E>(
        self,
        provider: impl Fn() -> Result<crate::Credentials, E> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let provider = Arc::new(provider);
        Self(self.0.credentials(move || {
            let provider = Arc::clone(&provider);
            async move {
                let asked = tokio::task::spawn_blocking(move || provider().map_err(Into::into));
                asked.await.unwrap_or_else(|ended| Err(ended.into()))
            }
        }))
    }

    /// See [`crate::Builder::metrics`].
    pub fn metrics(self, metrics: impl crate::Metrics) -> Self {
        Self(self.0.metrics(metrics))
    }

    /// See [`crate::Builder::root_certificate`].
    #[cfg(feature = "tls")]
    pub fn root_certificate(self, pem: impl Into<Vec<u8>>) -> Self {
        Self(self.0.root_certificate(pem))
    }

    /// See [`crate::Builder::client_certificate`].
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        Self(self.0.client_certificate(certificate, key))
    }

    /// See [`crate::Builder::connect`].
    pub fn connect(self) -> Result<Redlock, Error> {
        Redlock::start(self.0.connect())
    }

    /// See [`crate::Builder::connect_lazy`].
    pub fn connect_lazy(self) -> Result<Redlock, Error> {
        Redlock::start(async move { self.0.connect_lazy() })
    }
}

/// A request for a lock; the options are those of [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Lock {
    inner: crate::Lock,
    background: Arc<Background>,
}

impl Lock {
    fn with(mut self, option: impl FnOnce(crate::Lock) -> crate::Lock) -> Self {
        self.inner = option(self.inner);
        self
    }

    /// See [`crate::Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|lock| lock.ttl(ttl))
    }

    /// See [`crate::Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|lock| lock.wait(wait))
    }

    /// See [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        self.with(crate::Lock::shared)
    }

    /// See [`crate::Lock::limit`].
    pub fn limit(self, holders: u32) -> Self {
        self.with(|lock| lock.limit(holders))
    }

    /// See [`crate::Lock::owner`].
    pub fn owner(self, owner: &Owner) -> Self {
        self.with(|lock| lock.owner(owner))
    }

    /// See [`crate::Lock::max_hold`].
    pub fn max_hold(self, cap: Duration) -> Self {
        self.with(|lock| lock.max_hold(cap))
    }

    /// See [`crate::Lock::ephemeral`].
    pub fn ephemeral(self) -> Self {
        self.with(crate::Lock::ephemeral)
    }

    /// See [`crate::Lock::renew`].
    pub fn renew(self, renew: bool) -> Self {
        self.with(|lock| lock.renew(renew))
    }

    /// See [`crate::Lock::replicas`].
    pub fn replicas(self, replicas: u32) -> Self {
        self.with(|lock| lock.replicas(replicas))
    }

    /// See [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard, Error> {
        let lock = self.inner.clone();
        let inner = self.background.run(async move { lock.acquire().await })?;
        Ok(self.guard(inner))
    }

    /// See [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Guard, Error> {
        let lock = self.inner.clone();
        let inner = self
            .background
            .run(async move { lock.try_acquire().await })?;
        Ok(self.guard(inner))
    }

    /// Runs `work` under the lock and releases it afterwards. A thread cannot be stopped: `work`
    /// has to look at [`Held::is_valid`] itself, and the error says if the lock was lost before the
    /// end.
    pub fn run<T>(&self, work: impl FnOnce(Held) -> T) -> Result<T, Error> {
        let guard = self.acquire()?;
        let held = guard.held();
        let done = work(held.clone());
        match guard.release() {
            Released::WasLost => Err(held.lost_error()),
            _ => Ok(done),
        }
    }

    fn guard(&self, inner: crate::Guard) -> Guard {
        Guard {
            held: inner.held(),
            inner: Some(inner),
            background: Arc::clone(&self.background),
        }
    }
}

/// A lock that is held. Dropping the last guard of a hold releases it before the drop returns,
/// wherever that is.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    /// Gone only once it is released.
    inner: Option<crate::Guard>,
    held: Held,
    background: Arc<Background>,
}

impl Guard {
    /// See [`crate::Guard::fence`].
    pub fn fence(&self) -> u64 {
        self.held.fence()
    }

    /// See [`crate::Guard::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.held.valid_until()
    }

    /// See [`crate::Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.held.is_valid()
    }

    /// Waits until the hold is over, and says why.
    pub fn lost(&self) -> crate::Loss {
        let held = self.held();
        self.background.run(async move { held.lost().await })
    }

    /// See [`crate::Guard::lost_token`].
    pub fn lost_token(&self) -> CancellationToken {
        self.held.lost_token()
    }

    /// See [`crate::Guard::held`].
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// See [`crate::Guard::token`].
    pub fn token(&self) -> Option<&[u8]> {
        self.inner.as_ref()?.token()
    }

    /// See [`crate::Guard::command`].
    pub fn command<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, Error> {
        let (held, command) = (self.held(), command.clone());
        let ran = self
            .background
            .run(async move { held.command(&command).await });
        redis::from_redis_value(ran?).map_err(|error| Error::Command(error.into()))
    }

    /// See [`crate::Guard::extend`].
    pub fn extend(&self) -> Result<Moment, Error> {
        let held = self.held();
        self.background.run(async move { held.extend(None).await })
    }

    /// See [`crate::Guard::extend_to`].
    pub fn extend_to(&self, ttl: Duration) -> Result<Moment, Error> {
        let held = self.held();
        self.background
            .run(async move { held.extend(Some(ttl)).await })
    }

    /// See [`crate::Guard::release`].
    pub fn release(mut self) -> Released {
        match self.inner.take() {
            Some(inner) => self.background.run(inner.release()),
            None => Released::Unknown,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.background.run(inner.release());
        }
    }
}
