//! Nothing that is not asked for keeps clients waiting: what belongs to very many locks is done in
//! slices, or not at all. Measured by the CPU time of the server's main thread, which a busy
//! machine does not change; a server that does it all at once takes several times what is allowed.

use std::ops::Range;
use std::time::{Duration, Instant};

use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{
    Connection, Server, Value, encode, fragile_module, granted, info_number, refused,
    wait_for_sync, wait_until,
};

const LOCKS: usize = 150_000;
/// The most CPU time between two replies to a client that only sends PING.
const ALLOWED: Duration = Duration::from_millis(12);
/// The most CPU time of a command that has nothing to do with the number of locks.
const AT_ONCE: Duration = Duration::from_millis(4);

/// CPU time that the main thread of a process has used so far.
fn main_thread(pid: i64) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
    let nanos = stat.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

fn acquire(c: &mut Connection, options: &str) {
    for first in (0..LOCKS).step_by(10_000) {
        let lines: Vec<_> = (first..first + 10_000)
            .map(|n| format!("LOCK.ACQUIRE lock-{n} me 3600000 {options}"))
            .collect();
        c.pipeline(&lines).iter().for_each(|told| _ = granted(told));
    }
}

/// The longest time of the main thread between two replies, from before `action` until `done`.
fn longest_stall(
    server: &Server,
    action: impl FnOnce(),
    mut done: impl FnMut(&mut Connection) -> bool,
) -> Duration {
    let (mut c, mut longest) = (server.connect(), Duration::ZERO);
    let pid = info_number(&mut c, "server", "process_id");
    let cpu = || main_thread(pid);
    c.call("PING");
    let before = cpu();
    action();
    // What follows may begin with the next turns of the server only.
    let start = Instant::now();
    let mut last = before;
    loop {
        c.call("PING");
        longest = longest.max(cpu() - last);
        if start.elapsed() > Duration::from_millis(300) && done(&mut c) {
            return longest;
        }
        last = cpu();
    }
}

#[track_caller]
fn assert_short(stall: Duration) {
    assert!(stall <= ALLOWED, "{stall:?} of the main thread at once");
}

#[test]
fn a_connection_with_very_many_ephemeral_holds_closes_in_slices() {
    let server = Server::start();
    let mut holder = server.connect();
    acquire(&mut holder, "EPHEMERAL");
    let mut c = server.connect();
    let stall = longest_stall(
        &server,
        || drop(holder),
        |c| c.call("LOCK.NODE").number("locks") == 0,
    );
    assert_short(stall);
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
    assert_eq!(info_number(&mut c, "lock", "lock_expiries"), LOCKS as i64);
}

/// The holds of a closed connection end at once for every reader, although they are removed later.
#[test]
fn every_hold_of_a_closed_connection_has_ended_for_every_reader() {
    let server = Server::start();
    let mut holder = server.connect();
    acquire(&mut holder, "EPHEMERAL");
    let (mut c, mut waiter) = (server.connect(), server.connect());
    // Those that were acquired last are removed last.
    let last = LOCKS - 1;
    let (one, two) = (format!("lock-{last}"), format!("lock-{}", last - 1));
    waiter.send(&format!("LOCK.MACQUIRE 2 {one} lock-0 you 600000 BLOCK 0"));
    wait_for_waiters(&mut c, &one, 1);
    drop(holder);
    wait_until("the connection is seen to be closed", || {
        c.call("LOCK.INFO lock-1 me") == Value::Null
    });
    for n in [last - 1, last - 2, last / 2] {
        assert_eq!(c.call(&format!("LOCK.INFO lock-{n} me")), Value::Null);
        assert_eq!(
            c.call(&format!("LOCK.EXTEND lock-{n} me 1000")),
            Value::Null
        );
    }
    granted(&c.call(&format!("LOCK.ACQUIRE {two} other 600000")));
    assert_eq!(waiter.receive().items().len(), 2);
}

#[test]
fn swapdb_and_flushes_do_not_look_at_every_lock() {
    let server = Server::start();
    let mut c = server.connect();
    acquire(&mut c, "");
    let swap = longest_stall(&server, || _ = c.ok("SWAPDB 0 1"), |_| true);
    assert_short(swap);
    c.ok("SELECT 1");
    assert_ne!(c.call("LOCK.INFO lock-7 me"), Value::Null);
    c.ok("LOCK.RELEASE lock-7 me");
    let flush = longest_stall(
        &server,
        || _ = c.ok("FLUSHALL ASYNC"),
        |c| info_number(c, "memory", "lazyfree_pending_objects") == 0,
    );
    assert_short(flush);
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
    granted(&c.call("LOCK.ACQUIRE lock-7 other 600000"));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
}

/// The CPU time of the main thread that a command costs.
fn cost(server: &Server, command: &str) -> Duration {
    let mut c = server.connect();
    let pid = info_number(&mut c, "server", "process_id");
    let before = main_thread(pid);
    c.ok(command);
    main_thread(pid) - before
}

#[test]
fn a_change_of_roles_does_not_look_at_every_ephemeral_hold() {
    let server = Server::start();
    let mut holder = server.connect();
    acquire(&mut holder, "EPHEMERAL");
    // Nothing listens there: the node stays a replica that has lost its master.
    for role in ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"] {
        let stall = cost(&server, role);
        assert!(stall <= AT_ONCE, "{role}: {stall:?}");
    }
    let mut c = server.connect();
    drop(holder);
    wait_until("its holder is gone", || {
        info_number(&mut c, "clients", "connected_clients") == 1
    });
    assert_ne!(c.call("LOCK.INFO lock-7 me"), Value::Null, "a lease by now");
    assert_eq!(c.call("LOCK.NODE").number("locks"), LOCKS as i64);
}

/// Very many hold one lock; one of them longer than the others.
fn many_holders(c: &mut Connection) {
    for first in (0..LOCKS).step_by(10_000) {
        let lines: Vec<_> = (first..first + 10_000)
            .map(|n| {
                let ttl = if n == 5 { 3_700_000 } else { 3_600_000 };
                format!("LOCK.ACQUIRE room owner-{n} {ttl} SHARED OWNER label-{n}")
            })
            .collect();
        c.pipeline(&lines).iter().for_each(|told| _ = granted(told));
    }
}

#[test]
fn a_command_on_a_lock_with_very_many_holders_does_not_look_at_each() {
    let server = Server::options().config("lock.max-holders 1000000").start();
    let replica = Server::options().replica_of(&server).start();
    let (mut c, mut r) = (server.connect(), replica.connect());
    for command in ["LOCK.FORCE room", "DEL room"] {
        many_holders(&mut c);
        wait_for_sync(&mut c, &mut r);
        let told = cost(&server, "LOCK.INFO room COUNT 1");
        assert!(told <= AT_ONCE, "LOCK.INFO: {told:?}");
        let shown = c.call("LOCK.INFO room COUNT 1");
        let holder = shown.field("holders").items()[0].clone();
        assert_eq!(holder.field("owner").text(), "label-5", "it ends last");
        let forced = cost(&server, command);
        assert!(forced <= AT_ONCE, "{command}: {forced:?}");
        let stall = longest_stall(
            &replica,
            || (),
            |r| r.call("EXISTS room") == Value::Integer(0),
        );
        assert_short(stall);
        granted(&c.call("LOCK.ACQUIRE room me 1000"));
        c.ok("LOCK.RELEASE room me");
    }
    assert_eq!(info_number(&mut c, "lock", "lock_forced"), LOCKS as i64);
}

#[test]
fn a_wait_among_very_many_others_costs_what_it_costs_alone() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE busy holder 3600000"));
    let pid = info_number(&mut c, "server", "process_id");
    let cost = |c: &mut Connection| {
        let before = main_thread(pid);
        for _ in 0..100 {
            assert_eq!(c.call("LOCK.ACQUIRE busy other 1000 BLOCK 1"), Value::Null);
        }
        main_thread(pid) - before
    };
    let alone = cost(&mut c);
    let mut waiters = Vec::new();
    for waiter in 0..20 {
        let keys: Vec<_> = (0..1000).map(|key| format!("key-{waiter}-{key}")).collect();
        let shared: Vec<_> = keys
            .iter()
            .map(|key| format!("LOCK.ACQUIRE {key} reader 3600000 SHARED"))
            .collect();
        c.pipeline(&shared);
        let mut connection = server.connect();
        let keys = keys.join(" ");
        connection.send(&format!(
            "LOCK.MACQUIRE 1000 {keys} writer-{waiter} 1000 BLOCK 0"
        ));
        waiters.push(connection);
    }
    wait_for_waiters(&mut c, "key-19-999", 1);
    let among = cost(&mut c);
    assert!(among <= alone * 10, "{among:?}, alone {alone:?}");
}

/// The most CPU time that the main thread has spent at once on background work.
fn longest_slice(c: &mut Connection) -> Duration {
    let slice = info_number(c, "lock", "lock_longest_expiry_slice_cpu_us");
    Duration::from_micros(slice.unsigned_abs())
}

/// The first key of one of the tests.
const FIRST: &str = "mine-0";

/// All of these keys but the first one.
fn rest_of(keys: &str) -> &str {
    keys.split_once(' ').map_or("", |(_, rest)| rest)
}

#[track_caller]
fn granted_all(reply: &Value) {
    assert!(
        reply.items().iter().all(|fence| fence.integer() > 0),
        "{reply:?}"
    );
}

fn thousand(name: &str) -> String {
    let keys: Vec<_> = (0..1000).map(|n| format!("{name}-{n}")).collect();
    keys.join(" ")
}

/// The table of owners of shared locks grew at 57,344 of them, which took 7 ms, and kept its memory
/// until the last one was gone.
#[test]
fn the_table_of_very_many_owners_grows_and_shrinks_in_small_steps() {
    const OWNERS: usize = 57_344;
    const AROUND: usize = 200;
    let server = Server::start();
    let mut c = server.connect();
    let used = |c: &mut Connection| info_number(c, "memory", "used_memory");
    let before = used(&mut c);
    let each = |c: &mut Connection, numbers: Range<usize>, command: &str| {
        let commands = numbers.map(|n| command.replace('#', &n.to_string()));
        c.pipeline(&commands.collect::<Vec<_>>());
    };
    let acquire = "LOCK.ACQUIRE room-# owner-# 600000 SHARED";
    each(&mut c, 0..OWNERS - AROUND, acquire);
    let next = OWNERS - AROUND..OWNERS + AROUND;
    let costs = next.map(|n| cost(&server, &acquire.replace('#', &n.to_string())));
    let most = costs.max();
    assert!(most <= Some(AT_ONCE), "{most:?}");
    each(&mut c, 1..OWNERS + AROUND, "LOCK.RELEASE room-# owner-#");
    wait_until("the memory is free", || used(&mut c) < before + 2_000_000);
}

/// The waiter wants one of the released keys and 999 others, which took 21 ms: each of these was
/// compared with all keys of the command. Of three rounds the best one counts.
#[test]
fn a_release_of_very_many_keys_that_grants_very_many_others_costs_as_much_as_both() {
    let server = Server::start();
    let mut c = server.connect();
    let (mine, others) = (thousand("mine"), thousand("other"));
    let wanted = others.replacen("other-0", "mine-0", 1);
    let mut round = |release: &[&str]| {
        granted(&c.call(&format!("LOCK.ACQUIRE {FIRST} me 600000")));
        granted_all(&c.call(&format!("LOCK.MACQUIRE 999 {} me 600000", rest_of(&mine))));
        let mut waiter = server.connect();
        waiter.send(&format!(
            "LOCK.MACQUIRE 1000 {wanted} waiter 600000 BLOCK 0"
        ));
        wait_for_waiters(&mut c, FIRST, 1);
        let costs = release.iter().map(|release| cost(&server, release));
        let cost = costs.sum::<Duration>();
        granted_all(&waiter.receive());
        c.call(&format!("LOCK.MRELEASE 1000 {wanted} waiter"));
        cost
    };
    let together = [format!("LOCK.MRELEASE 1000 {mine} me")];
    let apart = [
        format!("LOCK.MRELEASE 999 {} me", rest_of(&mine)),
        format!("LOCK.RELEASE {FIRST} me"),
    ];
    let best = |round: &mut dyn FnMut(&[&str]) -> Duration, release: &[String]| {
        let release: Vec<_> = release.iter().map(String::as_str).collect();
        (0..3).map(|_| round(&release)).min().expect("three rounds")
    };
    let (together, apart) = (best(&mut round, &together), best(&mut round, &apart));
    assert!(together < 4 * apart, "{together:?}, {apart:?} apart");
}

/// One client waits for very many keys and for one that stays held: each change of a key may be its
/// turn, and is not.
#[test]
fn a_waiter_for_very_many_keys_costs_little_when_one_of_them_changes() {
    let server = Server::start();
    let (mut c, mut holder) = (server.connect(), server.connect());
    let wait = |server: &Server, keys: &str| {
        let mut waiter = server.connect();
        let keys: Vec<_> = keys.split(' ').skip(1).chain(["pin"]).collect();
        waiter.send(&format!(
            "LOCK.MACQUIRE 1000 {} you 600000 BLOCK 0",
            keys.join(" ")
        ));
        waiter
    };
    granted(&c.call("LOCK.ACQUIRE pin other 600000"));
    let keys = thousand("released");
    c.ok(&format!("LOCK.MACQUIRE 1000 {keys} me 600000"));
    let _first = wait(&server, &keys);
    wait_for_waiters(&mut c, "released-999", 1);
    let released = cost(&server, &format!("LOCK.MRELEASE 1000 {keys} me"));
    assert!(released <= Duration::from_millis(40), "{released:?}");

    let keys = thousand("closed");
    holder.ok(&format!("LOCK.MACQUIRE 1000 {keys} me 600000 EPHEMERAL"));
    let _second = wait(&server, &keys);
    wait_for_waiters(&mut c, "closed-999", 1);
    drop(holder);
    wait_until("its holds have ended", || {
        c.call("LOCK.NODE").number("locks") == 1
    });
    let slice = longest_slice(&mut c);
    assert!(slice <= AT_ONCE, "{slice:?}");
}

/// Grants that cannot be delivered are taken back at once. So that this takes no longer than one
/// request does, only a few are on their way at a time.
#[test]
fn the_grants_of_very_many_clients_that_leave_together_are_taken_back_in_slices() {
    let server = Server::start();
    let (mut c, mut waiters) = (server.connect(), Vec::new());
    let mut transaction = vec!["MULTI".to_owned()];
    for n in 0..20 {
        let keys = thousand(&format!("job-{n}"));
        c.ok(&format!("LOCK.MACQUIRE 1000 {keys} me 600000"));
        let mut waiter = server.connect();
        let id = waiter.client_id();
        waiter.send(&format!("LOCK.MACQUIRE 1000 {keys} you-{n} 600000 BLOCK 0"));
        wait_for_waiters(&mut c, &format!("job-{n}-999"), 1);
        transaction.insert(1, format!("LOCK.MRELEASE 1000 {keys} me"));
        transaction.push(format!("CLIENT KILL ID {id}"));
        waiters.push(waiter);
    }
    transaction.push("EXEC".into());
    c.pipeline(&transaction);
    wait_until("nobody holds or waits", || {
        let node = c.call("LOCK.NODE");
        (node.number("locks"), node.number("waiters")) == (0, 0)
    });
    let slice = longest_slice(&mut c);
    assert!(slice <= ALLOWED, "{slice:?}");
}

/// While a child saves, each page that is changed is copied first, so each lease counts.
#[test]
fn while_a_child_saves_leases_end_in_the_smallest_steps() {
    const LEASES: i64 = 300;
    let server = Server::options().module(fragile_module()).start();
    let (mut c, mut ephemeral) = (server.connect(), server.connect());
    let decisions = |c: &mut Connection| c.call("LOCK._ENTRIES").items()[1].integer();
    for n in 0..100 {
        c.ok(&format!("SET string{n} value"));
    }
    granted(&ephemeral.call("LOCK.ACQUIRE ephemeral other 600000 EPHEMERAL"));
    let keys: Vec<_> = (0..LEASES).map(|n| format!("k{n}")).collect();
    let keys = keys.join(" ");
    c.call(&format!("LOCK.MACQUIRE {LEASES} {keys} me 1000"));
    // The child takes 20 s for the strings alone.
    c.ok("CONFIG SET rdb-key-save-delay 200000");
    c.call("BGSAVE");
    let saves = |c: &mut Connection| info_number(c, "persistence", "rdb_bgsave_in_progress") == 1;
    assert!(saves(&mut c));
    let before = decisions(&mut c);
    drop(ephemeral);
    wait_until("all locks are gone", || {
        c.call("LOCK.NODE").number("locks") == 0
    });
    let after = decisions(&mut c);
    assert!(saves(&mut c), "the child has ended");
    assert!(after - before >= LEASES, "{} decisions", after - before);
}

/// The waiters of this many locks are granted nothing, while the server executes these commands.
/// How many of them got their replies in one turn of the event loop at most.
fn most_refused_at_once(locks: usize, while_they_leave: &[&[&str]]) -> i64 {
    // A release that has more waiters leaves the others to later turns.
    const WAITERS: i64 = 32;
    let server = Server::options().module(fragile_module()).start();
    let mut c = server.connect();
    let locks: Vec<_> = (0..locks).map(|n| format!("job{n}")).collect();
    let mut waiters = Vec::new();
    for lock in &locks {
        granted(&c.call(&format!("LOCK.ACQUIRE {lock} me 600000")));
        for _ in 0..WAITERS {
            let mut waiter = server.connect();
            waiter.send(&format!("LOCK.ACQUIRE {lock} many 60000 BLOCK 0"));
            waiters.push(waiter);
        }
        wait_for_waiters(&mut c, lock, WAITERS);
    }
    // The server executes all releases in one turn.
    let mut commands: Vec<_> = locks
        .iter()
        .map(|lock| encode(&["LOCK.RELEASE", lock, "many", "ALL"]))
        .collect();
    commands.extend(while_they_leave.iter().map(|words| encode(words)));
    c.send_raw(&commands.concat());
    for _ in commands {
        c.receive();
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.receive(), Value::Null);
    }
    c.call("LOCK._ENTRIES").items()[2].integer()
}

#[test]
fn very_many_waiters_that_are_granted_nothing_get_their_replies_in_slices() {
    let most = most_refused_at_once(5, &[]);
    assert!((1..128).contains(&most), "{most} replies in one turn");
}

#[test]
fn refused_waiters_get_their_replies_in_slices_after_long_turns() {
    // In a turn, the server reads at most 16 KB of a connection: so each script has its own turn.
    let script = format!("for i = 1, 2e7 do end --{}", "x".repeat(20_000));
    let most = most_refused_at_once(25, &[&["EVAL", &script, "0"] as &[&str]; 10]);
    // More than in a short turn.
    assert!((33..=128).contains(&most), "{most} replies in one turn");
}

/// In a cluster the lock may have moved, so all its waiters are unblocked.
#[test]
fn very_many_waiters_whose_lock_is_removed_in_a_cluster_are_unblocked_in_slices() {
    let server = Server::options().config("cluster-enabled yes").start();
    let mut c = server.connect();
    c.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_until("the cluster is up", || {
        c.call("CLUSTER INFO").text().contains("cluster_state:ok")
    });
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let mut waiters: Vec<_> = (0..800)
        .map(|n| {
            let mut waiter = server.connect();
            waiter.send(&format!("LOCK.ACQUIRE job you-{n} 60000 BLOCK 0"));
            waiter
        })
        .collect();
    wait_for_waiters(&mut c, "job", 800);
    let stall = longest_stall(&server, || _ = c.ok("DEL job"), |_| true);
    assert!(stall <= Duration::from_millis(8), "{stall:?}");
    for waiter in &mut waiters {
        refused(&waiter.receive(), "UNBLOCKED");
    }
}

/// This many requests of one owner, each for a thousand keys, that wait for `pin`.
fn waiters_for_very_many_keys(server: &Server, c: &mut Connection) -> Vec<Connection> {
    granted(&c.call("LOCK.ACQUIRE pin other 600000"));
    let keys = thousand("wanted");
    let keys = keys.rsplit_once(' ').map_or("", |(keys, _)| keys);
    let wait = |n| {
        let mut waiter = server.connect();
        waiter.send(&format!(
            "LOCK.MACQUIRE 1000 pin {keys} many 600000 BLOCK 0"
        ));
        wait_for_waiters(c, "pin", n);
        waiter
    };
    (1..=150).map(wait).collect()
}

#[test]
fn very_many_requests_that_their_owner_cancels_leave_in_slices() {
    let server = Server::start();
    let mut c = server.connect();
    let mut waiters = waiters_for_very_many_keys(&server, &mut c);
    let told = c.pipeline(&["MULTI", "LOCK.RELEASE pin many ALL", "LOCK.NODE", "EXEC"]);
    let node = told.last().and_then(|told| told.items().last().cloned());
    let left = node.map_or(0, |node| node.number("waiters"));
    assert!(left > 140, "the command itself lets only {left} stay");
    c.ok("LOCK.RELEASE pin other");
    granted(&c.call("LOCK.ACQUIRE wanted-7 other 600000"));
    for waiter in &mut waiters {
        assert_eq!(waiter.receive(), Value::Null);
    }
    let slice = longest_slice(&mut c);
    assert!(slice <= AT_ONCE, "{slice:?}");
}

/// Of three rounds the best one counts: a server that does it all at once takes too long in each.
#[test]
fn very_many_waiters_whose_connections_are_closed_together_leave_in_slices() {
    let round = |_| {
        let server = Server::start();
        let mut c = server.connect();
        let mut waiters = waiters_for_very_many_keys(&server, &mut c);
        // One goes by itself: the metric counts from here.
        waiters.pop();
        wait_for_waiters(&mut c, "pin", 149);
        c.ok("CONFIG RESETSTAT");
        c.ok("CLIENT KILL TYPE normal SKIPME yes");
        wait_until("nobody waits", || {
            c.call("LOCK.NODE").number("waiters") == 0
        });
        longest_slice(&mut c)
    };
    let slice = (0..3).map(round).min();
    assert!(slice <= Some(AT_ONCE), "{slice:?}");
}

/// It took 4 s, with the square of their number.
#[test]
fn very_many_strings_that_are_waited_for_are_deleted_in_time_proportional_to_their_number() {
    const STRINGS: usize = 20_000;
    let server = Server::options().config("lock.legacy-strings yes").start();
    let mut c = server.connect();
    let mut waiters = Vec::new();
    for first in (0..STRINGS).step_by(1000) {
        let names: Vec<_> = (first..first + 1000).map(|n| format!("s-{n}")).collect();
        let pairs = names.iter().map(|name| format!("{name} x"));
        c.ok(&format!("MSET {}", pairs.collect::<Vec<_>>().join(" ")));
        let mut waiter = server.connect();
        let names = names.join(" ");
        waiter.send(&format!(
            "LOCK.MACQUIRE 1000 {names} w-{first} 60000 BLOCK 0"
        ));
        waiters.push(waiter);
    }
    wait_until("all wait", || {
        c.call("LOCK.NODE").number("waiters") == waiters.len() as i64
    });
    let all: Vec<_> = (0..STRINGS).map(|n| format!("s-{n}")).collect();
    let all = format!("DEL {}", all.join(" "));
    let deleted = || _ = c.call(&all);
    let stall = longest_stall(&server, deleted, |c| {
        c.call("LOCK.NODE").number("waiters") == 0
    });
    // The server itself takes a part of it to delete them.
    assert!(stall < Duration::from_millis(400), "{stall:?} at once");
}
