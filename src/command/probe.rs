//! `LOCK._PROBE key`: does nothing. The module asks the server to run it, and learns whether a
//! write is allowed.

use crate::ffi::{Args, Ctx};
use crate::reply::Failure;

pub fn probe(ctx: Ctx, _: Args<'_>) -> Result<(), Failure> {
    ctx.reply_null();
    Ok(())
}
