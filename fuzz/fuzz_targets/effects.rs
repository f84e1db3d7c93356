//! Any bytes as effects, as LOCK._APPLY takes them from the master and the AOF, between requests
//! of clients: each is refused, or leaves a table that saves, loads and serves.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../core/tests/node/mod.rs"]
mod node;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use node::{Node, ROOMY, SHARED, Value, key, semaphore, terms, token};
use redislock_core::lock::{Mode, Terms};
use redislock_core::table::Loaded;
use redislock_core::time::{Micros, Wait};
use redislock_core::token::{Key, Token};
use redislock_core::wire::Reader;

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Effect {
        bytes: &'a [u8],
        first: u8,
        keys: u8,
    },
    Acquire {
        key: u8,
        owner: u8,
        mode: u8,
        waits: bool,
    },
    Release {
        key: u8,
        owner: u8,
        all: bool,
    },
    Extend {
        key: u8,
        owner: u8,
        fence: Option<u32>,
    },
    Remove {
        key: u8,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Pass {
        millis: u16,
    },
    Reload,
}

fn named(at: u8) -> Key {
    key(["a", "b", "c"][usize::from(at) % 3])
}

fn owner(at: u8) -> Token {
    token(["x", "y", "z"][usize::from(at) % 3])
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let mut node = Node::new(ROOMY);
    for step in &steps {
        take(&mut node, step);
        node.tick();
    }
    let highest = node.keys.0.keys().filter_map(|key| node.lock(key));
    let highest = highest.flat_map(|lock| lock.holds().map(|hold| hold.fence).collect::<Vec<_>>());
    assert!(
        highest.max().unwrap_or(0) <= node.table.fence(),
        "a fence above the counter"
    );
    node.reload(Micros(1000));
    for at in 0..3 {
        node.force(&named(at));
    }
    node.tick();
    for at in 0..3 {
        node.force(&named(at));
    }
    assert_eq!(node.table.waiters(), 0, "somebody waits for a free lock");
});

fn take(node: &mut Node, step: &Step<'_>) {
    match step {
        Step::Effect { bytes, first, keys } => apply(node, bytes, *first, *keys % 3),
        Step::Acquire {
            key,
            owner: who,
            mode,
            waits,
        } => {
            let mode = [Mode::Exclusive, SHARED, semaphore(2)][usize::from(*mode) % 3];
            let terms = Terms {
                mode,
                ..terms(&owner(*who), node::SECOND)
            };
            let wait = if *waits { Wait::Forever } else { Wait::No };
            node.acquire(&[named(*key)], &terms, wait);
        }
        Step::Release {
            key,
            owner: who,
            all,
        } => {
            node.release(&named(*key), &owner(*who), *all);
        }
        Step::Extend {
            key,
            owner: who,
            fence,
        } => {
            let fence = fence.map(|ahead| node.now.wall.0 + u64::from(ahead % 20_000_000));
            node.extend(&named(*key), &owner(*who), node::SECOND, fence, None);
        }
        Step::Remove { key } => node.remove(&named(*key)),
        Step::Rename { from, to } if from % 3 != to % 3 => node.rename(&named(*from), &named(*to)),
        Step::Rename { .. } => {}
        Step::Pass { millis } => node.advance(Micros(u64::from(*millis) * 1000)),
        Step::Reload => node.reload(Micros(1000)),
    }
}

/// Reads and applies an effect as the module does: all of it, or nothing.
fn apply(node: &mut Node, bytes: &[u8], first: u8, keys: u8) {
    let mut reader = Reader(bytes);
    let Ok(header) = reader.effect_header() else {
        return;
    };
    let now = node.table.lease_now(node.now.mono);
    let changes: Result<Vec<_>, _> = (0..keys).map(|_| reader.change(now)).collect();
    let Some(changes) = changes.ok().filter(|_| reader.0.is_empty()) else {
        return;
    };
    node.table.take_in(header);
    for (at, change) in changes.into_iter().enumerate() {
        let at = named(first.wrapping_add(at as u8));
        match node.table.apply(at.clone(), node.at(&at), change) {
            Loaded::New(id) => {
                node.keys.0.insert(at, Value::Lock(id));
            }
            Loaded::Kept => {}
            Loaded::Gone => {
                node.keys.0.remove(&at);
            }
        }
    }
}
