//! How the words of the model and those of core are translated.

use redislock_core::fence::FenceError;
use redislock_core::lock as core_lock;
use redislock_core::table::{self, Denial};
use redislock_core::time::{Micros, Millis};
use redislock_core::token as core_token;

use crate::reference::{Answer, Error, Key, Limits, Mode, Request, Token};

pub(super) fn bytes(token: Token) -> core_token::Token {
    // Some do not fit into the token itself.
    let length = if token.is_multiple_of(2) { 36 } else { 41 };
    core_token::Token::new(&vec![b'A' + token; length]).expect("a token")
}

pub(super) fn key(key: Key) -> core_token::Key {
    core_token::Key::new(key.0, &[b'a' + key.1])
}

/// The model has 0 where core has nothing.
pub(super) fn given<T: Default + PartialEq>(value: T) -> Option<T> {
    Some(value).filter(|value| *value != T::default())
}

pub(super) fn cap(millis: u32) -> Option<Millis> {
    given(millis).map(|millis| Millis(millis.into()))
}

pub(super) fn terms(request: &Request) -> core_lock::Terms {
    core_lock::Terms {
        token: bytes(request.token),
        ttl: Micros(request.ttl),
        mode: match request.mode {
            Mode::Exclusive => core_lock::Mode::Exclusive,
            Mode::Shared(limit) => core_lock::Mode::Shared {
                limit: given(limit),
            },
        },
        once: request.once,
        fence: given(request.fence),
        max_hold: cap(request.max_hold),
        owner: request.owner.map(|owner| Box::from([owner])),
        ephemeral: request.ephemeral,
        connection: given(request.connection),
    }
}

pub(super) fn error(denial: Denial) -> Error {
    match denial {
        Denial::Refused(core_lock::Refusal::TooManyHolders) => Error::TooManyHolders,
        Denial::Refused(core_lock::Refusal::Upgrade | core_lock::Refusal::UnlikeLimit) => {
            Error::Mode
        }
        Denial::Fence(FenceError::TooFarAhead | FenceError::Exhausted) => Error::Fence,
        Denial::OverCap(over) => Error::OverCap(over.left.0),
        Denial::TooManyWaiters => Error::TooManyWaiters,
        Denial::Deadlock => Error::Deadlock,
        Denial::Quarantined(left, _) => Error::Quarantine(left.0),
        Denial::WrongType => Error::WrongType,
    }
}

pub(super) fn answer(answer: &table::Answer) -> Answer {
    match answer {
        table::Answer::Granted(granted) => Answer::Fences(granted.to_vec()),
        table::Answer::Nothing => Answer::Nothing,
        table::Answer::Unblocked => Answer::Unblocked,
        table::Answer::Denied(denial) => Answer::Error(error(*denial)),
    }
}

pub(super) fn core_limits(limits: Limits) -> table::Limits {
    table::Limits {
        max_hold: cap(limits.max_hold),
        max_waiters: limits.max_waiters,
        max_holders: limits.max_holders as u32,
    }
}
