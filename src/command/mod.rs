//! The commands: one table, and one way for the server to call them. The first lines of each file
//! show the grammar; the file parses the request, asks core and replies.

mod acquire;
mod apply;
mod describe;
#[cfg(feature = "failpoints")]
mod entries;
mod extend;
#[cfg(feature = "failpoints")]
mod fail;
mod force;
mod guard;
mod help;
mod info;
mod node;
mod options;
mod probe;
mod release;
mod several;

use std::ffi::{CStr, c_int};

use redis_module::raw;

use crate::edge::{self, edge};
use crate::effects::APPLY;
use crate::ffi::{Args, Ctx, api};
use crate::reply::{self, Failure};
use crate::{keyspace, server};

type Handler = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// Where a command's keys are.
#[derive(Clone, Copy)]
enum Keys {
    None,
    /// The first argument, used with these `REDISMODULE_CMD_KEY_*`.
    First(u32),
    /// The first argument is their number; they follow it.
    Numbered(u32),
    /// All from the second argument on.
    FromSecond(u32),
}

/// Everything that the module and the server need to know about a command.
pub struct Command {
    name: &'static CStr,
    handler: Handler,
    flags: &'static CStr,
    categories: &'static CStr,
    arity: c_int,
    keys: Keys,
    /// What follows the name; empty for a command that users do not see.
    grammar: &'static str,
    summary: &'static CStr,
    complexity: &'static CStr,
}

/// Where a command may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// It changes locks for a client: on a master that has not failed, even if the server lets a
    /// replica write.
    OnMaster,
    /// The same, and on any node if it comes from the master or the AOF.
    OnMasterOrReplicated,
    /// Everywhere, even after an internal failure: it grants nothing.
    Everywhere,
    /// The same, and in the middle of a change: it does not use the locks.
    Always,
}

/// Wraps the function of a command for the server. A command that changes locks for a client is a
/// `handler!(master ...)`.
macro_rules! handler {
    (master $function:path) => {
        handler!($function, Served::OnMaster)
    };
    (replicated $function:path) => {
        handler!($function, Served::OnMasterOrReplicated)
    };
    ($function:path) => {
        handler!($function, Served::Everywhere)
    };
    (always $function:path) => {
        handler!($function, Served::Always)
    };
    ($function:path, $served:expr) => {
        edge!(
            stringify!($function),
            |ctx: *mut raw::RedisModuleCtx,
             argv: *mut *mut raw::RedisModuleString,
             argc: c_int| -> c_int {
                // SAFETY: the arguments of this callback, valid during it.
                let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
                run(ctx, args, $served, $function)
            },
            or refuse(ctx)
        )
    };
}

const READ: u32 = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS;
const TAKE: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_INSERT;
const CHANGE: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;
const DROP: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_DELETE;

/// Every command, in the order of LOCK.HELP.
pub static COMMANDS: &[Command] = &[
    Command {
        name: c"lock.acquire",
        handler: handler!(master acquire::acquire),
        flags: c"write deny-oom fast blocking",
        categories: c"write fast blocking",
        arity: -4,
        keys: Keys::First(TAKE),
        grammar: describe::ACQUIRE,
        summary: c"Acquires a lock, or re-enters it, and replies with its fence; null if it is \
                   not available",
        complexity: c"O(1); O(log(N)) with N waiters or shared holders. By an owner of H locks \
                      that others wait for: O(A*H) with A waiters ahead, and O(R) with R waiters \
                      and holders that it depends on if it would wait",
    },
    Command {
        name: c"lock.release",
        handler: handler!(replicated release::release),
        flags: c"write fast",
        categories: c"write fast",
        arity: -3,
        keys: Keys::First(DROP),
        grammar: "key token [ALL]",
        summary: c"Removes one hold of the token, or all of them, and hands a free lock to the \
                   next waiter; null if the token does not hold it",
        complexity: c"O(1); O(log(N)) with N waiters or shared holders. If the first waiter waits \
                      for M keys: O(min(M,N)), and O(M) when it is granted, or O(M+N) if these are \
                      full semaphores whose holders wait themselves",
    },
    Command {
        name: c"lock.extend",
        handler: handler!(master extend::extend),
        flags: c"write fast",
        categories: c"write fast",
        arity: -4,
        keys: Keys::First(CHANGE),
        grammar: "key token ttl-ms [FENCE at-least]",
        summary: c"Extends the lease of the token's hold and replies with its fence; null if not \
                   held",
        complexity: c"O(1); O(log(N)) with N shared holders",
    },
    Command {
        name: c"lock.macquire",
        handler: handler!(master several::macquire),
        flags: c"write deny-oom blocking getkeys-api",
        categories: c"write slow blocking",
        arity: -5,
        keys: Keys::Numbered(TAKE),
        grammar: describe::MACQUIRE,
        summary: c"Acquires all of the locks or none, and replies with their fences",
        complexity: c"O(K) with K keys. By an owner of H locks that others wait for: O(A*(K+H)) \
                      with A waiters ahead, and O(K+R) with R waiters and holders that it depends \
                      on if it would wait",
    },
    Command {
        name: c"lock.mrelease",
        handler: handler!(master several::mrelease),
        flags: c"write getkeys-api",
        categories: c"write slow",
        arity: -4,
        keys: Keys::Numbered(DROP),
        grammar: "numkeys key [key ...] token [ALL]",
        summary: c"Releases each of the locks and replies as LOCK.RELEASE would for each",
        complexity: c"O(K) with K keys, or O(K+N) with N waiters if these were full semaphores \
                      whose holders wait themselves",
    },
    Command {
        name: c"lock.mextend",
        handler: handler!(master several::mextend),
        flags: c"write getkeys-api",
        categories: c"write slow",
        arity: -5,
        keys: Keys::Numbered(CHANGE),
        grammar: "numkeys key [key ...] token ttl-ms [FENCE at-least]",
        summary: c"Extends each of the leases and replies as LOCK.EXTEND would for each",
        complexity: c"O(K) with K keys",
    },
    Command {
        name: c"lock.guard",
        handler: handler!(master guard::guard),
        flags: c"write getkeys-api",
        categories: c"write slow",
        arity: -4,
        // Which keys follow depends on the inner command, so the server asks the handler for them.
        keys: Keys::First(READ | raw::REDISMODULE_CMD_KEY_VARIABLE_FLAGS),
        grammar: "key token command [arg ...]",
        summary: c"Runs a command if and only if the token holds the lock at that moment",
        complexity: c"that of the command",
    },
    Command {
        name: c"lock.info",
        handler: handler!(info::info),
        flags: c"readonly",
        categories: c"read slow",
        arity: -2,
        keys: Keys::First(READ),
        grammar: "key [token] [COUNT n] [WAITERS n]",
        summary: c"Shows the holders of a lock and who waits for it, or one holder; no tokens",
        complexity: c"O(N log(N)) with N holders and waiters that are shown",
    },
    Command {
        name: c"lock.node",
        handler: handler!(node::node),
        flags: c"readonly allow-loading allow-stale",
        categories: c"read slow",
        arity: 1,
        keys: Keys::None,
        grammar: " ",
        summary: c"Shows the state of this node: role, quarantine, durability, fences, clock",
        complexity: c"O(1)",
    },
    Command {
        name: c"lock.force",
        handler: handler!(master force::force),
        flags: c"write admin",
        categories: c"write slow admin dangerous",
        arity: 2,
        keys: Keys::First(DROP),
        grammar: "key",
        summary: c"Ends every hold of a lock, for administrators; replies with how many holders \
                   there were",
        complexity: c"O(1)",
    },
    Command {
        name: c"lock.help",
        handler: handler!(help::help),
        flags: c"readonly allow-loading allow-stale fast",
        categories: c"read fast",
        arity: 1,
        keys: Keys::None,
        grammar: " ",
        summary: c"Lists the commands",
        complexity: c"O(1)",
    },
    Command {
        name: APPLY,
        handler: handler!(apply::apply),
        flags: c"write allow-loading",
        categories: c"write slow admin dangerous",
        arity: -2,
        keys: Keys::FromSecond(CHANGE),
        grammar: "",
        summary: c"Internal: carries changes of locks to replicas and the AOF",
        complexity: c"O(K) with K keys",
    },
    Command {
        name: crate::server::PROBE,
        handler: handler!(always probe::probe),
        flags: c"write deny-oom fast no-monitor no-slowlog",
        categories: c"write fast",
        arity: -2,
        keys: Keys::FromSecond(CHANGE),
        grammar: "",
        summary: c"Internal: does nothing; tells the module whether the server allows a write",
        complexity: c"O(1)",
    },
    #[cfg(feature = "failpoints")]
    Command {
        name: c"lock._fail",
        handler: handler!(fail::fail),
        flags: c"readonly",
        categories: c"slow admin dangerous",
        arity: 2,
        keys: Keys::None,
        grammar: "",
        summary: c"For tests: the next call of an edge panics",
        complexity: c"O(1)",
    },
    #[cfg(feature = "failpoints")]
    Command {
        name: c"lock._entries",
        handler: handler!(entries::entries),
        flags: c"readonly fast",
        categories: c"slow admin dangerous",
        arity: 1,
        keys: Keys::None,
        grammar: "",
        summary: c"For tests: how often the node was borrowed and core asked",
        complexity: c"O(1)",
    },
];

/// Registers all of them.
pub fn register(ctx: Ctx) -> Result<(), String> {
    COMMANDS.iter().try_for_each(|command| {
        describe::register(ctx, command).map_err(|what| {
            format!(
                "the server did not accept {what} of {}",
                command.name.to_string_lossy()
            )
        })
    })
}

fn run(
    ctx: Ctx,
    args: Args<'_>,
    served: Served,
    command: impl FnOnce(Ctx, Args<'_>) -> Result<(), Failure>,
) -> c_int {
    let is_for_master = match served {
        Served::OnMaster => true,
        Served::OnMasterOrReplicated => !(may_be_replicated(ctx) && is_replicated(ctx)),
        Served::Everywhere | Served::Always => false,
    };
    let refusal = if is_for_master && edge::has_failed() {
        Some(edge::REFUSAL)
    } else if is_for_master && server::is_replica() {
        Some(REPLICA)
    } else if keyspace::is_changing() && served != Served::Always {
        Some(IN_THE_MIDDLE)
    } else {
        None
    };
    match refusal {
        Some(text) if !ctx.is_key_query() => ctx.reply_error(text),
        _ => {
            if let Err(failure) = command(ctx, args) {
                reply::failure(ctx, &failure);
            }
        }
    }
    raw::REDISMODULE_OK as c_int
}

/// The id of the client that the server uses to load its AOF.
const AOF_CLIENT: u64 = u64::MAX;

/// Whether a command may come from somewhere other than a client: a cheap check before
/// [`is_replicated`].
fn may_be_replicated(ctx: Ctx) -> bool {
    server::is_replica() || server::is_cluster() || ctx.client() == AOF_CLIENT
}

/// Whether a command comes from the master, the AOF, or a slot that is being imported. It is not
/// enough that the server is loading: it serves clients meanwhile.
fn is_replicated(ctx: Ctx) -> bool {
    let flags = ctx.flags();
    flags & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0
        || flags & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 && ctx.client() == AOF_CLIENT
}

/// The reply of a replica to every command that would change a lock: its master grants the same
/// locks.
const REPLICA: &str = "READONLY a replica does not change locks, send the command to its master";

/// The error for another module that calls a LOCK command while one is running.
const IN_THE_MIDDLE: &str = "ERR a LOCK command cannot run in the middle of another one: \
     call it from the lock.* event, which is sent when all changes are made";

/// Replies after an internal failure in a command.
fn refuse(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the context of the command.
    let ctx = unsafe { Ctx::new(ctx) };
    if !ctx.is_key_query() {
        ctx.reply_error(edge::REFUSAL);
    }
    raw::REDISMODULE_OK as c_int
}

/// Registers one command with the server.
fn create(ctx: Ctx, command: &Command) -> Result<*mut raw::RedisModuleCommand, &'static str> {
    let (first, last, step) = match command.keys {
        Keys::None | Keys::Numbered(_) => (0, 0, 0),
        Keys::First(_) => (1, 1, 1),
        Keys::FromSecond(_) => (2, -1, 1),
    };
    // SAFETY: a valid context, during load; constants.
    unsafe {
        let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
        let status = api!(RedisModule_CreateCommand(
            ctx.raw(),
            name,
            Some(command.handler),
            flags,
            first,
            last,
            step
        ));
        if status != raw::REDISMODULE_OK as c_int {
            return Err("the name or the flags");
        }
        let created = api!(RedisModule_GetCommand(ctx.raw(), name));
        if created.is_null() {
            Err("the name")
        } else {
            Ok(created)
        }
    }
}
