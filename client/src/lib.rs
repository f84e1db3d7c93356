#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod acquire;
mod attempt;
mod background;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod census;
mod client;
mod clock;
mod command;
mod connect;
mod election;
mod entries;
mod error;
mod fleet;
mod guard;
mod hold;
mod keeper;
mod link;
mod lock;
mod metrics;
mod node;
#[cfg(feature = "observe")]
mod observer;
mod options;
mod owner;
mod queue;
mod quorum;
mod redlock;
mod release;
mod renewal;
mod reply;
mod round;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
// An answer that lacks a field is refused, also where nobody shows that field.
#[cfg_attr(not(feature = "observe"), expect(dead_code))]
mod status;
#[cfg(feature = "observe")]
mod ticket;
mod token;

pub use crate::builder::Builder;
pub use crate::clock::Moment;
pub use crate::election::{Election, Leader, Leadership, Observation};
pub use crate::error::{Error, NodeReport, Reports, Verdict};
pub use crate::guard::{Guard, Held};
pub use crate::hold::Loss;
pub use crate::link::Credentials;
pub use crate::lock::Lock;
pub use crate::metrics::{Event, Metrics};
#[cfg(feature = "observe")]
pub use crate::observer::{Answer, Observer};
pub use crate::options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_NODE_TIMEOUT, DEFAULT_TTL};
pub use crate::owner::Owner;
pub use crate::redlock::Redlock;
pub use crate::release::Released;
#[cfg(feature = "observe")]
pub use crate::status::{Holder, LockStatus, NodeStatus};
#[cfg(feature = "observe")]
pub use crate::ticket::Ticket;
/// The commands of [`Guard::command`], and the connection settings, are those of this crate.
pub use redis;
/// What [`Guard::lost_token`] returns.
pub use tokio_util::sync::CancellationToken;
