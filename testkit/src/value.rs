//! A reply: a null bulk, a null array and an error are different values here, so that tests can be
//! exact about replies.

use std::fmt::Debug;

/// A reply in RESP2 or RESP3.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// A simple string, such as `OK`.
    Status(String),
    /// An error, with its class as the first word.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// `$-1` in RESP2, `_` in RESP3.
    Null,
    /// `*-1`, which only RESP2 has.
    NullArray,
    /// An array, or a set of RESP3.
    Array(Vec<Value>),
    /// A map, which only RESP3 has.
    Map(Vec<(Value, Value)>),
    /// A message that answers no request, which only RESP3 has.
    Push(Vec<Value>),
    /// Doubles, booleans and big numbers, as they were sent.
    Other(String),
}

impl Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Status(text) => write!(f, "+{text}"),
            Value::Error(text) => write!(f, "-{text}"),
            Value::Integer(number) => write!(f, ":{number}"),
            Value::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Value::Null => write!(f, "null"),
            Value::NullArray => write!(f, "null array"),
            Value::Array(items) => f.debug_list().entries(items).finish(),
            Value::Map(pairs) => f
                .debug_map()
                .entries(pairs.iter().map(|(key, value)| (key, value)))
                .finish(),
            Value::Push(items) => write!(f, "push {items:?}"),
            Value::Other(text) => write!(f, "{text}"),
        }
    }
}

impl Value {
    /// The integer that this must be.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Value::Integer(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    /// The error that this must be.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Value::Error(text) => text,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// The first word of the error that this must be.
    #[track_caller]
    pub fn error_class(&self) -> &str {
        self.error().split(' ').next().unwrap_or_default()
    }

    /// The bytes of the string that this must be.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Value::Bulk(bytes) => bytes,
            Value::Status(text) => text.as_bytes(),
            other => panic!("expected a string, got {other:?}"),
        }
    }

    /// The text of the string that this must be.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).expect("the string is UTF-8")
    }

    /// The items of the array that this must be.
    #[track_caller]
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// The pairs of the map that this must be, which RESP2 sends as a flat array.
    #[track_caller]
    pub fn pairs(&self) -> Vec<(String, Value)> {
        match self {
            Value::Map(pairs) => pairs
                .iter()
                .map(|(key, value)| (key.text().to_owned(), value.clone()))
                .collect(),
            Value::Array(flat) if flat.len() % 2 == 0 => flat
                .chunks(2)
                .map(|pair| (pair[0].text().to_owned(), pair[1].clone()))
                .collect(),
            other => panic!("expected a map, got {other:?}"),
        }
    }

    /// The names of the fields of a map.
    #[track_caller]
    pub fn fields(&self) -> Vec<String> {
        self.pairs().into_iter().map(|(key, _)| key).collect()
    }

    /// A field that the map must have.
    #[track_caller]
    pub fn field(&self, name: &str) -> Value {
        match self.pairs().into_iter().find(|(key, _)| key == name) {
            Some((_, value)) => value,
            None => panic!("no field {name} in {self:?}"),
        }
    }

    /// A field that the map must have, and that must be an integer.
    #[track_caller]
    pub fn number(&self, field: &str) -> i64 {
        self.field(field).integer()
    }

    /// Whether this is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Value::Error(_))
    }
}

/// Asserts that a reply is an error of this class.
#[track_caller]
pub fn refused(reply: &Value, class: &str) {
    match reply {
        Value::Error(text) if text.split(' ').next() == Some(class) => {}
        other => panic!("expected the error {class}, got {other:?}"),
    }
}

/// Asserts that a reply grants something, and returns the fence or the number.
#[track_caller]
pub fn granted(reply: &Value) -> i64 {
    match reply {
        Value::Integer(number) if *number > 0 => *number,
        other => panic!("expected a positive integer, got {other:?}"),
    }
}
