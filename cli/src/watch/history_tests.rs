//! What a sequence of looks makes of a lock's history.

use std::time::Duration;

use super::history::{Hold, Wait};
use crate::summary::{LockSummary, State};

use super::history::History;

fn look(holder: Option<(&str, u64, u64)>, waiters: u64) -> LockSummary {
    let holder = holder.map(|(owner, fence, age)| (owner, fence, Duration::from_millis(age)));
    LockSummary::example(holder, waiters)
}

#[test]
fn a_hold_ends_when_the_next_one_begins() {
    let mut history = History::default();
    history.note(1_000, &look(Some(("ada", 7, 300)), 0));
    history.note(1_500, &look(Some(("ada", 7, 800)), 1));
    history.note(2_000, &look(Some(("ben", 8, 200)), 0));
    let ada = Hold {
        owner: Some("ada".to_owned()),
        fence: 7,
        start: 700,
        seen: 1_500,
        end: Some(1_800),
    };
    assert_eq!(history.holds[0], ada);
    assert_eq!(history.holds[1].start, 1_800);
    assert_eq!(history.holds[1].end, None);
    let wait = Wait {
        start: 1_500,
        end: Some(2_000),
        most: 1,
    };
    assert_eq!(history.waits, [wait]);
    history.note(2_500, &look(None, 0));
    assert_eq!(history.holds[1].end, Some(2_500));
    assert_eq!(history.count, 2);
}

#[test]
fn a_fence_that_is_raised_does_not_make_a_second_hold() {
    let mut history = History::default();
    history.note(1_000, &look(Some(("ada", 7, 10)), 0));
    history.note(1_500, &look(Some(("ada", 9, 505)), 0));
    assert_eq!(history.holds.len(), 1);
    assert_eq!(history.holds[0].fence, 9);
    // The same owner again is another hold.
    history.note(9_000, &look(Some(("ada", 12, 20)), 0));
    assert_eq!(history.holds.len(), 2);
}

#[test]
fn the_history_of_a_busy_lock_is_bounded() {
    let mut history = History::default();
    for fence in 1..1_000 {
        let now = i64::try_from(fence).unwrap_or(0) * 1_000;
        history.note(now, &look(Some(("ada", fence, 10)), fence % 2));
    }
    assert_eq!((history.holds.len(), history.waits.len()), (100, 100));
    assert_eq!(history.count, 999);
}

#[test]
fn what_too_few_nodes_say_ends_nothing() {
    let mut history = History::default();
    history.note(1_000, &look(Some(("ada", 7, 300)), 1));
    let mut unknown = look(None, 0);
    unknown.state = State::Unknown;
    history.note(1_500, &unknown);
    assert_eq!((history.holds[0].end, history.waits[0].end), (None, None));
    history.note(2_000, &look(Some(("ada", 7, 1_300)), 1));
    assert_eq!((history.holds.len(), history.count), (1, 1));
    assert_eq!((history.holds[0].end, history.waits.len()), (None, 1));
}
