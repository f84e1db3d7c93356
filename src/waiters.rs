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

/// A connection that waits, in the care of the server.
struct Parked {
    id: WaiterId,
    shape: Shape,
    answer: Option<Answer>,
    replied: bool,
}

#[derive(Clone, Copy)]
struct Place {
    client: *mut raw::RedisModuleBlockedClient,
    parked: *mut Parked,
}

/// Where the parked connections are, by waiter and by the server's name for them.
#[derive(Default)]
struct Places {
    by_waiter: HashMap<WaiterId, Place>,
    by_client: HashMap<*mut raw::RedisModuleBlockedClient, WaiterId>,
}

impl Places {
    fn insert(&mut self, id: WaiterId, place: Place) {
        self.by_waiter.insert(id, place);
        self.by_client.insert(place.client, id);
    }

    fn remove(&mut self, id: WaiterId) -> Option<Place> {
        let place = self.by_waiter.remove(&id)?;
        self.by_client.remove(&place.client);
        Some(place)
    }
}

/// Everything about the waiters that the server does not keep.
#[derive(Default)]
struct Waiters {
    places: Places,
    /// Replies to waiters that are still blocked.
    answers: Vec<(WaiterId, Answer)>,
    /// Those who are still blocked and are to come again: very many may be at once.
    dismissed: VecDeque<WaiterId>,
    turn: Turn,
    /// Whether somebody was answered since [`look_for_quiet`] looked last.
    has_answered: bool,
}

impl Waiters {
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
    let parked = Box::into_raw(Box::new(Parked {
        id,
        shape,
        answer: None,
        replied: false,
    }));
    let keys: SmallList<_> = keys.map(Arg::raw).collect();
    // SAFETY: a valid context and keys; the private data is freed by `free_parked`, which the
    // server calls once.
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
            parked.cast(),
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
    WAITERS.with(|waiters| waiters.places.insert(id, Place { client, parked }));
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
    match WAITERS.with(|waiters| waiters.places.remove(id)) {
        Some(place) => unblock(place, answer),
        // Disconnected before it could be notified.
        None => has_left(id),
    }
}

/// Lets the server reply to a connection that had a place until now.
fn unblock(place: Place, answer: Answer) {
    // SAFETY: still blocked, as it had a place; so the server has not freed the private data
    // either.
    unsafe {
        (*place.parked).answer = Some(answer);
        api!(RedisModule_UnblockClient(place.client, place.parked.cast()));
    }
}

/// The module has failed and grants nothing any more: the waiters are notified.
pub fn give_up() {
    unblock_answered();
    while let Some(place) = WAITERS.with(|waiters| {
        let id = *waiters.places.by_waiter.keys().next()?;
        waiters.places.remove(id)
    }) {
        unblock(place, Answer::Unblocked);
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
    // SAFETY: the server calls this with the private data of the blocked client, which it has not
    // freed yet.
    let parked = unsafe {
        api!(RedisModule_GetBlockedClientPrivateData(ctx))
            .cast::<Parked>()
            .as_mut()
    };
    if let Some(parked) = parked
        && !parked.replied
    {
        // SAFETY: the context of this callback.
        let ctx = unsafe { Ctx::new(ctx) };
        parked.replied = true;
        if parked.answer.is_none() {
            WAITERS.with(|waiters| waiters.places.remove(parked.id));
            has_left(parked.id);
        }
        reply::answer(
            ctx,
            parked.answer.as_ref().unwrap_or(&Answer::Nothing),
            &parked.shape,
        );
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
fn disconnected(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    let left = WAITERS.with(|waiters| {
        let id = *waiters.places.by_client.get(&client)?;
        waiters.places.remove(id).map(|_| id)
    });
    if let Some(id) = left {
        has_left(id);
    }
}

/// The last that is heard of a parked connection.
fn free_parked(_: *mut raw::RedisModuleCtx, parked: *mut c_void) {
    if parked.is_null() {
        return;
    }
    // SAFETY: made in `park`; the server frees it once.
    let parked = unsafe { Box::from_raw(parked.cast::<Parked>()) };
    let was_told = parked.replied && parked.answer.is_some();
    if was_told {
        node::post(Notice::Delivered(parked.id));
    } else {
        has_left(parked.id);
    }
    WAITERS.with(|waiters| waiters.places.remove(parked.id));
}
