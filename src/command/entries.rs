//! `LOCK._ENTRIES`: how often the node's state was borrowed so far, how often the keyspace called
//! core, and how many waiters were refused in one turn at most. For tests: release builds do not
//! have it.

use std::sync::atomic::Ordering;

use crate::edge::failpoint::{BORROWS, DECISIONS, MOST_REFUSED};
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;

pub fn entries(ctx: Ctx, _: Args<'_>) -> Result<(), Failure> {
    let counts = [&BORROWS, &DECISIONS, &MOST_REFUSED];
    ctx.reply_array(counts.len());
    for count in counts {
        ctx.reply_integer(count.load(Ordering::Relaxed));
    }
    Ok(())
}
