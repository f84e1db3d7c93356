//! `redlock run`: a command that runs while a lock is held, and not a moment longer.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use redislock_client::{Guard, Lock, Observer, Owner, Redlock, Released};
use serde_json::json;

use crate::args::{Run, Wanted, key_of};
use crate::child::Group;
use crate::exit::{Failure, NOT_EXECUTABLE};
use crate::merged::{Merged, State, visible};
use crate::program;
use crate::signals::Signals;
use crate::supervise::{Ending, Supervisor};
use crate::voice::Voice;
use crate::waiting;

/// How long before the end of the lease a lost lock ends the command: this part of the ttl, …
const GRACE_IN_TTL: u32 = 6;
/// … but no longer than this.
const LONGEST_GRACE: Duration = Duration::from_secs(5);
/// Releases that are still on their way get this long when the tool ends.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// Runs the command under the lock and returns its exit code.
pub async fn run(args: Run, voice: &Voice) -> Result<u8, Failure> {
    let wanted = &args.wanted;
    let key = key_of(wanted.key.as_ref(), "--key NAME")?;
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(Failure::usage(
            "no command is given: add it after --, as in: redlock run --key NAME -- COMMAND",
        ));
    };
    let grace = grace_of(args.grace, wanted.ttl)?;
    let file = program::find(name)?;
    let mut signals = Signals::listen()?;
    let (client, guard) = hold(wanted, &key, &mut signals, voice).await?;

    let mut command = Command::new(file);
    command
        .args(arguments)
        .env("REDLOCK_KEY", &key)
        .env("REDLOCK_FENCE", guard.fence().to_string());
    command.arg0(name);
    let ended = work(command, &guard, grace, &mut signals).await;
    let released = guard.release().await;
    client.close(FAREWELL).await;
    let code = match ended? {
        Ending::Stopped => {
            let why = why_lost(&wanted.place.observe()?, &key).await;
            let text = format!(
                "lock {} was lost and the command stopped: {why}",
                visible(&key)
            );
            tell_loss(voice, &key, &text, args.lost_exit_code);
            args.lost_exit_code
        }
        Ending::ByItself { .. } if released == Released::WasLost => {
            let text = format!(
                "lock {} was lost before the command ended: somebody else may have had it meanwhile",
                visible(&key)
            );
            tell_loss(voice, &key, &text, args.lost_exit_code);
            args.lost_exit_code
        }
        Ending::ByItself { code } => code,
    };
    Ok(code)
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
            // The file itself was there a moment ago.
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

/// We may have been paused since the lock was granted: a command that would have to be stopped at once is not started.
async fn is_fresh(guard: &Guard, grace: Duration) -> bool {
    guard.is_valid() && (guard.valid_until().remaining() > grace || guard.extend().await.is_ok())
}

/// As far as the nodes can still tell.
async fn why_lost(observer: &Observer, key: &str) -> String {
    let seen = Merged::of(&observer.lock(key).await);
    match seen.state {
        State::Unknown => seen.too_few(),
        _ => "its nodes do not know the hold any more, or did not answer for too long (an administrator took it away, \
              they were flushed or restarted, or we were paused)"
            .to_owned(),
    }
}

fn tell_loss(voice: &Voice, key: &str, text: &str, code: u8) {
    let fields = json!({ "event": "lost", "key": key, "error": text, "exit_code": code });
    voice.say(text, fields);
}

fn grace_of(given: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    match given {
        None => Ok((ttl / GRACE_IN_TTL).min(LONGEST_GRACE)),
        // Renewal begins after a third of the ttl, and must have the time for several attempts.
        Some(grace) if grace > ttl / 3 => Err(Failure::usage(format!(
            "a grace of {grace:?} leaves a lease of {ttl:?} no time for renewal: give a third of the ttl at most"
        ))),
        Some(grace) => Ok(grace),
    }
}

/// Connects and gets the lock. A signal ends that, with nothing left held.
pub async fn hold(
    wanted: &Wanted,
    key: &str,
    signals: &mut Signals,
    voice: &Voice,
) -> Result<(Redlock, Guard), Failure> {
    let observer = wanted.place.observe()?;
    let client = tokio::select! {
        client = wanted.place.connect(wanted.ttl) => client?,
        signal = signals.end() => return Err(Failure::signalled(signal)),
    };
    let acquired = tokio::select! {
        acquired = waiting::acquire(request(&client, wanted, key), key, wanted.wait, &observer, voice) => {
            acquired.map_err(|error| Failure::acquiring(error, wanted.conflict_exit_code))
        }
        signal = signals.end() => Err(Failure::signalled(signal)),
    };
    match acquired {
        Ok(guard) => Ok((client, guard)),
        Err(failure) => {
            voice.clear();
            client.close(FAREWELL).await;
            Err(failure)
        }
    }
}

fn request(client: &Redlock, wanted: &Wanted, key: &str) -> Lock {
    let owner = Owner::named(wanted.owner.clone().unwrap_or_else(usual_owner));
    let lock = client.lock(key).ttl(wanted.ttl).owner(&owner);
    match wanted.shared {
        true => lock.shared(),
        false => lock,
    }
}

/// Who we are, for others: user, host and process.
fn usual_owner() -> String {
    let uid = nix::unistd::getuid();
    let user = match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    };
    let host = nix::unistd::gethostname().unwrap_or_default();
    let whole = format!("{user}@{}:{}", host.display(), std::process::id());
    // Names can be long, labels have 256 bytes.
    whole.chars().take(64).collect()
}
