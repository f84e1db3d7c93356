//! The values of our type: each carries a handle in place of a pointer.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use redislock_core::slots::LockId;

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

/// The server's handle of the type.
pub(super) fn redis_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// The server has registered the type.
pub fn set_redis_type(registered: *mut raw::RedisModuleType) {
    TYPE.store(registered, Ordering::Relaxed);
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
