//! The queues against a plain list of those who wait, and what each answer means.

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::lock::Mode;
use crate::time::Micros;

const KEYS: u32 = 4;
const OWNERS: u32 = 3;

fn key(n: u32) -> Key {
    Key::new(0, &n.to_le_bytes())
}

fn token(n: u32) -> Token {
    Token::new(&n.to_le_bytes()).expect("a token")
}

fn terms(owner: u32, mode: Mode) -> Terms {
    Terms {
        mode,
        ..Terms::exclusive(token(owner), Micros(10))
    }
}

fn waiter(owner: u32, keys: impl IntoIterator<Item = u32>, until: Option<u64>) -> Waiter {
    Waiter {
        keys: keys.into_iter().map(key).collect(),
        terms: terms(owner, Mode::Exclusive),
        until: until.map(MonoTime),
        since: MonoTime(0),
        held_up_at: HeldUpAt::default(),
    }
}

/// One who waits.
#[derive(Debug)]
struct Listed {
    id: WaiterId,
    owner: u32,
    keys: Vec<u32>,
    until: Option<u64>,
    /// It waits for several keys, or its owner had another request at some time while it waited.
    linked: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Join(u32, Vec<u32>, Option<u64>),
    Leave(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let all: Vec<u32> = (0..KEYS).collect();
    let keys = subsequence(all, 1..=KEYS as usize).prop_shuffle();
    let until = prop::option::of(1..5_u64);
    prop_oneof![
        3 => (0..OWNERS, keys, until).prop_map(|(owner, keys, until)| {
            Step::Join(owner, keys, until)
        }),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
    ]
}

/// Joins the queues of keys at which no lock was seen.
fn join(queues: &mut Queues, waiter: Waiter) -> WaiterId {
    let locks = vec![None; waiter.keys.len()];
    queues.join(waiter, &locks)
}

fn take(step: Step, queues: &mut Queues, list: &mut Vec<Listed>) -> Result<(), TestCaseError> {
    match step {
        Step::Join(owner, keys, until) => {
            let id = join(queues, waiter(owner, keys.iter().copied(), until));
            prop_assert!(list.iter().all(|one| one.id < id), "a later one is higher");
            let others = list.iter_mut().filter(|one| one.owner == owner);
            let others = others.map(|one| one.linked = true).count();
            list.push(Listed {
                id,
                owner,
                linked: keys.len() > 1 || others > 0,
                keys,
                until,
            });
        }
        Step::Leave(_) if list.is_empty() => {}
        Step::Leave(at) => {
            let one = list.remove(at.index(list.len()));
            let left = queues.leave(one.id);
            compare_left(left.as_ref(), &one, list)?;
            let left = left.map(|left| left.waiter);
            prop_assert_eq!(left.map(|left| left.keys.len()), Some(one.keys.len()));
            prop_assert!(queues.leave(one.id).is_none());
            prop_assert!(queues.get(one.id).is_none());
        }
    }
    Ok(())
}

/// What is known of a request that has left.
fn compare_left(left: Option<&Left>, one: &Listed, list: &[Listed]) -> Result<(), TestCaseError> {
    let next = left.map(|left| left.next.to_vec());
    let first = |n: &u32| list.iter().find(|one| one.keys.contains(n));
    let expected = one.keys.iter().map(|n| first(n).map(|one| one.id));
    prop_assert_eq!(next, Some(expected.collect()));
    let owner_waits = list.iter().any(|other| other.owner == one.owner);
    prop_assert_eq!(left.map(|left| left.owner_waits), Some(owner_waits));
    Ok(())
}

fn ids<'a>(list: impl Iterator<Item = &'a Listed>) -> Vec<WaiterId> {
    list.map(|one| one.id).collect()
}

/// What each queue has, and how all of them can be walked.
fn compare_keys(queues: &Queues, list: &[Listed]) -> Result<(), TestCaseError> {
    let mut waited_for = Vec::new();
    for n in 0..KEYS {
        let there = || list.iter().filter(move |one| one.keys.contains(&n));
        waited_for.extend(there().next().map(|_| key(n)));
        let queue = queues.at(&key(n));
        prop_assert_eq!(queue.is_some(), there().next().is_some());
        let waiting = queue.map(|queue| queue.waiting.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(waiting.unwrap_or_default(), ids(there()));
        let linked = queue.map(|queue| queue.linked.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(
            linked.unwrap_or_default(),
            ids(there().filter(|one| one.linked))
        );
    }
    let mut keys: Vec<_> = queues.keys().cloned().collect();
    keys.sort();
    waited_for.sort();
    prop_assert_eq!(keys, waited_for);
    let mut place = Place::default();
    let walk = std::iter::from_fn(|| {
        let (key, next) = queues.key_from(place)?;
        place = next;
        Some(key)
    });
    let mut all: Vec<_> = list
        .iter()
        .flat_map(|one| &one.keys)
        .map(|n| key(*n))
        .collect();
    // One more than there are would be seen.
    let mut walked: Vec<_> = walk.take(all.len() + 1).collect();
    walked.sort();
    all.sort();
    prop_assert_eq!(walked, all);
    Ok(())
}

fn compare(queues: &Queues, list: &[Listed]) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (queues.len(), queues.is_empty()),
        (list.len(), list.is_empty())
    );
    prop_assert_eq!(queues.ids(), ids(list.iter()));
    let several = list.iter().any(|one| one.keys.len() > 1);
    prop_assert_eq!(queues.has_several_keys(), several);
    for one in list {
        let owner = queues.get(one.id).map(|waiter| &waiter.terms.token);
        prop_assert_eq!(owner, Some(&token(one.owner)));
    }
    for owner in 0..OWNERS {
        let requests = ids(list.iter().filter(|one| one.owner == owner));
        prop_assert_eq!(queues.has(&token(owner)), !requests.is_empty());
        prop_assert_eq!(queues.of(&token(owner)).collect::<Vec<_>>(), requests);
    }
    let deadlines = list.iter().filter_map(|one| Some((one.until?, one.id)));
    let first = deadlines.min();
    prop_assert_eq!(
        queues.next_deadline(),
        first.map(|(until, _)| MonoTime(until))
    );
    for now in 0..6 {
        let overdue = first.filter(|(until, _)| *until <= now).map(|(_, id)| id);
        prop_assert_eq!(queues.overdue(MonoTime(now)), overdue);
    }
    compare_keys(queues, list)
}

proptest! {
    #[test]
    fn the_queues_are_what_a_list_of_requests_says(
        steps in prop::collection::vec(step(), 0..30),
    ) {
        let (mut queues, mut list) = (Queues::default(), Vec::new());
        for step in steps {
            take(step, &mut queues, &mut list)?;
            compare(&queues, &list)?;
        }
    }
}

#[test]
fn a_queue_knows_the_lock_at_its_key_and_the_last_to_leave_is_told() {
    let (lock, other) = (LockId::from_bits(1 << 32), LockId::from_bits(2 << 32));
    let mut queues = Queues::default();
    assert!(!queues.note_lock(&key(0), Some(lock)), "nobody waits");
    let first = join(&mut queues, waiter(0, [0], None));
    let second = join(&mut queues, waiter(1, [0, 1], None));
    assert!(
        !queues.note_lock(&key(2), Some(lock)),
        "nobody waits for it"
    );
    assert!(queues.note_lock(&key(0), Some(lock)) && queues.note_lock(&key(1), Some(other)));
    queues.forget_lock(&key(0), other);
    let known = |queues: &Queues, n| queues.at(&key(n)).and_then(|queue| queue.lock);
    assert_eq!(known(&queues, 0), Some(lock), "it is another one");
    queues.forget_lock(&key(1), other);
    assert_eq!(known(&queues, 1), None);
    let mut told = |id| queues.leave(id).map(|left| left.emptied);
    assert_eq!(told(first), Some(vec![]));
    assert_eq!(told(second), Some(vec![lock]));
}

#[test]
fn a_request_remembers_which_of_its_keys_it_could_not_have() {
    let waiter = waiter(0, 0..3, None);
    assert_eq!(waiter.held_up_at(), 0);
    waiter.is_held_up_at(2);
    assert_eq!(waiter.held_up_at(), 2);
}

/// Room that was needed once is used again, but very much of it is not kept.
#[test]
fn when_nobody_waits_any_more_room_for_some_is_kept_and_room_for_very_many_is_not() {
    for (waiters, kept) in [(KEPT_SLOTS, KEPT_SLOTS), (KEPT_SLOTS + 1, 0)] {
        let mut queues = Queues::default();
        let join = |owner| join(&mut queues, waiter(owner, [0], None));
        let mut ids: Vec<_> = (0..waiters as u32).map(join).collect();
        let last = ids.pop().expect("somebody");
        for id in ids {
            queues.leave(id);
        }
        assert!(queues.len() == 1 && queues.get(last).is_some());
        queues.leave(last);
        assert_eq!((queues.len(), queues.slots.len()), (0, kept));
    }
}

/// The same for the owners, each with one request for the same key.
#[test]
fn when_nobody_waits_any_more_room_for_very_many_owners_is_not_kept() {
    const SOME: u32 = if cfg!(miri) { 900 } else { 1_500 };
    const MANY: u32 = if cfg!(miri) { 1_800 } else { 4_000 };
    for (owners, is_kept) in [(10, true), (SOME, true), (MANY, false)] {
        let mut queues = Queues::default();
        let ids: Vec<_> = (0..owners)
            .map(|owner| join(&mut queues, waiter(owner, [0], None)))
            .collect();
        for id in ids {
            queues.leave(id);
        }
        assert!(queues.is_empty() && queues.by_token.is_empty());
        assert_eq!(queues.by_token.capacity() > 0, is_kept, "{owners}");
    }
}

#[test]
fn the_memory_of_a_request_for_one_key_is_used_again() {
    for (keys, is_used_again) in [(1, true), (2, false)] {
        let mut queues = Queues::default();
        let id = join(&mut queues, waiter(0, 0..keys, None));
        let left = queues.leave(id).expect("it waits");
        queues.reuse(left.waiter);
        assert_eq!(queues.reusable.is_some(), is_used_again);
        let next = join(&mut queues, waiter(1, [3], Some(7)));
        assert!(queues.reusable.is_none());
        let stored = queues.get(next).expect("it waits");
        assert_eq!(
            (&stored.keys[..], stored.until),
            (&[key(3)][..], Some(MonoTime(7)))
        );
        assert_eq!(stored.terms.token, token(1));
    }
}

#[test]
fn a_key_that_is_waited_for_is_looked_at_once_in_each_sweep() {
    let mut queues = Queues::default();
    assert!(!queues.is_to_be_swept(&key(0), 1), "nobody waits");
    join(&mut queues, waiter(0, [0], None));
    join(&mut queues, waiter(1, [0], None));
    for sweep in [1, 2] {
        assert!(queues.is_to_be_swept(&key(0), sweep));
        assert!(!queues.is_to_be_swept(&key(0), sweep));
    }
}
