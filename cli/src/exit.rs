//! How the tool ends when it does not end well: one sentence and a code.

use redislock_client::Error;

/// Asked wrongly, or of nodes that cannot serve (EX_USAGE).
pub const USAGE: u8 = 64;
/// The lock was lost while the command ran (EX_SOFTWARE).
pub const LOST: u8 = 70;
/// Something could not be written or read (EX_IOERR).
pub const IO: u8 = 74;
/// The lock was not had (EX_TEMPFAIL).
pub const NOT_HAD: u8 = 75;
/// As shells have it: the command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// As shells have it: there is no such command.
pub const NOT_FOUND: u8 = 127;

/// Why the tool ends: what to say, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub text: String,
}

impl Failure {
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }

    pub fn io(what: &str, error: &std::io::Error) -> Self {
        Self::new(IO, format!("{what}: {error}"))
    }

    /// Ended by a signal before there was anything to pass it on to.
    pub fn signalled(signal: nix::sys::signal::Signal) -> Self {
        Self::new(by_signal(signal as i32), format!("ended by {signal}"))
    }

    /// The nodes could not be connected to, or not be used as they are.
    pub fn connecting(error: Error) -> Self {
        match error {
            Error::NoQuorum { nodes, .. } => Self::usage(format!(
                "too few nodes can be reached ({nodes}): check --node or REDLOCK_NODES, and that the servers run"
            )),
            Error::Misconfigured { problem, nodes } => Self::usage(format!("{problem} ({nodes})")),
            Error::Invalid(problem) => Self::usage(problem),
            other => Self::usage(other.to_string()),
        }
    }

    /// The lock was not had; `conflict` is the code for that.
    pub fn acquiring(error: Error, conflict: u8) -> Self {
        match error {
            Error::Invalid(problem) => Self::usage(problem),
            Error::Refused { .. } => Self::usage(format!("{error}: asking again will not help")),
            other => Self::new(conflict, other.to_string()),
        }
    }
}

/// What shells report for a process that a signal ended.
pub fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
