//! The settings of connections: logins of Sentinels and masters, databases, names, credentials that
//! change, settings of redis-rs, TCP probes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::IntoConnectionInfo;
use redislock_client::{Builder, Credentials, Error, Redlock, Released};
use redislock_testkit::Server;
use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::sentinel::{NAME, watch};

use crate::cluster::options;
use crate::contention::waiters;
use crate::{NODE_TIMEOUT, TTL, acquire_in_background, builder, until};

/// Long enough for several connections on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// From now on every new connection needs this password.
fn set_password(server: &Server, password: &str) {
    let word = format!(">{password}");
    let _: () = server.run(&["ACL", "SETUSER", "default", "resetpass", &word]);
}

/// A Sentinel of this master.
fn sentinel_of(master: &Server) -> Server {
    watch(master.port())
}

async fn works(builder: Builder) -> Redlock {
    let builder = builder.node_timeout(NODE_TIMEOUT);
    let client = builder.connect_timeout(PATIENCE).connect().await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
    client
}

#[tokio::test]
async fn the_password_of_a_sentinel_url_is_the_masters() {
    let master = Server::start();
    let sentinel = sentinel_of(&master);
    set_password(&master, "secret");
    let url = format!("redis://:secret@127.0.0.1:{}", sentinel.port());
    works(Redlock::builder().sentinel(NAME, [&url])).await;
    // A Sentinel that asks for a password gets the same one.
    set_password(&sentinel, "secret");
    works(Redlock::builder().sentinel(NAME, [&url])).await;
}

#[tokio::test]
async fn sentinels_may_have_a_password_of_their_own() {
    let master = Server::start();
    let sentinel = sentinel_of(&master);
    let plain = sentinel.url();
    let url = format!("redis://:secret@127.0.0.1:{}", sentinel.port());
    set_password(&sentinel, "other");
    let own = Credentials::password("other");
    works(
        Redlock::builder()
            .sentinel(NAME, [&plain])
            .sentinel_credentials(own.clone()),
    )
    .await;
    set_password(&master, "secret");
    works(
        Redlock::builder()
            .sentinel(NAME, [&url])
            .sentinel_credentials(own),
    )
    .await;
    let named = Credentials::new("default", "other");
    works(
        Redlock::builder()
            .sentinel(NAME, [&url])
            .sentinel_credentials(named),
    )
    .await;
    let error = Redlock::builder().sentinel(NAME, [&url]).connect().await;
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("WRONGPASS"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[tokio::test]
async fn the_database_of_a_sentinel_url_is_the_masters() {
    let master = Server::start();
    let sentinel = sentinel_of(&master);
    let url = format!("redis://127.0.0.1:{}/3", sentinel.port());
    let client = works(Redlock::builder().sentinel(NAME, [url])).await;
    let _guard = client.lock("y").acquire().await.unwrap();
    let keyspace: String = master.run(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");
}

#[tokio::test]
async fn a_sentinel_that_hangs_or_is_gone_or_wrong_is_passed_over() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let (hanging, good) = (sentinel_of(&master), sentinel_of(&master));
    let (mut gone, wrong) = (sentinel_of(&master), sentinel_of(&replica));
    hanging.pause();
    gone.kill();
    let urls = [&hanging, &gone, &wrong, &good].map(Server::url);
    let client = works(Redlock::builder().sentinel(NAME, &urls)).await;
    let _guard = client.lock("y").acquire().await.unwrap();
    assert!(!master.is_free("y"));
    let error = Redlock::builder()
        .sentinel("other", [&urls[3]])
        .connect()
        .await;
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no master of this name"), "{error}");
}

#[tokio::test]
async fn waiters_need_no_sentinel() {
    let master = Server::start();
    let mut sentinel = sentinel_of(&master);
    let client = works(Redlock::builder().sentinel(NAME, [sentinel.url()])).await;
    let guard = client.lock("y").ttl(TTL * 10).acquire().await.unwrap();
    sentinel.kill();
    let waiter = tokio::spawn({
        let lock = client.lock("y").ttl(TTL * 10);
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("it waits", || waiters(&master, "y") == 1).await;
    assert_eq!(guard.release().await, Released::WasHeld);
    assert_eq!(waiter.await.unwrap(), Released::WasHeld);
}

/// Lines of CLIENT LIST about connections of ours.
pub(crate) fn connections(server: &Server, name: &str) -> Vec<String> {
    let list: String = server.run(&["CLIENT", "LIST"]);
    let name = format!(" name={name} ");
    let ours = list.lines().filter(|line| line.contains(&name));
    ours.map(str::to_owned).collect()
}

#[tokio::test]
async fn connections_have_the_name_of_the_client_also_those_of_waiters() {
    let server = Server::start();
    let builder = builder(std::slice::from_ref(&server)).client_name("billing-7");
    let client = works(builder.clone()).await;
    let guard = client.lock("y").ttl(TTL * 10).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = client.lock("y").ttl(TTL * 10);
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("it waits", || waiters(&server, "y") == 1).await;
    assert_eq!(connections(&server, "billing-7").len(), 2);
    drop(guard);
    waiter.await.unwrap();
    let error = builder.client_name("two words").connect().await;
    assert!(matches!(error, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn credentials_are_asked_for_whenever_a_connection_is_opened() {
    let server = Server::start();
    set_password(&server, "first");
    let present = Arc::new(Mutex::new("first"));
    let client = Redlock::builder()
        .node(server.url())
        .node_timeout(NODE_TIMEOUT)
        .credentials({
            let present = Arc::clone(&present);
            move || {
                let password = *present.lock().unwrap();
                async move { Ok::<_, std::io::Error>(Credentials::new("default", password)) }
            }
        })
        .connect()
        .await
        .unwrap();
    client.lock("x").acquire().await.unwrap().release().await;
    let url = format!("redis://:first@127.0.0.1:{}", server.port());
    let mut admin = redis::Client::open(url).unwrap().get_connection().unwrap();
    let run = |admin: &mut redis::Connection, words: &[&str]| {
        let _: redis::Value = redis::Cmd::new().arg(words).query(admin).unwrap();
    };
    run(
        &mut admin,
        &["ACL", "SETUSER", "default", "resetpass", ">second"],
    );
    *present.lock().unwrap() = "second";
    run(
        &mut admin,
        &["CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal"],
    );
    let lock = client.lock("x").wait(Duration::from_secs(60));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

/// A cluster whose password changes, and a client that asks for it.
struct Rotation {
    _cluster: Cluster,
    admins: Vec<redis::Connection>,
    /// The password that the client is given.
    present: Arc<Mutex<&'static str>>,
    asked: Arc<AtomicUsize>,
    client: Redlock,
}

impl Rotation {
    async fn start() -> Self {
        let cluster = Cluster::start(MASTERS, 0, &options());
        let mut admins = Vec::new();
        for node in &cluster.nodes {
            let admin = redis::Client::open(node.url()).unwrap();
            admins.push(admin.get_connection().unwrap());
        }
        admins.iter_mut().for_each(|admin| accept(admin, "first"));
        let (present, asked) = (Arc::new(Mutex::new("first")), Arc::default());
        let (given, asking) = (Arc::clone(&present), Arc::<AtomicUsize>::clone(&asked));
        let client = Redlock::builder()
            .cluster(cluster.nodes.iter().map(Server::url))
            .node_timeout(NODE_TIMEOUT)
            .credentials(move || {
                asking.fetch_add(1, Ordering::Relaxed);
                let password = *given.lock().unwrap();
                async move { Ok::<_, std::io::Error>(Credentials::password(password)) }
            });
        let client = client.connect().await.unwrap();
        client.lock("job").acquire().await.unwrap().release().await;
        Self {
            _cluster: cluster,
            admins,
            present,
            asked,
            client,
        }
    }

    /// Closes the connections to the master of `job`; the other masters stay connected.
    fn lose_master(&mut self) {
        let admin = &mut self.admins[0];
        run(admin, "CLIENT KILL SKIPME yes TYPE normal");
    }

    async fn works_again(&self) {
        let lock = self.client.lock("job").wait(Duration::from_secs(60));
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await, Released::WasHeld);
    }
}

fn run(admin: &mut redis::Connection, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let _: redis::Value = redis::Cmd::new().arg(words).query(admin).unwrap();
}

fn accept(admin: &mut redis::Connection, password: &str) {
    run(admin, &format!("ACL SETUSER default resetpass >{password}"));
}

#[tokio::test]
async fn a_master_of_a_cluster_that_was_lost_is_connected_to_with_new_credentials() {
    let mut rotation = Rotation::start().await;
    let admins = rotation.admins.iter_mut();
    admins.for_each(|admin| accept(admin, "second"));
    *rotation.present.lock().unwrap() = "second";
    rotation.lose_master();
    rotation.works_again().await;
}

/// The client is given them before the servers accept them.
#[tokio::test]
async fn new_credentials_of_a_cluster_are_used_though_they_were_refused_at_first() {
    let mut rotation = Rotation::start().await;
    accept(&mut rotation.admins[0], "neither");
    *rotation.present.lock().unwrap() = "second";
    let before = rotation.asked.load(Ordering::Relaxed);
    rotation.lose_master();
    let waiting = acquire_in_background(&rotation.client.lock("job"));
    until("it has tried them", || {
        rotation.asked.load(Ordering::Relaxed) >= before + 3
    })
    .await;
    let admins = rotation.admins.iter_mut();
    admins.for_each(|admin| accept(admin, "second"));
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let guard = waited.expect("they are used").unwrap().unwrap();
    assert_eq!(guard.release().await, Released::WasHeld);
}

#[tokio::test]
async fn a_provider_of_credentials_that_fails_is_named() {
    let server = Server::start();
    let builder = Redlock::builder().node(server.url());
    let builder = builder.credentials(|| async { Err("the vault is sealed") });
    let error = builder.connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::NoQuorum { .. }), "{error}");
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
}

#[tokio::test]
async fn settings_and_clients_of_redis_rs_are_taken_as_they_are() {
    let server = Server::start();
    let info = server.url().into_connection_info().unwrap();
    let settings = info.redis_settings().clone();
    let settings = settings
        .set_db(5)
        .set_protocol(redis::ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    let by_client = redis::Client::open(info.clone()).unwrap();
    for builder in [
        Redlock::builder().node_info(info),
        Redlock::builder().node_client(&by_client),
    ] {
        let client = works(builder.client_name("own")).await;
        let _guard = client.lock("y").ttl(TTL).acquire().await.unwrap();
        let lines = connections(&server, "own").join("\n");
        assert!(
            lines.contains(" db=5 ") && lines.contains(" resp=3"),
            "{lines}"
        );
    }
}

/// For each connection of this machine to the port: the kind of its timer, and when it fires.
#[cfg(target_os = "linux")]
fn timers(port: u16) -> Vec<(u8, Duration)> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mut timers = Vec::new();
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (remote, state) = (words[2], words[3]);
        if state == "01" && remote.ends_with(&format!(":{port:04X}")) {
            let (kind, when) = words[5].split_once(':').unwrap();
            // In hundredths of a second.
            let when = u64::from_str_radix(when, 16).unwrap() * 10;
            let kind = u8::from_str_radix(kind, 16).unwrap();
            timers.push((kind, Duration::from_millis(when)));
        }
    }
    timers
}

/// How many connections to the port are probed soon. Those of the test itself are not.
#[cfg(target_os = "linux")]
pub(crate) fn probed(port: u16) -> usize {
    const PROBE: u8 = 2;
    let soon = Duration::from_secs(6);
    let timers = timers(port).into_iter();
    timers
        .filter(|(kind, when)| *kind == PROBE && *when < soon)
        .count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_are_probed_by_the_kernel() {
    let server = Server::start();
    let sentinel = sentinel_of(&server);
    let by_name = Redlock::builder().sentinel(NAME, [sentinel.url()]);
    for builder in [builder(std::slice::from_ref(&server)), by_name] {
        let client = works(builder).await;
        let guard = client.lock("y").ttl(TTL * 20).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = client.lock("y").ttl(TTL * 20);
            async move { lock.acquire().await.unwrap().release().await }
        });
        until("it waits", || waiters(&server, "y") == 1).await;
        until("both connections have a probe ahead", || {
            probed(server.port()) >= 2
        })
        .await;
        drop(guard);
        waiter.await.unwrap();
    }
}
