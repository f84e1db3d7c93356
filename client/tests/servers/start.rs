//! Starting while not every node can serve: one hangs, is busy, is full, or none is there yet.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redislock_client::{Error, Released};

use crate::builder;
use crate::server::Server;

/// Longer than any connection takes here, shorter than a test may.
const LONG: Duration = Duration::from_secs(60);

/// A connection whose replies nobody has read yet.
fn send(server: &Server, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Keeps the server busy with a script until the script is killed.
fn make_busy(server: &Server) {
    let script = send(server, "EVAL \"while true do end\" 0\r\n");
    // It goes on without its client.
    drop(script);
    while !server
        .try_run::<()>(&["PING"])
        .is_err_and(|error| error.code() == Some("BUSY"))
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn end_script(server: &Server) {
    let _: () = server.run(&["SCRIPT", "KILL"]);
}

#[tokio::test]
async fn a_minority_that_hangs_is_not_waited_for() {
    let servers = Server::start_many::<3>(&[]);
    servers[2].stop();
    let started = Instant::now();
    let client = builder(&servers).connect_timeout(LONG).connect().await;
    assert!(started.elapsed() < LONG / 2);
    let guard = client.unwrap().lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    servers[2].resume();
}

#[tokio::test]
async fn a_minority_that_runs_a_script_is_no_error() {
    let servers = Server::start_many::<3>(&["busy-reply-threshold 10"]);
    make_busy(&servers[0]);
    let client = builder(&servers).connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    end_script(&servers[0]);
}

#[tokio::test]
async fn a_node_that_runs_a_script_is_named_as_what_it_is() {
    let server = Server::start(&["busy-reply-threshold 10"]);
    make_busy(&server);
    let with_database = format!("{}/2", server.url());
    for url in [server.url(), with_database] {
        let error = redislock_client::Redlock::connect([url]).await;
        let error = error.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
        assert!(error.to_string().contains("BUSY"), "{error}");
    }
    end_script(&server);
}

#[tokio::test]
async fn a_minority_that_is_full_is_no_error() {
    let [first, second] = Server::start_many::<2>(&[]);
    let full = Server::start(&["maxclients 1"]);
    // The place may still be taken by the one who asked whether the server is there.
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
