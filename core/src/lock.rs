//! One lock: who holds it, how, until when, under which fence; what a request may do to it.
//!
//! Everything here is about a single lock whose ended leases have been taken off before
//! ([`Lock::take_ended`]). Who waits for it is the subject of [`crate::queue`]; what happens to
//! several locks at once that of [`crate::table`].
//!
//! A new option of a hold goes into [`Terms`] (what a request asks for), is checked in
//! [`Lock::standing`] or [`Hold::renew`], and is kept in [`Hold`] (or in `Extra`, if few holds have
//! it).

use crate::shared::SharedHolders;
use crate::time::{Instant, from_millis};
use crate::token::Token;

/// How a lock is held or wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One owner at a time.
    Exclusive,
    /// Any number of owners, or at most `limit` of them where that is not 0 (a semaphore).
    Shared {
        /// The semaphore's size, 0 for none.
        limit: u32,
    },
}

/// What a request for a lock asks for, apart from the keys.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who asks.
    pub token: Token,
    /// How long the lease lasts, µs.
    pub ttl: u64,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Do not count a re-entry: the request may be a repetition.
    pub once: bool,
    /// The granted fence is at least this; 0 for no wish.
    pub fence: u64,
    /// No lease of this hold ends later than this after the grant, ms; 0 for no such cap.
    pub max_hold: u32,
    /// A name for humans.
    pub owner: Option<Box<[u8]>>,
    /// The hold ends with the connection that used it last.
    pub ephemeral: bool,
    /// The connection that asks; 0 for a script, which has none of its own.
    pub connection: u64,
}

/// One owner's hold.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The owner.
    pub token: Token,
    /// The number that orders this hold among all grants of the node.
    pub fence: u64,
    /// When the lease ends, on the lease clock.
    pub end: Instant,
    /// When it was granted, on the lease clock.
    pub granted: Instant,
    /// How often the owner has acquired without releasing, at least 1.
    pub count: u32,
    extra: Option<Box<Extra>>,
}

/// What only some holds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    owner: Box<[u8]>,
    max_hold: u32,
    tie: Option<Tie>,
}

/// What an ephemeral hold ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The connection that used it last.
    pub connection: u64,
    /// How often the role of the node had changed by then: a tie does not outlive a role.
    pub role: u32,
}

/// The cap on a lease's end was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverCap {
    /// Microseconds from now until the latest end that is allowed.
    pub left: u64,
}

/// The shorter of two caps in milliseconds, where 0 is none.
#[must_use]
pub fn tighter(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, cap) | (cap, 0) => cap,
        _ => a.min(b),
    }
}

/// The latest end of a hold that was granted then, if a cap in milliseconds sets one.
#[must_use]
pub fn latest_end(granted: Instant, cap: u32) -> Option<Instant> {
    (cap != 0).then(|| granted.plus(from_millis(cap.into())))
}

/// The end of a lease of `ttl` from now.
///
/// # Errors
/// When that is later than the latest one.
pub fn check_end(latest: Option<Instant>, now: Instant, ttl: u64) -> Result<Instant, OverCap> {
    let end = now.plus(ttl);
    match latest {
        Some(latest) if end > latest => Err(OverCap {
            left: latest.since(now),
        }),
        _ => Ok(end),
    }
}

impl Hold {
    /// A new hold, granted now.
    #[must_use]
    pub fn new(terms: &Terms, fence: u64, now: Instant) -> Self {
        let mut hold = Self {
            token: terms.token.clone(),
            fence,
            end: now.plus(terms.ttl),
            granted: now,
            count: 1,
            extra: None,
        };
        hold.note(terms);
        hold
    }

    /// A hold as it was saved.
    #[must_use]
    pub fn restored(token: Token, fence: u64, end: Instant, granted: Instant, count: u32) -> Self {
        Self {
            token,
            fence,
            end,
            granted,
            count,
            extra: None,
        }
    }

    /// Remembers what the request says about the hold beyond its lease. A label replaces the one
    /// before, a cap only ever tightens.
    pub fn note(&mut self, terms: &Terms) {
        if let Some(owner) = &terms.owner {
            self.extra().owner = owner.clone();
        }
        if terms.max_hold != 0 {
            let cap = tighter(self.max_hold(), terms.max_hold);
            self.extra().max_hold = cap;
        }
    }

    /// The label for humans, empty if there is none.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        self.extra.as_ref().map_or(&[], |extra| &extra.owner)
    }

    /// The hold's own cap, ms, 0 for none.
    #[must_use]
    pub fn max_hold(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.max_hold)
    }

    /// What this hold was last tied to.
    #[must_use]
    pub fn tie(&self) -> Option<Tie> {
        self.extra.as_ref().and_then(|extra| extra.tie)
    }

    /// Sets label and cap of a restored hold.
    pub fn set_saved_extra(&mut self, owner: &[u8], max_hold: u32) {
        if !owner.is_empty() || max_hold != 0 {
            *self.extra() = Extra {
                owner: owner.into(),
                max_hold,
                tie: None,
            };
        }
    }

    /// Ties the hold to a connection.
    pub fn bind(&mut self, tie: Tie) {
        self.extra().tie = Some(tie);
    }

    /// Moves the end of the lease to `now + ttl` if that is later.
    ///
    /// # Errors
    /// When that end is past the hold's cap or the node's `max_hold`; the lease is unchanged then.
    pub fn renew(&mut self, now: Instant, ttl: u64, max_hold: u32) -> Result<(), OverCap> {
        let end = check_end(self.latest_end(max_hold), now, ttl)?;
        self.end = self.end.max(end);
        Ok(())
    }

    /// The latest end that the hold's own cap and `max_hold` allow.
    #[must_use]
    pub fn latest_end(&self, max_hold: u32) -> Option<Instant> {
        latest_end(self.granted, tighter(self.max_hold(), max_hold))
    }

    /// Microseconds of the lease that are left.
    #[must_use]
    pub fn left(&self, now: Instant) -> u64 {
        self.end.since(now)
    }

    fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    fn heap_bytes(&self) -> usize {
        let extra = self
            .extra
            .as_ref()
            .map_or(0, |extra| size_of::<Extra>() + extra.owner.len());
        self.token.heap_bytes() + extra
    }
}

/// How a request stands to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody holds it, or those who do share it: nothing but the queue is in the way.
    Open,
    /// The token holds it already.
    Held,
    /// The holders exclude it.
    Excluded,
    /// It may not be had like this, now or by waiting.
    Refused(Refusal),
}

/// Why a lock cannot be had in the wanted mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A shared holder asks for the exclusive lock.
    Upgrade,
    /// The semaphore's present size is another one.
    UnlikeLimit,
    /// As many holders as one lock may have.
    TooManyHolders,
}

/// The state of one lock.
#[derive(Clone, Debug, Default)]
pub enum Lock {
    /// Nobody holds it. Such a lock has no key; it is seen only between a release and what follows
    /// from it.
    #[default]
    Free,
    /// One owner.
    Exclusive(Hold),
    /// One or more owners.
    Shared(Box<SharedHolders>),
}

impl Lock {
    /// How `token`, wanting `mode`, stands to this lock.
    #[must_use]
    pub fn standing(&self, token: &Token, mode: Mode, max_holders: u32) -> Standing {
        match (self, mode) {
            (Self::Free, _) => Standing::Open,
            (Self::Exclusive(hold), _) if hold.token == *token => Standing::Held,
            (Self::Exclusive(_), _) => Standing::Excluded,
            (Self::Shared(holders), _) => holders.standing(token, mode, max_holders),
        }
    }

    /// Whether those whose leases run at `now` keep others from holding it in `mode`. They do not
    /// if the mode is refused.
    #[must_use]
    pub fn excludes(&self, mode: Mode, now: Instant) -> bool {
        match (self, mode) {
            (Self::Free, _) => false,
            (Self::Exclusive(_), _) | (Self::Shared(_), Mode::Exclusive) => {
                self.last_end().is_some_and(|end| end > now)
            }
            (Self::Shared(holders), Mode::Shared { limit }) => holders.fill(limit, now),
        }
    }

    /// Adds a hold; the request's [`Standing`] is [`Standing::Open`].
    pub fn grant(&mut self, hold: Hold, mode: Mode) {
        match (&mut *self, mode) {
            (_, Mode::Exclusive) => *self = Self::Exclusive(hold),
            (Self::Shared(holders), Mode::Shared { .. }) => holders.put(hold),
            (_, Mode::Shared { limit }) => {
                let mut holders = Box::new(SharedHolders::new(limit));
                holders.put(hold);
                *self = Self::Shared(holders);
            }
        }
    }

    /// The hold of `token`.
    #[must_use]
    pub fn hold(&self, token: &Token) -> Option<&Hold> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then_some(hold),
            Self::Shared(holders) => holders.get(token),
        }
    }

    /// Changes the hold of `token`, if it has one.
    pub fn change<R>(&mut self, token: &Token, change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then(|| change(hold)),
            Self::Shared(holders) => holders.change(token, change),
        }
    }

    /// Ends the hold of `token`.
    pub fn take(&mut self, token: &Token) -> Option<Hold> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) if hold.token == *token => match std::mem::take(self) {
                Self::Exclusive(hold) => Some(hold),
                _ => None,
            },
            Self::Exclusive(_) => None,
            Self::Shared(holders) => {
                let hold = holders.take(token);
                if holders.is_empty() {
                    *self = Self::Free;
                }
                hold
            }
        }
    }

    /// Ends the hold with the earliest end, if its lease is over.
    pub fn take_ended(&mut self, now: Instant) -> Option<Hold> {
        if self.first_end()? > now {
            return None;
        }
        match self {
            Self::Shared(holders) => {
                let token = holders.first_end()?.1.clone();
                self.take(&token)
            }
            _ => match std::mem::take(self) {
                Self::Exclusive(hold) => Some(hold),
                _ => None,
            },
        }
    }

    /// When the first lease ends.
    #[must_use]
    pub fn first_end(&self) -> Option<Instant> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => Some(hold.end),
            Self::Shared(holders) => holders.first_end().map(|(end, _)| *end),
        }
    }

    /// When the last lease ends.
    #[must_use]
    pub fn last_end(&self) -> Option<Instant> {
        match self {
            Self::Shared(holders) => holders.last_end(),
            _ => self.first_end(),
        }
    }

    /// Whether nobody holds it.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// How many owners it has.
    #[must_use]
    pub fn holders(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::Exclusive(_) => 1,
            Self::Shared(holders) => holders.len(),
        }
    }

    /// How many owners have a lease that runs at `now`.
    #[must_use]
    pub fn live_holders(&self, now: Instant) -> usize {
        match self {
            Self::Shared(holders) => holders.live(now),
            _ => usize::from(self.first_end().is_some_and(|end| end > now)),
        }
    }

    /// How it is held, or would be said to be held while nobody does.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Free | Self::Exclusive(_) => Mode::Exclusive,
            Self::Shared(holders) => Mode::Shared {
                limit: holders.limit(),
            },
        }
    }

    /// The holds, in no order.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Self::Free => (None, None),
            Self::Exclusive(hold) => (Some(hold), None),
            Self::Shared(holders) => (None, Some(holders.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The holds whose leases run at `now`, the one that ends last first.
    pub fn last_to_end(&self, now: Instant) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Self::Free => (None, None),
            Self::Exclusive(hold) => (Some(hold), None),
            Self::Shared(holders) => (None, Some(holders.last_to_end(now))),
        };
        let one = one.into_iter().filter(move |hold| hold.end > now);
        one.chain(many.into_iter().flatten())
    }

    /// The holds by fence: one order on every node and after every reload.
    #[must_use]
    pub fn holds_in_order(&self) -> Vec<&Hold> {
        let mut holds: Vec<_> = self.holds().collect();
        holds.sort_unstable_by(|a, b| (a.fence, &a.token).cmp(&(b.fence, &b.token)));
        holds
    }

    /// Bytes that this lock takes outside of its own value. Of very many holders some are looked
    /// at, and the others are taken to be like these.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let some = self.holds().take(HOLDS_MEASURED);
        let some: usize = some.map(Hold::heap_bytes).sum();
        let holders = self.holders();
        let holds = some * holders / holders.clamp(1, HOLDS_MEASURED);
        match self {
            Self::Shared(shared) => size_of::<SharedHolders>() + shared.heap_bytes() + holds,
            _ => holds,
        }
    }
}

/// So many holds are looked at to tell how much memory a lock takes.
const HOLDS_MEASURED: usize = 1000;
