//! The compared ways to lock: the module's commands, what people build from the server's
//! own commands, and a module that makes only the API calls that every lock needs.

use std::fmt::Write;
use std::ops::Range;

use redislock_testkit::{Connection, Server, Value};

use crate::Outcome;
use crate::hosts::Host;
use crate::measured::{check_yes, pipeline, put};
use crate::results::{BARE, OURS, UNTRAINED};

/// Other locks of a server, which are held all the time: so many that the tables of the server
/// neither grow nor shrink while the others are measured.
pub const OTHERS: Range<usize> = 100_000..113_000;

/// The usual script for a release.
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

/// A way to lock and to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Ours,
    /// The same by [`Host::Untrained`].
    Untrained,
    /// `SET NX PX`, and a script that compares and deletes.
    Script,
    /// `SET NX PX`, and the command of Valkey 9 that compares and deletes.
    DelIfEq,
    /// The same two on the server with our module, whose listening to events they pay for.
    ScriptBeside,
    DelIfEqBeside,
    /// `SET NX PX` and `DEL`: another client that holds the lock by now loses it.
    Del,
    /// `bench/bare`.
    Bare,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::Ours,
        Self::Untrained,
        Self::Script,
        Self::DelIfEq,
        Self::ScriptBeside,
        Self::DelIfEqBeside,
        Self::Del,
        Self::Bare,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Untrained => UNTRAINED,
            Self::Script => "SET NX PX + EVALSHA",
            Self::DelIfEq => "SET NX PX + DELIFEQ",
            Self::ScriptBeside => "SET NX PX + EVALSHA, same server",
            Self::DelIfEqBeside => "SET NX PX + DELIFEQ, same server",
            Self::Del => "SET NX PX + DEL (no check)",
            Self::Bare => BARE,
        }
    }

    /// Where it is measured.
    pub fn host(self) -> Host {
        match self {
            Self::Ours | Self::ScriptBeside | Self::DelIfEqBeside => Host::Redislock,
            Self::Untrained => Host::Untrained,
            Self::Script | Self::DelIfEq | Self::Del => Host::Plain,
            Self::Bare => Host::Bare,
        }
    }

    /// The command that a server must have for it.
    fn command(self) -> &'static str {
        match self {
            Self::Ours | Self::Untrained => "LOCK.ACQUIRE",
            Self::Script | Self::ScriptBeside => "EVALSHA",
            Self::DelIfEq | Self::DelIfEqBeside => "DELIFEQ",
            Self::Del => "DEL",
            Self::Bare => "BARE.ACQUIRE",
        }
    }
}

/// Knows how to send the commands of each way.
pub struct Ways {
    /// Those that are measured on this server.
    pub all: Vec<Way>,
    script: String,
}

impl Ways {
    /// Those that are measured on this host, as far as the server has their commands.
    pub fn of(host: Host, connection: &mut Connection) -> Outcome<Self> {
        let script = match connection.try_call(&["SCRIPT", "LOAD", SCRIPT])? {
            Value::Bulk(sha) => String::from_utf8(sha)?,
            other => return Err(format!("SCRIPT LOAD: {other:?}").into()),
        };
        let mut all = Vec::new();
        for way in Way::ALL {
            let command = ["COMMAND", "INFO", way.command()];
            if way.host() == host
                && let Value::Array(found) = connection.try_call(&command)?
                && matches!(found[..], [Value::Array(_)])
            {
                all.push(way);
            }
        }
        Ok(Self { all, script })
    }

    pub fn acquire(&self, way: Way, buffer: &mut Vec<u8>, number: usize, ttl: &str) {
        let (name, token) = (name(number), token(number));
        match way {
            Way::Ours | Way::Untrained => put(buffer, &["LOCK.ACQUIRE", &name, &token, ttl]),
            Way::Bare => put(buffer, &["BARE.ACQUIRE", &name, &token, ttl]),
            _ => put(buffer, &["SET", &name, &token, "NX", "PX", ttl]),
        }
    }

    pub fn release(&self, way: Way, buffer: &mut Vec<u8>, number: usize) {
        let (name, token) = (name(number), token(number));
        match way {
            Way::Ours | Way::Untrained => put(buffer, &["LOCK.RELEASE", &name, &token]),
            Way::Script | Way::ScriptBeside => {
                put(buffer, &["EVALSHA", &self.script, "1", &name, &token]);
            }
            Way::DelIfEq | Way::DelIfEqBeside => put(buffer, &["DELIFEQ", &name, &token]),
            Way::Del => put(buffer, &["DEL", &name]),
            Way::Bare => put(buffer, &["BARE.RELEASE", &name, &token]),
        }
    }

    /// Commands that acquire a range of locks.
    pub fn acquires(&self, way: Way, numbers: Range<usize>, ttl: &str) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(numbers.len() * 120);
        numbers.for_each(|number| self.acquire(way, &mut buffer, number, ttl));
        buffer
    }

    /// Commands that release a range of locks.
    pub fn releases(&self, way: Way, numbers: Range<usize>) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(numbers.len() * 120);
        numbers.for_each(|number| self.release(way, &mut buffer, number));
        buffer
    }

    /// Fills the server with [`OTHERS`] of the kind that is measured on it, and with nothing else.
    pub fn fill_with_locks(&self, connection: &mut Connection) -> Outcome<()> {
        check_yes(&connection.try_call(&["FLUSHALL"])?)?;
        let locks = self.acquires(self.all[0], OTHERS, "6000000");
        pipeline(connection, &locks, OTHERS.len())
    }
}

/// A server, a connection that is measured, and one that reads the figures.
pub struct Place {
    // The connections close before the server ends.
    pub connection: Connection,
    pub control: Connection,
    pub ways: Ways,
    pub server: Server,
}

impl Place {
    pub fn start(host: Host, settings: &[&str]) -> Outcome<Self> {
        let server = host.start(settings)?;
        let (mut control, connection) = (server.try_connect()?, server.try_connect()?);
        Ok(Self {
            ways: Ways::of(host, &mut control)?,
            connection,
            control,
            server,
        })
    }
    pub fn fill_with_locks(&mut self) -> Outcome<()> {
        self.ways.fill_with_locks(&mut self.connection)
    }
}
