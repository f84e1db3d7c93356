//! Commands that are prepared before the measurement and whose replies are checked, and where they
//! run.

use std::process::Command;
use std::time::{Duration, Instant};

use redislock_testkit::{Connection, Value, encode, project_folder};

use crate::Outcome;
use crate::hosts::Host;

/// How long clients may take to begin or to end their waits.
const PATIENCE: Duration = Duration::from_secs(120);

/// Adds a command to what will be sent.
pub fn put(buffer: &mut Vec<u8>, words: &[&str]) {
    buffer.extend_from_slice(&encode(words));
}

/// Sends a pipeline; each reply must be a success, or something else would be measured.
pub fn pipeline(connection: &mut Connection, bytes: &[u8], replies: usize) -> Outcome<()> {
    connection.try_send_raw(bytes)?;
    (0..replies).try_for_each(|_| check_yes(&connection.try_receive()?))
}

/// An error unless the reply is a success of the measured commands: `OK`, a number above 0, a value
/// that is not empty, or several of them.
pub fn check_yes(reply: &Value) -> Outcome<()> {
    if is_yes(reply) {
        Ok(())
    } else {
        Err(format!("not a yes: {reply:?}").into())
    }
}

fn is_yes(reply: &Value) -> bool {
    match reply {
        Value::Status(text) => text == "OK",
        Value::Integer(number) => *number > 0,
        Value::Bulk(value) => !value.is_empty(),
        Value::Array(all) => !all.is_empty() && all.iter().all(is_yes),
        _ => false,
    }
}

/// Waits until this many clients are blocked.
pub fn await_blocked(control: &mut Connection, number: usize) -> Outcome<()> {
    await_figure(control, "clients", "blocked_clients", number)
}

/// Waits until this many clients wait for locks of our module.
pub fn await_waiters(control: &mut Connection, number: usize) -> Outcome<()> {
    await_figure(control, "lock_state", "lock_waiters", number)
}

/// Waits until a field of INFO is this number.
fn await_figure(
    control: &mut Connection,
    section: &str,
    field: &str,
    number: usize,
) -> Outcome<()> {
    let start = Instant::now();
    loop {
        let now = control.try_info(section)?.number::<usize>(field)?;
        if now == number {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            let limit = PATIENCE.as_secs();
            return Err(format!("{field} is {now} after {limit} s, expected {number}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The server that is measured: "Redis 7.0.15".
pub fn server_name() -> Outcome<String> {
    let server = Host::Redislock.start(&[])?;
    let info = server.try_connect()?.try_info("server")?;
    let version = |name: &str, field| Some(format!("{name} {}", info.field(field)?));
    let found = version("Valkey", "valkey_version").or_else(|| version("Redis", "redis_version"));
    Ok(found.ok_or("INFO server has no version")?)
}

/// The processor of this machine, and how many cores of it this process may use.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|model| model.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let plural = if cores == 1 { "core" } else { "cores" };
    format!("{cores} {plural} of {model}")
}

/// The commit of the working tree, with a "+" if tracked files have changes, except for documents
/// and results; none without git.
pub fn commit() -> Option<String> {
    let hash = output("git", &["rev-parse", "--short", "HEAD"])?;
    let tracked = ["status", "--porcelain", "--untracked-files=no", "--"];
    let code = [
        ".",
        ":!*.md",
        ":!docs",
        ":!bench/results.json",
        ":!bench/peers/results.json",
    ];
    let changes = output("git", &[&tracked[..], &code].concat())?;
    let mark = if changes.is_empty() { "" } else { "+" };
    Some(format!("{hash}{mark}"))
}

/// Today: "2026-11-18".
pub fn date() -> Option<String> {
    output("date", &["-u", "+%Y-%m-%d"])
}

/// What a program prints; none if it fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let done = command.args(arguments).current_dir(project_folder());
    let done = done.output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| text.trim().to_owned())
}

/// The load average of the last minute; 0 if the system does not report it.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().and_then(|load| load.parse().ok());
    load.unwrap_or(0.0)
}

/// How long all processors wanted to run since the machine was started, in its own unit.
#[derive(Clone, Copy)]
pub struct Times {
    wanted: u64,
    /// Of it, what the host of a virtual machine gave to others.
    stolen: u64,
}

impl Times {
    /// None where the system does not report it.
    pub fn now() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal.
    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields = line.split_whitespace().take(8).map(str::parse);
        let fields: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
        let [user, nice, system, _, _, irq, softirq, stolen] = fields[..] else {
            return None;
        };
        Some(Self {
            wanted: user + nice + system + irq + softirq + stolen,
            stolen,
        })
    }

    /// The share of the time since then that the host gave to others.
    pub fn stolen_since(self) -> Option<f64> {
        let now = Self::now()?;
        let wanted = now.wanted.checked_sub(self.wanted);
        let wanted = wanted.filter(|wanted| *wanted > 0)?;
        Some(now.stolen.saturating_sub(self.stolen) as f64 / wanted as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stolen_time_is_the_eighth_field() {
        let times = Times::read("cpu  10 1 20 60 4 0 2 3 0 0\ncpu0 1 2\n").unwrap();
        assert_eq!((times.wanted, times.stolen), (36, 3));
        assert!(Times::read("cpu  10 1 20").is_none());
        assert!(Times::read("").is_none());
    }
}
