//! Agreement with a checker that somebody else wrote: what ours accepts, porcupine accepts, and it
//! rejects what ours rejects.

use std::fs;
use std::sync::LazyLock;

use redislock_chaos::servers::{Porcupine, Verdict};
use redislock_chaos::simulation::{FLAWS, Plan, run};
use redislock_testkit::history::{Claims, Entry, Violation, What};
use tempfile::TempDir;

/// Built once; none without Go, which is an error where everything is to be tested.
static PORCUPINE: LazyLock<Option<(TempDir, Porcupine)>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let built = Porcupine::build(folder.path()).expect("the checker is built");
    if built.is_none() {
        let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(
            !is_ci,
            "Go is missing: porcupine cannot check the histories"
        );
        eprintln!("skipped: Go is missing, so porcupine cannot check the histories");
    }
    Some((folder, built?))
});

/// Whether porcupine accepts a journal; none if it is not there.
fn accepts(entries: &[Entry]) -> Option<bool> {
    let (folder, porcupine) = PORCUPINE.as_ref()?;
    let file = tempfile::NamedTempFile::new_in(folder.path()).expect("a file");
    let lines: String = entries.iter().map(Entry::line).collect();
    fs::write(file.path(), lines).expect("the journal is written");
    let verdict = porcupine.check(file.path()).expect("a verdict");
    Some(matches!(verdict, Verdict::Accepted(_)))
}

/// Whether our checker accepts it. Registers are not part of a mutex.
fn we_accept(entries: &[Entry]) -> bool {
    let found = Claims::of(entries).violations(true);
    let is_of_mutex = |violation: &Violation| !matches!(violation, Violation::LostUpdate(..));
    !found.iter().any(|(_, violation)| is_of_mutex(violation))
}

fn entry(at: u64, claim: u64, what: What) -> Entry {
    Entry {
        at,
        client: 0,
        claim,
        what,
    }
}

/// Two holders in a row: asked, held, until, released; fences 10 and 11.
struct Two {
    first: [u64; 4],
    second: [u64; 4],
    fences: [u64; 2],
    more: Vec<Entry>,
}

impl Two {
    fn good() -> Self {
        Self {
            first: [0, 10, 100, 50],
            second: [20, 60, 160, 150],
            fences: [10, 11],
            more: Vec::new(),
        }
    }

    fn with(mut self, entry: Entry) -> Self {
        self.more.push(entry);
        self
    }

    fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (claim, times, fence) in [
            (1, self.first, self.fences[0]),
            (2, self.second, self.fences[1]),
        ] {
            let [asked, at, until, released] = times;
            let locks = vec!["x".to_owned()];
            let shared = false;
            entries.push(entry(asked, claim, What::Ask { locks, shared }));
            entries.push(entry(at, claim, What::Held { fence, until }));
            if released > 0 {
                let held = Some(true);
                entries.push(entry(released, claim, What::Release));
                entries.push(entry(released + 5, claim, What::Released { held }));
            }
        }
        entries.extend(self.more.iter().cloned());
        entries
    }
}

#[track_caller]
fn both(expected: bool, two: &Two) {
    let entries = two.entries();
    assert_eq!(we_accept(&entries), expected, "ours: {entries:#?}");
    if let Some(theirs) = accepts(&entries) {
        assert_eq!(theirs, expected, "porcupine: {entries:#?}");
    }
}

#[test]
fn both_accept_holders_that_follow_each_other() {
    both(true, &Two::good());
    // The lease of the first one ends, or it is entered again.
    let mut expired = Two::good();
    expired.first = [0, 10, 55, 0];
    both(true, &expired);
    let again = Two::good().with(entry(
        30,
        1,
        What::Again {
            fence: 10,
            asked: 25,
        },
    ));
    both(true, &again.with(entry(40, 1, What::Leave { asked: 35 })));
    // A guard that was over when it came claims nothing.
    let mut late = Two::good();
    late.first = [0, 90, 0, 0];
    both(true, &late);
}

#[test]
fn both_reject_a_second_holder_before_the_end_of_the_first() {
    let mut overlap = Two::good();
    overlap.first = [0, 10, 100, 0];
    both(false, &overlap);
    let mut extended = Two::good();
    extended.first = [0, 10, 55, 0];
    both(
        false,
        &extended.with(entry(50, 1, What::Valid { until: 90 })),
    );
}

#[test]
fn both_reject_a_guard_that_says_held_after_another_holder() {
    let mut falsely = Two::good();
    falsely.first = [0, 10, 55, 0];
    falsely.second = [20, 60, 160, 70];
    both(
        false,
        &falsely.with(entry(80, 1, What::Valid { until: 90 })),
    );
}

#[test]
fn both_reject_fences_that_do_not_grow() {
    let mut lower = Two::good();
    lower.second = [70, 80, 160, 150];
    lower.fences = [11, 10];
    both(false, &lower);
    let mut same = Two::good();
    same.fences = [10, 10];
    both(false, &same);
    both(
        false,
        &Two::good().with(entry(
            30,
            1,
            What::Again {
                fence: 12,
                asked: 25,
            },
        )),
    );
}

/// Requests that queue at the same time say nothing about their order, but their holds do.
#[test]
fn both_reject_a_lower_fence_of_a_later_holder_that_asked_before() {
    let mut queued = Two::good();
    queued.second = [5, 60, 160, 150];
    queued.fences = [11, 10];
    both(false, &queued);
}

#[test]
fn both_reject_a_re_entry_and_a_release_after_another_holder() {
    let expired = || {
        let mut two = Two::good();
        two.first = [0, 10, 55, 0];
        two.second = [20, 60, 160, 70];
        two
    };
    both(true, &expired());
    let (fence, asked, held) = (10, 85, Some(true));
    both(
        false,
        &expired().with(entry(90, 1, What::Again { fence, asked })),
    );
    let released = expired().with(entry(85, 1, What::Release));
    both(false, &released.with(entry(90, 1, What::Released { held })));
}

/// A request to share the lock that was never granted changes nothing.
#[test]
fn both_reject_an_overlap_at_a_lock_that_somebody_wanted_to_share() {
    let mut overlap = Two::good();
    overlap.first = [0, 10, 100, 0];
    let (locks, shared) = (vec!["x".to_owned()], true);
    both(
        false,
        &overlap.with(entry(200, 3, What::Ask { locks, shared })),
    );
}

#[test]
fn a_journal_without_a_request_is_not_accepted() {
    let journal = Two::good().entries().split_off(1);
    assert!(std::panic::catch_unwind(|| we_accept(&journal)).is_err());
    let Some((folder, porcupine)) = PORCUPINE.as_ref() else {
        return;
    };
    let file = tempfile::NamedTempFile::new_in(folder.path()).expect("a file");
    let lines: String = journal.iter().map(Entry::line).collect();
    for text in [lines, "half a line\n".to_owned()] {
        fs::write(file.path(), text).expect("the journal is written");
        assert!(porcupine.check(file.path()).is_err());
    }
}

/// Plans in which every holder excludes the others and fences are promised.
fn plans(flaw: Option<&str>, nodes: Option<usize>) -> impl Iterator<Item = Plan> {
    let flaw = FLAWS.iter().find(|(name, _)| Some(*name) == flaw);
    let flaw = flaw.map(|(_, flaw)| *flaw);
    let plans = (1..).map(move |seed| Plan::new(seed, nodes, flaw));
    plans.filter(|plan| !plan.shared && plan.promises_fences())
}

#[test]
fn both_accept_what_the_simulation_shows() {
    for plan in plans(None, None).take(8) {
        let outcome = run(&plan, false).expect("a runtime");
        assert!(outcome.counts.acquired > 0);
        assert!(we_accept(&outcome.journal), "ours, seed {}", plan.seed);
        let theirs = accepts(&outcome.journal);
        assert_ne!(theirs, Some(false), "porcupine, seed {}", plan.seed);
    }
}

#[test]
fn both_agree_about_every_seed_with_a_planted_flaw() {
    for flaw in ["half-is-enough", "no-write-back"] {
        let mut rejected = 0;
        for plan in plans(Some(flaw), Some(3)).take(8) {
            let outcome = run(&plan, false).expect("a runtime");
            let ours = we_accept(&outcome.journal);
            rejected += u32::from(!ours);
            let theirs = accepts(&outcome.journal).unwrap_or(ours);
            assert_eq!(theirs, ours, "{flaw}, seed {}", plan.seed);
        }
        assert!(rejected > 0, "{flaw} is not seen in any of these seeds");
    }
}
