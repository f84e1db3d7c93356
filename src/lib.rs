//! The Redis and Valkey module around [`redislock_core`].
//!
//! How a request is handled: `command/x.rs` parses bytes into a typed request; core decides, given
//! the state, the request and the time; `keyspace/` applies the decision once, replicates it and
//! sends events about it; the caller and the waiters get their replies. Timers, disconnects and DEL
//! by other clients are handled in the same way (`events/`).
//!
//! | file | subject |
//! |---|---|
//! | `command/` | one file per command: grammar, parsing, replies; `mod.rs` has the table of all |
//! | `events/` | not requests: time, roles, loads, flushes, disconnects, changed keys |
//! | `data_type.rs` | RDB, AOF, digest, free: what the server does with values |
//! | `keyspace/` | the only place that opens keys, applies decisions, replicates, notifies |
//! | `effects.rs` | what is replicated |
//! | `waiters.rs` | blocked clients and their hand-over |
//! | `warnings.rs` | what an operator should change: for the log and LOCK.NODE |
//! | `replication/` | whether another node may be a master at the same time |
//! | `quarantine.rs` | the node's quarantine: log, alarm, unreadable settings |
//! | `reply.rs` | how outcomes are worded, for waiters and for other callers |
//! | `info.rs` | what INFO shows |
//! | `config.rs` | the options, their defaults and ranges |
//! | `node/` | the node's state, and how callbacks reach it |
//! | `removals.rs` | held locks that something other than their holders ended: for the log |
//! | `server.rs` | what the server allows outside a command, and how it is configured |
//! | `alarm.rs` | when the module runs without a request |
//! | `clock.rs` | the clocks |
//! | `edge.rs` | what the server calls, and what happens after a panic |
//! | `global.rs` | the thread model |
//! | `ffi.rs` | the server's API behind safe calls |
//!
//! A file uses only what is below it in this list; every file may use the last six.
//! `tests/structure.rs` has the exact table and checks it.
//!
//! A new option of LOCK.ACQUIRE goes into `command/options.rs` (grammar), `command/describe.rs`
//! (help) and core's `lock/hold.rs` (`Terms`: what it means).

mod alarm;
mod clock;
mod command;
mod config;
mod data_type;
mod edge;
mod effects;
mod events;
mod ffi;
mod global;
mod info;
mod keyspace;
mod node;
mod quarantine;
mod removals;
mod replication;
mod reply;
mod server;
mod waiters;
mod warnings;

use std::ffi::c_int;

use edge::edge;
use ffi::{Args, Ctx, Level, api, there};
use redis_module::raw;

/// The module's name, which is also the prefix of its options and INFO sections.
const NAME: &std::ffi::CStr = c"lock";

/// The server refuses a name that is in use. This happens if a second loadmodule line was added by
/// hand, or by CONFIG REWRITE to a file that includes the first one.
const LOADED_TWICE: &str = "redislock was not loaded: a module named lock is already loaded; \
     keep one loadmodule line in redis.conf and in the files that it includes";

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// What the server calls when it loads the module.
///
/// # Safety
/// Called by the server with a valid context and arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let api_version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: as the server promises; nothing is allocated before this.
    if unsafe { raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), version_number(), api_version) }
        != raw::REDISMODULE_OK as c_int
    {
        if there!(RedisModule_Log) {
            // SAFETY: the context of this callback.
            unsafe { Ctx::new(ctx) }.log(Level::Warning, LOADED_TWICE);
        }
        return raw::REDISMODULE_ERR as c_int;
    }
    // SAFETY: the context of this callback.
    ffi::detach(unsafe { Ctx::new(ctx) });
    edge::log_panics();
    #[cfg(feature = "failpoints")]
    if let Ok(edge) = std::env::var("REDISLOCK_FAILPOINT") {
        edge::failpoint::arm(&edge);
    }
    let loaded = edge!(on_load as fn(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, or raw::REDISMODULE_ERR as c_int)(ctx, argv, argc);
    if loaded != raw::REDISMODULE_OK as c_int {
        ffi::not_loaded();
    }
    loaded
}

/// Loads the module, or logs why it cannot be loaded.
fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the arguments of this callback.
    let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
    match load(ctx, args) {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(reason) => {
            ctx.log(
                Level::Warning,
                &format!("redislock was not loaded: {reason}"),
            );
            raw::REDISMODULE_ERR as c_int
        }
    }
}

fn load(ctx: Ctx, args: Args<'_>) -> Result<(), String> {
    check_server()?;
    node::started();
    data_type::register(ctx)?;
    command::register(ctx)?;
    config::register(ctx, args)?;
    events::register(ctx)?;
    info::register(ctx);
    // Values that cannot be read are refused one by one; keys are signalled when they have changed
    // and not before; and a slot's locks may be moved by rewriting them (Valkey 9 asks for bit 5).
    let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
    // SAFETY: a valid context, during load.
    unsafe {
        api!(RedisModule_SetModuleOptions(
            ctx.raw(),
            (options | HANDLE_ATOMIC_SLOT_MIGRATION) as c_int
        ))
    };
    let version = env!("CARGO_PKG_VERSION");
    ctx.log(
        Level::Notice,
        &format!("redislock {version}: {}", config::summary()),
    );
    alarm::while_starting(|| events::started(ctx));
    Ok(())
}

/// Valkey 9 migrates slots only if all modules declare that they support it.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// Redis 7.0 and Valkey 7.2 have all that is needed. Older servers lack some of these functions.
fn check_server() -> Result<(), String> {
    let there = there!(RedisModule_RegisterNumericConfig)
        && there!(RedisModule_SetCommandInfo)
        && there!(RedisModule_GetDbIdFromIO)
        && there!(RedisModule_GetDbIdFromModuleKey)
        && there!(RedisModule_KeyAtPosWithFlags)
        && there!(RedisModule_ReplyWithMap)
        && there!(RedisModule_EventLoopAddOneShot);
    if there {
        Ok(())
    } else {
        Err("this server is too old: redislock needs Redis 7.0 or Valkey 7.2, or later".into())
    }
}

/// 0.2.0 as 200: what MODULE LIST shows.
fn version_number() -> c_int {
    let number = |part: &str| part.parse::<c_int>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}
