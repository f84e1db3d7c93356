//! A panic in any function that the server calls: the server lives, and the module writes nothing
//! until the restart.
//!
//! These tests load a module that is built with the feature `failpoints`, which release builds do
//! not have: it has a command by which a test says which edge panics next.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{
    Connection, Options, Server, Value, fragile_module, granted, info_field, info_number, refused,
    wait_until,
};

fn fragile(options: Options) -> Options {
    options.module(fragile_module())
}

/// A server with a lock `job`, which `me` holds and `you` waits for.
struct Scene {
    server: Server,
    c: Connection,
    holder: Connection,
    waiter: Connection,
    waiter_id: i64,
}

impl Scene {
    fn new() -> Scene {
        Scene::on(fragile(Server::options()).start())
    }

    /// In a cluster connections are blocked on their keys.
    fn in_cluster() -> Scene {
        let server = fragile(Server::options())
            .config("cluster-enabled yes")
            .config(&format!("cluster-port {}", redislock_testkit::free_port()))
            .start();
        let mut c = server.connect();
        c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
        wait_until("the cluster is ready", || {
            c.call("CLUSTER INFO").text().contains("cluster_state:ok")
        });
        Scene::on(server)
    }

    fn on(server: Server) -> Scene {
        let mut c = server.connect();
        let mut holder = server.connect();
        granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
        let mut waiter = server.connect();
        let waiter_id = waiter.client_id();
        waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
        wait_for_waiters(&mut c, "job", 1);
        Scene {
            server,
            c,
            holder,
            waiter,
            waiter_id,
        }
    }

    fn has_failed(&mut self) -> bool {
        self.c.call("LOCK.NODE").number("failed") == 1
    }

    /// A command that must be refused because of the failure.
    fn refuses(&mut self, command: &str) {
        refused(&self.c.call(command), "LOCKFAILED");
    }

    /// A command whose reply does not matter here.
    fn does(&mut self, command: &str) {
        self.c.call(command);
    }

    /// A lock comes to a key that is waited for.
    fn restores(&mut self) -> Value {
        let payload = self.c.call("DUMP job");
        self.does("MULTI");
        self.does("DEL job");
        let restore = [b"RESTORE", &b"job"[..], b"0", payload.bytes()];
        self.c.call_args(&restore);
        self.c.call("EXEC")
    }
}

/// An edge, and what makes the server call it.
type Edge = (&'static str, fn(&mut Scene));

const COMMANDS: &[Edge] = &[
    ("acquire::acquire", |s| s.refuses("LOCK.ACQUIRE x me 1000")),
    ("release::release", |s| s.refuses("LOCK.RELEASE job me")),
    ("extend::extend", |s| s.refuses("LOCK.EXTEND job me 1000")),
    ("several::macquire", |s| s.refuses("LOCK.MACQUIRE 1 x me 9")),
    ("several::mrelease", |s| s.refuses("LOCK.MRELEASE 1 job me")),
    ("several::mextend", |s| s.refuses("LOCK.MEXTEND 1 job me 9")),
    ("guard::guard", |s| s.refuses("LOCK.GUARD job me PING")),
    ("force::force", |s| s.refuses("LOCK.FORCE job")),
    ("info::info", |s| s.refuses("LOCK.INFO job")),
    ("node::node", |s| s.refuses("LOCK.NODE")),
    ("help::help", |s| s.refuses("LOCK.HELP")),
    ("apply::apply", |s| s.refuses("LOCK._APPLY x")),
    ("probe::probe", |s| s.refuses("LOCK._PROBE x")),
    ("fail::fail", |s| s.refuses("LOCK._FAIL x")),
    ("entries::entries", |s| s.refuses("LOCK._ENTRIES")),
];
const CALLBACKS: &[Edge] = &[
    ("show", |s| s.does("INFO lock")),
    ("get", |s| s.does("CONFIG GET lock.max-ttl")),
    ("set", |s| s.does("CONFIG SET lock.max-hold 1000")),
    ("get_switch", |s| s.does("CONFIG GET lock.legacy-strings")),
    ("rdb_save", |s| s.does("DUMP job")),
    ("rdb_load", |s| assert!(s.restores().items()[1].is_error())),
    ("aux_save", |s| s.does("SAVE")),
    ("mem_usage", |s| s.does("MEMORY USAGE job")),
    ("digest", |s| s.does("DEBUG DIGEST")),
    ("unlink", |s| s.does("DEL job")),
    ("free", |s| s.does("FLUSHALL ASYNC")),
    ("on_cron", |_| ()),
    ("on_alarm", |s| s.does("LOCK.ACQUIRE short me 1")),
    ("on_nudge", |s| s.does("LOCK.RELEASE job me")),
    ("on_turn", |s| s.does("LOCK.RELEASE job me")),
    ("look_for_quiet", |s| s.does("LOCK.RELEASE job me")),
    ("answer", |s| s.does("LOCK.RELEASE job me")),
    ("free_parked", |s| s.does("LOCK.RELEASE job me")),
    ("disconnected", |s| {
        s.does(&format!("CLIENT KILL ID {}", s.waiter_id))
    }),
    ("on_role_change", |s| {
        s.does("REPLICAOF 127.0.0.1 1");
        s.does("REPLICAOF NO ONE");
    }),
    ("on_loading", |s| s.does("DEBUG RELOAD")),
    ("on_flush", |s| s.does("FLUSHALL")),
    ("on_swap", |s| s.does("SWAPDB 0 1")),
    ("on_client_change", |s| {
        let id = s.holder.client_id();
        s.does(&format!("CLIENT KILL ID {id}"));
    }),
    ("on_fork", |s| s.does("BGSAVE")),
    ("on_config_change", |s| s.does("CONFIG SET maxmemory 0")),
    ("on_keyspace", |s| s.does("RENAME job elsewhere")),
    ("replication::on_replica_change", |s| {
        let replica = Server::options().replica_of(&s.server).start();
        wait_until("the replica is connected", || {
            s.c.call("INFO replication").text().contains("state=online")
        });
        drop(replica);
    }),
];
/// These run only where connections are blocked on their keys.
const ON_KEYS: &[Edge] = &[
    ("key_is_ready", |s| {
        s.restores();
    }),
    ("answer", |s| s.does("LOCK.RELEASE job me")),
    ("free_parked", |s| s.does("LOCK.RELEASE job me")),
    ("disconnected", |s| {
        s.does(&format!("CLIENT KILL ID {}", s.waiter_id))
    }),
];
/// These run while the server starts, in a child of it, or only where replicas are needed.
const ELSEWHERE: [&str; 5] = [
    "on_load",
    "aux_load",
    "aof_rewrite",
    "on_timer",
    "set_switch",
];

#[track_caller]
fn fails_closed(edges: &[Edge], scene: fn() -> Scene) {
    for (edge, trigger) in edges {
        let mut scene = scene();
        assert!(!scene.has_failed());
        scene.does(&format!("LOCK._FAIL {edge}"));
        trigger(&mut scene);
        wait_until(&format!("{edge} has failed"), || scene.has_failed());
        for command in [
            "LOCK.ACQUIRE x me 1000",
            "LOCK.ACQUIRE job you 1000 BLOCK 0",
            "LOCK.RELEASE job me",
            "LOCK.EXTEND job me 1000",
            "LOCK.MACQUIRE 1 x me 1000",
            "LOCK.MRELEASE 1 job me",
            "LOCK.MEXTEND 1 job me 1000",
            "LOCK.GUARD job me PING",
            "LOCK.FORCE job",
        ] {
            scene.refuses(command);
        }
        assert_eq!(info_number(&mut scene.c, "lock", "lock_failed"), 1);
        assert!(scene.c.call("SET k v").text() == "OK");
        // The waiter is answered, or its connection was closed.
        if let Ok(reply) = scene.waiter.try_receive() {
            let told = matches!(&reply, Value::Error(_) | Value::Integer(_) | Value::Null);
            assert!(told, "{edge}: {reply:?}");
        }
        assert_eq!(info_field(&mut scene.c, "clients", "blocked_clients"), "0");
        let log = scene.server.log();
        assert!(log.contains(&format!("failpoint in {edge}")), "{log}");
        assert!(
            log.contains(&format!("an internal error in {edge} ")),
            "{log}"
        );
    }
}

#[test]
fn a_panic_in_a_command_stops_the_module_and_not_the_server() {
    fails_closed(COMMANDS, Scene::new);
}

#[test]
fn a_panic_in_a_callback_stops_the_module_and_not_the_server() {
    fails_closed(CALLBACKS, Scene::new);
}

#[test]
fn a_panic_in_a_callback_for_a_key_stops_the_module_and_not_the_server() {
    fails_closed(ON_KEYS, Scene::in_cluster);
}

#[test]
fn a_panic_in_the_heartbeat_stops_the_module_and_not_the_server() {
    let options = fragile(Server::options())
        .config("lock.quarantine 1000")
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 1");
    let server = options.start();
    let mut c = server.connect();
    c.call("LOCK._FAIL on_timer");
    wait_until("the heartbeat has failed", || {
        c.call("LOCK.NODE").number("failed") == 1
    });
    // Without replicas the server itself refuses writes.
    c.ok("CONFIG SET min-replicas-to-write 0");
    refused(&c.call("LOCK.ACQUIRE job me 1000"), "LOCKFAILED");
}

#[test]
fn a_restart_ends_the_failure() {
    let mut scene = Scene::new();
    scene.does("LOCK._FAIL acquire::acquire");
    scene.refuses("LOCK.ACQUIRE x me 1000");
    scene.server.kill();
    scene.server.start_again();
    scene.c = scene.server.connect();
    assert!(!scene.has_failed());
    granted(&scene.c.call("LOCK.ACQUIRE x me 1000"));
}

#[test]
fn a_panic_in_a_child_fails_the_child_and_keeps_the_earlier_file() {
    let options = fragile(Server::options()).config("aof-use-rdb-preamble no");
    let mut server = options.start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("SAVE");
    let saved = server.folder().join("dump.rdb");
    let before = fs::read(&saved).expect("an RDB file");
    for (edge, command, status) in [
        ("rdb_save", "BGSAVE", "rdb_last_bgsave_status"),
        ("aof_rewrite", "BGREWRITEAOF", "aof_last_bgrewrite_status"),
    ] {
        c.ok(&format!("LOCK._FAIL {edge}"));
        c.ok(command);
        wait_until("the child has failed", || {
            info_field(&mut c, "persistence", status) == "err"
        });
    }
    assert_eq!(fs::read(&saved).expect("an RDB file"), before);
    assert_eq!(c.call("LOCK.NODE").number("failed"), 0);
    c.ok("CONFIG SET stop-writes-on-bgsave-error no");
    granted(&c.call("LOCK.EXTEND job me 600000"));
    server.kill();
}

#[test]
fn a_panic_while_the_server_starts_is_logged_and_stops_the_start() {
    let mut server = fragile(Server::options()).start();
    granted(&server.connect().call("LOCK.ACQUIRE job me 600000"));
    server.connect().ok("SAVE");
    server.kill();
    for edge in ["on_load", "aux_load", "rdb_load"] {
        server.reconfigure(|options| options.environment("REDISLOCK_FAILPOINT", edge));
        let log = server.try_start_again().expect_err("it must not start");
        assert!(
            log.contains(&format!("an internal error in {edge} ")),
            "{log}"
        );
    }
    server.reconfigure(|options| options.environment("REDISLOCK_FAILPOINT", ""));
    server.start_again();
    assert!(!server.connect().call("LOCK.INFO job me").is_error());
}

#[test]
fn a_request_that_is_answered_at_once_borrows_the_node_once() {
    let server = fragile(Server::options()).start();
    let mut c = server.connect();
    for command in ["LOCK.ACQUIRE job me 60000", "LOCK.RELEASE job me"] {
        // In a transaction, so that no timer runs between the counts.
        for step in ["MULTI", "LOCK._ENTRIES", command, "LOCK._ENTRIES"] {
            assert!(!c.call(step).is_error(), "{step}");
        }
        let replies = c.call("EXEC");
        let counts = [0, 2].map(|at| {
            let counts = replies.items()[at].items();
            [0, 1].map(|count| counts[count].integer())
        });
        let [before, after] = counts;
        let entered = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(entered, [1, 1], "{command}: the node, the keyspace");
    }
}

#[test]
fn every_edge_is_guarded_and_tested() {
    let mut found = BTreeSet::new();
    for source in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&source).expect("a source file");
        if source.ends_with("edge.rs") {
            continue;
        }
        // What the server calls is made by the macro; the entry of the module calls one.
        let exempt = usize::from(source.ends_with("src/lib.rs"));
        assert_eq!(
            text.matches("extern \"C\" fn ").count(),
            exempt,
            "{source:?}"
        );
        for opening in [
            "edge!(",
            "on_event!(",
            "handler!(",
            "handler!(always ",
            "handler!(master ",
            "handler!(replicated ",
        ] {
            for (at, _) in text.match_indices(opening) {
                let rest = text[at + opening.len()..].trim_start();
                let name = rest.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
                found.extend(name.take(1).filter(|name| !name.is_empty()));
            }
        }
        found = found
            .into_iter()
            .map(|name| name.to_owned().leak() as &str)
            .collect();
    }
    for word in ["stringify", "always", "master", "replicated"] {
        found.remove(word);
    }
    let tested = [COMMANDS, CALLBACKS, ON_KEYS].into_iter().flatten();
    let tested = tested.map(|(edge, _)| *edge);
    let tested: BTreeSet<&str> = tested.chain(ELSEWHERE).collect();
    assert_eq!(found, tested);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
