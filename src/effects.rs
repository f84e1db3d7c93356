//! Effects: decisions in the form that replicas and the AOF get.

use std::ffi::CStr;

use redis_module::raw;
use redislock_core::small::SmallList;
use redislock_core::table::{Output, Touched};
use redislock_core::wire::{self, Header};

use crate::ffi::{Arg, Ctx};

/// The internal command that carries effects.
pub const APPLY: &CStr = c"lock._apply";

/// The effects of one decision. Neighbouring keys of the same database share one effect. In a
/// cluster, each key that the command did not name has its own, because it may be in another slot.
pub struct Effects<'o> {
    output: &'o Output,
    cluster: bool,
    db: u32,
    /// The changes that have not been sent yet, and their keys.
    changes: std::ops::Range<usize>,
    keys: SmallList<*mut raw::RedisModuleString>,
}

impl<'o> Effects<'o> {
    /// No effects yet.
    pub fn new(output: &'o Output, cluster: bool) -> Self {
        Self {
            output,
            cluster,
            db: 0,
            changes: output.header_len..output.header_len,
            keys: SmallList::default(),
        }
    }

    /// Adds the change of a key, and whether the command has named the key. The name lives until
    /// the effects are sent.
    pub fn add(&mut self, ctx: Ctx, touched: &Touched, db: u32, name: Arg<'_>, is_named: bool) {
        let alone = self.cluster && !is_named;
        let name = name.raw();
        if self.db != db || alone {
            self.send(ctx);
        }
        self.db = db;
        if self.keys.is_empty() {
            self.changes.start = touched.change.start;
        }
        self.keys.push(name);
        self.changes.end = touched.change.end;
        if alone {
            self.send(ctx);
        }
    }

    /// Sends the effects of one key by themselves.
    pub fn send_apart(&mut self, ctx: Ctx, effects: [Vec<u8>; 2], db: u32, name: Arg<'_>) {
        self.send(ctx);
        let before = ctx.db();
        ctx.select(db);
        for effect in &effects {
            ctx.replicate(APPLY, effect, &[name.raw()]);
        }
        ctx.select(before);
    }

    /// Sends the effects so far.
    pub fn send(&mut self, ctx: Ctx) {
        if self.keys.is_empty() {
            return;
        }
        let Output {
            effect, header_len, ..
        } = self.output;
        let before = ctx.db();
        ctx.select(self.db);
        if self.changes == (*header_len..effect.len()) {
            ctx.replicate(APPLY, effect, &self.keys);
        } else {
            let parts = [0..*header_len, self.changes.clone()];
            let parts = parts.map(|part| effect.get(part).unwrap_or_default());
            ctx.replicate(APPLY, &parts.concat(), &self.keys);
        }
        ctx.select(before);
        self.keys = SmallList::default();
    }
}

/// Sends an effect that changes no key: the fence counter, and the data of the quarantine.
pub fn send_header(ctx: Ctx, header: Header) {
    let mut effect = Vec::new();
    wire::begin_effect(header, &mut effect);
    ctx.replicate(APPLY, &effect, &[]);
}
