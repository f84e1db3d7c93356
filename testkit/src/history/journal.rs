//! The format in which processes record what happens: one JSON object per line.
//!
//! Moments are microseconds of one clock that all writers share (CLOCK_BOOTTIME on a machine, true
//! time in a simulation). A writer reads the clock on the side that makes a claim shorter: before
//! it sends a request, after it gets a reply, before it releases. A process that is paused in
//! between claims less.

use serde::{Deserialize, Serialize};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in microseconds.
    pub at: u64,
    /// The process that writes.
    pub client: u32,
    /// The number of the attempt to acquire that the line is about; 0 if it is about none.
    pub claim: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum What {
    /// A lock is about to be requested.
    Ask {
        /// The names of the locks.
        locks: Vec<String>,
        /// Whether others may share it.
        shared: bool,
    },
    /// It was acquired, and is valid until then.
    Held {
        /// Its fence.
        fence: u64,
        /// The end of its validity, in microseconds.
        until: u64,
    },
    /// It could not be acquired.
    Failed {
        /// The reason, in one word.
        why: String,
    },
    /// The guard says that it is held.
    Valid {
        /// The end of its validity, in microseconds.
        until: u64,
    },
    /// The owner re-enters a lock that it holds.
    Again {
        /// The fence that it got.
        fence: u64,
        /// When it asked, in microseconds.
        asked: u64,
    },
    /// The owner has released a re-entry, and still holds the lock.
    Leave {
        /// When it asked, in microseconds.
        asked: u64,
    },
    /// The owner re-entered the lock on one server and released the re-entry, in one script.
    Reentered {
        /// The fence before, in the reply to the re-entry, before the release, and after it; 0 if
        /// the server granted nothing.
        fences: [u64; 4],
        /// The hold count before, before the release, and after it; 0 if it was not held.
        holds: [u64; 3],
        /// How many holds the release removed.
        removed: u64,
    },
    /// The guard says that the lock is lost.
    Lost,
    /// The holder is about to release.
    Release,
    /// The release was answered.
    Released {
        /// Whether the lock was held until then; none if that is not known.
        held: Option<bool>,
    },
    /// A resource that compares fences was written to.
    Write {
        /// The lock that protects it.
        lock: String,
        /// The fence of the writer.
        fence: u64,
        /// The value that the writer had read: it writes one more.
        read: u64,
        /// The value that the resource had; none if it has refused the fence.
        was: Option<u64>,
        /// If it was delayed in the network: it arrived then or later, in microseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arrived: Option<u64>,
    },
    /// A fault begins or ends.
    Fault {
        /// Which one, for the reader.
        name: String,
        /// Its family.
        family: String,
        /// Whether it begins.
        begins: bool,
        /// Whether it had an effect, if it is known: when it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        happened: Option<bool>,
    },
}

/// Reads a line. Only the last line of a process that was killed may be incomplete.
pub fn read(line: &str) -> Result<Entry, String> {
    serde_json::from_str(line).map_err(|error| format!("{error} in {line:?}"))
}

impl Entry {
    /// The line, with its end.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("an entry is plain text and numbers");
        line.push('\n');
        line
    }
}
