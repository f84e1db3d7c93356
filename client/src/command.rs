//! Requests, which are checked before anything is sent, and the syntax of every command.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use crate::error::{Error, invalid_if};
use crate::host::random;

/// The default lease.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The default node timeout: small compared with the default ttl.
pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// The default connect timeout.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// No node allows a longer lease, whatever its settings are.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(7 * 86_400);
/// A ttl must be longer than this many node timeouts: one round, one write-back, and time to use
/// the lock.
pub(crate) const TTL_IN_NODE_TIMEOUTS: u32 = 3;
/// The longest owner label that the server accepts.
pub(crate) const MAX_LABEL: usize = 256;
/// Leases and waits are whole milliseconds: nothing shorter can be asked for.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);
/// The longest wait that the server accepts: a century.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Room for the arguments of a usual request, so that the buffer does not grow step by step.
const USUAL_ARGUMENTS: usize = 12;
/// Room for their bytes.
const USUAL_SIZE: usize = 160;
/// The number of keys that a node scans in one step of a listing.
#[cfg(feature = "observe")]
const SCAN_COUNT: usize = 1_000;

/// Everything about a request but its token and its fence.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) ttl: Duration,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) ephemeral: bool,
    pub(crate) label: Option<String>,
    pub(crate) replicas: Option<u32>,
    pub(crate) renew: bool,
}

impl Spec {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Self {
        Self {
            keys,
            ttl: DEFAULT_TTL,
            shared: false,
            limit: None,
            max_hold: None,
            ephemeral: false,
            label: None,
            replicas: None,
            renew: true,
        }
    }

    /// The lock's name for messages: any bytes, made readable.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self
            .keys
            .iter()
            .map(|key| key.escape_ascii().to_string())
            .collect();
        format!("lock {}", names.join(", "))
    }

    /// Checks this request, for a client with `nodes` nodes and this `node_timeout`.
    pub(crate) fn check(&self, nodes: usize, node_timeout: Duration) -> Result<(), Error> {
        let none = self.keys.is_empty();
        invalid_if(none, format_args!("no lock is named: give at least one"))?;
        for (place, key) in self.keys.iter().enumerate() {
            let twice = self.keys[..place].contains(key);
            let key = key.escape_ascii();
            invalid_if(twice, format_args!("lock {key} is named twice"))?;
        }
        check_ttl(self.ttl, node_timeout)?;
        self.check_options(nodes)
    }

    /// Checks for options that are invalid or contradict each other.
    fn check_options(&self, nodes: usize) -> Result<(), Error> {
        invalid_if(
            self.max_hold.is_some_and(|cap| cap < self.ttl),
            format_args!("max_hold is shorter than the ttl: raise it or ask for a shorter lease"),
        )?;
        invalid_if(
            self.limit.is_some() && !self.shared,
            format_args!("limit needs shared: a semaphore is a shared lock"),
        )?;
        invalid_if(
            self.limit == Some(0),
            format_args!("limit must be 1 or more"),
        )?;
        invalid_if(
            nodes > 1 && self.limit.is_some(),
            format_args!(
                "limit needs a single node, this client has {nodes}: a semaphore cannot span nodes"
            ),
        )?;
        invalid_if(
            nodes > 1 && self.ephemeral,
            format_args!("ephemeral needs a single node, this client has {nodes}"),
        )?;
        invalid_if(
            self.label.iter().any(|label| label.len() > MAX_LABEL),
            format_args!("the owner's label is longer than {MAX_LABEL} bytes"),
        )?;
        invalid_if(
            self.replicas == Some(0),
            format_args!("replicas must be 1 or more: omit it to wait for no replica"),
        )?;
        invalid_if(
            self.replicas.is_some() && self.ephemeral,
            format_args!(
                "replicas and ephemeral exclude each other: an ephemeral hold ends with its \
                 connection"
            ),
        )
    }
}

/// Checks the length of a lease.
pub(crate) fn check_ttl(ttl: Duration, node_timeout: Duration) -> Result<(), Error> {
    let shortest = node_timeout.saturating_mul(TTL_IN_NODE_TIMEOUTS);
    invalid_if(
        ttl <= shortest,
        format_args!(
            "a ttl of {ttl:?} is too short for a node timeout of {node_timeout:?}: it must be \
             longer than {shortest:?}"
        ),
    )?;
    invalid_if(
        ttl < SHORTEST,
        format_args!("a ttl below a millisecond is too short: leases are whole milliseconds"),
    )?;
    invalid_if(
        ttl > LONGEST_TTL,
        format_args!(
            "a ttl of {ttl:?} is longer than any node allows: ask for {LONGEST_TTL:?} at most, \
             and let it be renewed"
        ),
    )
}

/// The owner's secret: 122 random bits, new for every attempt and never reused. A client that
/// knows it can extend and release the hold, so it is sent only to the nodes and never shown. It is
/// the text of a UUID, because servers save a lock with such a token fastest and in the least room.
#[derive(Clone, Copy)]
pub(crate) struct Token([u8; 36]);

impl Token {
    /// A fresh token from the operating system's randomness.
    pub(crate) fn fresh() -> Self {
        let mut text = [0; 36];
        random().hyphenated().encode_lower(&mut text);
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

/// A command, with the key that decides where in a cluster it goes.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) cmd: Cmd,
    /// How many keys the reply is about.
    pub(crate) keys: usize,
    #[cfg(feature = "cluster")]
    pub(crate) key: Option<Vec<u8>>,
}

impl Request {
    /// A command for this key; without a key, it goes to every master.
    fn new(cmd: Cmd, _key: Option<&[u8]>) -> Self {
        Self {
            cmd,
            keys: 1,
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

/// In the unit of the servers, rounded down.
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
    Request {
        keys: keys.len(),
        ..Request::new(cmd, keys.first().map(Vec::as_slice))
    }
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

/// `LOCK.RELEASE key token ALL`: it may be repeated, and also cancels pending requests of this
/// token.
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

/// A command of the caller.
#[cfg(feature = "observe")]
pub(crate) fn any(cmd: &Cmd) -> Request {
    Request::new(cmd.clone(), None)
}

/// `WAIT replicas milliseconds`, routed like the lock it follows.
pub(crate) fn wait(spec: &Spec, replicas: u32, patience: Duration) -> Request {
    let mut cmd = redis::cmd("WAIT");
    cmd.arg(replicas).arg(millis(patience.max(SHORTEST)));
    Request::new(cmd, spec.keys.first().map(Vec::as_slice))
}

/// The user to log in as, and the password.
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
mod tests;
