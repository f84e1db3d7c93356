//! A master that Sentinel names.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::settings::Credentials;
use super::{Server, in_time};
use crate::command;
use crate::host::locked;

/// The Sentinels of one master.
pub(crate) struct Sentinel {
    pub(crate) name: String,
    /// At least one.
    pub(crate) sentinels: Vec<Server>,
    /// For Sentinels that require a password, if none was set for them.
    pub(crate) same_login: Option<Credentials>,
    /// The settings of the master; its address comes from the Sentinels.
    pub(crate) master: Server,
    known: Mutex<Option<Server>>,
    /// The Sentinel that gave the last good answer.
    first: AtomicUsize,
}

impl Sentinel {
    pub(crate) fn new(
        name: String,
        sentinels: Vec<Server>,
        same_login: Option<Credentials>,
        master: Server,
    ) -> Self {
        Self {
            name,
            sentinels,
            same_login,
            master,
            known: Mutex::default(),
            first: AtomicUsize::new(0),
        }
    }

    /// Asks one Sentinel after the other until one names a server that can be reached and is a
    /// master: after a failover some of them know it earlier than others.
    pub(crate) async fn open(&self, patience: Duration) -> RedisResult<MultiplexedConnection> {
        let all = self.sentinels.len();
        // One Sentinel that does not answer must not use up the time for the others.
        let share = patience / u32::try_from(all + 1).unwrap_or(u32::MAX);
        let first = self.first.load(Ordering::Relaxed);
        let mut tried = HashSet::new();
        let mut problem = None;
        for place in (first..first + all).map(|place| place % all) {
            let sentinel = &self.sentinels[place];
            let found = match self.master_of(sentinel, share).await {
                Ok((host, port)) if tried.insert((host.clone(), port)) => {
                    let master = self.master.at(host, port);
                    opened(&master, share).await.map(|opened| (master, opened))
                }
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            match found {
                Ok((master, connection)) => {
                    self.first.store(place, Ordering::Relaxed);
                    *locked(&self.known) = Some(master);
                    return Ok(connection);
                }
                Err(error) => problem = Some(error),
            }
        }
        Err(problem.unwrap_or_else(|| RedisError::from((ErrorKind::Io, "no Sentinel answers"))))
    }

    /// One more connection to the master that was found last; the Sentinels are not asked again.
    pub(crate) async fn open_another(
        &self,
        patience: Duration,
    ) -> RedisResult<MultiplexedConnection> {
        let known = locked(&self.known).clone();
        match known {
            Some(master) => master.open(patience).await,
            None => self.open(patience).await,
        }
    }

    /// The address of the master, as this Sentinel reports it.
    async fn master_of(&self, sentinel: &Server, share: Duration) -> RedisResult<(String, u16)> {
        let mut connection = sentinel.open(share).await?;
        let question = command::master_address(&self.name);
        let asking = async {
            let answer = question.query_async(&mut connection).await;
            match (answer, &self.same_login) {
                (Err(error), Some(login)) if error.code() == Some("NOAUTH") => {
                    command::auth(login.parts())
                        .exec_async(&mut connection)
                        .await?;
                    question.query_async(&mut connection).await
                }
                (answer, _) => answer,
            }
        };
        let answer: Option<(String, u16)> = in_time(share, asking).await?;
        answer.ok_or_else(|| {
            let detail = format!("{:?} at Sentinel {}", self.name, sentinel.address());
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            RedisError::from((kind, "Sentinel knows no master of this name", detail))
        })
    }
}

/// A connection to a server that does not report that it is a replica. Its other answers are
/// checked later.
async fn opened(server: &Server, share: Duration) -> RedisResult<MultiplexedConnection> {
    let mut connection = server.open(share).await?;
    let role = command::role();
    match in_time(share, connection.send_packed_command(&role)).await {
        Ok(Value::Array(items)) if items.first() == Some(&Value::BulkString(b"slave".to_vec())) => {
            let problem = "the server that Sentinel names is a replica: a failover is under way";
            Err(RedisError::from((
                ErrorKind::Client,
                problem,
                server.address(),
            )))
        }
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(connection),
    }
}
