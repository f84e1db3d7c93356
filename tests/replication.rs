//! Replicas receive effects and end up with the same locks, over full and partial
//! resynchronisation.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{
    all_locks, arrange, assert_held, counter, wait_for_waiters, wait_until_gone,
};
use redislock_testkit::{
    Connection, Random, Server, Value, granted, info_field, info_number, refused, wait_until,
};

/// Waits until the replica has applied all that the master has sent so far.
#[track_caller]
pub fn wait_for_sync(m: &mut Connection, r: &mut Connection) {
    wait_until("the link is up", || {
        info_field(r, "replication", "master_link_status") == "up"
    });
    let sent = info_number(m, "replication", "master_repl_offset");
    wait_until("the replica has caught up", || {
        info_number(r, "replication", "slave_repl_offset") >= sent
    });
}

#[track_caller]
fn assert_equal(m: &mut Connection, r: &mut Connection) {
    wait_for_sync(m, r);
    assert_eq!(all_locks(r), all_locks(m));
    assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"));
    assert_eq!(
        r.call("LOCK.NODE").number("locks"),
        m.call("LOCK.NODE").number("locks")
    );
    assert_eq!(counter(r), counter(m));
}

#[test]
fn a_full_sync_brings_every_lock() {
    for diskless in ["yes", "no"] {
        let master = Server::options()
            .config(&format!("repl-diskless-sync {diskless}"))
            .start();
        let mut m = master.connect();
        let ownership = arrange(&mut m);
        let replica = Server::options().replica_of(&master).start();
        let mut r = replica.connect();
        assert_equal(&mut m, &mut r);
        assert_held(&mut r, &ownership);
    }
}

#[test]
fn the_stream_brings_every_lock() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    let ownership = arrange(&mut m);
    assert_equal(&mut m, &mut r);
    assert_held(&mut r, &ownership);
}

#[test]
fn a_partial_resync_brings_what_was_missed() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    arrange(&mut m);
    wait_for_sync(&mut m, &mut r);
    replica.pause();
    m.ok("CLIENT KILL TYPE replica");
    m.ok("LOCK.RELEASE plain token-a");
    m.ok("LOCK.ACQUIRE missed me 600000 OWNER label");
    m.ok("LOCK.ACQUIRE reentered token-a 600000");
    m.ok("LOCK.EXTEND labelled token-b 7200000");
    m.ok("LOCK.RELEASE shared reader-1");
    replica.resume();
    wait_until("a partial resync was made", || {
        info_number(&mut m, "stats", "sync_partial_ok") > 0
    });
    assert_equal(&mut m, &mut r);
    assert_eq!(info_number(&mut m, "stats", "sync_full"), 1);
}

#[test]
fn any_sequence_of_commands_leaves_master_and_replica_equal() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    let mut random = Random::seeded();
    for _ in 0..40 {
        let lines: Vec<String> = (0..100).map(|_| any_command(&mut random)).collect();
        m.pipeline(&lines);
        assert_equal(&mut m, &mut r);
    }
}

fn any_command(random: &mut Random) -> String {
    let (key, other) = (random.below(6), random.below(6));
    let token = random.below(4);
    let ttl = 600_000 + random.below(600_000);
    let ahead = redislock_testkit::lock::wall_micros() + 1_000_000;
    match random.below(20) {
        0..=3 => format!("LOCK.ACQUIRE job-{key} token-{token} {ttl}"),
        4 => format!("LOCK.ACQUIRE job-{key} token-{token} {ttl} ONCE OWNER label-{token}"),
        5 => format!("LOCK.ACQUIRE job-{key} token-{token} {ttl} MAXHOLD 1000000"),
        6..=7 => format!("LOCK.ACQUIRE job-{key} token-{token} {ttl} SHARED"),
        8 => format!("LOCK.ACQUIRE job-{key} token-{token} {ttl} SHARED LIMIT 2"),
        9 => format!("LOCK.ACQUIRE job-{key} * {ttl}"),
        10..=12 => format!("LOCK.RELEASE job-{key} token-{token}"),
        13 => format!("LOCK.RELEASE job-{key} token-{token} ALL"),
        14 => format!("LOCK.EXTEND job-{key} token-{token} {ttl}"),
        15 => format!("LOCK.EXTEND job-{key} token-{token} {ttl} FENCE {ahead}"),
        16 => format!("LOCK.FORCE job-{key}"),
        17 => format!("RENAME job-{key} job-{other}"),
        18 => format!("DEL job-{key}"),
        _ => "SWAPDB 0 1".to_owned(),
    }
}

#[test]
fn the_replica_runs_effects_and_no_requests_but_releases_that_free_a_key() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    arrange(&mut m);
    m.ok("LOCK.EXTEND plain token-a 3600000");
    m.ok("LOCK.RELEASE plain token-a");
    m.ok("LOCK.FORCE shared");
    m.ok("LOCK.ACQUIRE short me 20");
    wait_until_gone(&mut m, "short");
    wait_for_sync(&mut m, &mut r);
    let statistics = r.call("INFO commandstats").text().to_lowercase();
    for request in ["acquire", "release", "extend", "force"] {
        let runs = statistics.contains(&format!("cmdstat_lock.{request}"));
        assert_eq!(runs, request == "release", "{statistics}");
    }
    assert!(statistics.contains("cmdstat_lock._apply"), "{statistics}");
    assert!(!statistics.contains("failed_calls=1"), "{statistics}");
}

/// A release that leaves a holder, or serves a waiter, is an effect: the replica does not decide.
#[test]
fn a_release_is_sent_as_it_came_only_if_it_frees_the_key() {
    let master = Server::options().appendonly("always").start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    let calls = |r: &mut Connection| {
        let statistics = r.info("commandstats");
        let calls = statistics.field("cmdstat_lock.release");
        let calls = calls.and_then(|calls| calls.split(',').next());
        calls.map_or("calls=0".to_owned(), str::to_owned)
    };
    let mut waiter = master.connect();
    m.pipeline(&[
        "LOCK.ACQUIRE twice me 600000",
        "LOCK.ACQUIRE twice me 600000",
        "LOCK.ACQUIRE pool one 600000 SHARED",
        "LOCK.ACQUIRE pool two 600000 SHARED",
        "LOCK.ACQUIRE waited me 600000",
    ]);
    waiter.send("LOCK.ACQUIRE waited you 600000 BLOCK 0");
    wait_for_waiters(&mut m, "waited", 1);
    m.pipeline(&[
        "LOCK.RELEASE twice me",
        "LOCK.RELEASE pool one",
        "LOCK.RELEASE waited me",
        "LOCK.RELEASE waited nobody",
    ]);
    granted(&waiter.receive());
    wait_for_sync(&mut m, &mut r);
    assert_eq!(calls(&mut r), "calls=0");
    assert_eq!(r.ok("DEBUG DIGEST"), m.ok("DEBUG DIGEST"));
    m.pipeline(&[
        "LOCK.RELEASE twice me",
        "LOCK.RELEASE pool two",
        "LOCK.RELEASE waited you ALL",
    ]);
    wait_for_sync(&mut m, &mut r);
    assert_eq!(calls(&mut r), "calls=3");
    m.ok("DEBUG LOADAOF");
    for c in [&mut m, &mut r] {
        assert_eq!(c.ok("DBSIZE"), Value::Integer(0));
        assert_eq!(info_number(c, "lock", "lock_locks"), 0);
    }
}

#[test]
fn a_request_that_changes_nothing_is_not_replicated() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    m.ok("LOCK.ACQUIRE job me 600000");
    wait_for_sync(&mut m, &mut r);
    let dirty = info_number(&mut m, "persistence", "rdb_changes_since_last_save");
    let applied = applied(&mut r);
    for line in [
        "LOCK.ACQUIRE job you 600000",
        "LOCK.RELEASE job you",
        "LOCK.EXTEND job you 600000",
        "LOCK.FORCE nothing",
        "LOCK.ACQUIRE job me 0",
        "LOCK.INFO job",
    ] {
        m.call(line);
    }
    wait_for_sync(&mut m, &mut r);
    assert_eq!(
        info_number(&mut m, "persistence", "rdb_changes_since_last_save"),
        dirty
    );
    assert_eq!(self::applied(&mut r), applied);
}

/// How many effects a replica has run.
fn applied(r: &mut Connection) -> String {
    let statistics = r.call("INFO commandstats").text().to_lowercase();
    let line = statistics
        .lines()
        .find(|line| line.starts_with("cmdstat_lock._apply"));
    let calls = line.and_then(|line| line.split([':', ',']).nth(1));
    calls.unwrap_or("calls=0").to_owned()
}

#[test]
fn the_end_of_a_lease_reaches_the_replica() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    for n in 0..100 {
        granted(&m.call(&format!("LOCK.ACQUIRE job-{n} me 100")));
    }
    granted(&m.call("LOCK.ACQUIRE room short 100 SHARED"));
    granted(&m.call("LOCK.ACQUIRE room long 600000 SHARED"));
    wait_until("the master has ended the leases", || {
        m.call("DBSIZE") == Value::Integer(1) && info_number(&mut m, "lock", "lock_expiries") == 101
    });
    assert_equal(&mut m, &mut r);
    assert_eq!(r.call("DBSIZE"), Value::Integer(1));
}

#[test]
fn a_replica_of_a_replica_agrees() {
    let master = Server::start();
    let middle = Server::options().replica_of(&master).start();
    let last = Server::options().replica_of(&middle).start();
    let (mut m, mut i, mut l) = (master.connect(), middle.connect(), last.connect());
    wait_for_sync(&mut m, &mut i);
    wait_for_sync(&mut i, &mut l);
    let ownership = arrange(&mut m);
    wait_until("the last one has caught up", || {
        all_locks(&mut l).len() == all_locks(&mut m).len()
    });
    wait_until("all holders are there", || {
        all_locks(&mut l) == all_locks(&mut m)
    });
    assert_held(&mut l, &ownership);
}

#[test]
fn a_replica_writes_its_aof_and_reloads_it() {
    let master = Server::start();
    let mut replica = Server::options()
        .replica_of(&master)
        .appendonly("always")
        .start();
    let mut m = master.connect();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    // After a full sync the replica makes its AOF again, in the background.
    crate::persistence::wait_for_rewrite(&mut r);
    arrange(&mut m);
    wait_for_sync(&mut m, &mut r);
    let before = all_locks(&mut m);
    drop(r);
    replica.kill();
    replica.reconfigure(|options| options.config("replicaof no one"));
    replica.start_again();
    assert_eq!(all_locks(&mut replica.connect()), before);
}

#[test]
fn holders_carry_on_after_a_promotion() {
    let mut master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let mut m = master.connect();
    let mut r = replica.connect();
    let ownership = arrange(&mut m);
    let before = all_locks(&mut m);
    wait_for_sync(&mut m, &mut r);
    let last = counter(&mut m);
    refused(&r.call("LOCK.EXTEND plain token-a 3600000"), "READONLY");
    master.kill();
    r.ok("REPLICAOF NO ONE");
    assert_eq!(all_locks(&mut r), before);
    assert_held(&mut r, &ownership);
    assert_eq!(r.call("LOCK.ACQUIRE plain intruder 1000"), Value::Null);
    granted(&r.call("LOCK.EXTEND plain token-a 3600000"));
    assert_eq!(r.call("LOCK.RELEASE plain token-a"), Value::Integer(1));
    assert!(granted(&r.call("LOCK.ACQUIRE plain next 1000")) > last);
}

#[test]
fn a_demoted_master_takes_over_what_its_new_master_holds() {
    let one = Server::start();
    let two = Server::start();
    let (mut a, mut b) = (one.connect(), two.connect());
    granted(&a.call("LOCK.ACQUIRE only-here me 600000"));
    granted(&b.call("LOCK.ACQUIRE job you 600000"));
    a.ok(&format!("REPLICAOF 127.0.0.1 {}", two.port()));
    wait_until("it holds what its master holds", || {
        all_locks(&mut a) == all_locks(&mut b)
    });
    assert_eq!(a.call("LOCK.NODE").number("locks"), 1);
    assert_eq!(a.call("LOCK.INFO only-here"), Value::Null);
}

#[test]
fn without_enough_replicas_nothing_is_granted() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("CONFIG SET min-replicas-to-write 1");
    refused(&c.call("LOCK.ACQUIRE other me 600000"), "NOREPLICAS");
    refused(&c.call("LOCK.EXTEND job me 600000"), "NOREPLICAS");
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
}

#[test]
fn a_lease_that_arrives_late_has_the_time_that_remained_when_it_was_sent() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    replica.pause();
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    std::thread::sleep(Duration::from_millis(700));
    let start = Instant::now();
    replica.resume();
    wait_for_sync(&mut m, &mut r);
    r.ok("REPLICAOF NO ONE");
    let ttl = r.call("LOCK.INFO job me").number("ttl");
    let since = i64::try_from(start.elapsed().as_millis()).expect("a short time") + 1;
    assert!(ttl >= 600_000 - since, "{ttl} after {since} ms");
}

/// What `replica-read-only no` allows is not for locks: the master grants the same ones.
#[test]
fn a_writable_replica_changes_no_lock() {
    let master = Server::start();
    let mut m = master.connect();
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    let replica = Server::options()
        .config("replica-read-only no")
        .replica_of(&master)
        .start();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    r.ok("SET data before");
    for line in [
        "LOCK.ACQUIRE free you 60000",
        "LOCK.ACQUIRE job you 60000 BLOCK 0",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 60000",
        "LOCK.MACQUIRE 2 free other you 60000",
        "LOCK.MRELEASE 2 job other me",
        "LOCK.MEXTEND 1 job me 60000",
        "LOCK.GUARD job me SET data after",
        "LOCK.FORCE job",
    ] {
        refused(&r.call(line), "READONLY");
        r.ok("MULTI");
        r.ok(line);
        refused(&r.call("EXEC").items()[0], "READONLY");
        let script = "return redis.pcall(unpack(ARGV))";
        let mut eval = vec!["EVAL", script, "0"];
        eval.extend(line.split(' '));
        refused(&r.call_args(&eval), "READONLY");
    }
    assert_eq!(r.call("GET data").text(), "before");
    assert_eq!(all_locks(&mut r), all_locks(&mut m));
    // Its master's changes still arrive, and a node that is promoted grants.
    m.ok("LOCK.RELEASE job me");
    granted(&m.call("LOCK.ACQUIRE job you 600000"));
    wait_for_sync(&mut m, &mut r);
    assert_eq!(all_locks(&mut r), all_locks(&mut m));
    r.ok("REPLICAOF NO ONE");
    granted(&r.call("LOCK.ACQUIRE free you 60000"));
}

/// A grant that could not be delivered is taken back, but not by a node that was a replica in
/// between: the master of that time may have told the owner that it holds the lock.
#[test]
fn an_undelivered_grant_is_not_taken_back_after_two_changes_of_roles() {
    let (first, second) = (Server::start(), Server::start());
    let (mut a, mut b) = (first.connect(), second.connect());
    b.ok(&format!("REPLICAOF 127.0.0.1 {}", first.port()));
    wait_for_sync(&mut a, &mut b);
    granted(&a.call("LOCK.ACQUIRE job holder 600000"));
    let mut waiter = first.connect();
    let id = waiter.client_id();
    waiter.send("LOCK.ACQUIRE job owner 600000 BLOCK 0");
    wait_for_waiters(&mut a, "job", 1);
    // The waiter is granted the lock and gone before it is told; a pause keeps the node from taking
    // the grant back.
    a.ok("MULTI");
    a.ok("LOCK.RELEASE job holder");
    a.ok(&format!("CLIENT KILL ID {id}"));
    a.ok("CLIENT PAUSE 600000 WRITE");
    a.ok("EXEC");
    wait_until("the replica has the grant", || {
        b.call("LOCK.INFO job owner") != Value::Null
    });
    b.ok("REPLICAOF NO ONE");
    a.ok(&format!("REPLICAOF 127.0.0.1 {}", second.port()));
    a.ok("CLIENT UNPAUSE");
    wait_for_sync(&mut b, &mut a);
    granted(&b.call("LOCK.EXTEND job owner 600000"));
    wait_for_sync(&mut b, &mut a);
    a.ok("REPLICAOF NO ONE");
    // Longer than the interval of the cron, which would revoke it.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(a.call("LOCK.ACQUIRE job stranger 1000"), Value::Null);
    granted(&a.call("LOCK.EXTEND job owner 600000"));
}

#[test]
fn a_key_of_another_type_on_the_replica_does_not_keep_the_other_keys_from_it() {
    let master = Server::start();
    let replica = Server::options()
        .replica_of(&master)
        .config("replica-read-only no")
        .start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    wait_for_sync(&mut m, &mut r);
    r.ok("SET one value");
    m.ok("LOCK.MACQUIRE 3 zero one two me 600000");
    wait_for_sync(&mut m, &mut r);
    for key in ["zero", "two"] {
        assert_ne!(r.call(&format!("LOCK.INFO {key} me")), Value::Null, "{key}");
    }
    assert_eq!(r.ok("GET one").text(), "value");
}
