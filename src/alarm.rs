//! When the module runs without a request: at a given time, soon, or at the end of each turn of the
//! event loop.
//!
//! One alarm (a server timer) is set for the next thing that is due. Server timers follow the wall
//! clock, so the callback checks the monotonic clock. As a fallback, the server's cron also wakes
//! the module, `hz` times a second.
//!
//! A turn of the event loop, as the servers order it:
//!
//! | | Redis 7.0 | Redis 7.2 and later, Valkey |
//! |---|---|---|
//! | 1 | sleeps until a client, a timer or the module pipe has something | the same |
//! | 2 | runs commands of clients; reads the module pipe; runs timers | the same |
//! | 3 | computes how long the next sleep is | – |
//! | 4 | event BEFORE_SLEEP | hands unblocked clients over, runs what they sent behind BLPOP |
//! | 5 | hands unblocked clients over, runs what they had sent behind | event BEFORE_SLEEP |
//! | 6 | runs what clients blocked on keys had sent behind | – |
//! | 7 | sends replies | sends replies; computes how long the next sleep is |
//!
//! So a command may run after BEFORE_SLEEP (5, 6 on 7.0), and the server does not see a timer that
//! is set then before it sleeps. The same applies to a thread of another module that calls our
//! commands while the main thread sleeps. [`nudge`] makes the server take another turn at once.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::table::Wake;
use redislock_core::time::{Micros, Millis, MonoTime};

use crate::clock;
use crate::edge::edge;
use crate::ffi::{self, Ctx, api};

/// Redis 7.0 spins if its next timer is more than 2,147 s away. An alarm that fires early is set
/// again.
const LONGEST_DELAY: Millis = Millis(1_000_000);
/// The server's cron ends every sleep after at most this long (`hz 1`).
const LONGEST_SLEEP: Millis = Millis(1_000);
/// A timer that is set while the alarm fires waits for at least a millisecond. Up to this many
/// slices run in consecutive turns before such a wait: a million leases that end at once are
/// removed in 3 s instead of 5 s, and nearly half of the main thread's time is left to clients.
const SLICES_IN_A_ROW: u32 = 6;
/// Since this version, the server computes the length of its sleep after everything else.
const SLEEPS_LAST: i32 = 0x0007_0200;

/// When the alarm is set to fire, and which timer it is.
static ALARM_AT: AtomicU64 = AtomicU64::new(u64::MAX);
static ALARM: AtomicU64 = AtomicU64::new(0);
/// Whether the alarm's callback is running: the server sees timers that are set meanwhile before
/// its next sleep.
static FIRING: AtomicBool = AtomicBool::new(false);
/// How many slices have followed each other, one in each turn.
static SLICES: AtomicU32 = AtomicU32::new(0);
/// Whether the alarm must fire in the next turn.
static NEXT_TURN: AtomicBool = AtomicBool::new(false);
/// Whether the module is being loaded. The server may still refuse it (`MODULE LOADEX` with an
/// unknown option), and Redis 8.0 crashes if a module that it refuses has a timer. So no timer is
/// set until the server's cron has run once.
static STARTING: AtomicBool = AtomicBool::new(false);
/// Whether the cron has run.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Whether the server is about to take another turn anyway.
static NUDGED: AtomicBool = AtomicBool::new(false);

/// What is fixed when the module is loaded.
struct Fixed {
    callback: fn(Ctx),
    sleeps_last: bool,
    main_thread: libc::pthread_t,
}

static FIXED: OnceLock<Fixed> = OnceLock::new();

/// What the server calls at an event.
pub type OnEvent =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// What the server calls when a timer fires.
pub type OnTimer = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// From now on, `callback` is called when the alarm fires.
pub fn register(callback: fn(Ctx)) {
    // SAFETY: take nothing and return numbers. A server without the first is older than
    // `SLEEPS_LAST`.
    let (version, main_thread) = unsafe {
        let version = raw::RedisModule_GetServerVersion.map_or(0, |version| version());
        (version, libc::pthread_self())
    };
    // The module is loaded once, so a second call would have no effect.
    let _ = FIXED.set(Fixed {
        callback,
        sleeps_last: version >= SLEEPS_LAST,
        main_thread,
    });
}

/// Runs this while the module is being loaded, when no timer may be set.
pub fn while_starting(run: impl FnOnce()) {
    STARTING.store(true, Ordering::Relaxed);
    run();
    STARTING.store(false, Ordering::Relaxed);
}

/// Whether no timer may be set yet.
pub fn is_starting() -> bool {
    STARTING.load(Ordering::Relaxed)
}

/// The server's cron has run. Returns whether this is the first time, so that timers must be set.
pub fn is_first_look() -> bool {
    !STARTED.load(Ordering::Relaxed) && !STARTED.swap(true, Ordering::Relaxed)
}

/// Sets the alarm that a decision requests.
pub fn set(wake: Wake) {
    match wake {
        Wake::At(moment) => wake_at(moment),
        Wake::Soon => wake_soon(),
    }
}

/// Wakes the module at this moment, or a little later.
pub fn wake_at(moment: MonoTime) {
    if moment.0 >= ALARM_AT.load(Ordering::Relaxed) {
        return;
    }
    let Some(ctx) = ffi::detached().filter(|_| !is_starting()) else {
        return;
    };
    let delay = moment.since(clock::mono()).to_millis().min(LONGEST_DELAY);
    let before = ALARM_AT.swap(moment.0, Ordering::Relaxed);
    // SAFETY: the detached context lives forever; the timer that is stopped is not the one that
    // runs, as `on_alarm` forgets that one before anything else.
    unsafe {
        if before != u64::MAX {
            api!(RedisModule_StopTimer(
                ctx.raw(),
                ALARM.load(Ordering::Relaxed),
                std::ptr::null_mut()
            ));
        }
        let timer = api!(RedisModule_CreateTimer(
            ctx.raw(),
            delay.0 as i64,
            Some(edge!(
                on_alarm as fn(ctx: *mut raw::RedisModuleCtx, data: *mut c_void)
            )),
            std::ptr::null_mut()
        ));
        ALARM.store(timer, Ordering::Relaxed);
    }
    if delay < LONGEST_SLEEP && may_sleep_too_long() {
        nudge();
    }
}

/// Whether the server resumes the connections that a module has unblocked before it reports the end
/// of the turn, and not after that.
pub fn is_turn_over_before_event() -> bool {
    // Both orders changed in the same versions.
    FIXED.get().is_some_and(|fixed| fixed.sleeps_last)
}

/// Wakes the module when the server has finished what it is doing now.
pub fn wake_soon() {
    if FIRING.load(Ordering::Relaxed)
        && SLICES.fetch_add(1, Ordering::Relaxed) % SLICES_IN_A_ROW < SLICES_IN_A_ROW - 1
    {
        NEXT_TURN.store(true, Ordering::Relaxed);
        nudge();
    } else {
        wake_at(clock::mono().minus(Micros(1)));
    }
}

/// Stops an alarm that is overdue, so that it is set again. Returns whether there was one. The
/// server's timers follow its wall clock: when the clock is set back, they are late by as much. The
/// alarm itself must not call this.
pub fn take_late(now: MonoTime) -> bool {
    let Some(ctx) = ffi::detached().filter(|_| ALARM_AT.load(Ordering::Relaxed) <= now.0) else {
        return false;
    };
    ALARM_AT.store(u64::MAX, Ordering::Relaxed);
    // SAFETY: the detached context lives forever; the timer that is stopped is not the one that
    // runs.
    unsafe {
        api!(RedisModule_StopTimer(
            ctx.raw(),
            ALARM.load(Ordering::Relaxed),
            std::ptr::null_mut()
        ));
    }
    true
}

/// Whether the server may have computed the length of its next sleep already.
fn may_sleep_too_long() -> bool {
    // SAFETY: takes nothing, returns a number.
    let this_thread = unsafe { libc::pthread_self() };
    let sleeps_last = |fixed: &Fixed| fixed.sleeps_last && fixed.main_thread == this_thread;
    !FIRING.load(Ordering::Relaxed) && !FIXED.get().is_some_and(sleeps_last)
}

/// The server takes another turn of its event loop before it sleeps. It costs a write to a pipe.
pub fn nudge() {
    if !NUDGED.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that takes nothing, called once by the server on its main thread.
        unsafe {
            api!(RedisModule_EventLoopAddOneShot(
                Some(edge!(on_nudge as fn(data: *mut c_void))),
                std::ptr::null_mut()
            ));
        }
    }
}

fn on_nudge(_: *mut c_void) {
    NUDGED.store(false, Ordering::Relaxed);
    if NEXT_TURN.swap(false, Ordering::Relaxed) {
        let now = clock::mono();
        take_late(now);
        wake_at(now.minus(Micros(1)));
    }
}

fn on_alarm(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    ALARM_AT.store(u64::MAX, Ordering::Relaxed);
    if let Some(fixed) = FIXED.get() {
        FIRING.store(true, Ordering::Relaxed);
        // SAFETY: the context of this callback.
        (fixed.callback)(unsafe { Ctx::new(ctx) });
        FIRING.store(false, Ordering::Relaxed);
    }
}

/// Calls back once, after this time. The call comes outside of any event, so it may undo
/// [`call_each_turn`].
pub fn call_later(delay: Millis, callback: OnTimer) {
    if let Some(ctx) = ffi::detached() {
        // SAFETY: the detached context lives forever, and the callback takes no data.
        unsafe {
            api!(RedisModule_CreateTimer(
                ctx.raw(),
                delay.0 as i64,
                Some(callback),
                std::ptr::null_mut()
            ));
        }
    }
}

/// Starts or stops the calls at the events BEFORE_SLEEP and AFTER_SLEEP of each turn. They cost
/// time in every turn of the server, so they are on only while there is something to do. Do not
/// stop them from within a server event: the server would continue with a listener that it has
/// freed.
pub fn call_each_turn(callback: Option<OnEvent>) {
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_EVENTLOOP,
        dataver: 1,
    };
    if let Some(ctx) = ffi::detached() {
        // SAFETY: the detached context lives forever.
        unsafe {
            api!(RedisModule_SubscribeToServerEvent(
                ctx.raw(),
                event,
                callback
            ));
        }
    }
}
