//! Connecting: what is said about nodes, and what is never shown.

use redislock_client::{Error, Redlock, Released, Verdict};
use redislock_testkit::{Server, free_port};

use crate::{NODE_TIMEOUT, TTL, connect, log, until};

async fn problem(builder: redislock_client::Builder) -> Error {
    builder.connect().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_minority_that_is_down_at_the_start_is_no_error_and_joins_later() {
    let servers = Server::start_many::<2>();
    let late = free_port();
    let urls = [
        servers[0].url(),
        servers[1].url(),
        format!("redis://127.0.0.1:{late}"),
    ];
    let error = problem(Redlock::builder().nodes([&urls[2]])).await;
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(
        matches!(error.nodes()[0].verdict, Verdict::Unreachable(_)),
        "{error}"
    );
    let client = Redlock::builder()
        .nodes(&urls)
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    client.lock("x").acquire().await.unwrap().release().await;
    // No request is sent in the meantime: it is probed in the background.
    let third = Server::options().port(late).start();
    until("it was found", || third.calls("lock.node") > 0).await;
    while third.calls("lock.acquire") == 0 {
        client.lock("x").acquire().await.unwrap().release().await;
    }
}

#[tokio::test]
async fn user_password_and_database_come_from_the_url() {
    let server = Server::with(["user bob on >secret ~* +@all"]);
    let url = format!("redis://bob:secret@127.0.0.1:{}/3", server.port());
    let client = Redlock::connect([&url]).await.unwrap();
    let _guard = client.lock("x").acquire().await.unwrap();
    let mut connection = redis::Client::open(url.as_str())
        .unwrap()
        .get_connection()
        .unwrap();
    let kind: String = redis::cmd("TYPE").arg("x").query(&mut connection).unwrap();
    assert_eq!(kind, "redislock");
    let wrong = format!("redis://bob:wrong@127.0.0.1:{}", server.port());
    let error = problem(Redlock::builder().node(wrong)).await;
    assert!(!format!("{error} {error:?}").contains("wrong@"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_is_a_node_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let _server = Server::with([&format!("unixsocket {}", path.display())]);
    let client = Redlock::connect([format!("unix://{}", path.display())])
        .await
        .unwrap();
    client.lock("x").acquire().await.unwrap().release().await;
}

#[tokio::test]
async fn what_is_risky_but_possible_is_a_warning() {
    log::start();
    let servers = Server::start_many::<2>();
    let durable = Server::with(["appendonly yes", "appendfsync always"]);
    let quarantined = Server::with(["lock.quarantine 100"]);
    let start = log::size();
    connect(&servers).await;
    Redlock::connect([durable.url()]).await.unwrap();
    Redlock::connect([quarantined.url()]).await.unwrap();

    assert!(!log::lines_since(start, "even number of nodes").is_empty());
    let is_warned_about = |server: &Server| {
        let lines = log::lines_since(start, &format!("127.0.0.1:{}", server.port()));
        let mut warnings = lines.into_iter().filter(|line| line.contains("WARN"));
        warnings.any(|line| line.contains("neither durable"))
    };
    assert!(servers.iter().all(is_warned_about));
    assert!(!is_warned_about(&durable) && !is_warned_about(&quarantined));
}

/// The tokens with which the lock was asked for, as MONITOR shows them.
struct Monitor(redis::Connection);

impl Monitor {
    fn of(server: &Server) -> Self {
        Self::at(&server.url())
    }

    fn at(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection().unwrap();
        let command = redis::cmd("MONITOR").get_packed_command();
        connection.send_packed_command(&command).unwrap();
        connection.recv_response().unwrap();
        Self(connection)
    }

    /// The token of the next `LOCK.ACQUIRE key token …`.
    fn next_token(&mut self) -> String {
        loop {
            let line = match self.0.recv_response().unwrap() {
                redis::Value::SimpleString(line) => line,
                other => panic!("{other:?}"),
            };
            let mut words = line.split('"').skip(1).step_by(2);
            if words.next() == Some("LOCK.ACQUIRE") {
                return words.nth(1).unwrap().to_owned();
            }
        }
    }
}

#[tokio::test]
async fn every_attempt_has_a_token_of_its_own() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let mut monitor = Monitor::of(&servers[2]);
    for server in &servers[..2] {
        let _: u64 = server.run(&["LOCK.ACQUIRE", "x", "somebody", "600000"]);
    }
    let mut tokens = Vec::new();
    for _ in 0..5 {
        assert!(client.lock("x").try_acquire().await.is_err());
        tokens.push(monitor.next_token());
    }
    for server in &servers[..2] {
        let _: u64 = server.run(&["LOCK.FORCE", "x"]);
    }
    for _ in 0..5 {
        client.lock("x").acquire().await.unwrap().release().await;
        tokens.push(monitor.next_token());
    }
    assert!(tokens.iter().all(|token| token.len() >= 32), "{tokens:?}");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 10);
}

#[tokio::test]
async fn tokens_and_passwords_are_never_shown() {
    log::start();
    let servers = Server::options()
        .configs(["user bob on >hunter2 ~* +@all"])
        .start_many::<3>();
    let url = |server: &Server| format!("redis://bob:hunter2@127.0.0.1:{}", server.port());
    let client = Redlock::builder()
        .nodes(servers.iter().map(url))
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let mut monitor = Monitor::at(&url(&servers[0]));
    let guard = client.lock("secret").ttl(TTL).acquire().await.unwrap();
    let mut tokens = vec![monitor.next_token()];
    let error = client.lock("secret").try_acquire().await.unwrap_err();
    tokens.push(monitor.next_token());
    let lock = client.lock("secret");
    guard.extend().await.unwrap();
    let held = guard.held();
    let shown = format!("{guard:?} {client:?} {error:?} {error} {lock:?} {held:?}");
    assert_eq!(guard.release().await, Released::WasHeld);
    let said = log::lines("").join("\n");
    assert!(
        said.contains("lock secret"),
        "the attempt that failed was traced"
    );
    for secret in tokens.iter().map(String::as_str).chain(["hunter2"]) {
        assert!(!shown.contains(secret) && !said.contains(secret));
    }
}
