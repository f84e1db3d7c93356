//! What can go wrong, node by node. Nothing here ever carries a token.

use std::fmt;
use std::time::Duration;

use redis::RedisError;

/// What one node said to one question.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It granted, with this fence; too few others did.
    Granted {
        /// The fence of that grant.
        fence: u64,
    },
    /// Somebody else holds the lock there, or is ahead in its queue.
    Held {
        /// The label of the holder, if it gave one and the node told it in time.
        owner: Option<String>,
        /// How long the holder's lease still runs.
        remaining: Option<Duration>,
        /// How many wait there.
        waiters: u64,
    },
    /// It does not know this hold (any more): expired, forced, flushed or forgotten.
    NotHeld,
    /// No answer within the node's timeout.
    TimedOut(Duration),
    /// No connection to it, or the connection ended.
    Unreachable(RedisError),
    /// It may have forgotten grants, and gives none for this long.
    Quarantined {
        /// When to ask again, if the node said so.
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
    /// It is a replica: locks are taken on masters.
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
    /// It refused the request: [`RedisError::code`] says why.
    Refused(RedisError),
    /// It answered something that is no answer to the question.
    Garbage(String),
    /// It was not asked: believed down, or the answer was decided without it.
    NotAsked,
}

impl Verdict {
    /// Null to a request that did not wait: details come later, if anybody wants them.
    pub(crate) fn held_by_somebody() -> Self {
        Self::Held {
            owner: None,
            remaining: None,
            waiters: 0,
        }
    }

    /// How long somebody else's lease still runs, as far as the node told.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Held { remaining, .. } => *remaining,
            _ => None,
        }
    }

    /// Asking again later cannot help: somebody has to change the request or the node.
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

    /// There is no connection, for a reason of our own.
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

/// Refusals of the server that end by themselves.
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
            Self::NotHeld => out.write_str("does not know this hold"),
            Self::TimedOut(after) => write!(out, "no answer within {} ms", after.as_millis()),
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
    /// What it said.
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
    /// The reports, one a node.
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
    /// The last guard has left it to the bearer of its ticket.
    Detached,
    /// It could not be renewed in time, or was not to be: its validity is over or about to end.
    Expired {
        /// What each node said last.
        nodes: Reports,
    },
    /// Too many nodes do not know it any more: it was forced, or they have forgotten it.
    Gone {
        /// What each node said last.
        nodes: Reports,
    },
    /// It was ephemeral, and its connection has ended.
    Disconnected,
}

/// Why a lock was not acquired, extended or kept.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds the lock, and did so until the wait was over.
    Busy {
        /// The lock asked for.
        lock: String,
        /// What each node said.
        nodes: Reports,
    },
    /// Too few nodes could be asked, or answered in time: nobody knows whether the lock is free.
    NoQuorum {
        /// The lock asked for.
        lock: String,
        /// What each node said.
        nodes: Reports,
    },
    /// The hold is over, though nobody released it: expired, forced, or forgotten by a majority.
    Lost {
        /// The lock that was held.
        lock: String,
        /// What each node said.
        nodes: Reports,
    },
    /// The nodes refuse this request and will go on doing so: another type of value, no permission,
    /// a limit.
    Refused {
        /// The lock asked for.
        lock: String,
        /// What each node said.
        nodes: Reports,
    },
    /// The lock was granted, then released, as too few replicas confirmed it in time.
    NotReplicated {
        /// The lock asked for.
        lock: String,
        /// What each node said.
        nodes: Reports,
    },
    /// The nodes cannot serve as they are: one server twice, a replica, no module.
    Misconfigured {
        /// What to change.
        problem: String,
        /// What each node said.
        nodes: Reports,
    },
    /// The request or the settings make no sense; nothing was sent.
    Invalid(String),
    /// The command that was to run under the lock failed, though the lock was held.
    Command(RedisError),
}

/// Refuses what makes no sense, before anything is sent.
pub(crate) fn invalid_if(wrong: bool, problem: fmt::Arguments<'_>) -> Result<(), Error> {
    match wrong {
        true => Err(Error::Invalid(problem.to_string())),
        false => Ok(()),
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
    /// What each node said; nothing where no node was asked.
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
