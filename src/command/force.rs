//! `LOCK.FORCE key`: ends every hold of the key; how many holders there were, or null. For administrators.

use redis_module::raw;

use super::reply::Failure;
use crate::ffi::{Args, Ctx, OwnedString, api, there};
use crate::keyspace::{Opened, decide};

pub fn force(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let Some(key) = args.get(1).filter(|_| args.len() == 2) else {
        return Err(Failure::Arity);
    };
    if !is_administrator(ctx) {
        return Err("NOPERM LOCK.FORCE is for users who may run FLUSHALL".into());
    }
    let own = [Opened::new(ctx, key)?];
    let holders = decide(ctx, &own, |node, now, keyspace| {
        node.table.force(&own[0].wanted(), now, keyspace)
    });
    if holders == 0 {
        ctx.reply_null()
    } else {
        ctx.reply_integer(holders)
    }
    Ok(())
}

/// Where modules can set ACL categories, the server has checked @admin and @dangerous. Elsewhere (7.0) whoever may flush all
/// data may end a lock.
fn is_administrator(ctx: Ctx) -> bool {
    if there!(RedisModule_SetCommandACLCategories) {
        return true;
    }
    // SAFETY: functions of the server's, called with valid arguments; the user is freed here.
    unsafe {
        let name = api!(RedisModule_GetCurrentUserName(ctx.raw()));
        if name.is_null() {
            return true;
        }
        let user = api!(RedisModule_GetModuleUserFromUserName(name));
        api!(RedisModule_FreeString(ctx.raw(), name));
        if user.is_null() {
            return true;
        }
        let flushall = OwnedString::new(b"flushall");
        let mut argv = [flushall.arg().raw()];
        let allowed = api!(RedisModule_ACLCheckCommandPermissions(
            user,
            argv.as_mut_ptr(),
            1
        ));
        api!(RedisModule_FreeModuleUser(user));
        allowed == raw::REDISMODULE_OK as std::ffi::c_int
    }
}
