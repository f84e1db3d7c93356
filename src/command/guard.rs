//! `LOCK.GUARD key token command [arg …]`: runs the command if and only if the token holds the lock at that moment.

use std::cell::RefCell;
use std::ffi::{CString, c_int};

use foldhash::HashMap;
use redis_module::raw;

use super::options;
use super::reply::Failure;
use crate::ffi::{Args, Ctx, api};
use crate::keyspace::{Opened, decide_without_fence};

/// What the names of our own commands begin with.
const OURS: &[u8] = b"lock.";

/// Where the inner command begins.
const INNER: usize = 3;

const UNKNOWN: Failure = Failure::Text("ERR the guarded command is unknown to this server");

/// What matters about a command that is to be guarded.
#[derive(Clone, Copy)]
enum Kind {
    Ordinary,
    /// It may wait.
    Blocks,
    Unknown,
}

thread_local! {
    /// The commands of the server, each asked for once.
    static KINDS: RefCell<HashMap<Vec<u8>, Kind>> = RefCell::default();
}

pub fn guard(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if ctx.asks_for_keys() {
        tell_keys(ctx, args);
        return Ok(());
    }
    let (Some(key), Some(token), Some(command)) = (args.get(1), args.get(2), args.get(INNER))
    else {
        return Err(Failure::Arity);
    };
    let token = options::token(token)?;
    if is_ours(command.bytes()) {
        return Err("ERR LOCK.GUARD cannot run LOCK.* commands".into());
    }
    // One byte more than the name, so that the C string needs no second allocation.
    let mut name = Vec::with_capacity(command.bytes().len() + 1);
    name.extend(command.bytes().iter().map(u8::to_ascii_lowercase));
    let name = CString::new(name).map_err(|_| UNKNOWN)?;
    match kind_of(ctx, name.to_bytes()) {
        Kind::Unknown => return Err(UNKNOWN),
        Kind::Blocks => return Err("ERR LOCK.GUARD cannot run commands that block".into()),
        Kind::Ordinary => {}
    }
    let own = [Opened::new(ctx, key)?];
    let lock = own[0].lock();
    let holds = decide_without_fence(ctx, &own, |node, now, keyspace| {
        node.table.guards(lock, &token, now, keyspace)
    })?;
    if !holds {
        return Err("NOTHELD the token does not hold the lock, the command was not run".into());
    }
    drop(own);
    run(ctx, &name, args.from(INNER + 1));
    Ok(())
}

/// Runs it with the caller's rights (C), as a script could (S), within memory (M), errors as replies (E), replicated (!),
/// in the caller's protocol (0).
fn run(ctx: Ctx, name: &CString, args: Args<'_>) {
    let argv = args.raw();
    // SAFETY: a valid context; the format says flags and a vector of strings with its length; the reply is passed on and
    // freed here.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.raw(),
            name.as_ptr(),
            c"CESM!0v".as_ptr(),
            argv.as_ptr(),
            argv.len()
        ));
        if reply.is_null() {
            ctx.reply_error("ERR the guarded command could not be run");
            return;
        }
        if is_denied_by_acl(reply) {
            ctx.reply_error(
                "NOPERM the user may not run the guarded command, or not with these keys",
            );
        } else {
            api!(RedisModule_ReplyWithCallReply(ctx.raw(), reply));
        }
        api!(RedisModule_FreeCallReply(reply));
    }
}

/// Whether the server refused a call for the caller's lack of rights; servers word it differently.
///
/// # Safety
/// `reply` is a valid reply.
unsafe fn is_denied_by_acl(reply: *mut raw::RedisModuleCallReply) -> bool {
    let mut len = 0;
    // SAFETY: as the caller promises; the text is read here only.
    let text = unsafe {
        if api!(RedisModule_CallReplyType(reply)) != raw::REDISMODULE_REPLY_ERROR as c_int {
            return false;
        }
        let text = api!(RedisModule_CallReplyStringPtr(reply, &raw mut len));
        if text.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(text.cast::<u8>(), len)
        }
    };
    text.starts_with(b"ERR acl verification failed") || text.starts_with(b"NOPERM")
}

/// Tells the server which arguments are keys: the lock, and those of the inner command.
fn tell_keys(ctx: Ctx, args: Args<'_>) {
    ctx.key_at(1, super::READ);
    let inner = args.from(INNER);
    // A command of ours is refused when it comes to that; asking it for its keys would lead back here without end.
    if inner.get(0).is_none_or(|name| is_ours(name.bytes())) {
        return;
    }
    let mut len = 0;
    let mut flags = std::ptr::null_mut();
    // SAFETY: a valid context that asks for keys; what the server allocates is freed here.
    unsafe {
        let argv = inner.raw().as_ptr().cast_mut();
        let argc = inner.len() as c_int;
        let keys = api!(RedisModule_GetCommandKeysWithFlags(
            ctx.raw(),
            argv,
            argc,
            &raw mut len,
            &raw mut flags
        ));
        for at in 0..len.max(0) as usize {
            if keys.is_null() {
                break;
            }
            let flags = if flags.is_null() {
                raw::REDISMODULE_CMD_KEY_RW as c_int
            } else {
                *flags.add(at)
            };
            api!(RedisModule_KeyAtPosWithFlags(
                ctx.raw(),
                *keys.add(at) + INNER as c_int,
                flags
            ));
        }
        if !keys.is_null() {
            api!(RedisModule_Free(keys.cast()));
        }
        if !flags.is_null() {
            api!(RedisModule_Free(flags.cast()));
        }
    }
}

/// Whether a command is one of LOCK.*.
fn is_ours(command: &[u8]) -> bool {
    command
        .get(..OURS.len())
        .is_some_and(|prefix| prefix.eq_ignore_ascii_case(OURS))
}

/// What the server says about a command.
fn kind_of(ctx: Ctx, command: &[u8]) -> Kind {
    if let Some(known) = KINDS.with_borrow(|known| known.get(command).copied()) {
        return known;
    }
    let Some(info) = ctx
        .ask(c"COMMAND", &[b"INFO", command])
        .filter(|info| !info.is_empty())
    else {
        return Kind::Unknown;
    };
    let kind = if info.iter().any(|flag| flag == b"blocking") {
        Kind::Blocks
    } else {
        Kind::Ordinary
    };
    KINDS.with_borrow_mut(|known| known.insert(command.to_vec(), kind));
    kind
}
