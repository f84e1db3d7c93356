//! What a lock looks like from outside, for comparing servers lock by lock, and for arranging
//! locks.

use crate::{Connection, Value, granted, wait_until};

/// Everything about a lock but the time that remains and the fingerprints, which differ from start
/// to start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// The number of its database.
    pub database: usize,
    /// Its name.
    pub key: Vec<u8>,
    /// `exclusive` or `shared`.
    pub mode: String,
    /// How many may share it; 0 without a limit.
    pub limit: i64,
    /// Its holders, sorted.
    pub holders: Vec<Holder>,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its fence.
    pub fence: i64,
    /// Its hold count.
    pub holds: i64,
    /// Its label.
    pub owner: Vec<u8>,
}

impl Holder {
    fn of(map: &Value) -> Holder {
        Holder {
            fence: map.number("fence"),
            holds: map.number("holds"),
            owner: map.field("owner").bytes().to_vec(),
        }
    }
}

/// How many databases the comparisons look at.
const DATABASES: usize = 4;

/// All locks of the first databases. Leaves the connection in database 0.
pub fn all_locks(connection: &mut Connection) -> Vec<Lock> {
    let mut locks = Vec::new();
    for database in 0..DATABASES {
        connection.ok(&format!("SELECT {database}"));
        for key in keys(connection) {
            let info = connection.call_args(&[b"LOCK.INFO", key.as_slice()]);
            if info == Value::Null {
                continue;
            }
            let holders = info.field("holders");
            let mut holders: Vec<Holder> = holders.items().iter().map(Holder::of).collect();
            holders.sort();
            locks.push(Lock {
                database,
                key,
                mode: info.field("mode").text().to_owned(),
                limit: info.number("limit"),
                holders,
            });
        }
    }
    connection.ok("SELECT 0");
    locks.sort();
    locks
}

/// The names of all locks of the current database, sorted.
pub fn keys(connection: &mut Connection) -> Vec<Vec<u8>> {
    let found = connection.ok("SCAN 0 COUNT 1000000 TYPE redislock");
    let mut keys: Vec<Vec<u8>> = found.items()[1]
        .items()
        .iter()
        .map(|key| key.bytes().to_vec())
        .collect();
    keys.sort();
    keys
}

/// Who holds which lock, of those that `arrange` made: key, token, database.
pub type Ownership = (usize, &'static [u8], &'static [u8]);

/// Locks of every shape, with leases that outlast any test. Leaves the connection in database 0.
pub fn arrange(connection: &mut Connection) -> Vec<Ownership> {
    let acquisitions: &[(usize, &'static [u8], &'static [u8], &str)] = &[
        (0, b"plain", b"token-a", ""),
        (0, b"uuid", b"67e55044-10b1-426f-9247-bb680e5fe0c8", ""),
        (0, b"reentered", b"token-a", ""),
        (0, b"reentered", b"token-a", ""),
        (0, b"reentered", b"token-a", ""),
        (0, b"labelled", b"token-b", "OWNER worker-7"),
        (0, b"capped", b"token-c", "MAXHOLD 7200000"),
        (0, b"\0bytes\r\n\xff", b"\xfe\0token\r\n", ""),
        (0, b"shared", b"reader-1", "SHARED OWNER one"),
        (0, b"shared", b"reader-2", "SHARED"),
        (0, b"shared", b"reader-2", "SHARED"),
        (0, b"semaphore", b"permit-1", "SHARED LIMIT 3"),
        (0, b"semaphore", b"permit-2", "SHARED LIMIT 3 OWNER two"),
        (2, b"plain", b"token-d", ""),
    ];
    for (database, key, token, options) in acquisitions {
        connection.ok(&format!("SELECT {database}"));
        let mut args: Vec<&[u8]> = vec![b"LOCK.ACQUIRE", key, token, b"3600000"];
        args.extend(options.split_whitespace().map(str::as_bytes));
        granted(&connection.call_args(&args));
    }
    connection.ok("SELECT 0");
    let mut ownership: Vec<Ownership> = acquisitions
        .iter()
        .map(|&(database, key, token, _)| (database, key, token))
        .collect();
    ownership.dedup();
    ownership
}

/// Asserts that each of these tokens still holds its lock, and that nobody else can acquire it.
#[track_caller]
pub fn assert_held(connection: &mut Connection, ownership: &[Ownership]) {
    for (database, key, token) in ownership {
        connection.ok(&format!("SELECT {database}"));
        let map = connection.call_args(&[b"LOCK.INFO", *key, token]);
        assert_ne!(
            map,
            Value::Null,
            "{} of {}",
            token.escape_ascii(),
            key.escape_ascii()
        );
        let other = connection.call_args(&[b"LOCK.INFO", *key, b"somebody else"]);
        assert_eq!(other, Value::Null);
    }
    connection.ok("SELECT 0");
}

/// The holder of a lock that has one, as LOCK.INFO shows it.
#[track_caller]
pub fn sole_holder(connection: &mut Connection, key: &str) -> Value {
    let info = connection.call(&format!("LOCK.INFO {key}"));
    let holders = info.field("holders");
    assert_eq!(holders.items().len(), 1, "{info:?}");
    holders.items()[0].clone()
}

/// The number of waiters for the lock.
pub fn waiters(connection: &mut Connection, key: &str) -> i64 {
    match connection.call(&format!("LOCK.INFO {key}")) {
        Value::Null => 0,
        info => info.number("waiters"),
    }
}

/// Waits until the lock has this many waiters.
#[track_caller]
pub fn wait_for_waiters(connection: &mut Connection, key: &str, count: i64) {
    wait_until("that many wait", || waiters(connection, key) == count);
}

/// Waits until the key is gone.
#[track_caller]
pub fn wait_until_gone(connection: &mut Connection, key: &str) {
    wait_until("the key is gone", || {
        connection.call(&format!("EXISTS {key}")) == Value::Integer(0)
    });
}

/// The node's fence counter.
pub fn counter(connection: &mut Connection) -> i64 {
    connection.call("LOCK.NODE").number("fence")
}

/// The wall clock in microseconds, as fences count it.
pub fn wall_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("a clock after 1970").as_micros()).expect("a clock before 2255")
}
