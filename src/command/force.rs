//! `LOCK.FORCE key`: ends every hold of the key, and replies with the number of holders, or null.
//! For administrators.

use redis_module::raw;

use crate::clock;
use crate::ffi::{Arg, Args, Ctx, OwnedString, api, there};
use crate::keyspace::{Opened, decide};
use crate::removals::{self, Caller, Cause, Removal};
use crate::reply::Failure;
use crate::server::PROBE;

pub fn force(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let Some(key) = args.get(1).filter(|_| args.len() == 2) else {
        return Err(Failure::Arity);
    };
    if !is_administrator(ctx, key) {
        return Err("NOPERM LOCK.FORCE is for users who may run FLUSHALL".into());
    }
    let own = [Opened::new(ctx, key)?];
    let (holders, removal) = decide(ctx, &own, |node, now, keyspace| {
        let lease_now = node.table.lease_now(now.mono);
        let lock = own[0].lock();
        let removal = lock.and_then(|id| Removal::of(&node.table, id, Cause::Force, lease_now));
        let holders = node.table.force(&own[0].wanted(), now, keyspace);
        (holders, removal)
    });
    if let Some(mut removal) = removal {
        removal.caller = Caller::of(ctx);
        removals::log(ctx, &removal, clock::mono());
    }
    if holders == 0 {
        ctx.reply_null()
    } else {
        ctx.reply_integer(holders)
    }
    Ok(())
}

/// Where modules can set ACL categories, the server has checked @admin and @dangerous. On other
/// servers (7.0), a user that may flush all data, or run a similar command, may end a lock. A call
/// by another module without a user may do everything.
fn is_administrator(ctx: Ctx, key: Arg<'_>) -> bool {
    if there!(RedisModule_SetCommandACLCategories) || !has_user(ctx, key) {
        return true;
    }
    // SAFETY: functions of the server, called with valid arguments, for a client that has a user;
    // the user is freed here.
    unsafe {
        let name = api!(RedisModule_GetCurrentUserName(ctx.raw()));
        if name.is_null() {
            return false;
        }
        let user = api!(RedisModule_GetModuleUserFromUserName(name));
        api!(RedisModule_FreeString(ctx.raw(), name));
        if user.is_null() {
            return false;
        }
        let mut verdicts = FOR_ADMINISTRATORS.iter().map(|command| {
            let command = OwnedString::new(command);
            let mut argv = [command.arg().raw()];
            let check = api!(RedisModule_ACLCheckCommandPermissions(
                user,
                argv.as_mut_ptr(),
                1
            ));
            // Read before anything else can change it.
            let error = std::io::Error::last_os_error().raw_os_error();
            let allowed = check == raw::REDISMODULE_OK as std::ffi::c_int;
            (allowed || error != Some(libc::ENOENT)).then_some(allowed)
        });
        let allowed = verdicts.find_map(|verdict| verdict) == Some(true);
        api!(RedisModule_FreeModuleUser(user));
        allowed
    }
}

/// Commands that only administrators may run. The first one that exists decides, because any
/// command may be renamed.
const FOR_ADMINISTRATORS: [&[u8]; 5] = [b"flushall", b"flushdb", b"swapdb", b"shutdown", b"debug"];

/// Whether the caller has a user. Redis 7.0 crashes when it is asked for the name of a missing
/// user. So the server is asked to run something with the rights of the user: without a user, it
/// refuses that with an error of its own.
fn has_user(ctx: Ctx, key: Arg<'_>) -> bool {
    if ctx.has_connection() {
        return true;
    }
    // SAFETY: a valid context; the format says the rights of the user (C) and one string. The reply
    // is freed here.
    unsafe {
        let probe = PROBE.as_ptr();
        let reply = api!(RedisModule_Call(
            ctx.raw(),
            probe,
            c"Cs".as_ptr(),
            key.raw()
        ));
        // Read before anything else can change it.
        let error = std::io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
            return true;
        }
        error != Some(libc::ENOTSUP)
    }
}
