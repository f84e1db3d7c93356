//! `LOCK.EXTEND key token ttl-ms [FENCE at-least]`: replies with the hold's fence, or null.

use redislock_core::slots::LockId;
use redislock_core::table::{Denial, Extended};
use redislock_core::time::Micros;
use redislock_core::token::Token;

use super::options;
use crate::ffi::{Args, Ctx};
use crate::keyspace::{Opened, decide};
use crate::reply::Failure;

pub fn extend(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let (Some(key), Some(token), Some(ttl)) = (args.get(1), args.get(2), args.get(3)) else {
        return Err(Failure::Arity);
    };
    let fence = fence(args, 4)?;
    let token = options::token(token)?;
    let ttl = options::ttl(ttl)?;
    let own = [Opened::new(ctx, key)?];
    let connection = ctx.connection();
    let extended = decide(ctx, &own, |node, now, keyspace| {
        let lock = own[0].lock();
        node.table
            .extend(lock, &token, ttl, fence, connection, now, keyspace)
    });
    reply(ctx, extended)?;
    Ok(())
}

/// Extends the hold of each of these keys.
pub fn prolong(
    ctx: Ctx,
    own: &[Opened<'_>],
    token: &Token,
    ttl: Micros,
    fence: Option<u64>,
) -> Vec<Extended> {
    let connection = ctx.connection();
    decide(ctx, own, |node, now, keyspace| {
        let mut extend = |lock: Option<LockId>| {
            node.table
                .extend(lock, token, ttl, fence, connection, now, keyspace)
        };
        own.iter().map(|opened| extend(opened.lock())).collect()
    })
}

/// Replies to an extension; the caller reports an error.
pub fn reply(ctx: Ctx, extended: Extended) -> Result<(), Denial> {
    match extended {
        Extended::To(fence) => ctx.reply_integer(fence),
        Extended::NotHeld => ctx.reply_null(),
        Extended::Denied(denial) => return Err(denial),
    }
    Ok(())
}

/// The option `FENCE at-least`, and nothing else, at `at`.
pub fn fence(args: Args<'_>, at: usize) -> Result<Option<u64>, Failure> {
    let Some(option) = args.get(at) else {
        return Ok(None);
    };
    if !option.bytes().eq_ignore_ascii_case(b"FENCE") {
        return Err(options::unknown(at));
    }
    let value = args
        .get(at + 1)
        .ok_or(Failure::Text("ERR option FENCE needs a value"))?;
    let fence = options::fence(value)?;
    match args.get(at + 2) {
        None => Ok(Some(fence)),
        Some(again) if again.bytes().eq_ignore_ascii_case(b"FENCE") => {
            Err("ERR option FENCE is given twice".into())
        }
        Some(_) => Err(options::unknown(at + 2)),
    }
}
