//! The replication lease among several nodes: no two masters ever grant at the same time, whatever
//! becomes of nodes, clocks and links. `world.rs` is the world around the code of the core,
//! `flaw.rs` has the wrong rules that must be found.
//!
//! The first search tries every order of a few events in a small world. What makes more grants
//! possible is not a choice there: masters beat, look and grant at every moment, and links pass
//! everything on unless an event holds it back. The second search plays long random lives with
//! clocks of different rates and nodes that stand still.

mod flaw;
mod world;

use std::collections::HashMap;
use std::hash::BuildHasher;

use flaw::Flaw;
use foldhash::fast::FixedState;
use redislock_core::replication_lease::{Rule, Settings};
use redislock_core::time::Micros;
use world::{Clock, Step, World};

/// The small world's lease and lag.
const LEASE: u64 = 2;
const LAG: u64 = 1;
/// For how many ticks it is looked at: twice the wait, and one more.
const SPAN: u64 = 7;

/// Every order of at most `events` events within `span` ticks.
struct Search {
    /// With how many events left a world was seen.
    seen: HashMap<u64, u32>,
    end: u64,
    way: Vec<Step>,
}

impl Search {
    /// How many worlds there were, or the way to a violation.
    fn of(nodes: usize, chained: bool, flaw: Flaw, events: u32) -> Result<usize, Vec<Step>> {
        let needed = if flaw == Flaw::NoMajority {
            1
        } else {
            nodes / 2
        };
        let rule = Rule {
            needed,
            lag: Micros(LAG),
            wait: Micros(LEASE + LAG),
        };
        let clocks = vec![Clock::TRUE; nodes];
        let world = World::settled(clocks, chained, flaw.rule(rule, LEASE), flaw, LEASE);
        let end = world.time + SPAN;
        let mut search = Search {
            seen: HashMap::new(),
            end,
            way: Vec::new(),
        };
        if search.is_safe(&world, events) {
            Ok(search.seen.len())
        } else {
            Err(search.way)
        }
    }

    /// Whether all is well from here on.
    fn is_safe(&mut self, world: &World, events: u32) -> bool {
        let hash = FixedState::default().hash_one(world);
        match self.seen.get_mut(&hash) {
            Some(left) if *left >= events => return true,
            Some(left) => *left = events,
            None => drop(self.seen.insert(hash, events)),
        }
        let advance = (world.time < self.end).then_some((Step::Advance(1), events));
        let mut steps = Vec::from_iter(advance);
        if let Some(left) = events.checked_sub(1) {
            let events = world.telling_events().into_iter();
            steps.extend(events.map(|event| (event, left)));
        }
        for (step, left) in steps {
            let mut next = world.clone();
            self.way.push(step);
            if !next.step(step) || !self.is_safe(&next, left) {
                return false;
            }
            self.way.pop();
        }
        true
    }
}

#[test]
fn no_order_of_events_lets_two_of_three_masters_grant_at_once() {
    let found = Search::of(3, false, Flaw::None, 3);
    let worlds = found.expect("no way to a violation");
    assert!(worlds > 1000, "only {worlds} worlds");
}

#[test]
fn nor_if_one_replica_follows_the_other() {
    let found = Search::of(3, true, Flaw::None, 3);
    let worlds = found.expect("no way to a violation");
    assert!(worlds > 1000, "only {worlds} worlds");
}

#[test]
fn neither_with_two_nodes_nor_with_four() {
    for (nodes, events) in [(2, 3), (4, 2)] {
        let found = Search::of(nodes, false, Flaw::None, events);
        found.expect("no way to a violation");
    }
}

#[test]
fn every_wrong_rule_is_found() {
    for flaw in Flaw::SMALL {
        let nodes = if flaw == Flaw::NoMajority { 4 } else { 3 };
        // The late acknowledgement needs a promoted node that has a replica at once.
        let chained = flaw == Flaw::EvidenceByArrival;
        let found = Search::of(nodes, chained, flaw, 3);
        assert!(found.is_err(), "{flaw:?} was not found");
    }
}

/// Numbers that look random and come again with the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 += 1;
        (FixedState::default().hash_one(self.0) % end as u64) as usize
    }
}

/// The rule for so many nodes.
fn rule(nodes: usize, lag: u64, longest_lease: u64) -> Rule {
    let settings = Settings {
        needed: (nodes / 2) as u64,
        lag: Micros(lag),
        lag_at_start: Micros(lag),
        longest_lease: Some(Micros(longest_lease)),
    };
    Rule::of(settings).expect("a rule")
}

/// One long random life with leases of seconds and clocks whose rates differ; the step that broke
/// exclusion, if any.
fn live(nodes: usize, flaw: Flaw, seed: u64, steps: usize) -> Option<(usize, Step)> {
    let (lease, lag) = (3_000_000, 1_000_000);
    let mut random = Random(seed << 32);
    let rule = rule(nodes, lag, lease);
    let clocks = (0..nodes).map(|_| Clock {
        ahead: random.below(1 << 40) as u64,
        percent: 99 + random.below(3) as u64,
    });
    let clocks = clocks.collect();
    let mut world = World::settled(clocks, false, flaw.rule(rule, lease), flaw, lease);
    for at in 0..steps {
        let step = match random.below(10) {
            0 => {
                let events = world.events();
                events[random.below(events.len())]
            }
            1 => Step::Pause(random.below(nodes)),
            _ => Step::Advance(random.below(lag as usize / 3) as u64),
        };
        if !world.step(step) {
            return Some((at, step));
        }
    }
    None
}

#[test]
fn random_lives_find_wrong_rules_too() {
    for flaw in Flaw::RANDOM {
        let found = (0..100).any(|seed| live(3, flaw, seed, 500).is_some());
        assert!(found, "{flaw:?} was not found");
    }
}

#[test]
fn no_random_run_lets_two_masters_grant_at_once() {
    for seed in 0..60 {
        for nodes in [2, 3, 5] {
            let violation = live(nodes, Flaw::None, seed, 500);
            assert_eq!(violation, None, "seed {seed}, {nodes} nodes");
        }
    }
}

/// The old master's clock is slow, the new one's is fast.
fn fail_over_between_wrong_clocks(flaw: Flaw) -> bool {
    let (lease, lag) = (3_000_000, 1_000_000);
    let clocks = [99, 101, 100].map(|percent| Clock { ahead: 0, percent });
    let rule = flaw.rule(rule(3, lag, lease), lease);
    let mut world = World::settled(clocks.to_vec(), false, rule, flaw, lease);
    let steps = [Step::Promote(1), Step::Attach(2, 1)].into_iter();
    let mut steps = steps.chain([Step::Advance(1000); 6000]);
    steps.all(|step| world.step(step))
}

#[test]
fn clocks_of_different_rates_are_what_the_slack_is_for() {
    assert!(fail_over_between_wrong_clocks(Flaw::None));
    assert!(!fail_over_between_wrong_clocks(Flaw::NoSlack));
}
