//! A resource that compares fences, on a plain server without the module: it remembers the
//! highest fence that has read or written, and refuses lower ones.

use std::sync::{Mutex, PoisonError};

use redislock_testkit::{Connection, Value};

const READ: &str = "\
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if tonumber(ARGV[1]) < fence then return false end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return tonumber(redis.call('HGET', KEYS[1], 'value') or '0')";

const WRITE: &str = "\
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if tonumber(ARGV[1]) < fence then return false end
local was = tonumber(redis.call('HGET', KEYS[1], 'value') or '0')
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2] + 1)
return was";

/// A client of it.
pub struct Register {
    port: u16,
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

impl Written {
    /// The value that was there before; none if the write was refused.
    pub fn accepted(self) -> Option<u64> {
        match self {
            Written::Over(value) => Some(value),
            Written::Refused => None,
        }
    }
}

impl Register {
    /// The registers of the server at this port.
    pub fn at(port: u16) -> Self {
        Self {
            port,
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
        match self.eval(WRITE, lock, &[fence, read])? {
            Value::Integer(was) => u64::try_from(was).ok().map(Written::Over),
            Value::Null => Some(Written::Refused),
            _ => None,
        }
    }

    fn eval(&self, script: &str, lock: &str, numbers: &[u64]) -> Option<Value> {
        let mut words = vec![
            "EVAL".to_owned(),
            script.to_owned(),
            "1".into(),
            lock.to_owned(),
        ];
        words.extend(numbers.iter().map(u64::to_string));
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
