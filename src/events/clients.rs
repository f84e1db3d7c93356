//! Clients that disconnect.

use std::ffi::c_void;

use redis_module::raw;
use redislock_core::time::from_millis;

use crate::alarm::wake_soon;
use crate::config::EPHEMERAL_GRACE;
use crate::{clock, node};

pub fn on_client_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    change: u64,
    info: *mut c_void,
) {
    if change != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: with this event comes this structure.
    let Some(info) = (unsafe { info.cast::<raw::RedisModuleClientInfo>().as_ref() }) else {
        return;
    };
    let bound = node::with(|node| {
        let bound = node.table.is_bound(info.id);
        if bound {
            let now = clock::now();
            let end = now.mono.plus(from_millis(EPHEMERAL_GRACE.get()));
            node.table.hang_up(info.id, end, now);
        }
        bound
    });
    if bound {
        wake_soon();
    }
}
