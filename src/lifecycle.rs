//! What the server tells the module without being asked by a client: time, roles, loading, flushes,
//! disconnects.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::quarantine::Reason;
use redislock_core::time::{Instant, Now, from_millis, to_millis};

use crate::alarm::{self, OnEvent, wake_at, wake_soon};
use crate::clock;
use crate::config::EPHEMERAL_GRACE;
use crate::edge::{self, on_event};
use crate::ffi::{Ctx, Level, api, log};
use crate::node::{self, More, Node, Notice};
use crate::removals;
use crate::reply::why;
use crate::server::{self, may_write};
use crate::{effects, key_events, keyspace, replication, waiters, warnings, watch};

/// A slice ends when it has taken this long, µs, so that clients are served in between. What was
/// begun is ended first: all in all it takes less than 1 ms of the main thread.
const SLICE: u64 = 300;
/// Between two slices of what nobody waits for, µs.
const PAUSE: u64 = 3000;
/// What is done between two looks at the clock: leases that end, keys that are looked at, …
const BATCH: usize = 32;

/// When the server's cron last came by.
static TICKED: AtomicU64 = AtomicU64::new(u64::MAX);
/// A server whose cron did not come by for this long, µs, stood still. (`hz 1` is once a second.)
const STANDSTILL: u64 = 1_500_000;
/// How long a node of a cluster that stood still waits for the news that it was replaced, µs.
const NEWS: u64 = 2_000_000;

/// Subscribes to everything below.
pub fn register(ctx: Ctx) -> Result<(), String> {
    alarm::register(catch_up);
    let events: [(u64, OnEvent); 9] = [
        (raw::REDISMODULE_EVENT_CRON_LOOP, on_event!(on_cron)),
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            on_event!(on_role_change),
        ),
        (raw::REDISMODULE_EVENT_LOADING, on_event!(on_loading)),
        (raw::REDISMODULE_EVENT_FLUSHDB, on_event!(on_flush)),
        (raw::REDISMODULE_EVENT_SWAPDB, on_event!(on_swap)),
        (
            raw::REDISMODULE_EVENT_CLIENT_CHANGE,
            on_event!(on_client_change),
        ),
        (raw::REDISMODULE_EVENT_FORK_CHILD, on_event!(on_fork)),
        (raw::REDISMODULE_EVENT_CONFIG, on_event!(on_config_change)),
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            on_event!(replication::on_replica_change),
        ),
    ];
    for (id, callback) in events {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: a valid context, during load.
        if unsafe {
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                Some(callback)
            ))
        } != 0
        {
            return Err(format!("the server does not tell of its event {id}"));
        }
    }
    key_events::register(ctx)
}

/// The module was loaded: what it may have granted before, it does not know.
pub fn started(ctx: Ctx) {
    let now = clock::mono();
    node::with(|node| {
        node.cluster = ctx.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER);
        node.table.quarantine.enter(Reason::Start, now);
    });
    server::note_role(ctx);
    server::note_aof(ctx);
    server::read_settings(ctx);
    watch::settings_are_news();
    replication::refresh(ctx);
    announce_quarantine();
    for warning in warnings::collect(ctx) {
        ctx.log(Level::Warning, &warning);
    }
}

fn on_config_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    server::read_settings(ctx);
    server::note_aof(ctx);
    watch::notice_settings();
    replication::refresh(ctx);
}

/// Wakes the module when the next wait is up.
fn wake_for_waits() {
    if let Some(next) = node::with(|node| node.table.next_timeout()) {
        wake_at(next);
    }
}

fn on_cron(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    if edge::has_failed() {
        return waiters::give_up();
    }
    let now = clock::mono();
    notice_standstill(ctx, now);
    TICKED.store(now.0, Ordering::Relaxed);
    replication::tick_if_late(now);
    removals::end_second(ctx, now);
    watch::look_now_and_then(ctx, now);
    let due = node::with(|node| {
        let due = node
            .table
            .next_deadline()
            .is_some_and(|next| next <= clock::mono());
        due || node.has_work()
    });
    if alarm::take_late(now) || due {
        catch_up(ctx);
    }
}

/// Does what is due: ends waits and leases, takes back what could not be delivered, serves those
/// who wait.
fn catch_up(ctx: Ctx) {
    if edge::has_failed() {
        return waiters::give_up();
    }
    watch::tell_removals(ctx);
    let slice = Slice::begin();
    let mut more = slice.spend(ctx, SLICE, |node, now, _| {
        if node.table.time_out(BATCH, now) {
            More::Soon
        } else {
            More::No
        }
    });
    // Nobody waits for this: half of the slice is for what follows.
    more = more.max(slice.spend(ctx, SLICE / 2, |node, _, _| node.forget(BATCH)));
    let writes = may_write(ctx);
    if writes {
        more = more.max(write_what_is_due(ctx, &slice));
    }
    slice.end();
    wake_for(more);
    if !writes {
        // Nothing else can be done here; for the rest the cron comes by.
        wake_for_waits();
    } else if let Some(next) = node::with(|node| node.table.next_deadline()) {
        wake_at(next.max(clock::mono()));
    }
}

/// Does what changes locks: leases end, those who wait are served.
fn write_what_is_due(ctx: Ctx, slice: &Slice) -> More {
    if node::with(|node| std::mem::take(&mut node.counter_is_due) && node.table.fence() > 0) {
        effects::send_header(ctx, node::with(|node| node.table.header()));
    }
    key_events::look_at_strings(ctx, BATCH);
    let grants = may_grant(ctx);
    node::with(|node| {
        node.table.holds_back = !grants;
        if node.table.quarantine_has_ended(clock::now()) {
            log(
                Level::Notice,
                "the quarantine has ended: locks are granted again",
            );
        }
    });
    let more = slice.spend(ctx, SLICE, |node, now, keys| node.go_on(BATCH, now, keys));
    node::with(|node| node.table.holds_back = false);
    more
}

/// Wakes the module for the next slice. The server serves its clients before that.
fn wake_for(more: More) {
    match more {
        More::No => {}
        More::Later => wake_at(clock::mono().plus(PAUSE)),
        More::Soon => wake_soon(),
    }
}

/// Time of the main thread that is spent on what was not asked for.
struct Slice {
    begin: Instant,
    begin_cpu: u64,
}

impl Slice {
    fn begin() -> Self {
        Self {
            begin: clock::mono(),
            begin_cpu: clock::time_of_thread(),
        }
    }

    /// Decides until there is no more to do or so much of the slice is spent, µs.
    fn spend(
        &self,
        ctx: Ctx,
        limit: u64,
        mut decide: impl FnMut(&mut Node, Now, &mut keyspace::Keys) -> More,
    ) -> More {
        loop {
            let more = keyspace::decide_unasked(ctx, &mut decide);
            if more == More::No || clock::mono().since(self.begin) >= limit {
                return more;
            }
        }
    }

    fn end(self) {
        let spent = clock::mono().since(self.begin);
        let spent_cpu = clock::time_of_thread().saturating_sub(self.begin_cpu);
        node::with(|node| {
            node.longest_slice = node.longest_slice.max(spent);
            node.longest_slice_cpu = node.longest_slice_cpu.max(spent_cpu);
        });
    }
}

/// Whether the server would let a command grant to those who wait.
fn may_grant(ctx: Ctx) -> bool {
    let waited_for = node::with(|node| node.table.some_waited_key().cloned());
    waited_for.is_none_or(|key| server::may_grant(ctx, key.name()))
}

/// Asked before every decision: whether another node may have become the master unnoticed.
///
/// Where replicas confirm that this is the only master, they are asked. In a cluster without that
/// rule, a server that stood still finds what clients have sent meanwhile before it finds that it
/// was replaced, so it grants nothing until it must have heard of it.
pub fn notice_replacement(ctx: Ctx, now: Instant) {
    replication::check(ctx, now);
    notice_standstill(ctx, now);
}

fn notice_standstill(ctx: Ctx, now: Instant) {
    let ticked = TICKED.load(Ordering::Relaxed);
    if now.0.saturating_sub(ticked) <= STANDSTILL {
        return;
    }
    TICKED.store(now.0, Ordering::Relaxed);
    let cluster = node::with(|node| node.cluster);
    if cluster && !replication::is_on() && ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER) {
        node::with(|node| {
            let quarantine = &mut node.table.quarantine;
            quarantine.enter_for(Reason::Standstill, NEWS, now);
        });
        announce_quarantine();
    }
}

fn on_role_change(
    ctx: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    role: u64,
    _: *mut c_void,
) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    server::note_role(ctx);
    keyspace::decide_unasked(ctx, |node, _, _| node.role_changed());
    if role == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
        let now = clock::mono();
        let wait = replication::promoted(ctx);
        node::with(|node| {
            let quarantine = &mut node.table.quarantine;
            quarantine.enter(Reason::Promotion, now);
            if let Some(wait) = wait {
                quarantine.enter_until(Reason::Promotion, now.plus(wait));
            }
        });
        announce_quarantine();
        wake_soon();
    } else {
        replication::refresh(ctx);
    }
}

fn on_loading(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, stage: u64, _: *mut c_void) {
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    let now = clock::mono();
    // A replica turns its AOF off while it loads what its master sent.
    server::note_aof(ctx);
    if stage != raw::REDISMODULE_SUBEVENT_LOADING_ENDED
        && stage != raw::REDISMODULE_SUBEVENT_LOADING_FAILED
    {
        return node::with(|node| node.table.loading_began(now));
    }
    let is_master = ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER);
    TICKED.store(now.0, Ordering::Relaxed);
    let waits = node::with(|node| {
        node.table.loading_ended(now);
        // What the AOF says again was logged when it happened.
        node.removals.clear();
        node.counter_is_due = true;
        node.listened_to = true;
        if is_master {
            // What is remembered may be longer than what is configured.
            node.table.quarantine.enter(Reason::Start, now);
        }
        node.table.quarantine.left(now).is_some()
    });
    if is_master && waits {
        announce_quarantine();
    }
    wake_soon();
}

fn on_flush(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, stage: u64, info: *mut c_void) {
    if stage != raw::REDISMODULE_SUBEVENT_FLUSHDB_START {
        return;
    }
    // SAFETY: with this event comes this structure.
    let db =
        unsafe { info.cast::<raw::RedisModuleFlushInfo>().as_ref() }.map_or(-1, |info| info.dbnum);
    let now = clock::now();
    let before = node::with(|node| node.table.locks());
    let quarantined = node::with(|node| {
        let left = node.table.flushed(u32::try_from(db).ok(), now);
        let before = node.table.quarantine.left(now.mono);
        node.table
            .quarantine
            .enter_for(Reason::Flush, left, now.mono);
        before != node.table.quarantine.left(now.mono)
    });
    let flushed = before - node::with(|node| node.table.locks());
    // A replica that takes its master's data over flushes its own.
    if flushed > 0 && !server::is_replica() {
        node::with(|node| node.table.counters.removed += flushed as u64);
        log(Level::Warning, &format!("a flush removed {flushed} locks"));
    }
    if quarantined {
        announce_quarantine();
    }
    wake_soon();
}

fn on_swap(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, info: *mut c_void) {
    // SAFETY: with this event comes this structure.
    if let Some(info) = unsafe { info.cast::<raw::RedisModuleSwapDbInfo>().as_ref() } {
        node::with(|node| {
            node.table
                .swapped(info.dbnum_first as u32, info.dbnum_second as u32)
        });
        wake_soon();
    }
}

fn on_client_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    change: u64,
    info: *mut c_void,
) {
    if change != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: with this event comes this structure.
    let Some(info) = (unsafe { info.cast::<raw::RedisModuleClientInfo>().as_ref() }) else {
        return;
    };
    let bound = node::with(|node| {
        let bound = node.table.is_bound(info.id);
        if bound {
            let now = clock::now();
            let end = now.mono.plus(from_millis(EPHEMERAL_GRACE.get()));
            node.table.hang_up(info.id, end, now);
        }
        bound
    });
    if bound {
        wake_soon();
    }
}

/// The server saves, rewrites or hands a slot over in a child. A rewrite without an RDB preamble
/// has no place for the fence counter, so it goes into the stream once more. Only then: an effect
/// without keys is of no slot, and Valkey 9 gives a slot's migration up when it meets one.
fn on_fork(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, stage: u64, _: *mut c_void) {
    if stage == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        let counter_is_due = server::may_rewrite_without_preamble();
        node::post(Notice::Forked { counter_is_due });
        wake_soon();
    }
}

fn announce_quarantine() {
    let left = node::with(|node| node.table.quarantine.left(clock::mono()));
    if let Some((left, reason)) = left {
        if reason == Reason::Settings {
            // Logged when it was noticed; it has no end to wake up for.
            return;
        }
        let why = why(reason);
        log(
            Level::Warning,
            &format!(
                "quarantine for {} ms {why}: no lock is granted until then",
                to_millis(left)
            ),
        );
        wake_at(clock::mono().plus(left));
    }
}
