//! Servers that have nothing to do do nothing, whatever is overdue, and children that save come to
//! an end.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{wait_for_waiters, wait_until_gone};
use redislock_testkit::{
    Connection, Proxy, Server, Value, granted, info_field, wait_for_sync, wait_until,
};

const WATCHED: Duration = Duration::from_secs(2);
/// ms; longer than servers are watched.
const QUARANTINE: u32 = 4000;

/// The processor time that a server has used so far, s.
fn used(c: &mut Connection) -> f64 {
    let used = ["used_cpu_user", "used_cpu_sys"].map(|name| {
        let value = info_field(c, "cpu", name);
        value.parse::<f64>().expect("a number")
    });
    used.iter().sum()
}

/// `job` is held for a moment, and a request waits for it.
fn hold_and_wait(server: &Server) -> Connection {
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job holder 300"));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job waiter 300 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    waiter
}

#[track_caller]
fn wait_until_overdue(server: &Server) {
    let mut c = server.connect();
    wait_until("the lease is over", || {
        c.call("LOCK.INFO job holder") == Value::Null
    });
}

/// Leases have ended, or end much later, and those who wait cannot be served: no reason to be busy.
#[test]
fn a_server_that_may_do_nothing_about_what_is_due_is_idle() {
    let flushed = Server::options()
        .config(&format!("lock.quarantine {QUARANTINE}"))
        .start();
    let master = Server::start();
    let link = Proxy::to(master.port());
    let replica = Server::options()
        .config(&format!("replicaof 127.0.0.1 {}", link.port()))
        .start();
    granted(&master.connect().call("LOCK.ACQUIRE job holder 300"));
    wait_for_sync(&mut master.connect(), &mut replica.connect());
    link.stall();
    wait_until_overdue(&replica);

    // When a timer fires and the next one is 50 minutes away, Redis 7.0 computes a wrong time.
    let far = Server::start();
    granted(&far.connect().call("LOCK.ACQUIRE job me 3000000"));
    granted(&far.connect().call("LOCK.ACQUIRE short me 50"));
    wait_until_gone(&mut far.connect(), "short");
    let patient = Server::options()
        .config("lock.quarantine 1000")
        .config("min-replicas-to-write 1")
        .config("min-replicas-max-lag 12000")
        .start();

    let paused = Server::start();
    let _waits = hold_and_wait(&paused);
    paused.connect().ok("CLIENT PAUSE 600000 WRITE");
    wait_until_overdue(&paused);

    let alone = Server::start();
    let _waits = hold_and_wait(&alone);
    alone.connect().ok("CONFIG SET min-replicas-to-write 1");
    wait_until_overdue(&alone);

    wait_until("the quarantine is over", || {
        flushed.connect().call("LOCK.NODE").number("quarantine") == 0
    });
    let mut f = flushed.connect();
    granted(&f.call(&format!("LOCK.ACQUIRE job holder {QUARANTINE}")));
    let mut waiter = flushed.connect();
    waiter.send("LOCK.ACQUIRE job waiter 300 BLOCK 0");
    wait_for_waiters(&mut f, "job", 1);
    f.ok("FLUSHALL");

    let idle = Server::start();
    let servers = [&idle, &replica, &far, &patient, &paused, &alone, &flushed];
    let mut connections = servers.map(Server::connect);
    let before = connections.each_mut().map(used);
    std::thread::sleep(WATCHED);
    let after = connections.each_mut().map(used);
    let spent = std::array::from_fn::<_, 7, _>(|n| after[n] - before[n]);
    let most = 5.0 * spent[0] + WATCHED.as_secs_f64() / 200.0;
    assert!(spent.iter().all(|spent| *spent < most), "{spent:?}");
}

/// Whether the child that saves comes to an end, before everybody loses patience.
fn child_ends(c: &mut Connection) -> bool {
    let patience = Instant::now() + Duration::from_secs(30);
    while info_field(c, "persistence", "rdb_bgsave_in_progress") != "0" {
        if Instant::now() > patience {
            // Flushing ends the child, which would outlive the server.
            c.ok("FLUSHALL");
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// A child is made while another thread of the server frees locks: that thread, and what it had
/// locked, is not in the child.
#[test]
fn a_child_that_saves_while_flushed_locks_are_freed_comes_to_an_end() {
    let server = Server::start();
    let mut c = server.connect();
    let acquire: Vec<String> = (0..5_000)
        .map(|n| format!("LOCK.ACQUIRE job-{n} me 600000"))
        .collect();
    for _ in 0..10 {
        c.pipeline(&acquire);
        let told = c.pipeline(&["FLUSHALL ASYNC", "BGSAVE"]);
        assert!(told.iter().all(|reply| !reply.is_error()), "{told:?}");
        assert!(child_ends(&mut c), "the child hangs");
        assert_eq!(
            info_field(&mut c, "persistence", "rdb_last_bgsave_status"),
            "ok"
        );
    }
}
