//! The output of a decision: which keys change and how, what is replicated, and which waiters get
//! replies.

use super::{Answer, Table, leaving};
use crate::lock::Lock;
use crate::queue::WaiterId;
use crate::slots::LockId;
use crate::time::{LeaseTime, MonoTime, Now};
use crate::token::{Key, Token};
use crate::wire;

/// What happened to a lock in one decision, and how often; reported in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Leases that ended.
    pub expired: u32,
    /// Releases.
    pub released: u32,
    /// An administrator ended the holds.
    pub forced: u32,
    /// Extensions.
    pub extended: u32,
    /// Grants and re-entries.
    pub acquired: u32,
}

/// The most changed holds of a shared lock that are written one by one.
const PARTS: usize = 160;

/// The largest effect whose memory is reused.
const KEPT: usize = 64 * 1024;

/// What a decision means for the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The key must be created.
    New,
    /// The key stays; its lock has changed in place.
    Kept,
    /// The key must be deleted.
    Gone,
}

/// One lock that a decision has changed.
#[derive(Debug)]
pub struct Touched {
    /// The lock. The handle is invalid if the lock is gone.
    pub id: LockId,
    /// Its key, if the lock is gone; [`Table::key`] has it for the others.
    pub gone_from: Option<Key>,
    /// What happens to the key.
    pub presence: Presence,
    /// The range of [`Output::effect`] with the change to replicate.
    pub change: std::ops::Range<usize>,
    /// The events to send about it.
    pub events: Events,
    /// The holds that changed, if the lock is shared and is not written as a whole.
    changed: Vec<Token>,
    pub(super) whole: bool,
    pub(super) end_before: Option<LeaseTime>,
}

/// The consequences of a decision.
#[derive(Debug, Default)]
pub struct Output {
    /// The locks that changed, each once.
    pub touched: Vec<Touched>,
    /// The effect to replicate: its header, followed by the changes. Empty if nobody listens.
    pub effect: Vec<u8>,
    /// Where the changes begin.
    pub header_len: usize,
    /// Which waiter gets which reply.
    pub answers: Vec<(WaiterId, Answer)>,
    /// The earliest end of a lease that is new or ends earlier than before, on the monotonic clock.
    pub soonest_end: Option<MonoTime>,
    /// Leases that ended without an immediate report: the key, and the number.
    pub ended_before: Vec<(Key, u32)>,
}

impl Output {
    /// No consequences.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            touched: Vec::new(),
            effect: Vec::new(),
            header_len: 0,
            answers: Vec::new(),
            soonest_end: None,
            ended_before: Vec::new(),
        }
    }

    /// Clears everything but keeps the memory, unless it is very much.
    pub fn clear(&mut self) {
        self.touched.clear();
        self.effect.clear();
        self.effect.shrink_to(KEPT);
        self.answers.clear();
        self.ended_before.clear();
        self.soonest_end = None;
    }
}

/// When the caller must call the table again, without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At this moment, on the monotonic clock.
    At(MonoTime),
    /// As soon as the caller has finished its current work.
    Soon,
}

/// Means a place of at least this number minus one, which must be searched for.
const FAR: u16 = u16::MAX;

/// The place of a lock in the list, from its [`Entry::touch`]: 1 + its place, as far as two bytes
/// are enough. Four bytes would make every lock larger by eight.
pub(super) fn place(list: &[Touched], id: LockId, touch: u16) -> Option<usize> {
    let near = usize::from(touch).checked_sub(1)?;
    if touch != FAR {
        return Some(near);
    }
    let mut far = list.get(near..)?.iter();
    Some(near + far.position(|touched| touched.id == id)?)
}

impl Table {
    /// Whether the last calls have consequences.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let Output {
            touched,
            answers,
            ended_before,
            ..
        } = &*self.output;
        !(touched.is_empty() && answers.is_empty() && ended_before.is_empty())
    }

    /// Whether the only consequence of the last calls is that nobody holds the lock any more.
    #[must_use]
    pub fn only_frees(&self, id: LockId) -> bool {
        let Output {
            touched,
            answers,
            ended_before,
            ..
        } = &*self.output;
        let only = matches!(&touched[..], [touched] if touched.id == id);
        let is_free = self.slots.get(id).is_some_and(|entry| entry.lock.is_free());
        only && is_free && answers.is_empty() && ended_before.is_empty()
    }

    /// Takes the consequences of the last calls, with the effect if somebody listens. `reusable` is
    /// an earlier output that was applied and cleared: its memory is reused.
    pub fn take_output(
        &mut self,
        now: Now,
        listened_to: bool,
        reusable: Box<Output>,
    ) -> Box<Output> {
        self.finish(now, listened_to);
        self.room_to_leave = leaving::AT_ONCE;
        std::mem::replace(&mut self.output, reusable)
    }

    /// When the caller of a decision must call the table again: the first lease of its output ends,
    /// a string must be checked, more waiters can be served, or waiters are still leaving. Earlier
    /// deadlines have their alarm already.
    #[must_use]
    pub fn wake(&self, output: Option<&Output>, now: Now) -> Option<Wake> {
        if self.has_more_to_serve(now) || self.has_leaving() {
            return Some(Wake::Soon);
        }
        let end = output.and_then(|output| output.soonest_end);
        match (end, self.next_look()) {
            (Some(end), Some(look)) => Some(Wake::At(end.min(look))),
            (end, look) => end.or(look).map(Wake::At),
        }
    }

    /// Notes that a lock is about to change.
    pub(super) fn touch(&mut self, id: LockId) -> Option<&mut Touched> {
        let entry = self.slots.get_mut(id)?;
        if entry.touch == 0 {
            self.output.touched.push(Touched {
                id,
                gone_from: None,
                presence: if entry.lock.is_free() {
                    Presence::New
                } else {
                    Presence::Kept
                },
                change: 0..0,
                events: Events::default(),
                changed: Vec::new(),
                whole: !matches!(entry.lock, Lock::Shared(_)),
                end_before: entry.lock.first_end(),
            });
            entry.touch = u16::try_from(self.output.touched.len()).unwrap_or(FAR);
        }
        let place = place(&self.output.touched, id, entry.touch)?;
        self.output.touched.get_mut(place)
    }

    /// The events of a lock in this decision so far.
    pub(super) fn touched(&self, id: LockId) -> Option<&Touched> {
        let touch = self.slots.get(id)?.touch;
        self.output
            .touched
            .get(place(&self.output.touched, id, touch)?)
    }

    /// Notes that the hold of `token` in a lock is about to change, and which event reports it.
    pub(super) fn touch_hold(
        &mut self,
        id: LockId,
        token: &Token,
        report: impl FnOnce(&mut Events),
    ) {
        if let Some(touched) = self.touch(id) {
            report(&mut touched.events);
            // After some changes, writing the whole lock is as cheap, and searching for duplicates
            // is not.
            if touched.changed.len() >= PARTS {
                touched.whole = true;
            } else if !touched.whole && !touched.changed.contains(token) {
                touched.changed.push(token.clone());
            }
        }
    }

    /// Records the result for each touched lock, removes locks that nobody holds any more, and sets
    /// deadlines.
    fn finish(&mut self, now: Now, listened_to: bool) {
        let lease_now = self.clock.at(now.mono);
        let mut effect = std::mem::take(&mut self.output.effect);
        if listened_to {
            wire::begin_effect(self.header(), &mut effect);
        }
        self.output.header_len = effect.len();
        for touched in &mut self.output.touched {
            let Some(entry) = self.slots.get_mut(touched.id) else {
                continue;
            };
            entry.touch = 0;
            if listened_to {
                let start = effect.len();
                if touched.whole || !matches!(entry.lock, Lock::Shared(_)) {
                    wire::put_whole(&entry.lock, lease_now, &mut effect);
                } else {
                    wire::put_part(&entry.lock, &touched.changed, lease_now, &mut effect);
                }
                touched.change = start..effect.len();
            }
            match entry.lock.first_end() {
                Some(end) => {
                    self.spaces
                        .lasts(&entry.key, entry.lock.last_end().unwrap_or(end));
                    if touched.end_before.is_none_or(|before| end < before) {
                        self.wheel.set(touched.id.index(), end);
                        let end = self.clock.when(end);
                        let soonest = &mut self.output.soonest_end;
                        *soonest = Some(soonest.map_or(end, |soonest| soonest.min(end)));
                    }
                }
                None => {
                    touched.presence = Presence::Gone;
                    self.wheel.unset(touched.id.index());
                    if let Some(entry) = self.slots.remove(touched.id) {
                        let db = self.spaces.db(&entry.key);
                        self.spaces.left(&entry.key, entry.attached);
                        let key = db.map(|db| entry.key.into_db(db));
                        if let Some(key) = key.as_ref().filter(|_| entry.queued) {
                            self.queues.forget_lock(key, touched.id);
                        }
                        touched.gone_from = key;
                    }
                }
            }
        }
        self.output.effect = effect;
    }
}
