//! What an operator should change about this node: logged once at the start, and shown by
//! LOCK.NODE.

use crate::ffi::Ctx;
use crate::server::{self, ReplicaRule};
use crate::{config, node, quarantine, replication};

/// The risk of a node that loses everything in a crash.
const MAY_LOSE_GRANTS: &str = "this node is neither durable (appendonly yes, appendfsync \
     always) nor quarantined (lock.quarantine): a crash may lose grants, and then two clients can \
     hold one lock";

/// The risk of a node that may be replaced.
const NO_QUARANTINE: &str = "min-replicas-to-write is set, but not lock.quarantine: after a \
                             failover two clients may hold one lock";

/// All warnings that apply now.
pub fn collect(ctx: Ctx) -> Vec<String> {
    let mut warnings = Vec::new();
    if node::with(|node| node.table.quarantine.lacks_settings()) {
        warnings.push(quarantine::UNREADABLE_SETTINGS.to_owned());
    }
    let quarantined = config::quarantine().is_some();
    if !quarantined && !server::keeps_grants(ctx) {
        warnings.push(MAY_LOSE_GRANTS.to_owned());
    }
    if !quarantined && config::replica_rule() != ReplicaRule::Off {
        warnings.push(NO_QUARANTINE.to_owned());
    }
    if let Some(policy) = server::eviction_policy().filter(|policy| policy.starts_with("allkeys")) {
        warnings.push(format!(
            "maxmemory-policy {policy} may evict locks that are held: set it to noeviction"
        ));
    }
    warnings.extend(replication::warnings().into_iter().map(str::to_owned));
    warnings
}
