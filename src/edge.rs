//! The edge to the server: every function that the server calls is made by [`edge!`], which lets no
//! panic out.
//!
//! A panic must not reach C: it would abort the server. It also means that a bug has interrupted a
//! change half-way, so the table of locks can no longer be trusted. From then on the module grants
//! nothing and changes nothing: every LOCK command that writes is refused until the server is
//! restarted ([`has_failed`]).

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use crate::ffi::{self, Level};

/// Makes what the server calls out of a function: `edge!(f as fn(argument: Type) -> Type, or
/// value)`, or out of a name and what is to be done. After a panic the server gets `value`.
macro_rules! edge {
    ($function:path as fn($($argument:ident: $kind:ty),* $(,)?)) => {
        $crate::edge::edge!($function as fn($($argument: $kind),*) -> (), or ())
    };
    ($function:path as fn($($argument:ident: $kind:ty),* $(,)?) -> $result:ty,
     or $otherwise:expr) => {
        $crate::edge::edge!(
            stringify!($function),
            |$($argument: $kind),*| -> $result { $function($($argument),*) },
            or $otherwise
        )
    };
    ($name:expr, |$($argument:ident: $kind:ty),* $(,)?| -> $result:ty $body:block,
     or $otherwise:expr) => {{
        extern "C" fn called($($argument: $kind),*) -> $result {
            $crate::edge::catch($name, || $body).unwrap_or_else(|| $otherwise)
        }
        called
    }};
}
pub(crate) use edge;

/// [`edge!`] for what the server calls at an event.
macro_rules! on_event {
    ($function:path) => {
        $crate::edge::edge!(
            $function
                as fn(
                    ctx: *mut redis_module::raw::RedisModuleCtx,
                    event: redis_module::raw::RedisModuleEvent,
                    stage: u64,
                    data: *mut std::ffi::c_void,
                )
        )
    };
}
pub(crate) use on_event;

/// What every LOCK command that writes replies after a failure.
pub const REFUSAL: &str = "LOCKFAILED an internal error has stopped this node: \
     see the server's log, then restart the server";

/// Whether a panic was caught since the start.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether a bug has interrupted a change. The module writes nothing then, until the server is
/// restarted.
pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Sends the text of a panic to the server's log instead of its standard error.
pub fn log_panics() {
    set_hook(Box::new(|panic| {
        if has_failed() {
            // The first one is the one to report. Others may follow from it, as often as a client
            // asks.
            return;
        }
        let text = panic.to_string().replace('\n', " ");
        ffi::log(Level::Warning, &format!("redislock has {text}"));
    }));
}

/// Runs what the server asked for; none if that panicked.
#[inline]
pub fn catch<R>(edge: &'static str, run: impl FnOnce() -> R) -> Option<R> {
    let guarded = || {
        #[cfg(feature = "failpoints")]
        failpoint::pass(edge);
        run()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(result) => Some(result),
        Err(panic) => {
            // What it carries is not ours to drop: that might panic again.
            std::mem::forget(panic);
            fail(edge);
            None
        }
    }
}

#[cold]
fn fail(edge: &'static str) {
    if !FAILED.swap(true, Ordering::Relaxed) {
        ffi::log(
            Level::Warning,
            &format!(
                "an internal error in {edge} has stopped redislock: every LOCK command that \
                 writes is refused until this server is restarted. Please report it with the \
                 line above"
            ),
        );
    }
    if ffi::detached().is_some_and(|ctx| ctx.has(raw::REDISMODULE_CTX_FLAGS_IS_CHILD)) {
        // What this child would save is not whole. Its failure leaves the earlier file in place.
        // SAFETY: ends the child without running anything of the server's.
        unsafe { libc::_exit(1) }
    }
}

/// Panics on request, and counts, for tests. Release builds do not have this.
#[cfg(feature = "failpoints")]
pub mod failpoint {
    use std::sync::atomic::AtomicU64;
    use std::sync::{LazyLock, Mutex, PoisonError};

    /// How often the node's state was borrowed.
    pub static BORROWS: AtomicU64 = AtomicU64::new(0);
    /// How often the keyspace let core decide.
    pub static DECISIONS: AtomicU64 = AtomicU64::new(0);

    static ARMED: Mutex<Option<String>> = Mutex::new(None);

    /// The next call of this edge panics.
    pub fn arm(edge: &str) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(edge.to_owned());
    }

    /// Whether this process goes without a protection: REDISLOCK_WITHOUT names it. Chaos runs must
    /// notice.
    pub fn lacks(protection: &str) -> bool {
        static WITHOUT: LazyLock<Option<String>> =
            LazyLock::new(|| std::env::var("REDISLOCK_WITHOUT").ok());
        WITHOUT.as_deref() == Some(protection)
    }

    /// The server calls an edge.
    pub fn pass(edge: &str) {
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.as_deref() == Some(edge) {
            *armed = None;
            drop(armed);
            panic!("failpoint in {edge}");
        }
    }
}
