//! Replies as the values that tests compare.

use crate::Value;

/// What a reply can be read as.
pub trait FromReply: Sized {
    /// None if the reply is something else.
    fn from_reply(reply: Value) -> Option<Self>;
}

impl FromReply for Value {
    fn from_reply(reply: Value) -> Option<Value> {
        Some(reply)
    }
}

/// Any reply that is not an error.
impl FromReply for () {
    fn from_reply(_: Value) -> Option<()> {
        Some(())
    }
}

impl FromReply for String {
    fn from_reply(reply: Value) -> Option<String> {
        match reply {
            Value::Bulk(bytes) => String::from_utf8(bytes).ok(),
            Value::Status(text) => Some(text),
            _ => None,
        }
    }
}

impl FromReply for i64 {
    fn from_reply(reply: Value) -> Option<i64> {
        match reply {
            Value::Integer(number) => Some(number),
            // TIME and others send numbers as strings.
            other => String::from_reply(other)?.parse().ok(),
        }
    }
}

impl FromReply for u64 {
    fn from_reply(reply: Value) -> Option<u64> {
        u64::try_from(i64::from_reply(reply)?).ok()
    }
}

impl<T: FromReply> FromReply for Vec<T> {
    fn from_reply(reply: Value) -> Option<Vec<T>> {
        match reply {
            Value::Array(items) => items.into_iter().map(T::from_reply).collect(),
            _ => None,
        }
    }
}
