//! The lock itself, as a pure state machine: requests, events and the time go in; an outcome,
//! changes to the keyspace and replies to the waiters come out. No Redis, no clock, no I/O, no
//! randomness.
//!
//! [`Table`] is the entry point. It keeps every lock of a node, the waiters, and the deadlines.

#![forbid(unsafe_code)]

mod bytes;
pub mod fence;
pub mod lock;
pub mod payload;
pub mod quarantine;
pub mod queue;
pub mod replication_lease;
pub mod slots;
pub mod small;
pub mod stats;
pub mod steady;
pub mod table;
pub mod time;
pub mod token;
pub mod wheel;
pub mod wire;

pub use table::Table;
