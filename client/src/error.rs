//! Errors, with the verdict of each node. No error contains a token.

use std::fmt;
use std::time::Duration;

use redis::RedisError;

/// The result of one request on one node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// The node granted the lock with this fence, but too few others did.
    Granted {
        /// The fence of that grant.
        fence: u64,
    },
    /// Another client holds the lock there, or is ahead in its queue.
    Held {
        /// The label of the holder, if it gave one and the node replied in time.
        owner: Option<String>,
        /// How long the holder's lease still runs.
        remaining: Option<Duration>,
        /// The number of waiters there.
        waiters: u64,
    },
    /// The node has no record of this hold: it expired, was forced or flushed, or was lost.
    NotHeld,
    /// The node did not reply within its timeout.
    TimedOut(Duration),
    /// No connection to it, or the connection ended.
    Unreachable(RedisError),
    /// The node may have lost grants, and pauses granting.
    Quarantined {
        /// When to try again, if the node reported it.
        retry_in: Option<Duration>,
    },
    /// The key holds another type of value.
    WrongType,
    /// The server does not know the LOCK commands.
    ModuleMissing,
    /// The module there is older than this client needs.
    ModuleTooOld {
        /// The version that the node reports.
        version: String,
    },
    /// The node is a replica: only masters grant locks.
    Replica,
    /// It is the same server as another node of the list.
    SameAs {
        /// The other node.
        node: String,
    },
    /// Fewer replicas than asked for have confirmed the grant.
    NotReplicated {
        /// How many have.
        replicas: u64,
    },
    /// The node refused the request: [`RedisError::code`] has the reason.
    Refused(RedisError),
    /// The node sent an unexpected reply.
    Garbage(String),
    /// The node was not asked: it counts as down, or its reply could not change the result.
    NotAsked,
}

impl Verdict {
    /// Null for a request that did not wait. Details are added later, if they are needed.
    pub(crate) fn held_by_somebody() -> Self {
        Self::Held {
            owner: None,
            remaining: None,
            waiters: 0,
        }
    }

    /// The remaining time of somebody else's lease, if the node reported it.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Held { remaining, .. } => *remaining,
            _ => None,
        }
    }

    /// Whether a retry cannot help: somebody must change the request or the node.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::WrongType
            | Self::ModuleMissing
            | Self::ModuleTooOld { .. }
            | Self::SameAs { .. }
            | Self::Garbage(_) => true,
            Self::Refused(error) => !is_passing(error),
            _ => false,
        }
    }

    /// There is no connection, for a reason inside the client.
    pub(crate) fn unreachable(why: &'static str) -> Self {
        Self::Unreachable(RedisError::from((redis::ErrorKind::Io, why)))
    }

    fn cause(&self) -> Option<&RedisError> {
        match self {
            Self::Unreachable(error) | Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}

/// Errors of the server that are temporary.
fn is_passing(error: &RedisError) -> bool {
    const PASSING: [&str; 11] = [
        "LOADING",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "MASTERDOWN",
        "READONLY",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "BUSY",
        "UNBLOCKED",
        "LOCKFENCE",
    ];
    let full = |detail: &str| {
        let places = ["max number of clients", "the lock has as many holders"];
        places.iter().any(|text| detail.starts_with(text))
    };
    error.code().is_some_and(|code| PASSING.contains(&code)) || error.detail().is_some_and(full)
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { fence } => write!(out, "granted with fence {fence}"),
            Self::Held {
                owner,
                remaining,
                waiters,
            } => {
                out.write_str("held")?;
                if let Some(owner) = owner {
                    write!(out, " by {owner:?}")?;
                }
                if let Some(remaining) = remaining {
                    write!(out, " for another {} ms", remaining.as_millis())?;
                }
                if *waiters > 0 {
                    write!(out, ", {waiters} waiting")?;
                }
                Ok(())
            }
            Self::NotHeld => out.write_str("has no record of this hold"),
            Self::TimedOut(after) => write!(out, "no reply within {} ms", after.as_millis()),
            Self::Unreachable(why) => write!(out, "unreachable: {why}"),
            Self::Quarantined {
                retry_in: Some(left),
            } => {
                write!(out, "quarantined for another {} ms", left.as_millis())
            }
            Self::Quarantined { retry_in: None } => out.write_str("quarantined"),
            Self::WrongType => out.write_str("the key holds another type of value"),
            Self::ModuleMissing => out.write_str("the redislock module is not loaded"),
            Self::ModuleTooOld { version } => {
                write!(out, "the redislock module is too old ({version})")
            }
            Self::Replica => out.write_str("is a replica, not a master"),
            Self::SameAs { node } => write!(out, "is the same server as {node}"),
            Self::NotReplicated { replicas } => {
                write!(out, "only {replicas} replicas confirmed the grant")
            }
            Self::Refused(error) => match error.code() {
                Some(code) => write!(out, "refused: {code} {}", error.detail().unwrap_or("")),
                None => write!(out, "refused: {error}"),
            },
            Self::Garbage(text) => write!(out, "unexpected reply: {text}"),
            Self::NotAsked => out.write_str("not asked"),
        }
    }
}

/// A node and its verdict.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's address, without user and password.
    pub node: String,
    /// Its verdict.
    pub verdict: Verdict,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.node, self.verdict)
    }
}

impl std::error::Error for NodeReport {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.verdict.cause().map(|error| error as _)
    }
}

/// Every node of the client with its verdict, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports(pub(crate) Vec<NodeReport>);

impl Reports {
    /// The reports, one per node.
    pub fn iter(&self) -> impl Iterator<Item = &NodeReport> {
        self.0.iter()
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, report) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(out, "{separator}{report}")?;
        }
        Ok(())
    }
}

/// Why a hold is over.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// The last guard has released it, or was dropped.
    Released,
    /// The last guard was detached: the hold now belongs to the program that has its ticket.
    Detached,
    /// It was not renewed in time, or renewal is off: its validity is over or about to end.
    Expired {
        /// The last verdict of each node.
        nodes: Reports,
    },
    /// Too many nodes have no record of it: it was forced, or they have lost it.
    Gone {
        /// The last verdict of each node.
        nodes: Reports,
    },
    /// It was ephemeral, and its connection has ended.
    Disconnected,
}

/// Why a lock was not acquired, extended or kept.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Another client held the lock until the wait was over.
    Busy {
        /// The requested lock.
        lock: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// Too few nodes could be asked, or replied in time: it is unknown whether the lock is free.
    NoQuorum {
        /// The requested lock.
        lock: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// The hold ended without a release: it expired, was forced, or was lost by a majority.
    Lost {
        /// The lock that was held.
        lock: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// The nodes refuse this request permanently: another type of value, no permission, a limit.
    Refused {
        /// The requested lock.
        lock: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// The lock was granted and then released, because too few replicas confirmed it in time.
    NotReplicated {
        /// The requested lock.
        lock: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// The nodes cannot be used as configured: one server twice, a replica, no module.
    Misconfigured {
        /// What to change.
        problem: String,
        /// The verdict of each node.
        nodes: Reports,
    },
    /// The request or the settings are invalid; nothing was sent.
    Invalid(String),
    /// The command under the lock failed, although the lock was held.
    Command(RedisError),
}

/// Refuses an invalid request or setting, before anything is sent.
pub(crate) fn invalid_if(wrong: bool, problem: fmt::Arguments<'_>) -> Result<(), Error> {
    if wrong {
        Err(Error::Invalid(problem.to_string()))
    } else {
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { lock, nodes } => write!(out, "{lock} is held by another client ({nodes})"),
            Self::NoQuorum { lock, nodes } => write!(out, "no quorum for {lock} ({nodes})"),
            Self::Lost { lock, nodes } => write!(out, "{lock} was lost ({nodes})"),
            Self::Refused { lock, nodes } => write!(out, "{lock} was refused ({nodes})"),
            Self::NotReplicated { lock, nodes } => {
                write!(out, "{lock} was not replicated ({nodes})")
            }
            Self::Misconfigured { problem, nodes } => {
                write!(out, "misconfigured: {problem} ({nodes})")
            }
            Self::Invalid(problem) => write!(out, "invalid: {problem}"),
            Self::Command(error) => write!(out, "the command under the lock failed: {error}"),
        }
    }
}

impl std::error::Error for Error {
    /// The error of the command, or of the first node that had one; [`Error::nodes`] has the
    /// others.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Command(error) => Some(error),
            _ => {
                let mut causes = self
                    .nodes()
                    .iter()
                    .filter_map(|report| report.verdict.cause());
                causes.next().map(|error| error as _)
            }
        }
    }
}

impl Error {
    /// The verdict of each node; empty if no node was asked.
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            Self::Busy { nodes, .. }
            | Self::NoQuorum { nodes, .. }
            | Self::Lost { nodes, .. }
            | Self::Refused { nodes, .. }
            | Self::NotReplicated { nodes, .. }
            | Self::Misconfigured { nodes, .. } => &nodes.0,
            Self::Invalid(_) | Self::Command(_) => &[],
        }
    }
}
