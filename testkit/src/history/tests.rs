use super::*;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn event(owner: u64, operation: Operation, from: u64, to: u64, outcome: Outcome) -> Event {
    Event {
        owner,
        lock: "job".to_owned(),
        operation,
        ttl: at(1000),
        waits: false,
        invoked: at(from),
        returned: at(to),
        outcome,
    }
}

fn acquired(owner: u64, fence: i64, from: u64, to: u64) -> Event {
    event(owner, Operation::Acquire, from, to, Outcome::Ok(fence))
}

fn released(owner: u64, from: u64, to: u64, outcome: Outcome) -> Event {
    event(owner, Operation::Release, from, to, outcome)
}

fn history(events: &[Event]) -> History {
    History {
        events: events.to_vec(),
    }
}

#[test]
fn a_history_without_fault_is_accepted() {
    let history = history(&[
        acquired(1, 10, 0, 5),
        event(2, Operation::Acquire, 1, 4, Outcome::Fail(String::new())),
        event(1, Operation::Extend, 500, 505, Outcome::Ok(10)),
        released(1, 800, 805, Outcome::Ok(1)),
        acquired(2, 11, 801, 804),
        released(2, 900, 950, Outcome::Unknown),
        acquired(3, 12, 901, 960),
        acquired(4, 13, 1895, 1899),
    ]);
    history.assert_safe();
    assert_eq!(history.violations_of_one_counter(), []);
    assert_eq!((history.grants(), history.refusals("")), (4, 1));
}

#[test]
fn two_windows_that_overlap_are_found() {
    let overlap = |events: &[Event]| {
        let violations = history(events).violations();
        assert!(
            matches!(violations[..], [Violation::Overlap(_, 1, 2)]),
            "{violations:?}"
        );
    };
    overlap(&[acquired(1, 10, 0, 5), acquired(2, 11, 900, 905)]);
    overlap(&[
        acquired(1, 10, 0, 5),
        event(1, Operation::Extend, 500, 505, Outcome::Ok(10)),
        acquired(2, 11, 1200, 1205),
    ]);
    // The one that began before ends after two others.
    overlap(&[
        acquired(1, 10, 0, 5),
        acquired(2, 11, 100, 105),
        released(2, 110, 111, Outcome::Ok(1)),
    ]);
    // An extension that waited for nobody makes the window of a request that waited.
    let waited = Event {
        waits: true,
        ..acquired(1, 10, 0, 700)
    };
    overlap(&[
        waited.clone(),
        event(1, Operation::Extend, 701, 702, Outcome::Ok(10)),
        acquired(2, 11, 1500, 1505),
    ]);
    history(&[waited, acquired(2, 11, 701, 702)]).assert_safe();
}

#[test]
fn what_is_unknown_or_failed_makes_no_window() {
    history(&[
        event(1, Operation::Acquire, 0, 5, Outcome::Unknown),
        acquired(2, 11, 6, 7),
        event(
            3,
            Operation::Acquire,
            8,
            9,
            Outcome::Fail("NOREPLICAS".into()),
        ),
    ])
    .assert_safe();
}

#[test]
fn a_fence_that_is_given_twice_is_found() {
    let mut other = acquired(2, 10, 1500, 1505);
    let twice = history(&[acquired(1, 10, 0, 5), other.clone()]);
    assert!(
        twice
            .violations()
            .contains(&Violation::Doubled("job".into(), 10))
    );
    other.lock = "other".into();
    let elsewhere = history(&[acquired(1, 10, 0, 5), other]);
    elsewhere.assert_safe();
    assert!(!elsewhere.violations_of_one_counter().is_empty());
}

#[test]
fn a_fence_that_is_lower_than_an_earlier_one_is_found() {
    let history = history(&[
        acquired(1, 10, 0, 5),
        released(1, 6, 7, Outcome::Ok(1)),
        acquired(2, 12, 8, 9),
        released(2, 10, 11, Outcome::Ok(1)),
        acquired(3, 11, 12, 13),
    ]);
    assert_eq!(
        history.violations(),
        [Violation::Disordered("job".into(), 12, 11)]
    );
}

#[test]
fn fences_of_requests_at_the_same_time_may_come_in_any_order() {
    let history = history(&[
        acquired(1, 11, 0, 20),
        released(1, 21, 22, Outcome::Ok(1)),
        acquired(2, 10, 1, 3),
        released(2, 4, 5, Outcome::Ok(1)),
    ]);
    history.assert_safe();
}

#[test]
fn a_fence_that_changes_under_its_holder_is_found() {
    let history = history(&[
        acquired(1, 10, 0, 5),
        event(1, Operation::Extend, 6, 7, Outcome::Ok(12)),
    ]);
    assert_eq!(
        history.violations(),
        [Violation::Changed("job".into(), 10, 12)]
    );
}

/// Two holds of which the second is this much later, in ms.
fn two(asked: u64, from: u64, fences: [u64; 2]) -> [Hold; 2] {
    let one = Hold {
        asked: at(0),
        from: at(1),
        until: at(9),
        fence: fences[0],
    };
    let two = Hold {
        asked: at(asked),
        from: at(from),
        until: at(from + 9),
        fence: fences[1],
    };
    [one, two]
}

#[test]
fn holds_that_follow_each_other_are_accepted() {
    assert_safe(&two(10, 11, [1, 2]));
    assert_safe(&two(0, 9, [1, 2]));
}

#[test]
#[should_panic(expected = "Overlap")]
fn two_holds_that_overlap_are_found() {
    assert_safe(&two(0, 5, [1, 2]));
}

#[test]
#[should_panic(expected = "Disordered")]
fn a_later_hold_with_a_lower_fence_is_found() {
    assert_safe(&two(10, 11, [2, 1]));
}

#[test]
#[should_panic(expected = "Doubled")]
fn two_holds_with_one_fence_are_found() {
    assert_safe(&two(10, 11, [1, 1]));
}
