//! What LOCK.NODE and LOCK.INFO tell to those who look on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{RedisError, RedisResult, Value};

use crate::command;
use crate::error::Verdict;
use crate::link::Connection;
use crate::reply::{Fields, trouble};

/// What a node says about itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The version of the module.
    pub version: String,
    /// `master` or `replica`, as the server says it.
    pub role: String,
    /// Random, new with each start of the server.
    pub incarnation: String,
    /// How long it still gives no grants, as it may have forgotten some; zero: it does.
    pub quarantine: Duration,
    /// Whether every acknowledged grant is on disk.
    pub durable: bool,
    /// The counter of its fences.
    pub fence: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// The longest lease that may be asked for.
    pub max_ttl: Duration,
    /// Whether an internal error has stopped it: it refuses every change of a lock.
    pub failed: bool,
    /// How far its wall clock is ahead of ours, in µs; below zero: behind. Exact to half of
    /// `round_trip`.
    pub clock_lead: i64,
    /// How long the answer took.
    pub round_trip: Duration,
    /// Its wall clock, in µs.
    pub(crate) time: u64,
}

/// What a node knows of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockStatus {
    /// `exclusive`, `shared`, or `free` when somebody waits for it together with another lock.
    pub mode: String,
    /// At most so many shared holders; zero: any number.
    pub limit: u64,
    /// How many wait.
    pub waiters: u64,
    /// For how long the first of them has waited.
    pub oldest_wait: Duration,
    /// Who holds it.
    pub holders: Vec<Holder>,
}

/// One holder of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The label that it gave, if any.
    pub owner: Option<String>,
    /// A few digits that tell tokens apart, on this node and until its next start.
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
    /// Reads an answer that was given when our wall clock said `wall`.
    pub(crate) fn read(
        value: Value,
        wall: SystemTime,
        round_trip: Duration,
    ) -> Result<Self, Verdict> {
        let answer = Fields::read(value, "LOCK.NODE")?;
        let ours = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = |micros: u128| i64::try_from(micros).unwrap_or(i64::MAX);
        let time = answer.number("time")?;
        let theirs = micros(u128::from(time));
        Ok(Self {
            version: answer.text("version")?,
            role: answer.text("role")?,
            incarnation: answer.text("incarnation")?,
            quarantine: answer.millis("quarantine")?,
            durable: answer.number("durable")? == 1,
            fence: answer.number("fence")?,
            locks: answer.number("locks")?,
            waiters: answer.number("waiters")?,
            max_ttl: answer.millis("max-ttl")?,
            // Older modules do not have it.
            failed: answer.number("failed").is_ok_and(|failed| failed == 1),
            clock_lead: theirs.saturating_sub(micros(ours.as_micros())),
            round_trip,
            time,
        })
    }
}

impl LockStatus {
    /// Asks for a lock, with so many of its holders; `None`: nobody holds it or waits for it.
    pub(crate) async fn ask(
        connection: &mut Connection,
        key: &Vec<u8>,
        holders: usize,
    ) -> Result<Option<Self>, Verdict> {
        let refused = |error: &RedisError| error.code() == Some("ERR");
        let mut answer = said(connection.send(&command::info(key, Some(holders))).await);
        if answer.as_ref().is_err_and(refused) {
            // Version 0.1.0 of the module does not know COUNT.
            answer = said(connection.send(&command::info(key, None)).await);
        }
        match answer {
            Ok(Value::Nil) => Ok(None),
            Ok(value) => Self::read(value).map(Some),
            Err(error) => Err(trouble(&error)),
        }
    }

    pub(crate) fn read(value: Value) -> Result<Self, Verdict> {
        let answer = Fields::read(value, "LOCK.INFO")?;
        let holders = match answer.value("holders")? {
            Value::Array(holders) => holders.iter().cloned().map(Holder::read).collect(),
            _ => Err(Verdict::Garbage("LOCK.INFO without holders".to_owned())),
        }?;
        Ok(Self {
            mode: answer.text("mode")?,
            limit: answer.number("limit")?,
            waiters: answer.number("waiters")?,
            oldest_wait: answer.millis("oldest-wait")?,
            holders,
        })
    }

    /// What an error message says of a lock that is held: of its holders, the one whose lease ends
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

fn said(result: RedisResult<Value>) -> RedisResult<Value> {
    match result {
        Ok(Value::ServerError(error)) => Err(error.into()),
        result => result,
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
mod tests {
    use super::*;

    fn map(fields: &[(&str, Value)]) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Map(
            fields
                .iter()
                .map(|(name, value)| (text(name), value.clone()))
                .collect(),
        )
    }

    #[test]
    fn a_clock_is_as_far_ahead_as_it_reads_more_than_ours() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut fields = vec![
            ("version", text("0.1.0")),
            ("role", text("master")),
            ("incarnation", text("a")),
        ];
        for name in [
            "quarantine",
            "durable",
            "fence",
            "locks",
            "waiters",
            "max-ttl",
        ] {
            fields.push((name, Value::Int(1)));
        }
        let wall = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_000);
        for lead in [-2_500_000, 0, 70] {
            fields.push(("time", Value::Int(1_700_000_000_000_000 + lead)));
            let status = NodeStatus::read(map(&fields), wall, Duration::ZERO).unwrap();
            assert_eq!(status.clock_lead, lead);
            fields.pop();
        }
        assert!(matches!(
            NodeStatus::read(map(&fields), wall, Duration::ZERO),
            Err(Verdict::Garbage(text)) if text == "LOCK.NODE without time"
        ));
    }

    #[test]
    fn the_holder_is_read_from_both_forms_of_a_map() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let flat = |fields: &[(&str, Value)]| {
            let pairs = fields.iter();
            Value::Array(
                pairs
                    .flat_map(|(name, value)| [text(name), value.clone()])
                    .collect(),
            )
        };
        let holder = [
            ("owner", text("job-7")),
            ("fingerprint", text("0a")),
            ("holds", Value::Int(1)),
            ("fence", Value::Int(9)),
            ("ttl", Value::Int(250)),
            ("age", Value::Int(1)),
        ];
        let lock = [
            ("mode", text("exclusive")),
            ("limit", Value::Int(0)),
            ("waiters", Value::Int(2)),
            ("oldest-wait", Value::Int(5)),
            ("holders", Value::Array(vec![flat(&holder)])),
        ];
        let expected = Verdict::Held {
            owner: Some("job-7".to_owned()),
            remaining: Some(Duration::from_millis(250)),
            waiters: 2,
        };
        assert_eq!(LockStatus::read(map(&lock)).unwrap().verdict(), expected);
        assert_eq!(LockStatus::read(flat(&lock)).unwrap().verdict(), expected);
    }

    #[test]
    fn an_answer_without_holders_is_no_answer() {
        assert!(matches!(
            LockStatus::read(map(&[("mode", Value::Int(1))])),
            Err(Verdict::Garbage(text)) if text == "LOCK.INFO without holders"
        ));
    }
}
