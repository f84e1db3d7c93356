//! The server's own INFO, read without the INFO command, which may have been renamed.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{Ctx, api};

/// One section of INFO, as it was when it was read.
pub struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    /// Reads a section of the server itself (`replication`, `persistence`, ...).
    pub fn read(section: &CStr) -> Self {
        // SAFETY: no context, so that the data is not tied to one; freed by `drop`.
        Self(unsafe {
            api!(RedisModule_GetServerInfo(
                std::ptr::null_mut(),
                section.as_ptr()
            ))
        })
    }

    /// The value of a field; none if the section does not have it.
    pub fn text(&self, field: &CStr) -> Option<&str> {
        // SAFETY: the data is valid until `drop`, and the text is a part of it.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC(self.0, field.as_ptr()));
            (!text.is_null()).then(|| CStr::from_ptr(text).to_str().ok())?
        }
    }

    /// The value of a field as a number; none if it is not there or is not a number.
    pub fn number(&self, field: &CStr) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the data is valid until `drop`; the status is a local variable.
        let number = unsafe {
            api!(RedisModule_ServerInfoGetFieldUnsigned(
                self.0,
                field.as_ptr(),
                &raw mut status
            ))
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // SAFETY: made by `read` without a context, freed once.
        unsafe { api!(RedisModule_FreeServerInfo(std::ptr::null_mut(), self.0)) };
    }
}

impl Ctx {
    /// The value of a configuration option of the server; none if CONFIG does not answer.
    pub fn config(self, name: &str) -> Option<String> {
        let reply = self.ask(c"CONFIG", &[b"GET", name.as_bytes()])?;
        String::from_utf8(reply.into_iter().nth(1)?).ok()
    }
}
