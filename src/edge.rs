//! The edge to the server: every function that the server calls is made by [`edge!`], which catches
//! panics.
//!
//! A panic must not reach C: it would abort the server. It also means that a bug has interrupted a
//! change half-way, so the table of locks can no longer be trusted. From then on the module grants
//! nothing and changes nothing: every LOCK command that writes is refused until the server is
//! restarted ([`has_failed`]).

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;

use crate::ffi::{self, Level};

/// Wraps a function for the server: `edge!(f as fn(argument: Type) -> Type, or value)`. A name and
/// a body can be given instead. After a panic, the server gets `value`.
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

/// [`edge!`] for a callback of an event.
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

/// The reply of every LOCK command that writes, after a failure.
pub const REFUSAL: &str = "LOCKFAILED an internal error has stopped this node: \
     see the server's log, then restart the server";

/// Whether a panic was caught since the start.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Whether a bug has interrupted a change. Then the module writes nothing until the server is
/// restarted.
pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Sends the text of a panic to the server's log instead of its standard error.
pub fn log_panics() {
    set_hook(Box::new(|panic| {
        if has_failed() {
            // Report only the first one. It may cause others, as often as a client sends a request.
            return;
        }
        let text = panic.to_string().replace('\n', " ");
        ffi::log(Level::Warning, &format!("redislock has {text}"));
    }));
}

/// Runs the body of a callback; none if it panicked.
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
            // Do not drop the payload of the panic: that might panic again.
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
        // This child would save incomplete data. If it fails, the earlier file stays in place.
        // SAFETY: ends the child without running any code of the server.
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
    /// How often the keyspace called core.
    pub static DECISIONS: AtomicU64 = AtomicU64::new(0);
    /// The most waiters that were granted nothing and got their replies in one turn.
    pub static MOST_REFUSED: AtomicU64 = AtomicU64::new(0);

    static ARMED: Mutex<Option<String>> = Mutex::new(None);

    /// The next call of this edge panics.
    pub fn arm(edge: &str) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(edge.to_owned());
    }

    /// Whether this process runs without a protection, which REDISLOCK_WITHOUT names. Chaos runs
    /// must detect that.
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
