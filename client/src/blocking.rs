//! The same API for programs without an async runtime. (`Builder::observe`, which inspects nodes,
//! is for tools, and async only.)
//!
//! A thread of the client does the work. Every function may be called anywhere, also inside another
//! runtime; there it blocks the calling thread.
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

use std::ops::Deref;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, Held, Moment, Owner, Released};

/// How long the thread outlives its client, to deliver releases.
const LINGER: Duration = Duration::from_secs(30);
/// How often it checks whether they are delivered.
const LOOK: Duration = Duration::from_millis(5);

/// A client of one or several masters, with its own thread.
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
        let inner = crate::Redlock::builder();
        Builder { inner }
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

/// Passes these settings on to the asynchronous type that has them.
macro_rules! settings_of {
    ($inner:ident: $($(#[$when:meta])* $name:ident($($value:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("See [`crate::", stringify!($inner), "::", stringify!($name), "`].")]
        $(#[$when])*
        pub fn $name(mut self, $($value: $type),*) -> Self {
            self.inner = self.inner.$name($($value),*);
            self
        }
    )*};
}

/// The settings of a client that is not connected yet; they are those of [`crate::Builder`].
#[derive(Clone)]
pub struct Builder {
    inner: crate::Builder,
}

impl Builder {
    settings_of! { Builder:
        node(url: impl AsRef<str>);
        nodes(urls: impl IntoIterator<Item = impl AsRef<str>>);
        node_info(info: redis::ConnectionInfo);
        node_client(client: &redis::Client);
        #[cfg(feature = "sentinel")]
        sentinel(name: impl Into<String>, urls: impl IntoIterator<Item = impl AsRef<str>>);
        #[cfg(feature = "sentinel")]
        sentinel_credentials(credentials: crate::Credentials);
        #[cfg(all(feature = "sentinel", feature = "tls"))]
        sentinel_master_tls();
        #[cfg(feature = "cluster")]
        cluster(urls: impl IntoIterator<Item = impl AsRef<str>>);
        node_timeout(timeout: Duration);
        connect_timeout(timeout: Duration);
        client_name(name: impl AsRef<str>);
        metrics(metrics: impl crate::Metrics);
        #[cfg(feature = "tls")]
        root_certificate(pem: impl Into<Vec<u8>>);
        #[cfg(feature = "tls")]
        client_certificate(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>);
    }

    /// See [`crate::Builder::credentials`]; here the provider may block.
    pub fn credentials<E>(
        mut self,
        provider: impl Fn() -> Result<crate::Credentials, E> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let provider = Arc::new(provider);
        self.inner = self.inner.credentials(move || {
            let provider = Arc::clone(&provider);
            async move {
                let asked = tokio::task::spawn_blocking(move || provider().map_err(Into::into));
                asked.await.unwrap_or_else(|ended| Err(ended.into()))
            }
        });
        self
    }

    /// See [`crate::Builder::connect`].
    pub fn connect(self) -> Result<Redlock, Error> {
        Redlock::start(self.inner.connect())
    }

    /// See [`crate::Builder::connect_lazy`].
    pub fn connect_lazy(self) -> Result<Redlock, Error> {
        Redlock::start(async move { self.inner.connect_lazy() })
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
    settings_of! { Lock:
        ttl(ttl: Duration);
        wait(wait: Duration);
        shared();
        limit(holders: u32);
        owner(owner: &Owner);
        max_hold(cap: Duration);
        ephemeral();
        renew(renew: bool);
        replicas(replicas: u32);
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
    /// must check [`Held::is_valid`] itself. If the lock was lost before the end, the result is an
    /// error.
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

/// A lock that is held. It dereferences to its view ([`Held`]). Dropping the last guard of a hold
/// releases the lock before the drop returns.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    /// `None` only after the release.
    inner: Option<crate::Guard>,
    held: Held,
    background: Arc<Background>,
}

impl Guard {
    /// Waits until the hold is over, and returns the reason.
    pub fn lost(&self) -> crate::Loss {
        let held = self.held();
        self.background.run(async move { held.lost().await })
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

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            // A second panic would end the process.
            let _ = self.background.try_run(inner.release());
        }
    }
}

/// The thread that does the work, with its own runtime. It ends with the last handle.
#[derive(Debug)]
struct Background {
    runtime: Handle,
    _stop: DropGuard,
}

impl Background {
    fn start() -> std::io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = move || {
            runtime.block_on(async {
                stopped.cancelled().await;
                let tasks = runtime.metrics();
                let rest = async {
                    while tasks.num_alive_tasks() > 0 {
                        tokio::time::sleep(LOOK).await;
                    }
                };
                let _ = tokio::time::timeout(LINGER, rest).await;
            });
        };
        let thread = std::thread::Builder::new().name("redislock".to_owned());
        thread.spawn(work)?;
        Ok(Arc::new(Self {
            runtime: handle,
            _stop: stop.drop_guard(),
        }))
    }

    /// Runs the work on the thread, and waits for its result. This only blocks the calling thread,
    /// while `block_on` panics inside another runtime.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let done = self.try_run(work);
        done.expect("the thread of the blocking client panicked")
    }

    /// The same; `None` if the work has panicked.
    fn try_run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The caller waits for it.
            let _ = sender.send(work.await);
        });
        receiver.recv().ok()
    }
}
