//! What each version since 0.2.0 has saved is loaded by this one: an RDB file, an AOF with effects,
//! DUMP payloads. compatibility.rs does the same for 0.1.0. Builds of 0.2.0 before its release have
//! also saved format 2: those files are in 0.2.0-format-2.
//!
//! Before a release, its files are made on Redis 7.0, and never again after it:
//! `FIXTURES=0.2.0 cargo test -p redislock-module --test main -- --ignored saved_forms::make_files`

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redislock_testkit::lock::{Lock, all_locks, wall_micros};
use redislock_testkit::{Connection, Server, SteppedServer, Value, granted};

/// Every form that a lock is saved in: exclusive and entered again, with a binary token, a label
/// and a cap; with a UUID; shared with and without a limit; in another database; tied to a
/// connection; several.
const REQUESTS: [&[&[u8]]; 13] = [
    &[
        b"LOCK.ACQUIRE",
        b"exclusive",
        TOKEN,
        b"604800000",
        b"OWNER",
        b"a label",
        b"MAXHOLD",
        b"604800000",
    ],
    &[b"LOCK.ACQUIRE", b"exclusive", TOKEN, b"600000000"],
    &[b"LOCK.ACQUIRE", b"uuid", UUID, b"604800000"],
    &[
        b"LOCK.ACQUIRE",
        b"limited",
        b"one",
        b"604800000",
        b"SHARED",
        b"LIMIT",
        b"3",
    ],
    &[
        b"LOCK.ACQUIRE",
        b"limited",
        b"two",
        b"604800000",
        b"SHARED",
        b"LIMIT",
        b"3",
    ],
    &[b"LOCK.ACQUIRE", b"shared", b"one", b"604800000", b"SHARED"],
    &[b"LOCK.ACQUIRE", b"tied", b"one", b"604800000", b"EPHEMERAL"],
    &[
        b"LOCK.MACQUIRE",
        b"2",
        b"first",
        b"second",
        b"one",
        b"604800000",
    ],
    &[b"LOCK.RELEASE", b"limited", b"two"],
    &[b"LOCK.ACQUIRE", b"gone", b"one", b"604800000"],
    &[b"LOCK.RELEASE", b"gone", b"one"],
    &[b"SELECT", b"2"],
    &[
        b"LOCK.ACQUIRE",
        b"elsewhere",
        b"one",
        b"604800000",
        b"OWNER",
        b"\xff\x00",
    ],
];
const TOKEN: &[u8] = b"\x00\xffbinary";
const UUID: &[u8] = b"67e55044-10b1-426f-9247-bb680e5fe0c8";
/// When the files are made as if it were: the end of 2024, since 1970.
const OLD: Duration = Duration::from_secs(1_735_000_000);
/// The keys whose payloads are kept.
const DUMPED: [&str; 4] = ["exclusive", "uuid", "limited", "shared"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The folders of all versions that have files in this form.
fn versions() -> Vec<PathBuf> {
    let all = fs::read_dir(folder()).expect("the fixtures");
    let all = all.map(|entry| entry.expect("a folder").path());
    let versions: Vec<PathBuf> = all.filter(|path| path.join("locks").exists()).collect();
    assert!(!versions.is_empty());
    versions
}

fn options() -> redislock_testkit::Options {
    Server::options().config("lock.max-ttl 604800000")
}

/// One line for each lock.
fn described(locks: &[Lock]) -> String {
    let line = |lock: &Lock| {
        let key = lock.key.escape_ascii();
        let start = format!("{} {key} {} {}", lock.database, lock.mode, lock.limit);
        let holders = lock.holders.iter().map(|holder| {
            let owner = holder.owner.escape_ascii();
            format!(" [{} {} {owner}]", holder.fence, holder.holds)
        });
        format!("{start}{}\n", holders.collect::<String>())
    };
    locks.iter().map(line).collect()
}

#[test]
#[ignore = "makes the files of a version, once"]
fn make_files() {
    let version = std::env::var("FIXTURES").expect("FIXTURES=version");
    let folder = folder().join(version);
    fs::create_dir(&folder).expect("a new folder");
    let options = options().appendonly("always");
    let mut stepped = SteppedServer::start(options.config("aof-use-rdb-preamble no"));
    // RESTORE refuses fences that are ahead of the clock: these are old on every machine. Fences
    // follow the clock of the start.
    let past = Duration::from_micros(wall_micros().unsigned_abs()) - OLD;
    stepped.step(-i64::try_from(past.as_secs()).expect("seconds"));
    stepped.server.kill();
    fs::remove_dir_all(stepped.server.folder().join("appendonlydir")).expect("an AOF");
    stepped.server.start_again();
    let server = &stepped.server;
    let mut c = server.connect();
    for request in REQUESTS {
        let reply = c.call_args(request);
        assert!(!reply.is_error() && reply != Value::Null, "{reply:?}");
    }
    let locks = described(&all_locks(&mut c));
    c.ok("SAVE");
    for key in DUMPED {
        let payload = c.call(&format!("DUMP {key}"));
        fs::write(folder.join(format!("{key}.dump")), payload.bytes()).expect("a payload");
    }
    let of_server =
        |name: &str| fs::read(server.folder().join(name)).expect("a file of the server");
    fs::write(folder.join("dump.rdb"), of_server("dump.rdb")).expect("an RDB file");
    let aof = of_server("appendonlydir/appendonly.aof.1.incr.aof");
    fs::write(folder.join("appendonly.aof"), aof).expect("an AOF");
    fs::write(folder.join("locks"), locks).expect("the description");
}

/// A server that finds this file in its folder when it starts.
fn with_file(file: &Path, config: &str) -> Server {
    let mut server = options().start();
    server.kill();
    let name = file.file_name().expect("a name");
    fs::copy(file, server.folder().join(name)).expect("the file is copied");
    server.reconfigure(|options| options.config(config));
    server.start_again();
    server
}

/// The locks have the same owners as before, and no others.
#[track_caller]
fn assert_owned(c: &mut Connection) {
    let over = [b"LOCK.EXTEND", &b"exclusive"[..], TOKEN, b"604800000"];
    assert_eq!(c.call_args(&over).error_class(), "LOCKLIMIT", "the cap");
    for (key, token) in [
        ("exclusive", TOKEN),
        ("uuid", UUID),
        ("limited", b"one"),
        ("shared", b"one"),
    ] {
        let hold = c.call_args(&[b"LOCK.INFO", key.as_bytes(), token]);
        assert!(
            (500_000_000..=604_800_000).contains(&hold.number("ttl")),
            "{key}: {hold:?}"
        );
        let other = c.call_args(&[b"LOCK.RELEASE", key.as_bytes(), b"other"]);
        assert_eq!(other, Value::Null);
    }
    assert_eq!(c.call("LOCK.INFO limited two"), Value::Null);
}

#[test]
fn an_rdb_file_and_an_aof_of_each_version_are_loaded() {
    for version in versions() {
        let expected = fs::read_to_string(version.join("locks")).expect("the description");
        for (name, config) in [
            ("dump.rdb", "save 3600 1"),
            ("appendonly.aof", "appendonly yes"),
        ] {
            let server = with_file(&version.join(name), config);
            let mut c = server.connect();
            assert_eq!(
                described(&all_locks(&mut c)),
                expected,
                "{name} of {version:?}"
            );
            assert_owned(&mut c);
        }
    }
}

#[test]
fn dump_payloads_of_each_version_are_restored() {
    for version in versions() {
        let expected = fs::read_to_string(version.join("locks")).expect("the description");
        let server = options().start();
        let mut c = server.connect();
        for key in DUMPED {
            let payload = fs::read(version.join(format!("{key}.dump"))).expect("the payload");
            let restored = c.call_args(&[b"RESTORE", key.as_bytes(), b"0", &payload]);
            assert_eq!(restored, Value::Status("OK".into()), "{key} of {version:?}");
        }
        for line in described(&all_locks(&mut c)).lines() {
            assert!(
                expected.lines().any(|lock| lock == line),
                "{line} is not in\n{expected}"
            );
        }
        assert_owned(&mut c);
        granted(&c.call("LOCK.ACQUIRE new me 1000"));
    }
}
