//! The only place that opens keys, applies what core has decided, replicates it and tells about it.

use std::ffi::CStr;

use redis_module::raw;
use redislock_core::slots::LockId;
use redislock_core::table::{Found, Keyspace, Output, Presence, Touched, Wanted};
use redislock_core::time::Now;
use redislock_core::token::Key;
use redislock_core::wire::{self, put_number};

use crate::ffi::{self, Arg, Ctx, For, OpenKey, OwnedString, Standing};
use crate::node::{self, Node};
use crate::{lifecycle, waiters};

/// A key that a command names, open for writing.
pub struct Opened<'a> {
    name: Arg<'a>,
    key: OpenKey,
    db: u32,
    lock: Option<LockId>,
}

/// The key holds a value of another type.
pub struct WrongType;

impl<'a> Opened<'a> {
    /// Opens a key of the selected database.
    pub fn new(ctx: Ctx, name: Arg<'a>) -> Result<Self, WrongType> {
        let key = ctx.open(name, For::Writing);
        let lock = match key.standing() {
            Standing::Nothing => None,
            Standing::Lock(id) => Some(id),
            Standing::Other => return Err(WrongType),
        };
        Ok(Self {
            name,
            key,
            db: ctx.db(),
            lock,
        })
    }

    /// The key, as core wants it named.
    pub fn wanted(&self) -> Wanted<'a> {
        Wanted {
            db: self.db,
            name: self.name.bytes(),
            lock: self.lock,
        }
    }

    /// The lock at it.
    pub fn lock(&self) -> Option<LockId> {
        self.lock
    }
}

/// The keyspace as core may ask it.
pub struct Keys(pub Ctx);

impl Keyspace for Keys {
    fn find(&mut self, key: &Key) -> Found {
        let (ctx, before) = (self.0, self.0.db());
        ctx.select(key.db());
        let name = OwnedString::new(key.name());
        let found = match ctx.open(name.arg(), For::Reading).standing() {
            Standing::Nothing => Found::Nothing,
            Standing::Lock(id) => Found::Lock(id),
            Standing::Other => Found::Other,
        };
        ctx.select(before);
        found
    }
}

/// Lets core decide and applies what follows. `own` are the keys that the command has open.
pub fn decide<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> R {
    let now = ffi::now();
    let (result, output) = node::with(|node| {
        let result = decide(node, now, &mut Keys(ctx));
        (result, node.table.take_output(now))
    });
    apply(ctx, own, output);
    result
}

/// Applies an output: keys, replication, events, answers, and the alarm for what comes next.
fn apply(ctx: Ctx, own: &[Opened<'_>], mut output: Output) {
    match &*output.touched {
        [] => {}
        [touched] => apply_to(ctx, own, touched, &output),
        many => apply_many(ctx, own, many, &output),
    }
    if !output.answers.is_empty() {
        waiters::deliver(std::mem::take(&mut output.answers));
    }
    let next = node::with(|node| {
        node.table.return_output(output);
        node.table.next_deadline()
    });
    if let Some(next) = next {
        lifecycle::wake_at(next);
    }
}

fn apply_to(ctx: Ctx, own: &[Opened<'_>], touched: &Touched, output: &Output) {
    let change = output.bytes.get(touched.change.clone()).unwrap_or_default();
    if let Some(opened) = own.iter().find(|opened| is_at(opened, touched)) {
        change_key(ctx, touched, opened.name, &opened.key);
        replicate(ctx, change, &[opened.name.raw()]);
        tell(ctx, touched, opened.name);
        return;
    }
    let Some(place) = key_of(touched) else {
        return;
    };
    let name = OwnedString::new(place.name());
    let before = ctx.db();
    ctx.select(place.db());
    change_key(
        ctx,
        touched,
        name.arg(),
        &ctx.open(name.arg(), For::Writing),
    );
    replicate(ctx, change, &[name.arg().raw()]);
    tell(ctx, touched, name.arg());
    ctx.select(before);
}

/// Several changes of one decision: one effect for all keys of a database. In a cluster each key has its own, as
/// they may be of different slots.
fn apply_many(ctx: Ctx, own: &[Opened<'_>], many: &[Touched], output: &Output) {
    if node::with(|node| node.cluster) && own.len() < 2 {
        for touched in many {
            apply_to(ctx, own, touched, output);
        }
        return;
    }
    let before = ctx.db();
    let keys: Vec<_> = many
        .iter()
        .map(|touched| key_of(touched).unwrap_or_default())
        .collect();
    let names: Vec<_> = keys
        .iter()
        .map(|key| OwnedString::new(key.name()))
        .collect();
    for (touched, (key, name)) in many.iter().zip(keys.iter().zip(&names)) {
        ctx.select(key.db());
        match own
            .iter()
            .find(|opened| opened.db == key.db() && opened.name.bytes() == key.name())
        {
            Some(opened) => change_key(ctx, touched, opened.name, &opened.key),
            None => change_key(
                ctx,
                touched,
                name.arg(),
                &ctx.open(name.arg(), For::Writing),
            ),
        }
        tell(ctx, touched, name.arg());
    }
    let mut at = 0;
    for run in many.chunk_by(|a, b| key_db(&keys, many, a) == key_db(&keys, many, b)) {
        let names: Vec<_> = names
            .iter()
            .skip(at)
            .take(run.len())
            .map(|name| name.arg().raw())
            .collect();
        let (first, last) = (run.first(), run.last());
        let start = first.map_or(0, |touched| touched.change.start);
        let end = last.map_or(0, |touched| touched.change.end);
        ctx.select(keys.get(at).map_or(before, Key::db));
        replicate(
            ctx,
            output.bytes.get(start..end).unwrap_or_default(),
            &names,
        );
        at += run.len();
    }
    ctx.select(before);
}

fn key_db(keys: &[Key], many: &[Touched], touched: &Touched) -> u32 {
    let at = many.iter().position(|other| std::ptr::eq(other, touched));
    at.and_then(|at| keys.get(at)).map_or(0, Key::db)
}

/// The key of a touched lock.
fn key_of(touched: &Touched) -> Option<Key> {
    touched
        .gone_from
        .clone()
        .or_else(|| node::with(|node| node.table.key(touched.id).cloned()))
}

/// Whether this open key is the one of a touched lock.
fn is_at(opened: &Opened<'_>, touched: &Touched) -> bool {
    match touched.presence {
        Presence::Kept | Presence::Gone => opened.lock == Some(touched.id),
        Presence::New => opened.lock.is_none(),
    }
}

fn change_key(ctx: Ctx, touched: &Touched, name: Arg<'_>, key: &OpenKey) {
    match (touched.presence, key.standing()) {
        (Presence::New, Standing::Nothing) => key.set(touched.id),
        (Presence::Gone, Standing::Lock(id)) if id == touched.id => {
            node::deleting(id, || key.delete())
        }
        _ => {}
    }
    ctx.signal_modified(name);
}

/// Tells of what happened as keyspace events.
fn tell(ctx: Ctx, touched: &Touched, name: Arg<'_>) {
    let events = touched.events;
    let told: [(u32, &CStr); 5] = [
        (events.expired, c"lock.expired"),
        (events.released, c"lock.released"),
        (events.forced, c"lock.forced"),
        (events.extended, c"lock.extended"),
        (events.acquired, c"lock.acquired"),
    ];
    for (times, event) in told {
        for _ in 0..times {
            ctx.notify(event, name);
        }
    }
}

/// Sends changes to replicas and the AOF, with the fence counter and what quarantine has to remember in front.
pub fn replicate(ctx: Ctx, changes: &[u8], keys: &[*mut raw::RedisModuleString]) {
    let effect = node::with(|node| {
        let mut effect = std::mem::take(&mut node.effect);
        effect.clear();
        effect_head(node, &mut effect);
        effect
    });
    let mut effect = effect;
    effect.extend_from_slice(changes);
    ctx.replicate(&effect, keys);
    node::with(|node| node.effect = effect);
}

/// What every effect begins with.
pub fn effect_head(node: &Node, effect: &mut Vec<u8>) {
    effect.push(wire::VERSION);
    put_number(node.table.fence(), effect);
    put_number(node.table.quarantine.to_save(), effect);
}
