//! The only place that opens keys, applies core's decisions, replicates them and sends keyspace
//! events.
//!
//! Another module may listen to keyspace events and call LOCK commands from there. So our events
//! are sent last: when all keys are changed, the effect is replicated, and nothing is borrowed or
//! open. The server sends its own events earlier (a new key, an expired key). A LOCK command that
//! is called from such an event would run in the middle of a request or of a change, so it is
//! refused ([`is_changing`]). Other commands are not refused, and may delete any key. The server
//! keeps a pointer to the value of an open key, so no key stays open while another one is opened or
//! changed.

mod change;
mod followup;
mod key;
mod value;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use change::{Unapplied, apply_effect, free};
pub use followup::Followup;
use key::{For, OpenKey};
use redislock_core::Table;
use redislock_core::slots::LockId;
use redislock_core::table::{Denial, Found, Keyspace, LegacyString, Output, Wanted};
use redislock_core::time::{Now, WallTime};
use redislock_core::token::{Key, Token};
pub use value::{lock_of, set_redis_type, value_of};

use crate::ffi::{Arg, Ctx, OwnedString};
use crate::global::Global;
use crate::node::{self, Node};
use crate::{clock, replication, server, waiters};

/// A key that a command names, open for writing.
pub struct Opened<'a> {
    name: Arg<'a>,
    /// The bytes of the name. The server is asked for them once: 20 instructions less.
    bytes: &'a [u8],
    key: OpenKey,
    db: u32,
    lock: Option<LockId>,
    string: Option<LegacyString>,
}

impl<'a> Opened<'a> {
    /// Opens a key of the selected database. If it has expired, the server deletes it and notifies
    /// other modules. If they change locks meanwhile, the key is opened again.
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
            Found::Nothing | Found::Elsewhere => {}
            Found::Lock(id) => lock = Some(id),
            Found::LegacyString(found) => string = Some(found),
            Found::Other => return Err(Denial::WrongType),
        }
        Ok(Self {
            name,
            bytes: name.bytes(),
            key,
            db: ctx.db(),
            lock,
            string,
        })
    }

    /// A key of which it is known that a request of this owner has to wait. The key is not opened,
    /// which saves 500 instructions of a hand-over; if the decision changes it all the same, it is
    /// opened then. In a cluster, the key may be on its way to another node. If somebody has set a
    /// TTL on the key and it has passed, the server's own expiry ends it.
    pub fn to_wait_for(ctx: Ctx, name: Arg<'a>, token: &Token) -> Option<Self> {
        if !node::anyone_waits() || server::is_cluster() {
            return None;
        }
        let (db, bytes) = (ctx.db(), name.bytes());
        let key = Key::new(db, bytes);
        let lock = node::with(|node| node.table.lock_to_wait_for(&key, token))?;
        Some(Self {
            name,
            bytes,
            key: OpenKey::closed(),
            db,
            lock: Some(lock),
            string: None,
        })
    }

    /// The name of the key, in core's form.
    pub fn wanted(&self) -> Wanted<'a> {
        Wanted {
            db: self.db,
            name: self.bytes,
            lock: self.lock,
            string: self.string,
        }
    }

    /// The lock at this key.
    pub fn lock(&self) -> Option<LockId> {
        self.lock
    }

    /// Closes the key, so that others may change it. To change it, it is opened again.
    pub fn close(&self) {
        self.key.close();
    }
}

/// The value of a key of the selected database, for a command that only reads.
pub fn find(ctx: Ctx, name: Arg<'_>) -> Found {
    OpenKey::new(ctx, name, For::Reading).found()
}

/// Whether a key of the selected database exists. The lookup sends no event, because the server may
/// be in the middle of a deletion.
pub fn is_there(ctx: Ctx, name: Arg<'_>) -> bool {
    OpenKey::new(ctx, name, For::Looking).exists()
}

/// The lock at the key of an event, and the key.
pub fn lock_at(ctx: Ctx, name: Arg<'_>) -> Option<(LockId, Key)> {
    let key = OpenKey::new(ctx, name, For::Reading);
    match (key.found(), key.db()) {
        (Found::Lock(id), Some(db)) => Some((id, Key::new(db, name.bytes()))),
        _ => None,
    }
}

/// The keyspace, as core may query it.
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
            match OpenKey::new(ctx, name.arg(), For::Looking).found() {
                // While its slot moves, newcomers get it at the other node.
                Found::Nothing if server::is_cluster() && server::is_elsewhere(ctx, key.name()) => {
                    Found::Elsewhere
                }
                found => found,
            }
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

/// A number that changes whenever others change locks. What was seen at keys before is outdated
/// then.
pub fn foreign_changes() -> u64 {
    FOREIGN_CHANGES.load(Ordering::Relaxed)
}

/// Whether a change has begun and is not whole yet.
static CHANGING: AtomicBool = AtomicBool::new(false);

/// Whether a change is in progress: then the server called the caller in the middle of it.
pub fn is_changing() -> bool {
    CHANGING.load(Ordering::Relaxed)
}

/// A change in progress.
struct Changing {
    /// Whether it is part of another one.
    is_inner: bool,
}

impl Changing {
    fn begin() -> Self {
        // Not a swap, which is a locked instruction and takes 7 ns instead of 1: only one thread at
        // a time runs this.
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

/// Lets core decide about a command, applies the decision, sends the events and sets the alarm.
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

/// [`decide`] for a command after which its key is free. If the decision changes nothing else, the
/// command itself is replicated (see [`free`]), which is shorter and cheaper than an effect. The
/// command itself needs no fence, so the wall clock is read only if a waiter may get one.
pub fn decide_release<R>(
    ctx: Ctx,
    own: &[Opened<'_>],
    decide: impl FnOnce(&mut Node, Now, &mut Keys<'_>) -> R,
) -> R {
    let (result, followup) = decide_at(ctx, own, Occasion::Release, may_serve(own), decide);
    followup.finish(ctx, own);
    result
}

/// [`decide_release`] that always replicates effects, for a caller that has more to do before
/// events may be sent.
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
        // A free key may have a queue of requests that also wait for other keys.
        let has_queue = |lock: Option<LockId>| match lock {
            Some(lock) => table.is_waited_for(lock),
            None => table.waiters() > 0,
        };
        table.has_unserved() || own.iter().any(|opened| has_queue(opened.lock))
    }
}

/// Lets core decide about something that is not a request, applies the decision and sends the
/// events. The caller sets the alarm, because it knows what it will still do itself.
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

/// An output that was applied. Its memory is reused, which saves 1,150 instructions of an acquire
/// and its release.
static REUSABLE: Global<Option<Box<Output>>> = Global::new(None);

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
        // Open keys are outdated if a database was flushed or swapped.
        let own = if node.have_databases_moved() {
            &[]
        } else {
            own
        };
        if !node.table.has_output() {
            return (result, node.table.wake(None, now), None);
        }
        // Outside of a command, an effect is always made: nothing else counts the change.
        let listened_to = node.listened_to || occasion == Occasion::Event;
        let lock = own.first().and_then(Opened::lock);
        let command_is_enough =
            occasion == Occasion::Release && lock.is_some_and(|lock| node.table.only_frees(lock));
        let reusable = REUSABLE.with(Option::take).unwrap_or_default();
        let output = node
            .table
            .take_output(now, listened_to && !command_is_enough, reusable);
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
        REUSABLE.with(|reusable| *reusable = Some(output));
    }
    followup.wake = wake;
    drop(changing);
    node::is_whole();
    (result, followup)
}
