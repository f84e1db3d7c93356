//! A connection that speaks RESP2 and RESP3, through TCP or a Unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::{Info, PATIENCE, Value};

/// Many replies at once, for pipelines.
const TCP_BUFFER: usize = 1 << 16;
/// For thousands of connections that wait for one small reply.
const UNIX_BUFFER: usize = 256;

/// A command as it is sent.
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

/// A connection to a server.
pub struct Connection {
    stream: BufReader<Stream>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Connects to a port of this machine.
    pub fn try_open(port: u16) -> io::Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Connection::on(Stream::Tcp(stream), TCP_BUFFER)
    }

    /// Connects through a Unix socket, which takes no port.
    pub fn try_open_unix(socket: &Path) -> io::Result<Connection> {
        Connection::on(Stream::Unix(UnixStream::connect(socket)?), UNIX_BUFFER)
    }

    fn on(stream: Stream, buffer: usize) -> io::Result<Connection> {
        stream.set_read_timeout(PATIENCE)?;
        Ok(Connection {
            stream: BufReader::with_capacity(buffer, stream),
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

    /// Sends a command without reading its reply; the arguments may be any bytes.
    pub fn send_args<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.send_raw(&encode(args));
    }

    /// Sends these bytes as they are.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).expect("the server takes commands");
    }

    /// Sends these bytes as they are, to a server that may be gone.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next reply.
    #[track_caller]
    pub fn receive(&mut self) -> Value {
        match self.try_receive() {
            Ok(value) => value,
            Err(error) => panic!("no reply from the server: {error}"),
        }
    }

    /// Sends a command and reads its reply; words are separated by blanks.
    #[track_caller]
    pub fn call(&mut self, line: &str) -> Value {
        self.send(line);
        self.receive()
    }

    /// Sends a command and reads its reply; the arguments may be any bytes.
    #[track_caller]
    pub fn call_args<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Value {
        self.send_args(args);
        self.receive()
    }

    /// A command whose reply must not be an error, for set-up steps.
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

    /// The id that the server gave to this connection.
    pub fn client_id(&mut self) -> i64 {
        self.call("CLIENT ID").integer()
    }

    /// True if nothing arrives for this long.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        if !self.stream.buffer().is_empty() {
            return false;
        }
        let stream = self.stream.get_ref();
        stream.set_read_timeout(time).expect("a timeout");
        let silent = self
            .stream
            .fill_buf()
            .is_err_and(|error| is_timeout(&error));
        let stream = self.stream.get_ref();
        stream.set_read_timeout(PATIENCE).expect("a timeout");
        silent
    }

    /// True once the server has closed the connection; pending replies are thrown away.
    pub fn is_closed(&mut self) -> bool {
        loop {
            if let Err(error) = self.try_receive() {
                return !is_timeout(&error);
            }
        }
    }

    /// Closes with a reply left unread, which makes the kernel send RST instead of FIN. A PING sent
    /// ahead of the blocking command provides that reply.
    pub fn reset(self) {
        assert!(
            self.stream.buffer().is_empty(),
            "the reply must be in the socket, not in the buffer"
        );
        let Stream::Tcp(stream) = self.stream.get_ref() else {
            panic!("only TCP has RST");
        };
        let unread = stream.peek(&mut [0]).expect("a reply to leave unread");
        assert_eq!(unread, 1, "the server has closed already");
    }

    /// The next bytes, as they were sent.
    pub fn raw(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).expect("that many bytes");
        bytes
    }

    /// Sends a command and reads its reply, which must not be an error.
    pub fn try_call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        self.try_send_raw(&encode(args))?;
        match self.try_receive()? {
            Value::Error(error) => {
                let words = args
                    .iter()
                    .map(|arg| arg.as_ref().escape_ascii().to_string());
                let command = words.collect::<Vec<_>>().join(" ");
                Err(io::Error::other(format!("{command}: {error}")))
            }
            reply => Ok(reply),
        }
    }

    /// A section of INFO.
    #[track_caller]
    pub fn info(&mut self, section: &str) -> Info {
        match self.try_info(section) {
            Ok(info) => info,
            Err(error) => panic!("{error}"),
        }
    }

    /// A section of INFO, from a server that may be gone.
    pub fn try_info(&mut self, section: &str) -> io::Result<Info> {
        let reply = self.try_call(&["INFO", section])?;
        Ok(Info::new(reply.text().to_owned()))
    }

    /// The next reply, from a server that may be gone.
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

impl Stream {
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
