//! What was seen of one lock since the start: holds and waits, as spans of time.

use std::collections::VecDeque;

use crate::summary::{LockSummary, State};

/// Spans that are remembered for one lock.
const SPANS: usize = 100;
/// Two queries date the grant of one hold at most this many ms apart: replies take time, and other
/// nodes grant a little later.
const SAME_GRANT: i64 = 250;

/// A hold. Times are ms since the start of the watch; a hold may be older than that.
#[derive(Clone, PartialEq, Debug)]
pub struct Hold {
    pub owner: Option<String>,
    pub fence: u64,
    pub start: i64,
    /// When it was seen last.
    pub seen: i64,
    /// None while it lasts.
    pub end: Option<i64>,
}

/// A time during which a request waited.
#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    pub start: i64,
    pub end: Option<i64>,
    /// The longest queue in this time.
    pub most: u64,
}

/// The history of one lock.
#[derive(Default, Debug)]
pub struct History {
    pub holds: VecDeque<Hold>,
    pub waits: VecDeque<Wait>,
    /// The number of holds seen, including those that are no longer stored.
    pub count: u64,
    /// When something changed last.
    pub changed: i64,
}

impl History {
    /// Adds the result of a query at the time `now`.
    pub fn note(&mut self, now: i64, seen: &LockSummary) {
        if seen.state == State::Unknown {
            return; // Too few nodes reply: nothing has begun or ended as far as is known.
        }
        for holder in &seen.holders {
            // A minority is a hold that begins, ends, or failed.
            if holder.nodes() >= seen.majority() {
                let start = now.saturating_sub_unsigned(crate::summary::millis(holder.age));
                self.hold(now, start, holder.owner.as_ref(), holder.fence);
            }
        }
        self.end_holds(now);
        self.wait(now, seen);
    }

    fn hold(&mut self, now: i64, start: i64, owner: Option<&String>, fence: u64) {
        let known = self.holds.iter_mut().rev().find(|hold| {
            let same_owner = owner.is_some() && hold.owner.as_ref() == owner;
            let same_grant = same_owner && (hold.start - start).abs() <= SAME_GRANT;
            hold.end.is_none() && (hold.fence == fence || same_grant)
        });
        if let Some(known) = known {
            (known.seen, known.fence) = (now, fence);
            return;
        }
        if self.holds.len() == SPANS {
            self.holds.pop_front();
        }
        self.count += 1;
        self.changed = now;
        self.holds.push_back(Hold {
            owner: owner.cloned(),
            fence,
            start,
            seen: now,
            end: None,
        });
    }

    /// A hold that was not seen has ended: when the next one began, if that is known.
    fn end_holds(&mut self, now: i64) {
        let begun: Vec<i64> = self.holds.iter().map(|hold| hold.start).collect();
        for hold in &mut self.holds {
            if hold.end.is_none() && hold.seen != now {
                let next = begun.iter().filter(|start| **start >= hold.seen).min();
                hold.end = Some(next.map_or(now, |next| (*next).min(now)));
                self.changed = now;
            }
        }
    }

    fn wait(&mut self, now: i64, seen: &LockSummary) {
        let open = self.waits.back_mut().filter(|wait| wait.end.is_none());
        match (open, seen.waiters) {
            (None, 0) => {}
            (Some(wait), 0) => {
                wait.end = Some(now);
                self.changed = now;
            }
            (Some(wait), waiters) => wait.most = wait.most.max(waiters),
            (None, waiters) => {
                if self.waits.len() == SPANS {
                    self.waits.pop_front();
                }
                self.changed = now;
                let waited = crate::summary::millis(seen.oldest_wait);
                self.waits.push_back(Wait {
                    start: now.saturating_sub_unsigned(waited),
                    end: None,
                    most: waiters,
                });
            }
        }
    }
}
