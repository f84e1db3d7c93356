//! `redlock acquire`, `extend` and `release`: for scripts that cannot wrap a command. The token travels by the environment
//! or by standard input, never by the command line.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use redislock_client::{Error, Released};
use serde_json::json;

use crate::args::{Acquire, Extend, Release, key_of};
use crate::exit::{Failure, IO, LOST, NOT_HAD};
use crate::merged::{millis, visible};
use crate::run::{FAREWELL, hold};
use crate::signals::Signals;
use crate::voice::Voice;

/// The longest token that a node takes.
const LONGEST_TOKEN: usize = 256;
/// For what is asked without a lease of one's own.
const NO_LEASE: Duration = Duration::MAX;

/// Takes the lock, prints what proves its ownership, and leaves it held until its lease ends.
pub async fn acquire(args: Acquire, voice: &Voice) -> Result<u8, Failure> {
    let wanted = &args.wanted;
    let key = key_of(wanted.key.as_ref(), "--key NAME")?;
    let mut signals = Signals::listen()?;
    let (client, guard) = hold(wanted, &key, &mut signals, voice).await?;
    let (fence, valid) = (guard.fence(), guard.valid_until());
    let ticket = match guard.detach() {
        Ok(ticket) => ticket,
        Err(guard) => {
            guard.release().await;
            return Err(Failure::new(IO, "the lock cannot be left held"));
        }
    };
    let token = String::from_utf8_lossy(ticket.token()).into_owned();
    let text = format!(
        "export REDLOCK_KEY={} REDLOCK_TOKEN={} REDLOCK_FENCE={fence}\n",
        quoted(&key),
        quoted(&token)
    );
    let value = json!({
        "key": key,
        "token": token,
        "fence": fence,
        "valid_ms": millis(valid.remaining()),
    });
    if let Err(failure) = written(voice, &text, &value) {
        // Nobody knows the token: nobody could release.
        client.release_ticket(&key, ticket.token()).await;
        client.close(FAREWELL).await;
        return Err(failure);
    }
    Ok(0)
}

/// Unlike other results, this one must arrive.
fn written(voice: &Voice, text: &str, value: &serde_json::Value) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let line = match voice.json {
        true => format!("{value}\n"),
        false => text.to_owned(),
    };
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| {
            Failure::io(
                "the lock was given back, as its token cannot be printed",
                &error,
            )
        })
}

/// Extends the lease of a lock that `acquire` took.
pub async fn extend(args: Extend, voice: &Voice) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "--key NAME, or set REDLOCK_KEY")?;
    let Some(fence) = args.fence else {
        return Err(Failure::usage(
            "no fence is given: add --fence NUMBER, or set REDLOCK_FENCE",
        ));
    };
    let token = token()?;
    let client = args.place.connect(args.ttl).await?;
    match client.extend_ticket(&key, &token, fence, args.ttl).await {
        Ok(until) => {
            let valid = millis(until.remaining());
            voice.result(
                "",
                &json!({ "key": key, "fence": fence, "valid_ms": valid }),
            )?;
            Ok(0)
        }
        Err(error @ Error::Lost { .. }) => Err(Failure::new(LOST, error.to_string())),
        Err(error) => Err(Failure::acquiring(error, NOT_HAD)),
    }
}

/// Releases a lock that `acquire` took.
pub async fn release(args: Release, voice: &Voice) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "--key NAME, or set REDLOCK_KEY")?;
    let token = token()?;
    let client = args.place.connect(NO_LEASE).await?;
    let released = client.release_ticket(&key, &token).await;
    client.close(FAREWELL).await;
    match released {
        Released::WasHeld => {
            voice.result("", &json!({ "key": key, "released": true }))?;
            Ok(0)
        }
        Released::WasLost => Err(Failure::new(
            LOST,
            format!(
                "lock {} was not held any more: its lease ended, or the token is another one's",
                visible(&key)
            ),
        )),
        _ => Err(Failure::new(
            NOT_HAD,
            format!(
                "too few nodes answered to tell whether lock {} was held: its lease will end it",
                visible(&key)
            ),
        )),
    }
}

/// The token, from REDLOCK_TOKEN or from standard input.
fn token() -> Result<Vec<u8>, Failure> {
    let missing =
        || Failure::usage("no token is given: set REDLOCK_TOKEN, or write it to standard input");
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
            "the token is longer than 256 bytes: it is another thing",
        )),
    }
}

/// For a shell's `eval`.
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
