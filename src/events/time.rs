//! Time passes: the alarm fires, or the server's cron runs.

use std::ffi::c_void;

use redis_module::raw;
use redislock_core::time::{Micros, Now};

use super::{checks, keys};
use crate::alarm::{self, wake_at, wake_soon};
use crate::ffi::{Ctx, Level, log};
use crate::node::{self, More, Node, Slice};
use crate::replication::{self, standstill};
use crate::server::{self, may_write};
use crate::{clock, edge, effects, keyspace, removals, waiters};

/// A slice ends after this time, so that clients are served in between. The current step is
/// finished first; altogether a slice nearly always takes less than 1 ms of the main thread.
const SLICE: Micros = Micros(200);
/// The part of it in which waits end: then leases end and waiters are granted their locks.
const TIMING_OUT: Micros = Micros(100);
/// Work that nobody waits for ends earlier, so that some of the slice is left for other work.
const FORGETTING: Micros = Micros(150);
/// The pause between two slices of work that nobody waits for. The work takes an eighth of the main
/// thread then: the memory of five million locks is freed 27 s after a FLUSHALL.
const PAUSE: Micros = Micros(1000);
/// The most locks that are forgotten between two readings of the clock.
const BATCH: usize = 32;
/// The same for waits and leases that end, and for strings that are checked.
const ENDS: usize = 8;

/// Wakes the module when the next wait ends.
fn wake_for_waits() {
    if let Some(next) = node::with(|node| node.table.next_timeout()) {
        wake_at(next);
    }
}

pub fn on_cron(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    if edge::has_failed() {
        return waiters::give_up();
    }
    let now = clock::mono();
    standstill::check(ctx, now);
    standstill::note_tick(now);
    replication::tick_if_late(now);
    removals::end_second(ctx, now);
    checks::run_periodic_checks(ctx, now);
    let due = node::with(|node| {
        let due = node
            .table
            .next_deadline()
            .is_some_and(|next| next <= clock::mono());
        due || node.has_work()
    });
    let is_first = alarm::is_first_look();
    if is_first {
        replication::loaded(now);
    }
    if alarm::take_late(now) || due || is_first {
        catch_up(ctx);
    }
}

/// Does what is due: ends waits and leases, takes back grants that could not be delivered, and
/// serves waiters.
pub fn catch_up(ctx: Ctx) {
    if edge::has_failed() {
        return waiters::give_up();
    }
    // This comes first, because the first use of the table reads the notices of callbacks.
    let slice = Slice::begin();
    checks::report_removals(ctx);
    let mut more = spend(&slice, ctx, TIMING_OUT, ENDS, |node, now, _, step| {
        if node.table.time_out(step, now) {
            More::Soon
        } else {
            More::No
        }
    });
    more = more.max(spend(&slice, ctx, FORGETTING, BATCH, |node, _, _, step| {
        node.forget(step)
    }));
    let writes = may_write(ctx);
    if writes {
        more = more.max(write_what_is_due(ctx, &slice));
    }
    slice.end();
    wake_for(more);
    if !writes {
        // Nothing else can be done here. The next cron does the rest.
        wake_for_waits();
    } else if let Some(next) = node::with(|node| node.table.next_deadline()) {
        wake_at(next.max(clock::mono()));
    }
}

/// Does what changes locks: ends leases and serves waiters.
fn write_what_is_due(ctx: Ctx, slice: &Slice) -> More {
    if node::with(|node| std::mem::take(&mut node.counter_is_due) && node.table.fence() > 0) {
        effects::send_header(ctx, node::with(|node| node.table.header()));
    }
    let strings = keys::look_at_strings(ctx, ENDS);
    let grants = may_grant(ctx);
    node::with(|node| {
        node.table.holds_back = !grants;
        let now = clock::now();
        if node.table.quarantine_has_ended(now) {
            let text = if grants && node.table.pause(now.mono).is_none() {
                "the quarantine has ended: locks are granted again"
            } else {
                "the quarantine has ended, but locks cannot be granted yet for another reason"
            };
            log(Level::Notice, text);
        }
    });
    let more = spend(slice, ctx, SLICE, ENDS, |node, now, keys, step| {
        node.run_slice(step, now, keys)
    });
    node::with(|node| node.table.holds_back = false);
    more.max(strings)
}

/// Wakes the module for the next slice. The server serves its clients before that.
fn wake_for(more: More) {
    match more {
        More::No => {}
        More::Later => wake_at(clock::mono().plus(PAUSE)),
        More::NextTurn | More::Soon => wake_soon(),
    }
}

/// Works until nothing is left to do or this part of the slice is used up, in steps of this size.
/// While a child of the server saves, each page that is changed is copied first, and the end of one
/// lease may take 0.1 ms instead of 3 µs: then a step is as small as it can be.
fn spend(
    slice: &Slice,
    ctx: Ctx,
    limit: Micros,
    usual: usize,
    mut decide: impl FnMut(&mut Node, Now, &mut keyspace::Keys<'_>, usize) -> More,
) -> More {
    let saves = ctx.has(raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD);
    let step = if saves { 1 } else { usual };
    loop {
        let more = keyspace::decide_event(ctx, |node, now, keys| decide(node, now, keys, step));
        let continues = !matches!(more, More::No | More::NextTurn);
        if !continues || slice.has_taken(limit) {
            return more;
        }
    }
}

/// Whether the server would let a command grant to the waiters.
fn may_grant(ctx: Ctx) -> bool {
    let waited_for = node::with(|node| node.table.some_waited_key().cloned());
    waited_for.is_none_or(|key| server::may_grant(ctx, key.name()))
}
