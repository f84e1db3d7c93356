//! Seeds of the simulation as tests: no seed breaks a promise, every seed replays exactly, and
//! every flaw that is planted is found. `make simulate` runs many more seeds.

use redislock_chaos::simulation::{Check, FLAWS, Outcome, Plan, reduce, run};
use redislock_testkit::history::What;

fn outcome(plan: &Plan) -> Outcome {
    run(plan, false).unwrap()
}

/// Seeds without a violation, which must contain what the checks are about: most machines use every
/// lock once more at the end, and registers refuse late writes.
fn no_promise_is_broken(seeds: std::ops::Range<u64>) {
    let (mut machines, mut settled, mut whole, mut refused) = (0, 0, 0, 0);
    for seed in seeds {
        let plan = Plan::new(seed, None, None);
        let outcome = outcome(&plan);
        let problem = outcome.violation.map(|violation| violation.to_string());
        assert_eq!(problem, None, "make simulate SEED={seed}");
        let all = plan.machines as u64;
        machines += all;
        settled += outcome.counts.settled;
        whole += u64::from(outcome.counts.settled == all);
        refused += outcome.counts.delayed.refused;
    }
    assert!(settled * 2 >= machines, "{settled} of {machines} machines");
    assert!(whole > 0, "in no seed did all machines settle");
    assert!(refused > 0, "no late write was refused");
}

// In parts, so that they run at the same time.
#[test]
fn no_promise_is_broken_1() {
    no_promise_is_broken(1..26);
}

#[test]
fn no_promise_is_broken_2() {
    no_promise_is_broken(26..51);
}

#[test]
fn no_promise_is_broken_3() {
    no_promise_is_broken(51..76);
}

#[test]
fn no_promise_is_broken_4() {
    no_promise_is_broken(76..101);
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..6 {
        let plan = Plan::new(seed, None, None);
        let (first, second) = (run(&plan, true).unwrap(), run(&plan, true).unwrap());
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
        let other = Plan::new(seed + 100, None, None);
        assert_ne!(outcome(&other).digest, first.digest, "seed {seed}");
    }
}

/// A clock far ahead on one node of three or two of five must not keep the others from agreeing. A
/// client asked for the far fence as soon as a majority had granted, and took the refusals for the
/// end of these grants.
#[test]
fn clocks_that_are_far_ahead_do_not_keep_the_others_from_agreeing() {
    for seed in [32, 56, 128, 179, 352] {
        assert!(outcome(&Plan::new(seed, None, None)).violation.is_none());
    }
}

/// The connection is reset when the release is sent: it is repeated in the background, later than
/// after every other release.
#[test]
fn a_release_without_a_reply_may_arrive_later() {
    let outcome = outcome(&Plan::new(6558, None, None));
    assert!(outcome.violation.is_none());
    assert!(outcome.counts.repeated_releases > 0, "choose another seed");
}

/// Plans with this flaw.
fn flawed(name: &str, nodes: usize, seeds: u64) -> impl Iterator<Item = Plan> {
    let (_, flaw) = *FLAWS.iter().find(|(known, _)| *known == name).unwrap();
    (1..=seeds).map(move |seed| Plan::new(seed, Some(nodes), Some(flaw)))
}

/// The first seed that breaks one of these promises because of the flaw.
fn found(name: &str, nodes: usize, seeds: u64, broken: &[Check]) -> Option<(Plan, Check)> {
    flawed(name, nodes, seeds).find_map(|plan| {
        let check = outcome(&plan).violation?.check;
        broken.contains(&check).then_some((plan, check))
    })
}

/// What each flaw breaks, and with how many nodes that is seen soonest. Without the write-back,
/// extensions fail, too: some seeds notice only that.
const BROKEN: [(&str, usize, &[Check]); 8] = [
    ("valid-from-reply", 1, &[Check::Unbacked, Check::Overlap]),
    (
        "half-is-enough",
        5,
        &[Check::Unbacked, Check::Overlap, Check::FenceOrder],
    ),
    ("no-drift-allowance", 1, &[Check::Unbacked, Check::Overlap]),
    ("no-write-back", 3, &[Check::FenceOrder]),
    ("no-release", 3, &[Check::Orphan]),
    ("no-quarantine", 1, &[Check::Unbacked, Check::Overlap]),
    ("counter-not-saved", 1, &[Check::FenceOrder]),
    ("no-fence-check", 3, &[Check::LostUpdate]),
];

#[test]
fn every_planted_flaw_is_found() {
    assert_eq!(BROKEN.map(|(name, ..)| name), FLAWS.map(|(name, _)| name));
    for (name, nodes, broken) in BROKEN {
        let seed = found(name, nodes, 200, broken);
        assert!(seed.is_some(), "no seed notices {name}");
    }
}

/// Paused holders lose updates, too: in some seed, the first lost update must be that of a write
/// that was delayed.
#[test]
fn without_the_fence_check_a_late_write_is_a_lost_update() {
    let is_found = flawed("no-fence-check", 3, 50).any(|plan| {
        let Outcome {
            violation, journal, ..
        } = outcome(&plan);
        let Some(violation) = violation.filter(|found| found.check == Check::LostUpdate) else {
            return false;
        };
        journal.iter().any(|entry| {
            let is_late = matches!(
                entry.what,
                What::Write {
                    arrived: Some(_),
                    was: Some(_),
                    ..
                }
            );
            is_late && entry.at == violation.at
        })
    });
    assert!(is_found);
}

#[test]
fn a_failing_seed_is_reduced_to_a_short_plan() {
    let broken = [Check::Unbacked, Check::Overlap, Check::FenceOrder];
    let (plan, check) = found("half-is-enough", 3, 20, &broken).expect("a failing seed");
    let (smallest, outcome) = reduce(&plan).unwrap();
    assert_eq!(
        outcome.violation.map(|violation| violation.check),
        Some(check)
    );
    assert!(smallest.faults.len() <= plan.faults.len().min(3));
    assert!(
        outcome
            .trace
            .iter()
            .any(|(_, text)| text.starts_with("VIOLATION"))
    );
}

/// Overlaps are found at the end of a run, and the trace ends where they happened.
#[test]
fn a_trace_ends_soon_after_its_violation() {
    let mut plans = flawed("no-quarantine", 1, 1_000);
    let overlaps = |plan: &Plan| {
        let violation = outcome(plan).violation;
        violation.is_some_and(|violation| violation.check == Check::Overlap)
    };
    let plan = plans.find(overlaps).expect("a failing seed");
    let (_, outcome) = reduce(&plan).unwrap();
    let violation = outcome.violation.expect("the same violation");
    let violated = violation.at / 1000;
    let last = outcome.trace.last().expect("a trace").0;
    assert!((violated..=violated + 100).contains(&last), "{last} ms");
    let lines = outcome.trace.iter();
    let mut named = lines.filter(|(_, text)| text.starts_with("VIOLATION"));
    assert!(named.any(|(at, text)| *at == violated && text.contains(&violation.text)));
}

/// What the clients acquire after the faults is checked like the rest: it is in the journal.
#[test]
fn recovery_is_in_the_journal() {
    let plan = Plan::new(1, None, None);
    let late = outcome(&plan).journal.into_iter().filter(|entry| {
        let healed = 32_000_000;
        entry.at > healed && matches!(entry.what, What::Held { .. })
    });
    assert!(late.count() >= plan.machines * plan.locks);
}
