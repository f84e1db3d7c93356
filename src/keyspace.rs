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
    decide_at(ctx, own, ffi::now(), decide)
}

/// [`decide`] for what gives no fence itself: the wall clock is read only if somebody waits who may be given one.
pub fn decide_without_fence<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> R {
    let now = if node::anyone_waits() {
        ffi::now()
    } else {
        Now {
            mono: ffi::mono(),
            wall: 0,
        }
    };
    decide_at(ctx, own, now, decide)
}

fn decide_at<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    now: Now,
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> R {
    lifecycle::notice_standstill(ctx, now.mono);
    let (result, follows) = node::with(|node| {
        let result = decide(node, now, &mut Keys(ctx));
        let output = node.table.take_output(now);
        if output.touched.is_empty() && output.answers.is_empty() {
            node.table.return_output(output);
            return (result, None);
        }
        (result, Some((output, Effect::begin(node, !own.is_empty()))))
    });
    if let Some((output, effect)) = follows {
        apply(ctx, own, output, effect);
    }
    result
}

/// Applies an output: keys, replication, events, answers, and the alarm for what comes next.
fn apply(ctx: Ctx, own: &[Opened<'_>], mut output: Output, mut effect: Effect) {
    if !output.touched.is_empty() {
        apply_changes(ctx, own, &output, &mut effect);
    }
    if !effect.listened_to && !output.touched.is_empty() {
        // Nobody listens, so nothing is sent; this only counts the change, for the server's save points.
        ctx.replicate_as_is();
    }
    if !output.answers.is_empty() {
        waiters::deliver(std::mem::take(&mut output.answers));
    }
    // What only goes away brings no new deadline; and outside of a command the caller sets the alarm, as it knows what
    // can be done by then.
    let stays = |touched: &Touched| touched.presence != Presence::Gone;
    let may_be_sooner = !own.is_empty() && output.touched.iter().any(stays);
    let next = node::with(|node| {
        node.table.return_output(output);
        node.effect = effect.bytes;
        if may_be_sooner {
            node.table.next_deadline()
        } else {
            None
        }
    });
    if let Some(next) = next {
        lifecycle::wake_at(next);
    }
}

/// Changes the keys, and replicates the changes: one effect for all keys of a database that stand next to each other. In a
/// cluster each key that the command did not name has its own, as it may be of another slot.
fn apply_changes(ctx: Ctx, own: &[Opened<'_>], output: &Output, effect: &mut Effect) {
    let before = ctx.db();
    let mut keys = KeyList::default();
    let mut own_at = 0;
    for touched in &output.touched {
        let change = output.bytes.get(touched.change.clone()).unwrap_or_default();
        // Core touches the keys of a command in their order, so the next one is nearly always it.
        let next = own.get(own_at).filter(|opened| is_at(opened, touched));
        if let Some(opened) = next.or_else(|| own.iter().find(|opened| is_at(opened, touched))) {
            own_at += 1;
            keys.make_room(ctx, effect, opened.db, false);
            change_key(ctx, touched, opened.name, &opened.key);
            tell(ctx, touched, opened.name);
            keys.push(opened.name.raw(), None);
        } else if let Some(key) = key_of(touched) {
            keys.make_room(ctx, effect, key.db(), effect.cluster);
            ctx.select(key.db());
            let name = OwnedString::new(key.name());
            change_key(
                ctx,
                touched,
                name.arg(),
                &ctx.open(name.arg(), For::Writing),
            );
            tell(ctx, touched, name.arg());
            ctx.select(before);
            keys.push(name.arg().raw(), Some(name));
        } else {
            continue;
        }
        effect.bytes.extend_from_slice(change);
        if effect.cluster && !keys.made.is_empty() {
            keys.replicate(ctx, effect);
        }
    }
    keys.replicate(ctx, effect);
}

/// Keys whose changes go into one effect.
#[derive(Default)]
struct KeyList {
    db: u32,
    first: Option<*mut raw::RedisModuleString>,
    more: Vec<*mut raw::RedisModuleString>,
    /// Kept until the effect is sent.
    made: Vec<OwnedString>,
}

impl KeyList {
    fn push(&mut self, name: *mut raw::RedisModuleString, made: Option<OwnedString>) {
        self.made.extend(made);
        match self.first {
            None => self.first = Some(name),
            Some(first) => {
                if self.more.is_empty() {
                    self.more.push(first);
                }
                self.more.push(name);
            }
        }
    }

    /// Sends what is there if the next key, of `db`, cannot go with it.
    fn make_room(&mut self, ctx: Ctx, effect: &mut Effect, db: u32, alone: bool) {
        if self.first.is_some() && (self.db != db || alone) {
            self.replicate(ctx, effect);
        }
        self.db = db;
    }

    fn replicate(&mut self, ctx: Ctx, effect: &mut Effect) {
        let Some(first) = self.first.take() else {
            return;
        };
        if effect.listened_to {
            let before = ctx.db();
            ctx.select(self.db);
            let keys = if self.more.is_empty() {
                &[first][..]
            } else {
                &self.more
            };
            ctx.replicate(&effect.bytes, keys);
            ctx.select(before);
        }
        effect.bytes.truncate(effect.head);
        self.more.clear();
        self.made.clear();
    }
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
    match (touched.presence, opened.lock) {
        (Presence::Kept | Presence::Gone, Some(lock)) => lock == touched.id,
        (Presence::New, None) => node::with(|node| {
            let key = node.table.key(touched.id);
            key.is_some_and(|key| key.db() == opened.db && key.name() == opened.name.bytes())
        }),
        _ => false,
    }
}

/// Makes or deletes the key of a touched lock. What stands there may be another value by now: then it is left alone.
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

/// An effect in the making: what every effect begins with, and the changes behind it.
struct Effect {
    bytes: Vec<u8>,
    head: usize,
    cluster: bool,
    listened_to: bool,
}

impl Effect {
    /// Begins with the fence counter and what quarantine has to remember. Outside of a command it is always sent.
    fn begin(node: &mut Node, in_command: bool) -> Self {
        let mut bytes = std::mem::take(&mut node.effect);
        bytes.clear();
        let listened_to = node.listened_to || !in_command;
        if listened_to {
            effect_head(node, &mut bytes);
        }
        Self {
            head: bytes.len(),
            bytes,
            cluster: node.cluster,
            listened_to,
        }
    }
}

/// Sends the fence counter alone.
pub fn replicate_counter(ctx: Ctx) {
    let mut effect = Vec::new();
    node::with(|node| effect_head(node, &mut effect));
    ctx.replicate(&effect, &[]);
}

/// What every effect begins with.
pub fn effect_head(node: &Node, effect: &mut Vec<u8>) {
    effect.push(wire::VERSION);
    put_number(node.table.fence(), effect);
    put_number(node.table.quarantine.to_save(), effect);
}
