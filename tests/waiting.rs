//! BLOCK: waiting on the server, first in, first out.

use std::time::{Duration, Instant};

use redislock_testkit::lock::{counter, sole_holder, wait_for_waiters, waiters, wall_micros};
use redislock_testkit::{Connection, Server, Value, granted, info_number, refused};

/// A connection that waits for `job` under this token, and is in the queue when this returns.
#[track_caller]
pub fn waiter(server: &Server, token: &str, options: &str) -> Connection {
    let mut c = server.connect();
    let mut waiter = server.connect();
    let queued = waiters(&mut c, "job");
    waiter.send(&format!("LOCK.ACQUIRE job {token} 600000 {options}"));
    wait_for_waiters(&mut c, "job", queued + 1);
    waiter
}

/// A server on which `me` holds `job`.
pub fn held() -> (Server, Connection) {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 600000"));
    (server, c)
}

#[track_caller]
pub fn assert_holds(c: &mut Connection, token: &str) {
    assert_ne!(
        c.call(&format!("LOCK.INFO job {token}")),
        Value::Null,
        "{token} does not hold the lock"
    );
}

#[test]
fn a_free_lock_is_granted_without_waiting() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job me 60000 BLOCK 0"));
    granted(&c.call("LOCK.ACQUIRE job me 60000 BLOCK 0"));
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 2);
}

#[test]
fn waiters_are_granted_first_in_first_out() {
    let (server, mut c) = held();
    let mut queue: Vec<Connection> = (0..60)
        .map(|n| waiter(&server, &format!("token-{n}"), "BLOCK 0"))
        .collect();
    let mut last = 0;
    let mut holder = "me".to_owned();
    for (n, waiter) in queue.iter_mut().enumerate() {
        assert_eq!(
            c.call(&format!("LOCK.RELEASE job {holder}")),
            Value::Integer(1)
        );
        holder = format!("token-{n}");
        let fence = granted(&waiter.receive());
        assert!(fence > last);
        last = fence;
        assert_holds(&mut c, &holder);
    }
    c.ok(&format!("LOCK.RELEASE job {holder}"));
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}

#[test]
fn a_newcomer_does_not_overtake_a_waiter() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    let replies = c.pipeline(&[
        "LOCK.RELEASE job me",
        "LOCK.ACQUIRE job me 600000",
        "LOCK.ACQUIRE job other 600000",
    ]);
    assert_eq!(replies, [Value::Integer(1), Value::Null, Value::Null]);
    granted(&waiter.receive());
}

#[test]
fn reentry_never_queues() {
    let (server, mut c) = held();
    let _waiter = waiter(&server, "you", "BLOCK 0");
    granted(&c.call("LOCK.ACQUIRE job me 600000 BLOCK 0"));
    assert_eq!(waiters(&mut c, "job"), 1);
}

#[test]
fn the_lease_starts_at_the_grant() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    std::thread::sleep(Duration::from_millis(200));
    let before = Instant::now();
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    let holder = sole_holder(&mut c, "job");
    let since = i64::try_from(before.elapsed().as_millis()).expect("a short time") + 1;
    assert!(holder.number("age") <= since);
    assert!(holder.number("ttl") >= 600_000 - since);
}

#[test]
fn a_wait_ends_with_null_when_its_time_is_up_and_not_before() {
    let (server, mut c) = held();
    let mut waiter = server.connect();
    for time in [1, 20, 100] {
        let start = Instant::now();
        assert_eq!(
            waiter.call(&format!("LOCK.ACQUIRE job you 60000 BLOCK {time}")),
            Value::Null
        );
        assert!(start.elapsed() + Duration::from_millis(1) >= Duration::from_millis(time));
        assert_eq!(waiters(&mut c, "job"), 0);
    }
    assert_eq!(waiter.call("PING"), Value::Status("PONG".into()));
    c.ok("LOCK.RELEASE job me");
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
}

#[test]
fn block_zero_waits_forever() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    assert!(waiter.is_silent_for(Duration::from_millis(400)));
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
}

#[test]
fn a_timed_out_waiter_does_not_hold_up_the_one_behind_it() {
    let (server, mut c) = held();
    let mut impatient = waiter(&server, "impatient", "BLOCK 1000");
    let mut patient = waiter(&server, "patient", "BLOCK 0");
    assert_eq!(impatient.receive(), Value::Null);
    c.ok("LOCK.RELEASE job me");
    granted(&patient.receive());
}

#[test]
fn where_blocking_is_denied_the_request_acts_as_if_block_were_not_there() {
    let (_server, mut c) = held();
    let replies = c.pipeline(&[
        "MULTI",
        "LOCK.ACQUIRE job you 60000 BLOCK 0",
        "LOCK.ACQUIRE free you 60000 BLOCK 0",
        "EXEC",
    ]);
    let replies = replies[3].items();
    assert_eq!(replies[0], Value::Null);
    granted(&replies[1]);
    let script = "return redis.call('LOCK.ACQUIRE', KEYS[1], 'you', 60000, 'BLOCK', 0)";
    assert_eq!(c.call_args(&["EVAL", script, "1", "job"]), Value::Null);
    granted(&c.call_args(&["EVAL", script, "1", "also-free"]));
    assert_eq!(waiters(&mut c, "job"), 0);
}

#[test]
fn waiters_with_the_same_token_are_one_owner() {
    let (server, mut c) = held();
    let mut same: Vec<Connection> = (0..3).map(|_| waiter(&server, "you", "BLOCK 0")).collect();
    let mut other = waiter(&server, "other", "BLOCK 0");
    c.ok("LOCK.RELEASE job me");
    let fences: Vec<i64> = same
        .iter_mut()
        .map(|waiter| granted(&waiter.receive()))
        .collect();
    assert_eq!(fences, [fences[0]; 3]);
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 3);
    assert_eq!(c.call("LOCK.RELEASE job you ALL"), Value::Integer(3));
    granted(&other.receive());
}

#[test]
fn a_request_that_was_sent_again_with_once_while_it_waited_counts_once() {
    let (server, mut c) = held();
    let mut first = waiter(&server, "you", "BLOCK 0 ONCE");
    let mut again = waiter(&server, "you", "BLOCK 0 ONCE");
    c.ok("LOCK.RELEASE job me");
    assert_eq!(first.receive(), again.receive());
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[test]
fn a_star_may_wait() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "*", "BLOCK 0");
    c.ok("LOCK.RELEASE job me");
    let reply = waiter.receive();
    let [token, fence] = reply.items() else {
        panic!("{reply:?}")
    };
    assert_eq!(
        c.call(&format!("LOCK.EXTEND job {} 60000", token.text())),
        *fence
    );
}

#[test]
fn fence_counts_at_the_grant() {
    let (server, mut c) = held();
    let ahead = wall_micros() + 9_000_000;
    let mut waiter = waiter(&server, "you", &format!("BLOCK 0 FENCE {ahead}"));
    assert!(counter(&mut c) < ahead);
    c.ok("LOCK.RELEASE job me");
    assert!(granted(&waiter.receive()) >= ahead);
    assert!(counter(&mut c) >= ahead);
}

#[test]
fn bad_input_is_not_queued() {
    let (server, mut c) = held();
    c.ok("SET string value");
    for (line, class) in [
        ("LOCK.ACQUIRE job you 60000 BLOCK", "ERR"),
        ("LOCK.ACQUIRE job you 60000 BLOCK -1", "ERR"),
        ("LOCK.ACQUIRE job you 60000 BLOCK soon", "ERR"),
        ("LOCK.ACQUIRE job you 60000 BLOCK 1.5", "ERR"),
        (
            "LOCK.ACQUIRE job you 60000 BLOCK 9223372036854775808",
            "ERR",
        ),
        ("LOCK.ACQUIRE job you 60000 BLOCK 0 BLOCK 0", "ERR"),
        ("LOCK.ACQUIRE job you 0 BLOCK 0", "ERR"),
        ("LOCK.ACQUIRE job * 60000 BLOCK 0 ONCE", "ERR"),
        (
            "LOCK.ACQUIRE job you 60000 BLOCK 0 FENCE 9007199254740991",
            "LOCKFENCE",
        ),
        ("LOCK.ACQUIRE job you 60000 BLOCK 0 MAXHOLD 1", "LOCKLIMIT"),
        ("LOCK.ACQUIRE string you 60000 BLOCK 0", "WRONGTYPE"),
    ] {
        let mut client = server.connect();
        let reply = client.call(line);
        refused(&reply, class);
        if line.ends_with("BLOCK soon") {
            assert!(
                reply.error().contains("BLOCK") && !reply.error().contains("soon"),
                "{reply:?}"
            );
        }
        assert_eq!(waiters(&mut c, "job"), 0, "{line}");
    }
    assert_holds(&mut c, "me");
}

#[test]
fn max_waiters_limits_the_waiting_requests_of_the_node() {
    let (server, mut c) = held();
    c.ok("LOCK.ACQUIRE other me 600000");
    c.ok("CONFIG SET lock.max-waiters 2");
    let _first = waiter(&server, "one", "BLOCK 0");
    let mut second = waiter(&server, "two", "BLOCK 1000");
    refused(
        &server
            .connect()
            .call("LOCK.ACQUIRE job three 60000 BLOCK 0"),
        "LOCKLIMIT",
    );
    refused(
        &server
            .connect()
            .call("LOCK.ACQUIRE other three 60000 BLOCK 0"),
        "LOCKLIMIT",
    );
    granted(&c.call("LOCK.ACQUIRE free three 60000 BLOCK 0"));
    assert_eq!(waiters(&mut c, "job"), 2);
    assert_eq!(second.receive(), Value::Null);
    let _third = waiter(&server, "three", "BLOCK 0");
    c.ok("CONFIG SET lock.max-waiters 0");
    refused(
        &server
            .connect()
            .call("LOCK.ACQUIRE other three 60000 BLOCK 0"),
        "LOCKLIMIT",
    );
}

#[test]
fn info_shows_how_many_wait_and_for_how_long() {
    let (server, mut c) = held();
    let _first = waiter(&server, "one", "BLOCK 0");
    std::thread::sleep(Duration::from_millis(50));
    let _second = waiter(&server, "two", "BLOCK 0");
    let info = c.call("LOCK.INFO job");
    assert_eq!(info.number("waiters"), 2);
    assert!(info.number("oldest-wait") >= 49, "{info:?}");
    assert_eq!(c.call("LOCK.NODE").number("waiters"), 2);
    assert_eq!(info_number(&mut c, "clients", "blocked_clients"), 2);
}

#[test]
fn a_wait_that_would_cause_a_deadlock_is_answered_at_once() {
    let server = Server::start();
    let mut c = server.connect();
    granted(&c.call("LOCK.ACQUIRE job one 600000"));
    granted(&c.call("LOCK.ACQUIRE second two 600000"));
    granted(&c.call("LOCK.ACQUIRE third three 600000"));
    let mut two = waiter(&server, "two", "BLOCK 0");
    let mut three = server.connect();
    three.send("LOCK.ACQUIRE second three 600000 BLOCK 0");
    wait_for_waiters(&mut c, "second", 1);
    refused(
        &server
            .connect()
            .call("LOCK.ACQUIRE third one 600000 BLOCK 0"),
        "DEADLOCK",
    );
    assert_eq!(waiters(&mut c, "third"), 0);
    assert_eq!(c.call("LOCK.ACQUIRE third one 600000"), Value::Null);
    assert_eq!(info_number(&mut c, "lock", "lock_deadlocks"), 1);
    c.ok("LOCK.RELEASE job one");
    granted(&two.receive());
    c.ok("LOCK.RELEASE second two");
    granted(&three.receive());
}

#[test]
fn many_connections_take_turns_and_none_is_forgotten() {
    const CLIENTS: usize = 32;
    const TURNS: usize = 40;
    let server = Server::start();
    let port = server.port();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|client| {
            std::thread::spawn(move || {
                let mut c = Connection::try_open(port).expect("a connection");
                (0..TURNS)
                    .map(|_| {
                        let fence = granted(
                            &c.call(&format!("LOCK.ACQUIRE job token-{client} 600000 BLOCK 0")),
                        );
                        assert_eq!(
                            c.call(&format!("LOCK.RELEASE job token-{client}")),
                            Value::Integer(1)
                        );
                        fence
                    })
                    .collect::<Vec<i64>>()
            })
        })
        .collect();
    let mut fences: Vec<i64> = threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("no panic"))
        .collect();
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), CLIENTS * TURNS);
    let mut c = server.connect();
    assert_eq!(c.call("EXISTS job"), Value::Integer(0));
    assert_eq!(c.call("LOCK.NODE").number("waiters"), 0);
}

#[test]
fn a_wait_that_times_out_is_null_in_both_protocols() {
    let (server, _c) = held();
    for (mut waiter, null) in [
        (server.connect(), "$-1\r\n"),
        (server.connect().resp3(), "_\r\n"),
    ] {
        waiter.send("LOCK.ACQUIRE job you 60000 BLOCK 1");
        assert_eq!(String::from_utf8_lossy(&waiter.raw(null.len())), null);
    }
}

#[test]
fn what_a_waiter_sends_behind_its_request_is_answered_behind_it() {
    let (server, mut c) = held();
    let mut waiter = waiter(&server, "you", "BLOCK 0");
    waiter.send("PING");
    waiter.send("LOCK.RELEASE job you");
    c.ok("LOCK.RELEASE job me");
    granted(&waiter.receive());
    assert_eq!(waiter.receive(), Value::Status("PONG".into()));
    assert_eq!(waiter.receive(), Value::Integer(1));
}

#[test]
fn a_waiter_that_would_reenter_past_the_cap_of_the_hold_is_refused() {
    let (server, mut c) = held();
    let mut first = waiter(&server, "you", "BLOCK 0 MAXHOLD 600000");
    let mut second = server.connect();
    second.send("LOCK.ACQUIRE job you 700000 BLOCK 0");
    wait_for_waiters(&mut c, "job", 2);
    c.ok("LOCK.RELEASE job me");
    granted(&first.receive());
    refused(&second.receive(), "LOCKLIMIT");
    assert_eq!(sole_holder(&mut c, "job").number("holds"), 1);
}

#[cfg(target_os = "linux")]
mod with_a_stepped_wall_clock {
    use super::*;
    use redislock_testkit::SteppedServer;

    #[test]
    fn the_time_of_a_wait_is_monotonic() {
        let stepped = SteppedServer::start(Server::options());
        let mut c = stepped.server.connect();
        granted(&c.call("LOCK.ACQUIRE job me 600000"));
        let mut patient = waiter(&stepped.server, "patient", "BLOCK 600000");
        stepped.step(86_400);
        assert!(patient.is_silent_for(Duration::from_millis(300)));
        let mut impatient = waiter(&stepped.server, "impatient", "BLOCK 1000");
        stepped.step(-86_400);
        assert_eq!(impatient.receive(), Value::Null);
        c.ok("LOCK.RELEASE job me");
        granted(&patient.receive());
    }
}
