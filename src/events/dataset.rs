//! The dataset as a whole: it is loaded, flushed, swapped, saved.

use std::collections::VecDeque;
use std::ffi::c_void;

use redis_module::raw;
use redislock_core::quarantine::Reason;
use redislock_core::time::MonoTime;

use crate::alarm::wake_soon;
use crate::ffi::{self, Ctx, Level, log};
use crate::node::{self, Flush, Notice};
use crate::replication::standstill;
use crate::{clock, keyspace, quarantine, server};

pub fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    stage: u64,
    _: *mut c_void,
) {
    // A replica turns its AOF off while it loads what its master sent.
    // SAFETY: the context of this callback.
    server::note_aof(unsafe { Ctx::new(ctx) });
    let now = clock::mono();
    node::when_whole(move || {
        if let Some(ctx) = ffi::detached() {
            loads(ctx, stage, now);
        }
    });
}

/// Loading has begun or ended at `now`.
fn loads(ctx: Ctx, stage: u64, now: MonoTime) {
    if stage != raw::REDISMODULE_SUBEVENT_LOADING_ENDED
        && stage != raw::REDISMODULE_SUBEVENT_LOADING_FAILED
    {
        return node::with(|node| node.table.loading_began(now));
    }
    let is_master = ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER);
    standstill::note_tick(now);
    let waits = node::with(|node| {
        node.table.loading_ended(now);
        // What the AOF repeats was logged when it happened.
        node.removals = VecDeque::new();
        node.counter_is_due = true;
        node.listened_to = true;
        if is_master {
            // The saved quarantine may be longer than the configured one.
            node.table.quarantine.enter(Reason::Start, now);
        }
        node.table.quarantine.left(now).is_some()
    });
    may_be_unsynced(ctx);
    if is_master && waits {
        quarantine::announce();
    }
    wake_soon();
}

/// Grants may not be on disk yet. The fence counter is written again, so that an fsync follows.
pub fn may_be_unsynced(ctx: Ctx) {
    let has_granted = node::with(|node| node.table.fence() > 0);
    if has_granted && ctx.has(raw::REDISMODULE_CTX_FLAGS_AOF) {
        server::note_unsynced();
        node::with(|node| node.counter_is_due = true);
        wake_soon();
    }
}

pub fn on_flush(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    stage: u64,
    info: *mut c_void,
) {
    if stage != raw::REDISMODULE_SUBEVENT_FLUSHDB_START {
        return;
    }
    // SAFETY: with this event comes this structure.
    let db =
        unsafe { info.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map_or(-1, |info| info.dbnum);
    keyspace::note_foreign_change();
    node::move_databases(Notice::Flushed(u32::try_from(db).ok(), clock::now()));
    node::when_whole(report_flush);
    wake_soon();
}

/// Counts and logs the consequences of a flush.
fn report_flush() {
    let Flush { locks, quarantines } = node::with(|node| std::mem::take(&mut node.flush));
    // A replica flushes its own data before it loads that of its master.
    if locks > 0 && !server::is_replica() {
        node::with(|node| node.table.counters.removed += locks as u64);
        log(Level::Warning, &format!("a flush removed {locks} locks"));
    }
    if quarantines {
        quarantine::announce();
    }
}

pub fn on_swap(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, info: *mut c_void) {
    // SAFETY: with this event comes this structure.
    if let Some(info) = unsafe { info.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
        let (a, b) = (info.dbnum_first as u32, info.dbnum_second as u32);
        keyspace::note_foreign_change();
        node::move_databases(Notice::Swapped(a, b));
        wake_soon();
    }
}

/// The server saves, rewrites or hands a slot over in a child. A rewrite without an RDB preamble
/// has no place for the fence counter, so the counter is sent into the stream again. Only then: an
/// effect without keys belongs to no slot, and Valkey 9 aborts the migration of a slot when it
/// finds one.
pub fn on_fork(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, stage: u64, _: *mut c_void) {
    if stage == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        let counter_is_due = server::may_rewrite_without_preamble();
        node::post(Notice::Forked { counter_is_due });
        wake_soon();
    }
}
