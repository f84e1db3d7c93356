//! A server that stood still: in a cluster another node may have been made the master meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::quarantine::Reason;
use redislock_core::time::{Micros, MonoTime};

use crate::ffi::Ctx;
use crate::{node, quarantine, server};

/// When the server's cron last came by.
static TICKED: AtomicU64 = AtomicU64::new(u64::MAX);
/// A server whose cron did not come by for this long stood still. (`hz 1` is once a second.)
const STANDSTILL: Micros = Micros(1_500_000);
/// How long a node of a cluster that stood still waits for the news that it was replaced.
const REPLACEMENT_NOTICE: Micros = Micros(2_000_000);

/// The server's cron has come by, or the server was busy with what it knows of.
pub fn note_tick(now: MonoTime) {
    TICKED.store(now.0, Ordering::Relaxed);
}

/// A server that stood still finds what clients have sent meanwhile before it finds that it was
/// replaced. So in a cluster, where replicas are not asked, it grants nothing until it must have
/// heard of that.
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
