//! Acquires the lock for `run` and `acquire`: connects, waits, and reports who holds the lock.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use redislock_client::{Guard, Lock, Moment, Owner, Redlock};

use crate::args::Wanted;
use crate::duration::{WaitLimit, shown};
use crate::exit::Failure;
use crate::output::Output;
use crate::progress;
use crate::signals::Signals;

/// Releases that are still on their way get this long when the tool ends.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What to acquire.
pub struct Request<'a> {
    pub wanted: &'a Wanted,
    pub key: &'a str,
    pub ttl: Duration,
    pub min_hold: Option<Duration>,
}

/// Connects and acquires the lock. A signal ends that, and nothing stays held.
pub async fn hold(
    request: &Request<'_>,
    signals: &mut Signals,
    output: &Output,
) -> Result<(Redlock, Guard), Failure> {
    let (wanted, since) = (request.wanted, Moment::now());
    let wait = wanted.wait_limit();
    let deadline = match wait {
        WaitLimit::Forever => None,
        WaitLimit::AtMost(wait) => Some(since + wait),
    };
    let mut reporting = pin!(report(request, since, wait, output));
    let connected = tokio::select! {
        biased;
        connected = connect(request, deadline) => connected,
        signal = signals.end() => Err(Failure::signalled(signal)),
        never = &mut reporting => match never {},
    };
    let client = connected.inspect_err(|_| output.clear())?;
    let acquired = tokio::select! {
        biased;
        acquired = acquire(request.lock(&client), deadline) => {
            acquired.map_err(|error| Failure::acquiring(error, wanted.conflict_exit_code))
        }
        signal = signals.end() => Err(Failure::signalled(signal)),
        never = &mut reporting => match never {},
    };
    output.clear();
    match acquired {
        Ok(guard) => Ok((client, guard)),
        Err(failure) => {
            client.close(CLOSE_TIMEOUT).await;
            Err(failure)
        }
    }
}

async fn connect(request: &Request<'_>, deadline: Option<Moment>) -> Result<Redlock, Failure> {
    let place = &request.wanted.place;
    let client = place.connect_until(request.ttl, deadline).await?;
    if let Some(min_hold) = request.min_hold {
        check_min_hold(&client, min_hold)?;
    }
    Ok(client)
}

/// A lock stays held without renewal for one lease: no node may cut it short.
fn check_min_hold(client: &Redlock, min_hold: Duration) -> Result<(), Failure> {
    for answer in client.longest_leases() {
        if let Ok(max_ttl) = answer.result
            && max_ttl < min_hold
        {
            return Err(Failure::usage(format!(
                "--min-hold {} is longer than the longest lease of {}, which is {}: lower it, or \
                 raise lock.max-ttl there",
                shown(min_hold),
                answer.node,
                shown(max_ttl)
            )));
        }
    }
    Ok(())
}

async fn acquire(lock: Lock, deadline: Option<Moment>) -> Result<Guard, redislock_client::Error> {
    match deadline.map(Moment::remaining) {
        None => lock.acquire().await,
        Some(Duration::ZERO) => lock.try_acquire().await,
        Some(left) => lock.wait(left).acquire().await,
    }
}

async fn report(
    request: &Request<'_>,
    since: Moment,
    wait: WaitLimit,
    output: &Output,
) -> Infallible {
    let silent = request.wanted.quiet || wait == WaitLimit::AtMost(Duration::ZERO);
    if silent {
        return std::future::pending().await;
    }
    progress::report(&request.wanted.place, request.key, since, wait, output).await
}

impl Request<'_> {
    fn lock(&self, client: &Redlock) -> Lock {
        let owner = Owner::named(self.wanted.owner.clone().unwrap_or_else(default_owner));
        let lock = client.lock(self.key).ttl(self.ttl).owner(&owner);
        match self.wanted.limit {
            Some(limit) => lock.shared().limit(limit),
            None if self.wanted.shared => lock.shared(),
            None => lock,
        }
    }
}

/// User, host and process.
fn default_owner() -> String {
    let uid = nix::unistd::getuid();
    let user = match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    };
    let host = nix::unistd::gethostname().unwrap_or_default();
    let whole = format!("{user}@{}:{}", host.display(), std::process::id());
    // Names can be long, a label has at most 256 bytes.
    whole.chars().take(64).collect()
}
