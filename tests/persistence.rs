//! What is saved comes back: RDB, AOF, AOF rewrite, DUMP/RESTORE, MIGRATE.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{all_locks, arrange, assert_held, sole_holder, wait_until_gone};
use redislock_testkit::{
    Connection, Options, Server, Value, granted, info_field, info_number, wait_until,
};

use crate::crash::{cut, length};

/// Rewrites the AOF and waits for the end of it.
pub fn rewrite_aof(c: &mut Connection) {
    c.ok("BGREWRITEAOF");
    wait_for_rewrite(c);
}

pub fn wait_for_rewrite(c: &mut Connection) {
    wait_until("the rewrite of the AOF is over", || {
        info_number(c, "persistence", "aof_rewrite_in_progress") == 0
            && info_number(c, "persistence", "aof_rewrite_scheduled") == 0
    });
    assert_eq!(
        info_field(c, "persistence", "aof_last_bgrewrite_status"),
        "ok"
    );
}

/// Arranges locks, does something to the server, and compares all locks before and after.
fn survives(options: Options, what: impl FnOnce(&mut Server)) {
    let mut server = options.start();
    let mut c = server.connect();
    let ownership = arrange(&mut c);
    let before = all_locks(&mut c);
    drop(c);
    what(&mut server);
    let mut c = server.connect();
    assert_eq!(all_locks(&mut c), before);
    assert_held(&mut c, &ownership);
    assert_eq!(c.call("LOCK.ACQUIRE plain intruder 1000"), Value::Null);
    assert_eq!(
        c.call("LOCK.RELEASE reentered token-a ALL"),
        Value::Integer(3)
    );
    assert_eq!(
        c.call("LOCK.EXTEND capped token-c 7200001").error_class(),
        "LOCKLIMIT"
    );
    assert_eq!(c.call("LOCK.NODE").number("locks"), before.len() as i64 - 1);
}

#[test]
fn locks_survive_a_restart_from_rdb() {
    survives(Server::options().config("save 3600 1"), |server| {
        server.restart()
    });
}

#[test]
fn locks_survive_a_crash_with_the_aof() {
    survives(Server::options().appendonly("always"), |server| {
        server.kill();
        server.start_again();
    });
}

#[test]
fn locks_survive_a_rewrite_of_the_aof_with_preamble() {
    survives(Server::options().appendonly("always"), |server| {
        rewrite_aof(&mut server.connect());
        server.kill();
        server.start_again();
    });
}

#[test]
fn locks_survive_a_rewrite_of_the_aof_without_preamble() {
    survives(
        Server::options()
            .appendonly("always")
            .config("aof-use-rdb-preamble no"),
        |server| {
            rewrite_aof(&mut server.connect());
            server.kill();
            server.start_again();
        },
    );
}

#[test]
fn locks_survive_debug_reload_and_loadaof() {
    survives(Server::options().appendonly("always"), |server| {
        let mut c = server.connect();
        c.ok("DEBUG RELOAD");
        c.ok("DEBUG LOADAOF");
    });
}

#[test]
fn every_change_after_a_rewrite_is_in_the_aof() {
    let mut server = Server::options()
        .appendonly("always")
        .config("aof-use-rdb-preamble no")
        .start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE kept me 600000"));
    c.ok("LOCK.ACQUIRE gone me 600000");
    c.ok("LOCK.ACQUIRE forced me 600000");
    c.ok("LOCK.ACQUIRE ended me 20");
    rewrite_aof(&mut c);
    c.ok("LOCK.ACQUIRE kept me 600000");
    c.ok("LOCK.EXTEND kept me 3600000");
    c.ok("LOCK.RELEASE gone me");
    c.ok("LOCK.FORCE forced");
    wait_until_gone(&mut c, "ended");
    server.kill();
    server.start_again();
    let mut c = server.connect();
    let holder = sole_holder(&mut c, "kept");
    assert_eq!((holder.number("fence"), holder.number("holds")), (fence, 2));
    assert!(holder.number("ttl") > 600_000);
    assert_eq!(c.call("DBSIZE"), Value::Integer(1));
}

#[test]
fn a_lease_is_armed_again_with_the_time_that_remained_when_it_was_written() {
    for aof in [false, true] {
        let options = if aof {
            Server::options().appendonly("always")
        } else {
            Server::options()
        };
        let mut server = options.start();
        let mut c = server.connect();
        granted(&c.call("LOCK.ACQUIRE job me 100000"));
        c.ok("SAVE");
        let written = sole_holder(&mut c, "job").number("ttl");
        server.kill();
        std::thread::sleep(Duration::from_millis(700));
        let start = Instant::now();
        server.start_again();
        let ttl = sole_holder(&mut server.connect(), "job").number("ttl");
        let since_start = i64::try_from(start.elapsed().as_millis()).expect("a short time") + 1;
        assert!(
            ttl >= written - since_start,
            "aof {aof}: {written} ms became {ttl} in {since_start} ms"
        );
        assert!(ttl <= 100_000);
    }
}

#[test]
fn a_loaded_lease_ends_by_itself() {
    let mut server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 400"));
    granted(&c.call("LOCK.ACQUIRE room one 400 SHARED"));
    granted(&c.call("LOCK.ACQUIRE room two 400 SHARED"));
    server.kill();
    server.start_again();
    let mut c = server.connect();
    wait_until_gone(&mut c, "job");
    wait_until_gone(&mut c, "room");
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
}

#[test]
fn a_restored_lock_is_the_same_lock() {
    let source = Server::start();
    let target = Server::start();
    let mut s = source.connect();
    let mut t = target.connect();
    let ownership = arrange(&mut s);
    let before = all_locks(&mut s);
    for lock in &before {
        s.ok(&format!("SELECT {}", lock.database));
        t.ok(&format!("SELECT {}", lock.database));
        let payload = s.call_args(&[b"DUMP", lock.key.as_slice()]);
        let restored = t.call_args(&[b"RESTORE", lock.key.as_slice(), b"0", payload.bytes()]);
        assert_eq!(restored, Value::Status("OK".into()));
    }
    assert_eq!(all_locks(&mut t), before);
    assert_held(&mut t, &ownership);
    assert_eq!(t.call("LOCK.NODE").number("locks"), before.len() as i64);
}

#[test]
fn a_restored_lease_is_armed_and_ends_by_itself() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 2000"));
    let payload = c.call("DUMP job");
    c.ok("LOCK.RELEASE job me");
    let restored = c.call_args(&[b"RESTORE", &b"again"[..], b"0", payload.bytes()]);
    assert_eq!(restored, Value::Status("OK".into()));
    wait_until_gone(&mut c, "again");
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
}

#[test]
fn restore_replace_puts_one_lock_in_the_place_of_another() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE old me 600000"));
    granted(&c.call("LOCK.ACQUIRE new you 600000"));
    let payload = c.call("DUMP new");
    let busy = c.call_args(&[b"RESTORE", &b"old"[..], b"0", payload.bytes()]);
    assert_eq!(busy.error_class(), "BUSYKEY");
    let replaced = c.call_args(&[b"RESTORE", &b"old"[..], b"0", payload.bytes(), b"REPLACE"]);
    assert_eq!(replaced, Value::Status("OK".into()));
    assert_eq!(c.call("LOCK.RELEASE old me"), Value::Null);
    assert_eq!(c.call("LOCK.RELEASE old you"), Value::Integer(1));
    assert_eq!(c.call("LOCK.RELEASE new you"), Value::Integer(1));
    assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
}

#[test]
fn migrate_takes_locks_along() {
    let source = Server::start();
    let target = Server::start();
    let mut s = source.connect();
    let mut t = target.connect();
    let fence = granted(&s.call("LOCK.ACQUIRE job me 600000 OWNER label"));
    granted(&s.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 2"));
    let before = all_locks(&mut s);
    for key in ["job", "room"] {
        assert_eq!(
            s.call(&format!(
                "MIGRATE 127.0.0.1 {} {key} 0 10000",
                target.port()
            )),
            Value::Status("OK".into())
        );
    }
    assert_eq!(all_locks(&mut t), before);
    assert_eq!(all_locks(&mut s), []);
    assert_eq!(s.call("LOCK.EXTEND job me 600000"), Value::Null);
    assert_eq!(t.call("LOCK.EXTEND job me 600000"), Value::Integer(fence));
}

#[test]
fn an_aof_whose_tail_was_cut_loads_up_to_the_cut() {
    let mut server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE first me 600000"));
    granted(&c.call("LOCK.ACQUIRE second me 600000"));
    server.kill();
    let aof = server.growing_aof();
    cut(&aof, length(&aof) - 3);
    server.start_again();
    let mut c = server.connect();
    assert_ne!(c.call("LOCK.INFO first me"), Value::Null);
    assert_eq!(c.call("LOCK.INFO second me"), Value::Null);
    granted(&c.call("LOCK.ACQUIRE second you 600000"));
}

#[test]
fn a_lease_is_armed_when_loading_ends_and_not_before() {
    const LOADING: Duration = Duration::from_millis(2000);
    let mut server = Server::options().config("rdbcompression no").start();
    let mut c = server.connect();
    c.ok("DEBUG POPULATE 400");
    granted(&c.call("LOCK.ACQUIRE job me 1500"));
    c.ok("SAVE");
    // Null if the lease ended before it could be read on a very busy machine: then nothing is
    // shown.
    let written = match c.call("LOCK.INFO job me") {
        Value::Null => return,
        holder => holder.number("ttl"),
    };
    server.kill();
    // 400 keys, five milliseconds each.
    server.reconfigure(|options| options.config("key-load-delay 5000"));
    let start = Instant::now();
    server.start_again();
    let ttl = match server.connect().call("LOCK.INFO job me") {
        Value::Null => 0,
        holder => holder.number("ttl"),
    };
    let since_loading = start.elapsed().saturating_sub(LOADING).as_millis();
    let since_loading = i64::try_from(since_loading).expect("a short time") + 1;
    assert!(
        ttl >= written - since_loading,
        "{written} ms became {ttl}, {since_loading} ms after loading"
    );
}

#[test]
fn a_restored_lease_has_the_time_that_remained_when_it_was_dumped() {
    let (source, target) = (Server::start(), Server::start());
    let (mut s, mut t) = (source.connect(), target.connect());
    granted(&s.call("LOCK.ACQUIRE job me 100000"));
    granted(&s.call("LOCK.ACQUIRE moved me 100000"));
    let payload = s.call("DUMP job");
    let written = sole_holder(&mut s, "job").number("ttl");
    std::thread::sleep(Duration::from_millis(700));
    let start = Instant::now();
    let restored = t.call_args(&[b"RESTORE", &b"job"[..], b"0", payload.bytes()]);
    assert_eq!(restored, Value::Status("OK".into()));
    let ttl = sole_holder(&mut t, "job").number("ttl");
    let since = i64::try_from(start.elapsed().as_millis()).expect("a short time") + 1;
    assert!(ttl >= written - since, "{written} ms became {ttl}");
    let start = Instant::now();
    let written = sole_holder(&mut s, "moved").number("ttl");
    s.ok(&format!(
        "MIGRATE 127.0.0.1 {} moved 0 10000",
        target.port()
    ));
    let ttl = sole_holder(&mut t, "moved").number("ttl");
    let since = i64::try_from(start.elapsed().as_millis()).expect("a short time") + 1;
    assert!((written - since..=written).contains(&ttl), "{ttl}");
}

#[test]
fn the_aof_has_effects_and_no_requests_but_releases_that_free_a_key() {
    let server = Server::options().appendonly("always").start();
    let mut c = server.connect();
    arrange(&mut c);
    let lines = [
        "LOCK.ACQUIRE made * 600000",
        "LOCK.MACQUIRE 2 one two me 600000",
        "LOCK.MEXTEND 2 one two me 700000",
        "LOCK.EXTEND plain token-a 3700000",
        "LOCK.MRELEASE 2 one two me",
        "LOCK.RELEASE plain token-a",
        "LOCK.FORCE shared",
        "LOCK.GUARD made nobody SET string value",
        "LOCK.ACQUIRE short me 20",
    ];
    c.pipeline(&lines);
    wait_until_gone(&mut c, "short");
    let aof = std::fs::read(server.growing_aof()).expect("the AOF");
    let aof = String::from_utf8_lossy(&aof).to_uppercase();
    assert!(aof.contains("LOCK._APPLY"), "{aof}");
    for line in lines {
        let command = line.split(' ').next().unwrap_or_default();
        let says_it_all = command == "LOCK.RELEASE";
        assert_eq!(aof.contains(command), says_it_all, "{command} in {aof}");
    }
}
