//! The type `redislock`: how a value is saved, loaded, rewritten, measured and freed.
//!
//! A value carries a handle ([`LockId`]) in place of a pointer; the lock itself is in the node's table. So freeing a value,
//! which the server may do on another thread, is leaving a letter.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use redislock_core::slots::LockId;
use redislock_core::token::Key;
use redislock_core::wire::{self, put_number};

use crate::clock;
use crate::ffi::{Arg, Ctx, api, lock_of, value_of};
use crate::lifecycle;
use crate::node::{self, Letter};

/// Nine characters, as the server wants it; the last ten bits of a type's name are its version.
const NAME: &std::ffi::CStr = c"redislock";

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

/// The type, as the server knows it.
pub fn redis_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// Registers the type.
pub fn register(ctx: Ctx) -> Result<(), String> {
    let mut methods = raw::RedisModuleTypeMethods {
        version: raw::REDISMODULE_TYPE_METHOD_VERSION.into(),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        digest: Some(digest),
        free: Some(free),
        aux_load: Some(aux_load),
        aux_save: Some(aux_save),
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: Some(unlink),
        copy2: None,
        aux_save2: Some(aux_save),
    };
    // SAFETY: a valid context; the server copies what it needs of the methods.
    let registered = unsafe {
        api!(RedisModule_CreateDataType(
            ctx.raw(),
            NAME.as_ptr(),
            wire::VERSION.into(),
            &raw mut methods
        ))
    };
    if registered.is_null() {
        return Err("the server did not accept the type redislock".into());
    }
    TYPE.store(registered, Ordering::Relaxed);
    Ok(())
}

/// The saved form of a lock.
fn saved(id: LockId) -> Vec<u8> {
    let now = clock::mono();
    let mut bytes = Vec::new();
    node::with(|node| {
        if let Some(lock) = node.table.lock(id) {
            wire::save(lock, node.table.lease_now(now), &mut bytes);
        }
    });
    bytes
}

extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    let bytes = saved(lock_of(value));
    // SAFETY: the io of this callback.
    unsafe {
        api!(RedisModule_SaveStringBuffer(
            io,
            bytes.as_ptr().cast(),
            bytes.len()
        ))
    }
}

extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    if version != c_int::from(wire::VERSION) {
        return std::ptr::null_mut();
    }
    let Some(bytes) = load_bytes(io) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the io of this callback; the name is valid during it.
    let key = unsafe {
        let name = api!(RedisModule_GetKeyNameFromIO(io));
        let db = api!(RedisModule_GetDbIdFromIO(io));
        let name = if name.is_null() {
            &[][..]
        } else {
            Arg::new(name.cast_mut()).bytes()
        };
        Key::new(db.max(0) as u32, name)
    };
    let now = clock::now();
    node::with(|node| node.table.restore(key, &bytes, now)).map_or(std::ptr::null_mut(), value_of)
}

/// A byte string of an RDB file, which may lie about anything.
fn load_bytes(io: *mut raw::RedisModuleIO) -> Option<Vec<u8>> {
    let mut len = 0;
    // SAFETY: the io of this callback; the buffer is ours and freed here.
    unsafe {
        let start = api!(RedisModule_LoadStringBuffer(io, &raw mut len));
        if start.is_null() {
            return None;
        }
        let bytes = std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec();
        api!(RedisModule_Free(start.cast()));
        (api!(RedisModule_IsIOError(io)) == 0).then_some(bytes)
    }
}

/// What is not in any key: the fence counter, and what quarantine has to remember.
extern "C" fn aux_save(io: *mut raw::RedisModuleIO, _: c_int) {
    let mut bytes = Vec::new();
    node::with(|node| {
        put_number(node.table.fence(), &mut bytes);
        put_number(node.table.quarantine.to_save(), &mut bytes);
    });
    // SAFETY: the io of this callback.
    unsafe {
        api!(RedisModule_SaveStringBuffer(
            io,
            bytes.as_ptr().cast(),
            bytes.len()
        ))
    }
}

extern "C" fn aux_load(io: *mut raw::RedisModuleIO, version: c_int, _: c_int) -> c_int {
    let (ok, error) = (raw::REDISMODULE_OK as c_int, raw::REDISMODULE_ERR as c_int);
    if version != c_int::from(wire::VERSION) {
        return error;
    }
    let Some(bytes) = load_bytes(io) else {
        return error;
    };
    let mut reader = wire::Reader(&bytes);
    match crate::command::apply::read_head(&mut reader) {
        Ok(head) if reader.0.is_empty() => {
            node::with(|node| head.take_in(node));
            ok
        }
        _ => error,
    }
}

extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    let now = clock::mono();
    let mut effect = Vec::new();
    node::with(|node| {
        node.table.put_head(&mut effect);
        if let Some(lock) = node.table.lock(lock_of(value)) {
            wire::put_whole(lock, node.table.lease_now(now), &mut effect);
        }
    });
    let command = crate::command::APPLY.as_ptr();
    // SAFETY: the io of this callback; the format says a buffer with its length and a string.
    unsafe {
        api!(RedisModule_EmitAOF(
            io,
            command,
            c"bs".as_ptr(),
            effect.as_ptr(),
            effect.len(),
            key
        ))
    }
}

extern "C" fn mem_usage(value: *const c_void) -> usize {
    node::with(|node| node.table.memory(lock_of(value.cast_mut())))
}

extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    node::with(|node| {
        let Some(lock) = node.table.lock(lock_of(value)) else {
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
extern "C" fn free(value: *mut c_void) {
    node::post(Letter::Freed(lock_of(value)));
}

/// The key is about to be removed, by us (then it is no news) or by anything else.
extern "C" fn unlink(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    let news = node::unlinked(lock_of(value.cast_mut()), || {
        // SAFETY: the context of this callback; the name is valid during it.
        unsafe {
            let name = api!(RedisModule_GetKeyNameFromOptCtx(ctx));
            if name.is_null() {
                0
            } else {
                node::fingerprint(Arg::new(name.cast_mut()).bytes())
            }
        }
    });
    if news && node::anyone_waits() {
        lifecycle::wake_soon();
    }
}
