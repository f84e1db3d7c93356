//! The words of the wire: one place that knows the syntax of the LOCK commands.

use std::time::Duration;

use redis::Cmd;

use crate::options::Spec;
use crate::token::Token;

/// A command, with the key that says where in a cluster it belongs.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) cmd: Cmd,
    #[cfg(feature = "cluster")]
    pub(crate) key: Option<Vec<u8>>,
}

impl Request {
    /// A command that belongs to this key; to every master if there is none.
    pub(crate) fn new(cmd: Cmd, _key: Option<&Vec<u8>>) -> Self {
        Self {
            cmd,
            #[cfg(feature = "cluster")]
            key: _key.cloned(),
        }
    }
}

/// Whole milliseconds, as the wire wants them; never a longer lease than asked for.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// `LOCK.NAME key` or `LOCK.MNAME numkeys key [key …]`.
fn about(spec: &Spec, single: &str, several: &str) -> Cmd {
    match spec.keys.as_slice() {
        [key] => {
            let mut cmd = redis::cmd(single);
            cmd.arg(key);
            cmd
        }
        keys => {
            let mut cmd = redis::cmd(several);
            cmd.arg(keys.len()).arg(keys);
            cmd
        }
    }
}

fn request(spec: &Spec, cmd: Cmd) -> Request {
    Request::new(cmd, spec.keys.first())
}

/// `LOCK.ACQUIRE … ONCE`, without waiting, or with BLOCK for at most so many milliseconds (0:
/// forever).
pub(crate) fn acquire(
    spec: &Spec,
    token: Token,
    fence: Option<u64>,
    block: Option<u64>,
) -> Request {
    let mut cmd = about(spec, "LOCK.ACQUIRE", "LOCK.MACQUIRE");
    cmd.arg(token).arg(millis(spec.ttl)).arg("ONCE");
    if spec.shared {
        cmd.arg("SHARED");
    }
    if let Some(limit) = spec.limit {
        cmd.arg("LIMIT").arg(limit);
    }
    if let Some(fence) = fence {
        cmd.arg("FENCE").arg(fence);
    }
    if let Some(patience) = block {
        cmd.arg("BLOCK").arg(patience);
    }
    if let Some(cap) = spec.max_hold {
        cmd.arg("MAXHOLD").arg(millis(cap));
    }
    if spec.ephemeral {
        cmd.arg("EPHEMERAL");
    }
    if let Some(label) = &spec.label {
        cmd.arg("OWNER").arg(label);
    }
    request(spec, cmd)
}

/// `LOCK.EXTEND key token ttl [FENCE at-least]`.
pub(crate) fn extend(spec: &Spec, token: Token, ttl: Duration, fence: Option<u64>) -> Request {
    let mut cmd = about(spec, "LOCK.EXTEND", "LOCK.MEXTEND");
    cmd.arg(token).arg(millis(ttl));
    if let Some(fence) = fence {
        cmd.arg("FENCE").arg(fence);
    }
    request(spec, cmd)
}

/// `LOCK.RELEASE key token ALL`: repeatable, and cancels what of this token still waits.
pub(crate) fn release(spec: &Spec, token: Token) -> Request {
    let mut cmd = about(spec, "LOCK.RELEASE", "LOCK.MRELEASE");
    cmd.arg(token).arg("ALL");
    request(spec, cmd)
}

/// `LOCK.RELEASE key token ALL`, for a token that came from outside.
#[cfg(feature = "observe")]
pub(crate) fn release_ticket(key: &[u8], token: &[u8]) -> Request {
    let mut cmd = redis::cmd("LOCK.RELEASE");
    cmd.arg(key).arg(token).arg("ALL");
    Request::new(cmd, Some(&key.to_vec()))
}

/// `LOCK.EXTEND key token ttl`, for a token that came from outside.
#[cfg(feature = "observe")]
pub(crate) fn extend_ticket(key: &[u8], token: &[u8], ttl: Duration) -> Request {
    let mut cmd = redis::cmd("LOCK.EXTEND");
    cmd.arg(key).arg(token).arg(millis(ttl));
    Request::new(cmd, Some(&key.to_vec()))
}

/// `LOCK.INFO key [COUNT holders]`.
pub(crate) fn info(key: &Vec<u8>, holders: Option<usize>) -> Request {
    let mut cmd = redis::cmd("LOCK.INFO");
    cmd.arg(key);
    if let Some(holders) = holders {
        cmd.arg("COUNT").arg(holders);
    }
    Request::new(cmd, Some(key))
}

/// `LOCK.GUARD key token command …`.
pub(crate) fn guard(key: &Vec<u8>, token: Token, command: &Cmd) -> Request {
    let mut cmd = redis::cmd("LOCK.GUARD");
    cmd.arg(key).arg(token);
    for arg in command.args_iter() {
        match arg {
            redis::Arg::Simple(bytes) => cmd.arg(bytes),
            _ => cmd.arg(0),
        };
    }
    Request::new(cmd, Some(key))
}

/// `LOCK.NODE`.
pub(crate) fn node() -> Request {
    Request::new(redis::cmd("LOCK.NODE"), None)
}

/// `WAIT replicas milliseconds`, routed like the lock it follows.
pub(crate) fn wait(spec: &Spec, replicas: u32, patience: Duration) -> Request {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(millis(patience).max(1));
    request(spec, cmd)
}
