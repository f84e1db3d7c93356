//! A server that stood still: in a cluster, another node may have become the master meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::quarantine::Reason;
use redislock_core::time::{Micros, MonoTime};

use crate::ffi::Ctx;
use crate::{node, quarantine, server};

/// When the server's cron last ran.
static TICKED: AtomicU64 = AtomicU64::new(u64::MAX);
/// A server whose cron did not run for this long stood still. (`hz 1` is once a second.)
const STANDSTILL: Micros = Micros(1_500_000);
/// How long a cluster node that stood still waits, to learn whether it was replaced.
const REPLACEMENT_NOTICE: Micros = Micros(2_000_000);

/// The server's cron has run, or the server was busy with a known task.
pub fn note_tick(now: MonoTime) {
    TICKED.store(now.0, Ordering::Relaxed);
}

/// A server that stood still reads requests of clients before it learns that it was replaced. So in
/// a cluster without the rule for replicas, it grants nothing until it must have learned that.
pub fn check(ctx: Ctx, now: MonoTime) {
    let ticked = MonoTime(TICKED.load(Ordering::Relaxed));
    if now.since(ticked) <= STANDSTILL {
        return;
    }
    note_tick(now);
    if server::is_cluster() && !super::is_on() && ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER) {
        node::with(|node| {
            let quarantine = &mut node.table.quarantine;
            quarantine.enter_for(Reason::Standstill, REPLACEMENT_NOTICE, now);
        });
        quarantine::announce();
    }
}
