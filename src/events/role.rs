//! The server becomes a master or a replica.

use std::ffi::c_void;

use redis_module::raw;
use redislock_core::quarantine::Reason;

use crate::alarm::wake_soon;
use crate::ffi::{self, Ctx};
use crate::{clock, keyspace, node, quarantine, replication, server};

pub fn on_role_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    role: u64,
    _: *mut c_void,
) {
    // SAFETY: the context of this callback.
    server::note_role(unsafe { Ctx::new(ctx) });
    node::when_whole(move || {
        if let Some(ctx) = ffi::detached() {
            has_changed(ctx, role);
        }
    });
}

fn has_changed(ctx: Ctx, role: u64) {
    keyspace::decide_event(ctx, |node, _, _| node.role_changed());
    if role == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
        let now = clock::mono();
        let wait = replication::promoted(ctx);
        node::with(|node| {
            let quarantine = &mut node.table.quarantine;
            quarantine.enter(Reason::Promotion, now);
            if let Some(wait) = wait {
                quarantine.enter_until(Reason::Promotion, now.plus(wait));
            }
        });
        quarantine::announce();
        wake_soon();
    } else {
        replication::refresh(ctx);
    }
}
