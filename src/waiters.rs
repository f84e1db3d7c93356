//! Connections that wait: the server parks them, core decides when they are answered.
//!
//! A connection is parked in one of two ways ([`parks_on_keys`]). If a slot may move, the
//! connection is blocked on its keys, so that the server redirects it then; the key's callback
//! never serves it. Otherwise it is blocked without keys, which saves 2,600 of the 27,000
//! instructions of a hand-over. [`on_turn`] lets the server resume it at the end of a turn of the
//! event loop. The server then calls [`answer`], the only function that replies. The module keeps
//! the deadline itself: the server's own timeout follows the wall clock and is late. Whatever ends
//! the wait, the server frees the private data last; at that point it is known whether the client
//! was answered.

mod parked;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};

use foldhash::fast::FixedState;
use parked::{AllParked, Blocked, HASHES, KEPT, Parked};
use redis_module::raw;
use redislock_core::queue::WaiterId;
use redislock_core::small::SmallList;
use redislock_core::table::Answer;
use redislock_core::time::{Micros, Millis};

use crate::edge::{self, edge, on_event};
use crate::ffi::{Arg, Ctx, api};
use crate::global::Global;
use crate::node::{self, Notice, Slice};
use crate::reply::{self, Shape};
use crate::{alarm, clock, server};

/// A connection whose wait has ended, until the server frees its private data.
struct Ended {
    id: WaiterId,
    /// Its answer and the form of the reply; none once it has a reply.
    answer: Option<(Answer, Shape)>,
    /// How the wait has ended for core.
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It has an answer, which has not been sent.
    Pending,
    /// It was answered.
    Answered,
    /// It has left without an answer, and core knows.
    Left,
}

/// Stores the number of a waiter in private data.
fn data_of(id: WaiterId) -> *mut c_void {
    std::ptr::without_provenance_mut(id.0 as usize)
}

/// The waiter whose number is stored in the private data; none if it is null.
fn waiter_of(data: *mut c_void) -> Option<WaiterId> {
    (!data.is_null()).then(|| WaiterId(data.addr() as u64))
}

/// Whether connections are blocked on their keys.
///
/// In a cluster they are, so that the server redirects them. Since Redis 7.2, they always are: the
/// server resumes connections before the end of a turn. A connection that is not blocked on keys
/// would have to wait for the next turn, and CLIENT UNBLOCK could end its wait without a reply
/// meanwhile.
fn parks_on_keys() -> bool {
    server::is_cluster() || alarm::is_turn_over_before_event()
}

/// Everything about the waiters that the server does not keep.
struct Waiters {
    /// Connections from the moment they are blocked until their wait ends.
    parked: AllParked,
    /// Those that are not blocked on keys: their private data is null until their wait ends.
    by_client: HashMap<Blocked, WaiterId, FixedState>,
    /// Connections whose wait has ended, in the order in which the server frees their private data.
    ended: VecDeque<Ended>,
    /// Grants to waiters that are still blocked. Core limits their number.
    grants: Vec<(WaiterId, Answer)>,
    /// Other answers to waiters that are still blocked: there may be very many at once.
    refusals: VecDeque<(WaiterId, Answer)>,
    turn: Turn,
    /// The CPU time of the thread when this turn began, if refusals wait for its end.
    began: Option<Micros>,
    /// Whether a waiter was answered since [`look_for_quiet`] last checked.
    has_answered: bool,
}

impl Waiters {
    const fn new() -> Self {
        Self {
            parked: AllParked::new(),
            by_client: HashMap::with_hasher(HASHES),
            ended: VecDeque::new(),
            grants: Vec::new(),
            refusals: VecDeque::new(),
            turn: Turn::Untold,
            began: None,
            has_answered: false,
        }
    }

    /// Ends the wait of a connection, and returns it and whether it is blocked on keys; none if it
    /// has ended before.
    fn end(&mut self, id: WaiterId, answer: Option<Answer>) -> Option<(Blocked, bool)> {
        let Parked {
            client,
            on_keys,
            shape,
        } = self.parked.remove(id)?;
        if !on_keys {
            self.by_client.remove(&client);
        }
        let end = if answer.is_some() {
            End::Pending
        } else {
            End::Left
        };
        let answer = answer.map(|answer| (answer, shape));
        self.ended.push_back(Ended { id, answer, end });
        Some((client, on_keys))
    }

    /// The position of a connection among those whose wait has ended: the last one if it is
    /// answered at once, otherwise the first one.
    fn place(&self, id: WaiterId) -> Option<usize> {
        let ended = &self.ended;
        if ended.back()?.id == id {
            return Some(ended.len() - 1);
        }
        ended.iter().position(|ended| ended.id == id)
    }

    /// Frees the memory of very many waiters when nobody waits.
    fn give_back(&mut self) {
        let most = self.by_client.capacity().max(self.ended.capacity());
        let most = most.max(self.refusals.capacity());
        if !(self.ended.is_empty() && self.parked.is_empty() && most > KEPT) {
            return;
        }
        self.by_client = HashMap::with_hasher(HASHES);
        self.ended = VecDeque::new();
        if !self.has_pending_replies() {
            self.grants = Vec::new();
            self.refusals = VecDeque::new();
        }
    }

    fn has_pending_replies(&self) -> bool {
        !(self.grants.is_empty() && self.refusals.is_empty())
    }
}

/// This many waiters that were granted nothing get their replies in one turn of the event loop, if
/// there is time. The server needs about 10 µs for each.
const REFUSED_AT_ONCE: usize = 32;
/// One more for each part of this length in a turn, because the turns of a busy server are long: in
/// turns of up to 10 ms, a tenth of the time is for them.
const ONE_MORE_EVERY: Micros = Micros(100);
/// Never more than this many: when the server loads all its data, that is one turn, of seconds.
/// With turns of 100 ms, ten thousand waiters whose time is over at once get their replies within
/// 8 s, while no child of the server saves.
const REFUSED_AT_MOST: usize = 128;
/// And never for longer than this: while a child of the server saves, each page that a reply
/// changes is copied first. Tests count how many are sent at most, however slow the machine is.
const REFUSED_FOR: Micros = Micros(if cfg!(feature = "failpoints") {
    u64::MAX
} else {
    200
});

/// When no waiter was answered for this long, the server stops calling the module at the end of
/// each turn. While a lock is handed over repeatedly, the calls stay on: turning them on and off
/// for each hand-over took 900 instructions, and another turn of the event loop took 2,100.
const QUIET: Millis = Millis(100);

/// The server's position in its turn of the event loop, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Unknown, because the module has not asked to be called.
    Untold,
    /// The module is called at the end of this turn, if it is not over yet.
    Unknown,
    /// The module is called at the end of this turn.
    Open,
    /// The module was called at the end of this turn; the server may still run commands before it
    /// sleeps.
    Over,
}

static WAITERS: Global<Waiters> = Global::new(Waiters::new());

/// Parks the connection of this command until its waiter gets an answer.
pub fn park<'a>(ctx: Ctx, id: WaiterId, shape: Shape, keys: impl Iterator<Item = Arg<'a>>) {
    let on_keys = parks_on_keys();
    let client = if on_keys {
        block_on_keys(ctx, id, keys)
    } else {
        block(ctx)
    };
    // SAFETY: a connection that was just blocked.
    unsafe {
        api!(RedisModule_SetDisconnectCallback(
            client.0,
            Some(edge!(
                disconnected
                    as fn(
                        ctx: *mut raw::RedisModuleCtx,
                        client: *mut raw::RedisModuleBlockedClient,
                    )
            ))
        ));
    }
    WAITERS.with(|waiters| {
        let parked = Parked {
            client,
            on_keys,
            shape,
        };
        waiters.parked.insert(id, parked);
        if !on_keys {
            waiters.by_client.insert(client, id);
        }
    });
}

/// The server calls this to reply, whatever has ended the wait.
type Reply = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

fn reply() -> Reply {
    edge!(answer as fn(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> c_int, or refuse(ctx))
}

/// The server calls this last.
fn free() -> unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void) {
    edge!(free_parked as fn(ctx: *mut raw::RedisModuleCtx, data: *mut c_void))
}

fn block(ctx: Ctx) -> Blocked {
    // SAFETY: a valid context.
    Blocked(unsafe {
        api!(RedisModule_BlockClient(
            ctx.raw(),
            Some(reply()),
            Some(reply()),
            Some(free()),
            0
        ))
    })
}

fn block_on_keys<'a>(ctx: Ctx, id: WaiterId, keys: impl Iterator<Item = Arg<'a>>) -> Blocked {
    let keys: SmallList<_> = keys.map(Arg::raw).collect();
    // SAFETY: a valid context and keys; the private data is a number.
    Blocked(unsafe {
        api!(RedisModule_BlockClientOnKeys(
            ctx.raw(),
            Some(edge!(key_is_ready as fn(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int, or raw::REDISMODULE_ERR as c_int)),
            Some(reply()),
            Some(free()),
            0,
            keys.as_ptr().cast_mut(),
            keys.len() as c_int,
            data_of(id),
        ))
    })
}

/// Replies to the waiters as soon as the server has finished its current work.
///
/// Not at once: in the same step, a client may still be killed or unblocked (in a pipeline, in
/// EXEC), and then this answer does not count. So it waits for the end of the turn. If that may
/// have passed already, the server takes another turn before it sleeps.
pub fn deliver(answers: impl Iterator<Item = (WaiterId, Answer)>) {
    let before = WAITERS.with(|waiters| {
        for (id, answer) in answers {
            if matches!(answer, Answer::Granted(_)) {
                waiters.grants.push((id, answer));
            } else {
                waiters.refusals.push_back((id, answer));
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
        let has_pending_replies = || WAITERS.with(|waiters| waiters.has_pending_replies());
        if has_pending_replies() {
            unblock_granted();
            unblock_refused();
            if has_pending_replies() {
                alarm::nudge();
            }
        }
        WAITERS.with(|waiters| waiters.turn = Turn::Over);
    } else {
        WAITERS.with(|waiters| {
            waiters.turn = Turn::Open;
            if !waiters.refusals.is_empty() {
                waiters.began = Some(clock::time_of_thread());
            }
        });
    }
}

fn look_again_for_quiet() {
    alarm::call_later(
        QUIET,
        edge!(look_for_quiet as fn(ctx: *mut raw::RedisModuleCtx, data: *mut c_void)),
    );
}

/// Ends the calls of [`on_turn`] when no waiter was answered for a while.
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

/// Lets the server send the replies of waiters that were granted their locks.
fn unblock_granted() {
    let mut grants = WAITERS.with(|waiters| std::mem::take(&mut waiters.grants));
    for (id, answer) in grants.drain(..) {
        send_answer(id, answer);
    }
    // Its memory is reused.
    WAITERS.with(|waiters| {
        if waiters.grants.is_empty() {
            waiters.grants = grants;
        }
    });
}

/// Lets the server send the replies of other waiters, but not too many in one turn.
fn unblock_refused() {
    let (some, began) =
        WAITERS.with(|waiters| (!waiters.refusals.is_empty(), waiters.began.take()));
    if !some {
        return;
    }
    let slice = Slice::begin();
    let turn = began.map_or(Micros::ZERO, |began| slice.begin_cpu().minus(began));
    let most = REFUSED_AT_ONCE + (turn.0 / ONE_MORE_EVERY.0) as usize;
    let most = most.min(REFUSED_AT_MOST);
    let next = || WAITERS.with(|waiters| waiters.refusals.pop_front());
    let mut sent = 0;
    while sent < most
        && let Some((id, answer)) = next()
    {
        send_answer(id, answer);
        sent += 1;
        if slice.has_taken(REFUSED_FOR) {
            break;
        }
    }
    #[cfg(feature = "failpoints")]
    edge::failpoint::MOST_REFUSED.fetch_max(sent as u64, std::sync::atomic::Ordering::Relaxed);
    slice.end();
}

/// Lets the server reply to a waiter.
fn send_answer(id: WaiterId, answer: Answer) {
    match WAITERS.with(|waiters| waiters.end(id, Some(answer))) {
        Some((client, _)) => unblock(client, id),
        // It left before it could get its answer.
        None => has_left(id),
    }
}

/// Lets the server resume a connection whose wait has ended.
fn unblock(client: Blocked, id: WaiterId) {
    // SAFETY: the server frees the handle only after this call, and only the function that ends the
    // wait makes this call, once.
    unsafe {
        api!(RedisModule_UnblockClient(client.0, data_of(id)));
    }
}

/// The server itself has ended a wait: the waiter leaves the queue at once. Returns false if the
/// wait had ended before.
fn end_without_answer(id: WaiterId) -> bool {
    let Some((client, on_keys)) = WAITERS.with(|waiters| waiters.end(id, None)) else {
        return false;
    };
    has_left(id);
    if !on_keys {
        // Otherwise the server does this by itself.
        unblock(client, id);
    }
    true
}

/// The module has failed and grants nothing any more: all waiters get `-UNBLOCKED`.
pub fn give_up() {
    unblock_granted();
    let all = WAITERS.with(|waiters| waiters.parked.ids());
    for id in all {
        send_answer(id, Answer::Unblocked);
    }
}

/// A waiter is gone, without an answer.
fn has_left(id: WaiterId) {
    node::post(Notice::Left(id));
    alarm::wake_soon();
}

/// A key that somebody waits for was created. The server must not decide who gets it.
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
    let (data, client) = unsafe {
        let data = api!(RedisModule_GetBlockedClientPrivateData(ctx));
        (data, api!(RedisModule_GetBlockedClientHandle(ctx)))
    };
    // SAFETY: the context of this callback.
    let ctx = unsafe { Ctx::new(ctx) };
    let Some(id) = waiter(data, Blocked(client)) else {
        return raw::REDISMODULE_OK as c_int;
    };
    let to_reply = WAITERS.with(|waiters| {
        if waiters.parked.contains(id) {
            // Do not search the connections whose wait has ended: there may be very many.
            return None;
        }
        let place = waiters.place(id)?;
        let ended = waiters.ended.get_mut(place)?;
        let to_reply = ended.answer.take()?;
        ended.end = End::Answered;
        Some(to_reply)
    });
    if let Some((answer, shape)) = to_reply {
        reply::answer(ctx, &answer, &shape);
    } else if end_without_answer(id) {
        reply::answer(ctx, &Answer::Nothing, &Shape::default());
    }
    raw::REDISMODULE_OK as c_int
}

/// Replies when [`answer`] has failed.
fn refuse(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the context of this callback.
    unsafe { Ctx::new(ctx) }.reply_error(edge::REFUSAL);
    raw::REDISMODULE_OK as c_int
}

/// The waiter that a callback is about.
fn waiter(data: *mut c_void, client: Blocked) -> Option<WaiterId> {
    let by_client = || WAITERS.with(|waiters| waiters.by_client.get(&client).copied());
    waiter_of(data).or_else(by_client)
}

/// The connection is gone, or CLIENT UNBLOCK … ERROR has answered it.
fn disconnected(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the context of a callback for a blocked client.
    let data = unsafe { api!(RedisModule_GetBlockedClientPrivateData(ctx)) };
    if let Some(id) = waiter(data, Blocked(client)) {
        end_without_answer(id);
    }
}

/// The last callback about a parked connection.
fn free_parked(_: *mut raw::RedisModuleCtx, data: *mut c_void) {
    let Some(id) = waiter_of(data) else {
        return;
    };
    let ended = WAITERS.with(|waiters| {
        let Some(place) = waiters.place(id) else {
            waiters.parked.remove(id);
            return None;
        };
        // It is nearly always the last one: 40 instructions less.
        let ended = if place + 1 == waiters.ended.len() {
            waiters.ended.pop_back()
        } else {
            waiters.ended.remove(place)
        };
        waiters.give_back();
        ended.map(|ended| ended.end)
    });
    match ended {
        Some(End::Answered) => node::delivered(id),
        Some(End::Left) => {}
        Some(End::Pending) | None => has_left(id),
    }
}
