//! Any bytes as the saved form of a lock: they are refused, or they are a lock that is saved as
//! the same bytes again, and that every request can be made of.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../core/tests/node/mod.rs"]
mod node;
#[path = "../share.rs"]
mod share;

use libfuzzer_sys::fuzz_target;
use node::{Node, ROOMY, SECOND, key, token};
use redislock_core::payload::Origin;
use redislock_core::time::{LeaseTime, Millis, Wait};
use redislock_core::wire;
use share::Share;

/// One in 48 of the first 20,000, more later.
static LOADED: Share = Share::new("saved forms loaded", 200);
/// One in 78 of them, more later.
static CLIENTS: Share = Share::new("saved forms accepted from a client", 200);

fuzz_target!(|bytes: &[u8]| {
    let now = LeaseTime(1 << 40);
    let loaded = wire::load(bytes, now);
    LOADED.count(loaded.is_ok());
    if let Ok(lock) = loaded {
        assert!(!lock.is_free(), "a saved lock has a holder");
        let mut saved = Vec::new();
        wire::save(&lock, now, &mut saved);
        let again = wire::load(&saved, now).expect("what was saved can be loaded");
        let (first, second) = wire::strings(&saved);
        if wire::is_first_of_two(first) {
            let joined = wire::join(first, second).expect("what was cut can be joined");
            assert_eq!(saved, joined);
        }
        let mut twice = Vec::new();
        wire::save(&again, now, &mut twice);
        assert_eq!(saved, twice, "saving is stable");
    }
    use_it(bytes, Origin::Trusted);
    use_it(bytes, Origin::MasterOrClient);
    let client = |longest| Origin::Client {
        longest_lease: Some(Millis(longest)),
    };
    use_it(bytes, client(1000));
    CLIENTS.count(use_it(bytes, client(86_400_000)));
});

/// Brings a lock in, and makes every kind of request of it. Returns whether it was accepted.
fn use_it(bytes: &[u8], origin: Origin) -> bool {
    let mut node = Node::new(ROOMY);
    let k = key("k");
    let before = node.table.fence();
    let Ok(id) = node
        .table
        .restore(k.db(), k.name(), bytes, origin, node.now)
    else {
        assert_eq!(node.table.locks(), 0, "what is refused leaves nothing");
        assert_eq!(node.table.fence(), before, "nor does it move the counter");
        return false;
    };
    node.keys.0.insert(k.clone(), node::Value::Lock(id));
    let highest = node.lock(&k).map_or(0, |lock| {
        lock.holds().map(|hold| hold.fence).max().unwrap_or(0)
    });
    assert!(
        node.table.fence() >= highest,
        "the counter is above every fence"
    );
    let holders: Vec<_> = node.lock(&k).map_or_else(Vec::new, |lock| {
        lock.holds()
            .take(3)
            .map(|hold| hold.token.clone())
            .collect()
    });
    for holder in &holders {
        node.extend(&k, holder, SECOND, None, None);
        node.acquire(
            std::slice::from_ref(&k),
            &node::terms(holder, SECOND),
            Wait::No,
        );
        node.guards(&k, holder).expect("no quarantine");
    }
    node.acquire(
        std::slice::from_ref(&k),
        &node::terms(&token("new"), SECOND),
        Wait::Forever,
    );
    if let Some(dump) = node.dump(&k) {
        node.restore(&k, &dump);
    }
    for holder in &holders {
        node.release(&k, holder, true);
    }
    node.force(&k);
    node.tick();
    node.release(&k, &token("new"), true);
    node.force(&k);
    assert_eq!(
        (node.table.locks(), node.table.waiters()),
        (0, 0),
        "nothing is left"
    );
    true
}
