//! Safe wrappers around the server's API: every `unsafe` call that more than one file needs.
//!
//! What makes these calls sound: the server calls the module on its main thread (or with its global
//! lock held), a context, a key or a string is used only during the callback that received it, and
//! `lib.rs` checks at load that the server is new enough to have every function.

mod argument;
mod server_info;

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

pub use argument::{Arg, Args, OwnedString};
use redis_module::raw;
pub use server_info::ServerInfo;

/// Calls a function of the server's API that was checked at load.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$function {
            Some(function) => function($($argument),*),
            None => $crate::ffi::missing(stringify!($function)),
        }
    };
}
pub(crate) use api;

/// Whether the server has a function.
macro_rules! there {
    ($function:ident) => {{
        // SAFETY: a function pointer that the server may have filled in at load; it is copied.
        let function = unsafe { redis_module::raw::$function };
        function.is_some()
    }};
}
pub(crate) use there;

/// Stops the server: a function that it provided at load is missing, so nothing is safe now.
pub fn missing(name: &str) -> ! {
    eprintln!("redislock: the server no longer provides {name}");
    std::process::abort()
}

/// The level of a log line.
#[derive(Clone, Copy)]
pub enum Level {
    Notice,
    Warning,
}

/// The detached context, which always exists: for timers, for the log, and for callbacks without a
/// context.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(std::ptr::null_mut());

/// Creates the detached context, unless the server is too old for that.
pub fn detach(ctx: Ctx) {
    if !there!(RedisModule_GetDetachedThreadSafeContext) {
        return;
    }
    // SAFETY: a valid context, during load; the detached one stays as long as the module is loaded.
    let detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.raw())) };
    DETACHED.store(detached, Ordering::Relaxed);
}

/// Frees the detached context: the server unloads a module that it cannot load, and would keep the
/// context.
pub fn not_loaded() {
    let detached = DETACHED.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if !detached.is_null() {
        // SAFETY: `detach` made it, and nothing of this module runs any more.
        unsafe { api!(RedisModule_FreeThreadSafeContext(detached)) };
    }
}

/// The detached context; none before the module is loaded.
pub fn detached() -> Option<Ctx> {
    let ctx = DETACHED.load(Ordering::Relaxed);
    (!ctx.is_null()).then_some(Ctx(ctx))
}

/// When the running command, script or transaction began, µs. Each has a different number. None on
/// Redis 7.0, which does not report it.
pub fn time_of_command() -> Option<u64> {
    // SAFETY: a function that the server may have; it takes nothing and returns a number.
    let time = unsafe { raw::RedisModule_CachedMicroseconds.map(|time| time()) };
    time.map(|time| time as u64)
}

/// Writes to the server's log, also outside of a callback.
pub fn log(level: Level, text: &str) {
    if let Some(ctx) = detached() {
        ctx.log(level, text);
    }
}

/// The context of a callback.
#[derive(Clone, Copy)]
pub struct Ctx(*mut raw::RedisModuleCtx);

impl Ctx {
    /// # Safety
    /// `ctx` is the context of the callback that is running, or a detached one that is never freed.
    pub unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self(ctx)
    }

    pub fn raw(self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    /// The current `REDISMODULE_CTX_FLAGS_*`.
    pub fn flags(self) -> u32 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetContextFlags(self.0)) as u32 }
    }

    pub fn has(self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    pub fn db(self) -> u32 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetSelectedDb(self.0)) as u32 }
    }

    pub fn select(self, db: u32) {
        // SAFETY: a valid context; a number out of range is refused by the server.
        unsafe {
            api!(RedisModule_SelectDb(self.0, db as c_int));
        }
    }

    /// The connection of the client that sent the command; none for a script or a call by another
    /// module.
    pub fn connection(self) -> Option<u64> {
        self.connection_by(self.flags())
    }

    /// [`Ctx::connection`] for a caller that has read the flags, which takes 130 instructions.
    pub fn connection_by(self, flags: u32) -> Option<u64> {
        // A call by another module may not block, unless the server allows it. A transaction may
        // not block either, but its client has a connection. SAFETY: a function that the server may
        // have provided at load.
        let promise = unsafe { raw::RedisModule_CallReplyPromiseSetUnblockHandler };
        let may_have_none =
            promise.is_some() || flags & raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING != 0;
        if flags & raw::REDISMODULE_CTX_FLAGS_LUA != 0 || may_have_none && !self.has_connection() {
            None
        } else {
            Some(self.client())
        }
    }

    /// Whether the client that runs the command is a connection: the server knows it by its id, and
    /// it has a user. (Valkey 9.1 knows the client of a module by its id, too, and crashes when it
    /// is asked for its address.)
    pub fn has_connection(self) -> bool {
        // SAFETY: a valid context; the string is freed here.
        unsafe {
            let user = api!(RedisModule_GetClientUserNameById(self.0, self.client()));
            if user.is_null() {
                return false;
            }
            api!(RedisModule_FreeString(self.0, user));
        }
        true
    }

    /// The id of the client that runs the command, even if it is not a connection.
    pub fn client(self) -> u64 {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetClientId(self.0)) }
    }

    /// The name of the user of a connection; none if there is no such connection.
    pub fn user_of_client(self, id: u64) -> Option<Vec<u8>> {
        // SAFETY: a valid context; the name is copied and freed here.
        unsafe {
            let name = api!(RedisModule_GetClientUserNameById(self.0, id));
            if name.is_null() {
                return None;
            }
            let user = Arg::new(name).bytes().to_vec();
            api!(RedisModule_FreeString(self.0, name));
            Some(user)
        }
    }

    pub fn signal_modified(self, name: Arg<'_>) {
        // SAFETY: a valid context and string.
        unsafe {
            api!(RedisModule_SignalModifiedKey(self.0, name.raw()));
        }
    }

    pub fn notify(self, event: &CStr, name: Arg<'_>) {
        let class = raw::REDISMODULE_NOTIFY_MODULE as c_int;
        // SAFETY: a valid context, a C string, a valid string.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.0,
                class,
                event.as_ptr(),
                name.raw()
            ));
        }
    }

    /// Sends a command to replicas and the AOF: its first argument, followed by the keys.
    pub fn replicate(self, command: &CStr, first: &[u8], keys: &[*mut raw::RedisModuleString]) {
        let command = command.as_ptr();
        let (bytes, len) = (first.as_ptr(), first.len());
        // SAFETY: a valid context; the arguments are what the format names: a buffer with its
        // length, then one string, or a vector of strings with its length. All are copied or
        // counted by the server.
        unsafe {
            match keys {
                [key] => api!(RedisModule_Replicate(
                    self.0,
                    command,
                    c"bs".as_ptr(),
                    bytes,
                    len,
                    *key
                )),
                _ => api!(RedisModule_Replicate(
                    self.0,
                    command,
                    c"bv".as_ptr(),
                    bytes,
                    len,
                    keys.as_ptr(),
                    keys.len()
                )),
            };
        }
    }

    /// Replicates the running command unchanged.
    pub fn replicate_as_is(self) {
        // SAFETY: the context of a command.
        unsafe {
            api!(RedisModule_ReplicateVerbatim(self.0));
        }
    }

    pub fn log(self, level: Level, text: &str) {
        let level = match level {
            Level::Notice => c"notice",
            Level::Warning => c"warning",
        };
        let text = std::ffi::CString::new(text).unwrap_or_default();
        // SAFETY: the text is an argument of a constant format, never a format itself.
        unsafe {
            api!(RedisModule_Log(
                self.0,
                level.as_ptr(),
                c"%s".as_ptr(),
                text.as_ptr()
            ))
        }
    }

    pub fn reply_integer(self, number: u64) {
        // SAFETY: a valid context. Nothing we reply with is above 2^63.
        unsafe {
            api!(RedisModule_ReplyWithLongLong(self.0, number as i64));
        }
    }

    pub fn reply_null(self) {
        // SAFETY: a valid context.
        unsafe {
            api!(RedisModule_ReplyWithNull(self.0));
        }
    }

    pub fn reply_bytes(self, bytes: &[u8]) {
        // SAFETY: a valid context; the bytes are copied.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(
                self.0,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
        }
    }

    /// Replies with a line that clients show without quotes.
    pub fn reply_status(self, text: &str) {
        let text = std::ffi::CString::new(text).unwrap_or_default();
        // SAFETY: a valid context and C string, copied.
        unsafe {
            api!(RedisModule_ReplyWithSimpleString(self.0, text.as_ptr()));
        }
    }

    pub fn reply_array(self, len: usize) {
        // SAFETY: a valid context.
        unsafe {
            api!(RedisModule_ReplyWithArray(self.0, len as std::ffi::c_long));
        }
    }

    pub fn reply_map(self, len: usize) {
        // SAFETY: a valid context.
        unsafe {
            api!(RedisModule_ReplyWithMap(self.0, len as std::ffi::c_long));
        }
    }

    pub fn reply_error(self, text: &str) {
        let text = std::ffi::CString::new(text).unwrap_or_default();
        // SAFETY: a valid context and C string, copied.
        unsafe {
            api!(RedisModule_ReplyWithError(self.0, text.as_ptr()));
        }
    }

    /// Whether the server calls only to find out which arguments are keys.
    pub fn is_key_query(self) -> bool {
        // SAFETY: the context of a command.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.0)) != 0 }
    }

    /// Reports that argument `at` is a key with these flags.
    pub fn key_at(self, at: usize, flags: u32) {
        // SAFETY: the context of a command that the server queries for its keys.
        unsafe {
            api!(RedisModule_KeyAtPosWithFlags(
                self.0,
                at as c_int,
                flags as c_int
            ))
        }
    }

    pub fn wrong_arity(self) {
        // SAFETY: a valid context of a command.
        unsafe {
            api!(RedisModule_WrongArity(self.0));
        }
    }

    /// Runs a server command for the module itself, and returns all strings of its reply, however
    /// deeply nested.
    pub fn ask(self, command: &CStr, arguments: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
        let strings: Vec<_> = arguments
            .iter()
            .map(|argument| OwnedString::new(argument))
            .collect();
        let raw: Vec<_> = strings.iter().map(|string| string.arg().raw()).collect();
        // SAFETY: the format describes a vector of strings with its length; the reply is read and
        // freed here.
        unsafe {
            let reply = api!(RedisModule_Call(
                self.0,
                command.as_ptr(),
                c"v".as_ptr(),
                raw.as_ptr(),
                raw.len()
            ));
            if reply.is_null() {
                return None;
            }
            let mut found = Vec::new();
            collect(reply, &mut found);
            api!(RedisModule_FreeCallReply(reply));
            Some(found)
        }
    }
}

/// The strings of a reply, however deeply nested.
///
/// # Safety
/// `reply` is a valid reply.
unsafe fn collect(reply: *mut raw::RedisModuleCallReply, found: &mut Vec<Vec<u8>>) {
    // SAFETY: as the caller promises; elements live as long as the reply.
    unsafe {
        let kind = api!(RedisModule_CallReplyType(reply));
        if kind == raw::REDISMODULE_REPLY_ARRAY as c_int
            || kind == raw::REDISMODULE_REPLY_SET as c_int
        {
            for at in 0..api!(RedisModule_CallReplyLength(reply)) {
                collect(api!(RedisModule_CallReplyArrayElement(reply, at)), found);
            }
            return;
        }
        let mut len = 0;
        let text = api!(RedisModule_CallReplyStringPtr(reply, &raw mut len));
        if !text.is_null() {
            found.push(std::slice::from_raw_parts(text.cast(), len).to_vec());
        }
    }
}
