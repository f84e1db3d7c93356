//! The protocol of the server, as far as the client speaks it: commands in, replies out.

/// Removes the next complete command from the front of `input`. `Err`: this is not a command.
pub fn take_command(input: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, Malformed> {
    let mut reader = Reader {
        bytes: input,
        at: 0,
    };
    let Some(count) = reader.header(b'*')? else {
        return Ok(None);
    };
    let mut args = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let Some(length) = reader.header(b'$')? else {
            return Ok(None);
        };
        let Some(arg) = reader.bulk(length)? else {
            return Ok(None);
        };
        args.push(arg);
    }
    let end = reader.at;
    input.drain(..end);
    Ok(Some(args))
}

/// The bytes are not a command of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// A line such as `*3`; `None` if it is not complete yet.
    fn header(&mut self, kind: u8) -> Result<Option<usize>, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line = rest.get(..end).unwrap_or_default();
        let (Some(first), Some(digits)) = (line.first(), line.get(1..)) else {
            return Err(Malformed);
        };
        let number = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok());
        self.at += end + 2;
        match number {
            Some(number) if *first == kind => Ok(Some(number)),
            _ => Err(Malformed),
        }
    }

    fn bulk(&mut self, length: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(whole) = rest.get(..length.saturating_add(2)) else {
            return Ok(None);
        };
        let (bulk, end) = whole.split_at(length);
        if end != b"\r\n" {
            return Err(Malformed);
        }
        self.at += length + 2;
        Ok(Some(bulk.to_vec()))
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Ok,
    Null,
    Number(u64),
    Text(String),
    Error(String),
    Array(Vec<Reply>),
    Map(Vec<(&'static str, Reply)>),
}

impl Reply {
    /// Writes the reply in version 3 or version 2 of the protocol.
    pub fn write(&self, resp3: bool, out: &mut Vec<u8>) {
        let mut line = |text: String| out.extend_from_slice(text.as_bytes());
        match self {
            Self::Ok => line("+OK\r\n".to_owned()),
            Self::Null if resp3 => line("_\r\n".to_owned()),
            Self::Null => line("$-1\r\n".to_owned()),
            Self::Number(number) => line(format!(":{number}\r\n")),
            Self::Text(text) => line(format!("${}\r\n{text}\r\n", text.len())),
            Self::Error(text) => line(format!("-{text}\r\n")),
            Self::Array(items) => {
                line(format!("*{}\r\n", items.len()));
                items.iter().for_each(|item| item.write(resp3, out));
            }
            Self::Map(fields) => {
                if resp3 {
                    line(format!("%{}\r\n", fields.len()))
                } else {
                    line(format!("*{}\r\n", 2 * fields.len()))
                }
                for (name, value) in fields {
                    Self::Text((*name).to_owned()).write(resp3, out);
                    value.write(resp3, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_when_it_is_whole() {
        let command = b"*2\r\n$4\r\nPING\r\n$1\r\nx\r\n";
        for cut in 0..command.len() {
            let mut part = command[..cut].to_vec();
            assert_eq!(take_command(&mut part), Ok(None), "{cut} bytes");
        }
        let mut input = [command.as_slice(), b"*1\r\n"].concat();
        let args = take_command(&mut input).unwrap().unwrap();
        assert_eq!(args, [b"PING".to_vec(), b"x".to_vec()]);
        assert_eq!(input, b"*1\r\n");
    }

    #[test]
    fn what_is_no_command_is_refused() {
        assert_eq!(take_command(&mut b"PING\r\n".to_vec()), Err(Malformed));
        assert_eq!(
            take_command(&mut b"*1\r\n$1\r\nxyz".to_vec()),
            Err(Malformed)
        );
    }

    #[test]
    fn both_versions_of_the_protocol_write_their_own_null_and_map() {
        let reply = Reply::Map(vec![("a", Reply::Null)]);
        let written = |resp3| {
            let mut out = Vec::new();
            reply.write(resp3, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(false), "*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(written(true), "%1\r\n$1\r\na\r\n_\r\n");
    }
}
