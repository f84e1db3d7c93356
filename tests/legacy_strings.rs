//! lock.legacy-strings: a string at a key is a lock of a client that uses SET key token NX PX ttl.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redislock_testkit::cluster::{Cluster, MASTERS};
use redislock_testkit::load::rounds;
use redislock_testkit::lock::{counter, wait_for_waiters};
use redislock_testkit::{
    Connection, Options, Server, Value, granted, info_number, refused, wait_for_sync, wait_until,
};

use crate::waiting::{assert_holds, waiter};

/// The slot of `job`.
const JOB: u16 = 2906;
/// How old clients release: compare and delete.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn options() -> Options {
    Server::options().config("lock.legacy-strings yes")
}

/// A server on which an old client holds `job`.
fn held_by_an_old_client() -> (Server, Connection) {
    let server = options().start();
    let mut c = server.connect();
    c.ok("SET job old NX");
    (server, c)
}

fn release(c: &mut Connection, token: &str) -> Value {
    c.call_args(&["EVAL", RELEASE, "1", "job", token])
}

#[test]
fn without_the_option_a_string_is_a_value_of_another_type() {
    let server = Server::start();
    let mut c = server.connect();
    c.ok("SET job old NX PX 600000");
    for line in [
        "LOCK.ACQUIRE job me 1000",
        "LOCK.ACQUIRE job me 1000 BLOCK 0",
        "LOCK.MACQUIRE 2 job other me 1000",
        "LOCK.RELEASE job me",
        "LOCK.EXTEND job me 1000",
        "LOCK.GUARD job me PING",
        "LOCK.INFO job",
        "LOCK.FORCE job",
    ] {
        refused(&c.call(line), "WRONGTYPE");
    }
}

#[test]
fn the_option_is_yes_or_no_and_set_at_start_only() {
    let shown = |c: &mut Connection| {
        let shown = c.call("CONFIG GET lock.legacy-strings");
        shown.field("lock.legacy-strings").text().to_owned()
    };
    let server = Server::start();
    let mut c = server.connect();
    assert_eq!(shown(&mut c), "no");
    refused(&c.call("CONFIG SET lock.legacy-strings yes"), "ERR");
    for arguments in ["legacy-strings yes", "lock.legacy-strings YES"] {
        let server = Server::options().module_arguments(arguments).start();
        assert_eq!(shown(&mut server.connect()), "yes", "{arguments}");
        assert!(server.log().contains("lock.legacy-strings yes"));
    }
    for bad in ["1", "maybe", ""] {
        let arguments = format!("legacy-strings {bad}");
        let Err(log) = Server::options().module_arguments(&arguments).try_start() else {
            panic!("{arguments} was accepted");
        };
        assert!(log.contains("needs yes or no"), "{arguments}:\n{log}");
    }
    assert!(
        Server::options()
            .config("lock.legacy-strings maybe")
            .try_start()
            .is_err()
    );
}

#[test]
fn a_string_is_a_lock_that_nobody_here_holds() {
    let (_server, mut c) = held_by_an_old_client();
    for line in [
        "LOCK.ACQUIRE job me 1000",
        "LOCK.ACQUIRE job me 1000 SHARED",
        "LOCK.ACQUIRE job me 1000 BLOCK 1",
        "LOCK.MACQUIRE 2 other job me 1000",
        "LOCK.RELEASE job me",
        "LOCK.RELEASE job old",
        "LOCK.EXTEND job old 1000",
        "LOCK.INFO job",
        "LOCK.INFO job old",
        "LOCK.FORCE job",
    ] {
        assert_eq!(c.call(line), Value::Null, "{line}");
    }
    refused(&c.call("LOCK.GUARD job old PING"), "NOTHELD");
    let each = c.call("LOCK.MRELEASE 2 job other old");
    assert_eq!(each.items(), [Value::Null, Value::Null]);
    let each = c.call("LOCK.MEXTEND 2 job other old 1000");
    assert_eq!(each.items(), [Value::Null, Value::Null]);
    assert_eq!(c.call("GET job").text(), "old");
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
    c.ok("RPUSH list value");
    refused(&c.call("LOCK.ACQUIRE list me 1000"), "WRONGTYPE");
}

#[test]
fn an_old_client_finds_our_lock_taken() {
    let server = options().start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE job me 600000"));
    assert_eq!(c.call("SET job old NX PX 1000"), Value::Null);
    refused(&release(&mut c, "old"), "WRONGTYPE");
    assert_holds(&mut c, "me");
    c.ok("LOCK.RELEASE job me");
    c.ok("SET job old NX");
    assert_eq!(release(&mut c, "old"), Value::Integer(1));
    assert!(granted(&c.call("LOCK.ACQUIRE job me 1000")) > fence);
}

#[test]
fn whatever_removes_the_string_serves_the_waiters_in_order() {
    for removal in [
        "DEL job",
        "UNLINK job",
        "GETDEL job",
        "RENAME job elsewhere",
        "MOVE job 1",
        "FLUSHDB",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "PEXPIRE job 20",
        "EXPIREAT job 1",
        "SET job old PX 20",
        "GETEX job PX 20",
    ] {
        let (server, mut c) = held_by_an_old_client();
        let before = counter(&mut c);
        let mut first = waiter(&server, "first", "BLOCK 0");
        let mut second = waiter(&server, "second", "BLOCK 0");
        let info = c.call("LOCK.INFO job");
        assert_eq!(info.field("mode").text(), "string", "{removal}");
        c.ok(removal);
        let fence = granted(&first.receive());
        assert!(fence > before, "{removal}: the fence counter grows");
        assert_holds(&mut c, "first");
        c.ok("LOCK.RELEASE job first");
        assert!(granted(&second.receive()) > fence, "{removal}");
    }
}

#[test]
fn a_string_that_is_changed_very_often_at_once_is_noted_once() {
    let (server, mut c) = held_by_an_old_client();
    let _waiter = waiter(&server, "you", "BLOCK 0");
    let used = |c: &mut Connection| info_number(c, "memory", "used_memory");
    let before = used(&mut c);
    let script = "for n = 1, 200000 do redis.call('PEXPIRE', 'job', 600000) end";
    c.call_args(&["EVAL", script, "0"]);
    // 200,000 notes take 6 MB.
    wait_until("the memory is free", || used(&mut c) < before + 2_000_000);
}

#[test]
fn a_string_that_expires_serves_the_waiter_without_being_touched() {
    let server = options().start();
    let mut c = server.connect();
    // The server itself deletes nothing, so only the module can notice.
    let asleep = !c.call("DEBUG SET-ACTIVE-EXPIRE 0").is_error();
    assert!(asleep, "this server lets tests turn active expiry off");
    let mut waiting = server.connect();
    c.ok("SET job old NX PX 300");
    let begin = Instant::now();
    granted(&waiting.call("LOCK.ACQUIRE job me 600000 BLOCK 0"));
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(250), "{waited:?}");
    assert_holds(&mut c, "me");
}

#[test]
fn a_wait_for_a_string_continues_when_its_ttl_grows() {
    let (server, mut c) = held_by_an_old_client();
    c.ok("PEXPIRE job 60000");
    let mut waiting = waiter(&server, "me", "BLOCK 0");
    c.ok("PEXPIRE job 600000");
    c.ok("PERSIST job");
    assert!(waiting.is_silent_for(Duration::from_millis(300)));
    assert_eq!(release(&mut c, "old"), Value::Integer(1));
    granted(&waiting.receive());
}

#[test]
fn a_wait_for_a_string_ends_when_its_time_is_up() {
    let (server, mut c) = held_by_an_old_client();
    let mut waiting = waiter(&server, "me", "BLOCK 200");
    assert_eq!(waiting.receive(), Value::Null);
    let mut cancelled = waiter(&server, "you", "BLOCK 0");
    assert_eq!(c.call("LOCK.RELEASE job you ALL"), Value::Null);
    assert_eq!(cancelled.receive(), Value::Null);
    assert_eq!(c.call("LOCK.INFO job"), Value::Null);
}

#[test]
fn another_type_in_place_of_the_string_refuses_the_waiters() {
    for change in [
        &["MULTI", "DEL job", "RPUSH job value", "EXEC"][..],
        &["RENAME list job"],
        // The server sends no event when these overwrite a string.
        &["SORT list ALPHA STORE job"],
        &["SUNIONSTORE job set"],
    ] {
        let (server, mut c) = held_by_an_old_client();
        c.ok("RPUSH list value");
        c.ok("SADD set value");
        let mut waiting = waiter(&server, "me", "BLOCK 0");
        c.pipeline(change);
        refused(&waiting.receive(), "WRONGTYPE");
    }
}

#[test]
fn a_string_written_over_a_lock_is_waited_for() {
    let server = options().start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    let mut waiting = waiter(&server, "you", "BLOCK 0");
    c.ok("SET job old");
    assert!(waiting.is_silent_for(Duration::from_millis(200)));
    assert_eq!(release(&mut c, "old"), Value::Integer(1));
    granted(&waiting.receive());
}

#[test]
fn several_keys_wait_for_a_string_among_them() {
    let (server, mut c) = held_by_an_old_client();
    granted(&c.call("LOCK.ACQUIRE other me 600000"));
    let mut waiting = server.connect();
    waiting.send("LOCK.MACQUIRE 2 other job you 600000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("LOCK.RELEASE other me");
    assert!(waiting.is_silent_for(Duration::from_millis(200)));
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
    assert_eq!(release(&mut c, "old"), Value::Integer(1));
    let fences = waiting.receive();
    assert_eq!(fences.items().len(), 2, "{fences:?}");
    assert_holds(&mut c, "you");
}

#[test]
fn an_evicted_string_serves_the_waiter() {
    let server = options()
        .config("maxmemory-policy volatile-ttl")
        .config("lock.max-waiters 10")
        .start();
    let mut c = server.connect();
    c.ok("SET job old NX PX 600000");
    let mut waiting = waiter(&server, "me", "BLOCK 0");
    c.ok("CONFIG SET maxmemory 1");
    wait_until("the string is evicted", || {
        c.call("SET other value");
        c.call("TYPE job") != Value::Status("string".into())
    });
    c.ok("CONFIG SET maxmemory 0");
    granted(&waiting.receive());
}

#[test]
fn no_waiter_is_served_while_writes_are_paused() {
    let server = options().start();
    let mut c = server.connect();
    c.ok("SET job old NX PX 300");
    let mut waiting = waiter(&server, "me", "BLOCK 0");
    c.ok("CLIENT PAUSE 600000 WRITE");
    assert!(waiting.is_silent_for(Duration::from_millis(1000)));
    c.ok("CLIENT UNPAUSE");
    granted(&waiting.receive());
}

#[test]
fn replica_and_aof_follow_from_string_to_lock() {
    for expires in [false, true] {
        let mut master = options().appendonly("always").start();
        let replica = options().replica_of(&master).start();
        let (mut m, mut r) = (master.connect(), replica.connect());
        wait_for_sync(&mut m, &mut r);
        m.ok("SET job old NX PX 600000");
        let mut waiting = waiter(&master, "me", "BLOCK 0");
        m.ok(if expires { "PEXPIRE job 50" } else { "DEL job" });
        let fence = granted(&waiting.receive());
        wait_for_sync(&mut m, &mut r);
        assert_eq!(r.call("LOCK.INFO job me").number("fence"), fence);
        master.kill();
        master.start_again();
        let mut m = master.connect();
        assert_eq!(m.call("LOCK.INFO job me").number("fence"), fence);
    }
}

#[test]
fn a_string_is_still_a_lock_after_a_restart_and_on_a_promoted_replica() {
    let mut master = options().appendonly("always").start();
    let replica = options().replica_of(&master).start();
    let (mut m, mut r) = (master.connect(), replica.connect());
    m.ok("SET job old NX PX 600000");
    wait_for_sync(&mut m, &mut r);
    master.kill();
    master.start_again();
    r.ok("REPLICAOF NO ONE");
    for server in [&master, &replica] {
        let mut c = server.connect();
        assert_eq!(c.call("LOCK.ACQUIRE job me 1000"), Value::Null);
        let mut waiting = waiter(server, "me", "BLOCK 0");
        assert_eq!(release(&mut c, "old"), Value::Integer(1));
        granted(&waiting.receive());
    }
}

#[test]
fn a_string_that_moves_to_another_node_is_not_granted_here() {
    let cluster = Cluster::start(MASTERS, 0, &options());
    let mut c = cluster.nodes[0].connect();
    c.ok("SET job old NX");
    let mut released = waiter(&cluster.nodes[0], "me", "BLOCK 0");
    assert_eq!(release(&mut c, "old"), Value::Integer(1));
    granted(&released.receive());
    c.ok("LOCK.RELEASE job me");
    c.ok("SET job old NX");
    let mut moved = waiter(&cluster.nodes[0], "me", "BLOCK 0");
    cluster.move_slot(JOB, 0, 1);
    let told = moved.receive();
    let class = told.error_class();
    assert!(["UNBLOCKED", "MOVED", "ASK"].contains(&class), "{told:?}");
    let mut there = cluster.nodes[1].connect();
    assert_eq!(there.call("LOCK.ACQUIRE job me 1000"), Value::Null);
    assert_eq!(release(&mut there, "old"), Value::Integer(1));
}

/// Who is in the critical section.
struct Section {
    inside: AtomicUsize,
    old: AtomicUsize,
    new: AtomicUsize,
}

impl Section {
    fn pass(&self, count: &AtomicUsize) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two holders at once");
        std::thread::yield_now();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
    }

    /// SET NX, again and again.
    fn visit_as_old(&self, c: &mut Connection, token: &str) {
        let set = format!("SET job {token} NX PX 600000");
        while c.call(&set) == Value::Null {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.pass(&self.old);
        assert_eq!(release(c, token), Value::Integer(1));
    }

    fn visit_as_new(&self, c: &mut Connection, token: &str, last: &mut i64) {
        let acquire = format!("LOCK.ACQUIRE job {token} 600000 BLOCK 0");
        let fence = granted(&c.call(&acquire));
        assert!(fence > *last, "{fence} after {last}");
        *last = fence;
        self.pass(&self.new);
        c.ok(&format!("LOCK.RELEASE job {token}"));
    }
}

#[test]
fn old_and_new_clients_exclude_each_other() {
    const CLIENTS: usize = 4;
    let server = options().start();
    let section = Section {
        inside: AtomicUsize::new(0),
        old: AtomicUsize::new(0),
        new: AtomicUsize::new(0),
    };
    let each = rounds(100).count();
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (section, server) = (&section, &server);
            scope.spawn(move || {
                let mut c = server.connect();
                (0..each).for_each(|_| section.visit_as_old(&mut c, &format!("old-{n}")));
            });
            scope.spawn(move || {
                let (mut c, mut last) = (server.connect(), 0);
                (0..each)
                    .for_each(|_| section.visit_as_new(&mut c, &format!("new-{n}"), &mut last));
            });
        }
    });
    let visits = [section.old, section.new].map(AtomicUsize::into_inner);
    assert_eq!(visits, [CLIENTS * each, CLIENTS * each]);
    let mut c = server.connect();
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}
