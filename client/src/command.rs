//! What is sent: one place that knows the syntax of every command, and the token that proves
//! ownership.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::host::random;
use crate::spec::Spec;

/// Leases and waits are whole milliseconds: nothing shorter can be asked for.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);
/// The server refuses to wait for longer than this, a lifetime.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Room for the arguments of a usual request, so that it does not grow step by step.
const USUAL_ARGUMENTS: usize = 12;
/// Room for their bytes.
const USUAL_SIZE: usize = 160;
/// Keys that a node is asked to go through in one step of a listing.
#[cfg(feature = "observe")]
const SCAN_COUNT: usize = 1_000;

/// The owner's secret: 122 random bits, made for every attempt and never used again. Its bearer
/// owns the hold, so it is sent to the nodes and shown to nobody else.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 32]);

impl Token {
    /// A fresh token from the operating system's randomness.
    pub(crate) fn fresh() -> Self {
        let mut text = [0; 32];
        random().simple().encode_lower(&mut text);
        Self(text)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ToRedisArgs for Token {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(&self.0);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

/// A command, with the key that says where in a cluster it belongs.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) cmd: Cmd,
    #[cfg(feature = "cluster")]
    pub(crate) key: Option<Vec<u8>>,
}

impl Request {
    /// A command that belongs to this key; to every master if there is none.
    fn new(cmd: Cmd, _key: Option<&[u8]>) -> Self {
        Self {
            cmd,
            #[cfg(feature = "cluster")]
            key: _key.map(<[u8]>::to_vec),
        }
    }
}

/// Whether a request waits for a lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    Not,
    AtMost(Duration),
    Forever,
}

/// As the servers want it; never longer than asked for.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// `LOCK.NAME key …` or `LOCK.MNAME numkeys key [key …] …`; the rest is added by `arguments`.
fn request(
    keys: &[Vec<u8>],
    single: &str,
    several: &str,
    arguments: impl FnOnce(&mut Cmd),
) -> Request {
    let mut cmd = Cmd::with_capacity(USUAL_ARGUMENTS, USUAL_SIZE);
    match keys {
        [key] => cmd.arg(single).arg(key),
        keys => cmd.arg(several).arg(keys.len()).arg(keys),
    };
    arguments(&mut cmd);
    Request::new(cmd, keys.first().map(Vec::as_slice))
}

/// `LOCK.ACQUIRE key token ttl ONCE …`.
pub(crate) fn acquire(spec: &Spec, token: Token, fence: Option<u64>, wait: Wait) -> Request {
    request(&spec.keys, "LOCK.ACQUIRE", "LOCK.MACQUIRE", |cmd| {
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
        match wait {
            Wait::Not => {}
            // 0 would mean forever.
            Wait::AtMost(span) => {
                let span = span.clamp(SHORTEST, LONGEST_WAIT);
                cmd.arg("BLOCK").arg(millis(span));
            }
            Wait::Forever => {
                cmd.arg("BLOCK").arg(0);
            }
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
    })
}

/// `LOCK.EXTEND key token ttl [FENCE at-least]`.
pub(crate) fn extend(
    keys: &[Vec<u8>],
    token: impl ToRedisArgs,
    ttl: Duration,
    fence: Option<u64>,
) -> Request {
    request(keys, "LOCK.EXTEND", "LOCK.MEXTEND", |cmd| {
        cmd.arg(token).arg(millis(ttl));
        if let Some(fence) = fence {
            cmd.arg("FENCE").arg(fence);
        }
    })
}

/// `LOCK.RELEASE key token ALL`: repeatable, and cancels what of this token still waits.
pub(crate) fn release(keys: &[Vec<u8>], token: impl ToRedisArgs) -> Request {
    request(keys, "LOCK.RELEASE", "LOCK.MRELEASE", |cmd| {
        cmd.arg(token).arg("ALL");
    })
}

/// `LOCK.INFO key [COUNT holders]`.
pub(crate) fn info(key: &[u8], holders: Option<usize>) -> Request {
    let mut cmd = redis::cmd("LOCK.INFO");
    cmd.arg(key);
    if let Some(holders) = holders {
        cmd.arg("COUNT").arg(holders);
    }
    Request::new(cmd, Some(key))
}

/// `LOCK.GUARD key token command …`.
pub(crate) fn guard(key: &[u8], token: Token, command: &Cmd) -> Request {
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

/// `LOCK.FORCE key`.
#[cfg(feature = "observe")]
pub(crate) fn force(key: &[u8]) -> Request {
    let mut cmd = redis::cmd("LOCK.FORCE");
    cmd.arg(key);
    Request::new(cmd, Some(key))
}

/// `SCAN cursor TYPE redislock COUNT n [MATCH pattern]`.
#[cfg(feature = "observe")]
pub(crate) fn scan(cursor: &[u8], pattern: Option<&str>) -> Request {
    let mut cmd = redis::cmd("SCAN");
    cmd.arg(cursor).arg("TYPE").arg("redislock");
    cmd.arg("COUNT").arg(SCAN_COUNT);
    if let Some(pattern) = pattern {
        cmd.arg("MATCH").arg(pattern);
    }
    Request::new(cmd, None)
}

/// A command of the caller's own.
#[cfg(feature = "observe")]
pub(crate) fn any(cmd: &Cmd) -> Request {
    Request::new(cmd.clone(), None)
}

/// `CONFIG GET lock.quarantine`, of any one master.
pub(crate) fn quarantine_setting() -> Request {
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg("GET").arg("lock.quarantine");
    Request::new(cmd, Some(&[]))
}

/// `WAIT replicas milliseconds`, routed like the lock it follows.
pub(crate) fn wait(spec: &Spec, replicas: u32, patience: Duration) -> Request {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(millis(patience.max(SHORTEST)));
    Request::new(cmd, spec.keys.first().map(Vec::as_slice))
}

/// Whom to log in as, and with which password.
pub(crate) type Login<'a> = (Option<&'a str>, &'a str);

/// `AUTH [username] password`.
pub(crate) fn auth((username, password): Login<'_>) -> Cmd {
    let mut cmd = redis::cmd("AUTH");
    cmd.arg(username).arg(password);
    cmd
}

/// `HELLO 3 [AUTH username password]`.
pub(crate) fn hello(login: Option<Login<'_>>) -> Cmd {
    let mut cmd = redis::cmd("HELLO");
    cmd.arg(3);
    if let Some((username, password)) = login {
        let username = username.unwrap_or("default");
        cmd.arg("AUTH").arg(username).arg(password);
    }
    cmd
}

/// `SELECT database`.
pub(crate) fn select(database: i64) -> Cmd {
    let mut cmd = redis::cmd("SELECT");
    cmd.arg(database);
    cmd
}

/// `CLIENT SETNAME name`.
pub(crate) fn set_name(name: &str) -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("SETNAME").arg(name);
    cmd
}

/// `CLIENT SETINFO LIB-NAME name` or `… LIB-VER version`.
pub(crate) fn set_info(what: &str, value: &str) -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("SETINFO").arg(what).arg(value);
    cmd
}

/// `SENTINEL GET-MASTER-ADDR-BY-NAME name`.
#[cfg(feature = "sentinel")]
pub(crate) fn master_address(name: &str) -> Cmd {
    let mut cmd = redis::cmd("SENTINEL");
    cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    cmd
}

/// `ROLE`.
#[cfg(feature = "sentinel")]
pub(crate) fn role() -> Cmd {
    redis::cmd("ROLE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::fresh();
        let text = String::from_utf8(token.0.to_vec()).unwrap();
        assert!(!format!("{token:?}").contains(&text));
    }

    #[test]
    fn every_token_is_another() {
        assert_ne!(Token::fresh().0, Token::fresh().0);
    }
}
