//! The checks themselves, over windows and grants of one lock.

use std::time::Duration;

/// What must not happen. Each names the lock.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// Two owners rely on one lock at the same time.
    Overlap(String, u64, u64),
    /// An owner learned that it still holds the lock, and another one has held it since.
    FalselyHeld(String, u64, u64),
    /// Two owners have the same fence.
    Doubled(String, i64),
    /// The later owner has the lower fence.
    Disordered(String, i64, i64),
    /// A hold's fence was not the one in the reply to its extension.
    Changed(String, i64, i64),
    /// A write with this fence to a resource that compares fences has overwritten one that it had
    /// not read.
    LostUpdate(String, i64),
}

/// A violation, and when it could be observed.
pub(super) type Found = (Duration, Violation);

/// Without the time.
pub(super) fn named(found: Vec<Found>) -> Vec<Violation> {
    found.into_iter().map(|(_, violation)| violation).collect()
}

/// When an owner may rely on its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub owner: u64,
    pub exclusive: bool,
    pub from: Duration,
    pub until: Duration,
    pub fence: i64,
}

/// A fence, and when it was requested and granted.
#[derive(Clone, Copy)]
pub(super) struct Grant {
    pub invoked: Duration,
    pub returned: Duration,
    pub fence: i64,
}

/// The windows of one lock that overlap, although one of the two excludes the other.
pub(super) fn overlapping(lock: &str, mut windows: Vec<Window>) -> Vec<Found> {
    windows.sort_by_key(|window| window.from);
    let mut found = Vec::new();
    let (mut latest, mut latest_exclusive): (Option<&Window>, Option<&Window>) = (None, None);
    for window in &windows {
        let excluded = if window.exclusive {
            latest
        } else {
            latest_exclusive
        };
        if let Some(before) = excluded.filter(|before| before.until > window.from) {
            let violation = Violation::Overlap(lock.to_owned(), before.owner, window.owner);
            found.push((window.from, violation));
        }
        let ends_later = |before: Option<&Window>| before.is_none_or(|b| b.until < window.until);
        if ends_later(latest) {
            latest = Some(window);
        }
        if window.exclusive && ends_later(latest_exclusive) {
            latest_exclusive = Some(window);
        }
    }
    found
}

/// Fences that do not grow from one exclusive holder to the next. If both windows are right, the
/// lock was granted in their order, whenever it was requested.
fn disorder_of_holders(lock: &str, mut windows: Vec<Window>) -> Vec<Found> {
    windows.retain(|window| window.exclusive);
    windows.sort_by_key(|window| window.from);
    let mut found = Vec::new();
    let mut highest = 0;
    for window in windows {
        if window.fence < highest {
            let violation = Violation::Disordered(lock.to_owned(), highest, window.fence);
            found.push((window.from, violation));
        }
        highest = highest.max(window.fence);
    }
    found
}

/// Fences that are not unique, not in the order of requests that followed each other, or not in the
/// order of the windows.
pub(super) fn disorder(lock: &str, grants: Vec<Grant>, windows: Vec<Window>) -> Vec<Found> {
    let mut found = disorder_of_requests(lock, grants);
    for also in disorder_of_holders(lock, windows) {
        if !found.contains(&also) {
            found.push(also);
        }
    }
    found
}

fn disorder_of_requests(lock: &str, mut grants: Vec<Grant>) -> Vec<Found> {
    let mut found = Vec::new();
    grants.sort_by_key(|grant| (grant.fence, grant.returned));
    for pair in grants.windows(2).filter(|p| p[0].fence == p[1].fence) {
        let violation = Violation::Doubled(lock.to_owned(), pair[0].fence);
        found.push((pair[1].returned, violation));
    }
    let mut by_return = grants.clone();
    by_return.sort_by_key(|grant| grant.returned);
    grants.sort_by_key(|grant| grant.invoked);
    let (mut done, mut highest) = (0, 0);
    for grant in grants {
        while by_return
            .get(done)
            .is_some_and(|before| before.returned < grant.invoked)
        {
            highest = highest.max(by_return[done].fence);
            done += 1;
        }
        if grant.fence < highest {
            let violation = Violation::Disordered(lock.to_owned(), highest, grant.fence);
            found.push((grant.returned, violation));
        }
    }
    found
}
