//! SHARED and LIMIT: readers, writers, semaphores.

use redislock_testkit::lock::{sole_holder, wait_for_waiters, wait_until_gone, waiters};
use redislock_testkit::{Connection, Server, Value, granted, info_number, refused, wait_until};

#[track_caller]
fn waiter(server: &Server, token: &str, options: &str) -> Connection {
    let mut c = server.connect();
    let mut waiter = server.connect();
    let queued = waiters(&mut c, "room");
    waiter.send(&format!(
        "LOCK.ACQUIRE room {token} 600000 {options} BLOCK 0"
    ));
    wait_for_waiters(&mut c, "room", queued + 1);
    waiter
}

fn holders(c: &mut Connection) -> usize {
    match c.call("LOCK.INFO room") {
        Value::Null => 0,
        info => info.field("holders").items().len(),
    }
}

#[test]
fn shared_holders_have_a_lease_a_count_and_a_fence_each() {
    let server = Server::start();
    let mut c = server.connect();
    let one = granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED"));
    let two = granted(&c.call("LOCK.ACQUIRE room two 6000000 SHARED OWNER label"));
    assert!(two > one);
    assert_eq!(
        c.call("LOCK.ACQUIRE room two 1000 SHARED"),
        Value::Integer(two)
    );
    let info = c.call("LOCK.INFO room");
    assert_eq!(info.field("mode").text(), "shared");
    assert_eq!(info.number("limit"), 0);
    assert_eq!(info.field("holders").items().len(), 2);
    let (one_now, two_now) = (c.call("LOCK.INFO room one"), c.call("LOCK.INFO room two"));
    assert_eq!((one_now.number("fence"), one_now.number("holds")), (one, 1));
    assert_eq!((two_now.number("fence"), two_now.number("holds")), (two, 2));
    assert!(one_now.number("ttl") <= 600_000 && two_now.number("ttl") > 600_000);
    assert_eq!(c.call("LOCK.RELEASE room one"), Value::Integer(1));
    assert_eq!(c.call("LOCK.RELEASE room two ALL"), Value::Integer(2));
    assert_eq!(c.call("EXISTS room"), Value::Integer(0));
}

#[test]
fn readers_and_a_writer_exclude_each_other() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room reader 600000 SHARED"));
    assert_eq!(c.call("LOCK.ACQUIRE room writer 600000"), Value::Null);
    c.ok("LOCK.RELEASE room reader");
    granted(&c.call("LOCK.ACQUIRE room writer 600000"));
    assert_eq!(
        c.call("LOCK.ACQUIRE room reader 600000 SHARED"),
        Value::Null
    );
    assert_eq!(
        c.call("LOCK.ACQUIRE room reader 600000 SHARED LIMIT 5"),
        Value::Null
    );
}

#[test]
fn hundreds_of_readers_hold_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    let lines: Vec<String> = (0..500)
        .map(|n| format!("LOCK.ACQUIRE room reader-{n} 600000 SHARED"))
        .collect();
    c.pipeline(&lines).iter().for_each(|reply| {
        granted(reply);
    });
    assert_eq!(holders(&mut c), 500);
    let lines: Vec<String> = (0..500)
        .rev()
        .map(|n| format!("LOCK.RELEASE room reader-{n}"))
        .collect();
    assert!(
        c.pipeline(&lines)
            .iter()
            .all(|reply| *reply == Value::Integer(1))
    );
    assert_eq!(c.call("EXISTS room"), Value::Integer(0));
}

#[test]
fn an_exclusive_holder_may_reenter_shared_and_stays_exclusive() {
    let server = Server::start();
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE room writer 600000"));
    assert_eq!(
        c.call("LOCK.ACQUIRE room writer 600000 SHARED"),
        Value::Integer(fence)
    );
    assert_eq!(c.call("LOCK.INFO room").field("mode").text(), "exclusive");
    assert_eq!(sole_holder(&mut c, "room").number("holds"), 2);
    assert_eq!(
        c.call("LOCK.ACQUIRE room reader 600000 SHARED"),
        Value::Null
    );
}

#[test]
fn a_shared_holder_cannot_become_exclusive() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room reader 600000 SHARED"));
    for line in [
        "LOCK.ACQUIRE room reader 600000",
        "LOCK.ACQUIRE room reader 600000 BLOCK 0",
    ] {
        refused(&c.call(line), "LOCKMODE");
        assert_eq!(sole_holder(&mut c, "room").number("holds"), 1);
        assert_eq!(waiters(&mut c, "room"), 0);
    }
}

#[test]
fn neighbouring_shared_waiters_are_granted_together() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room writer 600000"));
    let mut first: Vec<Connection> = (0..5)
        .map(|n| waiter(&server, &format!("reader-{n}"), "SHARED"))
        .collect();
    let mut writer = waiter(&server, "writer-2", "");
    let mut last = waiter(&server, "reader-last", "SHARED");
    let replies = c.pipeline(&["LOCK.RELEASE room writer", "LOCK.INFO room"]);
    assert_eq!(replies[1].field("holders").items().len(), 5);
    assert_eq!(replies[1].number("waiters"), 2);
    let fences: Vec<i64> = first
        .iter_mut()
        .map(|reader| granted(&reader.receive()))
        .collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    for n in 0..5 {
        c.ok(&format!("LOCK.RELEASE room reader-{n}"));
    }
    granted(&writer.receive());
    assert_eq!(waiters(&mut c, "room"), 1);
    c.ok("LOCK.RELEASE room writer-2");
    granted(&last.receive());
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room reader-1 600000 SHARED"));
    let mut writer = waiter(&server, "writer", "");
    assert_eq!(
        c.call("LOCK.ACQUIRE room reader-2 600000 SHARED"),
        Value::Null
    );
    let mut reader = waiter(&server, "reader-2", "SHARED");
    granted(&c.call("LOCK.ACQUIRE room reader-1 600000 SHARED"));
    assert_eq!(c.call("LOCK.RELEASE room reader-1 ALL"), Value::Integer(2));
    granted(&writer.receive());
    assert_eq!(waiters(&mut c, "room"), 1);
    c.ok("LOCK.RELEASE room writer");
    granted(&reader.receive());
}

#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room reader-1 600000 SHARED"));
    let writer = waiter(&server, "writer", "");
    let mut readers = [
        waiter(&server, "reader-2", "SHARED"),
        waiter(&server, "reader-3", "SHARED"),
    ];
    drop(writer);
    for reader in &mut readers {
        granted(&reader.receive());
    }
    assert_eq!(holders(&mut c), 3);

    let mut writer = server.connect();
    writer.send("LOCK.ACQUIRE room writer 600000 BLOCK 1000");
    wait_for_waiters(&mut c, "room", 1);
    let mut reader = waiter(&server, "reader-4", "SHARED");
    assert_eq!(writer.receive(), Value::Null);
    granted(&reader.receive());
}

#[test]
fn readers_and_writers_both_get_their_turn_under_load() {
    let server = Server::start();
    let port = server.port();
    let threads: Vec<_> = (0..12)
        .map(|n| {
            std::thread::spawn(move || {
                let mut c = Connection::try_open(port).expect("a connection");
                let mode = if n % 3 == 0 { "" } else { "SHARED" };
                for _ in 0..60 {
                    granted(&c.call(&format!(
                        "LOCK.ACQUIRE room token-{n} 600000 {mode} BLOCK 0"
                    )));
                    let info = c.call("LOCK.INFO room");
                    let alone = info.field("holders").items().len() == 1;
                    assert!(alone || n % 3 != 0, "{info:?}");
                    assert_eq!(
                        c.call(&format!("LOCK.RELEASE room token-{n}")),
                        Value::Integer(1)
                    );
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    assert_eq!(server.connect().call("EXISTS room"), Value::Integer(0));
}

#[test]
fn a_semaphore_has_at_most_n_holders() {
    let server = Server::start();
    let mut c = server.connect();
    for n in 0..3 {
        granted(&c.call(&format!(
            "LOCK.ACQUIRE room permit-{n} 600000 SHARED LIMIT 3"
        )));
    }
    assert_eq!(
        c.call("LOCK.ACQUIRE room permit-3 600000 SHARED LIMIT 3"),
        Value::Null
    );
    granted(&c.call("LOCK.ACQUIRE room permit-1 600000 SHARED LIMIT 3"));
    let info = c.call("LOCK.INFO room");
    assert_eq!(
        (info.field("mode").text(), info.number("limit")),
        ("shared", 3)
    );
    assert_eq!(info.field("holders").items().len(), 3);
    c.ok("LOCK.RELEASE room permit-0");
    granted(&c.call("LOCK.ACQUIRE room permit-3 600000 limit 3 shared"));
}

#[test]
fn a_waiter_gets_the_permit_that_is_given_back() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room permit-0 600000 SHARED LIMIT 2"));
    granted(&c.call("LOCK.ACQUIRE room permit-1 600000 SHARED LIMIT 2"));
    let mut queue = [
        waiter(&server, "permit-2", "SHARED LIMIT 2"),
        waiter(&server, "permit-3", "SHARED LIMIT 2"),
    ];
    c.ok("LOCK.RELEASE room permit-1");
    granted(&queue[0].receive());
    assert_eq!(waiters(&mut c, "room"), 1);
    c.ok("LOCK.RELEASE room permit-0");
    granted(&queue[1].receive());
    assert_eq!(holders(&mut c), 2);
}

#[test]
fn a_dead_permit_frees_itself_at_the_end_of_its_lease() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room dead 400 SHARED LIMIT 2"));
    granted(&c.call("LOCK.ACQUIRE room alive 600000 SHARED LIMIT 2"));
    granted(
        &server
            .connect()
            .call("LOCK.ACQUIRE room next 600000 SHARED LIMIT 2 BLOCK 0"),
    );
    assert_eq!(c.call("LOCK.INFO room dead"), Value::Null);
    assert_eq!(holders(&mut c), 2);
}

#[test]
fn the_limit_must_be_what_the_holders_named() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 3"));
    for options in ["SHARED LIMIT 2", "SHARED LIMIT 4", "SHARED"] {
        for block in ["", "BLOCK 0"] {
            refused(
                &c.call(&format!("LOCK.ACQUIRE room two 600000 {options} {block}")),
                "LOCKMODE",
            );
        }
    }
    c.ok("LOCK.RELEASE room one");
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED"));
    refused(
        &c.call("LOCK.ACQUIRE room two 600000 SHARED LIMIT 3"),
        "LOCKMODE",
    );
    assert_eq!((holders(&mut c), waiters(&mut c, "room")), (1, 0));
    c.ok("LOCK.RELEASE room one");
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 7"));
}

#[test]
fn the_limit_is_checked_again_at_the_grant() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room writer 600000"));
    let mut like = waiter(&server, "permit-1", "SHARED LIMIT 2");
    let mut unlike = waiter(&server, "permit-2", "SHARED LIMIT 3");
    let mut none = waiter(&server, "permit-3", "SHARED");
    let mut also_like = waiter(&server, "permit-4", "SHARED LIMIT 2");
    c.ok("LOCK.RELEASE room writer");
    granted(&like.receive());
    refused(&unlike.receive(), "LOCKMODE");
    refused(&none.receive(), "LOCKMODE");
    granted(&also_like.receive());
    assert_eq!((holders(&mut c), waiters(&mut c, "room")), (2, 0));
}

#[test]
fn a_writer_waits_for_every_permit() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room permit-0 600000 SHARED LIMIT 5"));
    granted(&c.call("LOCK.ACQUIRE room permit-1 600000 SHARED LIMIT 5"));
    let mut writer = waiter(&server, "writer", "");
    assert_eq!(
        c.call("LOCK.ACQUIRE room permit-2 600000 SHARED LIMIT 5"),
        Value::Null
    );
    c.ok("LOCK.RELEASE room permit-0");
    assert_eq!(waiters(&mut c, "room"), 1);
    c.ok("LOCK.RELEASE room permit-1");
    granted(&writer.receive());
    assert_eq!(c.call("LOCK.INFO room").number("limit"), 0);
}

#[test]
fn bad_input_changes_nothing() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room one 600000 SHARED LIMIT 3"));
    let before = redislock_testkit::lock::all_locks(&mut c);
    for (line, names) in [
        ("LOCK.ACQUIRE room two 1000 LIMIT 3", "LIMIT"),
        ("LOCK.ACQUIRE free two 1000 LIMIT 3", "LIMIT"),
        ("LOCK.ACQUIRE room two 1000 SHARED LIMIT", "LIMIT"),
        ("LOCK.ACQUIRE room two 1000 SHARED LIMIT 0", "LIMIT"),
        ("LOCK.ACQUIRE room two 1000 SHARED LIMIT -1", "LIMIT"),
        ("LOCK.ACQUIRE room two 1000 SHARED LIMIT few", "LIMIT"),
        (
            "LOCK.ACQUIRE room two 1000 SHARED LIMIT 99999999999999999999",
            "LIMIT",
        ),
        ("LOCK.ACQUIRE room two 1000 SHARED LIMIT 3 LIMIT 3", "LIMIT"),
        ("LOCK.ACQUIRE room two 1000 SHARED SHARED", "SHARED"),
        ("LOCK.EXTEND room one 1000 SHARED", "argument 4"),
    ] {
        let reply = c.call(line);
        refused(&reply, "ERR");
        assert!(
            reply.error().contains(names) && !reply.error().contains("few"),
            "{line}: {reply:?}"
        );
        assert_eq!(redislock_testkit::lock::all_locks(&mut c), before, "{line}");
    }
}

#[test]
fn max_holders_holds_at_the_grant_too() {
    let server = Server::options().config("lock.max-holders 2").start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room writer 600000"));
    let mut queue: Vec<Connection> = (0..3)
        .map(|n| waiter(&server, &format!("reader-{n}"), "SHARED"))
        .collect();
    c.ok("LOCK.RELEASE room writer");
    granted(&queue[0].receive());
    granted(&queue[1].receive());
    assert_eq!(holders(&mut c), 2);
    // The third either is told or waits for a place; it never makes three.
    c.ok("LOCK.RELEASE room reader-0");
    match queue[2].receive() {
        Value::Integer(1..) => assert_eq!(holders(&mut c), 2),
        reply => refused(&reply, "LOCKLIMIT"),
    }
}

#[test]
fn extending_one_reader_leaves_the_others() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE room short 500 SHARED"));
    granted(&c.call("LOCK.ACQUIRE room long 500 SHARED"));
    if c.call("LOCK.EXTEND room long 600000") == Value::Null {
        return;
    }
    wait_until("the short lease has ended", || {
        c.call("LOCK.INFO room short") == Value::Null
    });
    assert_ne!(c.call("LOCK.INFO room long"), Value::Null);
}

#[test]
fn many_shared_holders_whose_leases_end_together_are_ended_in_slices() {
    let server = Server::start();
    let mut c = server.connect();
    let lines: Vec<_> = (0..5_000)
        .map(|reader| format!("LOCK.ACQUIRE job reader:{reader} 1500 SHARED"))
        .collect();
    c.pipeline(&lines);
    wait_until_gone(&mut c, "job");
    // Each step ends some of the holds; the sum is what counts, not how fast it was.
    assert_eq!(info_number(&mut c, "lock", "lock_expiries"), 5_000);
    assert_eq!(info_number(&mut c, "lock", "lock_locks"), 0);
}
