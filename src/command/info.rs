//! `LOCK.INFO key [token | COUNT n]`: a map about the lock, or about one holder of it; null if
//! there is nothing to say. Never a token.

use redislock_core::lock::{Hold, Mode};
use redislock_core::table::{Denial, Found};
use redislock_core::time::{Instant, to_millis};
use redislock_core::token::Key;
use redislock_core::wire::MAX_HOLDERS;

use super::options;
use crate::clock;
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;
use crate::{keyspace, node};

/// Digits of a fingerprint.
const DIGITS: usize = 8;

pub fn info(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let Some(key) = args.get(1).filter(|_| args.len() <= 4) else {
        return Err(Failure::Arity);
    };
    let (token, count) = match (args.get(2), args.get(3)) {
        (Some(name), Some(count)) if name.bytes().eq_ignore_ascii_case(b"COUNT") => {
            let count = options::number(count, "COUNT", 1, MAX_HOLDERS.into())?;
            (None, count as usize)
        }
        (_, Some(_)) => return Err(Failure::Arity),
        (token, None) => (token.map(options::token).transpose()?, usize::MAX),
    };
    let mut is_string = false;
    let lock = match keyspace::find(ctx, key) {
        Found::Nothing => None,
        Found::LegacyString(_) => {
            is_string = true;
            None
        }
        Found::Lock(id) => Some(id),
        Found::Other => return Err(Denial::WrongType.into()),
    };
    let mono = clock::mono();
    node::with(|node| {
        let now = node.table.lease_now(mono);
        let lock = lock.and_then(|id| node.table.as_seen(id));
        let lock = lock.as_deref();
        let holds = || {
            lock.into_iter()
                .flat_map(|lock| lock.holds_in_order())
                .filter(|hold| hold.end > now)
        };
        if let Some(token) = &token {
            match lock
                .and_then(|lock| lock.hold(token))
                .filter(|hold| hold.end > now)
            {
                Some(hold) => show_hold(ctx, hold, now),
                None => ctx.reply_null(),
            }
            return;
        }
        let mut holders: Vec<_> = holds().collect();
        let waiting = node.table.waiting_for(&Key::new(ctx.db(), key.bytes()));
        if holders.is_empty() && waiting.is_none() {
            return ctx.reply_null();
        }
        let (mode, limit) = match lock.filter(|_| !holders.is_empty()).map(|lock| lock.mode()) {
            None if is_string => ("string", 0),
            None => ("free", 0),
            Some(Mode::Exclusive) => ("exclusive", 0),
            Some(Mode::Shared { limit }) => ("shared", limit),
        };
        let (waiters, since) = waiting.unwrap_or((0, mono));
        ctx.reply_map(5);
        text(ctx, "mode", mode.as_bytes());
        number(ctx, "limit", limit.into());
        number(ctx, "waiters", waiters as u64);
        number(ctx, "oldest-wait", mono.since(since) / 1000);
        holders.truncate(count);
        ctx.reply_bytes(b"holders");
        ctx.reply_array(holders.len());
        holders
            .into_iter()
            .for_each(|hold| show_hold(ctx, hold, now));
    });
    Ok(())
}

fn show_hold(ctx: Ctx, hold: &Hold, now: Instant) {
    let fingerprint = format!("{:016x}", node::fingerprint(hold.token.secret()));
    ctx.reply_map(6);
    text(ctx, "owner", hold.owner());
    text(
        ctx,
        "fingerprint",
        fingerprint.as_bytes().get(..DIGITS).unwrap_or_default(),
    );
    number(ctx, "holds", hold.count.into());
    number(ctx, "fence", hold.fence);
    number(ctx, "ttl", to_millis(hold.left(now)));
    number(ctx, "age", now.since(hold.granted) / 1000);
}

/// A field of a map: a text.
pub fn text(ctx: Ctx, name: &str, value: &[u8]) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_bytes(value);
}

/// A field of a map: a number.
pub fn number(ctx: Ctx, name: &str, value: u64) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_integer(value);
}
