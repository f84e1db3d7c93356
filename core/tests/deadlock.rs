//! What the search for a deadlock costs, counted in what it looks at.

use redislock_core::lock::Terms;
use redislock_core::table::{Denial, Verdict};
use redislock_core::time::Wait;
use redislock_core::token::Key;

use crate::node::{Node, ROOMY, SECOND, SHARED, key, numbered, semaphore, terms, token};

const DEADLOCK: Verdict = Verdict::Denied(Denial::Deadlock);

fn ask(node: &mut Node, owner: &str, keys: &[Key]) -> Verdict {
    node.request(owner, keys, Wait::Forever)
}

#[track_caller]
fn take(node: &mut Node, owner: &str, at: Key) {
    let verdict = node.request(owner, &[at], Wait::No);
    assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
}

#[track_caller]
fn wait(node: &mut Node, owner: &str, keys: &[Key]) {
    let verdict = ask(node, owner, keys);
    assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
}

/// What the search looks at while `work` is done.
fn steps(node: &mut Node, work: impl FnOnce(&mut Node)) -> u64 {
    let before = node.table.deadlock_steps();
    work(node);
    node.table.deadlock_steps() - before
}

/// Each owner holds a lock and waits for the next one's: the longest chain that there can be.
#[test]
fn a_long_chain_of_owners_is_followed_in_steps_proportional_to_its_length() {
    const OWNERS: usize = 2000;
    let owner = |n: usize| format!("owner-{n}");
    let orders: [Vec<usize>; 2] = [
        (1..OWNERS).collect(),
        // From its end: everybody who begins to wait has the whole chain ahead.
        (1..OWNERS).rev().collect(),
    ];
    for order in orders {
        let mut node = Node::new(ROOMY);
        for n in 0..OWNERS {
            take(&mut node, &owner(n), numbered(n));
        }
        let building = steps(&mut node, |node| {
            for n in order {
                wait(node, &owner(n - 1), &[numbered(n)]);
            }
        });
        assert!(building <= 4 * OWNERS as u64, "{building} steps");
        let closing = steps(&mut node, |node| {
            let verdict = ask(node, &owner(OWNERS - 1), &[numbered(0)]);
            assert_eq!(verdict, DEADLOCK);
        });
        assert!(closing <= 10 * OWNERS as u64, "{closing} steps");
    }
}

/// So many owners that wait for so many shared locks each.
fn busy_node(writers: usize, locks: usize) -> Node {
    let mut node = Node::new(ROOMY);
    let reader = redislock_core::lock::Terms {
        mode: SHARED,
        ..terms(&token("reader"), 10 * SECOND)
    };
    for n in 0..writers * locks {
        node.acquire(&[numbered(n)], &reader, Wait::No);
    }
    for writer in 0..writers {
        let keys: Vec<_> = (0..locks).map(|n| numbered(locks * writer + n)).collect();
        wait(&mut node, &format!("writer-{writer}"), &keys);
    }
    take(&mut node, "holder", key("busy"));
    node
}

#[test]
fn a_request_that_can_be_part_of_no_cycle_is_not_searched_for() {
    let mut node = busy_node(50, 200);
    let spent = steps(&mut node, |node| {
        wait(node, "unrelated", &[key("busy")]);
        wait(node, "among them", &[numbered(5), numbered(7)]);
    });
    assert_eq!(spent, 0);
}

#[test]
fn who_holds_what_others_wait_for_pays_for_the_owners_that_it_depends_on() {
    let mut node = busy_node(50, 200);
    let spent = steps(&mut node, |node| wait(node, "reader", &[key("busy")]));
    assert!(spent <= 2, "{spent} steps");
    // The holder of `busy` holds what the reader waits for, and would depend on one writer.
    let spent = steps(&mut node, |node| {
        assert_eq!(ask(node, "holder", &[numbered(5)]), DEADLOCK);
    });
    assert!(spent <= 10 * 200, "{spent} steps");
}

/// Many who wait for one key and nothing else depend on its holders alone.
#[test]
fn a_long_queue_for_one_key_is_not_walked() {
    let mut node = Node::new(ROOMY);
    take(&mut node, "holder", key("busy"));
    for n in 0..5000 {
        wait(&mut node, &format!("waiter-{n}"), &[key("busy")]);
    }
    take(&mut node, "owner", key("wanted"));
    wait(&mut node, "other", &[key("wanted")]);
    let spent = steps(&mut node, |node| wait(node, "owner", &[key("busy")]));
    assert!(spent <= 4, "{spent} steps");
}

/// A second request of an owner that waits already links the two queues.
#[test]
fn two_requests_of_one_owner_link_what_they_wait_for() {
    let mut node = Node::new(ROOMY);
    take(&mut node, "n", key("a"));
    take(&mut node, "x", key("b"));
    wait(&mut node, "w", &[key("b")]);
    wait(&mut node, "w", &[key("a")]);
    // w is ahead of n for b, and waits for n's a with its other request.
    assert_eq!(ask(&mut node, "n", &[key("b")]), DEADLOCK);
}

/// Some share a lock and wait for another one, behind as many who want both and a third, which
/// `newcomer` holds: each of the first may go past each of the others.
fn many_may_go_past_many(owners: usize, alike: bool) -> (Verdict, u64) {
    let mut node = Node::new(ROOMY);
    take(&mut node, "newcomer", key("own"));
    take(&mut node, "holder", key("busy"));
    for n in 0..owners {
        share(&mut node, &format!("sharer-{n}"), &[key("to be shared")]);
    }
    for n in 0..owners {
        let mut all = vec![key("busy"), key("shared"), key("own")];
        all.extend((!alike).then(|| numbered(n)));
        wait(&mut node, &format!("ahead-{n}"), &all);
    }
    for n in 0..owners {
        wait(&mut node, &format!("sharer-{n}"), &[key("busy")]);
    }
    node.rename(&key("to be shared"), &key("shared"));
    let before = node.table.order_steps();
    let verdict = ask(&mut node, "newcomer", &[key("shared")]);
    (verdict, node.table.order_steps() - before)
}

fn share(node: &mut Node, owner: &str, keys: &[Key]) {
    let terms = redislock_core::lock::Terms {
        mode: SHARED,
        ..terms(&token(owner), 10 * SECOND)
    };
    node.acquire(keys, &terms, Wait::No);
}

#[test]
fn owners_that_hold_the_same_are_compared_with_those_ahead_together() {
    for alike in [true, false] {
        let (verdict, steps) = many_may_go_past_many(1000, alike);
        assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
        assert!(steps < 10_000, "{steps} steps");
    }
}

/// So many owners hold a lock each, and wait for `same` keys behind as many others that want these,
/// the locks and what `newcomer` holds: each of the first may go past each of the others, in each
/// queue. The first of them has a lock that it is asked for.
fn many_that_differ_may_go_past_many(owners: usize, same: usize) -> Node {
    let mut node = Node::new(ROOMY);
    take(&mut node, "newcomer", key("own"));
    take(&mut node, "holder", numbered(0));
    let same: Vec<_> = (0..same).map(numbered).collect();
    let elsewhere = |n| key(&format!("elsewhere-{n}"));
    let wanted = |n| key(&format!("wanted-{n}"));
    for n in 0..owners {
        take(&mut node, &format!("owner-{n}"), elsewhere(n));
    }
    for n in 0..owners {
        let mut all = same.clone();
        all.extend((0..owners).map(wanted));
        all.extend([key("own"), key(&format!("other-{n}"))]);
        wait(&mut node, &format!("ahead-{n}"), &all);
    }
    for n in 0..owners {
        wait(&mut node, &format!("owner-{n}"), &same);
    }
    for n in 0..owners {
        node.rename(&elsewhere(n), &wanted(n));
    }
    node
}

#[test]
fn a_search_in_which_very_many_may_go_past_very_many_is_given_up_and_the_wait_refused() {
    for (owners, is_refused) in [(100, false), (400, true)] {
        let mut node = many_that_differ_may_go_past_many(owners, 1);
        let before = node.table.order_steps();
        let verdict = ask(&mut node, "newcomer", &[key("wanted-0")]);
        assert_eq!(verdict == DEADLOCK, is_refused, "{verdict:?}");
        let steps = node.table.order_steps() - before;
        assert!(steps < 150_000, "{steps} steps");
    }
}

/// They meet in each of very many queues. What is known of two of them is not asked again there
/// without a limit.
#[test]
fn requests_that_meet_in_very_many_queues_are_searched_with_a_limit() {
    let mut node = many_that_differ_may_go_past_many(100, 600);
    let spent = steps(&mut node, Node::serve);
    assert!(spent < 4_000_000, "{spent} steps");
    let spent = steps(&mut node, |node| {
        wait(node, "newcomer", &[key("wanted-0")]);
    });
    assert!(spent < 600_000, "{spent} steps");
}

/// As above, but the owners share one lock.
#[test]
fn sharers_that_meet_others_in_very_many_queues_are_looked_at_once_in_each() {
    const MANY: usize = 100;
    let mut node = Node::new(ROOMY);
    take(&mut node, "newcomer", key("own"));
    take(&mut node, "holder", numbered(0));
    let same: Vec<_> = (0..MANY).map(numbered).collect();
    for n in 0..MANY {
        share(&mut node, &format!("sharer-{n}"), &[key("elsewhere")]);
    }
    for n in 0..MANY {
        let mut all = same.clone();
        all.extend([key("shared"), key("own"), key(&format!("other-{n}"))]);
        wait(&mut node, &format!("ahead-{n}"), &all);
    }
    for n in 0..MANY {
        wait(&mut node, &format!("sharer-{n}"), &same);
    }
    node.rename(&key("elsewhere"), &key("shared"));
    node.serve();
    let spent = steps(&mut node, |node| {
        wait(node, "newcomer", &[key("shared")]);
    });
    let places = (2 * MANY * MANY) as u64;
    assert!(spent < 5 * places, "{spent} steps");
}

/// It holds more shared locks than are checked at first, and nobody waits for them.
#[test]
fn an_owner_of_many_locks_that_nobody_waits_for_pays_for_no_search() {
    let mut node = Node::new(ROOMY);
    let held: Vec<_> = (0..1000).map(numbered).collect();
    let share = redislock_core::lock::Terms {
        mode: SHARED,
        ..terms(&token("owner"), 10 * SECOND)
    };
    node.acquire(&held, &share, Wait::No);
    take(&mut node, "holder", key("busy"));
    for n in 0..100 {
        wait(&mut node, &format!("waiter-{n}"), &[key("busy")]);
    }
    let spent = steps(&mut node, |node| wait(node, "owner", &[key("busy")]));
    assert_eq!(spent, 0);
}

/// Each of very many owners shares each of very many locks: they are found at the first of them.
#[test]
fn owners_that_share_very_many_locks_are_not_looked_at_for_each_of_them() {
    const MANY: usize = 200;
    for mode in [SHARED, semaphore(MANY as u32)] {
        let mut node = Node::new(ROOMY);
        let locks: Vec<_> = (0..MANY).map(numbered).collect();
        for n in 0..MANY {
            let terms = redislock_core::lock::Terms {
                mode,
                ..terms(&token(&format!("sharer-{n}")), 10 * SECOND)
            };
            node.acquire(&locks, &terms, Wait::No);
        }
        take(&mut node, "holder", key("busy"));
        take(&mut node, "newcomer", key("own"));
        wait(&mut node, "writer", &locks);
        for n in 1..MANY {
            wait(&mut node, &format!("sharer-{n}"), &[key("busy")]);
        }
        wait(&mut node, "holder", &[key("own")]);
        let seen = node.table.holders_seen();
        let spent = steps(&mut node, |node| {
            assert_eq!(ask(node, "newcomer", &[numbered(5)]), DEADLOCK);
        });
        assert!(spent < 20 * MANY as u64, "{spent} steps");
        let seen = node.table.holders_seen() - seen;
        assert!(seen < 20 * MANY as u64, "{seen} holders");
    }
}

/// The only holder of a semaphore of one waits for `newcomer`, and so do very many requests, as
/// many as `each` of one owner: all in one queue.
fn many_requests_in_a_queue(owners: usize, each: usize, hold: bool) -> (Verdict, u64) {
    let mut node = Node::new(ROOMY);
    take(&mut node, "newcomer", key("own"));
    let one = |owner: &str| redislock_core::lock::Terms {
        mode: semaphore(1),
        ..terms(&token(owner), 10 * SECOND)
    };
    node.acquire(&[key("one")], &one("holder"), Wait::No);
    wait(&mut node, "holder", &[key("own")]);
    for n in 0..owners {
        if hold {
            take(&mut node, &format!("owner-{n}"), numbered(n));
            wait(&mut node, &format!("other-{n}"), &[numbered(n)]);
        }
    }
    for _ in 0..each {
        for n in 0..owners {
            wait(&mut node, &format!("owner-{n}"), &[key("own")]);
        }
    }
    let before = node.table.deadlock_steps() + node.table.order_steps();
    let verdict = node.acquire(&[key("one")], &one("newcomer"), Wait::Forever);
    let after = node.table.deadlock_steps() + node.table.order_steps();
    (verdict, after - before)
}

#[test]
fn many_requests_of_one_owner_in_a_queue_are_looked_at_a_fixed_number_of_times() {
    for (owners, each) in [(1, 800), (400, 2), (20, 40)] {
        for hold in [false, true] {
            let (verdict, steps) = many_requests_in_a_queue(owners, each, hold);
            assert_eq!(verdict, DEADLOCK);
            let places = (owners * each) as u64;
            // Who may go past others is compared with each of them, within a limit.
            let most = if hold {
                20 * places + 120_000
            } else {
                20 * places
            };
            assert!(steps <= most, "{owners} x {each}, {hold}: {steps} steps");
        }
    }
}

/// Each request ahead is compared with the newcomer once, not once for each key of both.
#[test]
fn a_request_for_very_many_keys_behind_others_for_the_same_keys_is_not_refused() {
    let mut node = Node::new(ROOMY);
    take(&mut node, "newcomer", key("own"));
    take(&mut node, "holder", numbered(0));
    let all: Vec<_> = (0..1000).map(numbered).collect();
    for n in 0..150 {
        let mut wanted = all.clone();
        wanted.push(key("own"));
        wait(&mut node, &format!("ahead-{n}"), &wanted);
    }
    let before = node.table.order_steps();
    wait(&mut node, "newcomer", &all);
    let steps = node.table.order_steps() - before;
    assert!(steps <= 1000, "{steps} steps");
}

#[test]
fn nothing_is_remembered_of_owners_that_hold_nothing() {
    let mut node = busy_node(10, 20);
    for n in 0..200 {
        node.release(&numbered(n), &token("reader"), true);
    }
    node.serve_all();
    assert_eq!(node.table.waiters(), 0, "all writers were granted");
    assert_eq!(node.table.holding_owners(), 0);
}

/// The holder of a lock that nobody waits for is in no index. It is found whatever stands before
/// its key in the request.
#[test]
fn a_deadlock_is_found_in_every_order_of_the_keys() {
    const ORDERS: [[&str; 3]; 6] = [
        ["p", "q", "k"],
        ["p", "k", "q"],
        ["q", "p", "k"],
        ["q", "k", "p"],
        ["k", "p", "q"],
        ["k", "q", "p"],
    ];
    for order in ORDERS {
        let mut node = Node::new(ROOMY);
        let shared = Terms {
            mode: SHARED,
            ..terms(&token("w"), 10 * SECOND)
        };
        let verdict = node.acquire(&[key("p")], &shared, Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
        for (owner, at) in [("z", "y"), ("v", "q"), ("a", "x"), ("b", "k")] {
            take(&mut node, owner, key(at));
        }
        wait(&mut node, "w", &[key("y")]);
        wait(&mut node, "b", &[key("x")]);
        assert_eq!(ask(&mut node, "a", &order.map(key)), DEADLOCK, "{order:?}");
    }
}
