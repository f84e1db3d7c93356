//! `LOCK.NODE`: replies with a map about this node.

use redis_module::raw;
use redislock_core::time::{Micros, MonoTime};

use super::info::{number, text};
use crate::clock;
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;
use crate::server::Refusal;
use crate::{config, edge, node, replication, server, warnings};

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
    let (refusal, _) = Refusal::name_and_code(server::refusal(ctx));
    let now = clock::now();
    if !ctx.has(raw::REDISMODULE_CTX_FLAGS_LOADING) {
        // Check the same conditions as a request, so that their result is shown, too.
        replication::check(ctx, now.mono);
    }
    node::with(|node| {
        let table = &node.table;
        ctx.reply_map(17);
        text(ctx, "version", env!("CARGO_PKG_VERSION").as_bytes());
        text(ctx, "incarnation", node.incarnation.as_bytes());
        text(ctx, "role", role.as_bytes());
        number(
            ctx,
            "quarantine",
            table
                .pause(now.mono)
                .map_or(0, |(left, _)| left.to_millis().0),
        );
        number(ctx, "durable", durable.into());
        number(ctx, "fence", table.fence());
        number(ctx, "locks", table.locks() as u64);
        number(ctx, "waiters", table.waiters() as u64);
        number(ctx, "max-ttl", config::longest_lease().0.0);
        number(ctx, "time", now.wall.0);
    });
    ctx.reply_bytes(b"warnings");
    ctx.reply_array(warnings.len());
    warnings
        .iter()
        .for_each(|warning| ctx.reply_bytes(warning.as_bytes()));
    number(ctx, "failed", edge::has_failed().into());
    reply_replicas(ctx, now.mono);
    text(ctx, "refusal", refusal.as_bytes());
    Ok(())
}

/// The number of replicas that must confirm that this is the only master, the number that do, for
/// how long enough of them have, and the age of their confirmations, ms.
fn reply_replicas(ctx: Ctx, now: MonoTime) {
    let standing = node::with(|node| {
        let lease = node.table.replication.as_ref();
        lease.map(|lease| lease.standing(now))
    });
    let needed = standing.map_or(0, |standing| standing.needed);
    let counted = standing.map_or(0, |standing| standing.counted);
    let held = standing.and_then(|standing| standing.since);
    number(ctx, "replicas-needed", needed as u64);
    number(ctx, "replicas-counted", counted as u64);
    let millis = |name: &str, span: Option<Micros>| {
        ctx.reply_bytes(name.as_bytes());
        match span {
            Some(span) => ctx.reply_integer(span.to_millis().0),
            None => ctx.reply_null(),
        }
    };
    millis("replicas-held-ms", held.map(|since| now.since(since)));
    let age = standing.and_then(|standing| standing.evidence_age);
    millis("replicas-evidence-ms", age);
}
