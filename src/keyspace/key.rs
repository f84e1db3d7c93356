//! Open keys, and their values.

use std::cell::Cell;
use std::ffi::c_int;

use redis_module::raw;
use redislock_core::slots::LockId;
use redislock_core::table::{Found, LegacyString};
use redislock_core::time::Millis;

use super::value::{lock_of, redis_type, value_of};
use crate::clock;
use crate::config::LEGACY_STRINGS;
use crate::ffi::{Arg, Ctx, api};

/// How to open a key.
#[derive(Clone, Copy)]
pub(super) enum For {
    Reading,
    Writing,
    /// Only to look at the value: no event is sent, and an expired key is not deleted (Redis 7.0
    /// deletes it all the same).
    Looking,
}

/// An open key; null when it is missing, or closed.
pub(super) struct OpenKey(Cell<*mut raw::RedisModuleKey>);

impl OpenKey {
    /// Opens a key of the selected database.
    pub(super) fn new(ctx: Ctx, name: Arg<'_>, purpose: For) -> Self {
        let mode = match purpose {
            For::Reading => raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH,
            For::Writing => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
            // Opening for writing sends no event about a missing key. This is also true on Redis
            // 7.0, which does not know the other flags.
            For::Looking => {
                raw::REDISMODULE_READ
                    | raw::REDISMODULE_WRITE
                    | raw::REDISMODULE_OPEN_KEY_NOTOUCH
                    | raw::REDISMODULE_OPEN_KEY_NONOTIFY
                    | raw::REDISMODULE_OPEN_KEY_NOSTATS
                    | raw::REDISMODULE_OPEN_KEY_NOEXPIRE
            }
        };
        // SAFETY: a valid context and string; closed by `close`.
        let key = unsafe { api!(RedisModule_OpenKey(ctx.raw(), name.raw(), mode as c_int)) };
        Self(Cell::new(key.cast()))
    }

    /// A key that is not open.
    pub(super) fn closed() -> Self {
        Self(Cell::new(std::ptr::null_mut()))
    }

    /// Whether it is open. A missing key can be open for writing, too.
    pub(super) fn is_open(&self) -> bool {
        !self.0.get().is_null()
    }

    /// Whether the key exists.
    pub(super) fn exists(&self) -> bool {
        let key = self.0.get();
        // SAFETY: an open key.
        !key.is_null()
            && unsafe { api!(RedisModule_KeyType(key)) } != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
    }

    /// The value of the key.
    pub(super) fn found(&self) -> Found {
        let key = self.0.get();
        if !self.exists() {
            return Found::Nothing;
        }
        // SAFETY: an open key.
        unsafe {
            if api!(RedisModule_ModuleTypeGetType(key)) == redis_type() {
                Found::Lock(lock_of(api!(RedisModule_ModuleTypeGetValue(key))))
            } else if LEGACY_STRINGS.is_on()
                && api!(RedisModule_KeyType(key)) == raw::REDISMODULE_KEYTYPE_STRING as c_int
            {
                // Negative if there is no TTL.
                let left = u64::try_from(api!(RedisModule_GetExpire(key))).ok();
                Found::LegacyString(string_with(left.map(Millis)))
            } else {
                Found::Other
            }
        }
    }

    /// The database that it is in. Inside EXEC, Valkey 9.1 reports the database of the transaction
    /// as the selected one, even in a callback for another database; the key has the right one.
    pub(super) fn db(&self) -> Option<u32> {
        let key = self.0.get();
        if key.is_null() {
            return None;
        }
        // SAFETY: an open key.
        u32::try_from(unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }).ok()
    }

    /// Stores a lock. The key is open for writing, and empty or without a known lock.
    pub(super) fn set(&self, id: LockId) {
        // SAFETY: an open key, our own type; the value is a handle that the type's callbacks
        // understand.
        unsafe {
            api!(RedisModule_ModuleTypeSetValue(
                self.0.get(),
                redis_type(),
                value_of(id)
            ));
        }
    }

    /// Removes the TTL of the key, which is open for writing. Returns whether it had one.
    pub(super) fn clear_ttl(&self) -> bool {
        let none = raw::REDISMODULE_NO_EXPIRE as raw::mstime_t;
        // SAFETY: an open key.
        unsafe {
            let has_ttl = api!(RedisModule_GetExpire(self.0.get())) != none;
            if has_ttl {
                api!(RedisModule_SetExpire(self.0.get(), none));
            }
            has_ttl
        }
    }

    /// Deletes the key. It is open for writing.
    pub(super) fn delete(&self) {
        // SAFETY: an open key.
        unsafe {
            api!(RedisModule_DeleteKey(self.0.get()));
        }
    }

    /// Closes the key. It must not be used afterwards.
    pub(super) fn close(&self) {
        let key = self.0.replace(std::ptr::null_mut());
        if !key.is_null() {
            // SAFETY: opened in `new`, closed once.
            unsafe { api!(RedisModule_CloseKey(key)) }
        }
    }
}

impl Drop for OpenKey {
    fn drop(&mut self) {
        self.close();
    }
}

/// A string with this TTL, or without one. The server deletes it one millisecond after its TTL
/// reaches zero.
fn string_with(left: Option<Millis>) -> LegacyString {
    let more = Millis(1).to_micros();
    let end = left.map(|left| clock::mono().plus(left.to_micros()).plus(more));
    LegacyString { end }
}
