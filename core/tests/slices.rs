//! What belongs to very many locks or holders is done in slices, and seen by everybody at once.

use std::collections::HashMap;

use redislock_core::lock::Terms;
use redislock_core::queue::WaiterId;
use redislock_core::table::{Events, Presence, Verdict};
use redislock_core::time::{Micros, Wait};
use redislock_core::token::Key;
use redislock_core::wire::put_whole;

use crate::node::{Change, Node, ROOMY, SECOND, SHARED, ephemeral, key, terms, token};

const MANY: usize = 5000;

fn numbered(n: usize) -> Key {
    key(&format!("key-{n}"))
}

/// Many owners share a lock for a second.
fn many_holders(node: &mut Node) {
    for n in 0..MANY {
        let terms = Terms {
            mode: SHARED,
            ..terms(&token(&format!("owner-{n}")), SECOND)
        };
        let verdict = node.acquire(&[key("k")], &terms, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }
    node.take();
}

#[test]
fn a_lock_whose_many_holders_have_all_ended_is_free_at_once() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    node.advance(SECOND);
    node.hold("a", "k");
    let (changes, _) = node.take();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].bytes.len() < 100, "the holders are not written");
    assert_eq!(node.table.counters.expiries, MANY as u64);
    let mut told = 0;
    while node.table.has_remains() {
        node.table.clear_remains(100);
        let output = node.table.take_output(node.now, true, Box::default());
        told += output
            .ended_before
            .iter()
            .map(|(_, times)| times)
            .sum::<u32>();
        assert!(output.touched.is_empty());
    }
    assert_eq!(told, MANY as u32);
    assert_eq!(node.table.holding_owners(), 0);
    assert!(node.holds("a", "k"));
}

#[test]
fn of_many_ended_holders_some_are_taken_off_and_the_requesters_own_is_among_them() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    let live = Terms {
        mode: SHARED,
        ..terms(&token("live"), 10 * SECOND)
    };
    node.acquire(&[key("k")], &live, Wait::No);
    node.advance(SECOND);
    node.take();
    let own = token(&format!("owner-{}", MANY - 1));
    assert_eq!(node.release(&key("k"), &own, true), 0, "it has ended");
    let (changes, _) = node.take();
    assert_eq!(changes.len(), 1);
    assert!(changes[0].events.expired < 100, "{:?}", changes[0].events);
    assert!(
        changes[0].bytes.len() < 5000,
        "only what has changed is written"
    );
    assert!(
        node.lock(&key("k"))
            .is_some_and(|lock| lock.hold(&own).is_none())
    );
}

#[test]
fn a_semaphore_that_was_full_of_holds_that_have_ended_has_room() {
    let mut node = Node::new(ROOMY);
    let semaphore = crate::node::semaphore(MANY as u32);
    for n in 0..MANY {
        let ttl = if n == 0 { 10 * SECOND } else { SECOND };
        let terms = Terms {
            mode: semaphore,
            ..terms(&token(&format!("owner-{n}")), ttl)
        };
        node.acquire(&[key("k")], &terms, Wait::No);
    }
    assert_eq!(node.ask("a", "k", semaphore, Wait::No), Verdict::Busy);
    node.advance(SECOND);
    for owner in ["a", "b", "c"] {
        let verdict = node.ask(owner, "k", semaphore, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    }
}

#[test]
fn the_holds_of_a_closed_connection_end_at_once_and_are_taken_off_in_slices() {
    let mut node = Node::new(ROOMY);
    let bound = ephemeral(&token("me"), 100 * SECOND, 7);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &bound, Wait::No);
    }
    let terms_of = |owner: &str| terms(&token(owner), SECOND);
    let both = [numbered(MANY - 1), numbered(0)];
    let waiting = node.acquire(&both, &terms_of("waiter"), Wait::Forever);
    assert!(matches!(waiting, Verdict::Waits(_)));
    node.take();
    node.hang_up(7, Micros(0));
    assert!(!node.table.has_output(), "nothing is touched yet");
    let seen = node.at(&numbered(9)).and_then(|id| node.table.as_seen(id));
    let now = node.table.lease_now(node.now.mono);
    assert!(seen.is_some_and(|lock| lock.last_end().is_some_and(|end| end <= now)));
    let verdict = node.acquire(&[numbered(MANY - 2)], &terms_of("other"), Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    node.table.close(10, node.now, &mut node.keys);
    node.apply();
    let (changes, answers) = node.take();
    assert!(changes.len() < 20, "{} changes", changes.len());
    assert_eq!(
        answers.len(),
        1,
        "the one who waited for two of them has both"
    );
    node.tick();
    assert_eq!(node.table.locks(), 3);
}

#[test]
fn a_flush_and_a_swap_look_at_no_lock_and_at_waiters_in_slices() {
    let mut node = Node::new(ROOMY);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &terms(&token("me"), SECOND), Wait::No);
    }
    for n in 0..100 {
        let owner = terms(&token(&format!("waiter-{n}")), SECOND);
        node.acquire(&[numbered(n)], &owner, Wait::Forever);
    }
    node.take();
    node.swap(0, 1);
    node.table.sweep(10, &mut node.keys);
    assert!(node.table.is_sweeping(), "a slice is not all");
    assert_eq!(node.table.locks(), MANY);
    assert_eq!(
        node.serve_all().len(),
        100,
        "their keys are free in this database"
    );
    assert_eq!(node.flush(Some(1)), SECOND, "what the last lease had to go");
    assert_eq!(node.table.locks(), 100);
    let verdict = node.acquire(
        &[Key::new(1, b"key-7")],
        &terms(&token("other"), SECOND),
        Wait::No,
    );
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
    node.free();
    assert_eq!(node.table.locks(), 101);
    assert_eq!(node.flush(None), SECOND);
    assert_eq!(node.flush(None), Micros(0), "nothing is left");
}

#[test]
fn very_many_waiters_that_can_be_served_at_once_are_served_in_slices_and_in_order() {
    let mut node = Node::new(ROOMY);
    node.hold("a", "k");
    let waiting: Vec<_> = (0..1000)
        .map(|n| node.wait_in(&format!("waiter-{n}"), "k", SHARED))
        .collect();
    assert_eq!(node.release(&key("k"), &token("a"), false), 1);
    let first = node.granted();
    assert!(first.len() < 200 && first[..] == waiting[..first.len()]);
    assert_eq!(node.ask("late", "k", SHARED, Wait::No), Verdict::Busy);
    let mut all = first.clone();
    node.serve();
    all.extend(node.granted());
    assert!(all.len() < 200, "{} are on their way", all.len());
    all.iter().for_each(|id| node.table.delivered(*id));
    all.extend(node.serve_all());
    assert_eq!(all, waiting);
    let verdict = node.ask("late", "k", SHARED, Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
}

/// Very many share a lock and wait for another one, behind some who want both for themselves.
fn wait_behind(node: &mut Node, ahead: usize, sharers: usize) -> Vec<WaiterId> {
    node.hold("holder", "k");
    let owners = || (0..sharers).map(|n| format!("sharer-{n}"));
    for owner in owners() {
        node.ask(&owner, "s", SHARED, Wait::No);
    }
    for n in 0..ahead {
        node.wait(&format!("ahead-{n}"), "ks");
    }
    let waiting = owners().map(|owner| node.wait_in(&owner, "k", SHARED));
    let waiting = waiting.collect();
    node.take();
    waiting
}

#[test]
fn very_many_who_may_go_past_the_first_waiter_are_served_in_slices_and_in_order() {
    let mut node = Node::new(ROOMY);
    let waiting = wait_behind(&mut node, 1, 1000);
    node.let_go("holder", "k");
    let mut all = node.granted();
    assert!(all.len() < 200, "{} at once", all.len());
    assert_eq!(node.ask("late", "k", SHARED, Wait::No), Verdict::Busy);
    all.iter().for_each(|id| node.table.delivered(*id));
    all.extend(node.serve_all());
    assert_eq!(all, waiting);
}

#[test]
fn who_may_go_past_very_many_is_found_out_in_slices() {
    let mut node = Node::new(ROOMY);
    let waiting = wait_behind(&mut node, 200, 300);
    let mut most = 0;
    let mut before = node.table.order_steps();
    node.let_go("holder", "k");
    let mut all = Vec::new();
    loop {
        let steps = node.table.order_steps();
        most = most.max(steps - before);
        before = steps;
        let granted = node.granted();
        if granted.is_empty() && !node.table.has_unserved() {
            break;
        }
        granted.iter().for_each(|id| node.table.delivered(*id));
        all.extend(granted);
        node.table.serve(node.now, &mut node.keys);
        node.apply();
    }
    assert_eq!(all, waiting);
    assert!(most < 2000, "{most} steps in one decision");
}

/// Forgets what is left of holds, a few at a time; how often that took.
fn forget(node: &mut Node) -> usize {
    let mut slices = 0;
    while node.table.has_remains() {
        node.table.clear_remains(100);
        slices += 1;
    }
    assert!(!node.table.has_output());
    slices
}

#[test]
fn a_change_of_roles_unties_every_hold_at_once_and_forgets_the_ties_in_slices() {
    let mut node = Node::new(ROOMY);
    let holds = |node: &Node, key: &Key| {
        let lock = node.lock(key);
        lock.is_some_and(|lock| lock.hold(&token("me")).is_some())
    };
    let by = |connection| ephemeral(&token("me"), 100 * SECOND, connection);
    for n in 0..MANY {
        node.acquire(&[numbered(n)], &by(7 + n as u64 % 3), Wait::No);
    }
    node.take();
    // Some of them are about to end; they become ordinary leases, too.
    node.hang_up(7, Micros(0));
    node.table.role_changed();
    assert!(!node.table.is_bound(8) && !node.table.is_closing());
    assert!(forget(&mut node) > MANY / 200);
    // The same connection may tie others, and does not end the earlier ones.
    node.acquire(&[key("k")], &by(8), Wait::No);
    node.acquire(&[numbered(4)], &terms(&token("me"), SECOND), Wait::No);
    node.hang_up(8, Micros(0));
    node.tick();
    assert!(holds(&node, &numbered(1)) && holds(&node, &numbered(4)));
    assert!(!holds(&node, &key("k")));
    assert_eq!(node.table.locks(), MANY);
}

#[test]
fn many_holders_whose_lock_is_forced_or_replaced_are_forgotten_in_slices() {
    let mut node = Node::new(ROOMY);
    many_holders(&mut node);
    assert_eq!(node.force(&key("k")), MANY as u64);
    node.take();
    assert_eq!(node.table.locks(), 0);
    assert!(forget(&mut node) > MANY / 200);
    assert_eq!(node.table.hold_times.total(), MANY as u64);
    assert_eq!(node.table.holding_owners(), 0);

    let mut replica = Node::new(ROOMY);
    many_holders(&mut node);
    replica.sync(&node);
    assert_eq!(replica.table.holding_owners(), MANY);
    // The whole lock, as it is written when very much of it has changed.
    let mut whole = Change {
        key: key("k"),
        presence: Presence::Kept,
        bytes: Vec::new(),
        events: Events::default(),
    };
    let (lock, now) = (node.lock(&whole.key), node.table.lease_now(node.now.mono));
    put_whole(lock.expect("a lock"), now, &mut whole.bytes);
    replica.replay(&whole);
    forget(&mut replica);
    assert_eq!(replica.table.holding_owners(), MANY, "they hold it again");
    node.force(&key("k"));
    let (changes, _) = node.take();
    replica.replay(&changes[0]);
    assert_eq!(replica.table.locks(), 0);
    assert!(forget(&mut replica) > MANY / 200);
    assert_eq!(replica.table.holding_owners(), 0);
}

/// What was remembered of the earlier hold stayed if its owner had the lock again, and was not
/// remembered for that.
#[test]
fn an_owner_that_has_the_lock_again_is_not_remembered_for_its_earlier_hold() {
    let mut node = Node::new(ROOMY);
    for connection in 1..4 {
        for n in 0..100 {
            let terms = Terms {
                mode: SHARED,
                ..ephemeral(&token(&format!("owner-{n}")), SECOND, connection)
            };
            node.acquire(&[key("k")], &terms, Wait::No);
        }
        node.advance(SECOND);
        node.hold("owner-7", "k");
        node.take();
        while node.table.has_remains() {
            node.table.clear_remains(100);
        }
        node.take();
        node.let_go("owner-7", "k");
        assert_eq!(node.table.holding_owners(), 0);
        assert!(!node.table.is_bound(connection));
    }
}

#[test]
fn waits_that_are_over_end_in_slices_of_keys() {
    let mut node = Node::new(ROOMY);
    let keys: Vec<_> = (0..100).map(numbered).collect();
    node.acquire(&keys, &terms(&token("me"), 100 * SECOND), Wait::No);
    let until = Wait::Until(node.now.mono.plus(SECOND));
    for n in 0..10 {
        node.acquire(&keys, &terms(&token(&format!("waiter-{n}")), SECOND), until);
    }
    node.advance(SECOND);
    assert!(node.table.time_out(32, node.now));
    assert_eq!(node.table.waiters(), 9, "one has left a hundred queues");
}

/// Somebody waits for many keys of an owner, and for one that stays held.
fn wait_for_many(node: &mut Node) -> Vec<Key> {
    let keys: Vec<_> = (0..1000).map(numbered).collect();
    node.acquire(&keys, &terms(&token("me"), SECOND), Wait::No);
    node.acquire(&[key("pin")], &terms(&token("other"), 9 * SECOND), Wait::No);
    let mut wanted = keys.clone();
    wanted.push(key("pin"));
    for waiter in ["waiter", "next"] {
        let waits = node.acquire(&wanted, &terms(&token(waiter), SECOND), Wait::Forever);
        assert!(matches!(waits, Verdict::Waits(_)), "{waits:?}");
    }
    node.take();
    keys
}

#[test]
fn a_waiter_for_many_keys_is_not_looked_at_whole_whenever_one_of_them_changes() {
    let mut node = Node::new(ROOMY);
    let keys = wait_for_many(&mut node);
    let before = node.table.looks();
    for key in &keys {
        assert_eq!(node.release(key, &token("me"), false), 1);
    }
    let looks = node.table.looks() - before;
    assert!(looks < 10 * keys.len() as u64, "{looks} looks");
    node.release(&key("pin"), &token("other"), false);
    assert_eq!(node.granted().len(), 1);

    // All at once, by the end of their leases.
    let mut node = Node::new(ROOMY);
    wait_for_many(&mut node);
    node.advance(SECOND);
    loop {
        let before = node.table.looks();
        let more = node.table.expire(32, node.now, &mut node.keys);
        node.apply();
        let looks = node.table.looks() - before;
        assert!(looks < 200, "{looks} looks in one batch");
        if !more {
            break;
        }
    }
}

#[test]
fn no_more_grants_are_on_their_way_than_can_be_taken_back_at_once() {
    let mut node = Node::new(ROOMY);
    let owners = || (0..500).map(|n| format!("waiter-{n}"));
    for (n, owner) in owners().enumerate() {
        node.acquire(&[numbered(n)], &terms(&token("me"), SECOND), Wait::No);
        let waits = terms(&token(&owner), SECOND);
        node.acquire(&[numbered(n)], &waits, Wait::Forever);
    }
    for n in 0..500 {
        node.release(&numbered(n), &token("me"), false);
    }
    let first = node.granted();
    assert!(first.len() < 100, "{} at once", first.len());
    // Who is not served yet keeps its place.
    let late = node.acquire(&[numbered(499)], &terms(&token("late"), SECOND), Wait::No);
    assert_eq!(late, Verdict::Busy);
    first.iter().for_each(|id| node.undeliverable(*id));
    let next = node.granted();
    assert!(
        !next.is_empty() && next.len() < 100,
        "{} at once",
        next.len()
    );
    next.iter().for_each(|id| node.table.delivered(*id));
    assert_eq!(first.len() + next.len() + node.serve_all().len(), 500);
}

#[test]
fn a_lock_whose_holders_have_all_closed_is_free_at_once_however_many_they_are() {
    let mut node = Node::new(ROOMY);
    for n in 0..200 {
        let terms = Terms {
            mode: SHARED,
            ..ephemeral(&token(&format!("owner-{n}")), 100 * SECOND, n + 1)
        };
        node.acquire(&[key("k")], &terms, Wait::No);
    }
    (0..200).for_each(|n| node.hang_up(n + 1, Micros(0)));
    let verdict = node.acquire(&[key("k")], &terms(&token("me"), SECOND), Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
}

#[test]
fn a_lock_whose_key_was_removed_is_not_counted_before_it_is_forgotten() {
    let mut node = Node::new(ROOMY);
    node.hold("me", "ab");
    node.remove_lazily(&key("a"));
    assert_eq!(node.table.locks(), 1);
    node.free();
    assert_eq!(node.table.locks(), 1);
    assert_eq!(node.flush(None), 10 * SECOND);
    assert_eq!(node.table.locks(), 0);
}

#[test]
fn a_decision_may_change_more_locks_than_two_bytes_can_number() {
    let keys: Vec<_> = (0..66_000).map(numbered).collect();
    let mut node = Node::new(ROOMY);
    node.acquire(&keys, &terms(&token("a"), SECOND), Wait::No);
    node.take();
    node.advance(SECOND);
    // Each lock is touched when its lease is found to have ended, and again when it is granted.
    node.acquire(&keys, &terms(&token("b"), SECOND), Wait::No);
    let (changes, _) = node.take();
    assert!(changes.iter().map(|change| &change.key).eq(&keys));
    let both = Events {
        expired: 1,
        acquired: 1,
        ..Events::default()
    };
    assert!(changes.iter().all(|change| change.events == both));
}

/// Each grant lets all requests of its owner be looked at again. One decision granted 32 locks and
/// took 29 ms.
#[test]
fn grants_to_an_owner_with_very_many_requests_are_made_in_slices() {
    let mut node = Node::new(ROOMY);
    let keys: Vec<_> = (0..MANY).map(numbered).collect();
    let ask = |node: &mut Node, owner: &str, key: &Key, wait| {
        let terms = terms(&token(owner), 10 * SECOND);
        node.acquire(std::slice::from_ref(key), &terms, wait)
    };
    for key in &keys {
        ask(&mut node, "holder", key, Wait::No);
        ask(&mut node, "many", key, Wait::Forever);
        ask(&mut node, "behind", key, Wait::Forever);
    }
    node.release_each(&keys[..1000], &token("holder"), false);
    let granted = node.granted().len();
    assert!((1..=2).contains(&granted), "{granted} in one decision");
    while !node.serve_all().is_empty() {}
    let is_granted = |key: &&Key| {
        let lock = node.lock(key);
        lock.is_some_and(|lock| lock.hold(&token("many")).is_some())
    };
    assert_eq!(keys.iter().filter(is_granted).count(), 1000);
}

/// Requests wait for very many locks, and each grant makes its lock due again. The locks whose
/// names come last got nothing.
#[test]
fn locks_are_served_in_turn_whatever_their_names() {
    let mut node = Node::new(ROOMY);
    let keys: Vec<_> = (0..200).map(numbered).collect();
    let ask = |node: &mut Node, owner: &str, key: &Key, wait| {
        let terms = terms(&token(owner), 1000 * SECOND);
        node.acquire(std::slice::from_ref(key), &terms, wait)
    };
    let mut owners = HashMap::new();
    for (n, key) in keys.iter().enumerate() {
        ask(&mut node, "holder", key, Wait::No);
        for which in 0..40 {
            let owner = format!("{which}-{n}");
            let Verdict::Waits(id) = ask(&mut node, &owner, key, Wait::Forever) else {
                panic!("{owner} does not wait");
            };
            owners.insert(id, (owner, n));
        }
    }
    node.release_each(&keys, &token("holder"), false);
    let mut grants = vec![0; keys.len()];
    while grants.iter().sum::<usize>() < 10 * keys.len() {
        // Each owner releases its lock as soon as it has it.
        for id in node.granted() {
            let (owner, n) = owners.remove(&id).expect("a waiter");
            grants[n] += 1;
            node.table.delivered(id);
            node.release(&keys[n], &token(&owner), false);
        }
        node.serve();
    }
    let (least, most) = (grants.iter().min(), grants.iter().max());
    assert!(least >= Some(&8) && most <= Some(&12), "{least:?} {most:?}");
}

/// Names grow with time, and each grant frees a lock with a later name. `config` comes before all
/// of them, and `zone` after them.
#[test]
fn locks_are_served_in_turn_although_new_names_come_all_the_time() {
    const CHAINS: usize = 200;
    let mut node = Node::new(ROOMY);
    let ask = |node: &mut Node, owner: &str, name: &str, wait| {
        let terms = terms(&token(owner), 1000 * SECOND);
        node.acquire(&[key(name)], &terms, wait)
    };
    let lock = |n: usize| format!("job-{n:06}");
    for n in 0..40 * CHAINS {
        ask(&mut node, "holder", &lock(n), Wait::No);
        ask(&mut node, &format!("owner-{n}"), &lock(n), Wait::Forever);
    }
    for name in ["config", "zone"] {
        ask(&mut node, "holder", name, Wait::No);
        ask(&mut node, "reader", name, Wait::Forever);
    }
    let release = |node: &mut Node, name: &str| node.release(&key(name), &token("holder"), false);
    (0..CHAINS).for_each(|n| _ = release(&mut node, &lock(n)));
    for name in ["config", "zone"] {
        release(&mut node, name);
    }
    let mut next = CHAINS;
    for _ in 0..CHAINS {
        for id in node.granted() {
            node.table.delivered(id);
            release(&mut node, &lock(next));
            next += 1;
        }
        node.serve();
        if node.holds("reader", "config") && node.holds("reader", "zone") {
            break;
        }
    }
    assert!(next < 4 * CHAINS, "{next} locks came first");
}
