//! Keys that are open, and the locks at them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use redis_module::raw;
use redislock_core::slots::LockId;

use super::api;
use crate::config;

/// How to open a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    Reading,
    Writing,
    /// To see what stands there, and nothing else: no event is sent, nothing is deleted because its
    /// time is up (7.0 deletes it all the same).
    Looking,
}

/// What stands at a key that was opened.
pub enum Standing {
    Nothing,
    Lock(LockId),
    /// A string that counts as a lock; how long it lasts, ms, if it has a TTL.
    LegacyString(Option<u64>),
    Other,
}

/// An open key; null when it is missing, or closed.
pub struct OpenKey(Cell<*mut raw::RedisModuleKey>);

impl OpenKey {
    pub(super) fn new(key: *mut raw::RedisModuleKey) -> Self {
        Self(Cell::new(key))
    }

    pub fn standing(&self) -> Standing {
        let key = self.0.get();
        // SAFETY: an open key; a read of a missing key opens as null, which the server takes for an
        // empty one.
        unsafe {
            if key.is_null()
                || api!(RedisModule_KeyType(key)) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int
            {
                Standing::Nothing
            } else if api!(RedisModule_ModuleTypeGetType(key)) == crate::data_type::redis_type() {
                Standing::Lock(lock_of(api!(RedisModule_ModuleTypeGetValue(key))))
            } else if config::LEGACY_STRINGS.is_on()
                && api!(RedisModule_KeyType(key)) == raw::REDISMODULE_KEYTYPE_STRING as c_int
            {
                // Negative if there is no TTL.
                Standing::LegacyString(u64::try_from(api!(RedisModule_GetExpire(key))).ok())
            } else {
                Standing::Other
            }
        }
    }

    /// The database that it is in. Inside EXEC, Valkey 9.1 takes the database of the transaction
    /// for the selected one, whatever was selected for a callback; a key knows better.
    pub fn db(&self) -> Option<u32> {
        let key = self.0.get();
        if key.is_null() {
            return None;
        }
        // SAFETY: an open key.
        u32::try_from(unsafe { api!(RedisModule_GetDbIdFromModuleKey(key)) }).ok()
    }

    /// Puts a lock there. The key is open for writing, and empty or without a known lock.
    pub fn set(&self, id: LockId) {
        // SAFETY: an open key, our own type; the value is a handle that the type's callbacks
        // understand.
        unsafe {
            api!(RedisModule_ModuleTypeSetValue(
                self.0.get(),
                crate::data_type::redis_type(),
                value_of(id)
            ));
        }
    }

    /// Deletes the key. It is open for writing.
    pub fn delete(&self) {
        // SAFETY: an open key.
        unsafe {
            api!(RedisModule_DeleteKey(self.0.get()));
        }
    }

    /// Closes the key: nothing may be done with it any more.
    pub fn close(&self) {
        let key = self.0.replace(std::ptr::null_mut());
        if !key.is_null() {
            // SAFETY: opened in `Ctx::open`, closed once.
            unsafe { api!(RedisModule_CloseKey(key)) }
        }
    }
}

impl Drop for OpenKey {
    fn drop(&mut self) {
        self.close();
    }
}

/// The handle that a value of our type carries in place of a pointer.
pub fn lock_of(value: *mut c_void) -> LockId {
    LockId::from_bits(value.addr() as u64)
}

/// The value that carries a handle.
pub fn value_of(id: LockId) -> *mut c_void {
    std::ptr::without_provenance_mut(id.to_bits() as usize)
}

const _: () = assert!(size_of::<usize>() == 8, "a handle needs a 64-bit pointer");
