//! The core against the reference model: random lives of a node, compared after every step.
//! `PROPTEST_CASES` says how many.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::driver::Driver;
use crate::driver::bug::Bug;
use crate::driver::step::{Life, life};

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
