//! A connection that speaks RESP2 and RESP3 and hides nothing: a null bulk, a null array and an
//! error are different values here, so that tests can be exact about replies.

use std::fmt::Debug;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Longer than anything that a test waits for: only a stuck server meets it.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq)]
pub enum Value {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    /// `$-1` in RESP2, `_` in RESP3.
    Null,
    /// `*-1`, which only RESP2 has.
    NullArray,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
    /// What this suite has no closer look at: doubles, booleans, big numbers.
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
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Value::Integer(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Value::Error(text) => text,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// The first word of an error.
    #[track_caller]
    pub fn error_class(&self) -> &str {
        self.error().split(' ').next().unwrap_or_default()
    }

    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Value::Bulk(bytes) => bytes,
            Value::Status(text) => text.as_bytes(),
            other => panic!("expected a string, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).expect("the string is UTF-8")
    }

    #[track_caller]
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// The pairs of a map, which RESP2 sends as a flat array.
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

    #[track_caller]
    pub fn fields(&self) -> Vec<String> {
        self.pairs().into_iter().map(|(key, _)| key).collect()
    }

    #[track_caller]
    pub fn field(&self, name: &str) -> Value {
        match self.pairs().into_iter().find(|(key, _)| key == name) {
            Some((_, value)) => value,
            None => panic!("no field {name} in {self:?}"),
        }
    }

    #[track_caller]
    pub fn number(&self, field: &str) -> i64 {
        self.field(field).integer()
    }

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

/// A fence, or any other yes.
#[track_caller]
pub fn granted(reply: &Value) -> i64 {
    match reply {
        Value::Integer(number) if *number > 0 => *number,
        other => panic!("expected a positive integer, got {other:?}"),
    }
}

pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub fn try_open(port: u16) -> io::Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection {
            stream: BufReader::new(stream),
        })
    }

    /// Speaks RESP3 from here on.
    pub fn resp3(mut self) -> Connection {
        let hello = self.call("HELLO 3");
        assert!(!hello.is_error(), "{hello:?}");
        self
    }

    /// Sends a command without reading its reply; words are separated by blanks.
    pub fn send(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.send_args(&words);
    }

    pub fn send_args<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.send_raw(&encode(args));
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).expect("the server takes commands");
    }

    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    #[track_caller]
    pub fn receive(&mut self) -> Value {
        match self.try_receive() {
            Ok(value) => value,
            Err(error) => panic!("no reply from the server: {error}"),
        }
    }

    #[track_caller]
    pub fn call(&mut self, line: &str) -> Value {
        self.send(line);
        self.receive()
    }

    #[track_caller]
    pub fn call_args<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Value {
        self.send_args(args);
        self.receive()
    }

    /// For set-up steps: whatever the reply is, it must not be an error.
    #[track_caller]
    pub fn ok(&mut self, line: &str) -> Value {
        let reply = self.call(line);
        assert!(!reply.is_error(), "{line}: {reply:?}");
        reply
    }

    /// Sends all commands at once and reads all replies.
    #[track_caller]
    pub fn pipeline<L: AsRef<str>>(&mut self, lines: &[L]) -> Vec<Value> {
        let mut bytes = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.as_ref().split_whitespace().collect();
            bytes.extend_from_slice(&encode(&words));
        }
        self.send_raw(&bytes);
        lines.iter().map(|_| self.receive()).collect()
    }

    pub fn client_id(&mut self) -> i64 {
        self.call("CLIENT ID").integer()
    }

    /// True if nothing arrives for this long.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        if !self.stream.buffer().is_empty() {
            return false;
        }
        let socket = self.stream.get_ref();
        socket.set_read_timeout(Some(time)).expect("a timeout");
        let silent = matches!(
            self.stream.get_ref().peek(&mut [0]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        );
        let socket = self.stream.get_ref();
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        silent
    }

    /// True once the server has closed the connection; pending replies are thrown away.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.try_receive() {
                Ok(_) => {}
                Err(error) => {
                    return !matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    );
                }
            }
        }
    }

    /// Closes with a reply left unread, which makes the kernel send RST instead of FIN. A PING sent
    /// ahead of the blocking command provides that reply.
    pub fn reset(self) {
        assert!(
            self.stream.buffer().is_empty(),
            "a reply must lie in the socket, not in the buffer"
        );
        let unread = self
            .stream
            .get_ref()
            .peek(&mut [0])
            .expect("a reply to leave unread");
        assert_eq!(unread, 1, "the server has closed already");
    }

    /// The raw bytes of the next `n`.
    pub fn raw(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).expect("that many bytes");
        bytes
    }

    pub fn try_receive(&mut self) -> io::Result<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let length = || {
            rest.parse::<i64>()
                .map_err(|_| io::Error::other(format!("a bad length in {line:?}")))
        };
        Ok(match kind {
            "+" => Value::Status(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(length()?),
            "_" => Value::Null,
            "$" | "=" => match usize::try_from(length()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Value::Bulk(bytes)
                }
                Err(_) => Value::Null,
            },
            "*" | "~" => match usize::try_from(length()?) {
                Ok(length) => Value::Array(self.several(length)?),
                Err(_) => Value::NullArray,
            },
            ">" => Value::Push(self.several(length()?.unsigned_abs() as usize)?),
            "%" => {
                let flat = self.several(2 * length()?.unsigned_abs() as usize)?;
                let pairs = flat
                    .chunks(2)
                    .map(|pair| (pair[0].clone(), pair[1].clone()));
                Value::Map(pairs.collect())
            }
            "," | "#" | "(" => Value::Other(line),
            _ => return Err(io::Error::other(format!("not RESP: {line:?}"))),
        })
    }

    fn several(&mut self, count: usize) -> io::Result<Vec<Value>> {
        (0..count).map(|_| self.try_receive()).collect()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") || line.len() < 3 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}
