//! The dataset as a whole: it is loaded, flushed, swapped, saved.

use std::ffi::c_void;

use redis_module::raw;
use redislock_core::quarantine::Reason;

use crate::alarm::wake_soon;
use crate::ffi::{Ctx, Level, log};
use crate::node::{self, Notice};
use crate::replication::standstill;
use crate::{clock, quarantine, server};

pub fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    stage: u64,
    _: *mut c_void,
) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    let now = clock::mono();
    // A replica turns its AOF off while it loads what its master sent.
    server::note_aof(ctx);
    if stage != raw::REDISMODULE_SUBEVENT_LOADING_ENDED
        && stage != raw::REDISMODULE_SUBEVENT_LOADING_FAILED
    {
        return node::with(|node| node.table.loading_began(now));
    }
    let is_master = ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER);
    standstill::note_tick(now);
    let waits = node::with(|node| {
        node.table.loading_ended(now);
        // What the AOF says again was logged when it happened.
        node.removals.clear();
        node.counter_is_due = true;
        node.listened_to = true;
        if is_master {
            // What is remembered may be longer than what is configured.
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

/// Grants may not be on disk yet. The fence counter is written once more: what follows is fsync.
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
    let now = clock::now();
    let before = node::with(|node| node.table.locks());
    let quarantined = node::with(|node| {
        let left = node.table.flushed(u32::try_from(db).ok(), now);
        let before = node.table.quarantine.left(now.mono);
        node.table
            .quarantine
            .enter_for(Reason::Flush, left, now.mono);
        before != node.table.quarantine.left(now.mono)
    });
    let flushed = before - node::with(|node| node.table.locks());
    // A replica that takes its master's data over flushes its own.
    if flushed > 0 && !server::is_replica() {
        node::with(|node| node.table.counters.removed += flushed as u64);
        log(Level::Warning, &format!("a flush removed {flushed} locks"));
    }
    if quarantined {
        quarantine::announce();
    }
    wake_soon();
}

pub fn on_swap(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, info: *mut c_void) {
    // SAFETY: with this event comes this structure.
    if let Some(info) = unsafe { info.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
        node::with(|node| {
            node.table
                .swapped(info.dbnum_first as u32, info.dbnum_second as u32)
        });
        wake_soon();
    }
}

/// The server saves, rewrites or hands a slot over in a child. A rewrite without an RDB preamble
/// has no place for the fence counter, so it goes into the stream once more. Only then: an effect
/// without keys is of no slot, and Valkey 9 gives a slot's migration up when it meets one.
pub fn on_fork(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, stage: u64, _: *mut c_void) {
    if stage == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        let counter_is_due = server::may_rewrite_without_preamble();
        node::post(Notice::Forked { counter_is_due });
        wake_soon();
    }
}
