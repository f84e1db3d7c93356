//! `LOCK.NODE`: a map about this node.

use redis_module::raw;
use redislock_core::time::to_millis;

use super::info::{number, text};
use super::reply::Failure;
use crate::clock;
use crate::ffi::{Args, Ctx};
use crate::{config, edge, lifecycle, node, server, warnings};

pub fn node(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if args.len() != 1 {
        return Err(Failure::Arity);
    }
    let role = if ctx.has(raw::REDISMODULE_CTX_FLAGS_MASTER) {
        "master"
    } else {
        "replica"
    };
    let durable = server::is_durable(ctx);
    let warnings = warnings::collect(ctx);
    let now = clock::now();
    if !ctx.has(raw::REDISMODULE_CTX_FLAGS_LOADING) {
        // What a request would find out is told, too.
        lifecycle::notice_standstill(ctx, now.mono);
    }
    node::with(|node| {
        let table = &node.table;
        ctx.reply_map(12);
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
    ctx.reply_bytes(b"warnings");
    ctx.reply_array(warnings.len());
    warnings
        .iter()
        .for_each(|warning| ctx.reply_bytes(warning.as_bytes()));
    number(ctx, "failed", edge::has_failed().into());
    Ok(())
}
