//! Deadlocks that arise while all their owners already wait: something is released, ends, is
//! granted or is renamed. One of the waits is refused then.

use redislock_core::lock::{Mode, Terms};
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Denial, Verdict};
use redislock_core::time::Wait;

use crate::node::{Node, ROOMY, SECOND, SHARED, key, numbered, semaphore, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

/// The waiters that got DEADLOCK since the last call, and how many others were granted.
fn refused(node: &mut Node) -> (Vec<WaiterId>, usize) {
    node.serve();
    let (_, answers) = node.take();
    let granted = answers.iter();
    let granted = granted.filter(|(_, answer)| matches!(answer, Answer::Granted(_)));
    let granted = granted.count();
    let deadlock = |(id, answer): (WaiterId, Answer)| {
        (answer == Answer::Denied(Denial::Deadlock)).then_some(id)
    };
    (answers.into_iter().filter_map(deadlock).collect(), granted)
}

/// w, o and y wait. o holds a place of p, which is full, so it may overtake w in the queue of q; w
/// waits for y, and y for o. Without that right, they wait for each other.
fn wait_beside(node: &mut Node, full: Mode) -> [WaiterId; 3] {
    for (owner, name) in [("o", "e"), ("y", "r"), ("z", "q")] {
        node.hold(owner, name);
    }
    let w = node.wait_in("w", "pqr", full);
    let o = node.wait_in("o", "q", full);
    let y = node.wait("y", "e");
    [w, o, y]
}

fn full_semaphore() -> (Node, [WaiterId; 3]) {
    let mut node = node();
    for owner in ["o", "x"] {
        node.ask(owner, "p", semaphore(2), Wait::No);
    }
    let waiters = wait_beside(&mut node, semaphore(2));
    (node, waiters)
}

/// w holds c and waits behind h, v waits for c and behind w: no cycle.
fn waits_without_a_cycle() -> Node {
    let mut node = node();
    node.hold("h", "ab");
    node.hold("w", "c");
    node.wait("w", "ab");
    node.wait("v", "bc");
    node
}

#[test]
fn a_semaphore_that_is_no_longer_full_leaves_no_deadlock() {
    let (mut node, [w, o, y]) = full_semaphore();
    node.let_go("x", "p");
    let (found, _) = refused(&mut node);
    assert_eq!(
        found,
        [o],
        "the owner that may no longer overtake the waiter ahead"
    );
    node.let_go("z", "q");
    node.let_go("o", "e");
    node.let_go("y", "e");
    node.let_go("y", "r");
    assert_eq!(node.serve_all(), [y, w]);
    assert_eq!(node.table.waiters(), 0);
    assert_eq!(node.table.counters.deadlocks, 1);
}

#[test]
fn a_place_of_a_semaphore_that_is_forced_free_or_removed_leaves_no_deadlock() {
    for removed in [false, true] {
        let (mut node, [_, o, _]) = full_semaphore();
        if removed {
            node.remove(&key("p"));
        } else {
            node.force(&key("p"));
        }
        assert_eq!(refused(&mut node).0, [o]);
    }
}

#[test]
fn a_lease_on_a_semaphore_that_ends_leaves_no_deadlock() {
    let mut node = node();
    let short = Terms {
        mode: semaphore(2),
        ..terms(&token("x"), SECOND)
    };
    node.acquire(&[key("p")], &short, Wait::No);
    node.ask("o", "p", semaphore(2), Wait::No);
    let [_, o, _] = wait_beside(&mut node, semaphore(2));
    node.advance(2 * SECOND);
    node.tick();
    assert_eq!(refused(&mut node).0, [o]);
}

#[test]
fn who_no_longer_holds_what_those_ahead_wait_for_is_not_left_in_a_deadlock() {
    let mut node = node();
    for (owner, name) in [("a", "h"), ("b", "k"), ("b", "y"), ("z", "x")] {
        node.hold(owner, name);
    }
    node.wait("a", "xk");
    // b may overtake a, which waits for k, until it releases k.
    node.wait("b", "x");
    let second = node.wait("a", "y");
    node.let_go("b", "k");
    assert_eq!(
        refused(&mut node),
        (vec![], 0),
        "a can acquire x and k, and continue"
    );
    node.let_go("z", "x");
    assert_eq!(refused(&mut node), (vec![second], 1));
}

/// Nobody waits for a lock of the owner whose lease ends, only behind its place in a queue.
#[test]
fn a_deadlock_through_places_in_a_queue_alone_is_found() {
    let mut node = node();
    let short = terms(&token("o"), SECOND);
    node.acquire(&[key("k")], &short, Wait::No);
    node.hold("u", "r");
    node.hold("z", "x");
    node.wait("w", "xrk");
    let o = node.wait("o", "x");
    // u may overtake w, but not o; o may overtake w until its lease ends.
    let u = node.wait("u", "x");
    node.advance(2 * SECOND);
    node.tick();
    assert_eq!(refused(&mut node).0, [o]);
    node.let_go("z", "x");
    assert_eq!(node.granted(), [u]);
}

#[test]
fn an_owner_that_is_granted_what_the_holder_of_its_other_wish_waits_for_is_told() {
    let mut node = node();
    node.hold("z", "x");
    node.hold("u", "y");
    node.wait("o", "x");
    node.wait("u", "x");
    // o holds nothing yet, so this is no deadlock.
    let second = node.wait("o", "y");
    node.let_go("z", "x");
    assert_eq!(refused(&mut node), (vec![second], 1));
}

#[test]
fn a_lock_that_is_renamed_leaves_no_deadlock() {
    let mut node = node();
    for (owner, name) in [("a", "k"), ("x", "l"), ("b", "m")] {
        node.hold(owner, name);
    }
    node.wait("a", "l");
    let b = node.wait("b", "k");
    node.rename(&key("m"), &key("l"));
    assert_eq!(refused(&mut node).0, [b]);
    assert_eq!(node.table.waiters(), 1);
}

/// An owner acquires and releases very many locks again and again. A request that waits for all of
/// them has to be checked each time, and some queue is always left to be served.
#[test]
fn a_deadlock_is_found_although_very_many_queues_change_all_the_time() {
    let mut node = node();
    let locks: Vec<_> = (0..300).map(numbered).collect();
    node.hold("busy", "h");
    let all: Vec<_> = locks.iter().cloned().chain([key("h")]).collect();
    node.request("waiter", &all, Wait::Forever);
    for (owner, name) in [("a", "k"), ("x", "l"), ("b", "m")] {
        node.hold(owner, name);
    }
    node.wait("a", "l");
    let b = node.wait("b", "k");
    for round in 0..100 {
        node.request("busy", &locks, Wait::No);
        node.release_each(&locks, &token("busy"), false);
        assert!(node.table.has_unserved(), "it has a quiet moment");
        if round == 1 {
            node.rename(&key("m"), &key("l"));
        }
        if let [(id, Answer::Denied(Denial::Deadlock))] = node.take().1[..] {
            return assert_eq!(id, b);
        }
    }
    panic!("the deadlock was not found");
}

/// x waits behind the deadlock, and is a suspect for the same reason as o.
#[test]
fn who_waits_behind_a_deadlock_is_not_refused_for_it() {
    let (mut node, [_, o, _]) = full_semaphore();
    node.wait_in("x", "q", semaphore(2));
    node.let_go("x", "p");
    assert_eq!(refused(&mut node).0, [o]);
    assert_eq!(node.table.waiters(), 3);
}

/// All of them share a semaphore, so all are suspects when one releases its place.
#[test]
fn very_many_behind_a_deadlock_are_not_refused_for_it() {
    const BEHIND: u32 = 100;
    let (mut node, full) = (node(), semaphore(2 + BEHIND));
    let behind = || (0..BEHIND).map(|n| format!("behind-{n}"));
    for owner in behind().chain(["o".to_owned(), "x".to_owned()]) {
        node.ask(&owner, "p", full, Wait::No);
    }
    let [_, o, _] = wait_beside(&mut node, full);
    for owner in behind() {
        node.wait_in(&owner, "q", full);
    }
    node.let_go("x", "p");
    assert_eq!(refused(&mut node).0, [o]);
}

/// A new hold for which nobody waits blocks nobody.
#[test]
fn an_owner_that_waits_pays_nothing_for_a_lock_that_nobody_else_wants() {
    let mut node = waits_without_a_cycle();
    let steps = node.table.deadlock_steps();
    let looks = node.table.looks();
    node.hold("w", "d");
    node.hold("w", "d");
    node.let_go("w", "d");
    node.serve();
    assert_eq!(node.table.deadlock_steps(), steps);
    assert_eq!(node.table.looks(), looks);
}

/// No waiter holds anything: each depends only on waiters that came earlier, which is no cycle.
#[test]
fn there_is_no_search_if_nobody_who_waits_holds_what_others_wait_for() {
    let mut node = waits_without_a_cycle();
    let steps = node.table.deadlock_steps();
    node.let_go("w", "c");
    node.serve();
    assert_eq!(node.table.deadlock_steps(), steps);
}

#[test]
fn who_releases_while_others_wait_for_several_keys_pays_nothing_if_nobody_can_be_stuck() {
    let mut node = node();
    node.hold("h", "a");
    node.hold("h", "b");
    node.wait("w", "ab");
    let before = node.table.deadlock_steps();
    node.let_go("h", "a");
    node.let_go("h", "b");
    assert_eq!(node.granted().len(), 1);
    assert_eq!(node.table.deadlock_steps(), before);
    assert_eq!(node.ask("h", "a", Mode::Exclusive, Wait::No), Verdict::Busy);
}

/// As `Node::ask`, for owners and keys with longer names.
fn acquire(node: &mut Node, owner: &str, keys: &[&str], mode: Mode, wait: Wait) -> Verdict {
    let keys: Vec<_> = keys.iter().map(|name| key(name)).collect();
    let terms = Terms {
        mode,
        ..terms(&token(owner), 10 * SECOND)
    };
    node.acquire(&keys, &terms, wait)
}

#[track_caller]
fn wait_for(node: &mut Node, owner: &str, keys: &[&str]) {
    let verdict = acquire(node, owner, keys, Mode::Exclusive, Wait::Forever);
    assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
}

/// Very many readers may each overtake as many waiters, which want what the readers share: the
/// readers are compared with them once, as a group, and nobody is refused.
#[test]
fn very_many_who_may_go_past_very_many_others_are_not_refused() {
    const MANY: usize = 500;
    let mut node = node();
    acquire(&mut node, "holder", &["busy"], Mode::Exclusive, Wait::No);
    for n in 0..MANY {
        let reader = format!("reader-{n}");
        acquire(&mut node, &reader, &["to be shared"], SHARED, Wait::No);
    }
    for n in 0..MANY {
        let own = format!("key-{n}");
        wait_for(&mut node, &format!("ahead-{n}"), &["busy", "shared", &own]);
    }
    for n in 0..MANY {
        wait_for(&mut node, &format!("reader-{n}"), &["busy"]);
    }
    node.rename(&key("to be shared"), &key("shared"));
    let before = node.table.order_steps();
    assert_eq!(refused(&mut node), (vec![], 0));
    let steps = node.table.order_steps() - before;
    assert!(steps < 20 * MANY as u64, "{steps} comparisons");
}

/// Very many readers wait for one key each, and nobody may overtake them. What happens after them
/// is found without comparing each of them with all others.
#[test]
fn very_many_readers_in_a_queue_lead_to_no_deadlock_that_is_none() {
    const MANY: usize = 1000;
    let mut node = node();
    for n in 0..MANY {
        acquire(&mut node, &format!("reader-{n}"), &["r"], SHARED, Wait::No);
    }
    for (owner, name) in [("z", "x"), ("z", "y"), ("p", "q"), ("s", "k")] {
        node.hold(owner, name);
    }
    wait_for(&mut node, "writer", &["r"]);
    for n in 0..MANY {
        wait_for(&mut node, &format!("reader-{n}"), &["x"]);
    }
    wait_for(&mut node, "b", &["x", "y", "r"]);
    // p may overtake m, and then m gets what it waits for.
    wait_for(&mut node, "m", &["y", "q"]);
    wait_for(&mut node, "p", &["y"]);
    wait_for(&mut node, "v", &["k"]);
    wait_for(&mut node, "s", &["y"]);
    let before = (node.table.deadlock_steps(), node.table.order_steps());
    node.let_go("s", "k");
    assert_eq!(refused(&mut node), (vec![], 1), "v has k");
    let steps = node.table.deadlock_steps() - before.0;
    assert!(steps > MANY as u64, "all were searched");
    assert!(steps < 20 * MANY as u64, "{steps} steps");
    let steps = node.table.order_steps() - before.1;
    assert!(steps < 10 * MANY as u64, "{steps} comparisons");
}

/// A shared lock is moved to a key with very many waiters, each of which holds what one of the
/// shared holders waits for.
#[test]
fn very_many_deadlocks_that_arise_together_are_found_by_few_searches() {
    const MANY: usize = 300;
    let mut node = node();
    for n in 0..MANY {
        let (sharer, own) = (format!("sharer-{n}"), format!("own-{n}"));
        acquire(&mut node, &sharer, &["elsewhere"], SHARED, Wait::No);
        let other = format!("other-{n}");
        acquire(&mut node, &other, &[&own], Mode::Exclusive, Wait::No);
    }
    node.hold("z", "z");
    for n in 0..MANY {
        wait_for(&mut node, &format!("sharer-{n}"), &[&format!("own-{n}")]);
        wait_for(&mut node, &format!("other-{n}"), &["k", "z"]);
    }
    node.rename(&key("elsewhere"), &key("k"));
    let before = node.table.deadlock_steps();
    assert_eq!(refused(&mut node).0.len(), MANY, "one for each");
    let steps = node.table.deadlock_steps() - before;
    assert!(steps < 300 * MANY as u64, "{steps} steps");
}

/// Several hundred owners with different holds wait behind as many waiters that want all of these:
/// too many comparisons to decide whether anybody is stuck. The waiters stay in the queue.
#[test]
fn nobody_who_waits_is_refused_if_it_cannot_be_found_out_who_is_stuck() {
    const MANY: usize = 400;
    let mut node = node();
    let names = |of: &str| (0..MANY).map(|n| format!("{of}-{n}")).collect::<Vec<_>>();
    let (owners, elsewhere, wanted) = (names("owner"), names("elsewhere"), names("wanted"));
    node.hold("z", "x");
    for (owner, name) in owners.iter().zip(&elsewhere) {
        acquire(&mut node, owner, &[name], Mode::Exclusive, Wait::No);
    }
    for (ahead, other) in names("ahead").iter().zip(&names("other")) {
        let mut all = vec!["x", other];
        all.extend(wanted.iter().map(String::as_str));
        wait_for(&mut node, ahead, &all);
    }
    for owner in &owners {
        wait_for(&mut node, owner, &["x"]);
    }
    for (from, to) in elsewhere.iter().zip(&wanted) {
        node.rename(&key(from), &key(to));
    }
    let before = node.table.order_steps();
    assert_eq!(refused(&mut node), (vec![], 0));
    assert!(node.table.order_steps() - before >= 100_000);
}
