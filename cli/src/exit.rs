//! Exit codes, and the one sentence that goes with a failure. The codes follow sysexits.h.

use redislock_client::{Error, NodeReport, Verdict};

use crate::remedy;

/// The answer is no: `status --check` found the lock held, or `force` was not confirmed.
pub const NO: u8 = 1;
/// Usage error (EX_USAGE).
pub const USAGE: u8 = 64;
/// Too few nodes can be reached or can grant locks (EX_UNAVAILABLE).
pub const UNAVAILABLE: u8 = 69;
/// The lock was lost (EX_SOFTWARE).
pub const LOST: u8 = 70;
/// Input/output error (EX_IOERR).
pub const IO: u8 = 74;
/// Another client holds the lock (EX_TEMPFAIL).
pub const BUSY: u8 = 75;
/// The command cannot be executed, as in shells.
pub const NOT_EXECUTABLE: u8 = 126;
/// Command not found, as in shells.
pub const NOT_FOUND: u8 = 127;

/// Why the tool fails: the message and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub text: String,
    /// Another client holds the lock: an expected result, which `--quiet` does not print.
    pub is_busy: bool,
    /// Only the exit code reports it.
    pub is_silent: bool,
}

impl Failure {
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            is_busy: false,
            is_silent: false,
        }
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }

    pub fn io(what: &str, error: &std::io::Error) -> Self {
        Self::new(IO, format!("{what}: {error}"))
    }

    /// Ended by a signal while no command ran that it could be passed on to.
    pub fn signalled(signal: nix::sys::signal::Signal) -> Self {
        Self::new(by_signal(signal as i32), format!("ended by {signal}"))
    }

    /// No node replied: each node with its problem. Only the problems decide the advice: a name may
    /// contain any word.
    pub fn no_node_replies(nodes: &[(String, String)]) -> Self {
        let mut known = nodes.iter().filter_map(|(_, why)| remedy::known(why));
        let fix = known.next();
        let fix = fix.unwrap_or("check --node or REDLOCK_NODES, and that the servers run");
        let why = nodes.iter().map(|(node, why)| format!("{node}: {why}"));
        let why = why.collect::<Vec<_>>().join("; ");
        Self::nothing_replies(&why, fix)
    }

    /// Nothing replied, for this reason.
    pub fn no_reply(why: &str) -> Self {
        let fix = remedy::known(why);
        let fix = fix.unwrap_or("check --node or REDLOCK_NODES, and that the servers run");
        Self::nothing_replies(why, fix)
    }

    fn nothing_replies(why: &str, fix: &str) -> Self {
        Self::new(UNAVAILABLE, format!("no node replies ({why}): {fix}"))
    }

    /// The nodes could not be connected to, or cannot be used as they are.
    pub fn connecting(error: Error) -> Self {
        match error {
            Error::NoQuorum { nodes, .. } => Self::new(
                UNAVAILABLE,
                format!(
                    "too few nodes can be reached ({nodes}): check --node or REDLOCK_NODES, and \
                     that the servers run"
                ),
            ),
            Error::Misconfigured { problem, nodes } => {
                let listed_twice = nodes.iter().any(|node| is_listed_twice(&node.verdict));
                let code = if listed_twice { USAGE } else { UNAVAILABLE };
                Self::new(code, format!("{problem} ({nodes})"))
            }
            Error::Invalid(problem) => Self::usage(problem),
            other => Self::new(UNAVAILABLE, other.to_string()),
        }
    }

    /// The lock was not acquired or extended; `conflict` is the code if another client holds it.
    pub fn acquiring(error: Error, conflict: u8) -> Self {
        match error {
            Error::Invalid(problem) => Self::usage(problem),
            Error::Refused { .. } => {
                let wrong_request = error.nodes().iter().any(|node| is_usage(&node.verdict));
                let code = if wrong_request { USAGE } else { UNAVAILABLE };
                Self::new(code, format!("{error}: retrying will not help"))
            }
            Error::NoQuorum { .. } if cannot_serve(error.nodes()) => {
                Self::new(UNAVAILABLE, error.to_string())
            }
            other => Self {
                is_busy: true,
                ..Self::new(conflict, other.to_string())
            },
        }
    }
}

fn is_listed_twice(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::SameAs { .. })
}

/// The request itself is wrong: the name of a key that is not a lock, or a lease that is too long.
fn is_usage(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::WrongType => true,
        Verdict::Refused(error) => {
            let ttl = |detail: &str| detail.contains("ttl");
            error.code() == Some("LOCKLIMIT") && error.detail().is_some_and(ttl)
        }
        _ => false,
    }
}

/// Whether so many nodes are unable to grant anything that no client can get a majority.
fn cannot_serve(nodes: &[NodeReport]) -> bool {
    let can = |verdict: &Verdict| matches!(verdict, Verdict::Granted { .. } | Verdict::Held { .. });
    let able = nodes.iter().filter(|node| can(&node.verdict)).count();
    able < nodes.len() / 2 + 1
}

/// The code that shells report for a process that a signal ended.
pub fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_node_does_not_decide_the_advice() {
        let at = |node: &str, why: &str| (node.to_owned(), why.to_owned());
        let down = at("redis-module-1:6379", "unreachable: connection refused");
        let failure = Failure::no_node_replies(std::slice::from_ref(&down));
        assert!(failure.text.contains("redis-module-1:6379: unreachable"));
        assert!(failure.text.contains("REDLOCK_NODES"), "{}", failure.text);
        let other = at("b:6379", "the module is not loaded");
        let failure = Failure::no_node_replies(&[down, other]);
        assert!(failure.text.contains("loadmodule"), "{}", failure.text);
    }
}
