//! How keys are changed: by an output of core, and by an effect from another node.

use std::cell::OnceCell;

use foldhash::HashMap;
use redislock_core::Table;
use redislock_core::slots::LockId;
use redislock_core::small::SmallList;
use redislock_core::table::{Denial, Events, Found, Loaded, Output, Presence, Touched};
use redislock_core::token::Key;
use redislock_core::wire::{Change, Header};

use super::followup::{Followup, KeyEvents, Name};
use super::key::{For, OpenKey};
use super::{Changing, Opened};
use crate::effects::{APPLY, Effects};
use crate::ffi::{Arg, Args, Ctx, OwnedString};
use crate::{clock, node, server};

/// Where the key of a touched lock is.
pub(super) enum Place {
    /// It is one of the keys that the command has open.
    Own(usize),
    /// The command did not name it.
    Elsewhere(Key),
    Nowhere,
}

/// Finds the keys of all touched locks.
pub(super) fn places(table: &Table, own: &[Opened<'_>], output: &Output) -> SmallList<Place> {
    // It is nearly always the only key that the command has open. Saves 160 of the 16,500
    // instructions of an acquire and its release.
    if let ([opened], [touched]) = (own, &output.touched[..])
        && is_at(table, opened, touched)
    {
        return SmallList::One(Place::Own(0));
    }
    let (mut next, index) = (0, Index::of(own));
    let place = |touched: &Touched| {
        let is_own = |opened: &Opened<'_>| is_at(table, opened, touched);
        // Core touches the keys of a command in their order, so it is nearly always the next one.
        // Saves 2,400 of the 96,500 instructions of a MACQUIRE of 8 keys and its MRELEASE.
        let own = if own.get(next).is_some_and(is_own) {
            Some(next)
        } else {
            index.find(table, touched)
        };
        if let Some(own) = own {
            next = own + 1;
            return Place::Own(own);
        }
        let key = touched.gone_from.clone();
        let key = key.or_else(|| table.key(touched.id));
        key.map_or(Place::Nowhere, Place::Elsewhere)
    };
    output.touched.iter().map(place).collect()
}

/// So few keys are searched one by one: no index is allocated for them. Saves 800 of the 60,000
/// instructions of an MRELEASE of 8 keys after a MACQUIRE of every second one.
const FEW: usize = 8;

/// Finds a touched lock among the keys that a command has open. Both may be very many: without an
/// index, an MRELEASE of 1,000 keys after which a waiter gets 999 others takes 72 million
/// instructions instead of 20. What is not needed is not made, which saves 5,000 of a MACQUIRE of 8
/// keys and its MRELEASE.
struct Index<'a, 'k> {
    own: &'a [Opened<'k>],
    by_lock: OnceCell<HashMap<LockId, usize>>,
    by_key: OnceCell<HashMap<Key, usize>>,
}

impl<'a, 'k> Index<'a, 'k> {
    fn of(own: &'a [Opened<'k>]) -> Self {
        Self {
            own,
            by_lock: OnceCell::new(),
            by_key: OnceCell::new(),
        }
    }

    /// The index of the key to which [`is_at`] applies.
    fn find(&self, table: &Table, touched: &Touched) -> Option<usize> {
        if self.own.len() <= FEW {
            let mut own = self.own.iter();
            return own.position(|opened| is_at(table, opened, touched));
        }
        // If a key is there twice, the first one counts.
        let own = || self.own.iter().enumerate().rev();
        match touched.presence {
            Presence::Kept | Presence::Gone => {
                let locks = || own().filter_map(|(at, opened)| Some((opened.lock?, at)));
                let by_lock = self.by_lock.get_or_init(|| locks().collect());
                by_lock.get(&touched.id).copied()
            }
            Presence::New => {
                let key = |opened: &Opened<'_>| Key::new(opened.db, opened.bytes);
                let keys = || own().map(|(at, opened)| (key(opened), at));
                let by_key = self.by_key.get_or_init(|| keys().collect());
                by_key.get(&table.key(touched.id)?).copied()
            }
        }
    }
}

/// Whether this open key belongs to a touched lock.
fn is_at(table: &Table, opened: &Opened<'_>, touched: &Touched) -> bool {
    match (touched.presence, opened.lock) {
        (Presence::Kept | Presence::Gone, Some(lock)) => lock == touched.id,
        // A value that core does not know is not a lock: it is overwritten.
        (Presence::New, _) => table.is_at(touched.id, opened.db, opened.bytes),
        _ => false,
    }
}

/// Changes the keys and replicates the changes. The caller sends the keyspace events.
pub(super) fn change_keys<'a>(
    ctx: Ctx,
    own: &[Opened<'a>],
    output: &Output,
    places: &[Place],
) -> Followup<'a> {
    if output.touched.is_empty() && output.ended_before.is_empty() {
        return Followup::default();
    }
    if let ([opened], [Place::Own(_)]) = (own, places)
        && let Some(followup) = change_only_key(ctx, opened, output)
    {
        return followup;
    }
    let mut effects =
        (!output.effect.is_empty()).then(|| Effects::new(output, server::is_cluster()));
    let mut followup = Followup::default();
    followup.make_room(output.touched.len());
    if !matches!((own, places), ([_], [Place::Own(_)])) {
        own.iter().for_each(Opened::close);
    }
    for (touched, place) in output.touched.iter().zip(places) {
        let (applied, db, name) = match place {
            Place::Own(at) => {
                let Some(opened) = own.get(*at) else {
                    continue;
                };
                let applied = if opened.key.is_open() {
                    change_key(ctx, touched, opened.name, &opened.key)
                } else {
                    change_closed_key(ctx, touched, opened.name)
                };
                (applied, opened.db, Name::Own(opened.name))
            }
            Place::Elsewhere(key) => {
                let before = ctx.db();
                ctx.select(key.db());
                let name = OwnedString::new(key.name());
                let applied = change_closed_key(ctx, touched, name.arg());
                ctx.select(before);
                (applied, key.db(), Name::Made(name))
            }
            Place::Nowhere => {
                // Changes are sent as a range, which must not contain this one.
                if let Some(effects) = &mut effects {
                    effects.send(ctx);
                }
                continue;
            }
        };
        if let Some(effects) = &mut effects {
            match applied {
                Applied::Changed => {
                    let is_named = matches!(name, Name::Own(_));
                    effects.add(ctx, touched, db, name.arg(), is_named);
                }
                Applied::MadeAgain => {
                    let now = clock::mono();
                    let without_and_with = node::with(|node| {
                        [None, Some(touched.id)].map(|lock| node.table.whole_effect(lock, now))
                    });
                    effects.send_apart(ctx, without_and_with, db, name.arg());
                }
                Applied::LeftAlone => effects.send(ctx),
            }
        }
        let events = touched.events;
        followup.add(KeyEvents { db, name, events });
    }
    for (key, times) in &output.ended_before {
        followup.add(KeyEvents {
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
    } else {
        // Either the command itself is replicated, or nobody listens: then nothing is sent, and
        // this only counts the change for the server's save points.
        ctx.replicate_as_is();
    }
    followup
}

/// [`change_keys`] for nearly every change: that of the only key that the command has open. Saves
/// 150 of the 16,500 instructions of an acquire and its release. None, and nothing is changed, if
/// the change may be more than that.
#[inline]
fn change_only_key<'a>(ctx: Ctx, opened: &Opened<'a>, output: &Output) -> Option<Followup<'a>> {
    let [touched] = &output.touched[..] else {
        return None;
    };
    // Then replicas may have to create the key again.
    let is_granted_in_place = touched.presence == Presence::Kept && touched.events.acquired > 0;
    if is_granted_in_place || !opened.key.is_open() || !output.ended_before.is_empty() {
        return None;
    }
    let applied = change_key(ctx, touched, opened.name, &opened.key);
    debug_assert!(matches!(applied, Applied::Changed));
    if output.effect.is_empty() {
        ctx.replicate_as_is();
    } else {
        ctx.replicate(APPLY, &output.effect, &[opened.name.raw()]);
    }
    let mut followup = Followup::default();
    followup.add(KeyEvents {
        db: opened.db,
        name: Name::Own(opened.name),
        events: touched.events,
    });
    Some(followup)
}

/// The state of the key of a touched lock after the change.
enum Applied {
    /// It is as core decided.
    Changed,
    /// The same, but replicas must create the key again: theirs may have a TTL, or be gone.
    MadeAgain,
    /// The key holds another value, or nothing: the lock is gone, and the change does not apply.
    LeftAlone,
}

/// Creates or deletes the key of a touched lock. The key is open for writing, and empty or with
/// this lock.
///
/// A TTL that somebody has set on the key ends the current holds. It must not end a later one.
fn change_key(ctx: Ctx, touched: &Touched, name: Arg<'_>, key: &OpenKey) -> Applied {
    let mut applied = Applied::Changed;
    match touched.presence {
        Presence::New => key.set(touched.id),
        Presence::Gone => node::deleting(touched.id, || key.delete()),
        Presence::Kept if touched.events.acquired > 0 && key.clear_ttl() => {
            applied = Applied::MadeAgain;
        }
        Presence::Kept => {}
    }
    ctx.signal_modified(name);
    applied
}

/// The same for a key that is not open. If it holds another value meanwhile, it stays unchanged. If
/// its TTL has passed, the server deletes the key when it is opened.
fn change_closed_key(ctx: Ctx, touched: &Touched, name: Arg<'_>) -> Applied {
    let id = touched.id;
    if touched.presence == Presence::Kept {
        return keep_key(ctx, touched, name);
    }
    let key = OpenKey::new(ctx, name, For::Writing);
    match (touched.presence, key.found()) {
        (Presence::New, Found::Nothing) => return change_key(ctx, touched, name, &key),
        (Presence::New, Found::Lock(other)) if !is_known(other) => {
            return change_key(ctx, touched, name, &key);
        }
        (Presence::Gone, Found::Lock(found)) if found == id => {
            return change_key(ctx, touched, name, &key);
        }
        // Nobody can reach the new lock.
        (Presence::New, _) => node::removed(id, name.bytes()),
        // It is gone, as core decided, but replicas must be notified.
        (_, Found::Nothing) => {
            ctx.signal_modified(name);
            return Applied::Changed;
        }
        _ => {}
    }
    ctx.signal_modified(name);
    Applied::LeftAlone
}

/// Opens the key of a lock that stays. If the server deletes the key at that moment because its TTL
/// has passed, a hold that was just granted is stored again. Other holds end with the key.
fn keep_key(ctx: Ctx, touched: &Touched, name: Arg<'_>) -> Applied {
    let id = touched.id;
    let (key, was_deleted) = node::opening(id, || OpenKey::new(ctx, name, For::Writing));
    match key.found() {
        Found::Lock(found) if found == id => return change_key(ctx, touched, name, &key),
        Found::Nothing if was_deleted && touched.events.acquired > 0 => {
            key.set(id);
            ctx.signal_modified(name);
            return Applied::MadeAgain;
        }
        _ => {}
    }
    if was_deleted {
        node::removed(id, name.bytes());
    }
    ctx.signal_modified(name);
    Applied::LeftAlone
}

/// Whether core knows the lock.
fn is_known(id: LockId) -> bool {
    node::with(|node| node.table.lock(id).is_some())
}

/// Why a change of an effect was not applied to its key.
pub enum Unapplied {
    /// The key has a value that is no lock.
    WrongType,
    /// No command could have made it of this lock.
    Malformed,
}

/// Applies an effect from another node: a change for each of these keys. The other keys are not
/// affected by one that is not applied.
pub fn apply_effect(
    ctx: Ctx,
    header: Header,
    keys: Args<'_>,
    changes: Vec<Change>,
) -> Result<(), Unapplied> {
    let _changing = Changing::begin();
    node::with(|node| node.table.take_in(header));
    let mut result = Ok(());
    for (name, change) in keys.iter().zip(changes) {
        let key = OpenKey::new(ctx, name, For::Writing);
        let lock = match key.found() {
            Found::Nothing | Found::Elsewhere => None,
            Found::Lock(id) => Some(id),
            Found::LegacyString(_) | Found::Other => {
                // A client has written to this replica.
                result = Err(Unapplied::WrongType);
                continue;
            }
        };
        let at = Key::new(ctx.db(), name.bytes());
        match node::with(|node| node.table.apply(at, lock, change)) {
            Loaded::New(id) => key.set(id),
            Loaded::Kept => {}
            Loaded::Gone => {
                if let Some(id) = lock {
                    node::deleting(id, || key.delete());
                }
            }
            Loaded::Refused => {
                result = Err(Unapplied::Malformed);
                continue;
            }
        }
        ctx.signal_modified(name);
    }
    // This node's own AOF and replicas get the effect unchanged.
    ctx.replicate_as_is();
    result
}

/// Frees a key whose lock was released on another node. The holder is not checked: the decision was
/// made there.
pub fn free(ctx: Ctx, name: Arg<'_>) -> Result<(), Denial> {
    let _changing = Changing::begin();
    let key = OpenKey::new(ctx, name, For::Writing);
    match key.found() {
        Found::Nothing | Found::Elsewhere => {}
        Found::Lock(id) => {
            let at = Key::new(ctx.db(), name.bytes());
            node::with(|node| node.table.apply(at, Some(id), Change::to_free()));
            node::deleting(id, || key.delete());
            ctx.signal_modified(name);
        }
        Found::LegacyString(_) | Found::Other => return Err(Denial::WrongType),
    }
    ctx.replicate_as_is();
    Ok(())
}
