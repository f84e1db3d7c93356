//! `LOCK._PROBE key`: does nothing. The module asks the server to run it, and learns whether a
//! write is allowed.

use super::reply::Failure;
use crate::ffi::{Args, Ctx};

pub fn probe(ctx: Ctx, _: Args<'_>) -> Result<(), Failure> {
    ctx.reply_null();
    Ok(())
}
