//! The only place that opens keys, applies what core has decided, replicates it and sends events
//! about it.
//!
//! Another module may listen to keyspace events and call LOCK commands from there. So ours are sent
//! last: when all keys are changed, the effect is replicated, and nothing is borrowed or open. The
//! server sends events of its own earlier (a new key, a key whose time is up). A LOCK command that
//! is called from one of these meets a request that has looked at some of its keys, or a change
//! that is half made, and is refused ([`is_changing`]).
//! Other commands are not, and may delete any key. The server keeps a pointer to the value of an
//! open key, so no key stays open while another one is opened or changed.

mod change;
mod followup;
mod key;
mod value;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use change::{apply_effect, free};
pub use followup::Followup;
use key::{For, OpenKey};
use redislock_core::Table;
use redislock_core::slots::LockId;
use redislock_core::table::{Denial, Found, Keyspace, LegacyString, Output, Wanted};
use redislock_core::time::{Now, WallTime};
use redislock_core::token::Key;
pub use value::{lock_of, set_redis_type, value_of};

use crate::ffi::{Arg, Ctx, OwnedString};
use crate::global::Global;
use crate::node::{self, Node};
use crate::{clock, replication, waiters};

/// A key that a command names, open for writing.
pub struct Opened<'a> {
    name: Arg<'a>,
    key: OpenKey,
    db: u32,
    lock: Option<LockId>,
    string: Option<LegacyString>,
}

impl<'a> Opened<'a> {
    /// Opens a key of the selected database. If its time is up, the server deletes it and tells
    /// other modules. What these change meanwhile is seen here: the key is opened again then.
    pub fn new(ctx: Ctx, name: Arg<'a>) -> Result<Self, Denial> {
        let open = || {
            let _changing = Changing::begin();
            OpenKey::new(ctx, name, For::Writing)
        };
        let before = foreign_changes();
        let mut key = open();
        if foreign_changes() != before {
            key.close();
            key = open();
        }
        let (mut lock, mut string) = (None, None);
        match key.found() {
            Found::Nothing => {}
            Found::Lock(id) => lock = Some(id),
            Found::LegacyString(found) => string = Some(found),
            Found::Other => return Err(Denial::WrongType),
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

    /// Closes the key, so that others may change it. If it is to be changed, it is opened again.
    pub fn close(&self) {
        self.key.close();
    }
}

/// What is at a key of the selected database, for a command that only reads.
pub fn find(ctx: Ctx, name: Arg<'_>) -> Found {
    OpenKey::new(ctx, name, For::Reading).found()
}

/// Whether anything is at a key of the selected database. Nobody hears of the look: the server may
/// be in the middle of a deletion.
pub fn is_there(ctx: Ctx, name: Arg<'_>) -> bool {
    OpenKey::new(ctx, name, For::Looking).exists()
}

/// The lock at a key that an event is about, and the key.
pub fn lock_at(ctx: Ctx, name: Arg<'_>) -> Option<(LockId, Key)> {
    let key = OpenKey::new(ctx, name, For::Reading);
    match (key.found(), key.db()) {
        (Found::Lock(id), Some(db)) => Some((id, Key::new(db, name.bytes()))),
        _ => None,
    }
}

/// The keyspace as core may ask it.
pub struct Keys<'a> {
    ctx: Ctx,
    own: &'a [Opened<'a>],
}

impl Keyspace for Keys<'_> {
    fn find(&mut self, table: &Table, key: &Key) -> Found {
        self.own.iter().for_each(Opened::close);
        let (ctx, before) = (self.ctx, self.ctx.db());
        ctx.select(key.db());
        let name = OwnedString::new(key.name());
        let found = node::lend(table, || {
            OpenKey::new(ctx, name.arg(), For::Looking).found()
        });
        ctx.select(before);
        found
    }
}

/// How often others have changed locks: removed, moved, restored, flushed or swapped them.
static FOREIGN_CHANGES: AtomicU64 = AtomicU64::new(0);

/// Others change a lock, or a whole database.
pub fn note_foreign_change() {
    let changes = foreign_changes().wrapping_add(1);
    FOREIGN_CHANGES.store(changes, Ordering::Relaxed);
}

/// Another number if others have changed locks: what was seen at keys before counts no more.
pub fn foreign_changes() -> u64 {
    FOREIGN_CHANGES.load(Ordering::Relaxed)
}

/// Whether a change has begun and is not whole yet.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Whether a change has begun and is not whole yet: then the caller was called in the middle of it.
pub fn is_changing() -> bool {
    CHANGING.load(Ordering::Relaxed)
}

/// A change, as long as it is not whole.
struct Changing {
    /// Whether it is part of another one.
    is_inner: bool,
}

impl Changing {
    fn begin() -> Self {
        // No swap: that is a locked instruction, and one thread at a time comes here.
        let is_inner = CHANGING.load(Ordering::Relaxed);
        CHANGING.store(true, Ordering::Relaxed);
        Self { is_inner }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(self.is_inner, Ordering::Relaxed);
    }
}

/// Lets core decide about a command, applies what follows, sends the events and sets the alarm.
/// `own` are the keys that the command has open; they may be closed afterwards.
pub fn decide<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R,
) -> R {
    let (result, followup) = decide_at(ctx, own, Occasion::Command, |_| true, decide);
    followup.finish(ctx, own);
    result
}

/// [`decide`] for a command that says by itself that its key is free afterwards. If that is all
/// that follows, it is replicated as it came (see [`free`]), which is shorter and cheaper than an
/// effect.
/// It gives no fence itself: the wall clock is read only if a waiter may be given one.
pub fn decide_release<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R,
) -> R {
    let (result, followup) = decide_at(ctx, own, Occasion::Release, may_serve(own), decide);
    followup.finish(ctx, own);
    result
}

/// [`decide_release`] with effects in any case, for a caller that has more to do before anybody may
/// be notified.
pub fn decide_deferring_events<'a, R>(
    ctx: Ctx,
    own: &[Opened<'a>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R,
) -> (R, Followup<'a>) {
    decide_at(ctx, own, Occasion::Command, may_serve(own), decide)
}

/// Whether a waiter may be granted a lock when these keys become free.
fn may_serve(own: &[Opened<'_>]) -> impl FnOnce(&Node) -> bool {
    |Node { table, .. }: &Node| {
        // A key that is free may have a queue of requests that also wait for other keys.
        let has_queue = |lock: Option<LockId>| match lock {
            Some(lock) => table.is_waited_for(lock),
            None => table.waiters() > 0,
        };
        table.has_unserved() || own.iter().any(|opened| has_queue(opened.lock))
    }
}

/// Lets core decide about what no client has asked for, applies what follows and sends the events.
/// The caller sets the alarm: it knows what can be done by then.
pub fn decide_event<R>(ctx: Ctx, decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R) -> R {
    let (result, followup) = decide_at(ctx, &[], Occasion::Event, |_| true, decide);
    followup.send_events(ctx, &[]);
    result
}

/// What a decision is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    Command,
    /// A command after which its first key is free, if it changes anything.
    Release,
    Event,
}

/// An output that was applied: its memory is used again.
static SPARE: Global<Option<Box<Output>>> = Global::new(None);

fn decide_at<'a, R>(
    ctx: Ctx,
    own: &[Opened<'a>],
    occasion: Occasion,
    gives_fences: impl FnOnce(&Node) -> bool,
    decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R,
) -> (R, Followup<'a>) {
    #[cfg(feature = "failpoints")]
    crate::edge::failpoint::DECISIONS.fetch_add(1, Ordering::Relaxed);
    let mono = clock::mono();
    replication::check(ctx, mono);
    let changing = Changing::begin();
    let (result, wake, output) = node::with(|node| {
        let wall = if gives_fences(node) {
            clock::wall()
        } else {
            WallTime::default()
        };
        let now = Now { mono, wall };
        let result = decide(node, now, &mut Keys { ctx, own });
        // Keys that are open are not what they were, if databases are not.
        let own = if node.have_databases_moved() {
            &[]
        } else {
            own
        };
        if !node.table.has_output() {
            return (result, node.table.wake(None, now), None);
        }
        // Outside of a command an effect is always made: nobody else counts the change.
        let listened_to = node.listened_to || occasion == Occasion::Event;
        let lock = own.first().and_then(Opened::lock);
        let says_it =
            occasion == Occasion::Release && lock.is_some_and(|lock| node.table.only_frees(lock));
        let spare = SPARE.with(Option::take).unwrap_or_default();
        let output = node.table.take_output(now, listened_to && !says_it, spare);
        let places = change::places(&node.table, own, &output);
        let wake = node.table.wake(Some(&output), now);
        (result, wake, Some((output, places)))
    });
    let mut followup = match &output {
        Some((output, places)) => change::change_keys(ctx, own, output, places),
        None => Followup::default(),
    };
    if let Some((mut output, _)) = output {
        if !output.answers.is_empty() {
            waiters::deliver(output.answers.drain(..));
        }
        output.clear();
        SPARE.with(|spare| *spare = Some(output));
    }
    followup.wake = wake;
    drop(changing);
    node::is_whole();
    (result, followup)
}
