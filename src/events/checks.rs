//! What the module polls, because no event reports it: settings, statistics, listeners, removed
//! locks.

use std::sync::atomic::{AtomicU64, Ordering};

use redislock_core::time::{Micros, MonoTime};

use crate::alarm::wake_soon;
use crate::ffi::Ctx;
use crate::{clock, node, quarantine, removals, server};

/// The time between two checks.
const LOOK_EVERY: Micros = Micros(900_000);
/// The number of removed locks that are logged in one step: a line opens and closes the log file.
const BATCH: usize = 2;

/// Checks what the server does not report, about once a second. The cron runs `hz` times a second.
pub fn run_periodic_checks(ctx: Ctx, now: MonoTime) {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    if now.since(MonoTime(LOOKED.load(Ordering::Relaxed))) >= LOOK_EVERY {
        LOOKED.store(now.0, Ordering::Relaxed);
        look(ctx);
    }
}

fn look(ctx: Ctx) {
    server::note_role(ctx);
    server::note_aof(ctx);
    quarantine::notice_settings();
    if server::statistics_were_reset() {
        node::with(|node| node.reset_statistics());
    }
    if node::with(|node| node.listened_to) {
        let nobody = server::nobody_listens(ctx);
        node::with(|node| node.listened_to = !nobody);
    }
}

/// Counts and logs locks that were removed while they were held, some at a time.
pub fn report_removals(ctx: Ctx) {
    if server::is_replica() {
        // The master has logged what it tells its replicas to remove.
        node::with(|node| node.removals.clear());
    }
    let some = node::with(|node| node.take_removals(BATCH));
    if some.is_empty() {
        return;
    }
    for removal in some {
        // In a cluster, a lock disappears when its slot moves: it is not lost, but on another node.
        if server::is_cluster() && server::is_elsewhere(ctx, removal.key().name()) {
            continue;
        }
        node::with(|node| node.table.counters.removed += 1);
        removals::log(ctx, &removal, clock::mono());
    }
    if node::with(|node| !node.removals.is_empty()) {
        wake_soon();
    }
}
