//! Very many waiters are served in slices, in the order of each queue, and every lock in its turn.

use std::collections::HashMap;
use std::slice::from_ref;

use redislock_core::queue::WaiterId;
use redislock_core::table::Verdict;
use redislock_core::time::Wait;
use redislock_core::token::Key;

use crate::node::{Node, ROOMY, SECOND, SHARED, key, numbered, terms, token};

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

/// While a child of the server saves, one waiter may take as long as many others.
#[test]
fn a_step_that_may_be_small_serves_few_waiters() {
    let mut node = Node::new(ROOMY);
    node.hold("a", "k");
    let waiting: Vec<_> = (0..10)
        .map(|n| node.wait_in(&format!("waiter-{n}"), "k", SHARED))
        .collect();
    node.advance(10 * SECOND);
    assert!(!node.table.expire(1, node.now, &mut node.keys));
    node.apply();
    assert_eq!(node.granted(), waiting[..1]);
    node.table.serve_some(2, node.now, &mut node.keys);
    node.apply();
    assert!((1..=2).contains(&node.granted().len()));
    assert!(node.table.has_more_to_serve(node.now));
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

/// Each grant lets all requests of its owner be looked at again. One decision granted 32 locks and
/// took 29 ms.
#[test]
fn grants_to_an_owner_with_very_many_requests_are_made_in_slices() {
    let mut node = Node::new(ROOMY);
    let keys: Vec<_> = (0..5000).map(numbered).collect();
    for key in &keys {
        node.request("holder", from_ref(key), Wait::No);
        node.request("many", from_ref(key), Wait::Forever);
        node.request("behind", from_ref(key), Wait::Forever);
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
    let mut owners = HashMap::new();
    for (n, key) in keys.iter().enumerate() {
        node.request("holder", from_ref(key), Wait::No);
        for which in 0..40 {
            let owner = format!("{which}-{n}");
            let Verdict::Waits(id) = node.request(&owner, from_ref(key), Wait::Forever) else {
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
    let job = |n: usize| key(&format!("job-{n:06}"));
    for n in 0..40 * CHAINS {
        node.request("holder", &[job(n)], Wait::No);
        node.request(&format!("owner-{n}"), &[job(n)], Wait::Forever);
    }
    let ends = [key("config"), key("zone")];
    for end in &ends {
        node.request("holder", from_ref(end), Wait::No);
        node.request("reader", from_ref(end), Wait::Forever);
    }
    for freed in (0..CHAINS).map(job).chain(ends) {
        node.release(&freed, &token("holder"), false);
    }
    let mut next = CHAINS;
    for _ in 0..CHAINS {
        for id in node.granted() {
            node.table.delivered(id);
            node.release(&job(next), &token("holder"), false);
            next += 1;
        }
        node.serve();
        if node.holds("reader", "config") && node.holds("reader", "zone") {
            assert!(next < 4 * CHAINS, "{next} locks came first");
            return;
        }
    }
    panic!("not served, although {next} other locks were");
}
