//! `LOCK._PROBE write|memory [key]`: does nothing. The module makes the server run it, to find out
//! whether a write is allowed and whether there is memory for it.

use crate::ffi::{Args, Ctx};
use crate::reply::Failure;
use crate::server;

pub fn probe(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    match args.get(1) {
        Some(what) if what.bytes() == server::MEMORY.to_bytes() && server::lacks_memory(ctx) => {
            ctx.reply_error("OOM maxmemory is used up");
        }
        _ => ctx.reply_null(),
    }
    Ok(())
}
