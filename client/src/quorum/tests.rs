//! Tables for the cases that a reader would ask about, and properties for those nobody would think
//! of.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(10);

fn set(nodes: &[usize]) -> NodeSet {
    let mut set = NodeSet::default();
    nodes.iter().for_each(|node| set.insert(*node));
    set
}

fn at(millis: u64) -> Moment {
    Moment::at_millis(millis)
}

/// The end of a lease that was asked for then.
fn asked_at(millis: u64) -> Moment {
    lease_end(at(millis), TTL)
}

/// `5`: granted with fence 5; `.`: not heard yet; `x`: against.
fn ballot(votes: &str) -> Ballot {
    let votes: Vec<&str> = votes.split(' ').collect();
    let all: Vec<usize> = (0..votes.len()).collect();
    let mut ballot = Ballot::new(votes.len(), set(&all));
    for (node, vote) in votes.iter().enumerate() {
        match *vote {
            "." => {}
            "x" => ballot.deny(node),
            fence => ballot.grant(node, fence.parse().unwrap(), asked_at(0)),
        }
    }
    ballot
}

fn shown(decision: Decision) -> String {
    let list = |nodes: NodeSet| {
        nodes
            .iter()
            .map(|node| node.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    match decision {
        Decision::Open => "open".to_owned(),
        Decision::Failed => "failed".to_owned(),
        Decision::WriteBack { fence, to } => format!("write {fence} to {}", list(to)),
        Decision::Won {
            fence, accepted, ..
        } => format!("won {fence} by {}", list(accepted)),
    }
}

#[test]
fn the_table_of_ballots() {
    let table = [
        // One node.
        ("7", "won 7 by 0"),
        (".", "open"),
        ("x", "failed"),
        // The common case: all accept the proposal, three are enough.
        ("7 7 7 7 7", "won 7 by 0,1,2,3,4"),
        ("7 7 7 . .", "won 7 by 0,1,2"),
        ("7 . 7 x 7", "won 7 by 0,2,4"),
        // Not yet, or never.
        ("7 7 . . .", "open"),
        ("7 7 x x .", "open"),
        ("7 7 x x x", "failed"),
        ("x x x . .", "failed"),
        (". . x x .", "open"),
        // Different fences: the lower ones are raised.
        ("7 8 8 . .", "write 8 to 0"),
        ("6 7 8 . .", "write 8 to 0,1"),
        ("6 7 8 8 8", "won 8 by 2,3,4"),
        ("6 6 8 8 .", "write 8 to 0,1"),
        // A node far ahead is left out instead of dragging the others along.
        ("7 7 7 99 .", "won 7 by 0,1,2"),
        ("6 7 7 99 x", "write 7 to 0"),
        ("6 7 x 99 x", "write 99 to 0,1"),
        // Its fence, which the others refuse, is not asked of them while an answer is missing.
        ("7 7 99000000 . .", "open"),
        ("7 7 99000000 . x", "open"),
        ("7 7 99000000 x x", "write 99000000 to 0,1"),
        ("7 7 99000000 7 .", "won 7 by 0,1,3"),
        // Up to 5 s, the others are likely to raise theirs.
        ("7 7 5000007 . .", "write 5000007 to 0,1"),
        ("7 7 5000008 . .", "open"),
        // Four nodes need three.
        ("7 7 x x", "failed"),
        ("7 7 7 x", "won 7 by 0,1,2"),
        // Two need both.
        ("7 x", "failed"),
        ("7 8", "write 8 to 0"),
    ];
    for (votes, expected) in table {
        assert_eq!(
            shown(ballot(votes).decide(at(1))),
            expected,
            "votes: {votes}"
        );
    }
}

#[test]
fn a_majority_is_more_than_half() {
    for nodes in 1..=MAX_NODES {
        for count in 0..=nodes {
            assert_eq!(is_shortage(count, nodes), 2 * count <= nodes);
        }
    }
}

#[test]
fn validity_counts_from_the_sending_less_the_drift() {
    // 1 % of 10 s and 2 ms.
    assert_eq!(lease_end(at(1_000), TTL), at(1_000 + 10_000 - 100 - 2));
    assert_eq!(lease_end(at(5), Duration::from_millis(1)), at(5));
    // And the other way round.
    let span = Duration::from_millis(10_000 - 100 - 2);
    assert_eq!(lease_for(span), TTL);
}

#[test]
fn a_win_that_comes_too_late_is_none() {
    let ballot = ballot("7 7 7 . .");
    assert!(matches!(ballot.decide(at(9_897)), Decision::Won { .. }));
    assert_eq!(ballot.decide(at(9_898)), Decision::Failed);
}

#[test]
fn validity_is_that_of_the_best_majority() {
    let mut ballot = Ballot::new(3, set(&[0, 1, 2]));
    ballot.grant(0, 7, asked_at(0));
    ballot.grant(1, 7, asked_at(500));
    ballot.grant(2, 7, asked_at(800));
    match ballot.decide(at(900)) {
        Decision::Won { valid_until, .. } => assert_eq!(valid_until, asked_at(500)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_was_not_asked_counts_against() {
    let mut ballot = Ballot::new(3, set(&[0, 1]));
    assert_eq!(ballot.decide(at(0)), Decision::Open);
    ballot.deny(0);
    assert_eq!(ballot.decide(at(0)), Decision::Failed);
}

#[test]
fn a_write_back_that_is_refused_leaves_the_rest_to_decide() {
    let mut ballot = ballot("7 8 8 . x");
    ballot.reopen(0);
    assert_eq!(ballot.decide(at(1)), Decision::Open);
    ballot.deny(0);
    assert_eq!(ballot.decide(at(1)), Decision::Open);
    ballot.grant(3, 8, asked_at(0));
    assert_eq!(shown(ballot.decide(at(1))), "won 8 by 1,2,3");
}

#[test]
fn the_hold_lasts_until_the_majority_th_lease_ends() {
    let ends = |ends: &[u64]| {
        ends.iter()
            .map(|end| at(*end))
            .collect::<Vec<_>>()
            .into_iter()
    };
    assert_eq!(held_until(ends(&[10, 30, 20]), 2), Some(at(20)));
    assert_eq!(held_until(ends(&[10, 30, 20, 40, 50]), 3), Some(at(30)));
    assert_eq!(held_until(ends(&[10]), 2), None);
    assert_eq!(held_until(ends(&[]), 1), None);
}

#[test]
fn a_claim_needs_a_majority_that_kept_its_leases_all_the_time() {
    let leases = |grants: &[(usize, u64, u64)]| {
        let mut leases = Leases::new(3, 7);
        for (node, fence, end) in grants {
            leases.grant(*node, *fence, at(*end));
        }
        leases
    };
    let mut two = leases(&[(0, 7, 10), (1, 7, 20)]);
    assert_eq!(two.claim(at(9)), Some(at(10)));
    assert_eq!(two.claim(at(10)), None);
    let known = |node| two.of(node).map(|lease| (lease.fence, lease.end));
    assert_eq!([1, 2].map(known), [Some((7, at(20))), None]);
    // A late grant with the fence of the hold counts at once …
    two.grant(2, 7, at(30));
    assert_eq!(two.claim(at(9)), Some(at(20)));
    // … one with another fence does not: somebody else may have been there before.
    let mut two = leases(&[(0, 7, 10), (1, 7, 20), (2, 9, 30)]);
    assert_eq!(two.claim(at(9)), Some(at(10)));
    let mut forgotten = two.clone();
    forgotten.forget(0);
    assert_eq!(forgotten.claim(at(9)), None);
    assert_eq!(forgotten.confirm(at(9)), None);
    assert_eq!(forgotten.claim(at(9)), None);
    // After a round in which the others kept theirs, it counts.
    assert_eq!(two.confirm(at(9)), Some(at(20)));
    two.forget(0);
    assert_eq!(two.claim(at(9)), Some(at(20)));
    // An extension lengthens a lease, never shortens it, and leaves it as kept as it was.
    two.grant(1, 7, at(25));
    assert_eq!(two.claim(at(9)), Some(at(25)));
    two.grant(1, 7, at(15));
    assert_eq!(two.claim(at(9)), Some(at(25)));
    two.grant(1, 8, at(40));
    assert_eq!(two.claim(at(9)), None);
}

#[derive(Clone, Debug)]
enum Event {
    Grant(usize, u64),
    Deny(usize),
    Reopen(usize),
}

fn events() -> impl Strategy<Value = (usize, Vec<Event>)> {
    (1_usize..8).prop_flat_map(|nodes| {
        let event = prop_oneof![
            4 => (0..nodes, 1_u64..5).prop_map(|(node, fence)| Event::Grant(node, fence)),
            1 => (0..nodes).prop_map(Event::Deny),
            1 => (0..nodes).prop_map(Event::Reopen),
        ];
        (Just(nodes), prop::collection::vec(event, 0..24))
    })
}

fn played(nodes: usize, events: &[Event]) -> Ballot {
    let mut ballot = Ballot::new(nodes, set(&(0..nodes).collect::<Vec<_>>()));
    for event in events {
        match event {
            Event::Grant(node, fence) => ballot.grant(*node, *fence, asked_at(0)),
            Event::Deny(node) => ballot.deny(*node),
            Event::Reopen(node) => ballot.reopen(*node),
        }
    }
    ballot
}

proptest! {
    #[test]
    fn a_set_of_nodes_is_a_set(
        steps in prop::collection::vec((any::<bool>(), 0..MAX_NODES), 0..99),
    ) {
        let (mut nodes, mut expected) = (NodeSet::default(), BTreeSet::new());
        for (insert, node) in steps {
            if insert {
                nodes.insert(node);
                expected.insert(node);
            } else {
                nodes.remove(node);
                expected.remove(&node);
            }
            prop_assert!(nodes.iter().eq(expected.iter().copied()));
            prop_assert_eq!(nodes, expected.iter().copied().collect::<NodeSet>());
            prop_assert_eq!((nodes.len(), nodes.is_empty()), (expected.len(), expected.is_empty()));
            let agree = |node: usize| nodes.contains(node) == expected.contains(&node);
            prop_assert!((0..MAX_NODES).all(agree));
        }
    }

    #[test]
    fn a_win_is_always_a_majority_that_accepted_exactly_the_fence((nodes, events) in events()) {
        let ballot = played(nodes, &events);
        if let Decision::Won { fence, accepted, .. } = ballot.decide(at(1)) {
            prop_assert!(accepted.len() * 2 > nodes);
            for node in accepted.iter() {
                prop_assert_eq!(ballot.grant_of(node).map(|grant| grant.0), Some(fence));
            }
        }
    }

    #[test]
    fn two_wins_share_a_node((nodes, events, other) in events().prop_flat_map(|(nodes, events)| {
        let other = prop::collection::vec((0..nodes, 1_u64..5), 0..24);
        (Just(nodes), Just(events), other)
    })) {
        let grant = |(node, fence)| Event::Grant(node, fence);
        let others: Vec<Event> = other.into_iter().map(grant).collect();
        let first = played(nodes, &events).decide(at(1));
        let second = played(nodes, &others).decide(at(1));
        if let Decision::Won { accepted: a, .. } = first
            && let Decision::Won { accepted: b, .. } = second
        {
            prop_assert!(a.iter().any(|node| b.contains(node)));
        }
    }

    #[test]
    fn a_write_back_only_raises_and_would_win((nodes, events) in events()) {
        let mut ballot = played(nodes, &events);
        if let Decision::WriteBack { fence, to } = ballot.decide(at(1)) {
            prop_assert!(!to.is_empty());
            for node in to.iter() {
                prop_assert!(ballot.grant_of(node).is_some_and(|grant| grant.0 < fence));
                ballot.grant(node, fence, asked_at(0));
            }
            let Decision::Won { fence: won, .. } = ballot.decide(at(1)) else {
                return Err(TestCaseError::fail(format!("{ballot:?}")));
            };
            prop_assert_eq!(won, fence);
        }
    }

    #[test]
    fn failed_stays_failed_whatever_the_open_nodes_say(
        (nodes, events) in events(),
        fence in 1_u64..5,
    ) {
        let mut ballot = played(nodes, &events);
        if ballot.decide(at(1)) == Decision::Failed {
            for node in ballot.open().iter() {
                ballot.grant(node, fence, asked_at(0));
            }
            prop_assert_eq!(ballot.decide(at(1)), Decision::Failed);
        }
    }

    #[test]
    fn at_any_moment_before_the_end_a_majority_keeps_its_lease(
        ends in prop::collection::vec(0_u64..100, 0..8),
        nodes in 1_usize..8,
    ) {
        let majority = majority(nodes);
        let moments: Vec<Moment> = ends.iter().map(|end| at(*end)).collect();
        match held_until(moments.iter().copied(), majority) {
            Some(until) => {
                let keep = moments.iter().filter(|end| **end >= until).count();
                prop_assert!(keep >= majority);
            }
            None => prop_assert!(moments.len() < majority),
        }
    }
}

fn clocks(nodes: usize) -> Vec<FenceClock> {
    (0..nodes).map(|_| FenceClock::default()).collect()
}

#[test]
fn proposals_grow_and_many_grants_do_not_drive_them_away_from_the_clocks() {
    let nodes = clocks(5);
    let now = Moment::now();
    let first = proposal(nodes.iter(), now).unwrap();
    let mut last = first;
    for _ in 0..10_000 {
        nodes.iter().for_each(|node| node.saw(last));
        let next = proposal(nodes.iter(), now).unwrap();
        assert!(next > last);
        last = next;
    }
    assert_eq!(last, first + 10_000);
}

#[test]
fn a_node_far_ahead_does_not_set_the_proposal() {
    let nodes = clocks(3);
    let now = Moment::now();
    let usual = proposal(nodes.iter(), now).unwrap();
    nodes[1].saw(usual + 2 * fence_at(OUTLIER));
    assert_eq!(proposal(nodes.iter(), now), Some(usual));
    nodes[2].saw(usual + 100);
    assert_eq!(proposal(nodes.iter(), now), Some(usual + 101));
}

#[test]
fn a_node_that_is_five_seconds_ahead_still_sets_the_proposal() {
    let now = at(60_000);
    for (ahead, sets) in [(5_000_000, true), (5_000_001, false)] {
        let nodes = clocks(3);
        let usual = proposal(nodes.iter(), now).unwrap();
        nodes[1].saw(usual + ahead - 1);
        let set = if sets { usual + ahead } else { usual };
        assert_eq!(proposal(nodes.iter(), now), Some(set));
    }
}

#[test]
fn a_proposal_leads_the_clock_of_every_node_by_ten_milliseconds() {
    let nodes = clocks(3);
    let now = at(60_000);
    for (node, wall_at_boot) in nodes.iter().zip([1_000_000, 1_000_003, 999_000]) {
        node.set(Duration::from_millis(wall_at_boot));
    }
    assert_eq!(nodes[1].wall(now), Duration::from_millis(1_060_003));
    assert_eq!(proposal(nodes.iter(), now), Some(1_060_013_000));
}

#[test]
fn nodes_whose_clocks_are_behind_do_not_set_the_proposal_if_they_are_a_minority() {
    let nodes = clocks(5);
    let now = at(60_000);
    for node in &nodes[2..] {
        node.set(Duration::from_secs(3_600));
    }
    assert_eq!(proposal(nodes.iter(), now), Some(3_660_010_000));
}

#[test]
fn one_node_needs_no_proposal() {
    assert_eq!(proposal(clocks(1).iter(), Moment::now()), None);
}
