//! What is checked before any lock is asked for.

use std::sync::{Arc, Mutex};

use redislock_client::{Error, Redlock, Verdict};

use crate::proxy::Proxy;
use crate::server::{Server, free_port};
use crate::{NODE_TIMEOUT, TTL, builder, connect};

async fn problem(builder: redislock_client::Builder) -> Error {
    builder.connect().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn no_nodes_doubled_nodes_and_bad_urls_are_refused_without_showing_a_password() {
    let none = problem(Redlock::builder()).await;
    assert!(none.to_string().contains("no nodes"), "{none}");
    let twice =
        problem(Redlock::builder().nodes(["redis://localhost:1", "redis://localhost:1/3"])).await;
    assert!(twice.to_string().contains("twice"), "{twice}");
    for url in [
        "",
        "nonsense",
        "http://localhost",
        "redis://:hunter2@",
        "redis://:hunter2@host:99999999",
        "redis://h/notanumber",
    ] {
        let error = problem(Redlock::builder().node(url)).await;
        assert!(matches!(error, Error::Invalid(_)), "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn one_server_under_two_addresses_is_an_error_that_names_both() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    let error = problem(Redlock::builder().nodes([server.url(), proxy.url()])).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    let same = Verdict::SameAs {
        node: format!("127.0.0.1:{}", server.port),
    };
    assert_eq!(error.nodes()[1].verdict, same);
}

#[tokio::test]
async fn a_replica_and_a_server_without_the_module_are_errors() {
    let master = Server::start(&[]);
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", master.port)]);
    let error = problem(Redlock::builder().node(replica.url())).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    assert_eq!(error.nodes()[0].verdict, Verdict::Replica);

    let bare = Server::start(&["no-module"]);
    let error = problem(Redlock::builder().nodes([master.url(), bare.url()])).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    assert_eq!(error.nodes()[1].verdict, Verdict::ModuleMissing);
}

#[tokio::test]
async fn something_that_is_no_redis_is_reported_and_never_crashes_the_client() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = problem(Redlock::builder().node(url)).await;
    assert_eq!(error.nodes().len(), 1, "{error}");
}

#[tokio::test]
async fn a_minority_that_is_down_at_the_start_is_no_error_and_joins_later() {
    let servers = Server::start_many::<2>(&[]);
    let late = free_port();
    let urls = [
        servers[0].url(),
        servers[1].url(),
        format!("redis://127.0.0.1:{late}"),
    ];
    let client = Redlock::builder()
        .nodes(&urls)
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    client.lock("x").acquire().await.unwrap().release().await;
    let error = problem(Redlock::builder().nodes([&urls[2]])).await;
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(
        matches!(error.nodes()[0].verdict, Verdict::Unreachable(_)),
        "{error}"
    );
}

#[tokio::test]
async fn user_password_and_database_come_from_the_url() {
    let server = Server::start(&["user bob on >secret ~* +@all"]);
    let url = format!("redis://bob:secret@127.0.0.1:{}/3", server.port);
    let client = Redlock::connect([&url]).await.unwrap();
    let _guard = client.lock("x").acquire().await.unwrap();
    let mut connection = redis::Client::open(url.as_str())
        .unwrap()
        .get_connection()
        .unwrap();
    let kind: String = redis::cmd("TYPE").arg("x").query(&mut connection).unwrap();
    assert_eq!(kind, "redislock");
    let wrong = format!("redis://bob:wrong@127.0.0.1:{}", server.port);
    let error = problem(Redlock::builder().node(wrong)).await;
    assert!(!format!("{error} {error:?}").contains("wrong@"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_is_a_node_like_any() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let _server = Server::start(&[&format!("unixsocket {}", path.display())]);
    let client = Redlock::connect([format!("unix://{}", path.display())])
        .await
        .unwrap();
    client.lock("x").acquire().await.unwrap().release().await;
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_is_risky_but_possible_is_a_warning() {
    // For the whole process: a subscriber of one thread misses what other threads have looked up before.
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false);
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    let lines = |about: &str| -> Vec<String> {
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter(|line| line.contains(about))
            .map(str::to_owned)
            .collect()
    };

    let servers = Server::start_many::<2>(&[]);
    connect(&servers).await;
    assert!(!lines("even number of nodes").is_empty());
    let forgetful = |server: &Server| {
        lines(&format!("127.0.0.1:{}", server.port))
            .join("\n")
            .contains("neither durable")
    };
    assert!(servers.iter().all(forgetful));

    let durable = Server::start(&["appendonly yes", "appendfsync always"]);
    let quarantined = Server::start(&["lock.quarantine 100"]);
    Redlock::connect([durable.url()]).await.unwrap();
    Redlock::connect([quarantined.url()]).await.unwrap();
    assert!(!forgetful(&durable) && !forgetful(&quarantined));
}

#[tokio::test]
async fn tokens_and_passwords_are_never_shown() {
    let servers = Server::start_many::<3>(&[]);
    let client = connect(&servers).await;
    let mut monitor = redis::Client::open(servers[0].url())
        .unwrap()
        .get_connection()
        .unwrap();
    monitor
        .send_packed_command(&redis::cmd("MONITOR").get_packed_command())
        .unwrap();
    monitor.recv_response().unwrap();
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    let seen = loop {
        let line = format!("{:?}", monitor.recv_response().unwrap());
        if line.contains("LOCK.ACQUIRE") {
            break line;
        }
    };
    // "LOCK.ACQUIRE" "x" "token" …
    let token = seen
        .split('"')
        .skip_while(|word| !word.contains("LOCK.ACQUIRE"))
        .nth(4)
        .unwrap()
        .trim_matches('\\')
        .to_owned();
    assert!(token.len() >= 32, "{seen}");
    let error = client.lock("x").try_acquire().await.unwrap_err();
    let lock = client.lock("x");
    let shown = format!(
        "{guard:?} {client:?} {error:?} {error} {lock:?} {:?}",
        guard.held()
    );
    assert!(!shown.contains(&token));
    let _ = builder(&servers);
}
