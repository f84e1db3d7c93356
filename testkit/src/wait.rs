//! Waiting for what must happen: a test that waits in vain fails.

use std::time::{Duration, Instant};

use crate::{Connection, PATIENCE, info_field, info_number};

/// Longer than two elections take on a busy machine.
const ELECTIONS: Duration = Duration::from_secs(120);

/// Polls until the condition is true.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_at_most(PATIENCE, what, condition);
}

/// Polls until the condition is true, for what several servers have to agree about first: an
/// election may have to be held twice.
#[track_caller]
pub fn wait_patiently(what: &str, condition: impl FnMut() -> bool) {
    wait_at_most(ELECTIONS, what, condition);
}

#[track_caller]
fn wait_at_most(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < patience,
            "timed out while waiting until {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the replica has applied all that the master has sent so far.
#[track_caller]
pub fn wait_for_sync(master: &mut Connection, replica: &mut Connection) {
    wait_until("the link is up", || {
        info_field(replica, "replication", "master_link_status") == "up"
    });
    let sent = info_number(master, "replication", "master_repl_offset");
    wait_until("the replica has caught up", || {
        info_number(replica, "replication", "slave_repl_offset") >= sent
    });
}
