//! One lock: what a request may do to it, when it ends, how late it may end.

use super::*;
use crate::time::{Micros, Millis};

const NOW: LeaseTime = LeaseTime(1_000_000);
const MANY: u32 = 100;
const SHARED: Mode = Mode::Shared { limit: None };

fn semaphore(limit: u32) -> Mode {
    Mode::Shared { limit: Some(limit) }
}

fn token(name: &str) -> Token {
    Token::new(name.as_bytes()).expect("a token")
}

fn terms(token: &Token, ttl: Micros) -> Terms {
    Terms::exclusive(token.clone(), ttl)
}

fn held(mode: Mode, owners: &[(&str, u64)]) -> Lock {
    let mut lock = Lock::Free;
    for (fence, (owner, ttl)) in (1..).zip(owners) {
        lock.grant(
            Hold::new(&terms(&token(owner), Micros(*ttl)), fence, NOW),
            mode,
        );
    }
    lock
}

#[test]
fn a_free_lock_is_open_in_every_mode() {
    for mode in [Mode::Exclusive, SHARED, semaphore(1)] {
        assert_eq!(Lock::Free.standing(&token("a"), mode, MANY), Standing::Open);
        assert!(!Lock::Free.excludes(mode, NOW));
    }
}

#[test]
fn an_exclusive_holder_excludes_all_others_and_re_enters_in_every_mode() {
    let lock = held(Mode::Exclusive, &[("a", 10)]);
    for mode in [Mode::Exclusive, SHARED, semaphore(3)] {
        assert_eq!(lock.standing(&token("a"), mode, MANY), Standing::Held);
        assert_eq!(lock.standing(&token("b"), mode, MANY), Standing::Excluded);
        assert!(lock.excludes(mode, NOW));
    }
}

#[test]
fn shared_holders_leave_room_for_others_of_their_kind_alone() {
    let lock = held(SHARED, &[("a", 10), ("b", 20)]);
    assert_eq!(lock.standing(&token("a"), SHARED, MANY), Standing::Held);
    assert_eq!(lock.standing(&token("c"), SHARED, MANY), Standing::Open);
    assert_eq!(
        lock.standing(&token("c"), Mode::Exclusive, MANY),
        Standing::Excluded
    );
    let refused = |refusal| Standing::Refused(refusal);
    assert_eq!(
        lock.standing(&token("a"), Mode::Exclusive, MANY),
        refused(Refusal::Upgrade)
    );
    assert_eq!(
        lock.standing(&token("a"), semaphore(2), MANY),
        refused(Refusal::UnlikeLimit)
    );
    assert_eq!(
        lock.standing(&token("c"), semaphore(2), MANY),
        refused(Refusal::UnlikeLimit)
    );
    assert_eq!(
        lock.standing(&token("c"), SHARED, 2),
        refused(Refusal::TooManyHolders)
    );
}

#[test]
fn a_semaphore_has_as_many_holders_as_its_limit() {
    let lock = held(semaphore(2), &[("a", 10)]);
    assert_eq!(
        lock.standing(&token("b"), semaphore(2), MANY),
        Standing::Open
    );
    let lock = held(semaphore(2), &[("a", 10), ("b", 20)]);
    assert_eq!(
        lock.standing(&token("b"), semaphore(2), MANY),
        Standing::Held
    );
    assert_eq!(
        lock.standing(&token("c"), semaphore(2), MANY),
        Standing::Excluded
    );
    assert_eq!(
        lock.standing(&token("c"), SHARED, MANY),
        Standing::Refused(Refusal::UnlikeLimit)
    );
}

#[test]
fn a_lock_says_how_it_is_held() {
    for mode in [Mode::Exclusive, SHARED, semaphore(2)] {
        assert_eq!(held(mode, &[("a", 10)]).mode(), mode);
    }
    assert_eq!(Lock::Free.mode(), Mode::Exclusive);
}

#[test]
fn those_whose_leases_have_ended_exclude_nobody() {
    let lock = held(semaphore(2), &[("a", 10), ("b", 20)]);
    assert!(lock.excludes(semaphore(2), NOW.plus(Micros(9))));
    assert!(!lock.excludes(semaphore(2), NOW.plus(Micros(10))));
    assert!(lock.excludes(Mode::Exclusive, NOW.plus(Micros(19))));
    assert!(!lock.excludes(Mode::Exclusive, NOW.plus(Micros(20))));
    assert!(
        !lock.excludes(SHARED, NOW),
        "an unlike limit is refused, it does not wait"
    );
}

#[test]
fn leases_end_one_by_one_in_the_order_of_their_ends() {
    let mut lock = held(SHARED, &[("a", 30), ("b", 10), ("c", 20)]);
    assert_eq!(
        (lock.first_end(), lock.last_end()),
        (Some(NOW.plus(Micros(10))), Some(NOW.plus(Micros(30))))
    );
    assert!(lock.take_ended(NOW.plus(Micros(9))).is_none());
    let ended: Vec<_> = std::iter::from_fn(|| lock.take_ended(NOW.plus(Micros(25))))
        .map(|hold| hold.token)
        .collect();
    assert_eq!(ended, [token("b"), token("c")]);
    assert_eq!(lock.holders(), 1);
    assert!(lock.take_ended(NOW.plus(Micros(30))).is_some() && lock.is_free());
}

#[test]
fn only_the_owner_finds_and_changes_its_hold_and_it_ends_with_its_lease() {
    for mode in [Mode::Exclusive, SHARED] {
        let mut lock = held(mode, &[("a", 10)]);
        let left = |passed| {
            lock.hold(&token("a"))
                .map(|hold| hold.left(NOW.plus(Micros(passed))))
        };
        assert_eq!([7, 12].map(left), [Some(Micros(3)), Some(Micros(0))]);
        assert_eq!(lock.change(&token("a"), |hold| hold.fence), Some(1));
        assert!(lock.hold(&token("x")).is_none());
        assert!(lock.change(&token("x"), |_| ()).is_none());
        assert!(lock.take_ended(NOW.plus(Micros(9))).is_none() && !lock.is_free());
        let ended = lock.take_ended(NOW.plus(Micros(10)));
        assert_eq!(ended.map(|hold| hold.token), Some(token("a")));
        assert!(lock.is_free() && lock.hold(&token("a")).is_none());
    }
}

#[test]
fn a_lease_that_is_moved_later_ends_later() {
    let mut lock = held(SHARED, &[("a", 10), ("b", 20)]);
    assert_eq!(
        lock.change(&token("a"), |hold| hold.renew(NOW, Micros(50), None)),
        Some(Ok(()))
    );
    assert_eq!(
        (lock.first_end(), lock.last_end()),
        (Some(NOW.plus(Micros(20))), Some(NOW.plus(Micros(50))))
    );
    assert_eq!(
        lock.change(&token("a"), |hold| hold.renew(NOW, Micros(5), None)),
        Some(Ok(()))
    );
    assert_eq!(lock.last_end(), Some(NOW.plus(Micros(50))), "never earlier");
    assert!(lock.change(&token("x"), |_| ()).is_none());
}

#[test]
fn the_tightest_cap_counts_from_the_grant() {
    let terms = Terms {
        max_hold: Some(Millis(10)),
        ..terms(&token("a"), Micros(1000))
    };
    let mut hold = Hold::new(&terms, 1, NOW);
    assert_eq!(
        hold.renew(NOW.plus(Micros(4000)), Micros(6000), None),
        Ok(())
    );
    assert_eq!(
        hold.renew(NOW.plus(Micros(4000)), Micros(6001), None),
        Err(OverCap { left: Micros(6000) })
    );
    assert_eq!(
        hold.renew(NOW.plus(Micros(4000)), Micros(4000), Some(Millis(7))),
        Err(OverCap { left: Micros(3000) })
    );
    assert_eq!(
        hold.renew(NOW.plus(Micros(20_000)), Micros(1), None),
        Err(OverCap { left: Micros(0) })
    );
    assert_eq!(
        hold.end,
        NOW.plus(Micros(10_000)),
        "a refusal leaves the lease as it was"
    );
    hold.note(&Terms {
        max_hold: Some(Millis(20)),
        ..terms.clone()
    });
    assert_eq!(hold.max_hold(), Some(Millis(10)), "a cap never widens");
    hold.note(&Terms {
        max_hold: Some(Millis(5)),
        ..terms
    });
    assert_eq!(hold.max_hold(), Some(Millis(5)));
}

#[test]
fn a_label_stays_until_another_one_comes() {
    let labelled = |label: &[u8]| Terms {
        owner: Some(label.into()),
        ..terms(&token("a"), Micros(10))
    };
    let mut hold = Hold::new(&labelled(b"one"), 1, NOW);
    hold.note(&terms(&token("a"), Micros(10)));
    assert_eq!(hold.owner(), b"one");
    hold.note(&labelled(b"two"));
    assert_eq!(hold.owner(), b"two");
}

#[test]
fn holders_are_told_in_the_order_of_their_fences() {
    let lock = held(SHARED, &[("c", 30), ("a", 10), ("b", 20)]);
    let order: Vec<_> = lock
        .holds_in_order()
        .into_iter()
        .map(|hold| hold.token.clone())
        .collect();
    assert_eq!(order, [token("c"), token("a"), token("b")]);
    assert_eq!(lock.holds().count(), 3);
    assert!(lock.heap_bytes() > held(SHARED, &[("a", 10)]).heap_bytes());
}

#[test]
fn only_the_holder_takes_its_hold_away() {
    for (mode, left) in [(Mode::Exclusive, 0), (SHARED, 1)] {
        let owners: &[_] = if left == 0 {
            &[("a", 10)]
        } else {
            &[("a", 10), ("b", 10)]
        };
        let mut lock = held(mode, owners);
        assert!(lock.take(&token("x")).is_none());
        assert_eq!(lock.holders(), owners.len());
        assert!(lock.take(&token("a")).is_some() && lock.take(&token("a")).is_none());
        assert_eq!(lock.holders(), left);
        assert_eq!(lock.is_free(), left == 0);
    }
}

#[test]
fn a_lease_runs_until_its_end_and_not_at_it() {
    for mode in [Mode::Exclusive, SHARED] {
        let lock = held(mode, &[("a", 10)]);
        for (passed, live) in [(0, 1), (9, 1), (10, 0), (11, 0)] {
            let now = NOW.plus(Micros(passed));
            assert_eq!(lock.live_holders(now), live);
            assert_eq!(lock.last_to_end(now).count(), live);
            assert_eq!(lock.excludes(Mode::Exclusive, now), live == 1);
        }
    }
    let lock = held(SHARED, &[("a", 30), ("b", 10), ("c", 20)]);
    let now = NOW.plus(Micros(10));
    assert_eq!(lock.live_holders(now), 2);
    let tokens: Vec<_> = lock.last_to_end(now).map(|hold| &hold.token).collect();
    assert_eq!(tokens, [&token("a"), &token("c")]);
    assert_eq!((Lock::Free.live_holders(NOW), Lock::Free.holders()), (0, 0));
}

fn restored(count: u32) -> Hold {
    Hold::restored(token("a"), 1, NOW.plus(Micros(10)), NOW, count)
}

#[test]
fn a_count_stops_at_the_highest_that_can_be_saved_and_goes_down_from_there() {
    let mut hold = restored(u32::MAX);
    hold.reenter(7);
    assert_eq!(hold.count(), u32::MAX);
    hold.leave_once();
    assert_eq!(hold.count(), u32::MAX - 1);
    assert_eq!((restored(1).count(), restored(2).count()), (1, 2));
}

#[test]
fn a_restored_hold_has_the_label_and_the_cap_that_were_saved() {
    for label in ["", "label"] {
        for cap in [None, Some(Millis(7))] {
            let mut hold = restored(1);
            hold.set_saved_extra(label.as_bytes(), cap);
            assert_eq!((hold.owner(), hold.max_hold()), (label.as_bytes(), cap));
        }
    }
}

#[test]
fn a_hold_is_tied_to_the_connection_that_used_it_last() {
    let tie = |connection| Tie {
        connection,
        role: 1,
    };
    let mut hold = restored(1);
    assert_eq!(hold.tie(), None);
    hold.bind(tie(5));
    hold.bind(tie(6));
    assert_eq!(hold.tie(), Some(tie(6)));
}

#[test]
fn the_memory_of_a_hold_is_that_of_a_long_token_and_of_what_few_holds_have() {
    let bytes = |name: &str, label: usize| {
        let mut terms = terms(&token(name), Micros(10));
        terms.owner = (label > 0).then(|| vec![b'x'; label].into());
        Hold::new(&terms, 1, NOW).heap_bytes()
    };
    let long = "x".repeat(100);
    assert_eq!((bytes("a", 0), bytes(&long, 0)), (0, 100));
    assert_eq!(bytes("a", 8), bytes("a", 5) + 3);
    assert!(bytes("a", 5) > 5);
    assert_eq!(bytes(&long, 5), 100 + bytes("a", 5));
    let mut plain = restored(1);
    plain.set_saved_extra(b"", None);
    assert_eq!(
        plain.heap_bytes(),
        0,
        "count, label and cap are the usual ones"
    );
}

#[test]
fn the_memory_of_a_lock_is_that_of_its_holders() {
    // More than 1,000 of them, which only an estimate needs, take too long under Miri.
    const MANY: usize = if cfg!(miri) { 10 } else { 2_500 };
    let shared = |holders: usize| {
        let mut shared = SharedHolders::new(None);
        for n in 0..holders {
            let terms = terms(&token(&format!("{n:0>100}")), Micros(10));
            shared.put(Hold::new(&terms, 1, NOW));
        }
        shared
    };
    // Room for holders is made for many at once, so one more needs only a place among the ends.
    let one_end = size_of::<(LeaseTime, Token)>();
    let one_holder = size_of::<(Token, Hold)>() + one_end;
    let (few, one_more) = (shared(100).heap_bytes(), shared(101).heap_bytes());
    assert!(few >= 100 * one_holder, "{few} bytes");
    assert_eq!(one_more, few + one_end);
    // Of very many, which are alike here, only some are looked at.
    for holders in [1, 2, MANY] {
        let shared = shared(holders);
        let own = size_of::<SharedHolders>() + shared.heap_bytes();
        let lock = Lock::Shared(Box::new(shared));
        assert_eq!(lock.heap_bytes(), own + holders * 100);
    }
    let long = "x".repeat(100);
    let exclusive = held(Mode::Exclusive, &[(long.as_str(), 10)]);
    assert_eq!((exclusive.heap_bytes(), Lock::Free.heap_bytes()), (100, 0));
}

#[test]
fn the_room_of_holders_that_left_is_freed_in_large_steps() {
    const MANY: u32 = if cfg!(miri) { 900 } else { 4_000 };
    let mut shared = SharedHolders::new(None);
    let tokens: Vec<_> = (0..MANY).map(|n| token(&format!("t{n}"))).collect();
    for owner in &tokens {
        shared.put(Hold::new(&terms(owner, Micros(10)), 1, NOW));
    }
    let room = |shared: &SharedHolders| {
        let ends = shared.len() * size_of::<(LeaseTime, Token)>();
        (shared.heap_bytes() - ends) / size_of::<(Token, Hold)>()
    };
    // Room for eight times as many as are left, and 128 more, is too much; twice as many is not.
    for owner in &tokens {
        // The map counts a place that was left as used, or does not.
        let before = room(&shared) - 1..=room(&shared);
        shared.take(owner);
        let (left, after) = (shared.len(), room(&shared));
        let is_too_much = |room: &usize| room / 8 > left + 128;
        if before.contains(&after) {
            let may_stay = !is_too_much(before.start());
            assert!(may_stay, "{after} of {before:?} with {left}");
        } else {
            let may_shrink = is_too_much(before.end());
            assert!(may_shrink, "{after} of {before:?} with {left}");
            assert!((2 * left..before.end() / 2).contains(&after), "{after}");
            return;
        }
    }
    panic!("the room of {} holders is never freed", tokens.len());
}
