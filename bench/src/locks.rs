//! The two ways to lock that are compared: the module's commands, and `SET NX PX` with a script
//! that compares and deletes.

use std::fmt::Write;

use redislock_testkit::{Connection, Value};

use crate::Outcome;
use crate::measure::Side;
use crate::measured::put;

/// The release that everybody writes.
const SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// The name of a lock.
pub fn name(number: usize) -> String {
    format!("lock:{number:06}")
}

/// A token of 36 bytes, as long as a UUID.
pub fn token(number: usize) -> String {
    let mut token = String::with_capacity(36);
    // Writing to a string does not fail.
    let _ = write!(token, "{number:08x}-5c1d-4f6e-9b7a-{:012x}", number * 7919);
    token
}

/// Knows how to send either side's commands.
pub struct Wording {
    script: String,
}

impl Wording {
    pub fn new(connection: &mut Connection) -> Outcome<Self> {
        match connection.try_call(&["SCRIPT", "LOAD", SCRIPT])? {
            Value::Bulk(sha) => Ok(Self {
                script: String::from_utf8(sha)?,
            }),
            other => Err(format!("SCRIPT LOAD: {other:?}").into()),
        }
    }

    pub fn acquire(&self, side: Side, buffer: &mut Vec<u8>, number: usize, ttl: &str) {
        let (name, token) = (name(number), token(number));
        match side {
            Side::Ours => put(buffer, &["LOCK.ACQUIRE", &name, &token, ttl]),
            Side::Peer => put(buffer, &["SET", &name, &token, "NX", "PX", ttl]),
        }
    }

    pub fn release(&self, side: Side, buffer: &mut Vec<u8>, number: usize) {
        let (name, token) = (name(number), token(number));
        match side {
            Side::Ours => put(buffer, &["LOCK.RELEASE", &name, &token]),
            Side::Peer => put(buffer, &["EVALSHA", &self.script, "1", &name, &token]),
        }
    }

    /// Commands that acquire a range of locks, then release them.
    pub fn pairs(&self, side: Side, numbers: std::ops::Range<usize>) -> Vec<u8> {
        let mut buffer = Vec::new();
        for number in numbers.clone() {
            self.acquire(side, &mut buffer, number, "30000");
        }
        for number in numbers {
            self.release(side, &mut buffer, number);
        }
        buffer
    }
}
