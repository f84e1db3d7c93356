//! Starting while not every node can serve: one hangs, is busy, is full, or none is there yet.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redislock_client::{Error, Redlock, Released, Verdict};
use redislock_testkit::{Server, free_port};

use crate::{NODE_TIMEOUT, builder};

/// Longer than any connection takes here, shorter than a test may.
const LONG: Duration = Duration::from_secs(60);

/// A connection whose replies nobody has read yet.
fn send(server: &Server, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Keeps the server busy with a script until the script is killed.
fn make_busy(server: &Server) {
    let script = send(server, "EVAL \"while true do end\" 0\r\n");
    // The script continues without its client.
    drop(script);
    while !server
        .try_run::<()>(&["PING"])
        .is_err_and(|error| error.to_string().contains("BUSY"))
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn end_script(server: &Server) {
    let _: () = server.run(&["SCRIPT", "KILL"]);
}

#[tokio::test]
async fn a_minority_that_hangs_is_not_waited_for() {
    let servers = Server::start_many::<3>();
    servers[2].pause();
    let started = Instant::now();
    let client = builder(&servers).connect_timeout(LONG).connect().await;
    assert!(started.elapsed() < LONG / 2);
    let guard = client.unwrap().lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    servers[2].resume();
}

#[tokio::test]
async fn a_minority_that_runs_a_script_is_no_error() {
    let servers = Server::options()
        .configs(["busy-reply-threshold 10"])
        .start_many::<3>();
    make_busy(&servers[0]);
    let client = builder(&servers).connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    end_script(&servers[0]);
}

#[tokio::test]
async fn a_node_that_runs_a_script_is_named_as_what_it_is() {
    let server = Server::with(["busy-reply-threshold 10"]);
    make_busy(&server);
    let with_database = format!("{}/2", server.url());
    for url in [server.url(), with_database] {
        let error = Redlock::connect([url]).await;
        let error = error.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
        assert!(error.to_string().contains("BUSY"), "{error}");
    }
    end_script(&server);
}

#[tokio::test]
async fn a_minority_that_is_full_is_no_error() {
    let [first, second] = Server::start_many::<2>();
    let full = Server::with(["maxclients 1"]);
    // The connection of the readiness check may still count.
    let _taken = loop {
        let mut stream = send(&full, "PING\r\n");
        let mut reply = [0; 5];
        if stream.read_exact(&mut reply).is_ok() && &reply == b"+PONG" {
            break stream;
        }
    };
    let servers = [first, second, full];
    let client = builder(&servers).connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_client_may_start_before_its_servers() {
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let builder = Redlock::builder().node(url).node_timeout(NODE_TIMEOUT);
    let client = builder.connect_lazy().unwrap();
    let error = client
        .lock("x")
        .try_acquire()
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    let verdict = &error.nodes()[0].verdict;
    assert!(matches!(verdict, Verdict::Unreachable(_)), "{error}");
    let lock = client.lock("x").wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
    let _server = Server::options().port(port).start();
    assert_eq!(waiter.await.unwrap(), Released::WasHeld);
}

#[tokio::test]
async fn the_first_request_of_a_lazy_client_finds_its_nodes() {
    let servers = Server::start_many::<3>();
    let client = builder(&servers).connect_lazy().unwrap();
    let guard = client.lock("x").try_acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_ticket_is_extended_and_released_by_a_client_that_is_not_connected_yet() {
    let servers = Server::start_many::<3>();
    let client = builder(&servers).connect().await.unwrap();
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let ticket = guard.detach().unwrap();
    let (token, fence) = (ticket.token(), ticket.fence());
    let client = builder(&servers).connect_lazy().unwrap();
    let extended = client.extend_ticket("x", token, fence, LONG).await;
    assert!(extended.is_ok(), "{extended:?}");
    let client = builder(&servers).connect_lazy().unwrap();
    assert_eq!(client.release_ticket("x", token).await, Released::WasHeld);
}

#[tokio::test]
async fn what_is_wrong_with_the_nodes_of_a_lazy_client_is_said_by_its_requests() {
    let server = Server::options().without_module().start();
    let builder = Redlock::builder().node(server.url());
    let client = builder.connect_lazy().unwrap();
    let error = client.lock("x").acquire().await.map(|_| ()).unwrap_err();
    assert_eq!(error.nodes()[0].verdict, Verdict::ModuleMissing);
}

#[test]
fn a_lazy_client_needs_a_runtime_and_the_blocking_one_brings_it() {
    let server = Server::start();
    let outside = Redlock::builder().node(server.url()).connect_lazy();
    assert!(matches!(outside, Err(Error::Invalid(_))));
    let builder = redislock_client::blocking::Redlock::builder().node(server.url());
    let builder = builder.node_timeout(NODE_TIMEOUT);
    let client = builder.connect_lazy().unwrap();
    assert_eq!(
        client.lock("x").acquire().unwrap().release(),
        Released::WasHeld
    );
}
