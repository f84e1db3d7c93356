//! `redlock run`: runs a command while a lock is held, and not longer.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use redislock_client::{Guard, Moment, Redlock, Released};
use serde_json::json;

use crate::args::{Run, Where, key_of};
use crate::command_path;
use crate::exit::{Failure, NOT_EXECUTABLE};
use crate::hold::{CLOSE_TIMEOUT, Request, hold};
use crate::min_hold;
use crate::names::printable;
use crate::output::Output;
use crate::process_group::Group;
use crate::signals::Signals;
use crate::summary::State;
use crate::supervise::{Ending, Supervisor};

/// How long before the end of the lease a lost lock ends the command: this part of the ttl, …
const GRACE_IN_TTL: u32 = 6;
/// … but not longer than this.
const LONGEST_GRACE: Duration = Duration::from_secs(5);

/// Runs the command under the lock and returns its exit code.
pub async fn run(args: Run, output: &Output) -> Result<u8, Failure> {
    let wanted = &args.wanted;
    let key = key_of(wanted.key.as_ref(), "--key NAME")?;
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(Failure::usage(
            "no command: add it after --, as in: redlock run --key NAME -- COMMAND",
        ));
    };
    let request = Request {
        wanted,
        key: &key,
        ttl: wanted.lease(args.min_hold),
        min_hold: args.min_hold,
    };
    let grace = grace_of(args.grace, request.ttl)?;
    let file = command_path::find(name)?;
    let mut signals = Signals::listen()?;
    let (client, guard) = hold(&request, &mut signals, output).await?;
    let granted = Moment::now();
    let mut command = Command::new(file);
    command
        .args(arguments)
        .env("REDLOCK_KEY", &key)
        .env("REDLOCK_FENCE", guard.fence().to_string())
        // That of another lock, from an `acquire` around this command.
        .env_remove("REDLOCK_TOKEN");
    command.arg0(name);
    let ended = work(command, &guard, grace, &mut signals).await;
    let keep_until = args.min_hold.map(|min_hold| granted + min_hold);
    let lost = finish(&client, guard, &key, &ended, keep_until).await;
    client.close(CLOSE_TIMEOUT).await;
    let lost = match ended? {
        Ending::Stopped => Some(format!(
            "was lost and the command stopped: {}",
            why_lost(&wanted.place, &key).await
        )),
        Ending::ByItself { code } if lost.is_none() => return Ok(code),
        Ending::ByItself { .. } => lost,
    };
    if let Some(lost) = lost {
        let text = format!("lock {} {lost}", printable(&key));
        let code = args.lost_exit_code;
        let fields = json!({ "event": "lost", "key": key, "error": text, "exit_code": code });
        output.message(&text, fields);
    }
    Ok(args.lost_exit_code)
}

async fn work(
    command: Command,
    guard: &Guard,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Ending, Failure> {
    if !is_fresh(guard, grace).await {
        return Ok(Ending::Stopped);
    }
    let file = command.get_program().to_owned();
    match Group::start(command) {
        Ok(group) => Ok(Supervisor::new(group, guard.held(), grace, signals)
            .watch()
            .await),
        Err(error) => {
            // The file itself existed a moment ago.
            let hint = match error.kind() {
                ErrorKind::NotFound => ": check the interpreter in its first line",
                _ => "",
            };
            Err(Failure::new(
                NOT_EXECUTABLE,
                format!("{} cannot be executed: {error}{hint}", file.display()),
            ))
        }
    }
}

/// The tool may have been paused since the grant: a command that would have to be stopped at once
/// is not started.
async fn is_fresh(guard: &Guard, grace: Duration) -> bool {
    guard.is_valid() && (guard.valid_until().remaining() > grace || guard.extend().await.is_ok())
}

/// Releases the lock, or leaves it held until `keep_until` if the command has ended by itself.
/// Returns what went wrong: the lock may have been acquired by another client too early.
async fn finish(
    client: &Redlock,
    guard: Guard,
    key: &str,
    ended: &Result<Ending, Failure>,
    keep_until: Option<Moment>,
) -> Option<String> {
    let by_itself = matches!(ended, Ok(Ending::ByItself { .. }));
    let keep_until = keep_until.filter(|until| by_itself && *until > Moment::now());
    if let Some(until) = keep_until
        && guard.is_valid()
    {
        let kept = min_hold::keep(client, guard, key, until).await;
        return kept
            .err()
            .map(|why| format!("could not be kept for --min-hold: {why}"));
    }
    let released = guard.release().await;
    (released == Released::WasLost).then(|| {
        "was lost before the command ended: another client may have held it meanwhile".to_owned()
    })
}

/// Why the lock was lost, as far as the nodes know.
async fn why_lost(place: &Where, key: &str) -> String {
    let seen = match place.view().await {
        Ok(view) => view.lock(key).await,
        Err(failure) => return failure.text,
    };
    if seen.state == State::Unknown {
        return seen.too_few();
    }
    "the nodes no longer know the hold, or did not reply for too long (an administrator released \
     it, the nodes were \
     flushed or restarted, or this process was paused)"
        .to_owned()
}

fn grace_of(given: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    match given {
        None => Ok((ttl / GRACE_IN_TTL).min(LONGEST_GRACE)),
        // Renewal begins after a third of the ttl, and needs the time for several attempts.
        Some(grace) if grace > ttl / 3 => Err(Failure::usage(format!(
            "--grace {grace:?} is too long for a ttl of {ttl:?}: use at most a third of the ttl"
        ))),
        Some(grace) => Ok(grace),
    }
}
