//! One lock: who holds it, how, until when, under which fence; what a request may do to it.
//!
//! Everything here is about a single lock whose ended leases have been taken off before
//! ([`Lock::take_ended`]). Who waits for it is the subject of [`crate::queue`]; what happens to
//! several locks at once that of [`crate::table`].
//!
//! A new option of a hold goes into [`Terms`] (what a request asks for), is checked in
//! [`Lock::standing`] or [`Hold::renew`], and is kept in [`Hold`] (or in `Extra`, if few holds have
//! it).

use std::collections::BTreeSet;

use foldhash::HashMap;

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
    connection: Option<u64>,
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

    /// The connection that this hold ends with.
    #[must_use]
    pub fn connection(&self) -> Option<u64> {
        self.extra.as_ref().and_then(|extra| extra.connection)
    }

    /// Sets label and cap of a restored hold.
    pub fn set_saved_extra(&mut self, owner: &[u8], max_hold: u32) {
        if !owner.is_empty() || max_hold != 0 {
            *self.extra() = Extra {
                owner: owner.into(),
                max_hold,
                connection: None,
            };
        }
    }

    /// Ties the hold to a connection, or to none.
    pub fn bind(&mut self, connection: Option<u64>) {
        if self.connection() != connection {
            self.extra().connection = connection;
        }
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
    Shared(Box<Crowd>),
}

/// The owners of a shared lock.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    limit: u32,
    holds: HashMap<Token, Hold>,
    ends: BTreeSet<(Instant, Token)>,
}

impl Lock {
    /// How `token`, wanting `mode`, stands to this lock.
    #[must_use]
    pub fn standing(&self, token: &Token, mode: Mode, max_holders: u32) -> Standing {
        match (self, mode) {
            (Self::Free, _) => Standing::Open,
            (Self::Exclusive(hold), _) if hold.token == *token => Standing::Held,
            (Self::Exclusive(_), _) => Standing::Excluded,
            (Self::Shared(crowd), Mode::Exclusive) if crowd.holds.contains_key(token) => {
                Standing::Refused(Refusal::Upgrade)
            }
            (Self::Shared(_), Mode::Exclusive) => Standing::Excluded,
            (Self::Shared(crowd), Mode::Shared { limit }) if crowd.limit != limit => {
                Standing::Refused(Refusal::UnlikeLimit)
            }
            (Self::Shared(crowd), Mode::Shared { .. }) if crowd.holds.contains_key(token) => {
                Standing::Held
            }
            (Self::Shared(crowd), Mode::Shared { limit }) => {
                let holders = crowd.holds.len();
                if limit != 0 && holders >= limit as usize {
                    Standing::Excluded
                } else if holders >= max_holders as usize {
                    Standing::Refused(Refusal::TooManyHolders)
                } else {
                    Standing::Open
                }
            }
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
            (Self::Shared(crowd), Mode::Shared { limit }) => {
                // No more are looked at than decide it: a semaphore has at most `limit` holders.
                let spare = crowd.holds.len().checked_sub(limit as usize);
                limit != 0
                    && crowd.limit == limit
                    && spare.is_some_and(|spare| {
                        let first = crowd.ends.iter().take(spare + 1);
                        first.take_while(|(end, _)| *end <= now).count() <= spare
                    })
            }
        }
    }

    /// Adds a hold; the request's [`Standing`] is [`Standing::Open`].
    pub fn grant(&mut self, hold: Hold, mode: Mode) {
        match (&mut *self, mode) {
            (_, Mode::Exclusive) => *self = Self::Exclusive(hold),
            (Self::Shared(crowd), Mode::Shared { .. }) => crowd.put(hold),
            (_, Mode::Shared { limit }) => {
                let mut crowd = Box::new(Crowd {
                    limit,
                    ..Crowd::default()
                });
                crowd.put(hold);
                *self = Self::Shared(crowd);
            }
        }
    }

    /// The hold of `token`.
    #[must_use]
    pub fn hold(&self, token: &Token) -> Option<&Hold> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then_some(hold),
            Self::Shared(crowd) => crowd.holds.get(token),
        }
    }

    /// Changes the hold of `token`, if it has one.
    pub fn change<R>(&mut self, token: &Token, change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        match self {
            Self::Free => None,
            Self::Exclusive(hold) => (hold.token == *token).then(|| change(hold)),
            Self::Shared(crowd) => {
                let hold = crowd.holds.get_mut(token)?;
                let before = hold.end;
                let result = change(hold);
                if hold.end != before {
                    let after = (hold.end, hold.token.clone());
                    crowd.ends.remove(&(before, after.1.clone()));
                    crowd.ends.insert(after);
                }
                Some(result)
            }
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
            Self::Shared(crowd) => {
                let hold = crowd.take(token);
                if crowd.holds.is_empty() {
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
            Self::Shared(crowd) => {
                let token = crowd.ends.first()?.1.clone();
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
            Self::Shared(crowd) => crowd.ends.first().map(|(end, _)| *end),
        }
    }

    /// When the last lease ends.
    #[must_use]
    pub fn last_end(&self) -> Option<Instant> {
        match self {
            Self::Shared(crowd) => crowd.ends.last().map(|(end, _)| *end),
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
            Self::Shared(crowd) => crowd.holds.len(),
        }
    }

    /// How many owners have a lease that runs at `now`.
    #[must_use]
    pub fn live_holders(&self, now: Instant) -> usize {
        match self {
            Self::Shared(crowd) => {
                let ended = crowd.ends.iter().take_while(|(end, _)| *end <= now);
                crowd.holds.len() - ended.count()
            }
            _ => usize::from(self.first_end().is_some_and(|end| end > now)),
        }
    }

    /// How it is held, or would be said to be held while nobody does.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Free | Self::Exclusive(_) => Mode::Exclusive,
            Self::Shared(crowd) => Mode::Shared { limit: crowd.limit },
        }
    }

    /// The holds, in no order.
    pub fn holds(&self) -> impl Iterator<Item = &Hold> {
        let (one, many) = match self {
            Self::Free => (None, None),
            Self::Exclusive(hold) => (Some(hold), None),
            Self::Shared(crowd) => (None, Some(crowd.holds.values())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The holds by fence: one order on every node and after every reload.
    #[must_use]
    pub fn holds_in_order(&self) -> Vec<&Hold> {
        let mut holds: Vec<_> = self.holds().collect();
        holds.sort_unstable_by(|a, b| (a.fence, &a.token).cmp(&(b.fence, &b.token)));
        holds
    }

    /// Bytes that this lock takes outside of its own value.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let holds: usize = self.holds().map(Hold::heap_bytes).sum();
        match self {
            Self::Shared(crowd) => {
                let ends = crowd.ends.len() * size_of::<(Instant, Token)>();
                size_of::<Crowd>()
                    + crowd.holds.capacity() * size_of::<(Token, Hold)>()
                    + ends
                    + holds
            }
            _ => holds,
        }
    }
}

impl Crowd {
    fn put(&mut self, hold: Hold) {
        self.take(&hold.token);
        self.ends.insert((hold.end, hold.token.clone()));
        self.holds.insert(hold.token.clone(), hold);
    }

    fn take(&mut self, token: &Token) -> Option<Hold> {
        let hold = self.holds.remove(token)?;
        self.ends.remove(&(hold.end, hold.token.clone()));
        Some(hold)
    }
}
