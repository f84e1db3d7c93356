//! Connections that wait: the server parks them, core says when they are answered.
//!
//! A parked connection is blocked on its keys, so that the server redirects it when a slot moves. The key's callback never
//! serves it; [`unblock_answered`] does, at the end of a turn, upon which the server calls the timeout callback, the only one
//! that replies. The module keeps the deadline itself: the server's own follows the wall clock and is late.
//! Whatever ends the wait, the server frees the private data last: there it is known whether the client was answered.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};

use foldhash::HashMap;
use redis_module::raw;
use redislock_core::few::Few;
use redislock_core::queue::WaiterId;
use redislock_core::table::Answer;

use crate::command::reply::{self, Shape};
use crate::ffi::{Arg, Ctx, api};
use crate::lifecycle;
use crate::node::{self, Letter};

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

thread_local! {
    /// The server blocks and unblocks on its main thread only.
    static PLACES: RefCell<Places> = RefCell::default();
    /// Whether the end of each turn is told.
    static LISTENS: Cell<bool> = const { Cell::new(false) };
    /// Answers to those who are still blocked.
    static ANSWERS: RefCell<Vec<(WaiterId, Answer)>> = RefCell::default();
}

/// Parks the connection of this command until its waiter is answered.
pub fn park<'a>(ctx: Ctx, id: WaiterId, shape: Shape, keys: impl Iterator<Item = Arg<'a>>) {
    let parked = Box::into_raw(Box::new(Parked {
        id,
        shape,
        answer: None,
        replied: false,
    }));
    let keys: Few<_> = keys.map(Arg::raw).collect();
    // SAFETY: a valid context and keys; the private data is freed by `free`, which the server calls once.
    let client = unsafe {
        let client = api!(RedisModule_BlockClientOnKeys(
            ctx.raw(),
            Some(key_is_ready),
            Some(answer),
            Some(free),
            0,
            keys.as_ptr().cast_mut(),
            keys.len() as c_int,
            parked.cast(),
        ));
        api!(RedisModule_SetDisconnectCallback(
            client,
            Some(disconnected)
        ));
        client
    };
    PLACES.with_borrow_mut(|places| places.insert(id, Place { client, parked }));
}

/// Answers those who waited, as soon as the server has done with what it is doing.
///
/// Not at once: in the same step a client may still be killed or unblocked (in a pipeline, in EXEC), and then the answer is
/// not the one that counts. So it waits for the end of the turn, before replies are sent.
pub fn deliver(answers: impl Iterator<Item = (WaiterId, Answer)>) {
    ANSWERS.with_borrow_mut(|waiting| waiting.extend(answers));
    if !LISTENS.replace(true) {
        lifecycle::call_each_turn(Some(unblock_answered));
    }
}

/// Lets the server reply to those who were answered.
extern "C" fn unblock_answered(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    moment: u64,
    _: *mut c_void,
) {
    if moment != raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        return;
    }
    let mut answers = ANSWERS.take();
    for (id, answer) in answers.drain(..) {
        match PLACES.with_borrow_mut(|places| places.remove(id)) {
            // SAFETY: still blocked, as it had a place until now; so the server has not freed the private data either.
            Some(place) => unsafe {
                (*place.parked).answer = Some(answer);
                api!(RedisModule_UnblockClient(place.client, place.parked.cast()));
            },
            // Gone before it could be told.
            None => {
                node::post(Letter::Left(id));
                lifecycle::wake_soon();
            }
        }
    }
    // Its memory is used again.
    ANSWERS.with_borrow_mut(|since| {
        if since.is_empty() {
            *since = answers;
        }
    });
}

/// A key that is waited for was made: it is not for the server to say who gets it.
extern "C" fn key_is_ready(
    _: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    raw::REDISMODULE_ERR as c_int
}

/// Replies. Without an answer the server itself has ended the wait (CLIENT UNBLOCK).
extern "C" fn answer(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    // SAFETY: the server calls this with the private data of the blocked client, which it has not freed yet.
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
            PLACES.with_borrow_mut(|places| places.remove(parked.id));
            node::post(Letter::Left(parked.id));
            lifecycle::wake_soon();
        }
        reply::answer(
            ctx,
            parked.answer.as_ref().unwrap_or(&Answer::Nothing),
            &parked.shape,
        );
    }
    raw::REDISMODULE_OK as c_int
}

/// The connection is gone, or CLIENT UNBLOCK … ERROR has answered it: the waiter leaves the queue at once.
extern "C" fn disconnected(
    _: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
) {
    let left = PLACES.with_borrow_mut(|places| {
        let id = *places.by_client.get(&client)?;
        places.remove(id).map(|_| id)
    });
    if let Some(id) = left {
        node::post(Letter::Left(id));
        lifecycle::wake_soon();
    }
}

/// The last that is heard of a parked connection.
extern "C" fn free(_: *mut raw::RedisModuleCtx, parked: *mut c_void) {
    if parked.is_null() {
        return;
    }
    // SAFETY: made in `park`; the server frees it once.
    let parked = unsafe { Box::from_raw(parked.cast::<Parked>()) };
    PLACES.with_borrow_mut(|places| places.remove(parked.id));
    let was_told = parked.replied && parked.answer.is_some();
    node::post(if was_told {
        Letter::Delivered(parked.id)
    } else {
        Letter::Left(parked.id)
    });
    if !was_told {
        lifecycle::wake_soon();
    }
    // The first moment after `unblock_answered` at which the server may be told to stop calling it.
    if ANSWERS.with_borrow(Vec::is_empty) && LISTENS.replace(false) {
        lifecycle::call_each_turn(None);
    }
}
