//! The real binary against real servers: the tests start commands, send signals, type into
//! terminals, and read the output.

mod completions;
mod contention;
mod deployments;
mod doctor;
mod doctor_servers;
mod exits;
mod exporter;
mod flock;
mod input;
mod inspect;
mod loss;
mod many_locks;
mod monitoring;
mod page;
mod refusal;
mod release;
mod runbooks;
mod scripts;
mod serve;
mod serve_access;
mod serve_limits;
mod signals;
mod silent_nodes;
mod terminal;
mod terminal_picture;
mod tool;
mod top;
mod unreachable;
mod users;

use redislock_testkit::Server;

/// Servers that keep their locks while a test runs.
fn masters<const N: usize>() -> [Server; N] {
    Server::start_many()
}
