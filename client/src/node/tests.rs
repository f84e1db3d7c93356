//! The state of a node and what its watchers see agree, and requests to it are small.

use std::time::Duration;

use redis::IntoConnectionInfo;
use redislock_testkit::Server;

use super::*;
use crate::link::Settings;

fn node(url: &str) -> Node {
    let info = url.into_connection_info().unwrap();
    let link = Settings::default().single(info).unwrap();
    Node::new("one".to_owned(), link, Duration::from_secs(60))
}

/// Every request to every node is a future on the heap: what it does not need costs time.
#[test]
fn a_request_to_a_single_server_has_no_room_for_that_to_a_cluster() {
    let node = Arc::new(node("redis://127.0.0.1:1"));
    let asked = node.ask(Arc::new(command::node()));
    let size = size_of_val(&asked);
    assert!(size < 2048, "{size} bytes");
}

#[tokio::test]
async fn an_answer_on_a_connection_that_has_ended_since_does_not_make_the_node_seem_up() {
    let server = Server::start();
    let node = node(&server.url());
    let (connection, status) = node.dial().await.unwrap();
    assert_eq!(node.confirm(&status, Some(connection)), Ok(Known::Same));
    let first = node.standing();
    assert!(first.up && node.shared().is_ok());

    node.ended(first.generation, Verdict::unreachable("closed"));
    assert!(node.standing().redialling);
    let late = node.confirm(&status, None);
    assert!(matches!(late, Err(Verdict::Unreachable(_))), "{late:?}");
    assert!(!node.is_up() && node.shared().is_err());
    assert!(node.standing().redialling, "it is still being dialled");

    let (connection, status) = node.dial().await.unwrap();
    assert_eq!(node.confirm(&status, Some(connection)), Ok(Known::Same));
    // A late error of the old connection does not affect the new one.
    node.ended(first.generation, Verdict::unreachable("closed"));
    let second = node.standing();
    assert!(second.up && !second.redialling && node.shared().is_ok());
    assert_eq!(second.closed, first.generation);
}
