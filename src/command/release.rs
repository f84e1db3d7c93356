//! `LOCK.RELEASE key token [ALL]`: replies with the number of holds that it removed, or null.
//!
//! From the master, the AOF or a slot import, it means that the key is free.

#[cfg(feature = "failpoints")]
use redislock_core::token::Token;

use super::{is_replicated, may_be_replicated, options};
#[cfg(feature = "failpoints")]
use crate::edge::failpoint;
use crate::ffi::{Args, Ctx};
use crate::keyspace::{self, Opened, decide_release};
#[cfg(feature = "failpoints")]
use crate::node::Node;
use crate::reply::Failure;

pub fn release(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let (Some(key), Some(token)) = (args.get(1), args.get(2)) else {
        return Err(Failure::Arity);
    };
    if may_be_replicated(ctx) && is_replicated(ctx) {
        return Ok(keyspace::free(ctx, key)?);
    }
    let all = all(args, 3)?;
    let token = options::token(token)?;
    let own = [Opened::new(ctx, key)?];
    let taken = decide_release(ctx, &own, |node, now, keyspace| {
        #[cfg(feature = "failpoints")]
        let token = any_token(node, &own[0], token);
        node.table
            .release(&own[0].wanted(), &token, all, now, keyspace)
    });
    reply(ctx, taken);
    Ok(())
}

/// The token of the current holder, if this process does not compare tokens.
#[cfg(feature = "failpoints")]
fn any_token(node: &Node, own: &Opened<'_>, token: Token) -> Token {
    let lock = own.lock().and_then(|id| node.table.lock(id));
    let holder = lock.and_then(|lock| lock.holds().next());
    match holder {
        Some(holder) if failpoint::lacks("token-check") => holder.token.clone(),
        _ => token,
    }
}

/// Replies to a release: null if nothing was held.
pub fn reply(ctx: Ctx, taken: u32) {
    if taken == 0 {
        ctx.reply_null()
    } else {
        ctx.reply_integer(taken.into())
    }
}

/// Whether the only argument from `at` on is `ALL`.
pub fn all(args: Args<'_>, at: usize) -> Result<bool, Failure> {
    match args.get(at) {
        None => Ok(false),
        Some(option) if !option.bytes().eq_ignore_ascii_case(b"ALL") => Err(options::unknown(at)),
        Some(_) if args.len() > at + 1 => Err(match args.get(at + 1) {
            Some(again) if again.bytes().eq_ignore_ascii_case(b"ALL") => {
                "ERR option ALL is given twice".into()
            }
            _ => options::unknown(at + 1),
        }),
        Some(_) => Ok(true),
    }
}
