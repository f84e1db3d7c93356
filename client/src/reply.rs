//! Parsing of replies: to the commands that acquire, extend and release, to LOCK.NODE and to
//! LOCK.INFO.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::error::Verdict;
use crate::host::Moment;

/// The oldest module that this client can use: major, minor.
const OLDEST_MODULE: (u64, u64) = (0, 1);

/// The rule for all replies: a positive number means yes, null means "not held", everything else is
/// trouble.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Yes(u64),
    No,
    /// Something is held, but not exactly what the request was about: only some of several keys, or
    /// a later grant.
    Part,
    Trouble(Verdict),
}

impl From<Verdict> for Reply {
    fn from(verdict: Verdict) -> Self {
        Self::Trouble(verdict)
    }
}

impl Reply {
    /// Reads the reply of a LOCK command about this many keys: a number for one key, otherwise an
    /// array with one number for each key; null if none is held.
    pub(crate) fn read(result: RedisResult<Value>, keys: usize) -> Self {
        Self::of(value_of(result), keys)
    }

    /// The same for a reply that was checked for errors.
    pub(crate) fn of(answer: Result<Value, Verdict>, keys: usize) -> Self {
        match answer {
            Err(verdict) => Self::Trouble(verdict),
            Ok(Value::Nil) => Self::No,
            Ok(Value::Int(number)) if keys == 1 => number_of(number),
            Ok(Value::Array(items)) if keys > 1 && items.len() == keys => Self::all(items),
            Ok(_) => Self::Trouble(Verdict::Garbage(
                "neither null nor a number for each key".to_owned(),
            )),
        }
    }

    /// Several keys are held only if each of them is; their common number is the highest.
    fn all(items: Vec<Value>) -> Self {
        let (mut highest, mut missing) = (None, false);
        for item in items {
            match Self::read(Ok(item), 1) {
                Self::Yes(number) => highest = highest.max(Some(number)),
                Self::No => missing = true,
                other => return other,
            }
        }
        match (highest, missing) {
            (Some(number), false) => Self::Yes(number),
            (Some(_), true) => Self::Part,
            (None, _) => Self::No,
        }
    }

    /// The verdict for an error message. `no` is the meaning of null for this request.
    pub(crate) fn verdict(self, no: Verdict) -> Verdict {
        match self {
            Self::Yes(fence) => Verdict::Granted { fence },
            Self::No | Self::Part => no,
            Self::Trouble(verdict) => verdict,
        }
    }
}

/// The value of a reply, or its error as a verdict.
pub(crate) fn value_of(result: RedisResult<Value>) -> Result<Value, Verdict> {
    match result {
        Ok(Value::ServerError(error)) => Err(trouble(&error.into())),
        Ok(value) => Ok(value),
        Err(error) => Err(trouble(&error)),
    }
}

/// Whether this is how version 0.1.0 of the module answers LOCK.INFO with COUNT.
pub(crate) fn knows_no_count(answer: &Result<Value, Verdict>) -> bool {
    matches!(answer, Err(Verdict::Refused(error)) if error.code() == Some("ERR"))
}

fn number_of(number: i64) -> Reply {
    match u64::try_from(number) {
        Ok(number) if number > 0 => Reply::Yes(number),
        _ => Reply::Trouble(Verdict::Garbage("a number below one".to_owned())),
    }
}

/// The verdict for an error of the server or of the connection.
pub(crate) fn trouble(error: &RedisError) -> Verdict {
    let detail = error.detail().unwrap_or_default();
    match (error.kind(), error.code()) {
        (_, Some("QUARANTINE")) => Verdict::Quarantined {
            retry_in: milliseconds_in(detail),
        },
        (_, Some("WRONGTYPE")) => Verdict::WrongType,
        (ErrorKind::Server(ServerErrorKind::ResponseError), _)
            if detail.starts_with("unknown command") =>
        {
            Verdict::ModuleMissing
        }
        (_, Some(_)) | (ErrorKind::AuthenticationFailed, None) => Verdict::Refused(error.clone()),
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, None) => {
            Verdict::Garbage(error.category().to_owned())
        }
        (_, None) => Verdict::Unreachable(error.clone()),
    }
}

/// `… retry in N ms`.
fn milliseconds_in(text: &str) -> Option<Duration> {
    let (_, after) = text.split_once("retry in ")?;
    let number = after.split(' ').next()?;
    number.parse().ok().map(Duration::from_millis)
}

/// How much longer a hold may last, from a node that refused to extend it: `… N ms left`.
pub(crate) fn left_of_hold(verdict: &Verdict) -> Option<Duration> {
    let Verdict::Refused(error) = verdict else {
        return None;
    };
    let detail = error
        .detail()
        .filter(|_| error.code() == Some("LOCKLIMIT"))?;
    let number = detail.strip_suffix(" ms left")?.rsplit(' ').next()?;
    number.parse().ok().map(Duration::from_millis)
}

/// The fields of a map: a flat array in RESP2, a map in RESP3.
pub(crate) struct Fields {
    command: &'static str,
    values: HashMap<String, Value>,
}

impl Fields {
    /// Reads the reply to `command`.
    pub(crate) fn read(value: Value, command: &'static str) -> Result<Self, Verdict> {
        let values = redis::from_redis_value(value);
        let values = values.map_err(|_| Verdict::Garbage(format!("{command} without fields")))?;
        Ok(Self { command, values })
    }

    pub(crate) fn value(&self, wanted: &str) -> Result<&Value, Verdict> {
        let found = self.values.get(wanted);
        found.ok_or_else(|| self.without(wanted))
    }

    fn without(&self, field: &str) -> Verdict {
        Verdict::Garbage(format!("{} without {field}", self.command))
    }

    pub(crate) fn number(&self, wanted: &str) -> Result<u64, Verdict> {
        let number = match self.value(wanted)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            Value::Boolean(yes) => Some(u64::from(*yes)),
            Value::BulkString(bytes) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse().ok()),
            _ => None,
        };
        number.ok_or_else(|| self.without(wanted))
    }

    pub(crate) fn flag(&self, wanted: &str) -> Result<bool, Verdict> {
        Ok(self.number(wanted)? == 1)
    }

    pub(crate) fn millis(&self, wanted: &str) -> Result<Duration, Verdict> {
        self.number(wanted).map(Duration::from_millis)
    }

    pub(crate) fn text(&self, wanted: &str) -> Result<String, Verdict> {
        text(self.value(wanted)?).ok_or_else(|| self.without(wanted))
    }

    fn texts(&self, wanted: &str) -> Result<Vec<String>, Verdict> {
        let texts = match self.value(wanted)? {
            Value::Array(items) => items.iter().map(text).collect(),
            _ => None,
        };
        texts.ok_or_else(|| self.without(wanted))
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The status of a node, as it reports it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The version of the module.
    pub version: String,
    /// `master` or `replica`, as the server reports it.
    pub role: String,
    /// Random, new at each start of the server.
    pub incarnation: String,
    /// How long it still does not grant, because it may have lost grants; zero if it grants.
    pub quarantine: Duration,
    /// Whether every acknowledged grant is on disk.
    pub durable: bool,
    /// The counter of its fences.
    pub fence: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// The longest lease that it allows.
    pub max_ttl: Duration,
    /// Whether an internal error has stopped it: it refuses every change of a lock.
    pub failed: bool,
    /// What an operator should change about it: warnings of the node.
    pub warnings: Vec<String>,
    /// Why its server itself refuses new locks: `memory`, `disk`, `replicas`, `paused`, `cluster`
    /// or `other`; `None` if it does not.
    pub refusal: Option<String>,
    /// How far its wall clock is ahead of ours, in µs; negative if it is behind. The error is at
    /// most half of `round_trip`.
    pub clock_lead: i64,
    /// How long the answer took.
    pub round_trip: Duration,
    /// The time of its wall clock when our host started.
    pub(crate) wall_at_boot: Duration,
}

/// What a node knows about a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockStatus {
    /// `exclusive`, `shared`, or `free` if somebody waits for it together with another lock.
    pub mode: String,
    /// The most shared holders; zero means any number.
    pub limit: u64,
    /// The number of waiters.
    pub waiters: u64,
    /// How long the first waiter has waited.
    pub oldest_wait: Duration,
    /// The holders.
    pub holders: Vec<Holder>,
}

/// One holder of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Its label, if it has one.
    pub owner: Option<String>,
    /// A few digits that tell tokens apart. They are valid on this node until its next start.
    pub fingerprint: String,
    /// How often it has acquired without releasing.
    pub holds: u64,
    /// The fence of its hold.
    pub fence: u64,
    /// How long its lease still runs.
    pub ttl: Duration,
    /// How long ago it was granted.
    pub age: Duration,
}

impl NodeStatus {
    /// Reads the reply to a request that was sent at `asked`.
    pub(crate) fn read(value: Value, asked: Moment) -> Result<Self, Verdict> {
        Self::read_at(value, asked, Moment::now(), SystemTime::now())
    }

    /// Reads a reply that arrived at `answered`, when our wall clock had the time `wall`. The node
    /// read its clock at some time between request and reply, so its clock is compared with the
    /// middle.
    fn read_at(
        value: Value,
        asked: Moment,
        answered: Moment,
        wall: SystemTime,
    ) -> Result<Self, Verdict> {
        let answer = Fields::read(value, "LOCK.NODE")?;
        let round_trip = answered.since(asked);
        let ours = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ours = ours.saturating_sub(round_trip / 2);
        let theirs = Duration::from_micros(answer.number("time")?);
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Ok(Self {
            version: answer.text("version")?,
            role: answer.text("role")?,
            incarnation: answer.text("incarnation")?,
            quarantine: answer.millis("quarantine")?,
            durable: answer.flag("durable")?,
            fence: answer.number("fence")?,
            locks: answer.number("locks")?,
            waiters: answer.number("waiters")?,
            max_ttl: answer.millis("max-ttl")?,
            // Older modules do not have these fields.
            failed: answer.flag("failed").unwrap_or(false),
            warnings: answer.texts("warnings").unwrap_or_default(),
            refusal: answer.text("refusal").ok().filter(|why| why != "none"),
            clock_lead: micros(theirs).saturating_sub(micros(ours)),
            round_trip,
            wall_at_boot: theirs.saturating_sub((asked + round_trip / 2).since_boot()),
        })
    }

    /// Returns an error if the node cannot serve.
    pub(crate) fn checked(self) -> Result<Self, Verdict> {
        if is_older(&self.version, OLDEST_MODULE) {
            let version = self.version;
            return Err(Verdict::ModuleTooOld { version });
        }
        match self.role.as_str() {
            "master" => Ok(self),
            _ => Err(Verdict::Replica),
        }
    }
}

/// Whether `version` (`major.minor.patch`) is too old. A version that cannot be parsed is too old.
fn is_older(version: &str, wanted: (u64, u64)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u64>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < wanted,
        _ => true,
    }
}

impl LockStatus {
    /// `None`: nobody holds the lock or waits for it.
    pub(crate) fn read(value: Value) -> Result<Option<Self>, Verdict> {
        if value == Value::Nil {
            return Ok(None);
        }
        let answer = Fields::read(value, "LOCK.INFO")?;
        let holders = match answer.value("holders")? {
            Value::Array(holders) => holders.iter().cloned().map(Holder::read).collect(),
            _ => Err(Verdict::Garbage("LOCK.INFO without holders".to_owned())),
        }?;
        Ok(Some(Self {
            mode: answer.text("mode")?,
            limit: answer.number("limit")?,
            waiters: answer.number("waiters")?,
            oldest_wait: answer.millis("oldest-wait")?,
            holders,
        }))
    }

    /// The verdict for an error message about a held lock: it names the holder whose lease ends
    /// last.
    pub(crate) fn verdict(&self) -> Verdict {
        let last = self.holders.iter().max_by_key(|holder| holder.ttl);
        Verdict::Held {
            owner: last.and_then(|holder| holder.owner.clone()),
            remaining: last.map(|holder| holder.ttl),
            waiters: self.waiters,
        }
    }
}

impl Holder {
    fn read(value: Value) -> Result<Self, Verdict> {
        let answer = Fields::read(value, "LOCK.INFO")?;
        Ok(Self {
            owner: Some(answer.text("owner")?).filter(|owner| !owner.is_empty()),
            fingerprint: answer.text("fingerprint")?,
            holds: answer.number("holds")?,
            fence: answer.number("fence")?,
            ttl: answer.millis("ttl")?,
            age: answer.millis("age")?,
        })
    }
}

#[cfg(test)]
mod tests;
