//! Clients that disconnect.

use std::ffi::c_void;

use redis_module::raw;
use redislock_core::time::Now;

use crate::alarm::wake_soon;
use crate::{clock, config, node};

pub fn on_client_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    change: u64,
    info: *mut c_void,
) {
    if change != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: this event comes with this structure.
    let Some(info) = (unsafe { info.cast::<raw::RedisModuleClientInfo>().as_ref() }) else {
        return;
    };
    let (id, now) = (info.id, clock::now());
    node::when_whole(move || has_closed(id, now));
}

/// A connection was closed at `now`: its ephemeral holds end.
fn has_closed(id: u64, now: Now) {
    let bound = node::with(|node| {
        let bound = node.table.is_bound(id);
        if bound {
            let end = now.mono.plus(config::ephemeral_grace().to_micros());
            node.table.hang_up(id, end, now);
        }
        bound
    });
    if bound {
        wake_soon();
    }
}
