//! A user and a password, and where a client gets them from.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult};

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

    /// Those of a URL, if it has a password.
    pub(crate) fn of(info: &redis::ConnectionInfo) -> Option<Self> {
        let settings = info.redis_settings();
        Some(Self {
            username: settings.username().map(str::to_owned),
            password: settings.password()?.to_owned(),
        })
    }

    /// `AUTH [username] password`.
    pub(crate) fn command(&self) -> redis::Cmd {
        let mut auth = redis::cmd("AUTH");
        auth.arg(&self.username).arg(&self.password);
        auth
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

    /// The present credentials. A provider that fails makes the node unreachable for now: it may
    /// have them the next time.
    pub(crate) async fn ask(&self) -> RedisResult<Credentials> {
        let failed = |error: Failure| {
            let what = "no credentials for the connection";
            RedisError::from((ErrorKind::Client, what, error.to_string()))
        };
        (self.0)().await.map_err(failed)
    }
}
