//! What the server allows and how it is configured, for work outside a command.
//!
//! An administrator may rename any command, so nothing here depends on the name of one: INFO is
//! read through the module API, and a command of this module finds out whether a write would be
//! refused. Only some settings have no other source than CONFIG. They are read at the start and
//! after each change; without CONFIG they are unknown, never "not set".

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redis_module::raw;

use crate::ffi::{Ctx, OwnedString, ServerInfo, api};

/// The command that does nothing. If the server would run it, a write to its key is allowed.
pub const PROBE: &CStr = c"lock._probe";

/// Settings that only CONFIG shows; none for those that cannot be read.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    /// min-replicas-to-write and min-replicas-max-lag.
    min_replicas: Option<MinReplicas>,
    /// appendfsync is `always`, and a rewrite does not suspend it.
    syncs_always: Option<bool>,
    /// aof-use-rdb-preamble.
    rdb_preamble: Option<bool>,
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings {
    min_replicas: None,
    syncs_always: None,
    rdb_preamble: None,
});

fn settings() -> Settings {
    *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many replicas a master needs for a write, and how long ago each may have last replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinReplicas {
    /// min-replicas-to-write.
    pub needed: u64,
    /// min-replicas-max-lag, seconds.
    pub max_lag: u64,
}

/// Whether this node needs replicas to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaRule {
    /// It does not.
    Off,
    /// It does.
    On(MinReplicas),
    /// It does, but the number and the lag cannot be read.
    Unknown,
}

/// Reads the settings that only CONFIG shows: at the start, and when the configuration has changed.
/// Returns whether every write is followed by fsync now, and was not before.
pub fn read_settings(ctx: Ctx) -> bool {
    let number = |name| ctx.config(name)?.parse().ok();
    let is = |name, value: &str| Some(ctx.config(name)? == value);
    let min_replicas = || {
        Some(MinReplicas {
            needed: number("min-replicas-to-write")?,
            max_lag: number("min-replicas-max-lag")?,
        })
    };
    let syncs_always =
        || Some(is("appendfsync", "always")? && is("no-appendfsync-on-rewrite", "no")?);
    let read = Settings {
        min_replicas: min_replicas(),
        syncs_always: syncs_always(),
        rdb_preamble: is("aof-use-rdb-preamble", "yes"),
    };
    let mut settings = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *settings, read);
    before.syncs_always != Some(true) && read.syncs_always == Some(true)
}

/// The server's settings about replicas, or the module's own options if CONFIG cannot be read; none
/// if neither is known.
pub fn min_replicas(fallback: Option<MinReplicas>) -> Option<MinReplicas> {
    settings().min_replicas.or(fallback)
}

/// Whether this node needs replicas to write. `fallback` are the module's own options, for a server
/// without CONFIG.
pub fn replica_rule(fallback: Option<MinReplicas>) -> ReplicaRule {
    let on = |rule: MinReplicas| rule.needed > 0 && rule.max_lag > 0;
    if let Some(read) = settings().min_replicas {
        return if on(read) {
            ReplicaRule::On(read)
        } else {
            ReplicaRule::Off
        };
    }
    if let Some(given) = fallback.filter(|given| on(*given)) {
        return ReplicaRule::On(given);
    }
    // The server shows this field if and only if its rule is on.
    match ServerInfo::read(c"replication").number(c"min_slaves_good_slaves") {
        Some(_) => ReplicaRule::Unknown,
        None => ReplicaRule::Off,
    }
}

static IS_REPLICA: AtomicBool = AtomicBool::new(false);

/// Whether this node follows a master, as of [`note_role`].
pub fn is_replica() -> bool {
    IS_REPLICA.load(Ordering::Relaxed)
}

static IS_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether this node is in cluster mode.
pub fn is_cluster() -> bool {
    IS_CLUSTER.load(Ordering::Relaxed)
}

/// Checks whether this node follows a master: at the start, when its role has changed, and
/// periodically.
pub fn note_role(ctx: Ctx) {
    let is_replica = !ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER);
    IS_REPLICA.store(is_replica, Ordering::Relaxed);
    let is_cluster = ctx.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER);
    IS_CLUSTER.store(is_cluster, Ordering::Relaxed);
}

/// Whether a write outside a command is allowed: on a master, with its data loaded, and no failover
/// or pause in progress.
pub fn may_write(ctx: Ctx) -> bool {
    let flags = ctx.flags();
    let never = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    let avoid = avoids_traffic();
    flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0 && flags & never == 0 && !avoid
}

/// Whether a failover or a pause is in progress.
fn avoids_traffic() -> bool {
    // SAFETY: takes nothing, returns a truth value.
    unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
}

/// Whether the server would let a client write to this key: enough replicas, a working disk, a
/// cluster that is up. The server decides this as for a script that calls a command.
pub fn may_grant(ctx: Ctx, key: &[u8]) -> bool {
    // A key whose slot is on another node says nothing about other keys; the server redirects its
    // waiters.
    matches!(probe(ctx, key), Probe::Allowed | Probe::Elsewhere)
}

/// Whether a key belongs to another node: its slot has moved, or the slot is being moved and the
/// key has moved already.
pub fn is_elsewhere(ctx: Ctx, key: &[u8]) -> bool {
    matches!(probe(ctx, key), Probe::Elsewhere)
}

/// Why the server itself refuses a new lock, before the module can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// maxmemory is used up.
    Memory,
    /// The last write to the AOF, or the last snapshot, failed.
    Disk,
    /// Fewer replicas than min-replicas-to-write are connected.
    Replicas,
    /// CLIENT PAUSE or a failover delays writes.
    Paused,
    /// The cluster is down.
    Cluster,
    /// A reason that this version does not know.
    Other,
}

impl Refusal {
    /// Its name, and its number for monitoring that reads only numbers. Both are documented and
    /// must not change.
    pub fn name_and_code(refusal: Option<Self>) -> (&'static str, u64) {
        match refusal {
            None => ("none", 0),
            Some(Self::Memory) => ("memory", 1),
            Some(Self::Disk) => ("disk", 2),
            Some(Self::Replicas) => ("replicas", 3),
            Some(Self::Paused) => ("paused", 4),
            Some(Self::Cluster) => ("cluster", 5),
            Some(Self::Other) => ("other", 6),
        }
    }

    /// The reason for an error, from its first word.
    fn read(error: &[u8], number: Option<i32>) -> Self {
        match error {
            b"OOM" => Self::Memory,
            b"MISCONF" => Self::Disk,
            b"NOREPLICAS" => Self::Replicas,
            _ if matches!(number, Some(libc::EROFS | libc::ENETDOWN)) => Self::Cluster,
            _ => Self::Other,
        }
    }
}

/// Why the server refuses a new lock now. None on a replica or a node that is loading, because
/// these grant nothing anyway.
pub fn refusal(ctx: Ctx) -> Option<Refusal> {
    let flags = ctx.flags();
    let never = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    if flags & raw::REDISMODULE_CTX_FLAGS_MASTER == 0 || flags & never != 0 {
        return None;
    }
    if avoids_traffic() {
        return Some(Refusal::Paused);
    }
    if let Probe::Refused(why) = call_probe(ctx, MEMORY, None) {
        return Some(why);
    }
    // The server reports that the cluster is down only for keys of slots that some node serves.
    let is_down = |key: &&[u8]| matches!(probe(ctx, key), Probe::Refused(Refusal::Cluster));
    let spread = if is_cluster() { &SPREAD[..] } else { &[] };
    spread.iter().any(is_down).then_some(Refusal::Cluster)
}

/// Keys in each quarter of the slots: a slot that no node serves does not show whether the cluster
/// is down.
const SPREAD: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

/// What the probe checks: whether a write is allowed, and whether there is memory for it.
const WRITE: &CStr = c"write";
pub const MEMORY: &CStr = c"memory";

/// The server's answer to a write.
enum Probe {
    Allowed,
    Elsewhere,
    Refused(Refusal),
}

fn probe(ctx: Ctx, key: &[u8]) -> Probe {
    call_probe(ctx, WRITE, Some(key))
}

/// Makes the server run the probe. Without a key, a cluster does not redirect it.
fn call_probe(ctx: Ctx, what: &CStr, key: Option<&[u8]>) -> Probe {
    let key = key.map(OwnedString::new);
    let (format, key) = match &key {
        Some(key) => (c"SEcs", key.arg().raw()),
        None => (c"SEc", std::ptr::null_mut()),
    };
    // SAFETY: a valid context; the format names the checks of a script (S), errors as replies (E),
    // a C string (c) and the key (s), if there is one. The reply is read and freed here.
    unsafe {
        let reply = api!(RedisModule_Call(
            ctx.raw(),
            PROBE.as_ptr(),
            format.as_ptr(),
            what.as_ptr(),
            key
        ));
        // Read before anything else can change it.
        let number = std::io::Error::last_os_error().raw_os_error();
        if reply.is_null() {
            return Probe::Refused(Refusal::Other);
        }
        let said = if api!(RedisModule_CallReplyType(reply))
            != raw::REDISMODULE_REPLY_ERROR as std::ffi::c_int
        {
            Probe::Allowed
        } else if number == Some(libc::EPERM) {
            Probe::Elsewhere
        } else {
            Probe::Refused(Refusal::read(first_word(reply), number))
        };
        api!(RedisModule_FreeCallReply(reply));
        said
    }
}

/// Whether the server would refuse a command that needs memory. The context must be that of a
/// command: there, the server reports the state at the start of the command. Otherwise it reports
/// the memory used right now, which is above the limit before each eviction.
pub fn lacks_memory(ctx: Ctx) -> bool {
    // SAFETY: a valid context; the format names the check of memory (M), errors as replies (E) and
    // a C string (c). The reply is read and freed here.
    unsafe {
        let (name, format) = (PROBE.as_ptr(), c"MEc".as_ptr());
        let reply = api!(RedisModule_Call(ctx.raw(), name, format, WRITE.as_ptr()));
        let is_error = !reply.is_null()
            && api!(RedisModule_CallReplyType(reply))
                == raw::REDISMODULE_REPLY_ERROR as std::ffi::c_int;
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        is_error
    }
}

/// The first word of an error.
///
/// # Safety
/// `reply` is a reply of the server, and is freed only after the word was used.
unsafe fn first_word<'a>(reply: *mut raw::RedisModuleCallReply) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: a reply, as the caller promises; the text, if there is one, belongs to it.
    let text = unsafe {
        let text = api!(RedisModule_CallReplyStringPtr(reply, &mut length));
        if text.is_null() {
            return b"";
        }
        std::slice::from_raw_parts(text.cast::<u8>(), length)
    };
    let text = text.strip_prefix(b"-").unwrap_or(text);
    text.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Whether nobody gets what is replicated: there is no AOF, no replica, and no backlog for a
/// replica that may reconnect.
///
/// Making and sending an effect is a third of the cost of a command, so it is skipped while nobody
/// would get it. This is safe because nobody starts to listen unnoticed. A replica without a
/// backlog starts from a snapshot, and an AOF that is turned on starts from a rewrite; both begin
/// with a fork, which the server reports before it runs another command. Anything else that may
/// create a backlog (a load, a change of roles) counts as a listener until the next check. In a
/// cluster, a node may listen to a slot that moves, so effects are never skipped there.
pub fn nobody_listens(ctx: Ctx) -> bool {
    if ctx.has(raw::REDISMODULE_CTX_FLAGS_AOF)
        || !ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER)
        || ctx.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    {
        return false;
    }
    let info = ServerInfo::read(c"replication");
    info.number(c"connected_slaves") == Some(0) && info.number(c"repl_backlog_active") == Some(0)
}

/// Whether a restart would find the whole dataset in the AOF, as of [`note_aof`].
static AOF_IS_WHOLE: AtomicBool = AtomicBool::new(false);

/// Checks whether the AOF is complete: at the start, when it may have been turned off or on, and
/// periodically.
///
/// An AOF that is turned on (by CONFIG SET, or after a full resynchronisation) is incomplete until
/// its first rewrite is done. Until then, a rewrite is always in progress or scheduled. During
/// later rewrites, the AOF stays complete.
pub fn note_aof(ctx: Ctx) {
    if !ctx.has(raw::REDISMODULE_CTX_FLAGS_AOF) {
        AOF_IS_WHOLE.store(false, Ordering::Relaxed);
    } else if !AOF_IS_WHOLE.load(Ordering::Relaxed) {
        let info = ServerInfo::read(c"persistence");
        let rests = |field| info.number(field) == Some(0);
        if rests(c"aof_rewrite_in_progress") && rests(c"aof_rewrite_scheduled") {
            AOF_IS_WHOLE.store(true, Ordering::Relaxed);
        }
    }
}

/// The size of the AOF when some grants were last known to be possibly not on disk; `u64::MAX` if
/// there are none.
static UNSYNCED_AT: AtomicU64 = AtomicU64::new(u64::MAX);

fn aof_size() -> u64 {
    let info = ServerInfo::read(c"persistence");
    info.number(c"aof_current_size").unwrap_or(u64::MAX)
}

/// Acknowledged grants may not be on disk yet: fsync was not called after each write, or another
/// process wrote them. The next write is followed by fsync, which covers the whole file.
pub fn note_unsynced() {
    UNSYNCED_AT.store(aof_size(), Ordering::Relaxed);
}

/// Whether every acknowledged grant is on disk, and would survive a crash.
pub fn is_durable(ctx: Ctx) -> bool {
    if aof_size() != UNSYNCED_AT.load(Ordering::Relaxed) {
        // Something was written since then, or a rewrite is done, which also ends with fsync.
        UNSYNCED_AT.store(u64::MAX, Ordering::Relaxed);
    }
    let is_synced = UNSYNCED_AT.load(Ordering::Relaxed) == u64::MAX;
    is_synced && keeps_grants(ctx)
}

/// Whether every grant is on disk before it is acknowledged.
pub fn keeps_grants(ctx: Ctx) -> bool {
    note_aof(ctx);
    settings().syncs_always == Some(true)
        && AOF_IS_WHOLE.load(Ordering::Relaxed)
        && ServerInfo::read(c"persistence").text(c"aof_last_write_status") == Some("ok")
}

/// Whether the AOF may be rewritten without an RDB preamble, which is the only place for the fence
/// counter.
pub fn may_rewrite_without_preamble() -> bool {
    settings().rdb_preamble != Some(true)
}

/// Shows that the server's statistics were reset.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ResetMarks {
    total_commands: u64,
    /// How often CONFIG RESETSTAT ran, and how long it took, µs. A refused call changes neither.
    calls: u64,
    micros: u64,
}

/// Whether CONFIG RESETSTAT ran since the last call. No event reports it. Only CONFIG RESETSTAT
/// makes this total fall, and its own call is the first one that is counted afterwards.
pub fn statistics_were_reset() -> bool {
    static SEEN: Mutex<ResetMarks> = Mutex::new(ResetMarks {
        total_commands: 0,
        calls: 0,
        micros: 0,
    });
    let total = ServerInfo::read(c"stats").number(c"total_commands_processed");
    let commands = ServerInfo::read(c"commandstats");
    let resets = commands.text(c"cmdstat_config|resetstat");
    let number = |name| {
        let mut fields = resets.unwrap_or_default().split(',');
        let field = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    };
    let now = ResetMarks {
        total_commands: total.unwrap_or(0),
        calls: number("calls"),
        micros: number("usec"),
    };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *seen, now);
    let ran = (now.calls, now.micros) != (before.calls, before.micros);
    now.total_commands < before.total_commands || ran
}

/// The server's eviction policy.
pub fn eviction_policy() -> Option<String> {
    let memory = ServerInfo::read(c"memory");
    memory.text(c"maxmemory_policy").map(str::to_owned)
}
