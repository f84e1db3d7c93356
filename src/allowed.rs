//! What the server would allow a command to do, for what is done outside of one; and whether anybody listens.

use redis_module::raw;

use crate::ffi::{Ctx, api};
use crate::node;

/// Whether a write outside of a command is allowed: on a master, with its data loaded, and no failover or pause under way.
pub fn may_write(ctx: Ctx) -> bool {
    let flags = ctx.flags();
    let never = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    // SAFETY: takes nothing, returns a truth value.
    let avoid = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
    flags & raw::REDISMODULE_CTX_FLAGS_MASTER != 0 && flags & never == 0 && !avoid
}

/// Whether the server would let a command grant: enough replicas, a cluster that is up.
pub fn may_grant(ctx: Ctx) -> bool {
    if !node::with(|node| node.table.waiters() > 0) {
        return true;
    }
    let needed: u64 = ctx
        .config("min-replicas-to-write")
        .and_then(|needed| needed.parse().ok())
        .unwrap_or(0);
    if needed > 0 {
        let lag = ctx
            .config("min-replicas-max-lag")
            .and_then(|lag| lag.parse::<u64>().ok())
            .unwrap_or(0);
        if lag > 0
            && field(ctx, "REPLICATION", "min_slaves_good_slaves").is_none_or(|good| good < needed)
        {
            return false;
        }
    }
    if disk_fails(ctx) {
        return false;
    }
    if node::with(|node| node.cluster) {
        let info = ctx
            .ask(c"CLUSTER", &[b"INFO"])
            .and_then(|reply| reply.into_iter().next())
            .unwrap_or_default();
        return String::from_utf8_lossy(&info).contains("cluster_state:ok");
    }
    true
}

/// Whether the server refuses commands that write because it cannot save them.
fn disk_fails(ctx: Ctx) -> bool {
    let info = ctx
        .ask(c"INFO", &[b"PERSISTENCE"])
        .and_then(|reply| reply.into_iter().next())
        .unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    let says = |line: &str| info.lines().any(|said| said.trim() == line);
    let is = |name, value: &str| ctx.config(name).is_some_and(|set| set == value);
    says("aof_enabled:1") && says("aof_last_write_status:err")
        || says("rdb_last_bgsave_status:err")
            && is("stop-writes-on-bgsave-error", "yes")
            && !is("save", "")
}

/// A number of an INFO section.
fn field(ctx: Ctx, section: &str, name: &str) -> Option<u64> {
    let info = ctx
        .ask(c"INFO", &[section.as_bytes()])?
        .into_iter()
        .next()?;
    let info = String::from_utf8_lossy(&info).into_owned();
    info.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(':')?
            .trim()
            .parse()
            .ok()
    })
}

/// Looks whether anybody listens to what is replicated: the AOF, a replica, or the backlog for one that may come back.
///
/// Making an effect and handing it over is a third of what a command costs, so it is left out while nobody would get it.
/// That is safe because nobody begins to listen unnoticed: a replica that finds no backlog starts from a snapshot, an AOF
/// that is turned on from a rewrite, and both begin with a fork, of which the server tells (`lifecycle.rs`) before it
/// runs another command. Whatever else may bring a backlog (a load, a change of roles) is taken for a listener until the
/// next look. In a cluster a slot may be listened to while it moves, so there it is never left out.
pub fn listen(ctx: Ctx) {
    let nobody = !ctx.has(raw::REDISMODULE_CTX_FLAGS_AOF)
        && ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER)
        && !ctx.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
        && field(ctx, "REPLICATION", "connected_slaves") == Some(0)
        && field(ctx, "REPLICATION", "repl_backlog_active") == Some(0);
    node::with(|node| node.listened_to = !nobody);
}
