#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attempt;
#[cfg(feature = "blocking")]
pub mod blocking;
mod builder;
mod census;
mod client;
mod clock;
mod command;
mod connect;
mod election;
mod error;
mod fleet;
mod giveback;
mod guard;
mod hold;
mod keeper;
mod link;
mod lock;
mod node;
mod observer;
mod options;
mod owner;
mod quorum;
mod redlock;
mod reply;
mod status;
mod ticker;
mod ticket;
mod token;
mod turnstile;

pub use crate::builder::Builder;
pub use crate::clock::Moment;
pub use crate::election::{Election, Leader, Leadership, Observation};
pub use crate::error::{Error, NodeReport, Reports, Verdict};
pub use crate::guard::{Guard, Held};
pub use crate::hold::Released;
pub use crate::link::Credentials;
pub use crate::lock::Lock;
pub use crate::observer::{Answer, Observer};
pub use crate::options::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_NODE_TIMEOUT, DEFAULT_TTL};
pub use crate::owner::Owner;
pub use crate::redlock::Redlock;
pub use crate::status::{Holder, LockStatus, NodeStatus};
pub use crate::ticket::Ticket;
/// What [`Guard::lost_token`] returns.
pub use tokio_util::sync::CancellationToken;
