//! From what came over the wire to what it means.

use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::error::Verdict;

/// The one rule for replies: a positive number is yes, null is "you do not hold it", the rest is
/// trouble.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Yes(u64),
    No,
    /// Of several keys some are held and some are not.
    Part,
    Trouble(Verdict),
}

impl From<Verdict> for Reply {
    fn from(verdict: Verdict) -> Self {
        Self::Trouble(verdict)
    }
}

impl Reply {
    /// Reads the reply of a LOCK command: a number, or an array with one for each key.
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
        let (mut highest, mut missing) = (None, false);
        for item in items {
            match Self::read(Ok(item)) {
                Self::Yes(number) => highest = highest.max(Some(number)),
                Self::No => missing = true,
                other => return other,
            }
        }
        match (highest, missing) {
            (Some(number), false) => Self::Yes(number),
            (Some(_), true) => Self::Part,
            (None, true) => Self::No,
            (None, false) => Self::Trouble(Verdict::Garbage("an empty array".to_owned())),
        }
    }

    /// How an error message names it; null means what `no` says for the question asked.
    pub(crate) fn verdict(self, no: Verdict) -> Verdict {
        match self {
            Self::Yes(fence) => Verdict::Granted { fence },
            Self::No | Self::Part => no,
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

/// The fields of a map, as RESP2 (a flat array) and RESP3 (a map) write it.
pub(crate) struct Fields {
    command: &'static str,
    pairs: Vec<(Value, Value)>,
}

impl Fields {
    /// Reads what `command` answered.
    pub(crate) fn read(value: Value, command: &'static str) -> Result<Self, Verdict> {
        let pairs = match value {
            Value::Map(pairs) => pairs,
            Value::Array(items) if items.len() % 2 == 0 => {
                let mut pairs = Vec::with_capacity(items.len() / 2);
                let mut items = items.into_iter();
                while let (Some(name), Some(value)) = (items.next(), items.next()) {
                    pairs.push((name, value));
                }
                pairs
            }
            _ => return Err(Verdict::Garbage(format!("{command} without fields"))),
        };
        Ok(Self { command, pairs })
    }

    pub(crate) fn value(&self, wanted: &str) -> Result<&Value, Verdict> {
        let named = |name: &Value| match name {
            Value::BulkString(bytes) => bytes == wanted.as_bytes(),
            Value::SimpleString(text) => text == wanted,
            _ => false,
        };
        let found = self.pairs.iter().find(|(name, _)| named(name));
        found
            .map(|(_, value)| value)
            .ok_or_else(|| self.without(wanted))
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

    pub(crate) fn millis(&self, wanted: &str) -> Result<Duration, Verdict> {
        self.number(wanted).map(Duration::from_millis)
    }

    pub(crate) fn text(&self, wanted: &str) -> Result<String, Verdict> {
        match self.value(wanted)? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            Value::SimpleString(text) => Ok(text.clone()),
            Value::Int(number) => Ok(number.to_string()),
            _ => Err(self.without(wanted)),
        }
    }
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
        assert_eq!(array(vec![Value::Nil, Value::Nil]), Reply::No);
        assert_eq!(array(vec![Value::Int(7), Value::Nil]), Reply::Part);
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
}
