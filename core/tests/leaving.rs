//! Very many waiters that leave at once: in slices, and as if they had left already.

use redislock_core::lock::Mode;
use redislock_core::queue::WaiterId;
use redislock_core::table::{Answer, Denial, Verdict};
use redislock_core::time::Wait;
use redislock_core::token::Key;

use crate::node::{Node, ROOMY, key, numbered, token};

const WAITERS: usize = 300;
const KEYS: usize = 50;

/// `holder` has `busy`; very many requests of one owner wait for it and for many other keys.
fn node() -> (Node, Vec<WaiterId>) {
    let mut node = Node::new(ROOMY);
    let all: Vec<_> = (0..KEYS).map(numbered).collect();
    let keys: Vec<Key> = [vec![key("busy")], all].concat();
    node.request("holder", &[key("busy")], Wait::No);
    let wait = |node: &mut Node| match node.request("many", &keys, Wait::Forever) {
        Verdict::Waits(id) => id,
        other => panic!("{other:?}"),
    };
    let waiters = (0..WAITERS).map(|_| wait(&mut node)).collect();
    (node, waiters)
}

/// Lets all leave, a few keys at a time, and returns their answers.
fn leave_all(node: &mut Node) -> Vec<Answer> {
    let mut answers = Vec::new();
    loop {
        let before = node.table.waiters();
        let more = node.table.time_out(KEYS, node.now);
        assert!(before - node.table.waiters() <= 1, "one request at a time");
        node.apply();
        answers.extend(node.take().1.into_iter().map(|(_, answer)| answer));
        if !more {
            return answers;
        }
    }
}

/// Nobody who is leaving is in the way of others, or granted anything.
#[track_caller]
fn counts_for_nobody(node: &mut Node) {
    assert!(node.table.has_leaving());
    assert!(node.table.waiters() > WAITERS - 10);
    node.release(&key("busy"), &token("holder"), true);
    for name in ["busy", "key-7"] {
        let verdict = node.request("other", &[key(name)], Wait::No);
        assert!(
            matches!(verdict, Verdict::Granted(_)),
            "{name}: {verdict:?}"
        );
    }
}

#[test]
fn very_many_cancelled_requests_leave_in_slices() {
    let (mut node, _) = node();
    node.release(&key("key-3"), &token("many"), true);
    let at_once = node.take().1;
    assert!(
        at_once.len() < 10,
        "{} were answered at once",
        at_once.len()
    );
    counts_for_nobody(&mut node);
    let answers = leave_all(&mut node);
    assert_eq!(answers, vec![Answer::Nothing; WAITERS - at_once.len()]);
    assert_eq!(node.table.counters.denials, WAITERS as u64);
    assert_eq!(node.table.waiters(), 0);
}

/// Those behind are looked at once for each queue, not once for each place that is left.
#[test]
fn a_queue_is_looked_at_when_all_at_its_head_have_left() {
    let (mut node, _) = node();
    let behind: Vec<_> = ["busy", "key-7"]
        .map(|name| node.request("late", &[key(name)], Wait::Forever))
        .into();
    node.release(&key("key-3"), &token("many"), true);
    assert!(node.table.has_leaving());
    node.release(&key("busy"), &token("holder"), true);
    let looks = node.table.looks();
    while node.table.time_out(KEYS, node.now) {
        node.apply();
        node.serve();
    }
    node.serve();
    let answers = node.take().1.into_iter();
    let granted = answers.filter(|(_, answer)| matches!(answer, Answer::Granted(_)));
    let mut granted: Vec<_> = granted.map(|(id, _)| id).collect();
    // Queues are served in turn, not in the order of requests for different keys.
    granted.sort_unstable();
    let granted: Vec<_> = granted.into_iter().map(Verdict::Waits).collect();
    assert_eq!(granted, behind);
    let looks = node.table.looks() - looks;
    assert!(looks < 4 * KEYS as u64, "{looks} looks");
}

#[test]
fn those_who_are_leaving_take_no_place_of_others_who_want_to_wait() {
    let (mut node, _) = node();
    node.table.limits.max_waiters = WAITERS;
    let wait = |node: &mut Node| node.request("late", &[key("busy")], Wait::Forever);
    let refused = Verdict::Denied(Denial::TooManyWaiters);
    assert_eq!(wait(&mut node), refused);
    node.release(&key("key-3"), &token("many"), true);
    assert!(node.table.has_leaving());
    for _ in 0..WAITERS {
        assert!(matches!(wait(&mut node), Verdict::Waits(_)));
    }
    assert_eq!(wait(&mut node), refused);
}

#[test]
fn very_many_that_are_unblocked_leave_in_slices() {
    for all in [true, false] {
        let (mut node, _) = node();
        if all {
            node.table.unblock_all();
        } else {
            node.table.unblock_queue(&key("key-3"));
        }
        node.apply();
        let at_once = node.take().1.len();
        counts_for_nobody(&mut node);
        assert_eq!(
            leave_all(&mut node),
            vec![Answer::Unblocked; WAITERS - at_once]
        );
        assert_eq!(node.table.waiters(), 0);
    }
}

#[test]
fn very_many_whose_connections_close_leave_in_slices_without_an_answer() {
    let (mut node, waiters) = node();
    node.table.unblock_queue(&key("key-3"));
    node.apply();
    node.take();
    for id in waiters {
        node.table.abandon(id);
    }
    counts_for_nobody(&mut node);
    assert_eq!(leave_all(&mut node), []);
    assert_eq!(node.table.waiters(), 0);
}

/// `many` still has its places in the queues, and waits for `other`. But nobody is behind a place
/// that is being left, so who waits there waits for the holder alone.
#[test]
fn a_place_that_is_being_left_is_part_of_no_deadlock() {
    let (mut node, _) = node();
    let ask =
        |node: &mut Node, owner: &str, name: &str, wait| node.request(owner, &[key(name)], wait);
    for (owner, name) in [
        ("late", "of-late"),
        ("other", "of-other"),
        ("many", "of-many"),
    ] {
        assert!(matches!(
            ask(&mut node, owner, name, Wait::No),
            Verdict::Granted(_)
        ));
    }
    assert!(matches!(
        ask(&mut node, "late", "busy", Wait::Forever),
        Verdict::Waits(_)
    ));
    node.release(&key("key-3"), &token("many"), true);
    assert!(node.table.has_leaving());
    assert!(matches!(
        ask(&mut node, "many", "of-other", Wait::Forever),
        Verdict::Waits(_)
    ));
    let verdict = ask(&mut node, "other", "of-late", Wait::Forever);
    assert!(matches!(verdict, Verdict::Waits(_)), "{verdict:?}");
}

#[test]
fn a_role_change_leaves_nobody_who_is_granted_something_later() {
    let (mut node, _) = node();
    node.table.role_changed();
    node.apply();
    node.take();
    counts_for_nobody(&mut node);
    let answers = leave_all(&mut node);
    assert!(answers.iter().all(|answer| *answer == Answer::Unblocked));
}

/// Requests that leave in slices are still at the head of the queue when their lock becomes free.
/// `behind` waits after them, and comes before `newcomer`.
fn overtakes_nobody(leave: impl FnOnce(&mut Node, &[WaiterId])) {
    let mut node = Node::new(ROOMY);
    node.hold("holder", "k");
    let ahead: Vec<_> = (0..150).map(|_| node.wait("many", "k")).collect();
    node.wait("behind", "k");
    leave(&mut node, &ahead);
    assert!(node.table.has_leaving());
    assert_eq!(node.let_go("holder", "k"), 1);
    let verdict = node.ask("newcomer", "k", Mode::Exclusive, Wait::No);
    assert_eq!(verdict, Verdict::Busy);
    node.take();
    node.tick();
    assert!(node.holds("behind", "k"));
}

#[test]
fn a_request_does_not_overtake_a_waiter_behind_others_whose_connections_closed() {
    overtakes_nobody(|node, ahead| ahead.iter().for_each(|id| _ = node.table.abandon(*id)));
}

#[test]
fn a_request_does_not_overtake_a_waiter_behind_others_that_were_cancelled() {
    overtakes_nobody(|node, _| {
        assert_eq!(node.release(&key("k"), &token("many"), true), 0);
    });
}
