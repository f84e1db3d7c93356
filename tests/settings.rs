//! What the module asks the server does not depend on the names of commands: an administrator may
//! rename any of them.

use std::time::Duration;

use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{
    Connection, Options, Server, Value, free_port, granted, refused, wait_until,
};

/// What a hardened server renames away.
const RENAMED: [&str; 6] = ["CONFIG", "INFO", "COMMAND", "CLUSTER", "FLUSHALL", "DEBUG"];

fn hardened() -> Options {
    RENAMED
        .into_iter()
        .fold(Server::options(), |options, name| options.renamed(name))
}

fn warnings(c: &mut Connection) -> Vec<String> {
    let warnings = c.call("LOCK.NODE").field("warnings");
    let warnings = warnings.items().iter();
    warnings.map(|warning| warning.text().to_owned()).collect()
}

/// A master that needs a replica, and the replica, which it counts.
fn pair(master: Options, replica: Options) -> (Server, Server) {
    let rule = |options: Options| {
        options
            .config("min-replicas-to-write 1")
            .config("min-replicas-max-lag 10")
    };
    let master = rule(master).start();
    let replica = rule(replica).replica_of(&master).start();
    let mut m = master.connect();
    wait_until("the master counts its replica", || {
        !m.call("SET counted yes").is_error()
    });
    (master, replica)
}

#[test]
fn no_waiter_is_granted_a_lock_while_replicas_are_missing() {
    let (master, mut replica) = pair(hardened(), Server::options());
    let (mut c, mut waiting) = (master.connect(), master.connect());
    granted(&c.call("LOCK.ACQUIRE job me 1500"));
    waiting.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    replica.kill();
    wait_until("commands are refused", || {
        c.call("LOCK.ACQUIRE other me 1000").is_error()
    });
    refused(&c.call("LOCK.ACQUIRE other me 1000"), "NOREPLICAS");
    wait_until("the lease is over", || {
        c.call("LOCK.INFO job me") == Value::Null
    });
    assert!(waiting.is_silent_for(Duration::from_millis(500)));
    replica.start_again();
    granted(&waiting.receive());
}

#[test]
fn no_waiter_is_granted_a_lock_while_the_cluster_is_down() {
    let node = Server::options()
        .config("cluster-enabled yes")
        .config(&format!("cluster-port {}", free_port()))
        .config("rename-command CLUSTER topology")
        .start();
    let (mut c, mut waiting) = (node.connect(), node.connect());
    c.ok("TOPOLOGY ADDSLOTSRANGE 0 16383");
    wait_until("the cluster is up", || !c.call("SET job 1").is_error());
    c.ok("DEL job");
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    waiting.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    // In one step, so that the waiter is not told by the server that the cluster is down before its
    // turn comes.
    let lines = ["MULTI", "TOPOLOGY DELSLOTS 0", "DEL job", "EXEC"];
    c.pipeline(&lines);
    let told = waiting.receive();
    assert!(
        told.is_error(),
        "granted while the cluster is down: {told:?}"
    );
}

#[test]
fn a_promoted_node_that_cannot_read_its_settings_does_not_grant() {
    let (_master, replica) = pair(Server::options(), hardened().config("lock.quarantine 1000"));
    let mut r = replica.connect();
    let named = |text: &str| text.contains("lock.min-replicas") && text.contains("lock.max-lag");
    r.ok("REPLICAOF NO ONE");
    assert!(r.call("LOCK.NODE").number("quarantine") >= 11_000);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(r.call("LOCK.NODE").number("quarantine") >= 11_000);
    assert!(warnings(&mut r).iter().any(|warning| named(warning)));
    assert!(replica.log().lines().any(named), "{}", replica.log());
}

#[test]
fn a_master_that_cannot_read_its_settings_refuses_by_name() {
    let (master, _replica) = pair(hardened().config("lock.quarantine 500"), Server::options());
    let mut m = master.connect();
    std::thread::sleep(Duration::from_millis(600));
    for line in ["LOCK.ACQUIRE job me 100", "LOCK.EXTEND job me 100"] {
        let reply = m.call(line);
        refused(&reply, "QUARANTINE");
        assert!(reply.error().contains("lock.min-replicas"), "{reply:?}");
        assert!(reply.error().contains(", retry in "), "{reply:?}");
    }
    assert_eq!(m.call("LOCK.RELEASE job me"), Value::Null);
}

#[test]
fn options_replace_what_config_cannot_tell() {
    let given = |options: Options| {
        options
            .config("lock.quarantine 500")
            .config("lock.min-replicas 1")
            .config("lock.max-lag 20")
    };
    let (master, replica) = pair(given(hardened()), given(hardened()));
    let mut m = master.connect();
    wait_until("the quarantine of the start is over", || {
        m.call("LOCK.NODE").number("quarantine") == 0
    });
    granted(&m.call("LOCK.ACQUIRE job me 100"));
    let mut r = replica.connect();
    r.ok("REPLICAOF NO ONE");
    let left = r.call("LOCK.NODE").number("quarantine");
    assert!((20_000..60_000).contains(&left), "{left}");
    assert_eq!(warnings(&mut r), Vec::<String>::new());
}

#[test]
fn without_quarantine_or_without_the_rule_nothing_is_refused() {
    let server = hardened().start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 1000"));
    let server = hardened().config("lock.quarantine 100").start();
    let mut c = server.connect();
    wait_until("the quarantine of the start is over", || {
        c.call("LOCK.NODE").number("quarantine") == 0
    });
    granted(&c.call("LOCK.ACQUIRE job me 100"));
    let (master, _replica) = pair(hardened(), Server::options());
    granted(&master.connect().call("LOCK.ACQUIRE job me 1000"));
}

#[test]
fn durable_is_not_claimed_where_it_cannot_be_read() {
    let server = Server::options()
        .renamed("CONFIG")
        .appendonly("always")
        .start();
    assert_eq!(server.connect().call("LOCK.NODE").number("durable"), 0);
}

#[test]
fn guard_says_why_it_cannot_run_anything() {
    let server = hardened().start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let reply = c.call("LOCK.GUARD job me SET data value");
    refused(&reply, "ERR");
    assert!(reply.error().contains("COMMAND"), "{reply:?}");
    assert_eq!(c.call("GET data"), Value::Null);
}

#[test]
fn force_is_for_administrators_whatever_they_call_their_commands() {
    let server = hardened().start();
    let mut c = server.connect();
    c.ok("ACL SETUSER app on nopass ~* +@all -@admin -@dangerous");
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let mut app = server.connect();
    app.ok("AUTH app any");
    refused(&app.call("LOCK.FORCE job"), "NOPERM");
    assert_eq!(c.call("LOCK.FORCE job"), Value::Integer(1));
}

#[test]
fn a_policy_that_evicts_locks_is_named() {
    let server = Server::options()
        .renamed("CONFIG")
        .renamed("INFO")
        .config("maxmemory-policy allkeys-lru")
        .start();
    let named = |text: &str| text.contains("allkeys-lru may evict locks");
    assert!(server.log().lines().any(named), "{}", server.log());
    let told = warnings(&mut server.connect());
    assert!(told.iter().any(|warning| named(warning)), "{told:?}");
}

#[test]
fn a_node_that_may_forget_grants_says_so() {
    let forgets = "neither durable";
    let forgetful = Server::options().appendonly("everysec").start();
    let durable = Server::options().appendonly("always").start();
    let quarantined = Server::options().config("lock.quarantine 1000").start();
    for (server, said) in [(&forgetful, true), (&durable, false), (&quarantined, false)] {
        let told = warnings(&mut server.connect());
        let named = |text: &&str| text.contains(forgets);
        assert_eq!(
            told.iter().any(|text| text.contains(forgets)),
            said,
            "{told:?}"
        );
        let logged = server.log();
        assert_eq!(
            logged.lines().filter(named).count(),
            usize::from(said),
            "{logged}"
        );
    }
    let mut c = durable.connect();
    c.ok("CONFIG SET appendfsync everysec");
    assert!(warnings(&mut c).iter().any(|text| text.contains(forgets)));
}

#[test]
fn replicas_that_are_needed_without_a_quarantine_are_named() {
    let server = Server::start();
    let mut c = server.connect();
    let named = |text: &String| text.contains("min-replicas-to-write is set");
    assert!(!warnings(&mut c).iter().any(named));
    c.ok("CONFIG SET min-replicas-to-write 1");
    assert!(warnings(&mut c).iter().any(named));
}
