//! Texts of the operator beside the locks: lines of a file that another program writes, for
//! example what a resource says about the fences that it refuses.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::names::printable;

/// How much of the end of the file is read.
const BYTES: u64 = 64 * 1024;
/// Lines that are shown.
const LINES: usize = 200;
/// Characters of a line.
const WIDTH: usize = 300;

/// The file, if there is one.
pub struct Notes(Option<PathBuf>);

impl Notes {
    pub fn new(file: Option<PathBuf>) -> Self {
        Self(file)
    }

    /// Its last lines, or why it cannot be read.
    pub fn read(&self) -> Vec<Value> {
        let Some(file) = &self.0 else {
            return Vec::new();
        };
        match tail(file) {
            Ok(text) => lines(&text),
            Err(error) => vec![json!({ "kind": "alarm", "text": format!("--notes: {error}") })],
        }
    }
}

fn tail(file: &PathBuf) -> std::io::Result<String> {
    // Opening a pipe that nobody writes to would wait forever.
    if !std::fs::metadata(file)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A line that begins with `#` is a heading, one that begins with `!` is important.
fn lines(text: &str) -> Vec<Value> {
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last = &all[all.len().saturating_sub(LINES)..];
    let line = |line: &&str| {
        let (kind, rest) = match line.as_bytes() {
            [b'#', ..] => ("heading", line[1..].trim()),
            [b'!', ..] => ("alarm", line[1..].trim()),
            _ => ("text", line.trim_end()),
        };
        let text: String = printable(rest).chars().take(WIDTH).collect();
        json!({ "kind": kind, "text": text })
    };
    last.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_important_lines_are_marked_and_the_rest_is_escaped() {
        let read = lines("# Log\n\nplain \u{202e}\x1b[31m\n! refused\n");
        let expected = [
            json!({ "kind": "heading", "text": "Log" }),
            json!({ "kind": "text", "text": "plain \\u{202e}\\u{1b}[31m" }),
            json!({ "kind": "alarm", "text": "refused" }),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn only_the_end_of_a_long_file_is_shown() {
        let text: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
        let read = lines(&text);
        assert_eq!(read.len(), LINES);
        assert_eq!(read[LINES - 1]["text"], "line 9999");
    }

    #[test]
    fn a_missing_file_is_reported() {
        let notes = Notes::new(Some("/no/such/file".into()));
        assert_eq!(notes.read()[0]["kind"], "alarm");
        let folder = Notes::new(Some(std::env::temp_dir()));
        let text = "--notes: it is not a regular file";
        assert_eq!(folder.read()[0]["text"], text);
        assert!(Notes::new(None).read().is_empty());
    }
}
