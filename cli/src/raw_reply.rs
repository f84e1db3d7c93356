//! Reading replies of commands that the client library does not read: INFO, CONFIG GET, LOCK.NODE.

use std::collections::BTreeMap;

use redis::Value;

/// `name:value` lines.
pub fn info_fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
        .collect()
}

/// A map, as RESP2 (a flat array) and RESP3 write it.
pub fn fields(value: Value) -> BTreeMap<String, Value> {
    match value {
        Value::Map(pairs) => pairs
            .into_iter()
            .map(|(name, value)| (text(&name), value))
            .collect(),
        Value::Array(items) => items
            .chunks_exact(2)
            .map(|pair| (text(&pair[0]), pair[1].clone()))
            .collect(),
        _ => BTreeMap::new(),
    }
}

/// Any scalar as text; empty for what is none.
pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

/// A number, also one that is written as text; 0 for what is none.
pub fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => text(other).parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_line_by_line() {
        let fields = info_fields("# Server\r\nredis_version:7.0.15\r\n\r\nx:a:b\r\n");
        assert_eq!(fields["redis_version"], "7.0.15");
        assert_eq!(fields["x"], "a:b");
    }
}
