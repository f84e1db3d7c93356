//! Bad input: an error that says what to change, never a panic, nothing left held.

use std::time::Duration;

use redislock_client::{Builder, Error, Owner, Redlock, Verdict};
use redislock_testkit::cluster::Cluster;
use redislock_testkit::{Proxy, Server};

use crate::{NODE_TIMEOUT, TTL, connect, freed_before_the_lease_ends, is_busy};

const LONG: Duration = Duration::from_secs(600);

async fn problem(builder: Builder) -> Error {
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
        assert!(error.to_string().contains("redis://host:port"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn a_sentinel_or_a_cluster_without_addresses_or_beside_other_nodes_is_refused() {
    let nobody: [&str; 0] = [];
    let url = "redis://127.0.0.1:1";
    let five = Redlock::builder().nodes((1..=65).map(|port| format!("redis://127.0.0.1:{port}")));
    for (builder, says) in [
        (Redlock::builder().sentinel("m", nobody), "no Sentinel"),
        (Redlock::builder().cluster(nobody), "no node of the cluster"),
        (Redlock::builder().sentinel("m", ["nonsense"]), "redis://"),
        (Redlock::builder().cluster(["nonsense"]), "redis://"),
        (Redlock::builder().node(url).cluster([url]), "only node"),
        (
            Redlock::builder().node(url).sentinel("m", [url]),
            "only node",
        ),
        (five, "more than 64"),
        (
            Redlock::builder().node(url).node_timeout(Duration::ZERO),
            "zero",
        ),
        (
            Redlock::builder().node(url).connect_timeout(Duration::ZERO),
            "zero",
        ),
    ] {
        let error = problem(builder).await;
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn one_server_under_two_addresses_is_an_error_that_names_both() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    let error = problem(Redlock::builder().nodes([server.url(), proxy.url()])).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    // The address that answers last is the one that names the other.
    let ports = [server.port(), proxy.port()];
    let names = ports.map(|port| format!("127.0.0.1:{port}"));
    let named = error.nodes().iter().enumerate().any(|(at, report)| {
        let other = names[1 - at].clone();
        report.verdict == Verdict::SameAs { node: other }
    });
    assert!(named, "{error}");
}

#[tokio::test]
async fn a_replica_and_a_server_without_the_module_are_errors() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let error = problem(Redlock::builder().node(replica.url())).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    assert_eq!(error.nodes()[0].verdict, Verdict::Replica);

    let bare = Server::options().without_module().start();
    let error = problem(Redlock::builder().nodes([master.url(), bare.url()])).await;
    assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
    assert_eq!(error.nodes()[1].verdict, Verdict::ModuleMissing);
}

#[tokio::test]
async fn a_module_that_is_too_old_is_an_error_that_says_so() {
    let servers = Server::start_many::<3>();
    let proxy = Proxy::to(servers[2].port());
    for (version, verdict) in [
        ("0.0.9", "too old"),
        ("0.0.0", "too old"),
        ("zzzzz", "too old"),
    ] {
        // The module and this crate have one version.
        proxy.replace_in_replies(env!("CARGO_PKG_VERSION"), version);
        let urls = [servers[0].url(), servers[1].url(), proxy.url()];
        // Enough time for the third node, whose reply decides.
        let builder = Redlock::builder().nodes(urls).node_timeout(LONG);
        let error = problem(builder).await;
        assert!(matches!(error, Error::Misconfigured { .. }), "{error}");
        assert!(error.to_string().contains("upgrade"), "{error}");
        let old = Verdict::ModuleTooOld {
            version: version.to_owned(),
        };
        assert_eq!(error.nodes()[2].verdict, old);
        assert!(error.nodes()[2].to_string().contains(verdict), "{error}");
    }
}

#[tokio::test]
async fn a_node_that_answers_garbage_at_the_start_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::to(server.port());
    for (field, garbage) in [
        ("incarnation", "incarcerate"),
        ("version", "inverse"),
        ("durable", "durians"),
        ("fence", "fancy"),
        ("time\r\n:", "time\r\n+"),
        ("role", "lore"),
    ] {
        proxy.replace_in_replies(field, garbage);
        let error = problem(Redlock::builder().node(proxy.url())).await;
        assert!(
            matches!(error, Error::Misconfigured { .. }),
            "{field}: {error}"
        );
        assert!(error.to_string().contains("check its address"), "{error}");
        assert!(
            matches!(error.nodes()[0].verdict, Verdict::Garbage(_)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn something_that_is_no_redis_is_reported_and_never_crashes_the_client() {
    for greeting in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "+\r\n",
        "*-7\r\n",
        "$99999999999\r\n",
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let mut streams = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(greeting.as_bytes()).await;
                streams.push(stream);
            }
        });
        let impatient = Redlock::builder().connect_timeout(NODE_TIMEOUT);
        let error = problem(impatient.node(url)).await;
        assert_eq!(error.nodes().len(), 1, "{error}");
    }
}

#[tokio::test]
async fn a_node_that_begins_to_answer_garbage_never_counts_and_keeps_nothing() {
    let servers = Server::start_many::<3>();
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::to(server.port()));
    }
    let client = Redlock::builder()
        .nodes(proxies.iter().map(Proxy::url))
        .node_timeout(NODE_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let lock = client.lock("x").ttl(LONG);
    // Every number becomes text: with one such node of three, nothing fails.
    proxies[0].replace_in_replies("\n:", "\n+");
    proxies[0].replace_the_kind(b':', b'+');
    lock.acquire().await.unwrap().release().await;
    freed_before_the_lease_ends(&servers, "x", LONG / 20).await;
    proxies[1].replace_the_kind(b':', b'+');
    let error = lock.try_acquire().await.unwrap_err();
    assert!(
        matches!(error, Error::Refused { .. } | Error::NoQuorum { .. }),
        "{error}"
    );
    assert!(
        error
            .nodes()
            .iter()
            .any(|report| matches!(report.verdict, Verdict::Garbage(_))),
        "{error}"
    );
    freed_before_the_lease_ends(&servers, "x", LONG / 20).await;
}

#[tokio::test]
async fn durations_of_any_length_get_a_reply_and_nothing_is_left_held() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        NODE_TIMEOUT * 3,
        Duration::from_secs(8 * 86_400),
        Duration::MAX,
    ] {
        for lock in [
            client.lock("x").ttl(ttl),
            client.lock_all(["x", "y"]).ttl(ttl),
        ] {
            let error = lock.acquire().await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
            assert!(error.to_string().contains("ttl of"), "{error}");
        }
    }
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    for ttl in [Duration::ZERO, Duration::MAX] {
        assert!(matches!(guard.extend_to(ttl).await, Err(Error::Invalid(_))));
    }
    // Twice: the second time it is known to be busy, and queued for at once.
    let patient = client.lock("x").ttl(TTL).wait(Duration::MAX);
    for _ in 0..2 {
        assert!(is_busy(client.lock("x").ttl(TTL).try_acquire().await));
        let waiting = tokio::time::timeout(NODE_TIMEOUT, patient.acquire()).await;
        assert!(waiting.is_err(), "it waits: {waiting:?}");
    }
    guard.release().await;
    let capped = client.lock("x").ttl(TTL).max_hold(Duration::MAX);
    let error = capped.acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let patient = patient.acquire().await.unwrap();
    patient.release().await;
    freed_before_the_lease_ends(&servers, "x", LONG / 20).await;

    let hasty = Redlock::builder()
        .nodes(servers.iter().map(Server::url))
        .node_timeout(Duration::MAX)
        .connect_timeout(Duration::MAX);
    let client = hasty.connect().await.unwrap();
    let error = client.lock("x").ttl(LONG).acquire().await.unwrap_err();
    assert!(error.to_string().contains("too short"), "{error}");
}

#[tokio::test]
async fn invalid_requests_are_refused_before_anything_is_sent() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    let nothing: [&str; 0] = [];
    let long = Owner::named("x".repeat(257));
    for (lock, says) in [
        (client.lock("x").shared().limit(2), "single node"),
        (client.lock("x").ephemeral(), "single node"),
        (client.lock("x").limit(2), "shared"),
        (client.lock("x").shared().limit(0), "1 or more"),
        (
            client.lock("x").max_hold(Duration::from_millis(1)),
            "max_hold",
        ),
        (client.lock("x").replicas(0), "replicas"),
        (client.lock("x").owner(&long), "256"),
        (client.lock_all(nothing), "at least one"),
        (client.lock_all(["x", "y", "x"]), "twice"),
    ] {
        let error = lock.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(
        servers
            .iter()
            .all(|server| server.calls("lock.acquire") + server.calls("lock.macquire") == 0)
    );
}

#[tokio::test]
async fn a_key_of_another_type_is_refused_and_left_alone() {
    let servers = Server::start_many::<3>();
    let client = connect(&servers).await;
    for server in &servers {
        let _: () = server.run(&["SET", "string", "value"]);
    }
    for lock in [client.lock("string"), client.lock_all(["string", "x"])] {
        let error = lock.ttl(LONG).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains("another type"), "{error}");
    }
    for server in &servers {
        assert_eq!(server.run::<String>(&["GET", "string"]), "value");
    }
    freed_before_the_lease_ends(&servers, "x", LONG / 20).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_used_as_a_single_node_names_the_node_of_the_key() {
    // It knows that another node has the slot of `x`.
    let cluster = Cluster::start(2, 0, &Server::options());
    let client = Redlock::connect([cluster.nodes[0].url()]).await.unwrap();
    let error = client.lock("x").acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("MOVED"), "{error}");
}

#[tokio::test]
async fn a_name_of_any_bytes_is_a_lock() {
    let servers = [Server::start()];
    let client = connect(&servers).await;
    let every: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 100_000];
    for name in [
        &b""[..],
        b"\0",
        b"\xff\xfe",
        b"a b\r\n*3",
        "schloß".as_bytes(),
        &every,
        &large,
    ] {
        let guard = client.lock(name).acquire().await.unwrap();
        let error = client.lock(name).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        guard.release().await;
        let both = client.lock_all([name, b"other"]).acquire().await.unwrap();
        both.release().await;
    }
}
