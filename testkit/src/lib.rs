//! The test harness of the project: real servers that a guard starts and stops, connections that
//! show each reply as it was sent, links and clocks that fail on demand, and a checker of
//! histories. It is plain `std` with threads, so that async tests, the benchmark and the demo can
//! use it too.
//!
//! `REDIS_SERVER` names the server's binary (default: redis-server or valkey-server from PATH),
//! `REDISLOCK_SO` the module (default: `redislock.so` in the folder of the project).

mod clock;
mod connection;
mod disk;
mod fragile;
mod from_reply;
mod gate;
mod info;
mod installed;
mod interruptions;
mod kind;
mod options;
mod proxy;
mod random;
mod server;
mod value;
mod wait;

pub mod browser;
pub mod cluster;
pub mod history;
pub mod load;
pub mod lock;
pub mod process;
pub mod pty;
pub mod sentinel;
pub mod tls;
pub mod tmux;

use std::time::Duration;

pub use clock::{Shifts, SteppedServer};
pub use connection::{Connection, encode};
pub use disk::Disk;
pub use fragile::fragile_module;
pub use from_reply::FromReply;
pub use gate::Gate;
pub use info::{Info, info_field, info_number};
pub use installed::{find_module, find_server, module_path, project_folder};
pub use interruptions::{Interruptions, Pieces};
pub use kind::Kind;
pub use options::Options;
pub use proxy::{Flow, Proxy};
pub use random::Random;
pub use server::{Server, free_port};
pub use value::{Value, granted, refused};
pub use wait::{wait_for_sync, wait_patiently, wait_until};

/// How long to wait for what must happen: far longer than a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(60);
