//! The short saved forms of a lock with one exclusive holder. `wire.rs` tests what holds for every
//! form.

use proptest::prelude::*;
use redislock_core::Table;
use redislock_core::fence::MAX_FENCE;
use redislock_core::lock::{Hold, Lock, Mode};
use redislock_core::payload::{Origin, Rejected};
use redislock_core::table::Limits;
use redislock_core::time::{LeaseTime, Micros, Millis, MonoTime, Now, WallTime};
use redislock_core::token::{MAX_OWNER, MAX_TOKEN, Token};
use redislock_core::wire::{
    MAX_TTL, Malformed, is_first_of_two, join, load, put_number, put_whole, save, strings,
};

use crate::node::{Node, ROOMY, key};

const NOW: LeaseTime = LeaseTime(1 << 40);
const UUID: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";
const COUNT: u8 = 1;
const EXTRA: u8 = 2;
const PACKED: u8 = 4;

fn lock(token: &str) -> Lock {
    let token = Token::new(token.as_bytes()).expect("a token");
    let (end, granted) = (NOW.plus(Micros(5000)), NOW.minus(Micros(7)));
    let mut lock = Lock::Free;
    lock.grant(Hold::restored(token, 9, end, granted, 1), Mode::Exclusive);
    lock
}

fn saved(lock: &Lock) -> Vec<u8> {
    let mut bytes = Vec::new();
    save(lock, NOW, &mut bytes);
    bytes
}

#[test]
fn a_token_that_is_the_text_of_a_uuid_takes_16_bytes() {
    let bytes = saved(&lock(UUID));
    assert_eq!(bytes.len(), 1 + 7 + 5 + 7 + 16);
    assert_eq!(
        bytes.last_chunk(),
        Some(&0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8_u128.to_be_bytes())
    );
}

#[test]
fn a_token_that_looks_like_a_uuid_comes_back_byte_by_byte() {
    let upper = UUID.to_uppercase();
    let one_upper = UUID.replacen('e', "E", 1);
    let plain = UUID.replace('-', "");
    let braces = format!("{{{UUID}}}");
    let urn = format!("urn:uuid:{UUID}");
    let moved = UUID.replacen("4-", "-4", 1);
    let not_hex = UUID.replace('c', "g");
    for token in [
        UUID, &upper, &one_upper, &plain, &braces, &urn, &moved, &not_hex,
    ] {
        let loaded = load(&saved(&lock(token)), NOW).expect("what was saved");
        let tokens: Vec<_> = loaded.holds().map(|hold| hold.token.secret()).collect();
        assert_eq!(tokens, [token.as_bytes()]);
    }
}

#[test]
fn a_token_that_differs_from_a_uuid_in_any_byte_comes_back_byte_by_byte() {
    for at in 0..UUID.len() {
        for byte in 0..=u8::MAX {
            let mut secret = UUID.as_bytes().to_vec();
            secret[at] = byte;
            let token = Token::new(&secret).expect("a token");
            let mut lock = Lock::Free;
            lock.grant(Hold::restored(token, 9, NOW, NOW, 1), Mode::Exclusive);
            let loaded = load(&saved(&lock), NOW).expect("what was saved");
            let tokens: Vec<_> = loaded.holds().map(|hold| hold.token.secret()).collect();
            assert_eq!(tokens, [&secret]);
        }
    }
}

/// Bytes from the node's own file take a shorter path than those that may be from a client.
#[test]
fn a_hold_is_loaded_in_the_same_way_from_every_source() {
    let now = Now {
        mono: MonoTime(NOW.0),
        wall: WallTime(MAX_FENCE),
    };
    let loaded = |name: &[u8], bytes: &[u8], origin| {
        let mut table = Table::new(Limits::DEFAULT);
        let id = table.restore(3, name, bytes, origin, now).ok()?;
        let found = (table.key(id), table.whole_effect(Some(id), now.mono));
        let sizes = (table.locks(), table.memory(id), table.fence());
        let ends = (table.next_deadline(), table.flushed(None, now));
        Some((id, found, sizes, ends))
    };
    let check = |name: &[u8], bytes: &[u8]| {
        let trusted = loaded(name, bytes, Origin::Trusted);
        let checked = loaded(name, bytes, Origin::MasterOrClient);
        assert_eq!(trusted, checked, "{name:?} {bytes:?}");
    };
    for token in [UUID, "other"] {
        let bytes = saved(&lock(token));
        for len in [0, 1, 26, 27, 100] {
            check(&vec![b'n'; len], &bytes);
        }
        for at in 0..bytes.len() {
            check(b"k", &bytes[..at]);
            for byte in 0..=u8::MAX {
                let mut bytes = bytes.clone();
                bytes[at] = byte;
                check(b"k", &bytes);
                bytes.push(byte);
                check(b"k", &bytes);
            }
        }
    }
}

#[test]
fn a_hold_from_a_client_is_checked_whatever_its_token_is() {
    let now = Now {
        mono: MonoTime(NOW.0),
        wall: WallTime(1),
    };
    let client = Origin::Client {
        longest_lease: Some(Millis(1)),
    };
    for token in [UUID, "other"] {
        let mut table = Table::new(Limits::DEFAULT);
        let mut restore = |lock: &Lock| table.restore(0, b"k", &saved(lock), client, now);
        assert_eq!(restore(&lock(token)), Err(Rejected::LeaseTooLong));
        let mut ahead = Lock::Free;
        let token = Token::new(token.as_bytes()).expect("a token");
        let hold = Hold::restored(token, MAX_FENCE, NOW, NOW, 1);
        ahead.grant(hold, Mode::Exclusive);
        assert_eq!(restore(&ahead), Err(Rejected::FenceTooFarAhead));
        assert_eq!((table.locks(), table.fence()), (0, 0));
    }
}

#[test]
fn a_hold_that_is_loaded_where_somebody_waits_may_cause_a_deadlock() {
    let mut node = Node::new(ROOMY);
    node.hold("b", "x");
    node.hold("c", "z");
    node.wait("b", "yz");
    node.wait(UUID, "x");
    node.take();
    node.restore(&key("y"), &saved(&lock(UUID)));
    node.serve();
    assert_eq!(node.table.counters.deadlocks, 1);
}

#[test]
fn the_forms_of_the_versions_before_are_still_read() {
    for token in [UUID, "t"] {
        let mut before = vec![1];
        put_whole(&lock(token), NOW, &mut before);
        let loaded = load(&before, NOW).expect("version 1");
        assert_eq!(saved(&loaded), saved(&lock(token)));
    }
}

proptest! {
    #[test]
    fn any_plain_hold_comes_back_from_its_form_and_that_of_version_2(
        uuid: [u8; 16],
        fence in 1..=MAX_FENCE,
        left in 0..=MAX_TTL.to_micros().0,
        age in 0..=NOW.0,
    ) {
        let bytes = plain(fence, left, age, &uuid);
        for form in [&bytes, &form(PACKED, fence, left, age, &uuid)] {
            let loaded = load(form, NOW).expect("a plain hold");
            prop_assert_eq!(&saved(&loaded), &bytes);
        }
        let (first, second) = strings(&bytes);
        prop_assert!(is_first_of_two(first));
        prop_assert_eq!(join(first, second).map(Vec::from), Ok(bytes));
    }
}

#[test]
fn a_plain_hold_is_saved_as_two_strings_that_no_server_compresses() {
    let plain = saved(&lock(UUID));
    let (first, second) = strings(&plain);
    assert_eq!((first.len(), second.len()), (20, 16));
    let mut entered = lock(UUID);
    let again = entered.holds().next().expect("a hold").token.clone();
    entered.grant(Hold::restored(again, 9, NOW, NOW, 2), Mode::Exclusive);
    for lock in [lock("t"), entered] {
        let bytes = saved(&lock);
        assert_eq!(strings(&bytes), (&bytes[..], &[][..]));
        assert!(!is_first_of_two(&bytes));
    }
}

#[test]
fn strings_of_other_lengths_are_not_put_together() {
    let long = [3; 40];
    for first in 0..40 {
        for second in 0..20 {
            let joined = join(&long[..first], &long[..second]);
            assert_eq!(joined.is_ok(), (first, second) == (20, 16));
        }
        assert_eq!(strings(&long[..first]).0.len(), first.min(20));
    }
}

/// A fence, what is left, what has passed, and a UUID: a plain hold.
fn plain(fence: u64, left: u64, age: u64, uuid: &[u8]) -> Vec<u8> {
    let mut bytes = form(0, fence, left, age, uuid);
    bytes.splice(..2, [3]);
    bytes
}

/// Flags, a fence, what is left, what has passed, and what follows.
fn form(flags: u8, fence: u64, left: u64, age: u64, rest: &[u8]) -> Vec<u8> {
    let [left, age] = [left, age].map(u64::to_le_bytes);
    [
        &[2, flags],
        &fence.to_be_bytes()[1..],
        &left[..5],
        &age[..7],
        rest,
    ]
    .concat()
}

fn bytes(bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    put_number(bytes.len() as u64, &mut all);
    all.extend_from_slice(bytes);
    all
}

fn number(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_number(number, &mut bytes);
    bytes
}

#[test]
fn what_no_command_could_have_made_is_malformed() {
    let token = bytes(b"a");
    let extra = |cap: u64, owner: &[u8]| [number(cap), bytes(owner), token.clone()].concat();
    let count = |count: u64| [number(count), token.clone()].concat();
    let week = MAX_TTL.to_micros().0;
    for good in [
        form(0, 1, 0, 0, &token),
        form(0, MAX_FENCE, week, MAX_FENCE, &token),
        form(COUNT, 1, 5, 0, &count(u32::MAX.into())),
        form(EXTRA, 1, 5, 0, &extra(MAX_TTL.0, b"label")),
        form(PACKED, 1, 5, 0, &[7; 16]),
        form(PACKED | COUNT, 1, 5, 0, &[7; 17]),
        plain(1, 0, 0, &[7; 16]),
        plain(MAX_FENCE, week, MAX_FENCE, &[7; 16]),
    ] {
        assert!(load(&good, NOW).is_ok(), "{good:?}");
    }
    let bad = [
        ("an unknown flag", form(8, 1, 5, 0, &token)),
        ("no fence", form(0, 0, 5, 0, &token)),
        ("a fence above all", form(0, MAX_FENCE + 1, 5, 0, &token)),
        ("a lease above all", form(0, 1, week + 1, 0, &token)),
        ("an age above all", form(0, 1, 5, MAX_FENCE + 1, &token)),
        ("no count", form(COUNT, 1, 5, 0, &count(0))),
        ("a count above all", form(COUNT, 1, 5, 0, &count(1 << 32))),
        (
            "a cap above all",
            form(EXTRA, 1, 5, 0, &extra(MAX_TTL.0 + 1, b"")),
        ),
        (
            "a long label",
            form(EXTRA, 1, 5, 0, &extra(0, &[7; MAX_OWNER + 1])),
        ),
        ("an empty token", form(0, 1, 5, 0, &bytes(b""))),
        ("a star", form(0, 1, 5, 0, &bytes(b"*"))),
        (
            "a long token",
            form(0, 1, 5, 0, &bytes(&[7; MAX_TOKEN + 1])),
        ),
        ("a part of a UUID", form(PACKED, 1, 5, 0, &[7; 15])),
        ("more than a UUID", form(PACKED, 1, 5, 0, &[7; 17])),
        ("no token", form(0, 1, 5, 0, &[])),
        ("a plain hold without a fence", plain(0, 5, 0, &[7; 16])),
        (
            "a plain hold with a fence above all",
            plain(MAX_FENCE + 1, 5, 0, &[7; 16]),
        ),
        (
            "a plain hold with a lease above all",
            plain(1, week + 1, 0, &[7; 16]),
        ),
        (
            "a plain hold with an age above all",
            plain(1, 5, MAX_FENCE + 1, &[7; 16]),
        ),
        (
            "a plain hold with a part of a UUID",
            plain(1, 5, 0, &[7; 15]),
        ),
        (
            "a plain hold with more than a UUID",
            plain(1, 5, 0, &[7; 17]),
        ),
    ];
    for (what, bytes) in bad {
        assert_eq!(load(&bytes, NOW).err(), Some(Malformed), "{what}");
    }
}
