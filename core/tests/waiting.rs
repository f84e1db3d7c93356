//! Queues: first in, first out, none past another; what one owner's requests mean to each other.

use redislock_core::lock::{Mode, Refusal, Terms};
use redislock_core::table::{Answer, Denial, Presence, Verdict};
use redislock_core::time::{Micros, Wait};

use crate::node::{Node, ROOMY, SECOND, SHARED, key, numbered, semaphore, terms, token};

fn node() -> Node {
    Node::new(ROOMY)
}

#[test]
fn the_first_in_is_the_first_out_and_the_key_stays_in_place() {
    let mut node = node();
    node.hold("a", "k");
    let waiting = [
        node.wait("b", "k"),
        node.wait("c", "k"),
        node.wait("d", "k"),
    ];
    node.take();
    for (owner, waiter) in ["a", "b", "c"].into_iter().zip(waiting) {
        node.let_go(owner, "k");
        let (changes, answers) = node.take();
        assert_eq!(
            answers.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            [waiter]
        );
        assert_eq!(
            changes
                .iter()
                .map(|change| change.presence)
                .collect::<Vec<_>>(),
            [Presence::Kept]
        );
    }
}

#[test]
fn the_lock_to_wait_for_has_another_owner_and_a_queue() {
    let mut node = node();
    let to_wait_for =
        |node: &Node, owner: &str| node.table.lock_to_wait_for(&key("k"), &token(owner));
    assert_eq!(to_wait_for(&node, "c"), None);
    node.hold("a", "k");
    assert_eq!(to_wait_for(&node, "c"), None, "nobody waits");
    node.wait("b", "k");
    assert_eq!(to_wait_for(&node, "c"), node.at(&key("k")));
    assert_eq!(to_wait_for(&node, "a"), None, "a re-entry");
    node.rename(&key("k"), &key("elsewhere"));
    assert_eq!(to_wait_for(&node, "c"), node.at(&key("k")), "b has it now");
    assert_eq!(to_wait_for(&node, "c"), None, "nobody waits");
}

#[test]
fn the_lease_of_a_waiter_starts_at_its_grant() {
    let mut node = node();
    node.hold("a", "k");
    node.wait("b", "k");
    node.advance(7 * SECOND);
    node.let_go("a", "k");
    let end = node.lock(&key("k")).and_then(|lock| lock.last_end());
    let now = node.table.lease_now(node.now.mono);
    assert_eq!(end, Some(now.plus(10 * SECOND)));
}

#[test]
fn a_wait_ends_when_its_time_is_up_and_not_before() {
    let mut node = node();
    node.hold("a", "k");
    let until = node.now.mono.plus(SECOND);
    let Verdict::Waits(waiter) =
        node.acquire(&[key("k")], &terms(&token("b"), SECOND), Wait::Until(until))
    else {
        panic!("it waits");
    };
    node.advance(SECOND.minus(Micros(1)));
    node.tick();
    assert_eq!(node.take().1, []);
    node.advance(Micros(1));
    node.tick();
    assert_eq!(node.take().1, [(waiter, Answer::Nothing)]);
    assert_eq!(node.table.waiters(), 0);
}

#[test]
fn shared_waiters_next_to_each_other_are_granted_together_and_none_passes_a_writer() {
    let mut node = node();
    node.hold("a", "k");
    let readers = [
        node.wait_in("b", "k", SHARED),
        node.wait_in("c", "k", SHARED),
    ];
    let writer = node.wait("d", "k");
    let late = node.wait_in("e", "k", SHARED);
    node.let_go("a", "k");
    assert_eq!(node.granted(), readers);
    assert_eq!(
        node.ask("f", "k", SHARED, Wait::No),
        Verdict::Busy,
        "no barging"
    );
    node.let_go("b", "k");
    assert_eq!(node.granted(), []);
    node.let_go("c", "k");
    assert_eq!(node.granted(), [writer]);
    node.let_go("d", "k");
    assert_eq!(node.granted(), [late]);
}

#[test]
fn a_dead_permit_of_a_semaphore_frees_itself() {
    let mut node = node();
    for owner in ["a", "b"] {
        assert!(matches!(
            node.ask(owner, "k", semaphore(2), Wait::No),
            Verdict::Granted(_)
        ));
        node.advance(SECOND);
    }
    let waiter = node.wait_in("c", "k", semaphore(2));
    node.advance((8 * SECOND).plus(Micros(1024)));
    node.tick();
    assert_eq!(node.granted(), [waiter]);
    assert!(!node.holds("a", "k") && node.holds("b", "k"));
}

#[test]
fn an_unlike_limit_is_refused_at_the_request_and_again_at_the_grant() {
    let mut node = node();
    node.hold("a", "k");
    node.wait_in("b", "k", semaphore(2));
    let unlike = node.wait_in("c", "k", semaphore(3));
    node.let_go("a", "k");
    let (_, answers) = node.take();
    let refused = Denial::Refused(Refusal::UnlikeLimit);
    assert_eq!(answers[1], (unlike, Answer::Denied(refused)));
    assert_eq!(
        node.ask("d", "k", semaphore(3), Wait::No),
        Verdict::Denied(refused)
    );
}

#[test]
fn a_disconnected_waiter_leaves_and_lets_those_behind_it_go() {
    let mut node = node();
    node.ask("a", "k", SHARED, Wait::No);
    let writer = node.wait("b", "k");
    let reader = node.wait_in("c", "k", SHARED);
    node.abandon(writer);
    assert_eq!(node.granted(), [reader]);
}

#[test]
fn releasing_all_cancels_what_the_owner_still_waits_for_there() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("b", "l");
    let (waiter, elsewhere) = (node.wait("b", "k"), node.wait("c", "l"));
    assert_eq!(node.release(&key("k"), &token("b"), false), 0);
    assert_eq!(node.table.waiters(), 2, "one hold cancels nothing");
    assert_eq!(node.release(&key("k"), &token("b"), true), 0);
    assert_eq!(node.take().1, [(waiter, Answer::Nothing)]);
    assert_eq!(node.release(&key("l"), &token("b"), true), 1);
    assert_eq!(node.granted(), [elsewhere]);
}

#[test]
fn an_owner_that_releases_all_is_not_granted_what_it_cancels() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("b", "l");
    let waiter = node.wait("a", "kl");
    assert_eq!(node.release(&key("k"), &token("a"), true), 1);
    assert_eq!(node.take().1, [(waiter, Answer::Nothing)]);
    node.let_go("b", "l");
    assert_eq!((node.table.locks(), node.table.waiters()), (0, 0));
}

#[test]
fn when_one_request_of_an_owner_is_granted_its_others_for_the_key_re_enter() {
    let mut node = node();
    node.hold("a", "k");
    let first = node.wait("b", "k");
    node.wait("c", "k");
    let second = node.wait_in("b", "k", SHARED);
    node.let_go("a", "k");
    assert_eq!(node.granted(), [first, second]);
    let count = node
        .lock(&key("k"))
        .and_then(|lock| lock.hold(&token("b")))
        .map(|hold| hold.count());
    assert_eq!(count, Some(2));
}

#[test]
fn an_owner_that_shares_is_refused_the_exclusive_lock_it_waits_for() {
    let mut node = node();
    node.hold("a", "k");
    node.wait_in("b", "k", SHARED);
    let upgrade = node.wait("b", "k");
    node.let_go("a", "k");
    assert_eq!(
        node.take().1[1],
        (upgrade, Answer::Denied(Denial::Refused(Refusal::Upgrade)))
    );
}

#[test]
fn requests_of_one_owner_keep_their_order() {
    let mut node = node();
    node.ask("a", "k", SHARED, Wait::No);
    node.hold("a", "l");
    let writer = node.wait("b", "k");
    let reader = node.wait_in("b", "kl", SHARED);
    node.let_go("a", "l");
    assert_eq!(
        node.granted(),
        [],
        "the later request would turn the earlier one into an upgrade"
    );
    node.let_go("a", "k");
    assert_eq!(node.granted(), [writer, reader]);
}

#[test]
fn a_lock_that_was_granted_again_while_leases_were_ended_is_found_at_its_own_end() {
    let mut node = node();
    node.hold("a", "bd");
    let twenty = terms(&token("a"), 20 * SECOND);
    node.acquire(&[key("c")], &twenty, Wait::No);
    let until = node.now.mono.plus(10 * SECOND);
    let several = [key("b"), key("d"), key("c")];
    node.acquire(&several, &terms(&token("x"), SECOND), Wait::Until(until));
    let waiting = [node.wait("y", "b"), node.wait("z", "d")];
    node.advance((10 * SECOND).plus(Micros(1024)));
    node.tick();
    let (_, answers) = node.take();
    assert!(
        waiting
            .iter()
            .all(|waiter| answers.iter().any(|(id, _)| id == waiter))
    );
    node.advance((10 * SECOND).plus(Micros(1024)));
    node.tick();
    assert_eq!(node.table.locks(), 0);
}

#[test]
fn those_who_are_unblocked_come_again() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("a", "l");
    let (k, l) = (node.wait("b", "k"), node.wait("c", "l"));
    node.table.unblock_queue(&key("k"));
    node.serve();
    assert_eq!(node.take().1, [(k, Answer::Unblocked)]);
    node.table.unblock_all();
    node.serve();
    assert_eq!(node.take().1, [(l, Answer::Unblocked)]);
    assert_eq!(node.table.waiting_for(&key("l")), None);
}

#[test]
fn a_change_of_roles_ends_what_concerns_clients_and_keeps_the_locks() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("a", "l");
    let (granted, waiting) = (node.wait("b", "k"), node.wait("c", "l"));
    node.let_go("a", "k");
    assert_eq!(node.granted(), [granted]);
    node.table.role_changed();
    assert!(!node.table.has_unserved());
    node.serve();
    assert_eq!(node.take().1, [(waiting, Answer::Unblocked)]);
    // The grant was not delivered, but another master may have confirmed it.
    node.undeliverable(granted);
    assert!(node.holds("b", "k") && node.holds("a", "l"));
}

#[test]
fn a_lock_that_is_moved_to_its_holders_own_request_is_re_entered() {
    let mut node = node();
    node.hold("a", "k");
    node.hold("b", "x");
    node.wait("c", "kx");
    node.let_go("a", "k");
    node.hold("a", "y");
    let own = node.wait("a", "k");
    node.rename(&key("y"), &key("k"));
    node.serve();
    assert_eq!(node.granted(), [own]);
    let mode = node
        .lock(&key("k"))
        .map(|lock| (lock.mode(), lock.holders()));
    assert_eq!(mode, Some((Mode::Exclusive, 1)));
}

/// Who holds what all others wait for may go past them. What it costs to find that out depends on
/// what it holds, not on how many keys the others want, and counts once for all keys of a request.
#[test]
fn an_owner_goes_past_waiters_with_many_keys_at_the_cost_of_its_own_holds() {
    const WAITERS: usize = 50;
    let mut node = Node::new(ROOMY);
    let free: Vec<_> = (0..200).map(|n| key(&format!("free-{n}"))).collect();
    let wanted: Vec<_> = free.iter().cloned().chain([key("held")]).collect();
    node.acquire(&[key("held")], &terms(&token("owner"), SECOND), Wait::No);
    for n in 0..WAITERS {
        let terms = terms(&token(&format!("waiter-{n}")), SECOND);
        let verdict = node.acquire(&wanted, &terms, Wait::Forever);
        assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
    }
    let stranger = node.acquire(&free[..1], &terms(&token("stranger"), SECOND), Wait::No);
    assert_eq!(stranger, Verdict::Busy);
    for keys in [&free[..1], &free[1..]] {
        let before = node.table.order_steps();
        let verdict = node.acquire(keys, &terms(&token("owner"), SECOND), Wait::No);
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
        let steps = node.table.order_steps() - before;
        assert!(steps <= 2 * WAITERS as u64, "{steps} steps");
    }
}

/// The one who had waited got the lock, and lost it at once.
#[test]
fn forcing_a_lock_whose_lease_has_ended_leaves_it_to_the_next_waiter() {
    let mut node = node();
    node.hold("a", "k");
    let waiter = node.wait("b", "k");
    node.advance(10 * SECOND);
    assert_eq!(node.force(&key("k")), 0);
    assert_eq!(node.granted(), [waiter]);
    assert!(node.holds("b", "k"));
    assert_eq!(node.force(&key("k")), 1);
    assert!(!node.holds("b", "k"));
}

#[test]
fn forcing_counts_those_whose_leases_run() {
    let mut node = node();
    for n in 0..100 {
        let ttl = if n < 90 { SECOND } else { 10 * SECOND };
        let shared = Terms {
            mode: SHARED,
            ..terms(&token(&format!("owner-{n}")), ttl)
        };
        node.acquire(&[key("k")], &shared, Wait::No);
    }
    node.advance(SECOND);
    assert_eq!(node.force(&key("k")), 10);
    assert_eq!(node.table.counters.expiries, 90);
}

/// Two requests of one owner, each ONCE, are granted together: the second one has found the hold of
/// the first. It stands if one of them has reached its client.
#[test]
fn a_hold_that_two_requests_were_told_of_stands_if_one_of_them_is_delivered() {
    for (first, second) in [(false, false), (true, false), (false, true), (true, true)] {
        for reversed in [false, true] {
            let mut node = node();
            node.hold("h", "k");
            let once = Terms {
                once: true,
                ..terms(&token("w"), 10 * SECOND)
            };
            let mut ask = || match node.acquire(&[key("k")], &once, Wait::Forever) {
                Verdict::Waits(id) => id,
                other => panic!("{other:?}"),
            };
            let mut told = [(ask(), first), (ask(), second)];
            node.let_go("h", "k");
            assert_eq!(node.granted().len(), 2);
            if reversed {
                told.reverse();
            }
            for (id, delivered) in told {
                if delivered {
                    node.table.delivered(id);
                } else {
                    node.undeliverable(id);
                }
            }
            assert_eq!(node.holds("w", "k"), first || second, "{first} {second}");
        }
    }
}

/// All waiters are looked at again after a flush of another database.
#[test]
fn a_key_that_very_many_wait_for_is_looked_at_once_when_all_keys_are() {
    let mut node = Node::new(ROOMY);
    let sharers = || (0..100).map(|n| format!("sharer-{n}"));
    node.hold("holder", "k");
    for owner in sharers() {
        node.ask(&owner, "s", SHARED, Wait::No);
        node.wait(&owner, "k");
    }
    for n in 0..500 {
        node.wait(&format!("writer-{n}"), "s");
    }
    node.serve();
    let (looks, seen) = (node.table.looks(), node.table.holders_seen());
    node.flush(Some(3));
    node.serve();
    let looks = node.table.looks() - looks;
    assert!(looks < 1000, "{looks} looks");
    let seen = node.table.holders_seen() - seen;
    assert!(seen < 1000, "{seen} holders");
}

/// So many owners release their permits, and a waiter gets each of them, without a look at very
/// many holders.
#[track_caller]
fn pass_on_permits(node: &mut Node, permits: usize) {
    let seen = node.table.holders_seen();
    for n in 0..permits {
        node.let_go(&format!("owner-{n}"), "k");
        let granted = node.granted();
        assert_eq!(granted.len(), 1);
        node.table.delivered(granted[0]);
    }
    let seen = node.table.holders_seen() - seen;
    assert!(seen < 100, "{seen} holders");
}

/// Nobody who waits for the semaphore waits for another key: its holders have nobody to go past,
/// though all of them wait.
#[test]
fn a_permit_is_passed_on_without_a_look_at_holders_that_wait_elsewhere() {
    let mut node = Node::new(ROOMY);
    let mode = semaphore(1000);
    node.hold("holder", "ax");
    for n in 0..1000 {
        node.ask(&format!("owner-{n}"), "k", mode, Wait::No);
    }
    for n in 0..1000 {
        node.wait(&format!("owner-{n}"), "x");
    }
    for n in 0..20 {
        node.wait_in(&format!("waiter-{n}"), "k", mode);
    }
    node.wait("several", "ab");
    node.take();
    let steps = node.table.deadlock_steps();
    pass_on_permits(&mut node, 10);
    let steps = node.table.deadlock_steps() - steps;
    assert!(steps < 100, "{steps} steps");
}

/// The semaphores have the same holders, and all of these wait: each is visited a few times, and
/// not once for each semaphore.
#[test]
fn holders_of_very_many_full_semaphores_are_not_looked_at_for_each_of_them() {
    const MANY: usize = 100;
    let mut node = Node::new(ROOMY);
    let rooms: Vec<_> = (0..MANY).map(numbered).collect();
    let share = |owner: &str| Terms {
        mode: semaphore(MANY as u32 + 1),
        ..terms(&token(owner), 10 * SECOND)
    };
    node.hold("holder", "x");
    for n in 0..MANY {
        let owner = format!("owner-{n}");
        node.acquire(&rooms, &share(&owner), Wait::No);
        node.wait(&owner, "x");
    }
    node.acquire(&rooms, &share("last"), Wait::No);
    node.acquire(&rooms, &share("next"), Wait::Forever);
    node.request("writer", &rooms, Wait::Forever);
    node.take();
    let seen = node.table.holders_seen();
    node.release_each(&rooms, &token("last"), true);
    assert_eq!(node.serve_all().len(), 1);
    let seen = node.table.holders_seen() - seen;
    assert!(seen < 20 * MANY as u64, "{seen} holders");
}

/// Somebody waits for several keys, so holders may go past waiters. None of them waits.
#[test]
fn a_permit_of_a_large_semaphore_is_passed_on_without_a_look_at_each_holder() {
    let mut node = Node::new(ROOMY);
    let mode = semaphore(5000);
    for n in 0..5000 {
        node.ask(&format!("owner-{n}"), "k", mode, Wait::No);
    }
    for n in 0..100 {
        node.wait_in(&format!("waiter-{n}"), "k", mode);
    }
    node.hold("holder", "a");
    node.wait("several", "ab");
    node.take();
    pass_on_permits(&mut node, 100);
}
