//! Whether another node may be a master at the same time: the replication lease of
//! [`redislock_core::replication_lease`], fed with the server's list of replicas, and a substitute
//! for nodes that need no replicas.
//!
//! While the rule is on, a separate timer writes a heartbeat into the replication stream and reads
//! the list. Between two readings, a request costs only one comparison. The heartbeat is `REPLCONF
//! GETACK *`, which the server itself uses to ask its replicas for acknowledgements. It goes only
//! to replicas, and is never sent while writes are not allowed.

pub mod standstill;

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::replication_lease::{Listed, Look, Off, ReplicationLease, Rule, Settings};
use redislock_core::time::{Micros, Millis, MonoTime};

use crate::edge::{self, edge};
use crate::ffi::{self, Ctx, Level, ServerInfo, api};
use crate::{alarm, clock, config, node, server};

/// Until this time on the monotonic clock, a decision needs no check. While the rule is off, it
/// never needs one.
static PERMITTED_UNTIL: AtomicU64 = AtomicU64::new(u64::MAX);
/// When the list was last read.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Before a request is refused, the list is read again unless it was read this recently.
const RECENT: Micros = Micros(2_000);
/// The timer of the next reading, if there is one, and when it is due.
static TIMER: AtomicU64 = AtomicU64::new(0);
static DUE: AtomicU64 = AtomicU64::new(u64::MAX);
/// If a timer is this late, the wall clock was set back.
const LATE: Micros = Micros(100_000);
/// Redis 7.0 spins if its next timer is more than 2,147 s away. A timer that fires early is set
/// again.
const LONGEST_DELAY: Millis = Millis(1_000_000);
/// When the last heartbeat was written.
static BEAT_AT: AtomicU64 = AtomicU64::new(0);
/// `min-replicas-max-lag` at the start, µs; `u64::MAX` while it is not known.
static LAG_AT_START: AtomicU64 = AtomicU64::new(u64::MAX);
/// What has been logged already.
static HELD: AtomicBool = AtomicBool::new(false);
static HEARTBEAT_FAILED: AtomicBool = AtomicBool::new(false);
/// Whether the last reading of the list found a replica.
static HAS_REPLICAS: AtomicBool = AtomicBool::new(false);
static MAJORITY_WARNED: AtomicBool = AtomicBool::new(false);

/// Why more replicas than a majority allows are dangerous.
pub const NO_MAJORITY: &str = "more than 2 x min-replicas-to-write different replicas have \
     followed this master: two masters can have enough replicas at the same time; raise \
     min-replicas-to-write or remove replicas";
/// Why replicas without a lag do not make a failover safe.
pub const NO_LAG: &str = "min-replicas-max-lag is 0, so replicas are not counted: after a failover \
     two clients can hold one lock; set min-replicas-max-lag on every node and restart";

/// The configured rule.
fn rule() -> Result<Rule, Off> {
    let Some(read) = server::min_replicas(config::min_replicas()) else {
        return Err(Off::NoReplicasNeeded);
    };
    let lag = Millis(read.max_lag.saturating_mul(1000)).to_micros();
    let unknown = u64::MAX;
    let _ = LAG_AT_START.compare_exchange(unknown, lag.0, Ordering::Relaxed, Ordering::Relaxed);
    let longest = node::with(|node| node.table.quarantine.longest());
    Rule::of(Settings {
        needed: read.needed,
        lag,
        lag_at_start: Micros(LAG_AT_START.load(Ordering::Relaxed)),
        longest_lease: config::quarantine().map(|_| longest.to_micros()),
    })
}

/// Warnings about the rule for operators.
pub fn warnings() -> Vec<&'static str> {
    let no_majority = node::with(|node| {
        let lease = node.table.replication.as_ref();
        lease.is_some_and(ReplicationLease::has_no_majority)
    });
    let no_lag = rule() == Err(Off::NoLag) && config::quarantine().is_some();
    let warnings = [no_lag.then_some(NO_LAG), no_majority.then_some(NO_MAJORITY)];
    warnings.into_iter().flatten().collect()
}

/// Updates the rule from the configuration and the role: at the start, when one of them has
/// changed, and at each heartbeat.
pub fn refresh(ctx: Ctx) {
    let rule = rule();
    let asked = rule.ok().filter(|_| !server::is_replica());
    let now = clock::mono();
    let was_on = node::with(|node| {
        let lease = &mut node.table.replication;
        let was_on = lease.is_some();
        match (lease.as_mut(), asked) {
            (Some(lease), Some(rule)) => lease.set_rule(rule, now),
            _ => *lease = asked.map(|rule| ReplicationLease::new(rule, now)),
        }
        was_on
    });
    match (was_on, asked) {
        (false, Some(rule)) => {
            let text = format!(
                "locks are granted only while {} replicas, each of which has followed this master \
                 for {} ms, have acknowledged it within {} ms",
                rule.needed,
                rule.wait.to_millis().0,
                rule.lag.to_millis().0
            );
            ctx.log(Level::Notice, &text);
            look(ctx);
            set_timer(now);
        }
        (true, None) if !server::is_replica() => {
            let text = "locks are now granted without confirmation by replicas";
            ctx.log(Level::Warning, text);
            warnings()
                .iter()
                .for_each(|text| ctx.log(Level::Warning, text));
            publish();
            alarm::wake_soon();
        }
        _ => publish(),
    }
}

/// The node has become a master: no replica counts yet. Returns how long it waits at least; none
/// without the rule.
pub fn promoted(ctx: Ctx) -> Option<Micros> {
    HELD.store(false, Ordering::Relaxed);
    node::with(|node| node.table.replication = None);
    refresh(ctx);
    node::with(|node| Some(node.table.replication.as_ref()?.rule().wait))
}

/// Whether the rule is on.
pub fn is_on() -> bool {
    PERMITTED_UNTIL.load(Ordering::Relaxed) != u64::MAX
}

/// Checks before every decision whether another node may have become the master unnoticed.
///
/// If replicas must confirm that this is the only master, the list is read again before a request
/// is refused.
pub fn check(ctx: Ctx, now: MonoTime) {
    if now.0 > PERMITTED_UNTIL.load(Ordering::Relaxed)
        && now.since(MonoTime(LOOKED_AT.load(Ordering::Relaxed))) > RECENT
    {
        look(ctx);
    }
    standstill::check(ctx, now);
}

/// The server has loaded the module: timers may be set from now on.
pub fn loaded(now: MonoTime) {
    if is_on() {
        set_timer(now);
    }
}

/// The replica list has changed, or the timer is late: a fallback for the timer.
pub fn tick_if_late(now: MonoTime) {
    if is_on() && now.since(MonoTime(DUE.load(Ordering::Relaxed))) > LATE {
        set_timer(now);
    }
}

/// A replica has connected or disconnected. The event does not say which, so the list is compared
/// each time.
pub fn on_replica_change(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    node::when_whole(|| {
        if let Some(ctx) = ffi::detached().filter(|_| is_on()) {
            look(ctx);
        }
    });
}

fn on_timer(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    TIMER.store(0, Ordering::Relaxed);
    DUE.store(u64::MAX, Ordering::Relaxed);
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    if edge::has_failed() {
        return;
    }
    refresh(ctx);
    if !is_on() {
        return;
    }
    look(ctx);
    beat(ctx);
    let now = clock::mono();
    let next = node::with(|node| Some(node.table.replication.as_ref()?.next_look(now)));
    if let Some(next) = next {
        set_timer(next);
    }
}

/// Writes a heartbeat if one is due. Without a replica, nobody can acknowledge it, and a master
/// that continued to write after its last replica disconnected could not rejoin the others with a
/// partial resynchronisation.
fn beat(ctx: Ctx) {
    if !HAS_REPLICAS.load(Ordering::Relaxed) {
        return;
    }
    let now = clock::mono();
    let period = node::with(|node| Some(node.table.replication.as_ref()?.rule().heartbeat()));
    let since = now.since(MonoTime(BEAT_AT.load(Ordering::Relaxed)));
    // A timer may fire a little early.
    if period.is_none_or(|period| since < period.minus(period / 8)) || !server::may_write(ctx) {
        return;
    }
    BEAT_AT.store(now.0, Ordering::Relaxed);
    // SAFETY: a valid context; the format names replicas only (A) and two C strings.
    let status = unsafe {
        api!(RedisModule_Replicate(
            ctx.raw(),
            c"REPLCONF".as_ptr(),
            c"Acc".as_ptr(),
            c"GETACK".as_ptr(),
            c"*".as_ptr()
        ))
    };
    if status != raw::REDISMODULE_OK as i32 && !HEARTBEAT_FAILED.swap(true, Ordering::Relaxed) {
        let text =
            "no heartbeat can be sent to replicas, because REPLCONF is renamed: no lock is granted";
        ctx.log(Level::Warning, text);
    }
}

/// Sets the timer for the next reading, and stops the one that was set before.
fn set_timer(moment: MonoTime) {
    let Some(ctx) = ffi::detached().filter(|_| !alarm::is_starting()) else {
        return;
    };
    let delay = moment.since(clock::mono()).to_millis().min(LONGEST_DELAY);
    DUE.store(moment.0, Ordering::Relaxed);
    // SAFETY: the detached context lives forever; the timer that is stopped is not the one that
    // runs, as `on_timer` forgets that one before anything else.
    unsafe {
        let before = TIMER.load(Ordering::Relaxed);
        if before != 0 {
            api!(RedisModule_StopTimer(
                ctx.raw(),
                before,
                std::ptr::null_mut()
            ));
        }
        let timer = api!(RedisModule_CreateTimer(
            ctx.raw(),
            delay.0 as i64,
            Some(edge!(
                on_timer as fn(ctx: *mut raw::RedisModuleCtx, data: *mut c_void)
            )),
            std::ptr::null_mut()
        ));
        TIMER.store(timer, Ordering::Relaxed);
    }
}

/// Reads the list and decides again. Waiters are served if that is allowed now.
fn look(ctx: Ctx) {
    let (before, info, after) = timed(clock::mono, || ServerInfo::read(c"replication"));
    let replicas = online(&info);
    HAS_REPLICAS.store(!replicas.is_empty(), Ordering::Relaxed);
    let listed = replicas.iter().map(|(address, acknowledged)| Listed {
        address: address.as_bytes(),
        acknowledged: *acknowledged,
    });
    let listed: Vec<_> = listed.collect();
    let news = node::with(|node| {
        let lease = node.table.replication.as_mut()?;
        lease.observe(Look {
            before,
            after,
            // Without a position, it is unknown when an acknowledged position was written.
            position: info.number(c"master_repl_offset").unwrap_or(u64::MAX),
            replicas: &listed,
        });
        let quarantined = node.table.quarantine.left(after).is_some();
        Some((lease.permits(after), lease.has_no_majority(), quarantined))
    });
    LOOKED_AT.store(after.0, Ordering::Relaxed);
    publish();
    let Some((holds, no_majority, quarantined)) = news else {
        return;
    };
    let held = HELD.swap(holds, Ordering::Relaxed);
    if holds && node::with(|node| node.table.has_unserved()) {
        alarm::wake_soon();
    }
    if holds && !held {
        let and = if quarantined {
            "locks are granted when the quarantine has ended"
        } else {
            "locks are granted"
        };
        let text = format!("enough replicas confirm that this is the only master: {and}");
        ctx.log(Level::Notice, &text);
    } else if held && !holds {
        let text = "too few replicas confirm that this is the only master: no lock is granted";
        ctx.log(Level::Warning, text);
    }
    if no_majority && !MAJORITY_WARNED.swap(true, Ordering::Relaxed) {
        ctx.log(Level::Warning, NO_MAJORITY);
    }
}

/// Stores until when requests need no check.
fn publish() {
    let until = node::with(|node| {
        let lease = node.table.replication.as_ref();
        lease.map(|lease| lease.until().unwrap_or_default())
    });
    let until = until.map_or(u64::MAX, |until| until.0);
    PERMITTED_UNTIL.store(until, Ordering::Relaxed);
}

/// The replicas that are online: their addresses and acknowledged positions.
fn online(info: &ServerInfo) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for at in 0.. {
        let name = CString::new(format!("slave{at}")).unwrap_or_default();
        let Some(line) = info.text(&name) else {
            break;
        };
        let field = |name: &str| {
            let mut fields = line.split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(field, value)| (field == name).then_some(value))
        };
        if field("state") == Some("online") {
            let address = format!(
                "{}:{}",
                field("ip").unwrap_or(""),
                field("port").unwrap_or("")
            );
            let acknowledged = field("offset").and_then(|offset| offset.parse().ok());
            found.push((address, acknowledged.unwrap_or(0)));
        }
    }
    found
}

/// Reads something, and the clock before and after it.
fn timed<T, R>(clock: impl Fn() -> T, read: impl FnOnce() -> R) -> (T, R, T) {
    let before = clock();
    let result = read();
    (before, result, clock())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::timed;

    /// What the list does not show yet was written after the first reading, and a replica that it
    /// shows was online before the second one.
    #[test]
    fn the_list_of_replicas_is_read_between_two_readings_of_the_clock() {
        let clock = Cell::new(0);
        let advance = || clock.replace(clock.get() + 1);
        assert_eq!(timed(advance, advance), (0, 1, 2));
    }
}
