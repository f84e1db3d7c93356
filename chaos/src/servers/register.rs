//! A resource that compares fences, on a plain server without the module: it remembers the
//! highest fence that has read or written, and refuses lower ones.

use std::sync::{Mutex, PoisonError};

use redislock_testkit::{Connection, Value, encode};

const CHECK: &str = "\
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if tonumber(ARGV[1]) < fence then return false end
";

const READ: &str = "\
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return tonumber(redis.call('HGET', KEYS[1], 'value') or '0')";

const WRITE: &str = "\
local was = tonumber(redis.call('HGET', KEYS[1], 'value') or '0')
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2] + 1)
return was";

/// A client of it.
pub struct Register {
    port: u16,
    compares: bool,
    connection: Mutex<Option<Connection>>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The value that was there before.
    Over(u64),
    /// A higher fence.
    Refused,
}

/// A write whose last byte is still on its way.
pub struct Delayed {
    connection: Connection,
    last: u8,
}

impl Delayed {
    /// Lets it arrive. None if the server does not reply.
    pub fn arrive(mut self) -> Option<Written> {
        self.connection.try_send_raw(&[self.last]).ok()?;
        Written::from(&self.connection.try_receive().ok()?)
    }
}

impl Written {
    fn from(reply: &Value) -> Option<Self> {
        match reply {
            Value::Integer(was) => u64::try_from(*was).ok().map(Written::Over),
            Value::Null => Some(Written::Refused),
            _ => None,
        }
    }

    /// The value that was there before; none if the write was refused.
    pub fn accepted(self) -> Option<u64> {
        match self {
            Written::Over(value) => Some(value),
            Written::Refused => None,
        }
    }
}

impl Register {
    /// The registers of the server at this port. `compares`: whether they compare fences.
    pub fn at(port: u16, compares: bool) -> Self {
        Self {
            port,
            compares,
            connection: Mutex::new(None),
        }
    }

    /// The value; none if the fence is too low, or the server does not reply.
    pub fn read(&self, lock: &str, fence: u64) -> Option<u64> {
        match self.eval(READ, lock, &[fence])? {
            Value::Integer(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// Writes the value that was read plus one. None if the server does not reply.
    pub fn write(&self, lock: &str, fence: u64, read: u64) -> Option<Written> {
        Written::from(&self.eval(WRITE, lock, &[fence, read])?)
    }

    /// Sends the same on a connection of its own, except for the last byte.
    pub fn write_late(&self, lock: &str, fence: u64, read: u64) -> Option<Delayed> {
        let mut bytes = encode(&self.words(WRITE, lock, &[fence, read]));
        let last = bytes.pop()?;
        let mut connection = Connection::try_open(self.port).ok()?;
        connection.try_send_raw(&bytes).ok()?;
        Some(Delayed { connection, last })
    }

    fn words(&self, script: &str, lock: &str, numbers: &[u64]) -> Vec<String> {
        let check = if self.compares { CHECK } else { "" };
        let script = format!("{check}{script}");
        let mut words = vec!["EVAL".to_owned(), script, "1".into(), lock.to_owned()];
        words.extend(numbers.iter().map(u64::to_string));
        words
    }

    fn eval(&self, script: &str, lock: &str, numbers: &[u64]) -> Option<Value> {
        let words = self.words(script, lock, numbers);
        let place = self.connection.lock();
        let mut place = place.unwrap_or_else(PoisonError::into_inner);
        let connection = match place.take() {
            Some(connection) => connection,
            None => Connection::try_open(self.port).ok()?,
        };
        let connection = place.insert(connection);
        match connection.try_call(&words) {
            Ok(reply) => Some(reply),
            Err(_) => {
                *place = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redislock_testkit::Server;

    use super::*;

    /// A write with fence 1 that arrives after a write with fence 2.
    fn late_write(compares: bool) -> Option<Written> {
        let server = Server::options().without_module().start();
        let register = Register::at(server.port(), compares);
        assert_eq!(register.read("job", 1), Some(0));
        let delayed = register.write_late("job", 1, 0).expect("a connection");
        assert_eq!(register.read("job", 2), Some(0));
        assert_eq!(register.write("job", 2, 0), Some(Written::Over(0)));
        delayed.arrive()
    }

    #[test]
    fn a_late_write_is_refused_after_a_later_holder() {
        assert_eq!(late_write(true), Some(Written::Refused));
    }

    #[test]
    fn without_the_fence_check_a_late_write_overwrites_another() {
        assert_eq!(late_write(false), Some(Written::Over(1)));
    }

    #[test]
    fn a_late_write_is_accepted_if_nobody_has_used_the_register_since() {
        let server = Server::options().without_module().start();
        let register = Register::at(server.port(), true);
        let delayed = register.write_late("job", 1, 0).expect("a connection");
        assert_eq!(delayed.arrive(), Some(Written::Over(0)));
    }
}
