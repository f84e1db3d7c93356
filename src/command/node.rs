//! `LOCK.NODE`: a map about this node.

use redis_module::raw;
use redislock_core::time::to_millis;

use super::info::{number, text};
use super::reply::Failure;
use crate::ffi::{self, Args, Ctx};
use crate::{config, lifecycle, node};

pub fn node(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if args.len() != 1 {
        return Err(Failure::Arity);
    }
    let role = if ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER) {
        "master"
    } else {
        "replica"
    };
    let durable = is_durable(ctx);
    let now = ffi::now();
    if !ctx.has(raw::REDISMODULE_CTX_FLAGS_LOADING) {
        // What a request would find out is told, too.
        lifecycle::notice_standstill(ctx, now.mono);
    }
    node::with(|node| {
        let table = &node.table;
        ctx.reply_map(10);
        text(ctx, "version", env!("CARGO_PKG_VERSION").as_bytes());
        text(ctx, "incarnation", node.incarnation.as_bytes());
        text(ctx, "role", role.as_bytes());
        number(
            ctx,
            "quarantine",
            table
                .quarantine
                .left(now.mono)
                .map_or(0, |(left, _)| to_millis(left)),
        );
        number(ctx, "durable", durable.into());
        number(ctx, "fence", table.fence());
        number(ctx, "locks", table.locks() as u64);
        number(ctx, "waiters", table.waiters() as u64);
        number(ctx, "max-ttl", config::longest_lease().0);
        number(ctx, "time", now.wall);
    });
    Ok(())
}

/// Whether every acknowledged grant is on disk.
fn is_durable(ctx: Ctx) -> bool {
    let is = |name, value: &str| ctx.config(name).is_some_and(|found| found == value);
    is("appendonly", "yes") && is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no")
}
