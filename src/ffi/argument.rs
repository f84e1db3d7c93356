//! Strings of the server: the arguments of a command, and strings that the module creates.

use std::ffi::c_int;
use std::marker::PhantomData;

use redis_module::raw;

use super::api;

/// A string of the server that lives at least as long as `'a`.
#[derive(Clone, Copy)]
pub struct Arg<'a>(*mut raw::RedisModuleString, PhantomData<&'a [u8]>);

impl<'a> Arg<'a> {
    /// # Safety
    /// `string` is valid for `'a` and nobody changes it meanwhile.
    pub unsafe fn new(string: *mut raw::RedisModuleString) -> Self {
        Self(string, PhantomData)
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: `self.0` is a valid string; the pointer it gives is valid as long as the string
        // is.
        unsafe {
            let start = api!(RedisModule_StringPtrLen(self.0, &raw mut len));
            if start.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(start.cast(), len)
            }
        }
    }

    /// Its value as a number, by the server's strict rules.
    pub fn number(self) -> Option<i64> {
        let mut number = 0;
        // SAFETY: a valid string and a place for the number.
        let status = unsafe { api!(RedisModule_StringToLongLong(self.0, &raw mut number)) };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }

    /// The server's own string.
    pub fn raw(self) -> *mut raw::RedisModuleString {
        self.0
    }
}

/// A string that the module created.
pub struct OwnedString(*mut raw::RedisModuleString);

impl OwnedString {
    /// A string of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: copies `bytes`; without a context the string is ours until freed.
        Self(unsafe {
            api!(RedisModule_CreateString(
                std::ptr::null_mut(),
                bytes.as_ptr().cast(),
                bytes.len()
            ))
        })
    }

    pub fn arg(&self) -> Arg<'_> {
        // SAFETY: the string lives as long as `self`.
        unsafe { Arg::new(self.0) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) }
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy)]
pub struct Args<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` has `argc` strings, valid for `'a`.
    pub unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        if argc <= 0 || argv.is_null() {
            return Self(&[]);
        }
        // SAFETY: as the caller promises.
        Self(unsafe { std::slice::from_raw_parts(argv, argc as usize) })
    }

    pub fn len(self) -> usize {
        self.0.len()
    }

    pub fn get(self, at: usize) -> Option<Arg<'a>> {
        // SAFETY: the strings live for `'a`.
        self.0.get(at).map(|string| unsafe { Arg::new(*string) })
    }

    pub fn raw(self) -> &'a [*mut raw::RedisModuleString] {
        self.0
    }

    /// These arguments from `at` on.
    pub fn from(self, at: usize) -> Self {
        Self(self.0.get(at..).unwrap_or_default())
    }

    /// The first `len` of these.
    pub fn first(self, len: usize) -> Self {
        Self(self.0.get(..len).unwrap_or_default())
    }

    pub fn iter(self) -> impl Iterator<Item = Arg<'a>> {
        // SAFETY: the strings live for `'a`.
        self.0.iter().map(|string| unsafe { Arg::new(*string) })
    }
}
