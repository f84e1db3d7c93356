//! Keys that are open, and what is found at them.

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
    /// To see what is there, and nothing else: no event is sent, nothing is deleted because its
    /// time is up (7.0 deletes it all the same).
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
            // To open for writing sends no event about a missing key, on 7.0 too, which does not
            // know the other flags.
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

    /// Whether it is open. For writing, a missing key can be open, too.
    pub(super) fn is_open(&self) -> bool {
        !self.0.get().is_null()
    }

    /// Whether anything is at the key.
    pub(super) fn exists(&self) -> bool {
        let key = self.0.get();
        // SAFETY: an open key.
        !key.is_null()
            && unsafe { api!(RedisModule_KeyType(key)) } != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
    }

    /// What is at the key.
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

    /// The database that it is in. Inside EXEC, Valkey 9.1 takes the database of the transaction
    /// for the selected one, whatever was selected for a callback; a key knows better.
    pub(super) fn db(&self) -> Option<u32> {
        let key = self.0.get();
        if key.is_null() {
            return None;
        }
        // SAFETY: an open key.
        u32::try_from(unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }).ok()
    }

    /// Puts a lock there. The key is open for writing, and empty or without a known lock.
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

    /// Removes the TTL of the key; whether it had one. It is open for writing.
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

    /// Closes the key: nothing may be done with it any more.
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

/// A string that lasts so long, or has no TTL. The server ends it a millisecond after
/// nothing is left.
fn string_with(left: Option<Millis>) -> LegacyString {
    let more = Millis(1).to_micros();
    let end = left.map(|left| clock::mono().plus(left.to_micros()).plus(more));
    LegacyString { end }
}
