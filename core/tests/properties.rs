//! The core against the reference model: random lives of a node, compared after every step.
//! `PROPTEST_CASES` says how many.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::driver::Driver;
use crate::driver::bug::Bug;
use crate::driver::step::{Life, Step, Wish, entangled_life, life};
use crate::reference::{Mode, Request};

fn lead(bug: Option<Bug>, life: &Life) -> Result<(), String> {
    let mut driver = Driver::new(bug);
    for (at, step) in life.0.iter().enumerate() {
        driver
            .step(step)
            .map_err(|wrong| format!("step {at}, {step:?}: {wrong}"))?;
    }
    driver.end()
}

proptest! {
    // A life that fails becomes a test of its own.
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn the_core_does_what_the_contract_says(life in life()) {
        lead(None, &life).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_wait_is_refused_exactly_if_it_would_cause_a_deadlock(life in entangled_life()) {
        lead(None, &life).map_err(TestCaseError::fail)?;
    }
}

/// How many random lives a planted bug may survive.
const LIVES: u32 = 500;

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        let config = Config {
            max_shrink_iters: 0,
            cases: LIVES,
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let found = TestRunner::new_with_rng(config, rng).run(&life(), |life| {
            let outcome = std::panic::catch_unwind(|| lead(Some(bug), &life));
            prop_assert!(matches!(outcome, Ok(Ok(()))));
            Ok(())
        });
        assert!(found.is_err(), "{bug:?} was not found in {LIVES} lives");
    }
}

/// An exclusive request of an owner.
fn exclusive(token: u8, keys: &[(u32, u8)]) -> Request {
    Request {
        keys: keys.to_vec(),
        token,
        ttl: 1024,
        mode: Mode::Exclusive,
        once: false,
        fence: 0,
        max_hold: 0,
        ephemeral: false,
        connection: 0,
        owner: None,
    }
}

fn acquires(request: Request, waits: bool) -> Step {
    Step::Acquire {
        request,
        wish: Wish::None,
        block: waits.then_some(None),
    }
}

#[track_caller]
fn goes_well(life: Vec<Step>) {
    assert_eq!(lead(None, &Life(life)), Ok(()));
}

/// The replica was not told that the lease had become shorter.
#[test]
fn an_extension_that_is_refused_keeps_the_shorter_lease_of_a_closed_connection() {
    let request = Request {
        ttl: 5120,
        max_hold: 6,
        ephemeral: true,
        connection: 2,
        ..exclusive(0, &[(0, 0)])
    };
    goes_well(vec![
        acquires(request, false),
        Step::HangUp {
            connection: 2,
            grace: 1024,
        },
        Step::Extend {
            key: (0, 0),
            token: 5,
            ttl: 6144,
            wish: Wish::None,
            connection: 0,
        },
    ]);
}

/// A string that was seen for somebody who has left held up a later waiter.
#[test]
fn a_string_that_has_moved_away_does_not_hold_up_a_later_waiter() {
    goes_well(vec![
        Step::SetString((0, 1)),
        acquires(exclusive(0, &[(0, 1)]), true),
        Step::Abandon(0),
        Step::Swap,
        acquires(exclusive(0, &[(0, 0)]), false),
        acquires(exclusive(1, &[(0, 0), (0, 1)]), true),
        acquires(exclusive(0, &[(0, 0)]), false),
        Step::Advance {
            ticks: 1,
            timer: true,
        },
    ]);
}

/// The check expected the replies in the order of the keys, which no client can see.
#[test]
fn a_release_of_several_keys_may_end_several_waits_of_its_token() {
    goes_well(vec![
        acquires(exclusive(2, &[(0, 3), (0, 1)]), true),
        acquires(exclusive(4, &[(0, 1)]), true),
        acquires(exclusive(0, &[(0, 0)]), false),
        acquires(exclusive(1, &[(0, 0), (0, 2)]), true),
        acquires(exclusive(4, &[(0, 0)]), true),
        Step::Release {
            keys: vec![(0, 2), (0, 0), (0, 1)],
            token: 9,
            all: true,
        },
    ]);
}
