//! The only place that opens keys, applies what core has decided, replicates it and sends events
//! about it.
//!
//! Another module may listen to keyspace events and call LOCK commands from there. So ours are sent
//! last: when all keys are changed, the effect is replicated, and nothing is borrowed or open. The
//! server sends events of its own earlier (a new key, a key whose time is up). A LOCK command that
//! is called from one of these meets a change that is half made, and is refused ([`is_changing`]).

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use redis_module::raw;
use redislock_core::Table;
use redislock_core::slots::LockId;
use redislock_core::table::{
    Events, Found, Keyspace, LegacyString, Output, Presence, Touched, Wanted,
};
use redislock_core::time::{Now, from_millis};
use redislock_core::token::Key;

use crate::clock;
use crate::ffi::{Arg, Ctx, For, OpenKey, OwnedString, Standing};
use crate::node::{self, Node};
use crate::{alarm, lifecycle, waiters};

/// A key that a command names, open for writing.
pub struct Opened<'a> {
    name: Arg<'a>,
    key: OpenKey,
    db: u32,
    lock: Option<LockId>,
    string: Option<LegacyString>,
}

/// The key holds a value of another type.
pub struct WrongType;

impl<'a> Opened<'a> {
    /// Opens a key of the selected database.
    pub fn new(ctx: Ctx, name: Arg<'a>) -> Result<Self, WrongType> {
        let key = ctx.open(name, For::Writing);
        let (mut lock, mut string) = (None, None);
        match key.standing() {
            Standing::Nothing => {}
            Standing::Lock(id) => lock = Some(id),
            Standing::LegacyString(left) => string = Some(string_with(left)),
            Standing::Other => return Err(WrongType),
        }
        Ok(Self {
            name,
            key,
            db: ctx.db(),
            lock,
            string,
        })
    }

    /// The key, as core wants it named.
    pub fn wanted(&self) -> Wanted<'a> {
        Wanted {
            db: self.db,
            name: self.name.bytes(),
            lock: self.lock,
            string: self.string,
        }
    }

    /// The lock at it.
    pub fn lock(&self) -> Option<LockId> {
        self.lock
    }

    /// Closes the key, so that others may change it.
    pub fn close(&self) {
        self.key.close();
    }
}

/// A string that lasts so many milliseconds, or has no TTL. The server ends it a millisecond after
/// nothing is left.
fn string_with(left: Option<u64>) -> LegacyString {
    let end = left.map(|left| clock::mono().plus(from_millis(left.saturating_add(1))));
    LegacyString { end }
}

/// The keyspace as core may ask it.
pub struct Keys(pub Ctx);

impl Keyspace for Keys {
    fn find(&mut self, table: &Table, key: &Key) -> Found {
        let (ctx, before) = (self.0, self.0.db());
        ctx.select(key.db());
        let name = OwnedString::new(key.name());
        let standing = node::lend(table, || ctx.open(name.arg(), For::Looking).standing());
        let found = match standing {
            Standing::Nothing => Found::Nothing,
            Standing::Lock(id) => Found::Lock(id),
            Standing::LegacyString(left) => Found::LegacyString(string_with(left)),
            Standing::Other => Found::Other,
        };
        ctx.select(before);
        found
    }
}

/// Whether a change has begun and is not whole yet.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Whether a change has begun and is not whole yet: whoever asks was called from the middle of it.
pub fn is_changing() -> bool {
    CHANGING.load(Ordering::Relaxed)
}

/// A change, as long as it is not whole.
pub struct Change {
    /// Whether it is part of another one.
    is_inner: bool,
}

impl Change {
    pub fn begin() -> Self {
        let is_inner = CHANGING.swap(true, Ordering::Relaxed);
        Self { is_inner }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGING.store(self.is_inner, Ordering::Relaxed);
    }
}

/// Lets core decide, applies what follows and sends the events. `own` are the keys that the command
/// has open; they may be closed afterwards.
pub fn decide<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> R {
    let (result, news) = decide_at(ctx, own, |_| true, decide);
    news.send(ctx, own);
    result
}

/// [`decide`] for what gives no fence itself: the wall clock is read only if a waiter may be given
/// one.
pub fn decide_without_fence<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> R {
    let (result, news) = decide_silently(ctx, own, decide);
    news.send(ctx, own);
    result
}

/// [`decide_without_fence`] for a caller that has more to do before anybody may hear of it.
pub fn decide_silently<'a, R>(
    ctx: Ctx,
    own: &[Opened<'a>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> (R, News<'a>) {
    let may_serve = |Node { table, .. }: &Node| {
        // A key that is free may have a line of those who wait for others, too.
        let has_line = |lock: Option<LockId>| match lock {
            Some(lock) => table.is_waited_for(lock),
            None => table.waiters() > 0,
        };
        table.has_unserved() || own.iter().any(|opened| has_line(opened.lock))
    };
    decide_at(ctx, own, may_serve, decide)
}

fn decide_at<'a, R>(
    ctx: Ctx,
    own: &[Opened<'a>],
    gives_fences: impl FnOnce(&Node) -> bool,
    decide: impl FnOnce(&mut Node, Now, &mut Keys) -> R,
) -> (R, News<'a>) {
    let mono = clock::mono();
    lifecycle::notice_replacement(ctx, mono);
    let _change = Change::begin();
    let (result, output, unfinished, next_look) = node::with(|node| {
        let wall = if gives_fences(node) { clock::wall() } else { 0 };
        let now = Now { mono, wall };
        let result = decide(node, now, &mut Keys(ctx));
        let output = node.table.has_output().then(|| {
            // Outside of a command an effect is always made: nobody else counts the change.
            let listened_to = node.listened_to || own.is_empty();
            node.table.take_output(now, listened_to)
        });
        let (unfinished, next_look) = (node.table.has_more_to_serve(now), node.table.next_look());
        (result, output, unfinished, next_look)
    });
    let news = output.map_or_else(News::default, |output| apply(ctx, own, output));
    // Outside of a command the caller sets the alarm, as it knows what can be done by then.
    if let Some(look) = next_look.filter(|_| !own.is_empty()) {
        alarm::wake_at(look);
    }
    if unfinished && !own.is_empty() {
        alarm::wake_soon();
    }
    (result, news)
}

/// Applies an output: keys, replication, answers, and the alarm for what comes next. What is to be
/// told is left.
fn apply<'a>(ctx: Ctx, own: &[Opened<'a>], mut output: Output) -> News<'a> {
    let mut news = News::default();
    if !(output.touched.is_empty() && output.ended_before.is_empty()) {
        news = apply_changes(ctx, own, &output);
        if output.effect.is_empty() {
            // Nobody listens, so nothing is sent; this only counts the change, for the server's
            // save points.
            ctx.replicate_as_is();
        }
    }
    if !output.answers.is_empty() {
        waiters::deliver(output.answers.drain(..));
    }
    // Outside of a command the caller sets the alarm, as it knows what can be done by then.
    let soonest_end = output.soonest_end.filter(|_| !own.is_empty());
    node::with(|node| node.table.return_output(output));
    if let Some(end) = soonest_end {
        alarm::wake_at(end);
    }
    news
}

/// Changes the keys and replicates it; what is to be told about it is left.
fn apply_changes<'a>(ctx: Ctx, own: &[Opened<'a>], output: &Output) -> News<'a> {
    let mut effects = (!output.effect.is_empty()).then(|| Effects::new(output));
    let mut news = News::default();
    let mut own_at = 0;
    for touched in &output.touched {
        // Core touches the keys of a command in their order, so the next one is nearly always it.
        let next = own.get(own_at).filter(|opened| is_at(opened, touched));
        let opened = next.or_else(|| own.iter().find(|opened| is_at(opened, touched)));
        let (db, name) = if let Some(opened) = opened {
            own_at += 1;
            change_key(ctx, touched, opened.name, &opened.key);
            (opened.db, Name::Own(opened.name))
        } else if let Some(key) = key_of(touched) {
            let before = ctx.db();
            ctx.select(key.db());
            let name = OwnedString::new(key.name());
            change_key_if_unchanged(ctx, touched, name.arg());
            ctx.select(before);
            (key.db(), Name::Made(name))
        } else {
            continue;
        };
        if let Some(effects) = &mut effects {
            effects.add(ctx, touched, db, &name);
        }
        let events = touched.events;
        news.add(Told { db, name, events });
    }
    for (key, times) in &output.ended_before {
        news.add(Told {
            db: key.db(),
            name: Name::Made(OwnedString::new(key.name())),
            events: Events {
                expired: *times,
                ..Events::default()
            },
        });
    }
    if let Some(mut effects) = effects {
        effects.send(ctx);
    }
    news
}

/// The name of a changed key.
enum Name<'a> {
    /// The command has named it.
    Own(Arg<'a>),
    /// It was made here.
    Made(OwnedString),
}

impl Name<'_> {
    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Own(name) => *name,
            Self::Made(name) => name.arg(),
        }
    }
}

/// What is to be told about one key.
struct Told<'a> {
    db: u32,
    name: Name<'a>,
    events: Events,
}

/// What is to be told about a change, when it is whole.
#[derive(Default)]
#[must_use]
pub struct News<'a> {
    /// Nearly always there is one, which needs no allocation.
    first: Option<Told<'a>>,
    more: Vec<Told<'a>>,
}

impl<'a> News<'a> {
    fn add(&mut self, told: Told<'a>) {
        if self.first.is_none() {
            self.first = Some(told);
        } else {
            self.more.push(told);
        }
    }

    /// Sends the keyspace events. Whoever hears of them may do anything, so no key stays open.
    pub fn send(self, ctx: Ctx, own: &[Opened<'_>]) {
        let Some(first) = self.first else {
            return;
        };
        own.iter().for_each(Opened::close);
        first.send(ctx);
        self.more.iter().for_each(|told| told.send(ctx));
    }
}

impl Told<'_> {
    fn send(&self, ctx: Ctx) {
        match &self.name {
            Name::Own(name) => tell(ctx, self.events, *name),
            Name::Made(name) => {
                let before = ctx.db();
                ctx.select(self.db);
                tell(ctx, self.events, name.arg());
                ctx.select(before);
            }
        }
    }
}

/// What is replicated: one effect for all keys of a database that stand next to each other. In a
/// cluster each key that the command did not name has its own, as it may be of another slot.
struct Effects<'o> {
    output: &'o Output,
    cluster: bool,
    db: u32,
    /// The changes that have not been sent yet, and their keys.
    changes: std::ops::Range<usize>,
    first: Option<*mut raw::RedisModuleString>,
    more: Vec<*mut raw::RedisModuleString>,
}

impl<'o> Effects<'o> {
    fn new(output: &'o Output) -> Self {
        Self {
            output,
            cluster: node::with(|node| node.cluster),
            db: 0,
            changes: output.head..output.head,
            first: None,
            more: Vec::new(),
        }
    }

    /// Adds the change of a key. Its name lives until the effects are sent.
    fn add(&mut self, ctx: Ctx, touched: &Touched, db: u32, name: &Name<'_>) {
        let alone = self.cluster && matches!(name, Name::Made(_));
        let name = name.arg().raw();
        if self.db != db || alone {
            self.send(ctx);
        }
        self.db = db;
        if let Some(first) = self.first {
            if self.more.is_empty() {
                self.more.push(first);
            }
            self.more.push(name);
        } else {
            self.first = Some(name);
            self.changes.start = touched.change.start;
        }
        self.changes.end = touched.change.end;
        if alone {
            self.send(ctx);
        }
    }

    /// Sends what is there.
    fn send(&mut self, ctx: Ctx) {
        let Some(first) = self.first.take() else {
            return;
        };
        let Output { effect, head, .. } = self.output;
        let keys = if self.more.is_empty() {
            &[first][..]
        } else {
            &self.more
        };
        let before = ctx.db();
        ctx.select(self.db);
        if self.changes == (*head..effect.len()) {
            ctx.replicate(effect, keys);
        } else {
            let parts = [0..*head, self.changes.clone()];
            let parts = parts.map(|part| effect.get(part).unwrap_or_default());
            ctx.replicate(&parts.concat(), keys);
        }
        ctx.select(before);
        self.more.clear();
    }
}

/// The key of a touched lock.
fn key_of(touched: &Touched) -> Option<Key> {
    touched
        .gone_from
        .clone()
        .or_else(|| node::with(|node| node.table.key(touched.id)))
}

/// Whether this open key is the one of a touched lock.
fn is_at(opened: &Opened<'_>, touched: &Touched) -> bool {
    match (touched.presence, opened.lock) {
        (Presence::Kept | Presence::Gone, Some(lock)) => lock == touched.id,
        // A lock that core does not know is no lock: it is written over.
        (Presence::New, _) => node::with(|node| {
            let table = &node.table;
            table.is_at(touched.id, opened.db, opened.name.bytes())
        }),
        _ => false,
    }
}

/// Makes or deletes the key of a touched lock, which the running command has open.
fn change_key(ctx: Ctx, touched: &Touched, name: Arg<'_>, key: &OpenKey) {
    match touched.presence {
        Presence::New => key.set(touched.id),
        Presence::Gone => node::deleting(touched.id, || key.delete()),
        Presence::Kept => {}
    }
    ctx.signal_modified(name);
}

/// The same for a key that the command did not name. What stands there may be another value by now:
/// then it is left alone.
fn change_key_if_unchanged(ctx: Ctx, touched: &Touched, name: Arg<'_>) {
    let key = ctx.open(name, For::Writing);
    match (touched.presence, key.standing()) {
        (Presence::New, Standing::Nothing) => change_key(ctx, touched, name, &key),
        (Presence::New, Standing::Lock(id)) if !is_known(id) => {
            change_key(ctx, touched, name, &key);
        }
        (_, Standing::Lock(id)) if id == touched.id => change_key(ctx, touched, name, &key),
        _ => ctx.signal_modified(name),
    }
}

/// Whether core knows the lock.
fn is_known(id: LockId) -> bool {
    node::with(|node| node.table.lock(id).is_some())
}

/// Sends what happened to a key as keyspace events.
fn tell(ctx: Ctx, events: Events, name: Arg<'_>) {
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

/// Sends the fence counter alone.
pub fn replicate_counter(ctx: Ctx) {
    let mut effect = Vec::new();
    node::with(|node| node.table.put_head(&mut effect));
    ctx.replicate(&effect, &[]);
}
