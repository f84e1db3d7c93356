//! `LOCK.INFO key [token | COUNT n]`: a map about the lock, or about one holder of it; null if
//! there is nothing to say. Never a token.

use redislock_core::lock::{Hold, Lock, Mode};
use redislock_core::table::{Denial, Found};
use redislock_core::time::LeaseTime;
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
        let table = &node.table;
        let now = table.lease_now(mono);
        let held = lock.and_then(|id| table.lock(id));
        if let Some(token) = &token {
            let hold = held.and_then(|lock| lock.hold(token));
            let hold = hold.map(|hold| (hold, table.end_of(hold)));
            match hold.filter(|(_, end)| *end > now) {
                Some((hold, end)) => show_hold(ctx, hold, end, now),
                None => ctx.reply_null(),
            }
            return;
        }
        let running = |id| table.running_holds(id, now, count);
        let mut holders = lock.map(running).unwrap_or_default();
        holders.sort_unstable_by_key(|(hold, _)| (hold.fence, &hold.token));
        let waiting = table.waiting_for(&Key::new(ctx.db(), key.bytes()));
        if holders.is_empty() && waiting.is_none() {
            return ctx.reply_null();
        }
        let (mode, limit) = match held.filter(|_| !holders.is_empty()).map(Lock::mode) {
            None if is_string => ("string", None),
            None => ("free", None),
            Some(Mode::Exclusive) => ("exclusive", None),
            Some(Mode::Shared { limit }) => ("shared", limit),
        };
        let (waiters, since) = waiting.unwrap_or((0, mono));
        ctx.reply_map(5);
        text(ctx, "mode", mode.as_bytes());
        number(ctx, "limit", limit.map_or(0, u64::from));
        number(ctx, "waiters", waiters as u64);
        number(ctx, "oldest-wait", mono.since(since).whole_millis().0);
        ctx.reply_bytes(b"holders");
        ctx.reply_array(holders.len());
        holders
            .into_iter()
            .for_each(|(hold, end)| show_hold(ctx, hold, end, now));
    });
    Ok(())
}

fn show_hold(ctx: Ctx, hold: &Hold, end: LeaseTime, now: LeaseTime) {
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
    number(ctx, "ttl", end.since(now).to_millis().0);
    number(ctx, "age", now.since(hold.granted).whole_millis().0);
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
