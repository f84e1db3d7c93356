//! What happens without a request of a client: time, roles, loading, flushes, disconnects, keys
//! that others change, and checks of what no event reports.

mod checks;
mod clients;
mod dataset;
mod keys;
mod role;
mod time;

use std::ffi::c_void;

use clients::on_client_change;
use dataset::{on_flush, on_fork, on_loading, on_swap};
use redis_module::raw;
use redislock_core::fence::MAX_LEAD;
use redislock_core::quarantine::Reason;
use role::on_role_change;
use time::{catch_up, on_cron};

use crate::alarm::{self, OnEvent};
use crate::edge::on_event;
use crate::ffi::{self, Ctx, Level, api};
use crate::{clock, node, quarantine, replication, server, warnings};

/// Subscribes to all events.
pub fn register(ctx: Ctx) -> Result<(), String> {
    alarm::register(catch_up);
    let events: [(u64, OnEvent); 9] = [
        (raw::REDISMODULE_EVENT_CRON_LOOP, on_event!(on_cron)),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            on_event!(on_role_change),
        ),
        (raw::REDISMODULE_EVENT_LOADING, on_event!(on_loading)),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_event!(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, on_event!(on_swap)),
        (
            raw::REDISMODULE_EVENT_CLIENT_CHANGE,
            on_event!(on_client_change),
        ),
        (raw::REDISMODULE_EVENT_FORK_CHILD, on_event!(on_fork)),
        (raw::REDISMODULE_EVENT_CONFIG, on_event!(on_config_change)),
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            on_event!(replication::on_replica_change),
        ),
    ];
    for (id, callback) in events {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: a valid context, during load.
        if unsafe {
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                Some(callback)
            ))
        } != 0
        {
            return Err(format!("the server does not support event {id}"));
        }
    }
    keys::register(ctx)
}

/// The module was loaded. It does not know what it granted before.
pub fn started(ctx: Ctx) {
    let now = clock::mono();
    node::with(|node| {
        node.table.quarantine.enter(Reason::Start, now);
    });
    server::note_role(ctx);
    server::note_aof(ctx);
    server::read_settings(ctx);
    if ctx.has(raw::REDISMODULE_CTX_FLAGS_AOF) && server::may_rewrite_without_preamble() {
        // The AOF has no counter if a replica has rewritten it while there was no lock. No fence
        // that it may have seen is higher than this.
        let ahead = clock::wall().plus(MAX_LEAD);
        node::with(|node| node.table.raise_fence(ahead.0));
    }
    quarantine::check_settings();
    replication::refresh(ctx);
    quarantine::announce();
    for warning in warnings::collect(ctx) {
        ctx.log(Level::Warning, &warning);
    }
}

fn on_config_change(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    node::when_whole(|| {
        if let Some(ctx) = ffi::detached() {
            configuration_has_changed(ctx);
        }
    });
}

fn configuration_has_changed(ctx: Ctx) {
    let syncs_now = server::read_settings(ctx);
    server::note_aof(ctx);
    if syncs_now {
        dataset::may_be_unsynced(ctx);
    }
    quarantine::notice_settings();
    replication::refresh(ctx);
}
