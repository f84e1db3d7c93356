//! Connections that wait: the server parks them, core says when they are answered.
//!
//! A parked connection is blocked on its keys, so that the server redirects it when a slot moves.
//! The key's callback never serves it; [`on_turn`] does, at the end of a turn of the event loop,
//! upon which the server calls the timeout callback, the only one that replies. The module keeps
//! the deadline itself: the server's own follows the wall clock and is late. Whatever ends the
//! wait, the server frees the private data last: there it is known whether the client was answered.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;

use foldhash::HashMap;
use redis_module::raw;
use redislock_core::queue::WaiterId;
use redislock_core::small::SmallList;
use redislock_core::table::Answer;
use redislock_core::time::Millis;

use crate::alarm;
use crate::edge::{self, edge, on_event};
use crate::ffi::{Arg, Ctx, api};
use crate::global::Global;
use crate::node::{self, Notice};
use crate::reply::{self, Shape};

/// The server's handle of a connection that is blocked.
type Blocked = *mut raw::RedisModuleBlockedClient;

/// A connection that waits, in the care of the server. The private data of the blocked client is
/// the number of its waiter, so nothing is allocated for it.
struct Parked {
    /// While it is blocked, and nobody has answered it or seen it leave.
    client: Option<Blocked>,
    shape: Shape,
    /// What it is to be told.
    answer: Option<Answer>,
    has_replied: bool,
    /// Whether that was an answer, not the server's own end of the wait.
    was_told: bool,
}

/// The private data that carries the number of a waiter.
fn data_of(id: WaiterId) -> *mut c_void {
    std::ptr::without_provenance_mut(id.0 as usize)
}

/// The waiter whose number the private data is; none if it is null.
fn waiter_of(data: *mut c_void) -> Option<WaiterId> {
    (!data.is_null()).then(|| WaiterId(data.addr() as u64))
}

/// Everything about the waiters that the server does not keep.
#[derive(Default)]
struct Waiters {
    /// From the moment they are blocked until the server frees their private data.
    parked: HashMap<WaiterId, Parked>,
    /// Answers to those who are still blocked.
    answers: Vec<(WaiterId, Answer)>,
    /// Those who are still blocked and are to come again: very many may be at once.
    dismissed: VecDeque<WaiterId>,
    turn: Turn,
    /// Whether somebody was answered since [`look_for_quiet`] looked last.
    has_answered: bool,
}

impl Waiters {
    /// Takes the handle of a connection that is to be answered, or that has gone; none if that has
    /// happened before.
    fn take_client(&mut self, id: WaiterId) -> Option<Blocked> {
        self.parked.get_mut(&id)?.client.take()
    }

    fn has_pending_replies(&self) -> bool {
        !(self.answers.is_empty() && self.dismissed.is_empty())
    }
}

/// This many waiters get `-UNBLOCKED` in one iteration of the event loop.
const DISMISSED_AT_ONCE: usize = 32;

/// When nobody was answered for so long, the server need not call at the end of each turn. While a
/// lock is handed over again and again it stays so: to ask for the calls and to give them up for
/// each hand-over took 900 instructions, and another turn of the event loop 2,500.
const QUIET: Millis = Millis(100);

/// Where the server is in its turn of the event loop, as far as is known.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// Nobody tells, as the module has not asked to be called.
    #[default]
    Untold,
    /// The module is called at the end of this turn, if it is not over yet.
    Unknown,
    /// The module is called at the end of this turn.
    Open,
    /// The module was called at the end of this turn; the server may still run commands before it
    /// sleeps.
    Over,
}

static WAITERS: LazyLock<Global<Waiters>> = LazyLock::new(|| Global::new(Waiters::default()));

/// Parks the connection of this command until its waiter is answered.
pub fn park<'a>(ctx: Ctx, id: WaiterId, shape: Shape, keys: impl Iterator<Item = Arg<'a>>) {
    let keys: SmallList<_> = keys.map(Arg::raw).collect();
    // SAFETY: a valid context and keys; the private data is a number.
    let client = unsafe {
        let client = api!(RedisModule_BlockClientOnKeys(
            ctx.raw(),
            Some(edge!(key_is_ready as fn(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int, or raw::REDISMODULE_ERR as c_int)),
            Some(edge!(answer as fn(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int, or refuse(ctx))),
            Some(edge!(
                free_parked as fn(ctx: *mut raw::RedisModuleCtx, parked: *mut c_void)
            )),
            0,
            keys.as_ptr().cast_mut(),
            keys.len() as c_int,
            data_of(id),
        ));
        api!(RedisModule_SetDisconnectCallback(
            client,
            Some(edge!(
                disconnected
                    as fn(
                        ctx: *mut raw::RedisModuleCtx,
                        client: *mut raw::RedisModuleBlockedClient,
                    )
            ))
        ));
        client
    };
    let parked = Parked {
        client: Some(client),
        shape,
        answer: None,
        has_replied: false,
        was_told: false,
    };
    WAITERS.with(|waiters| waiters.parked.insert(id, parked));
}

/// Replies to the waiters as soon as the server has finished its current work.
///
/// Not at once: in the same step a client may still be killed or unblocked (in a pipeline, in
/// EXEC), and then the answer is not the one that counts. So it waits for the end of the turn. If
/// that may have passed already, the server takes another turn before it sleeps.
pub fn deliver(answers: impl Iterator<Item = (WaiterId, Answer)>) {
    let before = WAITERS.with(|waiters| {
        for (id, answer) in answers {
            if answer == Answer::Unblocked {
                waiters.dismissed.push_back(id);
            } else {
                waiters.answers.push((id, answer));
            }
        }
        let before = waiters.turn;
        if before == Turn::Untold {
            waiters.turn = Turn::Unknown;
        }
        waiters.has_answered = true;
        before
    });
    if before == Turn::Untold {
        alarm::call_each_turn(Some(on_event!(on_turn)));
        look_again_for_quiet();
    }
    if before != Turn::Open {
        alarm::nudge();
    }
}

/// The server is about to sleep, or has slept.
fn on_turn(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, moment: u64, _: *mut c_void) {
    if moment == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        unblock_answered();
        unblock_dismissed(DISMISSED_AT_ONCE);
        let is_more = WAITERS.with(|waiters| {
            waiters.turn = Turn::Over;
            waiters.has_pending_replies()
        });
        if is_more {
            alarm::nudge();
        }
    } else {
        WAITERS.with(|waiters| waiters.turn = Turn::Open);
    }
}

fn look_again_for_quiet() {
    alarm::call_later(
        QUIET,
        edge!(look_for_quiet as fn(ctx: *mut raw::RedisModuleCtx, data: *mut c_void)),
    );
}

/// Ends the calls of [`on_turn`] when nobody was answered for a while.
fn look_for_quiet(_: *mut raw::RedisModuleCtx, _: *mut c_void) {
    let is_quiet = WAITERS.with(|waiters| {
        let has_answered = std::mem::take(&mut waiters.has_answered);
        let is_quiet = !has_answered && !waiters.has_pending_replies();
        if is_quiet {
            waiters.turn = Turn::Untold;
        }
        is_quiet
    });
    if is_quiet {
        alarm::call_each_turn(None);
    } else {
        look_again_for_quiet();
    }
}

/// Lets the server send the replies of the waiters.
fn unblock_answered() {
    let mut answers = WAITERS.with(|waiters| std::mem::take(&mut waiters.answers));
    for (id, answer) in answers.drain(..) {
        tell(id, answer);
    }
    // Its memory is used again.
    WAITERS.with(|waiters| {
        if waiters.answers.is_empty() {
            waiters.answers = answers;
        }
    });
}

/// Lets the server send `-UNBLOCKED` to dismissed waiters, at most this many.
fn unblock_dismissed(most: usize) {
    for _ in 0..most {
        let Some(id) = WAITERS.with(|waiters| waiters.dismissed.pop_front()) else {
            return;
        };
        tell(id, Answer::Unblocked);
    }
}

/// Lets the server reply to a waiter.
fn tell(id: WaiterId, answer: Answer) {
    let client = WAITERS.with(|waiters| {
        let parked = waiters.parked.get_mut(&id)?;
        let client = parked.client.take()?;
        parked.answer = Some(answer);
        Some(client)
    });
    match client {
        // SAFETY: still blocked, as nobody has taken its handle before.
        Some(client) => unsafe {
            api!(RedisModule_UnblockClient(client, data_of(id)));
        },
        // Gone before it could be told.
        None => has_left(id),
    }
}

/// The module has failed and grants nothing any more: those who wait are told so.
pub fn give_up() {
    unblock_answered();
    let blocked = |(id, parked): (&WaiterId, &Parked)| parked.client.map(|_| *id);
    let all: Vec<_> = WAITERS.with(|waiters| waiters.parked.iter().filter_map(blocked).collect());
    for id in all {
        tell(id, Answer::Unblocked);
    }
}

/// A waiter is gone, without an answer.
fn has_left(id: WaiterId) {
    node::post(Notice::Left(id));
    alarm::wake_soon();
}

/// A key that is waited for was made: it is not for the server to say who gets it.
fn key_is_ready(
    _: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

/// Replies. Without an answer the server itself has ended the wait (CLIENT UNBLOCK).
fn answer(ctx: *mut raw::RedisModuleCtx, _: *mut *mut raw::RedisModuleString, _: c_int) -> c_int {
    // SAFETY: the context of a callback for a blocked client.
    let id = waiter_of(unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) });
    let to_reply = id.and_then(|id| {
        WAITERS.with(|waiters| {
            let parked = waiters.parked.get_mut(&id)?;
            if std::mem::replace(&mut parked.has_replied, true) {
                return None;
            }
            parked.client = None;
            parked.was_told = parked.answer.is_some();
            Some((id, parked.answer.take(), std::mem::take(&mut parked.shape)))
        })
    });
    if let Some((id, answer, shape)) = to_reply {
        if answer.is_none() {
            has_left(id);
        }
        // SAFETY: the context of this callback.
        let ctx = unsafe { Ctx::new(ctx) };
        reply::answer(ctx, answer.as_ref().unwrap_or(&Answer::Nothing), &shape);
    }
    raw::REDISMODULE_OK as c_int
}

/// Replies when [`answer`] has failed.
fn refuse(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the context of this callback.
    unsafe { Ctx::new(ctx) }.reply_error(edge::REFUSAL);
    raw::REDISMODULE_OK as c_int
}

/// The connection is gone, or CLIENT UNBLOCK … ERROR has answered it: the waiter leaves the queue
/// at once.
fn disconnected(ctx: *mut raw::RedisModuleCtx, _: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the context of a callback for a blocked client.
    let id = waiter_of(unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) });
    let left = id.filter(|id| WAITERS.with(|waiters| waiters.take_client(*id)).is_some());
    if let Some(id) = left {
        has_left(id);
    }
}

/// The last that is heard of a parked connection.
fn free_parked(_: *mut raw::RedisModuleCtx, data: *mut c_void) {
    let Some(id) = waiter_of(data) else {
        return;
    };
    let parked = WAITERS.with(|waiters| waiters.parked.remove(&id));
    if parked.is_some_and(|parked| parked.was_told) {
        node::post(Notice::Delivered(id));
    } else {
        has_left(id);
    }
}
