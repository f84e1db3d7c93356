//! What an operator should change about this node: logged once at the start, and shown by LOCK.NODE.

use crate::{node, server};

/// Why a node whose settings cannot be read does not grant.
pub const UNREADABLE_SETTINGS: &str = "min-replicas-to-write and min-replicas-max-lag cannot be read, because CONFIG is \
     renamed: no lock is granted until lock.min-replicas and lock.max-lag repeat them (in redis.conf; read at the start)";

/// All that applies now.
pub fn collect() -> Vec<String> {
    let mut warnings = Vec::new();
    if node::with(|node| node.table.quarantine.lacks_settings()) {
        warnings.push(UNREADABLE_SETTINGS.to_owned());
    }
    if let Some(policy) = server::eviction_policy().filter(|policy| policy.starts_with("allkeys")) {
        warnings.push(format!(
            "maxmemory-policy {policy} may evict locks that are held: set it to noeviction"
        ));
    }
    warnings
}
