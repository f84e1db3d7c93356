//! A grant against everything that can happen to the waiter at the same moment, 10,000 rounds each.
//!
//! Rounds run in lanes: every lane has a key and a waiter of its own, so that a batch costs one
//! wait.

use std::time::Duration;

use redislock_testkit::{Connection, Random, Server, Value, encode, granted, wait_until};

const ROUNDS: usize = 10_000;
const LANES: usize = 100;

fn lanes(command: impl Fn(usize) -> String) -> Vec<String> {
    (0..LANES).map(command).collect()
}

fn commands<L: AsRef<str>>(lines: &[L]) -> Vec<u8> {
    let words = |line: &L| encode(&line.as_ref().split_whitespace().collect::<Vec<_>>());
    lines.iter().flat_map(words).collect()
}

/// The holder takes every lane's key, and every waiter queues for its own.
fn line_up(c: &mut Connection, waiters: &mut [Connection], options: impl Fn(usize) -> String) {
    for reply in c.pipeline(&lanes(|lane| {
        format!("LOCK.ACQUIRE job-{lane} holder 600000")
    })) {
        granted(&reply);
    }
    for (lane, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!(
            "LOCK.ACQUIRE job-{lane} waiter 600000 {}",
            options(lane)
        ));
    }
}

fn wait_for_all(c: &mut Connection) {
    wait_until("all wait", || {
        c.call("LOCK.NODE").number("waiters") == LANES as i64
    });
}

/// Whatever the waiter was told is true: it holds the lock exactly if it was granted, and it was
/// told once.
#[track_caller]
fn assert_truth(c: &mut Connection, waiters: &mut [Connection]) -> usize {
    let mut grants = 0;
    let replies: Vec<Value> = waiters.iter_mut().map(Connection::receive).collect();
    let releases = c.pipeline(&lanes(|lane| format!("LOCK.RELEASE job-{lane} waiter")));
    for (told, released) in replies.iter().zip(&releases) {
        match told {
            Value::Integer(1..) => {
                grants += 1;
                assert_eq!(
                    *released,
                    Value::Integer(1),
                    "told {told:?}, but it held nothing"
                );
            }
            Value::Null | Value::Error(_) => assert_eq!(
                *released,
                Value::Null,
                "told {told:?}, but it held the lock"
            ),
            other => panic!("{other:?}"),
        }
    }
    for waiter in waiters {
        assert_eq!(
            waiter.call("PING"),
            Value::Status("PONG".into()),
            "a second reply"
        );
    }
    grants
}

#[track_caller]
fn assert_nothing_left(c: &mut Connection) {
    wait_until("nothing is left", || {
        let node = c.call("LOCK.NODE");
        (node.number("locks"), node.number("waiters")) == (0, 0)
    });
    assert_eq!(c.call("DBSIZE"), Value::Integer(0));
}

#[test]
fn a_grant_against_the_timeout() {
    let server = Server::start();
    let mut c = server.connect();
    let mut waiters: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
    let mut random = Random::seeded();
    let mut grants = 0;
    for _ in 0..ROUNDS / LANES {
        let time = 1 + random.below(8);
        line_up(&mut c, &mut waiters, |_| format!("BLOCK {time}"));
        std::thread::sleep(Duration::from_micros(random.below(1000 * time + 1000)));
        for reply in c.pipeline(&lanes(|lane| format!("LOCK.RELEASE job-{lane} holder"))) {
            assert_eq!(reply, Value::Integer(1));
        }
        grants += assert_truth(&mut c, &mut waiters);
    }
    eprintln!("{grants} grants in {ROUNDS} rounds");
    assert_nothing_left(&mut c);
}

#[test]
fn a_grant_against_client_unblock() {
    let server = Server::start();
    let mut c = server.connect();
    let mut other = server.connect();
    let mut waiters: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
    let ids: Vec<i64> = waiters.iter_mut().map(Connection::client_id).collect();
    let mut grants = 0;
    for round in 0..ROUNDS / LANES {
        line_up(&mut c, &mut waiters, |_| "BLOCK 0".to_owned());
        wait_for_all(&mut c);
        let release = |lane: usize| format!("LOCK.RELEASE job-{lane} holder");
        let unblock = |lane: usize| {
            let how = ["TIMEOUT", "ERROR"][lane % 2];
            format!("CLIENT UNBLOCK {} {how}", ids[lane])
        };
        let mut sent = Vec::new();
        match round % 3 {
            // In one step of the server, in both orders.
            0 => {
                for lane in 0..LANES {
                    sent.extend(["MULTI".into(), release(lane), unblock(lane), "EXEC".into()]);
                }
            }
            1 => {
                for lane in 0..LANES {
                    sent.extend(["MULTI".into(), unblock(lane), release(lane), "EXEC".into()]);
                }
            }
            // By two connections at once.
            _ => {
                other.send_raw(&commands(&lanes(unblock)));
                sent = lanes(release);
            }
        }
        c.pipeline(&sent);
        if round % 3 == 2 {
            (0..LANES).for_each(|_| drop(other.receive()));
        }
        grants += assert_truth(&mut c, &mut waiters);
    }
    eprintln!("{grants} grants in {ROUNDS} rounds");
    assert_nothing_left(&mut c);
}

#[test]
fn a_grant_against_a_disconnect() {
    let server = Server::start();
    let mut c = server.connect();
    let mut heirs: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
    for round in 0..ROUNDS / LANES {
        let mut waiters: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
        for reply in c.pipeline(&lanes(|lane| {
            format!("LOCK.ACQUIRE job-{lane} holder 600000")
        })) {
            granted(&reply);
        }
        // A short lease: a grant that was sent before the server saw the end of the connection
        // stands.
        for (lane, waiter) in waiters.iter_mut().enumerate() {
            waiter.send("PING");
            waiter.send(&format!("LOCK.ACQUIRE job-{lane} waiter 20 BLOCK 0"));
        }
        wait_for_all(&mut c);
        for (lane, heir) in heirs.iter_mut().enumerate() {
            heir.send(&format!("LOCK.ACQUIRE job-{lane} heir 600000 BLOCK 0"));
        }
        wait_until("the heirs wait too", || {
            c.call("LOCK.NODE").number("waiters") == 2 * LANES as i64
        });
        let releases = commands(&lanes(|lane| format!("LOCK.RELEASE job-{lane} holder")));
        let close = |waiters: Vec<Connection>| {
            for (lane, waiter) in waiters.into_iter().enumerate() {
                if lane % 2 == 1 {
                    waiter.reset()
                } else {
                    drop(waiter)
                }
            }
        };
        if round % 2 == 0 {
            c.send_raw(&releases);
            close(waiters);
        } else {
            close(waiters);
            c.send_raw(&releases);
        }
        for _ in 0..LANES {
            assert_eq!(c.receive(), Value::Integer(1));
        }
        for heir in &mut heirs {
            granted(&heir.receive());
        }
        for reply in c.pipeline(&lanes(|lane| format!("LOCK.RELEASE job-{lane} heir"))) {
            assert_eq!(reply, Value::Integer(1));
        }
    }
    assert_nothing_left(&mut c);
}

#[test]
fn a_grant_against_client_kill_in_the_same_step() {
    let server = Server::start();
    let mut c = server.connect();
    let mut heirs: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
    for round in 0..ROUNDS / LANES {
        let mut waiters: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
        let ids: Vec<i64> = waiters.iter_mut().map(Connection::client_id).collect();
        line_up(&mut c, &mut waiters, |_| "BLOCK 0".to_owned());
        wait_for_all(&mut c);
        for (lane, heir) in heirs.iter_mut().enumerate() {
            heir.send(&format!("LOCK.ACQUIRE job-{lane} heir 600000 BLOCK 0"));
        }
        wait_until("the heirs wait too", || {
            c.call("LOCK.NODE").number("waiters") == 2 * LANES as i64
        });
        let mut sent = Vec::new();
        for (lane, id) in ids.iter().enumerate() {
            let mut step = [
                format!("LOCK.RELEASE job-{lane} holder"),
                format!("CLIENT KILL ID {id}"),
            ];
            if round % 2 == 1 {
                step.reverse();
            }
            sent.push("MULTI".to_owned());
            sent.extend(step);
            sent.push("EXEC".to_owned());
        }
        c.pipeline(&sent);
        // A grant that could not be delivered is passed on: no lease of ten minutes is in the way.
        for heir in &mut heirs {
            granted(&heir.receive());
        }
        for reply in c.pipeline(&lanes(|lane| format!("LOCK.RELEASE job-{lane} heir"))) {
            assert_eq!(reply, Value::Integer(1));
        }
        assert!(waiters.iter_mut().all(Connection::is_closed));
    }
    assert_nothing_left(&mut c);
}

#[test]
fn a_grant_against_the_end_of_the_lease() {
    let server = Server::start();
    let mut c = server.connect();
    let mut waiters: Vec<Connection> = (0..LANES).map(|_| server.connect()).collect();
    let mut random = Random::seeded();
    let mut last = [0; LANES];
    for _ in 0..ROUNDS / LANES {
        let ttl = 1 + random.below(5);
        let grants = c.pipeline(&lanes(|lane| {
            format!("LOCK.ACQUIRE job-{lane} holder {ttl}")
        }));
        for (lane, waiter) in waiters.iter_mut().enumerate() {
            waiter.send(&format!("LOCK.ACQUIRE job-{lane} waiter {ttl} BLOCK 0"));
        }
        std::thread::sleep(Duration::from_micros(random.below(1000 * ttl)));
        let releases = c.pipeline(&lanes(|lane| format!("LOCK.RELEASE job-{lane} holder")));
        for (lane, waiter) in waiters.iter_mut().enumerate() {
            let first = granted(&grants[lane]);
            let second = granted(&waiter.receive());
            assert!(
                last[lane] < first && first < second,
                "fences went backwards"
            );
            last[lane] = second;
            assert!(matches!(releases[lane], Value::Integer(1) | Value::Null));
        }
        wait_until("the last leases have ended", || {
            c.call("DBSIZE") == Value::Integer(0)
        });
    }
    assert_nothing_left(&mut c);
}
