//! `LOCK.INFO key [token | [COUNT n] [WAITERS n]]`: replies with a map about the lock, or about one
//! holder; null if there is nothing to report. It never shows a token.

use redislock_core::lock::{Hold, Lock, Mode};
use redislock_core::queue::Waiter;
use redislock_core::table::{Denial, Found, Table};
use redislock_core::time::{LeaseTime, MonoTime};
use redislock_core::token::{Key, Token};
use redislock_core::wire::MAX_HOLDERS;

use super::options;
use crate::clock;
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;
use crate::{keyspace, node};

/// Digits of a fingerprint.
const DIGITS: usize = 8;
/// The most waiters that are shown: a queue may be very long.
const MAX_QUEUE: i64 = 1_000;

/// What a request asks about.
enum Shown {
    /// The hold of one token.
    Hold(Token),
    /// The lock: at most this many holders, and none or at most this many waiters.
    Lock {
        holders: usize,
        queue: Option<usize>,
    },
}

impl Shown {
    fn read(args: Args<'_>) -> Result<Self, Failure> {
        if let (Some(token), None) = (args.get(2), args.get(3)) {
            return Ok(Self::Hold(options::token(token)?));
        }
        let (mut holders, mut queue) = (None, None);
        for at in (2..args.len()).step_by(2) {
            let (Some(name), Some(value)) = (args.get(at), args.get(at + 1)) else {
                return Err(Failure::Arity);
            };
            let name = name.bytes();
            let (name, most, limit) = if name.eq_ignore_ascii_case(b"COUNT") {
                ("COUNT", MAX_HOLDERS.into(), &mut holders)
            } else if name.eq_ignore_ascii_case(b"WAITERS") {
                ("WAITERS", MAX_QUEUE, &mut queue)
            } else {
                return Err(Failure::Arity);
            };
            let number = options::number(value, name, 1, most)? as usize;
            if limit.replace(number).is_some() {
                return Err(Failure::Made(format!("ERR option {name} is given twice")));
            }
        }
        let holders = holders.unwrap_or(usize::MAX);
        Ok(Self::Lock { holders, queue })
    }
}

pub fn info(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let Some(key) = args.get(1).filter(|_| args.len() <= 6) else {
        return Err(Failure::Arity);
    };
    let shown = Shown::read(args)?;
    let mut is_string = false;
    let lock = match keyspace::find(ctx, key) {
        Found::Nothing | Found::Elsewhere => None,
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
        let (count, queue) = match shown {
            Shown::Lock { holders, queue } => (holders, queue),
            Shown::Hold(token) => return show_own(ctx, table, held, &token, now),
        };
        let running = |id| table.running_holds(id, now, count);
        let mut holders = lock.map(running).unwrap_or_default();
        holders.sort_unstable_by_key(|(hold, _)| (hold.fence, &hold.token));
        let key = Key::new(ctx.db(), key.bytes());
        let waiting = table.waiting_for(&key);
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
        ctx.reply_map(if queue.is_some() { 6 } else { 5 });
        text(ctx, "mode", mode.as_bytes());
        number(ctx, "limit", limit.map_or(0, u64::from));
        number(ctx, "waiters", waiters as u64);
        number(ctx, "oldest-wait", mono.since(since).whole_millis().0);
        ctx.reply_bytes(b"holders");
        ctx.reply_array(holders.len());
        holders
            .into_iter()
            .for_each(|(hold, end)| show_hold(ctx, hold, end, now));
        if let Some(count) = queue {
            let queue: Vec<&Waiter> = table.queue_of(&key, count).collect();
            ctx.reply_bytes(b"queue");
            ctx.reply_array(queue.len());
            queue
                .iter()
                .for_each(|waiter| show_waiter(ctx, waiter, mono));
        }
    });
    Ok(())
}

fn show_own(ctx: Ctx, table: &Table, held: Option<&Lock>, token: &Token, now: LeaseTime) {
    let hold = held.and_then(|lock| lock.hold(token));
    let hold = hold.map(|hold| (hold, table.end_of(hold)));
    match hold.filter(|(_, end)| *end > now) {
        Some((hold, end)) => show_hold(ctx, hold, end, now),
        None => ctx.reply_null(),
    }
}

fn show_hold(ctx: Ctx, hold: &Hold, end: LeaseTime, now: LeaseTime) {
    ctx.reply_map(6);
    text(ctx, "owner", hold.owner());
    fingerprint(ctx, &hold.token);
    number(ctx, "holds", hold.count().into());
    number(ctx, "fence", hold.fence);
    number(ctx, "ttl", end.since(now).to_millis().0);
    number(ctx, "age", now.since(hold.granted).whole_millis().0);
}

fn show_waiter(ctx: Ctx, waiter: &Waiter, mono: MonoTime) {
    let mode: &[u8] = match waiter.terms.mode {
        Mode::Exclusive => b"exclusive",
        Mode::Shared { .. } => b"shared",
    };
    ctx.reply_map(4);
    text(
        ctx,
        "owner",
        waiter.terms.owner.as_deref().unwrap_or_default(),
    );
    fingerprint(ctx, &waiter.terms.token);
    text(ctx, "mode", mode);
    number(ctx, "wait", mono.since(waiter.since).whole_millis().0);
}

/// A number that tells tokens apart without showing them.
fn fingerprint(ctx: Ctx, token: &Token) {
    let digits = format!("{:016x}", node::fingerprint(token.secret()));
    let digits = digits.as_bytes().get(..DIGITS).unwrap_or_default();
    text(ctx, "fingerprint", digits);
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
