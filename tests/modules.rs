//! Another module of the same server calls our commands: from a command, from a thread of its own,
//! from a listener.

use std::path::Path;
use std::process::Command;

use redislock_testkit::lock::{sole_holder, wait_for_waiters, wait_until_gone};
use redislock_testkit::{Options, Server, Value, granted, info_number, refused, wait_until};
use tempfile::TempDir;

/// A server with both modules.
struct Both {
    server: Server,
    _folder: TempDir,
}

fn both(options: Options) -> Both {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("other.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/other_module.c");
    let status = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-lpthread")
        .status()
        .expect("a C compiler named cc");
    assert!(status.success(), "the other module does not compile");
    let server = options.config(&format!("loadmodule {}", library.display()));
    Both {
        server: server.start(),
        _folder: folder,
    }
}

#[test]
fn a_module_may_call_every_command_without_a_user() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    let fence = granted(&c.call("OTHER.CALL LOCK.ACQUIRE job me 60000"));
    assert_eq!(
        c.call("OTHER.CALL LOCK.EXTEND job me 60000"),
        Value::Integer(fence)
    );
    assert_eq!(
        c.call("OTHER.CALL LOCK.GUARD job me SET k v"),
        Value::Status("OK".into())
    );
    assert_eq!(c.call("GET k").text(), "v");
    refused(&c.call("OTHER.CALL LOCK.GUARD job you SET k w"), "NOTHELD");
    assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
    assert!(!c.call("OTHER.CALL LOCK.INFO job").is_error());
    assert!(!c.call("OTHER.CALL LOCK.NODE").is_error());
    assert_eq!(c.call("OTHER.CALL LOCK.RELEASE job me"), Value::Integer(1));
    assert!(!c.call("OTHER.CALL LOCK.MACQUIRE 2 a b me 60000").is_error());
    assert!(!c.call("OTHER.CALL LOCK.MEXTEND 2 a b me 60000").is_error());
    assert!(!c.call("OTHER.CALL LOCK.MRELEASE 1 a me").is_error());
    assert_eq!(c.call("OTHER.CALL LOCK.FORCE b"), Value::Integer(1));
    refused(&c.call("OTHER.CALL LOCK._APPLY x"), "ERR");
}

#[test]
fn a_guarded_command_that_replies_in_the_words_of_the_server_runs_once() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    refused(&c.call("LOCK.GUARD job me OTHER.FAIL"), "ERR");
    let script = "return redis.pcall('LOCK.GUARD', KEYS[1], 'me', 'OTHER.FAIL')";
    refused(&c.call_args(&["EVAL", script, "1", "job"]), "ERR");
    assert_eq!(c.call("GET runs").text(), "2");
}

#[test]
fn a_call_by_a_module_does_not_wait() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    let reply = c.call("OTHER.CALL LOCK.ACQUIRE job you 60000 BLOCK 0");
    assert_eq!(reply, Value::Null);
}

/// Redis 7.2 and later let a module call a command that waits.
#[test]
fn a_call_by_a_module_that_may_wait_gets_the_lock_in_its_turn() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    if !both.server.kind().lets_modules_wait() {
        refused(
            &c.call("OTHER.WAIT LOCK.ACQUIRE job you 60000 BLOCK 0"),
            "ERR",
        );
        return;
    }
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    c.ok("OTHER.WAIT LOCK.ACQUIRE job you 60000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    assert_eq!(c.call("OTHER.HEARD"), Value::Null);
    c.ok("LOCK.RELEASE job me");
    wait_until("the module is told", || {
        c.call("OTHER.HEARD") != Value::Null
    });
    let fence = sole_holder(&mut c, "job").number("fence");
    assert_eq!(c.call("OTHER.HEARD").text(), format!(":{fence}\r\n"));
    // A wait that times out gets its reply, too.
    c.ok("OTHER.WAIT LOCK.ACQUIRE job third 60000 BLOCK 20");
    wait_until("the module is told", || {
        c.call("OTHER.HEARD") != Value::Null
    });
    assert_eq!(c.call("OTHER.HEARD").text(), "$-1\r\n");
    assert_eq!(c.call("LOCK.RELEASE job you"), Value::Integer(1));
}

#[test]
fn a_call_by_a_module_has_no_connection_that_a_hold_could_end_with() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    refused(
        &c.call("OTHER.CALL LOCK.ACQUIRE job me 60000 EPHEMERAL"),
        "ERR",
    );
    let mut holder = both.server.connect();
    granted(&holder.call("LOCK.ACQUIRE job me 600000 EPHEMERAL"));
    granted(&c.call("OTHER.CALL LOCK.EXTEND job me 600000"));
    granted(&c.call("OTHER.CALL LOCK.ACQUIRE job me 600000 ONCE"));
    if both.server.kind().lets_modules_wait() {
        c.ok("OTHER.WAIT LOCK.EXTEND job me 600000");
        granted(&c.call("LOCK.ACQUIRE other you 600000"));
        c.ok("OTHER.WAIT LOCK.MACQUIRE 2 job other me 600000 BLOCK 0");
        wait_for_waiters(&mut c, "other", 1);
        c.ok("LOCK.RELEASE other you");
        wait_until("the module is told", || {
            c.call("OTHER.HEARD") != Value::Null
        });
    }
    drop(holder);
    wait_until_gone(&mut c, "job");
}

#[test]
fn a_release_from_a_modules_thread_answers_the_waiter() {
    // With `hz 1` nothing else wakes the server up for a second.
    let both = both(Server::options().config("hz 1"));
    let mut c = both.server.connect();
    for round in 0..5 {
        granted(&c.call("LOCK.ACQUIRE job me 600000"));
        let mut waiter = both.server.connect();
        waiter.send("LOCK.ACQUIRE job you 600000 BLOCK 0");
        wait_for_waiters(&mut c, "job", 1);
        c.ok("OTHER.THREAD LOCK.RELEASE job me");
        let fence = granted(&waiter.receive());
        assert_eq!(sole_holder(&mut c, "job").number("fence"), fence);
        let delivered = c.call("INFO clients");
        assert!(delivered.text().contains("blocked_clients:0\r"), "{round}");
        c.ok("LOCK.RELEASE job you");
    }
}

#[test]
fn a_module_that_hears_of_a_release_finds_the_whole_change_made() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    for event_at in ["first", "second"] {
        c.ok("LOCK.MACQUIRE 2 first second me 60000");
        let before = redislock_testkit::info_number(&mut c, "lock", "lock_grants");
        c.ok(&format!(
            "OTHER.ON lock.released {event_at} LOCK.ACQUIRE second listener 60000"
        ));
        let released = c.call("LOCK.MRELEASE 2 first second me");
        assert_eq!(released.items(), [Value::Integer(1), Value::Integer(1)]);
        let fence = sole_holder(&mut c, "second").number("fence");
        assert_eq!(c.call("OTHER.HEARD").text(), format!(":{fence}\r\n"));
        let grants = redislock_testkit::info_number(&mut c, "lock", "lock_grants") - before;
        assert_eq!(grants, 1);
        assert_eq!(c.call("LOCK.NODE").number("locks"), 1);
        assert_eq!(c.call("LOCK.RELEASE second listener"), Value::Integer(1));
        assert_eq!(c.call("DBSIZE"), Value::Integer(0));
    }
}

#[test]
fn a_module_may_change_the_very_lock_that_it_hears_of() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    for command in ["LOCK.FORCE job", "DEL job", "FLUSHALL"] {
        c.ok(&format!("OTHER.ON lock.acquired job {command}"));
        granted(&c.call("LOCK.ACQUIRE job me 60000"));
        assert_ne!(c.call("OTHER.HEARD"), Value::Null);
        assert_eq!(c.call("LOCK.INFO job"), Value::Null);
        assert_eq!(c.call("LOCK.NODE").number("locks"), 0);
    }
    let mut waiter = both.server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000"));
    waiter.send("LOCK.ACQUIRE job you 60000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 1);
    c.ok("OTHER.ON lock.released job LOCK.FORCE job");
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    assert_eq!(c.call("OTHER.HEARD").text(), ":1\r\n");
    assert_eq!(c.call("LOCK.RELEASE job you"), Value::Null);
}

#[test]
fn a_lock_command_in_the_middle_of_another_one_is_refused() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    c.ok("OTHER.ON new first LOCK.ACQUIRE second listener 60000");
    let granted = c.call("LOCK.MACQUIRE 2 first second me 60000");
    assert_eq!(granted.items().len(), 2, "{granted:?}");
    let heard = c.call("OTHER.HEARD");
    assert!(heard.text().starts_with("-ERR a LOCK command"), "{heard:?}");
    assert_eq!(sole_holder(&mut c, "second").field("owner").text(), "");
    assert_eq!(c.call("LOCK.NODE").number("locks"), 2);
    assert_eq!(c.call("LOCK.NODE").number("failed"), 0);
    assert_eq!(
        c.call("LOCK.MRELEASE 2 first second me").items(),
        [Value::Integer(1), Value::Integer(1)]
    );
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

#[test]
fn nobody_hears_of_an_ended_hold_before_the_guarded_command_has_run() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    granted(&c.call("LOCK.ACQUIRE room me 600000 SHARED"));
    granted(&c.call("LOCK.ACQUIRE room other 1 SHARED"));
    c.ok("OTHER.ON lock.expired room LOCK.FORCE room");
    // Leases also end without a command: whatever notices it first sends the event.
    std::thread::sleep(std::time::Duration::from_millis(2));
    let guarded = c.call("LOCK.GUARD room me SET k v");
    if guarded == Value::Status("OK".into()) {
        assert_eq!(c.call("GET k").text(), "v");
    } else {
        refused(&guarded, "NOTHELD");
        assert_eq!(c.call("EXISTS k"), Value::Integer(0));
    }
}

/// Redis 7.0 deletes a key whose time is up even when the module only looks at it, in the middle of
/// a decision, and tells other modules.
/// The server keeps a pointer to the value of an open key: only AddressSanitizer sees a wrong use.
#[test]
fn a_module_that_hears_of_an_expired_key_may_delete_the_other_keys_of_the_command() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    c.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    for command in ["DEL first", "UNLINK first", "FLUSHALL"] {
        for request in [
            "LOCK.MACQUIRE 2 first second me 60000",
            "LOCK.MEXTEND 2 first second me 60000",
            "LOCK.MRELEASE 2 first second me",
        ] {
            granted(&c.call("LOCK.ACQUIRE first me 60000"));
            c.ok("SET second value PX 1");
            std::thread::sleep(std::time::Duration::from_millis(5));
            c.ok(&format!("OTHER.ON expired second {command}"));
            c.call(request);
            assert_ne!(c.call("OTHER.HEARD"), Value::Null, "{command}, {request}");
            assert_eq!(c.call("LOCK.NODE").number("failed"), 0, "{command}");
            let locks = c.call("LOCK.NODE").number("locks");
            assert_eq!(
                c.call("DBSIZE"),
                Value::Integer(locks),
                "{command}, {request}"
            );
            c.ok("FLUSHALL");
        }
    }
}

#[test]
fn a_module_that_hears_of_an_expired_key_may_read_and_move_locks() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    c.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    for command in [
        "DUMP other",
        "MEMORY USAGE other",
        "DEBUG DIGEST-VALUE other",
        "SAVE",
        "INFO lock",
        "LOCK.INFO other",
        "RENAME other elsewhere",
        "DEL other",
        "CONFIG SET maxmemory 0",
        "CONFIG SET lock.max-waiters 9999",
        "CLIENT KILL TYPE pubsub",
        "SWAPDB 1 2",
        "REPLICAOF NO ONE",
        "FLUSHALL",
        "DEBUG RELOAD",
    ] {
        granted(&c.call("LOCK.ACQUIRE first me 60000"));
        granted(&c.call("LOCK.ACQUIRE other me 60000"));
        let mut waiter = both.server.connect();
        waiter.send("LOCK.MACQUIRE 2 first second you 60000 BLOCK 0");
        wait_for_waiters(&mut c, "first", 1);
        c.ok("SET second value PX 1");
        std::thread::sleep(std::time::Duration::from_millis(5));
        c.ok(&format!("OTHER.ON expired second {command}"));
        assert_eq!(c.call("LOCK.RELEASE first me"), Value::Integer(1));
        assert_eq!(waiter.receive().items().len(), 2, "{command}");
        assert_ne!(c.call("OTHER.HEARD"), Value::Null, "{command}");
        assert_eq!(c.call("LOCK.NODE").number("failed"), 0, "{command}");
        if command.starts_with("RENAME") {
            assert_eq!(c.call("LOCK.RELEASE elsewhere me"), Value::Integer(1));
        }
        c.call("LOCK.RELEASE other me");
        c.ok("LOCK.MRELEASE 2 first second you");
        assert_eq!(c.call("DBSIZE"), Value::Integer(0), "{command}");
        assert_eq!(c.call("LOCK.NODE").number("locks"), 0, "{command}");
    }
}

/// Redis 7.0 asks for a key whose lock goes away, and must not tell anybody that it is missing: a
/// key that is made at that moment crashes RENAME.
#[test]
fn a_lock_that_another_key_replaces_is_not_reported_as_missing() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    let misses = info_number(&mut c, "stats", "keyspace_misses");
    for command in ["RENAME string job", "SET job value", "DEL job"] {
        granted(&c.call("LOCK.ACQUIRE job me 60000"));
        c.ok("SET string value");
        c.ok("OTHER.ON keymiss job SET job made");
        c.ok(command);
        assert_eq!(c.call("OTHER.HEARD"), Value::Null, "{command}");
        c.call("DEL job");
    }
    assert_eq!(info_number(&mut c, "stats", "keyspace_misses"), misses);
}

/// Two leases end together. The server deletes the key of one because its TTL is over, and notifies
/// the other module, when the other one is not deleted yet, but known no more. A later save would
/// replace the file, so each case has its own server.
#[test]
fn a_module_that_saves_in_the_middle_of_a_change_saves_nothing_that_cannot_be_loaded() {
    for (command, ends) in [
        ("SAVE", "first"),
        ("SAVE", "second"),
        ("BGSAVE", "first"),
        ("BGSAVE", "second"),
    ] {
        let mut both = both(Server::options());
        let mut c = both.server.connect();
        c.ok("DEBUG SET-ACTIVE-EXPIRE 0");
        granted(&c.call("LOCK.ACQUIRE kept me 600000"));
        c.ok("SAVE");
        c.ok("LOCK.MACQUIRE 2 first second me 200");
        c.ok(&format!("PEXPIRE {ends} 50"));
        c.ok(&format!("OTHER.ON expired {ends} {command}"));
        wait_until("the leases have ended", || {
            c.call("LOCK.NODE").number("locks") == 1
        });
        assert_ne!(c.call("OTHER.HEARD"), Value::Null, "{command}");
        wait_until("the child is done", || {
            info_number(&mut c, "persistence", "rdb_bgsave_in_progress") == 0
        });
        assert_eq!(c.call("LOCK.NODE").number("failed"), 0, "{command}");
        both.server.kill();
        both.server.start_again();
        let mut c = both.server.connect();
        assert!(!c.call("LOCK.INFO kept me").is_error(), "{command}");
    }
}

/// The server tells of a key whose time is up when a request opens it. What a listener does then
/// must be seen by the request, whose other keys were looked at before.
#[test]
fn a_module_that_hears_of_an_expired_key_makes_no_second_owner() {
    let both = both(Server::options());
    let mut c = both.server.connect();
    c.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    for request in [
        "LOCK.MACQUIRE 2 job old me 60000",
        "LOCK.MACQUIRE 2 old job me 60000",
        "LOCK.ACQUIRE job me 60000",
    ] {
        // Which key is over, what the listener does, and who holds the lock by that.
        for (over, command, holder) in [
            ("old", "LOCK.ACQUIRE job you 60000", "you"),
            ("old", "RENAME other job", "you"),
            ("old", "SWAPDB 0 1", "you"),
            ("job", "LOCK.ACQUIRE job you 60000", "you"),
            ("job", "RENAME other job", "you"),
            ("job", "SWAPDB 0 1", "you"),
        ] {
            let what = format!("{request}, {over}, {command}");
            c.ok("FLUSHALL");
            c.ok("SELECT 1");
            granted(&c.call("LOCK.ACQUIRE job you 60000"));
            c.ok("SELECT 0");
            granted(&c.call("LOCK.ACQUIRE other you 60000"));
            c.ok(&format!("SET {over} value PX 1"));
            std::thread::sleep(std::time::Duration::from_millis(5));
            c.ok(&format!("OTHER.ON expired {over} {command}"));
            let mine = !matches!(c.call(request), Value::Null);
            let heard = c.call("OTHER.HEARD");
            let theirs = match &heard {
                // The request did not open the key.
                Value::Null => continue,
                heard => !heard.text().starts_with('-'),
            };
            assert_ne!(mine, theirs, "{what}: {heard:?}");
            let holder = if mine { "me" } else { holder };
            let extended = c.call(&format!("LOCK.EXTEND job {holder} 60000"));
            assert_ne!(extended, Value::Null, "{what}");
            let locks = c.call("LOCK.NODE").number("locks");
            let mut keys = 0;
            for db in [1, 0] {
                c.ok(&format!("SELECT {db}"));
                keys += c.call("DBSIZE").integer();
            }
            assert_eq!(keys, locks, "{what}");
            assert_eq!(c.call("LOCK.NODE").number("failed"), 0, "{what}");
        }
    }
}
