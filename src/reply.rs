//! The replies to outcomes: one text for each condition, for waiters and for other callers.

use redislock_core::fence::FenceError;
use redislock_core::lock::Refusal;
use redislock_core::quarantine::Reason;
use redislock_core::table::{Answer, Denial, Granted};

use crate::ffi::Ctx;

/// Why a command ends with an error. The texts never contain bytes from the client.
pub enum Failure {
    /// The server has the text.
    Arity,
    /// A constant text.
    Text(&'static str),
    /// A text with numbers in it.
    Made(String),
    /// An outcome of core.
    Denied(Denial),
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

/// The form of the reply to a granted request.
#[derive(Clone, Default)]
pub struct Shape {
    /// An array of fences, one for each key.
    pub several: bool,
    /// The token that the server made, and the fence.
    pub made_token: Option<String>,
}

/// Replies with an error.
pub fn failure(ctx: Ctx, failure: &Failure) {
    match failure {
        Failure::Arity => ctx.wrong_arity(),
        Failure::Text(text) => ctx.reply_error(text),
        Failure::Made(text) => ctx.reply_error(text),
        Failure::Denied(denial) => denied(ctx, *denial),
    }
}

/// Replies with the fences.
pub fn granted(ctx: Ctx, granted: &Granted, shape: &Shape) {
    if let Some(token) = &shape.made_token {
        ctx.reply_array(2);
        ctx.reply_bytes(token.as_bytes());
    }
    if shape.several {
        ctx.reply_array(granted.len());
    }
    for fence in granted {
        ctx.reply_integer(*fence);
    }
}

/// Replies to a waiter.
pub fn answer(ctx: Ctx, answer: &Answer, shape: &Shape) {
    match answer {
        Answer::Granted(fences) => granted(ctx, fences, shape),
        Answer::Nothing => ctx.reply_null(),
        Answer::Denied(denial) => denied(ctx, *denial),
        Answer::Unblocked => {
            ctx.reply_error("UNBLOCKED this node can no longer grant the lock, try again")
        }
    }
}

fn denied(ctx: Ctx, denial: Denial) {
    match denial {
        Denial::Refused(Refusal::Upgrade) => ctx.reply_error(
            "LOCKMODE the token holds this lock SHARED, release it before asking for the \
             exclusive lock",
        ),
        Denial::Refused(Refusal::UnlikeLimit) => {
            ctx.reply_error("LOCKMODE the current holders use another LIMIT, use the same one");
        }
        Denial::Refused(Refusal::TooManyHolders) => {
            ctx.reply_error("LOCKLIMIT the lock has as many holders as lock.max-holders allows");
        }
        Denial::Fence(FenceError::TooFarAhead) => {
            ctx.reply_error(
                "LOCKFENCE the FENCE is more than 10 seconds ahead of this node's clock",
            );
        }
        Denial::Fence(FenceError::Exhausted) => {
            ctx.reply_error("LOCKFENCE the fence counter of this node is exhausted");
        }
        Denial::OverCap(over) => ctx.reply_error(&format!(
            "LOCKLIMIT the lease would exceed MAXHOLD or lock.max-hold, {} ms left",
            over.left.whole_millis().0
        )),
        Denial::TooManyWaiters => {
            ctx.reply_error(
                "LOCKLIMIT as many requests wait on this node as lock.max-waiters allows",
            );
        }
        Denial::Deadlock => ctx.reply_error(
            "DEADLOCK waiting would cause a deadlock, release what others wait for first",
        ),
        Denial::Quarantined(left, reason) => ctx.reply_error(&format!(
            "QUARANTINE no lock is granted {}, retry in {} ms",
            why(reason),
            left.to_millis().0
        )),
        Denial::WrongType => {
            ctx.reply_error("WRONGTYPE Operation against a key holding the wrong kind of value");
        }
    }
}

/// The reason for a quarantine, as part of an error.
pub fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Start => "after a start",
        Reason::Promotion => "after a promotion",
        Reason::Flush => "after a flush",
        Reason::Standstill => "after a standstill",
        Reason::Replicas => "while too few replicas confirm that this is the only master",
        Reason::Settings => {
            "while min-replicas-to-write cannot be read (set lock.min-replicas and lock.max-lag)"
        }
    }
}
