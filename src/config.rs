//! The options: their defaults, ranges and current values, in one place.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::raw;
use redislock_core::table::Limits;
use redislock_core::time::Millis;
use redislock_core::wire::{MAX_HOLDERS, MAX_TTL};

use crate::edge::edge;
use crate::ffi::{Arg, Args, Ctx, api};
use crate::node;
use crate::server::{self, MinReplicas, ReplicaRule};

/// One option.
pub struct Setting {
    name: &'static CStr,
    default: i64,
    min: i64,
    max: i64,
    /// It can be set only at the start.
    fixed: bool,
    /// It is yes (1) or no (0).
    is_switch: bool,
    value: AtomicI64,
}

impl Setting {
    const fn new(name: &'static CStr, default: i64, min: i64, max: i64) -> Self {
        Self {
            name,
            default,
            min,
            max,
            fixed: false,
            is_switch: false,
            value: AtomicI64::new(default),
        }
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed).max(0) as u64
    }

    /// The current value of an option in milliseconds; none if it is 0, which means off.
    fn millis(&self) -> Option<Millis> {
        Some(Millis(self.get())).filter(|millis| *millis != Millis::ZERO)
    }

    /// The current value; none if the option is not set.
    fn given(&self) -> Option<u64> {
        u64::try_from(self.value.load(Ordering::Relaxed)).ok()
    }

    /// Whether a switch is on.
    pub fn is_on(&self) -> bool {
        self.get() == 1
    }

    /// Parses a value of this option; none if it is not valid.
    fn read(&self, value: Arg<'_>) -> Option<i64> {
        if !self.is_switch {
            let number = value.number();
            return number.filter(|number| (self.min..=self.max).contains(number));
        }
        match value.bytes().to_ascii_lowercase().as_slice() {
            b"yes" => Some(1),
            b"no" => Some(0),
            _ => None,
        }
    }

    /// What [`Setting::read`] accepts, in words.
    fn range(&self) -> String {
        if self.is_switch {
            "yes or no".to_owned()
        } else {
            format!("a number from {} to {}", self.min, self.max)
        }
    }

    /// The current value as written in redis.conf; none if the option is not set.
    fn shown(&self) -> Option<String> {
        let given = self.given()?;
        if !self.is_switch {
            return Some(given.to_string());
        }
        Some(if self.is_on() { "yes" } else { "no" }.to_owned())
    }

    fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

/// The value of an option that is not set.
const DEFAULT: Limits = Limits::DEFAULT;

/// The longest lease that a command may ask for, ms.
static MAX_LEASE: Setting = Setting::new(c"max-ttl", 86_400_000, 1, MAX_TTL.0 as i64);
/// The longest total hold, ms; 0 for no limit.
static MAX_HOLD: Setting = Setting::new(c"max-hold", 0, 0, MAX_TTL.0 as i64);
/// Blocked requests on this node.
pub static MAX_WAITERS: Setting =
    Setting::new(c"max-waiters", DEFAULT.max_waiters as i64, 0, 1_000_000);
/// Holders of one shared lock.
static HOLDERS: Setting = Setting::new(
    c"max-holders",
    DEFAULT.max_holders as i64,
    1,
    MAX_HOLDERS as i64,
);
/// How long an ephemeral hold outlives its connection, ms.
static EPHEMERAL_GRACE: Setting = Setting::new(c"ephemeral-grace", 0, 0, 60_000);
/// How long a node that may have lost grants does not grant, ms; 0 for off.
static QUARANTINE: Setting = Setting {
    fixed: true,
    ..Setting::new(c"quarantine", 0, 0, 3_600_000)
};

/// Whether a string at a key counts as a lock of a client that does not know this module.
pub static LEGACY_STRINGS: Setting = Setting {
    fixed: true,
    is_switch: true,
    ..Setting::new(c"legacy-strings", 0, 0, 1)
};

/// The value of min-replicas-to-write, for a server whose CONFIG cannot be read; -1 if it is not
/// set.
static MIN_REPLICAS: Setting = Setting {
    fixed: true,
    ..Setting::new(c"min-replicas", NOT_GIVEN, NOT_GIVEN, i32::MAX as i64)
};
/// The value of min-replicas-max-lag, seconds, for such a server; -1 if it is not set.
static MAX_LAG: Setting = Setting {
    fixed: true,
    ..Setting::new(c"max-lag", NOT_GIVEN, NOT_GIVEN, i32::MAX as i64)
};

/// The value that means "not set".
const NOT_GIVEN: i64 = -1;

static SETTINGS: [&Setting; 9] = [
    &MAX_LEASE,
    &MAX_HOLD,
    &MAX_WAITERS,
    &HOLDERS,
    &EPHEMERAL_GRACE,
    &QUARANTINE,
    &LEGACY_STRINGS,
    &MIN_REPLICAS,
    &MAX_LAG,
];

/// The settings that core needs.
pub fn limits() -> Limits {
    Limits {
        max_hold: MAX_HOLD.millis(),
        max_waiters: MAX_WAITERS.get() as usize,
        max_holders: HOLDERS.get() as u32,
    }
}

/// The longest lease that may be asked for, and the option that sets it.
pub fn longest_lease() -> (Millis, &'static str) {
    let lease = Millis(MAX_LEASE.get());
    match quarantine() {
        Some(quarantine) if quarantine < lease => (quarantine, "lock.quarantine"),
        _ => (lease, "lock.max-ttl"),
    }
}

/// How long a node that may have lost grants does not grant; none if quarantine is off.
pub fn quarantine() -> Option<Millis> {
    #[cfg(feature = "failpoints")]
    if crate::edge::failpoint::lacks("quarantine") {
        return None;
    }
    QUARANTINE.millis()
}

/// How long an ephemeral hold outlives its connection.
pub fn ephemeral_grace() -> Millis {
    Millis(EPHEMERAL_GRACE.get())
}

/// The values of lock.min-replicas and lock.max-lag; none unless both are set.
pub fn min_replicas() -> Option<MinReplicas> {
    Some(MinReplicas {
        needed: MIN_REPLICAS.given()?,
        max_lag: MAX_LAG.given()?,
    })
}

/// Whether this node needs replicas to write, from the best source that can be read.
pub fn replica_rule() -> ReplicaRule {
    server::replica_rule(min_replicas())
}

/// Every option that is set, as one line for the log.
pub fn summary() -> String {
    let given = |setting: &&Setting| Some(format!("lock.{} {}", setting.name(), setting.shown()?));
    let given: Vec<_> = SETTINGS.iter().filter_map(given).collect();
    given.join(", ")
}

/// Registers the options. The arguments of `loadmodule` replace their defaults, and redis.conf
/// overrides both.
pub fn register(ctx: Ctx, args: Args<'_>) -> Result<(), String> {
    let defaults = parse(args)?;
    for (setting, default) in SETTINGS.iter().zip(defaults) {
        if register_one(ctx, setting, default) != raw::REDISMODULE_OK as c_int {
            return Err(format!(
                "the server did not accept the option lock.{}",
                setting.name()
            ));
        }
    }
    // SAFETY: a valid context, during load.
    if unsafe { api!(RedisModule_LoadConfigs(ctx.raw())) } != raw::REDISMODULE_OK as c_int {
        return Err("a lock.* option has a value that is out of range".into());
    }
    Ok(())
}

fn register_one(ctx: Ctx, setting: &'static Setting, default: i64) -> c_int {
    let flags = if setting.fixed {
        raw::REDISMODULE_CONFIG_IMMUTABLE
    } else {
        raw::REDISMODULE_CONFIG_DEFAULT
    };
    let data = std::ptr::from_ref::<Setting>(setting).cast_mut().cast();
    // SAFETY: the names are constants; the private data is a static setting, which outlives the
    // module's use.
    unsafe {
        if setting.is_switch {
            return api!(RedisModule_RegisterBoolConfig(
                ctx.raw(),
                setting.name.as_ptr(),
                default as c_int,
                flags,
                Some(edge!(get_switch as fn(
                        name: *const c_char,
                        setting: *mut c_void,
                    ) -> c_int, or 0)),
                Some(edge!(set_switch as fn(
                    name: *const c_char,
                    value: c_int,
                    setting: *mut c_void,
                    error: *mut *mut raw::RedisModuleString,
                ) -> c_int, or raw::REDISMODULE_ERR as c_int)),
                None,
                data,
            ));
        }
        api!(RedisModule_RegisterNumericConfig(
            ctx.raw(),
            setting.name.as_ptr(),
            default,
            flags,
            setting.min,
            setting.max,
            Some(edge!(get as fn(name: *const c_char, setting: *mut c_void) -> c_longlong, or 0)),
            Some(edge!(set as fn(
                name: *const c_char,
                value: c_longlong,
                setting: *mut c_void,
                error: *mut *mut raw::RedisModuleString,
            ) -> c_int, or raw::REDISMODULE_ERR as c_int)),
            None,
            data,
        ))
    }
}

/// The arguments of `loadmodule`: names, with or without `lock.`, each followed by its value.
fn parse(args: Args<'_>) -> Result<[i64; SETTINGS.len()], String> {
    let mut values = SETTINGS.map(|setting| setting.default);
    let mut seen = [false; SETTINGS.len()];
    for at in (0..args.len()).step_by(2) {
        let name = args
            .get(at)
            .map(|name| name.bytes().to_ascii_lowercase())
            .unwrap_or_default();
        let name = name.strip_prefix(b"lock.").unwrap_or(&name);
        let place = SETTINGS
            .iter()
            .position(|setting| setting.name.to_bytes() == name);
        let known = SETTINGS.map(Setting::name).join(", ");
        let Some((place, setting)) = place.and_then(|place| Some((place, SETTINGS.get(place)?)))
        else {
            return Err(format!(
                "module argument {} is not an option; the options are: {known}",
                at + 1
            ));
        };
        if seen
            .get_mut(place)
            .is_none_or(|seen| std::mem::replace(seen, true))
        {
            return Err(format!(
                "module argument lock.{} is given twice",
                setting.name()
            ));
        }
        let value = args.get(at + 1).and_then(|value| setting.read(value));
        let Some(value) = value else {
            let (name, range) = (setting.name(), setting.range());
            return Err(format!("module argument lock.{name} needs {range}"));
        };
        if let Some(slot) = values.get_mut(place) {
            *slot = value;
        }
    }
    Ok(values)
}

fn get(_: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: the private data given at registration: a static setting.
    let setting = unsafe { &*setting.cast::<Setting>() };
    setting.value.load(Ordering::Relaxed)
}

fn set(
    _: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the private data given at registration: a static setting.
    let setting = unsafe { &*setting.cast::<Setting>() };
    setting.value.store(value, Ordering::Relaxed);
    node::when_whole(|| {
        node::with(|node| {
            node.table.limits = limits();
            node.table.quarantine.configure(quarantine());
        });
    });
    raw::REDISMODULE_OK as c_int
}

fn get_switch(name: *const c_char, setting: *mut c_void) -> c_int {
    get(name, setting) as c_int
}

fn set_switch(
    name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    set(name, value.into(), setting, error)
}
