#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod acquire;
mod attempt;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod command;
#[cfg(feature = "election")]
mod election;
mod error;
mod fleet;
mod guard;
mod hold;
mod host;
mod keeper;
mod link;
mod lock;
mod node;
#[cfg(feature = "observe")]
mod observe;
mod quorum;
mod redlock;
mod release;
// All fields of an answer are parsed, also those that this build does not use, so that a missing
// field is an error.
#[cfg_attr(not(feature = "observe"), expect(dead_code))]
mod reply;
mod round;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;

pub use crate::client::{Event, Metrics};
pub use crate::command::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_NODE_TIMEOUT, DEFAULT_TTL};
#[cfg(feature = "election")]
pub use crate::election::{Election, Leader, Leadership, Observation};
pub use crate::error::{Error, Loss, NodeReport, Reports, Verdict};
pub use crate::guard::{Guard, Held};
pub use crate::host::Moment;
pub use crate::link::Credentials;
pub use crate::lock::{Lock, Owner};
#[cfg(feature = "observe")]
pub use crate::observe::{Answer, Observer, Statuses, Ticket};
pub use crate::redlock::{Builder, Redlock};
pub use crate::release::Released;
#[cfg(feature = "observe")]
pub use crate::reply::{Holder, LockStatus, NodeStatus};
/// The crate for the commands of [`Guard::command`] and the connection settings.
pub use redis;
/// The type that [`Held::lost_token`] returns.
pub use tokio_util::sync::CancellationToken;
