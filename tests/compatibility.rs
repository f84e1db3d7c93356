//! What version 0.1.0 has saved is understood: an RDB file, an AOF with effects, DUMP payloads. The
//! files in tests/fixtures were made by that version, on Redis 7.0, and are never made again. What
//! a newer version saves in another form is refused.

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

/// A server that finds these bytes in a file of its folder: why it does not start.
#[track_caller]
fn refused_file(name: &str, bytes: &[u8], config: &str) -> String {
    let mut server = Server::start();
    server.kill();
    fs::write(server.folder().join(name), bytes).expect("the file is written");
    server.reconfigure(|options| options.config(config).config("rdbchecksum no"));
    let Err(log) = server.try_start_again() else {
        panic!("{name} was loaded");
    };
    assert!(!log.contains("BUG REPORT"), "{log}");
    log
}

#[track_caller]
fn assert_told_once(log: &str, words: &str) {
    let told = log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(told, 1, "{log}");
}

/// A file of 0.1.0, whose form is the first, in which every value of the module has the version
/// after the present one.
fn of_the_next_form(name: &str) -> Vec<u8> {
    let dump = fs::read(fixture("exclusive.dump")).expect("the fixture");
    // A type byte comes first, then the id of the module's type, whose last bits are the version.
    let ours = &dump[1..10];
    let mut bytes = fs::read(fixture(name)).expect("the fixture");
    let places: Vec<usize> = bytes
        .windows(ours.len())
        .enumerate()
        .filter_map(|(place, bytes)| (bytes == ours).then_some(place))
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place + ours.len() - 1] += 3;
    }
    bytes
}

#[test]
fn an_rdb_file_of_a_newer_form_is_refused_with_one_line() {
    let log = refused_file("dump.rdb", &of_the_next_form("dump.rdb"), "save 3600 1");
    let words = "saved by another version of redislock (format 4, this version reads format 3)";
    assert_told_once(&log, words);
}

#[test]
fn an_aof_of_a_newer_form_is_refused_with_one_line() {
    let mut bytes = fs::read(fixture("appendonly.aof")).expect("the fixture");
    let command = b"lock._apply\r\n$";
    let mut changed = 0;
    for place in 0..bytes.len() - command.len() {
        if bytes[place..].starts_with(command) {
            let rest = &bytes[place + command.len()..];
            let line = rest
                .iter()
                .position(|byte| *byte == b'\n')
                .expect("a length");
            bytes[place + command.len() + line + 1] += 1;
            changed += 1;
        }
    }
    assert!(changed > 0);
    let log = refused_file("appendonly.aof", &bytes, "appendonly yes");
    assert_told_once(&log, "the AOF was written by a newer version of redislock");
}
