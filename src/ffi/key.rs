//! Keys that are open, and the locks at them.

use std::ffi::{c_int, c_void};

use redis_module::raw;
use redislock_core::slots::LockId;

use super::api;

/// How to open a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    Reading,
    Writing,
}

/// What stands at a key that was opened.
pub enum Standing {
    Nothing,
    Lock(LockId),
    Other,
}

/// An open key.
pub struct OpenKey(pub(super) *mut raw::RedisModuleKey);

impl OpenKey {
    pub fn standing(&self) -> Standing {
        // SAFETY: an open key; a read of a missing key opens as null, which the server takes for an empty one.
        unsafe {
            if self.0.is_null()
                || api!(RedisModule_KeyType(self.0)) == raw::REDISMODULE_KEYTYPE_EMPTY as c_int
            {
                Standing::Nothing
            } else if api!(RedisModule_ModuleTypeGetType(self.0)) == crate::data_type::redis_type()
            {
                Standing::Lock(lock_of(api!(RedisModule_ModuleTypeGetValue(self.0))))
            } else {
                Standing::Other
            }
        }
    }

    /// Puts a lock there. The key is open for writing and empty.
    pub fn set(&self, id: LockId) {
        // SAFETY: an open key, our own type; the value is a handle that the type's callbacks understand.
        unsafe {
            api!(RedisModule_ModuleTypeSetValue(
                self.0,
                crate::data_type::redis_type(),
                value_of(id)
            ));
        }
    }

    /// Deletes the key. It is open for writing.
    pub fn delete(&self) {
        // SAFETY: an open key.
        unsafe {
            api!(RedisModule_DeleteKey(self.0));
        }
    }
}

impl Drop for OpenKey {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: opened in `Ctx::open`, closed once.
            unsafe { api!(RedisModule_CloseKey(self.0)) }
        }
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
