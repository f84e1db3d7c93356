//! As little of a client as measuring needs: what it sends is made before the clock runs, what it
//! receives is checked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Outcome;

/// How long a reply may take: what hangs is a failure to measure.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Status(String),
    Error(String),
    Number(i64),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
}

impl Value {
    /// A yes of the commands that are measured: `OK`, or a number above 0, or several of them.
    pub fn is_yes(&self) -> bool {
        match self {
            Self::Status(text) => text == "OK",
            Self::Number(number) => *number > 0,
            Self::Array(all) => !all.is_empty() && all.iter().all(Self::is_yes),
            Self::Null | Self::Error(_) | Self::Bytes(_) => false,
        }
    }
}

/// Adds a command to what will be sent.
pub fn put(buffer: &mut Vec<u8>, words: &[&str]) {
    // Writing to a vector does not fail.
    let _ = write!(buffer, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(buffer, "${}\r\n{word}\r\n", word.len());
    }
}

/// A command.
pub fn command(words: &[&str]) -> Vec<u8> {
    let mut buffer = Vec::new();
    put(&mut buffer, words);
    buffer
}

/// A connection.
pub struct Connection<S> {
    stream: BufReader<S>,
}

/// The usual one.
pub type Tcp = Connection<TcpStream>;
/// One that takes no port, for thousands of them.
pub type Unix = Connection<UnixStream>;

impl Tcp {
    pub fn open(port: u16) -> Outcome<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::with_capacity(1 << 16, stream),
        })
    }
}

impl Unix {
    pub fn open(path: &Path) -> Outcome<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::with_capacity(256, stream),
        })
    }
}

impl<S: Read + Write> Connection<S> {
    pub fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        Ok(self.stream.get_mut().write_all(bytes)?)
    }

    pub fn receive(&mut self) -> Outcome<Value> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = std::str::from_utf8(&line)?.trim_end();
        let (kind, rest) = text.split_at_checked(1).ok_or("the server hung up")?;
        Ok(match kind {
            "+" => Value::Status(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Number(rest.parse()?),
            "$" | "*" if rest == "-1" => Value::Null,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Value::Bytes(bytes)
            }
            "*" => {
                let len = rest.parse::<usize>()?;
                Value::Array((0..len).map(|_| self.receive()).collect::<Outcome<_>>()?)
            }
            _ => return Err(format!("not a reply: {text}").into()),
        })
    }

    pub fn call(&mut self, words: &[&str]) -> Outcome<Value> {
        self.send(&command(words))?;
        match self.receive()? {
            Value::Error(error) => Err(format!("{}: {error}", words.join(" ")).into()),
            reply => Ok(reply),
        }
    }

    /// Sends a pipeline; each of its replies must be a yes, or the measurement is one of something
    /// else.
    pub fn pipeline(&mut self, bytes: &[u8], replies: usize) -> Outcome<()> {
        self.send(bytes)?;
        for _ in 0..replies {
            let reply = self.receive()?;
            if !reply.is_yes() {
                return Err(format!("a command of a pipeline got {reply:?}").into());
            }
        }
        Ok(())
    }

    /// A section of INFO.
    pub fn info(&mut self, section: &str) -> Outcome<Info> {
        match self.call(&["INFO", section])? {
            Value::Bytes(bytes) => Ok(Info(String::from_utf8(bytes)?)),
            other => Err(format!("INFO {section}: {other:?}").into()),
        }
    }
}

/// What INFO said.
pub struct Info(String);

impl Info {
    pub fn text(&self, field: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
    }

    pub fn number(&self, field: &str) -> Outcome<f64> {
        let text = self
            .text(field)
            .ok_or_else(|| format!("no {field} in INFO:\n{}", self.0))?;
        Ok(text.parse()?)
    }
}
