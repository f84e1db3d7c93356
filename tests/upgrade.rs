//! The ways to upgrade the module with locks held that docs/OPERATIONS.md describes.

use std::fs;

use redislock_testkit::lock::{all_locks, arrange, assert_held, wait_for_waiters};
use redislock_testkit::{
    Server, Value, granted, module_path, refused, wait_for_sync, wait_patiently,
};

use crate::interruptions::wait_until_online;

/// The new file in place in one step, the replica first, then a failover, then the old master.
#[test]
fn an_upgrade_with_a_replica_keeps_what_is_held() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let module = folder.path().join("redislock.so");
    let put_in_place = || {
        let new = folder.path().join("redislock.so.new");
        fs::copy(module_path(), &new).expect("a copy of the module");
        fs::rename(&new, &module).expect("the copy is put in place");
    };
    put_in_place();
    let options = Server::options()
        .without_module()
        .config(&format!("loadmodule {}", module.display()));
    let mut master = options.clone().start();
    let mut replica = options.replica_of(&master).start();
    let mut m = master.connect();
    refused(&m.call("MODULE UNLOAD lock"), "ERR");
    let ownership = arrange(&mut m);
    let mut tied = master.connect();
    granted(&tied.call("LOCK.ACQUIRE tied me 600000 EPHEMERAL"));
    let mut waiter = master.connect();
    waiter.send("LOCK.ACQUIRE plain waiter 1000 BLOCK 0");
    wait_for_waiters(&mut m, "plain", 1);
    let before = all_locks(&mut m);
    put_in_place();
    replica.restart();
    let mut r = replica.connect();
    wait_for_sync(&mut m, &mut r);
    wait_until_online(&mut m);
    m.ok(&format!("FAILOVER TO 127.0.0.1 {}", replica.port()));
    wait_patiently("the replica is the master", || {
        r.call("LOCK.NODE").field("role").text() == "master"
    });
    assert!(waiter.receive().is_error());
    drop(tied);
    drop(m);
    // As CONFIG REWRITE would have noted: it comes back as what it is now.
    master.reconfigure(|options| options.replica_of(&replica));
    master.restart();
    wait_for_sync(&mut r, &mut master.connect());
    for c in [&mut r, &mut master.connect()] {
        assert_eq!(all_locks(c), before);
        assert_held(c, &ownership);
    }
    assert_eq!(r.call("LOCK.RELEASE tied me"), Value::Integer(1));
}

/// Without a replica: SHUTDOWN SAVE and start again.
#[test]
fn an_upgrade_without_a_replica_keeps_what_is_held() {
    let mut server = Server::start();
    let mut c = server.connect();
    let ownership = arrange(&mut c);
    let before = all_locks(&mut c);
    let mut waiter = server.connect();
    waiter.send("LOCK.ACQUIRE plain waiter 1000 BLOCK 0");
    wait_for_waiters(&mut c, "plain", 1);
    c.send("SHUTDOWN SAVE");
    assert!(server.wait_for_the_end().success());
    assert!(waiter.is_closed());
    server.start_again();
    let mut c = server.connect();
    assert_eq!(all_locks(&mut c), before);
    assert_held(&mut c, &ownership);
}
