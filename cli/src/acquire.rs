//! `redlock acquire`, `extend` and `release`: for scripts that cannot wrap a command. The token is
//! passed in the environment or on standard input, never on the command line.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use redislock_client::{Error, Released};
use serde_json::json;

use crate::args::{Acquire, DEFAULT_TTL, Extend, Release, key_of};
use crate::exit::{BUSY, Failure, IO, LOST, UNAVAILABLE};
use crate::hold::{CLOSE_TIMEOUT, Request, hold};
use crate::names::printable;
use crate::output::Output;
use crate::signals::Signals;
use crate::summary::millis;

/// The longest token that a node accepts.
const LONGEST_TOKEN: usize = 256;
/// A release needs no lease.
const NO_LEASE: Duration = Duration::MAX;
/// What a script evaluates if the lock was not acquired: a command that fails.
pub const NOT_ACQUIRED: &str = "false\n";

/// Acquires the lock, prints its token, and leaves it held until its lease ends.
pub async fn acquire(args: Acquire, output: &Output) -> Result<u8, Failure> {
    let wanted = &args.wanted;
    let key = key_of(wanted.key.as_ref(), "--key NAME")?;
    let request = Request {
        wanted,
        key: &key,
        ttl: wanted.lease(None),
        min_hold: None,
    };
    let mut signals = Signals::listen()?;
    let (client, guard) = hold(&request, &mut signals, output).await?;
    let (fence, valid) = (guard.fence(), guard.valid_until());
    let ticket = match guard.detach() {
        Ok(ticket) => ticket,
        Err(guard) => {
            guard.release().await;
            return Err(Failure::new(IO, "the lock cannot be left held"));
        }
    };
    let token = String::from_utf8_lossy(ticket.token()).into_owned();
    let text = if output.json {
        let valid = millis(valid.remaining());
        let value = json!({ "key": key, "token": token, "fence": fence, "valid_ms": valid });
        format!("{value}\n")
    } else {
        let (key, token) = (quoted(&key), quoted(&token));
        format!("export REDLOCK_KEY={key} REDLOCK_TOKEN={token} REDLOCK_FENCE={fence}\n")
    };
    // Unlike other results, this one must arrive.
    if let Err(error) = output.print_all(&text) {
        // Nobody knows the token, so nobody could release the lock.
        client.release_ticket(&key, ticket.token()).await;
        client.close(CLOSE_TIMEOUT).await;
        return Err(Failure::io(
            "the token cannot be printed, so the lock was released",
            &error,
        ));
    }
    Ok(0)
}

/// Extends the lease of a lock from `acquire`.
pub async fn extend(args: Extend, output: &Output) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "--key NAME, or set REDLOCK_KEY")?;
    let Some(fence) = args.fence else {
        return Err(Failure::usage(
            "no fence: add --fence NUMBER, or set REDLOCK_FENCE",
        ));
    };
    let token = token()?;
    let ttl = args.ttl.unwrap_or(DEFAULT_TTL);
    let client = args.place.connect(ttl).await?;
    match client.extend_ticket(&key, &token, fence, ttl).await {
        Ok(until) => {
            let valid = millis(until.remaining());
            output.result(
                "",
                &json!({ "key": key, "fence": fence, "valid_ms": valid }),
            )?;
            Ok(0)
        }
        Err(error @ Error::Lost { .. }) => Err(Failure::new(LOST, error.to_string())),
        Err(error) => Err(Failure::acquiring(error, BUSY)),
    }
}

/// Releases a lock from `acquire`.
pub async fn release(args: Release, output: &Output) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "--key NAME, or set REDLOCK_KEY")?;
    let token = token()?;
    let client = args.place.connect(NO_LEASE).await?;
    let released = client.release_ticket(&key, &token).await;
    client.close(CLOSE_TIMEOUT).await;
    match released {
        Released::WasHeld => {
            output.result("", &json!({ "key": key, "released": true }))?;
            Ok(0)
        }
        Released::WasLost => Err(Failure::new(
            LOST,
            format!(
                "lock {} is no longer held: its lease ended, or the token belongs to another \
                 holder",
                printable(&key)
            ),
        )),
        _ => Err(Failure::new(
            UNAVAILABLE,
            format!(
                "could not find out whether lock {} was still held: too few nodes replied, or a \
                 connection broke; the lock is free when its lease ends",
                printable(&key)
            ),
        )),
    }
}

/// The token, from REDLOCK_TOKEN or from standard input.
fn token() -> Result<Vec<u8>, Failure> {
    let missing = || Failure::usage("no token: set REDLOCK_TOKEN, or write it to standard input");
    let mut token = match std::env::var_os("REDLOCK_TOKEN") {
        Some(token) => std::os::unix::ffi::OsStringExt::into_vec(token),
        None if std::io::stdin().is_terminal() => return Err(missing()),
        None => {
            let mut text = Vec::new();
            let most = LONGEST_TOKEN as u64 + 3;
            let read = std::io::stdin().lock().take(most).read_to_end(&mut text);
            read.map_err(|error| Failure::io("the token cannot be read", &error))?;
            text
        }
    };
    while token.last().is_some_and(|last| b"\r\n".contains(last)) {
        token.pop();
    }
    match token.len() {
        0 => Err(missing()),
        1..=LONGEST_TOKEN => Ok(token),
        _ => Err(Failure::usage(
            "the token is longer than 256 bytes: it is not from redlock acquire",
        )),
    }
}

/// Quotes text for `eval` of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_breaks_out_of_its_quotes() {
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
    }
}
