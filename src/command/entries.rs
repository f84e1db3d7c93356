//! `LOCK._ENTRIES`: how often the node's state was borrowed so far, and how often the keyspace
//! called core. For tests: release builds do not have it.

use std::sync::atomic::Ordering;

use crate::edge::failpoint::{BORROWS, DECISIONS};
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;

pub fn entries(ctx: Ctx, _: Args<'_>) -> Result<(), Failure> {
    ctx.reply_array(2);
    ctx.reply_integer(BORROWS.load(Ordering::Relaxed));
    ctx.reply_integer(DECISIONS.load(Ordering::Relaxed));
    Ok(())
}
