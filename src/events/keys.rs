//! Events about keys that others remove, move or change.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use redis_module::raw;
use redislock_core::token::Key;

use crate::alarm::wake_soon;
use crate::clock;
use crate::config::LEGACY_STRINGS;
use crate::edge::edge;
use crate::ffi::{self, Arg, Ctx, api};
use crate::keyspace;
use crate::node::{self, More, Notice};
use crate::removals::{Caller, Cause};
use crate::server;

/// The database that MOVE takes a key from.
static MOVED_FROM: AtomicU32 = AtomicU32::new(0);

/// Subscribes to the events.
pub fn register(ctx: Ctx) -> Result<(), String> {
    let mut kinds = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EVICTED;
    if LEGACY_STRINGS.is_on() {
        kinds |= raw::REDISMODULE_NOTIFY_EXPIRED;
    }
    // SAFETY: a valid context, during load.
    if unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(
            ctx.raw(),
            kinds as c_int,
            Some(edge!(on_keyspace as fn(
                ctx: *mut raw::RedisModuleCtx,
                class: c_int,
                event: *const std::ffi::c_char,
                name: *mut raw::RedisModuleString,
            ) -> c_int, or raw::REDISMODULE_OK as c_int))
        ))
    } != 0
    {
        return Err("the server does not support keyspace events for modules".into());
    }
    Ok(())
}

/// Values that get another name, deletions and evictions, and changes of strings.
fn on_keyspace(
    ctx: *mut raw::RedisModuleCtx,
    _: c_int,
    event: *const std::ffi::c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the arguments of this callback: a C string and a valid string.
    let (ctx, event, name) = unsafe {
        (
            Ctx::new(ctx),
            std::ffi::CStr::from_ptr(event).to_bytes(),
            Arg::new(name),
        )
    };
    if LEGACY_STRINGS.is_on() && node::anyone_waits() {
        let key = Key::new(ctx.db(), name.bytes());
        if node::waits_for_string(&key) {
            node::post(Notice::StringChanged(key));
            wake_soon();
        }
    }
    match event {
        b"move_from" => MOVED_FROM.store(ctx.db(), Ordering::Relaxed),
        b"rename_to" | b"move_to" | b"restore" => {
            keyspace::note_foreign_change();
            node::is_not_deleted(name.bytes());
            if let Some((id, key)) = keyspace::lock_at(ctx, name) {
                node::forget_unlinked(id);
                node::post(Notice::Attached(id, key));
                wake_soon();
            }
            if event == b"move_to" {
                // Valkey before 9.1 runs this callback on the client that moved and would leave it
                // in the other database.
                ctx.select(MOVED_FROM.load(Ordering::Relaxed));
            }
        }
        b"evicted" => {
            if let Some(id) = node::just_unlinked(name.bytes()) {
                node::post(Notice::RemovedBy(id, Cause::Eviction, None));
                node::read_notices();
            }
        }
        b"del" => {
            let by = ffi::time_of_command().unwrap_or(0);
            if let Some(id) = node::just_deleted(name.bytes(), by) {
                node::post(Notice::RemovedBy(id, Cause::Deletion, Caller::of(ctx)));
            }
        }
        b"copy_to" => node::is_not_deleted(name.bytes()),
        _ => {}
    }
    raw::REDISMODULE_OK as c_int
}

/// Lets core check strings that were changed or that have expired, at most this many. In a cluster,
/// such a key may have moved to another node: then its waiters must try again, as with a lock that
/// has moved.
pub fn look_at_strings(ctx: Ctx, most: usize) -> More {
    let (more, due) = node::with(|node| {
        let more = node.note_changed_strings(most);
        (more, node.table.strings_due(most, clock::mono()))
    });
    for key in due {
        let moved = server::is_cluster() && server::is_elsewhere(ctx, key.name());
        node::with(|node| {
            if moved {
                node.table.unblock_queue(&key);
            }
            node.table.string_may_be_gone(&key);
        });
    }
    more
}
