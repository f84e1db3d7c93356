//! `LOCK._FAIL edge`: the next time that the server calls this edge, it panics. For tests: release
//! builds do not have it.

use crate::edge::failpoint;
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;

pub fn fail(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let edge = args.get(1).ok_or(Failure::Arity)?;
    failpoint::arm(&String::from_utf8_lossy(edge.bytes()));
    ctx.reply_status("OK");
    Ok(())
}
