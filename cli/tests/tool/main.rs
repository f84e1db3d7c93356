//! The real binary against real masters. Nothing here looks inside: commands are started, signals sent, terminals typed into,
//! and what comes out is read.

mod completions;
mod contention;
mod demo;
mod deployments;
mod doctor;
mod exits;
mod flock;
mod input;
mod inspect;
mod loss;
mod pty;
mod release;
mod scripts;
#[allow(dead_code)] // The guard of the client's tests; not all of it is needed here.
#[path = "../../../client/tests/servers/server.rs"]
mod server;
mod signals;
mod terminal;
mod tool;
mod unreachable;

/// A server with settings under which it forgets nothing while a test runs.
fn masters<const N: usize>() -> [server::Server; N] {
    server::Server::start_many(&[])
}
