//! `LOCK._APPLY effect [key …]`: what was decided elsewhere, for the master's link, the AOF and
//! slot import alone.
//!
//! An effect is a version, the fence counter, what quarantine has to remember, and a change for
//! each key. It is checked like any input.

use redis_module::raw;
use redislock_core::fence::MAX_FENCE;
use redislock_core::table::Loaded;
use redislock_core::token::Key;
use redislock_core::wire::{self, Malformed, Reader};

use super::reply::Failure;
use crate::clock;
use crate::ffi::{Args, Ctx, For, Standing};
use crate::keyspace::{Change, WrongType};
use crate::node::{self, Node};

const NOT_AN_EFFECT: Failure = Failure::Text("ERR malformed LOCK._APPLY payload");

/// What stands in front of the changes.
pub struct Head {
    fence: u64,
    quarantine: u64,
}

impl Head {
    /// The node takes it in.
    pub fn take_in(&self, node: &mut Node) {
        node.table.raise_fence(self.fence);
        node.table.quarantine.remember(self.quarantine);
    }
}

/// Reads the counter and what quarantine has to remember.
pub fn read_head(reader: &mut Reader<'_>) -> Result<Head, Malformed> {
    Ok(Head {
        fence: reader.number(MAX_FENCE)?,
        quarantine: reader.number(wire::MAX_TTL)?,
    })
}

pub fn apply(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if !is_trusted(ctx) {
        return Err("ERR LOCK._APPLY is internal: it is for replication and the AOF alone".into());
    }
    let effect = args.get(1).ok_or(Failure::Arity)?.bytes();
    let mut reader = Reader(effect);
    if reader.byte().map_err(|_| NOT_AN_EFFECT)? != wire::EFFECT_VERSION {
        return Err(NOT_AN_EFFECT);
    }
    let head = read_head(&mut reader).map_err(|_| NOT_AN_EFFECT)?;
    let lease_now = node::with(|node| node.table.lease_now(clock::mono()));
    let keys = args.from(2);
    let changes: Result<Vec<_>, _> = keys.iter().map(|_| reader.change(lease_now)).collect();
    let changes = changes.map_err(|_| NOT_AN_EFFECT)?;
    if !reader.0.is_empty() {
        return Err(NOT_AN_EFFECT);
    }
    let _change = Change::begin();
    node::with(|node| head.take_in(node));
    for (name, change) in keys.iter().zip(changes) {
        let key = ctx.open(name, For::Writing);
        let lock = match key.standing() {
            Standing::Nothing => None,
            Standing::Lock(id) => Some(id),
            Standing::LegacyString(_) | Standing::Other => return Err(WrongType.into()),
        };
        match node::with(|node| {
            node.table
                .apply(Key::new(ctx.db(), name.bytes()), lock, change)
        }) {
            Loaded::New(id) => key.set(id),
            Loaded::Kept => {}
            Loaded::Gone => {
                if let Some(id) = lock {
                    node::deleting(id, || key.delete());
                }
            }
        }
        ctx.signal_modified(name);
    }
    // Its own AOF and replicas get it as it came.
    ctx.replicate_as_is();
    Ok(())
}

/// The id of the client by which the server feeds itself its AOF.
const AOF_CLIENT: u64 = u64::MAX;

/// Whether the effect comes from the master, the AOF, or a slot that is being imported. That the
/// server is loading is not enough: it listens to its clients meanwhile.
fn is_trusted(ctx: Ctx) -> bool {
    let flags = ctx.flags();
    flags & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0
        || flags & raw::REDISMODULE_CTX_FLAGS_LOADING != 0 && ctx.client() == AOF_CLIENT
}
