//! Sections of INFO.

use std::io;
use std::str::FromStr;

use crate::Connection;

/// A section of INFO.
pub struct Info(String);

impl Info {
    pub(crate) fn new(text: String) -> Info {
        Info(text)
    }

    /// The value of a field, if the section has it.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    /// The value of a field that must be there and be a number.
    pub fn number<T: FromStr>(&self, name: &str) -> io::Result<T> {
        let value = self.field(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("no number {name} in INFO:\n{}", self.0)))
    }
}

/// A field of `INFO section` that must be there.
#[track_caller]
pub fn info_field(connection: &mut Connection, section: &str, field: &str) -> String {
    let info = connection.info(section);
    match info.field(field) {
        Some(value) => value.to_owned(),
        None => panic!("no {field} in INFO {section}:\n{}", info.0),
    }
}

/// A field of `INFO section`, as a number.
#[track_caller]
pub fn info_number(connection: &mut Connection, section: &str, field: &str) -> i64 {
    match connection.info(section).number(field) {
        Ok(number) => number,
        Err(error) => panic!("{error}"),
    }
}
