//! From what came over the wire to what it means.

use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::error::Verdict;

/// The one rule for replies: a positive number is yes, null is "you do not hold it", the rest is trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Yes(u64),
    No,
    Trouble(Verdict),
}

impl Reply {
    /// Reads the reply of a LOCK command for `keys` keys: a number, or an array of as many.
    pub(crate) fn read(result: RedisResult<Value>) -> Self {
        match result {
            Err(error) => Self::Trouble(trouble(&error)),
            Ok(Value::ServerError(error)) => Self::Trouble(trouble(&error.into())),
            Ok(Value::Nil) => Self::No,
            Ok(Value::Int(number)) => number_of(number),
            Ok(Value::Array(items)) => Self::all(items),
            Ok(_) => Self::Trouble(Verdict::Garbage("neither a number nor null".to_owned())),
        }
    }

    /// Several keys are held only if each of them is; their common number is the highest.
    fn all(items: Vec<Value>) -> Self {
        let mut highest = None;
        for item in items {
            match Self::read(Ok(item)) {
                Self::Yes(number) => highest = highest.max(Some(number)),
                other => return other,
            }
        }
        match highest {
            Some(number) => Self::Yes(number),
            None => Self::Trouble(Verdict::Garbage("an empty array".to_owned())),
        }
    }

    /// How an error message names it; null means what `no` says for the question asked.
    pub(crate) fn verdict(self, no: Verdict) -> Verdict {
        match self {
            Self::Yes(fence) => Verdict::Granted { fence },
            Self::No => no,
            Self::Trouble(verdict) => verdict,
        }
    }
}

fn number_of(number: i64) -> Reply {
    match u64::try_from(number) {
        Ok(number) if number > 0 => Reply::Yes(number),
        _ => Reply::Trouble(Verdict::Garbage("a number below one".to_owned())),
    }
}

/// What an error of the server or of the connection says about the node.
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
        (_, Some(code)) => Verdict::Refused(format!("{code} {detail}")),
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, None) => {
            Verdict::Garbage(error.category().to_owned())
        }
        (ErrorKind::AuthenticationFailed, None) => Verdict::Refused(error.to_string()),
        (_, None) => Verdict::Unreachable(error.to_string()),
    }
}

/// `… retry in N ms`.
fn milliseconds_in(text: &str) -> Option<Duration> {
    let (_, after) = text.split_once("retry in ")?;
    let number = after.split(' ').next()?;
    number.parse().ok().map(Duration::from_millis)
}

/// The fields of a map, as RESP2 (a flat array) and RESP3 (a map) write it.
pub(crate) struct Fields(Vec<(Value, Value)>);

impl Fields {
    pub(crate) fn read(value: Value) -> Option<Self> {
        match value {
            Value::Map(pairs) => Some(Self(pairs)),
            Value::Array(items) if items.len() % 2 == 0 => {
                let mut pairs = Vec::with_capacity(items.len() / 2);
                let mut items = items.into_iter();
                while let (Some(name), Some(value)) = (items.next(), items.next()) {
                    pairs.push((name, value));
                }
                Some(Self(pairs))
            }
            _ => None,
        }
    }

    pub(crate) fn value(&self, wanted: &str) -> Option<&Value> {
        let named = |name: &Value| match name {
            Value::BulkString(bytes) => bytes == wanted.as_bytes(),
            Value::SimpleString(text) => text == wanted,
            _ => false,
        };
        self.0
            .iter()
            .find(|(name, _)| named(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn number(&self, wanted: &str) -> Option<u64> {
        match self.value(wanted)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            Value::Boolean(yes) => Some(u64::from(*yes)),
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn text(&self, wanted: &str) -> Option<String> {
        match self.value(wanted)? {
            Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Value::SimpleString(text) => Some(text.clone()),
            Value::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Who holds the lock, from LOCK.INFO: the holder whose lease ends last.
pub(crate) fn holder(value: Value) -> Option<Verdict> {
    let info = Fields::read(value)?;
    let waiters = info.number("waiters").unwrap_or(0);
    let mut longest: Option<(u64, Option<String>)> = None;
    if let Some(Value::Array(holders)) = info.value("holders") {
        for holder in holders {
            let Some(fields) = Fields::read(holder.clone()) else {
                continue;
            };
            let ttl = fields.number("ttl").unwrap_or(0);
            if longest.as_ref().is_none_or(|(known, _)| ttl > *known) {
                let owner = fields.text("owner").filter(|owner| !owner.is_empty());
                longest = Some((ttl, owner));
            }
        }
    }
    let (remaining, owner) = match longest {
        Some((ttl, owner)) => (Some(Duration::from_millis(ttl)), owner),
        None => (None, None),
    };
    Some(Verdict::Held {
        owner,
        remaining,
        waiters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_null_and_arrays_follow_the_one_rule() {
        let array = |items: Vec<Value>| Reply::read(Ok(Value::Array(items)));
        assert_eq!(Reply::read(Ok(Value::Int(7))), Reply::Yes(7));
        assert_eq!(Reply::read(Ok(Value::Nil)), Reply::No);
        assert_eq!(array(vec![Value::Int(7), Value::Int(7)]), Reply::Yes(7));
        assert_eq!(array(vec![Value::Int(7), Value::Nil]), Reply::No);
    }

    #[test]
    fn a_node_that_answers_nonsense_is_named_so_and_never_counts() {
        let nonsense = [
            Value::Int(0),
            Value::Int(-3),
            Value::Okay,
            Value::Array(Vec::new()),
            Value::BulkString(b"7".to_vec()),
        ];
        for value in nonsense {
            let reply = Reply::read(Ok(value.clone()));
            assert!(
                matches!(reply, Reply::Trouble(Verdict::Garbage(_))),
                "{value:?} gave {reply:?}"
            );
        }
    }

    #[test]
    fn the_end_of_a_quarantine_is_read_from_its_error() {
        let error = redis::make_extension_error(
            "QUARANTINE".into(),
            Some("no grants yet, retry in 1500 ms".into()),
        );
        let left = Duration::from_millis(1500);
        assert_eq!(
            trouble(&error),
            Verdict::Quarantined {
                retry_in: Some(left)
            }
        );
    }

    #[test]
    fn the_holder_is_read_from_both_forms_of_a_map() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let holder_fields = vec![text("owner"), text("job-7"), text("ttl"), Value::Int(250)];
        let fields = vec![
            (text("waiters"), Value::Int(2)),
            (
                text("holders"),
                Value::Array(vec![Value::Array(holder_fields)]),
            ),
        ];
        let flat = fields
            .iter()
            .flat_map(|(name, value)| [name.clone(), value.clone()])
            .collect();
        let expected = Verdict::Held {
            owner: Some("job-7".to_owned()),
            remaining: Some(Duration::from_millis(250)),
            waiters: 2,
        };
        assert_eq!(holder(Value::Map(fields)), Some(expected.clone()));
        assert_eq!(holder(Value::Array(flat)), Some(expected));
    }
}
