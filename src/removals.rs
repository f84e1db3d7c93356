//! Held locks that something other than their holders ended: counted, and logged for operators. The
//! log never contains a token.

use std::sync::{Mutex, PoisonError};

use redislock_core::Table;
use redislock_core::slots::LockId;
use redislock_core::time::{LeaseTime, Micros, MonoTime};
use redislock_core::token::Key;

use crate::ffi::{Ctx, Level};

/// The most lines in one second; further removals are only counted.
const LINES_A_SECOND: u64 = 10;
const SECOND: Micros = Micros(1_000_000);
/// The most bytes of a key or a label in a line.
const SHOWN: usize = 128;
/// The most holders that are counted; the line says if there are more.
const COUNTED: usize = 1000;

/// What ended the holds.
#[derive(Clone, Copy)]
pub enum Cause {
    Force,
    Deletion,
    Eviction,
    /// An overwrite or an EXPIRE: the server does not report it.
    Other,
}

/// The client that did it.
pub struct Caller {
    id: u64,
    user: String,
}

impl Caller {
    /// The client of a context, if it is a connection: a script has none, and Redis names none for
    /// keyspace events.
    pub fn of(ctx: Ctx) -> Option<Self> {
        let id = ctx.client();
        let user = ctx.user_of_client(id)?;
        Some(Self {
            id,
            user: shown(&user),
        })
    }
}

/// A lock that was held when something else ended it.
pub struct Removal {
    pub id: LockId,
    pub cause: Cause,
    pub caller: Option<Caller>,
    key: Key,
    owner: String,
    holders: usize,
}

impl Removal {
    /// Describes a lock before it is gone; none if nobody holds it at `now` on the lease clock. Of
    /// several holders, the first is named; of very many, the first of those that end last.
    pub fn of(table: &Table, id: LockId, cause: Cause, now: LeaseTime) -> Option<Self> {
        let key = table.key(id)?;
        let holds = table.running_holds(id, now, COUNTED + 1);
        let first = holds.iter().map(|(hold, _)| hold);
        let first = first.min_by_key(|hold| hold.fence)?;
        Some(Self {
            id,
            cause,
            caller: None,
            key: key.clone(),
            owner: shown(first.owner()),
            holders: holds.len(),
        })
    }

    /// The key of the lock.
    pub fn key(&self) -> &Key {
        &self.key
    }

    fn line(&self) -> String {
        let what = match self.cause {
            Cause::Force => "LOCK.FORCE ended",
            Cause::Deletion => "a deletion removed",
            Cause::Eviction => "an eviction removed",
            Cause::Other => "another command or a TTL removed",
        };
        let more = match self.holders {
            1 => String::new(),
            2..=COUNTED => format!(" and {} more", self.holders - 1),
            _ => format!(" and at least {COUNTED} more"),
        };
        let by = self.caller.as_ref().map_or_else(String::new, |caller| {
            format!(", by client {} (user \"{}\")", caller.id, caller.user)
        });
        format!(
            "{what} the held lock \"{}\" in database {}, owner \"{}\"{more}{by}",
            shown(self.key.name()),
            self.key.db(),
            self.owner
        )
    }
}

/// Bytes from a client in a form that is safe to log: escaped and shortened.
fn shown(bytes: &[u8]) -> String {
    let text = bytes.iter().take(SHOWN).copied();
    let text: String = text
        .flat_map(std::ascii::escape_default)
        .map(char::from)
        .collect();
    let rest = if bytes.len() > SHOWN { "..." } else { "" };
    text + rest
}

/// How much was logged in the current second.
struct Budget {
    began: MonoTime,
    lines: u64,
    left_out: u64,
}

static BUDGET: Mutex<Budget> = Mutex::new(Budget {
    began: MonoTime(0),
    lines: 0,
    left_out: 0,
});

/// Logs a removal, unless there were too many in this second.
pub fn log(ctx: Ctx, removal: &Removal, now: MonoTime) {
    end_second(ctx, now);
    let mut budget = BUDGET.lock().unwrap_or_else(PoisonError::into_inner);
    if budget.lines < LINES_A_SECOND {
        budget.lines += 1;
        ctx.log(Level::Warning, &removal.line());
    } else {
        budget.left_out += 1;
    }
}

/// Logs how many removals were left out, when their second is over.
pub fn end_second(ctx: Ctx, now: MonoTime) {
    let mut budget = BUDGET.lock().unwrap_or_else(PoisonError::into_inner);
    if now.since(budget.began) < SECOND {
        return;
    }
    if budget.left_out > 0 {
        let left_out = budget.left_out;
        ctx.log(
            Level::Warning,
            &format!("{left_out} more held locks were removed or forced within a second"),
        );
    }
    *budget = Budget {
        began: now,
        lines: 0,
        left_out: 0,
    };
}
