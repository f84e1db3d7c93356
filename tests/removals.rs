//! Held locks that something other than their holders ended leave a count and a line in the log.

use redislock_testkit::{Connection, Server, granted, info_number, wait_until};

fn removed(c: &mut Connection) -> i64 {
    info_number(c, "lock", "lock_removed")
}

/// The lines of the log about removed locks.
fn lines(server: &Server) -> Vec<String> {
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("held lock"));
    lines.map(str::to_owned).collect()
}

#[track_caller]
fn wait_for_line(server: &Server, parts: &[&str]) {
    let is_it = |line: &String| parts.iter().all(|part| line.contains(part));
    wait_until("the line is logged", || lines(server).iter().any(is_it));
}

#[test]
fn a_held_lock_that_another_command_removes_is_counted_and_logged() {
    let server = Server::start();
    let mut c = server.connect();
    for (n, (key, line, cause)) in [
        ("deleted", "DEL deleted", "a deletion"),
        ("unlinked", "UNLINK unlinked", "a deletion"),
        ("set", "SET set value", "another command"),
        ("renamed", "RENAME string renamed", "another command"),
        ("expired", "PEXPIRE expired 10", "another command"),
        // Servers tell of this one in different ways.
        ("gone", "PEXPIRE gone -1", "held lock"),
    ]
    .into_iter()
    .enumerate()
    {
        c.ok("SET string value");
        granted(&c.call(&format!("LOCK.ACQUIRE {key} secret 600000 OWNER web-{n}")));
        c.ok(line);
        wait_until("it is counted", || removed(&mut c) == n as i64 + 1);
        let (key, owner) = (format!("\"{key}\""), format!("owner \"web-{n}\""));
        wait_for_line(&server, &[cause, &key, "database 0", &owner]);
    }
    // What comes after the lock may be deleted: that did not end the hold.
    for over in ["SET k value", "RENAME string k", "COPY string k REPLACE"] {
        let before = removed(&mut c);
        c.ok("SET string value");
        granted(&c.call("LOCK.ACQUIRE k secret 600000"));
        c.pipeline(&[over, "DEL k"]);
        wait_until("it is counted", || removed(&mut c) == before + 1);
        wait_until("it is logged", || lines(&server).len() as i64 == before + 1);
        let last = lines(&server).pop().expect("a line");
        assert!(last.contains("another command"), "{over}: {last}");
    }
    assert!(!server.log().contains("secret"), "{}", server.log());
}

#[test]
fn an_evicted_lock_is_counted_and_logged() {
    let server = Server::options()
        .config("maxmemory-policy allkeys-random")
        .start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    c.ok("CONFIG SET maxmemory 1");
    wait_until("the lock is evicted", || {
        c.call("SET string value");
        removed(&mut c) == 1
    });
    wait_for_line(&server, &["an eviction", "\"job\""]);
}

#[test]
fn what_its_holders_end_is_not_a_removal() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE released me 600000"));
    c.ok("LOCK.RELEASE released me");
    granted(&c.call("LOCK.ACQUIRE expired me 10"));
    granted(&c.call("LOCK.ACQUIRE renamed me 600000"));
    c.ok("RENAME renamed elsewhere");
    c.ok("MOVE elsewhere 1");
    granted(&c.call("LOCK.ACQUIRE last me 600000"));
    c.ok("DEL last");
    wait_until("the last one is counted", || removed(&mut c) > 0);
    assert_eq!(removed(&mut c), 1);
    assert_eq!(lines(&server).len(), 1, "{:?}", lines(&server));
}

#[test]
fn a_deletion_at_the_old_name_is_not_what_removed_a_lock() {
    let server = Server::start();
    let mut c = server.connect();
    for (n, (rename, remove)) in [
        ("RENAME old renamed", "PEXPIRE renamed 1"),
        ("MOVE old 1", "PEXPIRE old 1"),
    ]
    .into_iter()
    .enumerate()
    {
        granted(&c.call("LOCK.ACQUIRE old me 600000"));
        c.ok(rename);
        c.ok("SET old value");
        c.ok("DEL old");
        if rename.starts_with("MOVE") {
            c.ok("SELECT 1");
        }
        c.ok(remove);
        wait_until("it is counted", || removed(&mut c) == n as i64 + 1);
    }
    wait_until("both are logged", || lines(&server).len() == 2);
    let logged = lines(&server);
    assert!(
        logged
            .iter()
            .all(|line| line.contains("another command or a TTL")),
        "{logged:?}"
    );
}

#[test]
fn force_is_logged_with_who_did_it() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("ACL SETUSER admin on nopass ~* +@all");
    c.ok("AUTH admin any");
    let id = c.client_id();
    granted(&c.call("LOCK.ACQUIRE job one 600000 SHARED OWNER web-1"));
    granted(&c.call("LOCK.ACQUIRE job two 600000 SHARED"));
    c.ok("LOCK.FORCE job");
    let by = format!("by client {id} (user \"admin\")");
    wait_for_line(
        &server,
        &["LOCK.FORCE ended", "\"job\"", "\"web-1\" and 1 more", &by],
    );
    assert_eq!(removed(&mut c), 0);
    c.call("LOCK.FORCE job");
    assert_eq!(lines(&server).len(), 1);
}

#[test]
fn names_are_escaped_and_cut() {
    let server = Server::start();
    let mut c = server.connect();
    let long = "k".repeat(100_000);
    for key in [&b"line\r\nbreak \"%s%n\0\xff"[..], long.as_bytes()] {
        let reply = c.call_args(&[b"LOCK.ACQUIRE", key, b"me", b"600000", b"OWNER", b"a\nb"]);
        granted(&reply);
        c.call_args(&[b"DEL", key]);
    }
    let escaped = "\"line\\r\\nbreak \\\"%s%n\\x00\\xff\"";
    wait_for_line(&server, &[escaped, "owner \"a\\nb\""]);
    wait_for_line(&server, &["kkkk..."]);
    assert!(lines(&server).iter().all(|line| line.len() < 1000));
}

#[test]
fn many_removals_are_ten_lines_and_a_count() {
    let server = Server::start();
    let mut c = server.connect();
    let keys: Vec<String> = (0..500).map(|n| format!("job-{n}")).collect();
    let acquire: Vec<String> = keys
        .iter()
        .map(|key| format!("LOCK.ACQUIRE {key} me 600000"))
        .collect();
    c.pipeline(&acquire);
    c.ok(&format!("DEL {}", keys.join(" ")));
    wait_until("all are counted", || removed(&mut c) == 500);
    wait_until("what was left out is logged", || {
        server.log().contains("more held locks were removed")
    });
    let logged = lines(&server);
    let left_out: i64 = logged.iter().filter_map(|line| left_out(line)).sum();
    let shown = logged.iter().filter(|line| left_out_is_none(line)).count();
    assert_eq!(shown as i64 + left_out, 500, "{logged:?}");
    // A busy machine may need some seconds for it.
    assert!(shown < 200, "{shown}");
}

fn left_out(line: &str) -> Option<i64> {
    let before = line.split(" more held locks").next()?;
    let number = before.rsplit(' ').next()?.parse().ok()?;
    line.contains(" more held locks").then_some(number)
}

fn left_out_is_none(line: &str) -> bool {
    left_out(line).is_none()
}

const LOCKS: i64 = 100_000;

fn used_memory(c: &mut Connection) -> i64 {
    info_number(c, "memory", "used_memory")
}

/// Acquires very many locks, and lets another command remove them.
fn remove_very_many(c: &mut Connection) {
    for command in [
        "'LOCK.ACQUIRE', 'job-' .. n, 'owner-' .. n, 600000, 'SHARED'",
        "'DEL', 'job-' .. n",
    ] {
        let script = format!("for n = 1, {LOCKS} do redis.call({command}) end");
        c.call_args(&["EVAL", &script, "0"]);
    }
}

#[test]
fn the_memory_of_very_many_removed_locks_comes_back() {
    let server = Server::start();
    let mut c = server.connect();
    let before = used_memory(&mut c);
    remove_very_many(&mut c);
    wait_until("all are counted", || removed(&mut c) == LOCKS);
    // What is to be told of them takes about 30 MB, and what their owners hold 10 MB.
    wait_until("the memory is free", || {
        used_memory(&mut c) < before + 5_000_000
    });
}

/// Its master logs them. The list of a replica shrank by 32 locks in a tenth of a second.
#[test]
fn the_memory_of_locks_that_the_master_removed_comes_back_on_a_replica() {
    let master = Server::start();
    // The backlog of Valkey is 10 MB by default.
    let replica = Server::options().config("repl-backlog-size 1mb");
    let replica = replica.replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    redislock_testkit::wait_for_sync(&mut m, &mut r);
    let before = used_memory(&mut r);
    remove_very_many(&mut m);
    redislock_testkit::wait_for_sync(&mut m, &mut r);
    wait_until("the memory is free", || {
        used_memory(&mut r) < before + 5_000_000
    });
}

#[test]
fn a_flush_is_one_line() {
    let server = Server::start();
    let mut c = server.connect();
    for n in 0..100 {
        granted(&c.call(&format!("LOCK.ACQUIRE job-{n} me 600000")));
    }
    c.ok("FLUSHALL");
    wait_until("it is logged", || {
        server.log().contains("a flush removed 100 locks")
    });
    assert_eq!(removed(&mut c), 100);
    assert_eq!(lines(&server), Vec::<String>::new());
}

#[test]
fn a_replica_neither_counts_nor_logs_what_its_master_removes() {
    let master = Server::start();
    let replica = Server::options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    granted(&m.call("LOCK.ACQUIRE job me 600000"));
    redislock_testkit::wait_for_sync(&mut m, &mut r);
    m.ok("DEL job");
    wait_for_line(&master, &["a deletion", "\"job\""]);
    redislock_testkit::wait_for_sync(&mut m, &mut r);
    r.ok("REPLICAOF NO ONE");
    granted(&r.call("LOCK.ACQUIRE job me 600000"));
    r.ok("DEL job");
    wait_until("its own is counted", || removed(&mut r) > 0);
    assert_eq!((removed(&mut r), lines(&replica).len()), (1, 1));
}
