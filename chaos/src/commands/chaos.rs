//! `redislock-chaos run`: one plan on real servers, its report, and an end that leaves nothing.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use redislock_chaos::servers::{
    FAMILIES, Family, Flaw, Plan, Porcupine, Record, Settings, Verdict, draw, journal, run,
    summary, without_effect, work,
};
use tokio::signal::unix::{SignalKind, signal};

pub const USAGE: &str = "\
usage: redislock-chaos run [--seconds COUNT] [--seed SEED] [--faults NAME,...] [--flaw NAME]
                           [--module FILE] [--report FOLDER] [--porcupine PROGRAM]
  --seconds COUNT      about how long (300)
  --seed SEED          the faults follow from it (any)
  --faults NAME,...    only these families: kill, amnesia, pause, partition, clock, disk, cut,
                       client, sentinel, cluster, reshard (all)
  --flaw NAME          without a protection, to see that it is noticed: no-write-back,
                       no-fence-check, no-quarantine, no-token-check (the last two need a module
                       with the feature failpoints)
  --module FILE        this build of the module
  --report FOLDER      report, journals and pictures go there (target/chaos)
  --porcupine PROGRAM  check the journals with this build of chaos/porcupine, too";

/// After a signal, servers and clients get this long to end in order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the command line asks for.
struct Options {
    seconds: u64,
    seed: u64,
    families: Vec<Family>,
    flaw: Option<Flaw>,
    module: Option<PathBuf>,
    report: PathBuf,
    porcupine: Option<Porcupine>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            seconds: 300,
            seed: fastrand::u64(1..1_000_000),
            families: FAMILIES.map(|(_, family)| family).to_vec(),
            flaw: None,
            module: None,
            report: PathBuf::from("target/chaos"),
            porcupine: None,
        };
        while let Some(name) = args.next() {
            let value = args.next();
            let value = value.ok_or_else(|| format!("{name} needs a value\n{USAGE}"))?;
            let number = || value.parse().map_err(|_| format!("{name} needs a number"));
            match name.as_str() {
                "--seconds" => options.seconds = number()?,
                "--seed" => options.seed = number()?,
                "--faults" => {
                    let names = value.split([',', ' ']).filter(|name| !name.is_empty());
                    let families = names.map(|name| named(&FAMILIES, name));
                    options.families = families.collect::<Result<_, _>>()?;
                }
                "--flaw" => options.flaw = Some(named(&Flaw::ALL, &value)?),
                "--module" => options.module = Some(absolute(&value)?),
                "--report" => options.report = PathBuf::from(value),
                "--porcupine" => options.porcupine = Some(Porcupine::at(absolute(&value)?)),
                _ => return Err(format!("unknown option {name}\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// The command that does the same again.
    fn repeat(&self) -> String {
        let names: Vec<&str> = self.families.iter().map(|family| family.name()).collect();
        let mut command = format!("make chaos SEED={} SECONDS={}", self.seed, self.seconds);
        if names.len() < FAMILIES.len() {
            command += &format!(" FAULTS={}", names.join(","));
        }
        command
    }
}

fn named<T: Copy>(all: &[(&str, T)], wanted: &str) -> Result<T, String> {
    let known = all.iter().find(|(name, _)| *name == wanted);
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    known
        .map(|(_, it)| *it)
        .ok_or_else(|| format!("there is no {wanted}, only {}", names.join(", ")))
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))
}

/// A client process.
pub fn worker(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let job = args.next().ok_or("a worker needs a job")?;
    let job = serde_json::from_str(&job).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let worked = runtime.block_on(work(job));
    // A thread that reads standard input cannot be ended.
    runtime.shutdown_background();
    worked
}

/// What the main thread waits for.
enum News {
    Done(Result<bool, String>),
    Signal,
}

/// Runs the command; false if a promise was broken.
pub fn command(args: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(args)?;
    let failed = |error: std::io::Error| format!("cannot prepare the run: {error}");
    // Everything that servers write is in here, and goes with it.
    let folder = tempfile::Builder::new()
        .prefix("redislock-chaos-")
        .tempdir();
    let folder = folder.map_err(failed)?;
    tempfile::env::override_temp_dir(folder.path())
        .map_err(|_| "the folder for temporary files is in use".to_owned())?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let (send, news) = channel();
    watch_signals(send.clone()).map_err(failed)?;
    let stop = Arc::clone(&interrupted);
    // Servers end with the thread that started them.
    let runner = std::thread::spawn(move || chaos(&options, &stop));
    std::thread::spawn(move || {
        let done = runner.join();
        let done = done.unwrap_or_else(|_| Err("the run has failed: see above".to_owned()));
        let _ = send.send(News::Done(done));
    });
    let outcome = wait(&news, &interrupted);
    let removed = folder.close();
    removed.map_err(|error| format!("{error}"))?;
    outcome
}

fn wait(news: &Receiver<News>, interrupted: &AtomicBool) -> Result<bool, String> {
    match news.recv() {
        Ok(News::Done(done)) => done,
        Ok(News::Signal) | Err(_) => {
            interrupted.store(true, Ordering::Relaxed);
            // What does not end by then, the kernel ends with this process.
            let _ = news.recv_timeout(CLOSE_TIMEOUT);
            Err("interrupted".to_owned())
        }
    }
}

fn watch_signals(send: Sender<News>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut end), Ok(mut hangup)) = (
                signal(SignalKind::interrupt()),
                signal(SignalKind::terminate()),
                signal(SignalKind::hangup()),
            ) else {
                return;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = end.recv() => {}
                _ = hangup.recv() => {}
            }
            let _ = send.send(News::Signal);
        });
    });
    Ok(())
}

fn progress(text: &str) {
    let mut err = std::io::stderr();
    // Without somebody who reads it, progress is not worth an error.
    let _ = if err.is_terminal() {
        write!(err, "\r\x1b[K{text}")
    } else {
        writeln!(err, "{text}")
    };
}

fn chaos(options: &Options, interrupted: &Arc<AtomicBool>) -> Result<bool, String> {
    let plan = Plan::new(options.seed, options.seconds, &options.families);
    eprintln!(
        "chaos with seed {}; report in {}",
        plan.seed,
        options.report.display()
    );
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let settings = Settings {
        program: vec![program.display().to_string(), "worker".to_owned()],
        module: options.module.clone(),
        flaw: options.flaw,
        interrupted: Arc::clone(interrupted),
        progress,
    };
    fs::create_dir_all(&options.report).map_err(|error| error.to_string())?;
    remove_earlier(&options.report).map_err(|error| error.to_string())?;
    let (mut records, mut notes) = (Vec::new(), Vec::new());
    for (number, episode) in plan.episodes.iter().enumerate() {
        let Some(mut record) = run(episode, &settings)? else {
            return Ok(false);
        };
        notes.extend(keep(options, number + 1, &mut record)?);
        let is_broken = !record.problems.is_empty();
        records.push(record);
        if is_broken {
            break;
        }
    }
    progress("");
    let text = summary(&plan, &options.repeat(), &records, &notes);
    println!("{text}");
    fs::write(options.report.join(REPORT), text).map_err(|error| error.to_string())?;
    let is_whole = records.len() == plan.episodes.len() && !records.is_empty();
    let is_good = records.iter().all(|record| record.problems.is_empty());
    Ok(is_whole && is_good && without_effect(&records).is_empty())
}

const REPORT: &str = "report.txt";

/// Removes the files of an earlier run, and nothing else.
fn remove_earlier(report: &Path) -> std::io::Result<()> {
    for file in fs::read_dir(report)? {
        let file = file?;
        if file.file_name().to_str().is_some_and(is_ours) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Whether a run writes files with this name: the report, or `1-cluster.svg`.
fn is_ours(name: &str) -> bool {
    let of_episode = name.split_once('-').is_some_and(|(number, rest)| {
        let ending = rest.rsplit_once('.').map(|(_, ending)| ending);
        number.parse::<usize>().is_ok() && matches!(ending, Some("jsonl" | "svg"))
    });
    name == REPORT || of_episode
}

/// Writes the journal and the picture of an episode, and asks the other checker.
fn keep(options: &Options, number: usize, record: &mut Record) -> Result<Vec<String>, String> {
    let name = format!("{number}-{}", record.episode.setup);
    let path = |ending: &str| options.report.join(format!("{name}.{ending}"));
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let history = path("jsonl");
    write(&history, journal(&record.entries))?;
    let title = format!("{}, seed {}", record.episode.setup, options.seed);
    write(&path("svg"), draw(record, &title))?;
    let Some(porcupine) = &options.porcupine else {
        return Ok(Vec::new());
    };
    let verdict = porcupine.check(&history)?;
    if let Verdict::Rejected(said) = &verdict {
        record.problems.push(format!("porcupine: {said}"));
    }
    let (Verdict::Accepted(said) | Verdict::Rejected(said)) = verdict;
    Ok(vec![format!("porcupine on {name}: {said}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_earlier_runs_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keep = ["notes.txt", "chaos.svg", "x-cluster.svg", "1-cluster.txt"];
        let remove = ["report.txt", "1-cluster.svg", "12-volatile-3.jsonl"];
        for name in keep.iter().chain(&remove) {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        remove_earlier(folder.path()).expect("the folder");
        for name in keep {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        for name in remove {
            assert!(!folder.path().join(name).exists(), "{name}");
        }
    }
}
