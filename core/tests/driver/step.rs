//! Random steps: what clients ask for, what happens without being asked.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::reference::{Key, Mode, Request, Token};

/// The unit of time, µs: leases are found due at multiples of it.
pub const TICK: u64 = 1024;

/// A wish for a fence, in terms of what the node knows when it comes.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    None,
    /// This much above the highest fence so far.
    AboveLast(u64),
    /// This much above the wall clock.
    AboveWall(u64),
}

#[derive(Clone, Debug)]
pub enum Step {
    Acquire {
        request: Request,
        wish: Wish,
        block: Option<Option<u64>>,
    },
    Release {
        keys: Vec<Key>,
        token: Token,
        all: bool,
    },
    Extend {
        key: Key,
        token: Token,
        ttl: u64,
        wish: Wish,
        connection: u64,
    },
    Guard {
        key: Key,
        token: Token,
    },
    Force {
        key: Key,
    },
    /// Time passes; the timer may be late.
    Advance {
        ticks: u64,
        timer: bool,
    },
    MoveWallClock(i64),
    Abandon(usize),
    Deliver(usize),
    Undeliverable(usize),
    HangUp {
        connection: u64,
        grace: u64,
    },
    Reload {
        loading: u64,
    },
    Flush(Option<u32>),
    Delete {
        key: Key,
        lazily: bool,
    },
    /// What was deleted lazily is freed.
    Free,
    Overwrite(Key),
    /// SET NX of an old client.
    SetString(Key),
    Rename(Key, Key),
    Restore(Key, Key),
    Swap,
    HoldBack(bool),
    Quarantine(u32),
    Unblock(Option<Key>),
    Limit {
        max_hold: u32,
        max_waiters: usize,
        max_holders: usize,
    },
}

/// How many owners there are.
pub const OWNERS: u8 = 5;

fn token() -> impl Strategy<Value = Token> {
    0..OWNERS
}

/// An owner; from [`OWNERS`] on, one of those who hold the key at that moment.
fn holder() -> impl Strategy<Value = Token> {
    prop_oneof![1 => token(), 2 => OWNERS..2 * OWNERS]
}

/// Some are asked for more often, so that queues grow.
fn key() -> impl Strategy<Value = Key> {
    let db = prop_oneof![8 => Just(0), 1 => Just(1)];
    (
        db,
        prop_oneof![4 => Just(0), 2 => Just(1), 1 => Just(2), 1 => Just(3)],
    )
}

fn keys() -> impl Strategy<Value = Vec<Key>> {
    let distinct = |keys: Vec<Key>| {
        let mut seen = Vec::new();
        keys.into_iter().for_each(|key| {
            if !seen.contains(&key) {
                seen.push(key)
            }
        });
        seen
    };
    prop_oneof![3 => vec(key(), 1), 2 => vec(key(), 2..4)].prop_map(distinct)
}

fn ttl() -> impl Strategy<Value = u64> {
    (1..30u64).prop_map(|ticks| ticks * TICK)
}

fn cap() -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(0), 1 => 5..40u32]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        4 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared(0)),
        3 => (1..4u32).prop_map(Mode::Shared),
    ]
}

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        8 => Just(Wish::None),
        1 => (0..100u64).prop_map(Wish::AboveLast),
        1 => (9_999_998..10_000_003u64).prop_map(Wish::AboveWall),
    ]
}

fn connection() -> impl Strategy<Value = u64> {
    0..3u64
}

fn request() -> impl Strategy<Value = Request> {
    let rare = || prop::bool::weighted(0.2);
    (
        keys(),
        token(),
        ttl(),
        mode(),
        rare(),
        cap(),
        rare(),
        connection(),
        option::weighted(0.2, any::<u8>()),
    )
        .prop_map(
            |(keys, token, ttl, mode, once, max_hold, ephemeral, connection, owner)| Request {
                keys,
                token,
                ttl,
                mode,
                once,
                fence: 0,
                max_hold,
                ephemeral,
                connection,
                owner,
            },
        )
}

fn block() -> impl Strategy<Value = Option<Option<u64>>> {
    let ticks = option::weighted(0.5, (1..60u64).prop_map(|ticks| ticks * TICK));
    option::weighted(0.7, ticks)
}

fn step() -> impl Strategy<Value = Step> {
    let acquire = (request(), wish(), block()).prop_map(|(request, wish, block)| Step::Acquire {
        request,
        wish,
        block,
    });
    let release = (keys(), holder(), any::<bool>()).prop_map(|(keys, token, all)| Step::Release {
        keys,
        token,
        all,
    });
    let extend = (key(), holder(), ttl(), wish(), connection()).prop_map(
        |(key, token, ttl, wish, connection)| Step::Extend {
            key,
            token,
            ttl,
            wish,
            connection,
        },
    );
    let advance = (0..20u64, prop::bool::weighted(0.7))
        .prop_map(|(ticks, timer)| Step::Advance { ticks, timer });
    let hang_up = (connection(), prop_oneof![Just(0), 1..5u64]).prop_map(|(connection, grace)| {
        Step::HangUp {
            connection,
            grace: grace * TICK,
        }
    });
    let client = prop_oneof![
        24 => acquire,
        12 => release,
        4 => extend,
        2 => (key(), holder()).prop_map(|(key, token)| Step::Guard { key, token }),
        1 => key().prop_map(|key| Step::Force { key }),
        8 => advance,
    ];
    let connections = prop_oneof![
        3 => any::<usize>().prop_map(Step::Abandon),
        2 => any::<usize>().prop_map(Step::Deliver),
        3 => any::<usize>().prop_map(Step::Undeliverable),
        2 => hang_up,
    ];
    let outside = prop_oneof![
        2 => (0..3u64).prop_map(|ticks| Step::Reload { loading: ticks * TICK }),
        1 => option::of(0..2u32).prop_map(Step::Flush),
        3 => (key(), any::<bool>()).prop_map(|(key, lazily)| Step::Delete { key, lazily }),
        1 => Just(Step::Free),
        1 => key().prop_map(Step::Overwrite),
        3 => key().prop_map(Step::SetString),
        3 => (key(), key()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (key(), key()).prop_map(|(from, to)| Step::Restore(from, to)),
        1 => Just(Step::Swap),
    ];
    let node = prop_oneof![
        1 => any::<bool>().prop_map(Step::HoldBack),
        2 => Just(Step::HoldBack(false)),
        1 => (1..20u32).prop_map(Step::Quarantine),
        1 => option::of(key()).prop_map(Step::Unblock),
        1 => (-10_000_000..10_000_000i64).prop_map(Step::MoveWallClock),
        1 => (cap(), 1..20usize, 2..9usize)
            .prop_map(|(max_hold, max_waiters, max_holders)| Step::Limit {
                max_hold,
                max_waiters,
                max_holders,
            }),
    ];
    prop_oneof![40 => client, 5 => connections, 2 => outside, 2 => node]
}

/// What happens to a node.
#[derive(Clone)]
pub struct Life(pub Vec<Step>);

/// A line a step.
impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .iter()
            .try_for_each(|step| write!(f, "\n    {step:?}"))
    }
}

/// A random life.
pub fn life() -> impl Strategy<Value = Life> {
    vec(step(), 1..120).prop_map(Life)
}

/// The life of a node whose owners wait for each other: nearly every request waits, and leases
/// last.
pub fn entangled_life() -> impl Strategy<Value = Life> {
    let name = || (Just(0), 0..5u8);
    let mode = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared(2))];
    let several = subsequence((0..5).map(|name| (0, name)).collect::<Vec<_>>(), 2..4);
    let keys = prop_oneof![
        3 => vec(name(), 1),
        1 => Just(vec![(0, 0), (0, 3)]),
        1 => several,
    ];
    let acquire = (request(), keys, mode).prop_map(|(request, keys, mode)| Step::Acquire {
        request: Request {
            keys,
            mode,
            ttl: 1000 * TICK,
            max_hold: 0,
            ephemeral: false,
            ..request
        },
        wish: Wish::None,
        block: Some(None),
    });
    let release = (vec(name(), 1), holder()).prop_map(|(keys, token)| Step::Release {
        keys,
        token,
        all: false,
    });
    let step = prop_oneof![
        20 => acquire,
        4 => release,
        1 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => any::<usize>().prop_map(Step::Abandon),
        1 => name().prop_map(|key| Step::Force { key }),
    ];
    vec(step, 10..60).prop_map(Life)
}
