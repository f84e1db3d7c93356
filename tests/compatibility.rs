//! What version 0.1.0 has saved is understood: an RDB file, an AOF with effects, DUMP payloads. The
//! files in tests/fixtures were made by that version, on Redis 7.0, and are never made again.

use std::fs;
use std::path::{Path, PathBuf};

use redislock_testkit::lock::{Holder, Lock, all_locks};
use redislock_testkit::{Connection, Server, Value, granted};

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/0.1.0");
    folder.join(name)
}

fn lock(key: &str, mode: &str, limit: i64, holders: &[(i64, i64, &str)]) -> Lock {
    Lock {
        database: 0,
        key: key.as_bytes().to_vec(),
        mode: mode.to_owned(),
        limit,
        holders: holders
            .iter()
            .map(|(fence, holds, owner)| Holder {
                fence: *fence,
                holds: *holds,
                owner: owner.as_bytes().to_vec(),
            })
            .collect(),
    }
}

fn exclusive() -> Lock {
    lock("exclusive", "exclusive", 0, &[(EXCLUSIVE, 2, "a label")])
}

fn shared() -> Lock {
    lock("shared", "shared", 3, &[(ONE, 1, ""), (THREE, 1, "")])
}

fn first() -> Lock {
    lock("first", "exclusive", 0, &[(FIRST, 1, "")])
}

const EXCLUSIVE: i64 = 1_731_767_299_240_666;
const ONE: i64 = 1_731_767_299_240_935;
const THREE: i64 = 1_731_767_299_241_162;
const FIRST: i64 = 1_731_767_299_241_335;

/// The owners are whom they were, and the leases have nearly a week left.
#[track_caller]
fn assert_owned(c: &mut Connection) {
    for (key, token) in [
        (&b"exclusive"[..], &b"\x00\xffbinary"[..]),
        (b"shared", b"one"),
        (b"shared", b"three"),
    ] {
        let hold = c.call_args(&[b"LOCK.INFO", key, token]);
        let ttl = hold.number("ttl");
        assert!((500_000_000..=604_800_000).contains(&ttl), "{ttl}");
    }
    let info = c.call("LOCK.INFO shared two");
    assert_eq!(info, Value::Null);
    // Its cap of a week is understood, too.
    let over = [
        b"LOCK.EXTEND",
        &b"exclusive"[..],
        b"\x00\xffbinary",
        b"604800000",
    ];
    assert_eq!(c.call_args(&over).error_class(), "LOCKLIMIT");
}

/// A server that finds this file in its folder when it starts.
#[track_caller]
fn with_file(name: &str, config: &str) -> Server {
    let options = Server::options().config("lock.max-ttl 604800000");
    let mut server = options.start();
    server.kill();
    fs::copy(fixture(name), server.folder().join(name)).expect("the fixture is copied");
    server.reconfigure(|options| options.config(config));
    server.start_again();
    server
}

#[track_caller]
fn assert_loaded(server: &Server) {
    let mut c = server.connect();
    assert_eq!(all_locks(&mut c), [exclusive(), first(), shared()]);
    assert_owned(&mut c);
    assert_eq!(c.call("LOCK.NODE").number("fence"), FIRST);
}

#[test]
fn an_rdb_file_of_0_1_0_is_loaded() {
    assert_loaded(&with_file("dump.rdb", "save 3600 1"));
}

#[test]
fn an_aof_of_0_1_0_is_loaded() {
    // A single file, as it was before Redis 7.0: every server since then takes it over.
    assert_loaded(&with_file("appendonly.aof", "appendonly yes"));
}

#[test]
fn dump_payloads_of_0_1_0_are_restored() {
    let server = Server::options().config("lock.max-ttl 604800000").start();
    let mut c = server.connect();
    for key in ["exclusive", "shared"] {
        let payload = fs::read(fixture(&format!("{key}.dump"))).expect("the fixture");
        let restored = c.call_args(&[b"RESTORE", key.as_bytes(), b"0", &payload]);
        assert_eq!(restored, Value::Status("OK".into()));
    }
    assert_eq!(all_locks(&mut c), [exclusive(), shared()]);
    assert_owned(&mut c);
    assert!(granted(&c.call("LOCK.ACQUIRE new me 1000")) > THREE);
}
