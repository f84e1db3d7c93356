//! The real binary against real servers: the tests start commands, send signals, type into
//! terminals, and read the output.

mod completions;
mod contention;
mod demo;
mod deployments;
mod doctor;
mod exits;
mod exporter;
mod flock;
mod input;
mod inspect;
mod loss;
mod monitoring;
mod pty;
mod release;
mod scripts;
#[allow(dead_code)] // Shared with the client's tests, which use more of it.
#[path = "../../../client/tests/servers/server.rs"]
mod server;
mod signals;
mod terminal;
mod tool;
mod unreachable;

/// Servers that keep their locks while a test runs.
fn masters<const N: usize>() -> [server::Server; N] {
    server::Server::start_many(&[])
}
