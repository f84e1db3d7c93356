//! Which server runs.

use crate::Connection;

/// Which server runs: the one place that knows how they differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Valkey, not Redis.
    pub valkey: bool,
    /// The first number of its version.
    pub major: u32,
    /// The second number of its version.
    pub minor: u32,
}

impl Kind {
    pub(crate) fn of(connection: &mut Connection) -> Kind {
        let info = connection.info("server");
        let valkey = info.field("valkey_version");
        let version = valkey.or_else(|| info.field("redis_version"));
        let version = version.expect("a version");
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        Kind {
            valkey: valkey.is_some(),
            major: numbers.next().unwrap_or(0),
            minor: numbers.next().unwrap_or(0),
        }
    }

    /// Redis 7.0 does not let a module call a command that waits.
    pub fn lets_modules_wait(self) -> bool {
        self.gives_modules_acl_categories()
    }

    /// Redis 7.0 gives module commands no ACL categories.
    pub fn gives_modules_acl_categories(self) -> bool {
        self.valkey || (self.major, self.minor) >= (7, 2)
    }
}
