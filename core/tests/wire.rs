//! The saved form: every shape comes back as it was, and no bytes lead to anything that the
//! commands could not have made.

use proptest::prelude::*;
use redislock_core::fence::MAX_FENCE;
use redislock_core::lock::{Hold, Lock, Mode, Terms};
use redislock_core::table::Loaded;
use redislock_core::time::{LeaseTime, Micros, Millis, Wait};
use redislock_core::token::{Key, MAX_OWNER, MAX_TOKEN, Token};
use redislock_core::wire::{
    MAX_HOLDERS, MAX_TTL, Malformed, Reader, load, put_number, put_part, put_whole, save,
};

use crate::node::{Node, ROOMY, SECOND, SHARED, key, semaphore, terms, token};

const NOW: LeaseTime = LeaseTime(1 << 40);
const UUID: &[u8] = b"67e55044-10b1-426f-9247-bb680e5fe0c8";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    token: Vec<u8>,
    count: u32,
    fence: u64,
    left: u64,
    age: u64,
    max_hold: u32,
    owner: Vec<u8>,
}

fn restored(seen: &Seen) -> Hold {
    let token = Token::new(&seen.token).expect("a token");
    let mut hold = Hold::restored(
        token,
        seen.fence,
        NOW.plus(Micros(seen.left)),
        LeaseTime(NOW.0 - seen.age),
        seen.count,
    );
    hold.set_saved_extra(
        &seen.owner,
        Some(Millis(seen.max_hold.into())).filter(|cap| *cap != Millis::ZERO),
    );
    hold
}

fn lock(mode: Mode, holds: &[Seen]) -> Lock {
    let mut lock = Lock::Free;
    holds
        .iter()
        .for_each(|seen| lock.grant(restored(seen), mode));
    lock
}

fn seen(lock: &Lock) -> (Mode, Vec<Seen>) {
    let holds = lock.holds_in_order().into_iter().map(|hold| Seen {
        token: hold.token.secret().to_vec(),
        count: hold.count(),
        fence: hold.fence,
        left: hold.left(NOW).0,
        age: NOW.since(hold.granted).0,
        max_hold: hold.max_hold().map_or(0, |cap| cap.0 as u32),
        owner: hold.owner().to_vec(),
    });
    (lock.mode(), holds.collect())
}

fn saved(lock: &Lock) -> Vec<u8> {
    let mut bytes = Vec::new();
    save(lock, NOW, &mut bytes);
    bytes
}

fn plain(token: &[u8], fence: u64) -> Seen {
    Seen {
        token: token.to_vec(),
        count: 1,
        fence,
        left: 5000,
        age: 7,
        max_hold: 0,
        owner: Vec::new(),
    }
}

/// One of each shape, with fields at both ends of their ranges and byte strings of this length.
fn shapes(length: usize) -> Vec<Lock> {
    let most = |name: u8| Seen {
        token: vec![name; length],
        count: u32::MAX,
        fence: MAX_FENCE,
        left: MAX_TTL.to_micros().0,
        age: 1 << 39,
        max_hold: MAX_TTL.0 as u32,
        owner: vec![0; length],
    };
    let least = Seen {
        left: 0,
        age: 0,
        ..plain(b"\0", 1)
    };
    vec![
        lock(Mode::Exclusive, &[plain(b"a", 9)]),
        lock(Mode::Exclusive, std::slice::from_ref(&least)),
        lock(Mode::Exclusive, &[most(1)]),
        lock(Mode::Exclusive, &[plain(UUID, 9)]),
        lock(
            Mode::Exclusive,
            &[Seen {
                count: 2,
                ..plain(UUID, 9)
            }],
        ),
        lock(SHARED, &[plain(b"a", 9)]),
        lock(SHARED, &[plain(b"a", 9), most(1), least, plain(b"b", 9)]),
        lock(semaphore(2), &[plain(b"a", 9), plain(b"\xff\xfe", 8)]),
        lock(semaphore(MAX_HOLDERS), &[plain(b"a", 9)]),
    ]
}

#[test]
fn every_shape_comes_back_as_it_was() {
    for lock in shapes(MAX_TOKEN) {
        let loaded = load(&saved(&lock), NOW).expect("what was saved");
        assert_eq!(seen(&loaded), seen(&lock));
    }
}

#[test]
fn times_are_what_remains_and_what_has_passed_on_any_clock() {
    let lock = lock(Mode::Exclusive, &[plain(b"a", 9)]);
    let later = NOW.plus(Micros(123_456_789));
    let loaded = load(&saved(&lock), later).expect("what was saved");
    let hold = loaded.holds().next().expect("a hold");
    assert_eq!(
        (hold.left(later), later.since(hold.granted)),
        (Micros(5000), Micros(7))
    );
    let young = load(&saved(&lock), LeaseTime(3)).expect("what was saved");
    assert_eq!(
        young
            .holds()
            .next()
            .map(|hold| (hold.left(LeaseTime(3)), hold.granted)),
        Some((Micros(5000), LeaseTime(0)))
    );
}

#[test]
fn nothing_shorter_and_nothing_longer_is_a_lock() {
    for lock in shapes(MAX_TOKEN) {
        let mut bytes = saved(&lock);
        for length in 0..bytes.len() {
            assert_eq!(
                load(&bytes[..length], NOW).err(),
                Some(Malformed),
                "{length} of {}",
                bytes.len()
            );
        }
        bytes.push(0);
        assert_eq!(load(&bytes, NOW).err(), Some(Malformed));
    }
}

/// What any command could have made.
fn is_valid(lock: &Lock) -> bool {
    let (mode, holds) = seen(lock);
    let fits = match mode {
        Mode::Exclusive => holds.len() == 1,
        Mode::Shared { limit } => {
            limit.is_none_or(|limit| limit <= MAX_HOLDERS)
                && !holds.is_empty()
                && limit.is_none_or(|limit| holds.len() <= limit as usize)
        }
    };
    let hold_fits = |hold: &Seen| {
        Token::new(&hold.token).is_some()
            && hold.count > 0
            && (1..=MAX_FENCE).contains(&hold.fence)
            && hold.left <= MAX_TTL.to_micros().0
            && u64::from(hold.max_hold) <= MAX_TTL.0
            && hold.owner.len() <= MAX_OWNER
    };
    fits && holds.iter().all(hold_fits)
}

#[test]
fn every_single_changed_byte_gives_an_error_or_a_valid_lock() {
    for lock in shapes(5) {
        let bytes = saved(&lock);
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Ok(loaded) = load(&changed, NOW) {
                    assert!(is_valid(&loaded), "byte {at} as {value}");
                    let again = load(&saved(&loaded), NOW).expect("saved again");
                    assert_eq!(seen(&again), seen(&loaded));
                }
            }
        }
    }
}

fn number(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_number(number, &mut bytes);
    bytes
}

/// A version, flags, a limit, how many holds, and what follows.
fn form(flags: u8, limit: u64, holds: u64, rest: &[u8]) -> Vec<u8> {
    [&[1, flags][..], &number(limit), &number(holds), rest].concat()
}

const EXCLUSIVE_WHOLE: u8 = 2;
const SHARED_WHOLE: u8 = 3;
const SHARED_PART: u8 = 1;

fn hold(token: &[u8], count: u64, fence: u64, left: u64, max_hold: u64, owner: &[u8]) -> Vec<u8> {
    let numbers = [count, fence, left, 0, max_hold].map(number).concat();
    [
        &number(token.len() as u64)[..],
        token,
        &numbers,
        &number(owner.len() as u64),
        owner,
    ]
    .concat()
}

#[test]
fn a_part_fits_only_into_the_permits_that_are_left() {
    let mut node = Node::new(ROOMY);
    let room = key("room");
    for owner in ["a", "b"] {
        let terms = Terms {
            mode: semaphore(2),
            ..terms(&token(owner), SECOND)
        };
        node.acquire(std::slice::from_ref(&room), &terms, Wait::No);
        node.apply();
    }
    let put = |owner: &[u8]| hold(owner, 1, 9, 5_000_000, 0, b"");
    let gone = |owner: &[u8]| [&[1], owner, &[0]].concat();
    let part = |limit, holds: &[Vec<u8>]| {
        // Behind the version of a saved form, it is what an effect has for a key.
        form(SHARED_PART, limit, holds.len() as u64, &holds.concat())[1..].to_vec()
    };
    let mut applied = |key: &Key, bytes: Vec<u8>| {
        let now = node.table.lease_now(node.now.mono);
        let change = Reader(&bytes).change(now).expect("a change");
        let applied = node.table.apply(key.clone(), node.at(key), change);
        let holders = node.lock(key).map_or(0, Lock::holders);
        (applied, holders)
    };
    let another = part(2, &[put(b"c")]);
    assert_eq!(applied(&room, another), (Loaded::Refused, 2));
    let again = part(2, &[put(b"a"), put(b"b")]);
    assert_eq!(applied(&room, again), (Loaded::Kept, 2));
    let instead = part(2, &[gone(b"a"), put(b"c")]);
    assert_eq!(applied(&room, instead), (Loaded::Kept, 2));
    let nobody = part(2, &[gone(b"a"), put(b"d")]);
    assert_eq!(applied(&room, nobody), (Loaded::Refused, 2));
    let smaller = part(1, &[put(b"b"), put(b"c")]);
    assert_eq!(applied(&room, smaller.clone()), (Loaded::Refused, 2));
    assert_eq!(applied(&key("none"), smaller), (Loaded::Refused, 0));
}

#[test]
fn what_no_command_could_have_made_is_malformed() {
    let good = hold(b"a", 1, 1, 5, 0, b"");
    assert!(load(&form(EXCLUSIVE_WHOLE, 0, 1, &good), NOW).is_ok());
    assert!(load(&form(SHARED_WHOLE, 1, 1, &good), NOW).is_ok());
    let week = MAX_TTL.to_micros().0;
    let bad = [
        ("no holder", form(EXCLUSIVE_WHOLE, 0, 0, &[])),
        (
            "two exclusive holders",
            form(
                EXCLUSIVE_WHOLE,
                0,
                2,
                &[good.clone(), hold(b"b", 1, 2, 5, 0, b"")].concat(),
            ),
        ),
        ("an exclusive limit", form(EXCLUSIVE_WHOLE, 1, 1, &good)),
        ("an unknown flag", form(4 | EXCLUSIVE_WHOLE, 0, 1, &good)),
        ("a part of a lock", form(1, 0, 1, &good)),
        (
            "more holders than the limit",
            form(
                SHARED_WHOLE,
                1,
                2,
                &[good.clone(), hold(b"b", 1, 2, 5, 0, b"")].concat(),
            ),
        ),
        (
            "a holder twice",
            form(SHARED_WHOLE, 0, 2, &[good.clone(), good.clone()].concat()),
        ),
        (
            "a limit above all",
            form(SHARED_WHOLE, u64::from(MAX_HOLDERS) + 1, 1, &good),
        ),
        (
            "an empty token",
            form(EXCLUSIVE_WHOLE, 0, 1, &hold(b"", 1, 1, 5, 0, b"")),
        ),
        (
            "a star",
            form(EXCLUSIVE_WHOLE, 0, 1, &hold(b"*", 1, 1, 5, 0, b"")),
        ),
        (
            "a long token",
            form(
                EXCLUSIVE_WHOLE,
                0,
                1,
                &hold(&[7; MAX_TOKEN + 1], 1, 1, 5, 0, b""),
            ),
        ),
        (
            "no count",
            form(SHARED_WHOLE, 0, 1, &hold(b"a", 0, 1, 5, 0, b"")),
        ),
        (
            "a count above all",
            form(EXCLUSIVE_WHOLE, 0, 1, &hold(b"a", 1 << 32, 1, 5, 0, b"")),
        ),
        (
            "no fence",
            form(EXCLUSIVE_WHOLE, 0, 1, &hold(b"a", 1, 0, 5, 0, b"")),
        ),
        (
            "a fence above all",
            form(
                EXCLUSIVE_WHOLE,
                0,
                1,
                &hold(b"a", 1, MAX_FENCE + 1, 5, 0, b""),
            ),
        ),
        (
            "a lease above all",
            form(EXCLUSIVE_WHOLE, 0, 1, &hold(b"a", 1, 1, week + 1, 0, b"")),
        ),
        (
            "a cap above all",
            form(
                EXCLUSIVE_WHOLE,
                0,
                1,
                &hold(b"a", 1, 1, 5, MAX_TTL.0 + 1, b""),
            ),
        ),
        (
            "a long label",
            form(
                EXCLUSIVE_WHOLE,
                0,
                1,
                &hold(b"a", 1, 1, 5, 0, &[7; MAX_OWNER + 1]),
            ),
        ),
        (
            "another version",
            [&[4], &form(EXCLUSIVE_WHOLE, 0, 1, &good)[1..]].concat(),
        ),
    ];
    for (what, bytes) in bad {
        assert_eq!(load(&bytes, NOW).err(), Some(Malformed), "{what}");
    }
}

#[test]
fn numbers_have_one_end_and_fit_64_bits() {
    for value in [
        0,
        1,
        127,
        128,
        16_383,
        16_384,
        u64::from(u32::MAX),
        u64::MAX - 1,
        u64::MAX,
    ] {
        let bytes = number(value);
        let mut reader = Reader(&bytes);
        assert_eq!((reader.number(u64::MAX), reader.0.len()), (Ok(value), 0));
        if value > 0 {
            assert_eq!(Reader(&bytes).number(value - 1), Err(Malformed));
        }
    }
    assert_eq!(Reader(&[0xff; 10]).number(u64::MAX), Err(Malformed));
    assert_eq!(
        Reader(&[[0xff; 9].as_slice(), &[2]].concat()).number(u64::MAX),
        Err(Malformed)
    );
    assert_eq!(Reader(&[0x80]).number(u64::MAX), Err(Malformed));
}

#[test]
fn a_part_changes_these_holds_and_leaves_the_others() {
    let before = lock(SHARED, &[plain(b"a", 1), plain(b"b", 2), plain(b"c", 3)]);
    let after = lock(
        SHARED,
        &[
            Seen {
                count: 5,
                ..plain(b"a", 1)
            },
            plain(b"c", 3),
            plain(b"d", 4),
        ],
    );
    let tokens: Vec<_> = [b"a", b"b", b"d"]
        .into_iter()
        .filter_map(|token| Token::new(token))
        .collect();
    let mut bytes = Vec::new();
    put_part(&after, &tokens, NOW, &mut bytes);
    let mut replica = before;
    for _ in 0..2 {
        // Twice is the same as once.
        let change = Reader(&bytes).change(NOW).expect("what was written");
        assert_eq!(change.highest_fence(), 4);
        change.apply(&mut replica);
        assert_eq!(seen(&replica), seen(&after));
    }
}

#[test]
fn a_change_of_mode_leaves_nobody_of_the_mode_before() {
    for (before, after) in [
        (
            lock(SHARED, &[plain(b"a", 1)]),
            lock(Mode::Exclusive, &[plain(b"b", 2)]),
        ),
        (
            lock(Mode::Exclusive, &[plain(b"a", 1)]),
            lock(SHARED, &[plain(b"b", 2)]),
        ),
        (
            lock(semaphore(2), &[plain(b"a", 1)]),
            lock(semaphore(3), &[plain(b"b", 2)]),
        ),
        (lock(SHARED, &[plain(b"a", 1)]), Lock::Free),
    ] {
        let mut bytes = Vec::new();
        put_whole(&after, NOW, &mut bytes);
        let mut replica = before;
        Reader(&bytes)
            .change(NOW)
            .expect("what was written")
            .apply(&mut replica);
        assert_eq!(seen(&replica), seen(&after));
    }
}

proptest! {
    #[test]
    fn any_lock_comes_back(
        shared in proptest::option::of(0..4u32),
        holds in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 1..60),
            (1..9u32, 1..MAX_FENCE, 0..MAX_TTL.to_micros().0, 0..1u64 << 39, 0..9u32),
            1..4,
        ),
    ) {
        prop_assume!(!holds.contains_key(&b"*"[..]));
        let each = |(token, (count, fence, left, age, max_hold)): (Vec<u8>, _)| Seen {
            owner: token[..1].to_vec(), token, count, fence, left, age, max_hold,
        };
        let mut holds: Vec<_> = holds.into_iter().map(each).collect();
        let mode = match shared {
            None => Mode::Exclusive,
            Some(0) => SHARED,
            Some(limit) => semaphore(limit),
        };
        holds.truncate(match mode {
            Mode::Exclusive => 1,
            Mode::Shared { limit: None } => holds.len(),
            Mode::Shared { limit: Some(limit) } => limit as usize,
        });
        let lock = lock(mode, &holds);
        let loaded = load(&saved(&lock), NOW).expect("what was saved");
        prop_assert_eq!(seen(&loaded), seen(&lock));
    }

    #[test]
    fn any_bytes_are_refused_or_a_valid_lock(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        if let Ok(loaded) = load(&bytes, NOW) {
            prop_assert!(is_valid(&loaded));
        }
        let _ = Reader(&bytes).change(NOW);
    }
}
