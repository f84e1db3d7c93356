//! The type `redislock`: how a value is saved, loaded, rewritten, measured and freed.
//!
//! A value carries a handle (a `LockId`) in place of a pointer; the lock itself is in the node's
//! table. So freeing a value, which the server may do on another thread, only leaves a notice.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;
use redislock_core::payload::{Origin, Rejected};
use redislock_core::slots::LockId;
use redislock_core::time::{Micros, MonoTime, Now};
use redislock_core::wire;

use crate::alarm;
use crate::clock;
use crate::config;
use crate::edge::edge;
use crate::effects::APPLY;
use crate::ffi::{self, Arg, Ctx, Level, api};
use crate::global::Global;
use crate::keyspace::{is_there, lock_of, note_foreign_change, set_redis_type, value_of};
use crate::node;

/// Nine characters, as the server requires. The version is stored in the last ten bits of the
/// type's id.
const NAME: &std::ffi::CStr = c"redislock";

/// Registers the type.
pub fn register(ctx: Ctx) -> Result<(), String> {
    // Redis 7.0 uses the first one, later servers the second one.
    let aux_save = edge!(
        aux_save as fn(io: *mut raw::RedisModuleIO, when: c_int) -> (), or refuse_to_save(io)
    );
    let mut methods = raw::RedisModuleTypeMethods {
        version: raw::REDISMODULE_TYPE_METHOD_VERSION.into(),
        rdb_load: Some(edge!(rdb_load as fn(
            io: *mut raw::RedisModuleIO,
            version: c_int,
        ) -> *mut c_void, or std::ptr::null_mut())),
        rdb_save: Some(edge!(
            rdb_save as fn(io: *mut raw::RedisModuleIO, value: *mut c_void) -> (),
            or refuse_to_save(io)
        )),
        aof_rewrite: Some(edge!(
            aof_rewrite
                as fn(
                    io: *mut raw::RedisModuleIO,
                    key: *mut raw::RedisModuleString,
                    value: *mut c_void,
                ) -> (),
            or refuse_to_save(io)
        )),
        mem_usage: Some(edge!(mem_usage as fn(value: *const c_void) -> usize, or 0)),
        digest: Some(edge!(
            digest as fn(into: *mut raw::RedisModuleDigest, value: *mut c_void)
        )),
        free: Some(edge!(free as fn(value: *mut c_void))),
        aux_load: Some(edge!(aux_load as fn(
            io: *mut raw::RedisModuleIO,
            version: c_int,
            when: c_int,
        ) -> c_int, or raw::REDISMODULE_ERR as c_int)),
        aux_save: Some(aux_save),
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: Some(edge!(
            unlink as fn(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void)
        )),
        copy2: None,
        aux_save2: Some(aux_save),
    };
    // SAFETY: a valid context; the server copies what it needs of the methods.
    let registered = unsafe {
        api!(RedisModule_CreateDataType(
            ctx.raw(),
            NAME.as_ptr(),
            wire::RDB_VERSION.into(),
            &raw mut methods
        ))
    };
    if registered.is_null() {
        return Err("the server did not accept the type redislock".into());
    }
    set_redis_type(registered);
    Ok(())
}

/// The buffer that a lock is written into before it is saved. Using it again saves an allocation
/// for each lock.
static SAVED: Global<Vec<u8>> = Global::new(Vec::new());

fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    let now = clock::mono();
    let mut bytes = SAVED.with(std::mem::take);
    node::read(|table| {
        let lock = table.as_seen(lock_of(value));
        if let Some(lock) = lock.filter(|lock| !lock.is_free()) {
            wire::save(&lock, table.lease_now(now), &mut bytes);
        }
    });
    if bytes.is_empty() {
        return refuse_to_save(io);
    }
    let (first, second) = wire::strings(&bytes);
    save_bytes(io, first);
    if !second.is_empty() {
        save_bytes(io, second);
    }
    // Do not keep the large buffer of a lock with very many holders.
    if bytes.capacity() <= KEPT {
        bytes.clear();
        SAVED.with(|saved| *saved = bytes);
    }
}

/// The largest buffer that is kept. Every lock with one holder fits into it.
const KEPT: usize = 1024;

fn save_bytes(io: *mut raw::RedisModuleIO, bytes: &[u8]) {
    // SAFETY: the io of this callback.
    unsafe {
        api!(RedisModule_SaveStringBuffer(
            io,
            bytes.as_ptr().cast(),
            bytes.len()
        ))
    }
}

/// Makes a save, a rewrite or a DUMP fail: incomplete data must not replace what was saved before.
/// This happens if another module saves in the middle of a change, when core has removed a lock
/// whose key is not deleted yet. The server has no API for this, but it treats an unknown command
/// as an error, and logs it.
fn refuse_to_save(io: *mut raw::RedisModuleIO) {
    let command = c"none, as a lock is changing";
    // SAFETY: the io of this callback; the format says that no argument follows.
    unsafe { api!(RedisModule_EmitAOF(io, command.as_ptr(), c"".as_ptr())) }
}

/// Whether data that was saved with this version can be loaded.
fn can_load(version: c_int) -> bool {
    u8::try_from(version).is_ok_and(|version| wire::RDB_VERSIONS.contains(&version))
}

fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    load(io, version).map_or(std::ptr::null_mut(), value_of)
}

fn load(io: *mut raw::RedisModuleIO, version: c_int) -> Option<LockId> {
    // While core decides, nothing can be added to the table: a RESTORE is refused. The version is
    // not needed any more: the first byte says how a lock is saved.
    if !can_load(version) || node::is_lent() {
        return None;
    }
    let first = LoadedBytes::of(io)?;
    let both;
    let bytes = if wire::is_first_of_two(first.get()) {
        let second = LoadedBytes::of(io)?;
        both = wire::join(first.get(), second.get()).ok()?;
        &both[..]
    } else {
        first.get()
    };
    // SAFETY: the io of this callback; the name is valid during it.
    let (db, name) = unsafe {
        let name = api!(RedisModule_GetKeyNameFromIO(io));
        let db = api!(RedisModule_GetDbIdFromIO(io));
        let name = if name.is_null() {
            &[][..]
        } else {
            Arg::new(name.cast_mut()).bytes()
        };
        (db.max(0) as u32, name)
    };
    let restored = node::with(|node| {
        let (origin, now) = if node.table.is_loading() {
            // There may be very many values. Leases do not run during a load, so no clock is read.
            (Origin::Trusted, Now::default())
        } else {
            (origin(), clock::now())
        };
        node.table.restore(db, name, bytes, origin, now)
    });
    restored
        .inspect_err(|rejected| log_rejection(*rejected))
        .ok()
}

/// Where the value that is being loaded comes from.
///
/// The server does not say which command loads it. While a dataset is loaded no client can write. A
/// replica that clients cannot write to gets values only from its master. On a writable replica, a
/// value may come from the master or a client. On a master that is not loading it is RESTORE, or
/// MIGRATE from another node.
fn origin() -> Origin {
    let flags = ffi::detached().map_or(0, Ctx::flags);
    let has = |flag| flags & flag != 0;
    if has(raw::REDISMODULE_CTX_FLAGS_LOADING)
        || has(raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING)
        || has(raw::REDISMODULE_CTX_FLAGS_READONLY)
    {
        return Origin::Trusted;
    }
    if !has(raw::REDISMODULE_CTX_FLAGS_MASTER) {
        return Origin::MasterOrClient;
    }
    Origin::Client {
        longest_lease: config::quarantine(),
    }
}

/// When a rejected payload was last logged.
static LOGGED: AtomicU64 = AtomicU64::new(0);
/// Rejected payloads are logged at most once in this time: any client can send them.
const LOG_EVERY: Micros = Micros(1_000_000);

/// Logs why a payload was rejected. The server's reply to the client is only "Bad data format".
#[cold]
fn log_rejection(rejected: Rejected) {
    let why = match rejected {
        Rejected::Malformed => return,
        Rejected::FenceTooFarAhead => "its fence is too far ahead of this node's clock",
        Rejected::LeaseTooLong => "its lease is longer than lock.quarantine",
    };
    let now = clock::mono();
    if now.since(MonoTime(LOGGED.load(Ordering::Relaxed))) >= LOG_EVERY {
        LOGGED.store(now.0, Ordering::Relaxed);
        ffi::log(
            Level::Warning,
            &format!("refused a lock from RESTORE or MIGRATE: {why}"),
        );
    }
}

/// A byte string of an RDB file; nothing in it is trusted.
struct LoadedBytes {
    start: std::ptr::NonNull<u8>,
    len: usize,
}

impl LoadedBytes {
    /// The next one; none at the end or after an error, for which the server returns no buffer.
    fn of(io: *mut raw::RedisModuleIO) -> Option<Self> {
        let mut len = 0;
        // SAFETY: the io of this callback.
        let start = unsafe { api!(RedisModule_LoadStringBuffer(io, &raw mut len)) };
        let start = std::ptr::NonNull::new(start.cast())?;
        Some(Self { start, len })
    }

    fn get(&self) -> &[u8] {
        // SAFETY: this many bytes, which only this value refers to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for LoadedBytes {
    fn drop(&mut self) {
        // SAFETY: the server made them for us, with its allocator.
        unsafe { api!(RedisModule_Free(self.start.as_ptr().cast())) }
    }
}

/// Saves what is not in any key: the fence counter, and the data of the quarantine.
fn aux_save(io: *mut raw::RedisModuleIO, _: c_int) {
    let mut bytes = Vec::new();
    wire::put_header(node::read(|table| table.header()), &mut bytes);
    save_bytes(io, &bytes);
}

fn aux_load(io: *mut raw::RedisModuleIO, version: c_int, _: c_int) -> c_int {
    let (ok, error) = (raw::REDISMODULE_OK as c_int, raw::REDISMODULE_ERR as c_int);
    if !can_load(version) {
        let known = wire::RDB_VERSION;
        let text = format!(
            "these locks were saved by another version of redislock (format {version}, this \
             version reads format {known}): start the server with the version that saved them, or \
             a newer one"
        );
        ffi::log(Level::Warning, &text);
        return error;
    }
    let Some(bytes) = LoadedBytes::of(io) else {
        return error;
    };
    let mut reader = wire::Reader(bytes.get());
    match reader.header() {
        Ok(header) if reader.0.is_empty() => {
            node::when_whole(move || node::with(|node| node.table.take_in(header)));
            ok
        }
        _ => error,
    }
}

fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    let id = lock_of(value);
    let effect = node::read(|table| {
        let known = table.lock(id)?;
        (!known.is_free()).then(|| table.whole_effect(Some(id), clock::mono()))
    });
    let Some(effect) = effect else {
        return refuse_to_save(io);
    };
    // SAFETY: the io of this callback; the format describes a buffer with its length and a string.
    unsafe {
        api!(RedisModule_EmitAOF(
            io,
            APPLY.as_ptr(),
            c"bs".as_ptr(),
            effect.as_ptr(),
            effect.len(),
            key
        ))
    }
}

fn mem_usage(value: *const c_void) -> usize {
    node::read(|table| table.memory(lock_of(value.cast_mut())))
}

fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    node::read(|table| {
        let Some(lock) = table.lock(lock_of(value)) else {
            return;
        };
        let mut bytes = Vec::new();
        wire::put_identity(lock, &mut bytes);
        // SAFETY: the digest of this callback.
        unsafe {
            api!(RedisModule_DigestAddStringBuffer(
                digest,
                bytes.as_ptr().cast(),
                bytes.len()
            ));
            api!(RedisModule_DigestEndSequence(digest));
        }
    });
}

/// May run on any thread.
fn free(value: *mut c_void) {
    node::freed(lock_of(value));
}

/// Whether a key whose value is unlinked is still there: then another value replaces it. Only Redis
/// 7.0 can answer this; later servers report which command a deletion belongs to.
///
/// # Safety
/// The context of an unlink callback, and the name of its key.
unsafe fn is_written_over(
    ctx: *mut raw::RedisModuleKeyOptCtx,
    name: *const raw::RedisModuleString,
) -> bool {
    let Some(detached) = ffi::detached().filter(|_| ffi::time_of_command().is_none()) else {
        return false;
    };
    // SAFETY: as the caller promises; the name is valid during the callback.
    unsafe {
        detached.select(api!(RedisModule_GetDbIdFromOptCtx(ctx)) as u32);
        is_there(detached, Arg::new(name.cast_mut()))
    }
}

/// The key is about to be removed, by this module (then the node knows already) or by anything
/// else.
fn unlink(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    let by = ffi::time_of_command().unwrap_or(0);
    let news = node::unlinked(lock_of(value.cast_mut()), by, || {
        // SAFETY: the context of this callback; the name is valid during it.
        unsafe {
            let name = api!(RedisModule_GetKeyNameFromOptCtx(ctx));
            if name.is_null() || is_written_over(ctx, name) {
                0
            } else {
                node::fingerprint(Arg::new(name.cast_mut()).bytes())
            }
        }
    });
    if news {
        note_foreign_change();
        if node::anyone_waits() {
            alarm::wake_soon();
        }
    }
}
