//! Any bytes as effects, and effects of a master with some bytes changed, as LOCK._APPLY takes them
//! from the master and the AOF, between requests of clients: each is refused, or leaves a table
//! that saves, loads and serves. A replica that gets the effects unchanged refuses none, and is
//! equal to the master.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../core/tests/node/mod.rs"]
mod node;
#[path = "../share.rs"]
mod share;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use node::{Node, ROOMY, SHARED, Value, key, semaphore, terms, token};
use redislock_core::lock::{Mode, Terms};
use redislock_core::table::Loaded;
use redislock_core::time::{Micros, Millis, Wait};
use redislock_core::token::{Key, Token};
use redislock_core::wire::{Header, Reader, begin_effect};
use share::Share;

/// One in 23 of the first 10,000, more later.
static CHANGED: Share = Share::new("inputs with an effect of no master that changed a lock", 50);

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Effect {
        bytes: &'a [u8],
        first: u8,
        keys: u8,
    },
    /// A master serves a request, and its effect arrives with some bytes changed.
    Altered {
        request: Request,
        edits: Vec<(u8, u8)>,
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

#[derive(Arbitrary, Debug)]
enum Request {
    Acquire { key: u8, owner: u8, mode: u8 },
    Release { key: u8, owner: u8 },
    Force { key: u8 },
}

fn named(at: u8) -> Key {
    key(["a", "b", "c"][usize::from(at) % 3])
}

fn owner(at: u8) -> Token {
    token(["x", "y", "z"][usize::from(at) % 3])
}

/// A master, and the replica that gets exactly its effects.
struct Pair {
    master: Node,
    replica: Node,
}

fuzz_target!(|steps: Vec<Step<'_>>| {
    let (mut node, master, replica) = (Node::new(ROOMY), Node::new(ROOMY), Node::new(ROOMY));
    let mut pair = Pair { master, replica };
    let mut changed = false;
    for step in &steps {
        changed |= take(&mut node, &mut pair, step);
        node.tick();
    }
    CHANGED.count(changed);
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

/// Returns whether an effect that no master has sent changed a lock.
fn take(node: &mut Node, pair: &mut Pair, step: &Step<'_>) -> bool {
    match step {
        Step::Effect { bytes, first, keys } => {
            let applied = apply(node, bytes, *first, *keys % 3);
            return applied.is_some_and(|applied| applied.changed);
        }
        Step::Altered { request, edits } => {
            let first = serve(&mut pair.master, request);
            let Some((header, change)) = pair.replicate().into_iter().next() else {
                return false;
            };
            let mut effect = [&header[..], &change].concat();
            for (place, bits) in edits {
                let place = usize::from(*place) % effect.len();
                effect[place] ^= bits;
            }
            let applied = apply(node, &effect, first, 1);
            // With another header only, the change of the lock is still that of a master.
            return !effect.ends_with(&change) && applied.is_some_and(|applied| applied.changed);
        }
        Step::Acquire {
            key,
            owner: who,
            mode,
            waits,
        } => {
            let wait = if *waits { Wait::Forever } else { Wait::No };
            node.acquire(&[named(*key)], &terms_of(*who, *mode), wait);
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
        Step::Pass { millis } => {
            let span = Micros(u64::from(*millis) * 1000);
            for node in [node, &mut pair.master, &mut pair.replica] {
                node.advance(span);
            }
            pair.master.tick();
            pair.replicate();
        }
        Step::Reload => node.reload(Micros(1000)),
    }
    false
}

/// What a client asks for.
fn terms_of(who: u8, mode: u8) -> Terms {
    let mode = [Mode::Exclusive, SHARED, semaphore(2)][usize::from(mode) % 3];
    Terms {
        mode,
        ..terms(&owner(who), node::SECOND)
    }
}

impl Pair {
    /// The replica gets what the master has done, and is equal to it. Returns the headers and the
    /// changes.
    fn replicate(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let header = Header {
            fence: self.master.table.fence(),
            quarantine: Millis(0),
        };
        let mut begin = Vec::new();
        begin_effect(header, &mut begin);
        let (changes, _) = self.master.take();
        for change in &changes {
            let effect = [&begin[..], &change.bytes].concat();
            let at = (0..3).find(|at| named(*at) == change.key);
            let applied = apply(&mut self.replica, &effect, at.expect("a key"), 1);
            let is_refused = applied.is_none_or(|applied| applied.refused);
            assert!(!is_refused, "what a master sends is refused");
        }
        for at in (0..3).map(named) {
            assert_eq!(self.replica.dump(&at), self.master.dump(&at), "at {at:?}");
        }
        assert_eq!(self.replica.table.fence(), self.master.table.fence());
        let changes = changes.into_iter().map(|change| change.bytes);
        changes.map(|change| (begin.clone(), change)).collect()
    }
}

/// A master serves a request. Returns its key.
fn serve(master: &mut Node, request: &Request) -> u8 {
    match request {
        Request::Acquire {
            key,
            owner: who,
            mode,
        } => {
            master.acquire(&[named(*key)], &terms_of(*who, *mode), Wait::No);
            *key
        }
        Request::Release { key, owner: who } => {
            master.release(&named(*key), &owner(*who), false);
            *key
        }
        Request::Force { key } => {
            master.force(&named(*key));
            *key
        }
    }
}

/// What came of an effect.
struct Applied {
    /// A lock is another one afterwards.
    changed: bool,
    /// A change of a lock was refused.
    refused: bool,
}

/// Reads and applies an effect as the module does: all of it, or nothing. None if it cannot be
/// read.
fn apply(node: &mut Node, bytes: &[u8], first: u8, keys: u8) -> Option<Applied> {
    let mut reader = Reader(bytes);
    let header = reader.effect_header().ok()?;
    let now = node.table.lease_now(node.now.mono);
    let changes: Result<Vec<_>, _> = (0..keys).map(|_| reader.change(now)).collect();
    let changes = changes.ok().filter(|_| reader.0.is_empty())?;
    node.table.take_in(header);
    let (mut changed, mut refused) = (false, false);
    for (at, change) in changes.into_iter().enumerate() {
        let at = named(first.wrapping_add(at as u8));
        let before = node.dump(&at);
        match node.table.apply(at.clone(), node.at(&at), change) {
            Loaded::New(id) => {
                node.keys.0.insert(at.clone(), Value::Lock(id));
            }
            Loaded::Kept => {}
            Loaded::Gone => {
                node.keys.0.remove(&at);
            }
            Loaded::Refused => refused = true,
        }
        changed |= node.dump(&at) != before;
    }
    Some(Applied { changed, refused })
}
