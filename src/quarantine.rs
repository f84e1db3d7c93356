//! The node's quarantine, as the server and operators see it: its start is logged, and the module
//! wakes up at its end.

use redislock_core::quarantine::Reason;

use crate::ffi::{Level, log};
use crate::reply::why;
use crate::server::ReplicaRule;
use crate::{alarm, clock, config, node};

/// Why a node does not grant if its settings cannot be read.
pub const UNREADABLE_SETTINGS: &str = "min-replicas-to-write and min-replicas-max-lag cannot be \
     read, because CONFIG is renamed: no lock is granted until lock.min-replicas and lock.max-lag \
     have the same values in redis.conf and the server is restarted";

/// Logs the current quarantine, if there is one, and sets the alarm for its end.
pub fn announce() {
    let left = node::with(|node| node.table.quarantine.left(clock::mono()));
    if let Some((left, reason)) = left {
        if reason == Reason::Settings {
            // Logged when it was noticed; it has no end to wake up for.
            return;
        }
        let text = format!(
            "quarantine for {} ms {}: no lock is granted until then",
            left.to_millis().0,
            why(reason)
        );
        log(Level::Warning, &text);
        alarm::wake_at(clock::mono().plus(left));
    }
}

/// Stops granting while a setting that decides the length of a quarantine cannot be read. Returns
/// whether that has changed.
pub fn check_settings() -> bool {
    let readable = config::replica_rule() != ReplicaRule::Unknown;
    node::with(|node| {
        let quarantine = &mut node.table.quarantine;
        quarantine.settings_are_readable(readable, clock::mono())
    })
}

/// Checks settings that may have changed.
pub fn notice_settings() {
    if !check_settings() {
        return;
    }
    if node::with(|node| node.table.quarantine.lacks_settings()) {
        log(Level::Warning, UNREADABLE_SETTINGS);
    }
    alarm::wake_soon();
}
