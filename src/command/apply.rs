//! `LOCK._APPLY effect [key …]`: applies what another node decided. Only the master's link, the
//! AOF and a slot import may use it.
//!
//! An effect consists of a version, the fence counter, the data of the quarantine, and a change for
//! each key. It is checked like any input.

use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;
use redislock_core::table::Denial;
use redislock_core::wire::{Change, EFFECT_VERSION, Header, Malformed, Reader};

use crate::ffi::{Args, Ctx, Level};
use crate::keyspace::Unapplied;
use crate::reply::Failure;
use crate::{clock, keyspace, node};

const MALFORMED: Failure = Failure::Text("ERR malformed LOCK._APPLY payload");

/// The reply of a replica. The server logs it.
const NEWER: Failure =
    Failure::Text("ERR the master has a newer version of redislock: upgrade this replica");

pub fn apply(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if !super::is_replicated(ctx) {
        return Err("ERR LOCK._APPLY is internal: only replication and the AOF use it".into());
    }
    let effect = args.get(1).ok_or(Failure::Arity)?.bytes();
    if effect
        .first()
        .is_some_and(|version| *version > EFFECT_VERSION)
    {
        refuse_newer_aof(ctx);
        return Err(NEWER);
    }
    let read = read(effect, args.from(2)).map_err(|Malformed| Unapplied::Malformed);
    let applied = read
        .and_then(|(header, changes)| keyspace::apply_effect(ctx, header, args.from(2), changes));
    applied.map_err(|unapplied| match unapplied {
        Unapplied::WrongType => Denial::WrongType.into(),
        Unapplied::Malformed => {
            report_damaged_aof(ctx);
            MALFORMED
        }
    })
}

/// Stops a server that starts with an AOF of a newer version: without the locks in it, two clients
/// could hold the same lock. The server itself stops at an unknown command in the same way.
fn refuse_newer_aof(ctx: Ctx) {
    if ctx.has(raw::REDISMODULE_CTX_FLAGS_LOADING) {
        ctx.log(Level::Warning, NEWER_AOF);
        std::process::exit(1);
    }
}

/// Logs once that locks may be missing, because the server drops replies to commands from its AOF.
fn report_damaged_aof(ctx: Ctx) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if ctx.has(raw::REDISMODULE_CTX_FLAGS_LOADING) && !REPORTED.swap(true, Ordering::Relaxed) {
        ctx.log(Level::Warning, DAMAGED_AOF);
    }
}

const DAMAGED_AOF: &str = "the AOF is damaged: a change of locks in it cannot be read, so locks \
     that are held may be missing, and then two clients can hold one lock";

const NEWER_AOF: &str = "the AOF was written by a newer version of redislock: start the server \
     with that version, or a newer one";

/// Reads all of an effect: its header, and a change for each key.
fn read(effect: &[u8], keys: Args<'_>) -> Result<(Header, Vec<Change>), Malformed> {
    let mut reader = Reader(effect);
    let header = reader.effect_header()?;
    let lease_now = node::with(|node| node.table.lease_now(clock::mono()));
    let changes: Result<Vec<_>, _> = keys.iter().map(|_| reader.change(lease_now)).collect();
    if reader.0.is_empty() {
        Ok((header, changes?))
    } else {
        Err(Malformed)
    }
}
