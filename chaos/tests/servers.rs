//! Short runs on real servers: nothing is broken and nothing is left behind, and a run without a
//! protection fails. `make chaos` runs for longer.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use redislock_chaos::servers::{FAMILIES, Family, Plan, Settings, run};
use redislock_testkit::process::{Outcome, Running, outcome};
use redislock_testkit::{fragile_module, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

/// A run whose folders and processes can be looked for afterwards.
struct Run {
    command: Command,
    temporary: TempDir,
    report: TempDir,
}

impl Run {
    fn new(words: &[&str]) -> Run {
        let folder = || tempfile::tempdir().expect("a temporary folder");
        let (temporary, report) = (folder(), folder());
        let mut command = Command::new(env!("CARGO_BIN_EXE_redislock-chaos"));
        command
            .arg("run")
            .args(words)
            .arg("--report")
            .arg(report.path())
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Run {
            command,
            temporary,
            report,
        }
    }

    /// Runs it to its end; it leaves no file, and no process that works in its folder.
    fn end(self) -> (Outcome, TempDir) {
        let ended = outcome(self.command);
        is_empty(self.temporary.path());
        (ended, self.report)
    }
}

/// The servers of a run have folders in its folder: without one, there is none of them.
fn is_empty(folder: &Path) {
    let left: Vec<_> = std::fs::read_dir(folder).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let works_in = std::fs::read_link(process.path().join("cwd")).unwrap_or_default();
        assert!(!works_in.starts_with(folder), "{:?}", process.path());
    }
}

#[test]
fn a_plan_follows_from_its_seed_and_has_every_family() {
    let all = FAMILIES.map(|(_, family)| family);
    let plan = |seed| Plan::new(seed, 300, &all);
    for seed in 1..50 {
        assert_eq!(plan(seed), plan(seed));
        assert_ne!(plan(seed), plan(seed + 1));
        let plan = plan(seed);
        let faults = plan.episodes.iter().flat_map(|episode| &episode.faults);
        let faults: Vec<Family> = faults.map(|fault| fault.family).collect();
        let missing = all.iter().find(|family| !faults.contains(family));
        assert_eq!(missing, None, "seed {seed}");
        for episode in &plan.episodes {
            let ends = |fault| fault <= episode.length;
            assert!(episode.faults.iter().all(|it| ends(it.at + it.length)));
        }
    }
}

#[test]
fn a_short_run_breaks_no_promise_and_leaves_nothing_behind() {
    let faults = "amnesia,kill,pause,partition,clock,disk,cut,client";
    let run = Run::new(&["--seed", "7", "--seconds", "30", "--faults", faults]);
    let (ended, report) = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.out);
    assert!(ended.out.contains("no promise was broken"), "{}", ended.out);
    let files = std::fs::read_dir(report.path()).expect("the report");
    let names = files.flatten().map(|file| file.file_name());
    let names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    for ending in [".txt", ".svg", ".jsonl"] {
        assert!(names.iter().any(|name| name.ends_with(ending)), "{names:?}");
    }
}

#[test]
fn a_panic_of_the_runner_is_a_problem_and_keeps_the_journal() {
    let plan = Plan::new(7, 1, &[Family::Amnesia]);
    let worker = [env!("CARGO_BIN_EXE_redislock-chaos"), "worker"];
    let settings = Settings {
        program: worker.map(str::to_owned).to_vec(),
        module: None,
        flaw: None,
        interrupted: Arc::default(),
        progress: |text| assert!(!text.ends_with("recovering"), "a planted panic"),
    };
    let record = run(&plan.episodes[0], &settings).expect("a run");
    let record = record.expect("a run that was not interrupted");
    assert!(record.problems[0].contains("panicked"), "{record:?}");
    assert!(record.faults()["amnesia"].happened > 0, "{record:?}");
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing_behind() {
    let run = Run::new(&["--seed", "7", "--seconds", "600", "--faults", "kill"]);
    let folder = run.temporary.path().to_owned();
    let mut running = Running::start(run.command);
    wait_until("its servers have started", || {
        let files = std::fs::read_dir(&folder).expect("the folder").flatten();
        let inside = files.filter_map(|file| std::fs::read_dir(file.path()).ok());
        inside.flatten().count() > 3
    });
    running.signal(Signal::INT);
    assert_eq!(running.end().code, Some(2));
    is_empty(&folder);
}

/// Whether a run without a protection is noticed, with one of a few seeds. One master alone shows
/// it soonest where a plan starts with masters that forget.
fn is_noticed(flaw: &str, faults: &str, module: Option<&Path>, expected: &[&str]) {
    let families = FAMILIES.iter().filter(|(name, _)| faults.contains(name));
    let families: Vec<Family> = families.map(|(_, family)| *family).collect();
    let is_soon = |seed: &u64| {
        let plan = Plan::new(*seed, 30, &families);
        plan.episodes[0].setup.to_string() == "volatile-1"
    };
    let noticed = (1..).filter(is_soon).take(6).any(|seed| {
        let seed = seed.to_string();
        let words = ["--seed", &seed, "--seconds", "30", "--faults", faults];
        let mut run = Run::new(&words);
        run.command.args(["--flaw", flaw]);
        if let Some(module) = module {
            run.command.arg("--module").arg(module);
        }
        let (ended, _) = run.end();
        let is_expected = expected.iter().any(|word| ended.out.contains(word));
        assert_ne!(ended.code, Some(2), "{}", ended.out);
        ended.code == Some(1) && is_expected
    });
    assert!(noticed, "{flaw}");
}

#[test]
fn without_the_write_back_a_run_fails() {
    let expected = ["Disordered", "Doubled", "LostUpdate"];
    is_noticed("no-write-back", "clock,partition,kill", None, &expected);
}

#[test]
fn without_the_fence_check_a_run_fails() {
    is_noticed("no-fence-check", "client", None, &["LostUpdate"]);
}

#[test]
fn without_the_quarantine_a_run_fails() {
    let expected = ["Overlap", "FalselyHeld"];
    is_noticed(
        "no-quarantine",
        "amnesia",
        Some(fragile_module()),
        &expected,
    );
}

#[test]
fn without_the_token_check_a_run_fails() {
    let expected = ["Overlap", "FalselyHeld"];
    is_noticed(
        "no-token-check",
        "client",
        Some(fragile_module()),
        &expected,
    );
}
