//! Disks that fail: nothing is granted without its effect being written where the configuration
//! promises it, by a command or behind its back, and what was acknowledged before is there
//! afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redislock_testkit::lock::wait_for_waiters;
use redislock_testkit::{
    Connection, Disk, Server, Value, granted, info_field, refused, wait_until,
};

/// Long enough for the set-up around it on a busy machine.
const SOON: i64 = 1000;

/// A server with an AOF on its own disk. Drop the disk first.
pub fn on_a_small_disk(fsync: &str) -> (Server, Disk) {
    Disk::ignore_the_signal();
    let mut server = Server::options()
        .config("auto-aof-rewrite-percentage 0")
        .config("enable-protected-configs yes")
        .start();
    let mut disk = Disk::under(&server);
    let mut c = server.connect();
    c.ok(&format!("CONFIG SET appendfsync {fsync}"));
    c.ok("CONFIG SET appendonly yes");
    crate::persistence::wait_for_rewrite(&mut c);
    // Redis 7.0 leaves a hole in the file after a failed write, unless it had the file when it
    // started.
    server.reconfigure(|options| options.appendonly(fsync));
    server.kill();
    server.start_again();
    disk.serves(&server);
    (server, disk)
}

pub fn status(c: &mut Connection) -> String {
    info_field(c, "persistence", "aof_last_write_status")
}

/// Every command that would need to be written is refused, and those who wait are not served by the
/// clock either.
fn nothing_is_granted(c: &mut Connection, waiter: &mut Connection) {
    for line in [
        "LOCK.ACQUIRE other me 1000",
        "LOCK.ACQUIRE other me 1000 BLOCK 0",
        "LOCK.MACQUIRE 2 one other me 1000",
        "LOCK.EXTEND kept me 600000",
        "LOCK.RELEASE kept me",
    ] {
        refused(&c.call(line), "MISCONF");
    }
    wait_until("the lease is over", || {
        c.call("LOCK.INFO job holder") == Value::Null
    });
    assert!(
        waiter.is_silent_for(Duration::from_millis(300)),
        "granted without being written"
    );
    assert_ne!(c.call("LOCK.INFO kept me"), Value::Null);
    assert_eq!(c.call("EXISTS other"), Value::Integer(0));
}

/// One lock that stays, one whose lease ends soon, and one who waits for that.
fn hold_and_wait(server: &Server, c: &mut Connection) -> Connection {
    granted(&c.call("LOCK.ACQUIRE kept me 600000"));
    granted(&c.call(&format!("LOCK.ACQUIRE job holder {SOON}")));
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE job waiter 600000 BLOCK 0");
    wait_for_waiters(c, "job", 1);
    waiter
}

pub fn fill_until_a_write_fails(disk: &Disk, c: &mut Connection) {
    disk.fill();
    // What is left of the last page must not be enough.
    let value = "x".repeat(5000);
    wait_until("a write fails", || {
        c.call(&format!("SET string {value}"));
        status(c) == "err"
    });
}

#[test]
fn a_full_disk_grants_nothing_until_there_is_room_again() {
    let (mut server, disk) = on_a_small_disk("everysec");
    let mut c = server.connect();
    let mut waiter = hold_and_wait(&server, &mut c);
    fill_until_a_write_fails(&disk, &mut c);
    nothing_is_granted(&mut c, &mut waiter);
    disk.free();
    wait_until("writing works again", || status(&mut c) == "ok");
    let fence = granted(&waiter.receive());
    wait_until("all is on the disk", || {
        granted(&c.call("LOCK.EXTEND kept me 600000"));
        info_field(&mut c, "persistence", "aof_pending_bio_fsync") == "0"
    });
    drop(c);
    server.kill();
    server.start_again();
    let mut c = server.connect();
    assert_ne!(c.call("LOCK.INFO kept me"), Value::Null);
    assert_eq!(c.call("LOCK.INFO job waiter").number("fence"), fence);
}

/// Under `always` the server gives up rather than acknowledge what is not written.
#[test]
fn a_full_disk_acknowledges_nothing_under_always() {
    let (mut server, disk) = on_a_small_disk("always");
    let mut c = server.connect();
    let fence = granted(&c.call("LOCK.ACQUIRE kept me 600000"));
    disk.fill();
    let mut acknowledged = Vec::new();
    // Far more than what is left of the last page can take.
    for n in 0..1000 {
        let label = "x".repeat(256);
        c.send(&format!("LOCK.ACQUIRE job-{n} me 600000 OWNER {label}"));
        match c.try_receive() {
            Ok(reply) => acknowledged.push(granted(&reply)),
            Err(_) => break,
        }
    }
    wait_until("the server has given up", || !server.is_alive());
    server.wait_for_the_end();
    disk.free();
    server.start_again();
    let mut c = server.connect();
    assert_eq!(c.call("LOCK.INFO kept me").number("fence"), fence);
    for (n, fence) in acknowledged.into_iter().enumerate() {
        let hold = c.call(&format!("LOCK.INFO job-{n} me"));
        assert_ne!(hold, Value::Null, "job-{n} was acknowledged");
        assert_eq!(hold.number("fence"), fence);
    }
}

/// A snapshot that cannot be made: a folder stands where its file should go.
fn spoil_snapshots(server: &Server) -> PathBuf {
    let path = server.folder().join("dump.rdb");
    fs::create_dir(&path).expect("a folder in the way");
    fs::write(path.join("in the way"), "").expect("a file in it");
    path
}

fn save(c: &mut Connection, until: &str) {
    wait_until("a snapshot was tried", || {
        let _ = c.call("BGSAVE");
        info_field(c, "persistence", "rdb_bgsave_in_progress") == "0"
            && info_field(c, "persistence", "rdb_last_bgsave_status") == until
    });
}

fn clear(path: &Path) {
    fs::remove_dir_all(path).expect("the folder goes");
}

#[test]
fn snapshots_that_fail_grant_nothing_until_one_is_made() {
    let server = Server::options().config("save 3600 1000000").start();
    let mut c = server.connect();
    let mut waiter = hold_and_wait(&server, &mut c);
    let path = spoil_snapshots(&server);
    save(&mut c, "err");
    nothing_is_granted(&mut c, &mut waiter);
    clear(&path);
    save(&mut c, "ok");
    granted(&waiter.receive());
}

/// An operator who switches the server's protection off has decided that snapshots may fail.
#[test]
fn snapshots_that_may_fail_stop_nobody() {
    let server = Server::options()
        .config("save 3600 1000000")
        .config("stop-writes-on-bgsave-error no")
        .start();
    let mut c = server.connect();
    let mut waiter = hold_and_wait(&server, &mut c);
    spoil_snapshots(&server);
    save(&mut c, "err");
    granted(&c.call("LOCK.ACQUIRE other me 1000"));
    granted(&waiter.receive());
}
