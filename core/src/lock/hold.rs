//! One owner's hold of a lock: its lease, its fence, and the options of its request.
//!
//! Data that only a few holds have is in `Extra`.

use super::Mode;
use crate::time::{LeaseTime, Micros, Millis};
use crate::token::Token;

/// What a request for a lock asks for, apart from the keys.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The owner.
    pub token: Token,
    /// How long the lease lasts.
    pub ttl: Micros,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Do not count a re-entry, because the request may be a repetition.
    pub once: bool,
    /// The granted fence is at least this.
    pub fence: Option<u64>,
    /// No lease of this hold ends later than this after the grant.
    pub max_hold: Option<Millis>,
    /// A label for humans.
    pub owner: Option<Box<[u8]>>,
    /// The hold ends with the connection that used it last.
    pub ephemeral: bool,
    /// The connection of the request; a script has none.
    pub connection: Option<u64>,
}

impl Terms {
    /// A request for the exclusive lock, without options.
    #[must_use]
    pub fn exclusive(token: Token, ttl: Micros) -> Self {
        Self {
            token,
            ttl,
            mode: Mode::Exclusive,
            once: false,
            fence: None,
            max_hold: None,
            owner: None,
            ephemeral: false,
            connection: None,
        }
    }
}

/// One owner's hold.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The owner.
    pub token: Token,
    /// The number that orders this hold among all grants of the node.
    pub fence: u64,
    /// When the lease ends, on the lease clock.
    pub end: LeaseTime,
    /// When it was granted, on the lease clock.
    pub granted: LeaseTime,
    extra: Option<Box<Extra>>,
}

/// What only some holds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Extra {
    owner: Box<[u8]>,
    max_hold: Option<Millis>,
    tie: Option<Tie>,
    /// How often the owner has re-entered without releasing.
    reentries: u32,
}

/// The connection of an ephemeral hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The connection that used it last.
    pub connection: u64,
    /// How often the role of the node had changed at that time: a tie ends with the role.
    pub role: u32,
}

/// The cap on a lease's end was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverCap {
    /// The time from now until the latest end that is allowed.
    pub left: Micros,
}

/// The shorter of two caps.
#[must_use]
pub fn tighter(a: Option<Millis>, b: Option<Millis>) -> Option<Millis> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

/// The latest end of a hold that was granted at this time, if there is a cap.
#[must_use]
pub fn latest_end(granted: LeaseTime, cap: Option<Millis>) -> Option<LeaseTime> {
    cap.map(|cap| granted.plus(cap.to_micros()))
}

/// The end of a lease of `ttl` from now.
///
/// # Errors
/// When that is later than the latest allowed end.
pub fn check_end(
    latest: Option<LeaseTime>,
    now: LeaseTime,
    ttl: Micros,
) -> Result<LeaseTime, OverCap> {
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
    pub fn new(terms: &Terms, fence: u64, now: LeaseTime) -> Self {
        let mut hold = Self {
            token: terms.token.clone(),
            fence,
            end: now.plus(terms.ttl),
            granted: now,
            extra: None,
        };
        hold.note(terms);
        hold
    }

    /// A hold as it was saved.
    #[inline]
    #[must_use]
    pub fn restored(
        token: Token,
        fence: u64,
        end: LeaseTime,
        granted: LeaseTime,
        count: u32,
    ) -> Self {
        let mut hold = Self {
            token,
            fence,
            end,
            granted,
            extra: None,
        };
        hold.reenter(count.saturating_sub(1));
        hold
    }

    /// How often the owner has acquired without releasing, at least 1.
    #[must_use]
    pub fn count(&self) -> u32 {
        let extra = self.extra.as_ref();
        extra.map_or(1, |extra| extra.reentries.saturating_add(1))
    }

    /// The owner has acquired this many more times.
    pub fn reenter(&mut self, times: u32) {
        if times > 0 {
            // One less than the highest count that can be saved.
            let most = u32::MAX - 1;
            let extra = self.extra();
            extra.reentries = extra.reentries.saturating_add(times).min(most);
        }
    }

    /// The owner has released once, and still holds the lock.
    pub fn leave_once(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.reentries = extra.reentries.saturating_sub(1);
        }
    }

    /// Stores the options of the request. A label replaces the earlier one; a cap can only become
    /// stricter.
    pub fn note(&mut self, terms: &Terms) {
        if let Some(owner) = &terms.owner {
            self.extra().owner = owner.clone();
        }
        if terms.max_hold.is_some() {
            let cap = tighter(self.max_hold(), terms.max_hold);
            self.extra().max_hold = cap;
        }
    }

    /// The label, empty if there is none.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        self.extra.as_ref().map_or(&[], |extra| &extra.owner)
    }

    /// The hold's own cap.
    #[must_use]
    pub fn max_hold(&self) -> Option<Millis> {
        self.extra.as_ref()?.max_hold
    }

    /// The last tie of this hold.
    #[must_use]
    pub fn tie(&self) -> Option<Tie> {
        self.extra.as_ref().and_then(|extra| extra.tie)
    }

    /// Sets label and cap of a restored hold.
    pub fn set_saved_extra(&mut self, owner: &[u8], max_hold: Option<Millis>) {
        if !owner.is_empty() || max_hold.is_some() {
            let extra = self.extra();
            extra.owner = owner.into();
            extra.max_hold = max_hold;
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
    pub fn renew(
        &mut self,
        now: LeaseTime,
        ttl: Micros,
        max_hold: Option<Millis>,
    ) -> Result<(), OverCap> {
        let end = check_end(self.latest_end(max_hold), now, ttl)?;
        self.end = self.end.max(end);
        Ok(())
    }

    /// The latest end that the hold's own cap and `max_hold` allow.
    #[must_use]
    pub fn latest_end(&self, max_hold: Option<Millis>) -> Option<LeaseTime> {
        latest_end(self.granted, tighter(self.max_hold(), max_hold))
    }

    /// How much of the lease is left.
    #[must_use]
    pub fn left(&self, now: LeaseTime) -> Micros {
        self.end.since(now)
    }

    fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Bytes that it allocates.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let extra = self
            .extra
            .as_ref()
            .map_or(0, |extra| size_of::<Extra>() + extra.owner.len());
        self.token.heap_bytes() + extra
    }
}
