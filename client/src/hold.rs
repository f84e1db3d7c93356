//! A lock that is held: by which nodes, until when, by how many guards of its owner.

mod renewal;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, Late};
use crate::client::Client;
use crate::clock::Moment;
use crate::command;
use crate::error::{Error, Verdict};
use crate::giveback::GiveBack;
use crate::keeper::Slot;
use crate::options::Spec;
use crate::quorum::NodeSet;
use crate::reply::Reply;
use crate::token::Token;

/// Renewal starts when this part of the ttl has passed.
const RENEW_AFTER: u32 = 3;
/// The holder is told of the loss this part of the ttl before validity ends, …
const WARN_BEFORE: u32 = 10;
/// … but no earlier than this.
const LONGEST_WARNING: Duration = Duration::from_secs(1);

/// What became of a hold that was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// It was held until now, by a majority of the nodes.
    WasHeld,
    /// It had been lost before: what was done under it may have met another holder.
    WasLost,
    /// Another guard of the same owner keeps it.
    StillHeld,
    /// Too few nodes answered to tell. They are told in the background; at the latest the lease ends it.
    Unknown,
}

/// See the module's text.
pub(crate) struct Hold {
    client: Arc<Client>,
    pub(crate) spec: Arc<Spec>,
    token: Token,
    pub(crate) fence: u64,
    /// Before this moment nothing was granted, so MAXHOLD counts from it.
    since: Moment,
    pub(crate) lost: CancellationToken,
    guards: AtomicUsize,
    state: Mutex<State>,
    /// Answers to the acquisition that nobody has read yet.
    late: Mutex<Option<Late>>,
    /// Ends a renewal under way.
    ending: Notify,
    /// One renewal at a time: answers of two would mix.
    turn: tokio::sync::Mutex<()>,
}

struct State {
    seats: Vec<Seat>,
    ttl: Duration,
    valid_until: Moment,
    renew_at: Moment,
    slot: Option<Slot>,
    ended: bool,
}

/// What one node has granted.
#[derive(Clone, Copy, Default)]
struct Seat {
    /// It may hold something of this token.
    asked: bool,
    /// The fence of its grant; `None`: none that we know of.
    fence: Option<u64>,
    /// Until when its lease surely lasts.
    end: Option<Moment>,
}

impl Hold {
    /// Takes over what the attempt has won.
    pub(crate) fn begin(
        attempt: &mut Attempt,
        started: Moment,
        fence: u64,
        valid_until: Moment,
    ) -> Arc<Self> {
        let asked = attempt.keep();
        let seat = |place| {
            let grant = attempt.ballot.grant_of(place);
            Seat {
                asked: asked.contains(place),
                fence: grant.map(|grant| grant.0),
                end: grant.map(|grant| grant.1),
            }
        };
        let ttl = attempt.spec.ttl;
        let state = State {
            seats: (0..attempt.verdicts.len()).map(seat).collect(),
            ttl,
            valid_until,
            renew_at: Moment::now() + ttl / RENEW_AFTER,
            slot: None,
            ended: false,
        };
        let hold = Arc::new(Self {
            client: Arc::clone(&attempt.client),
            spec: Arc::clone(&attempt.spec),
            token: attempt.token,
            fence,
            since: started,
            lost: CancellationToken::new(),
            guards: AtomicUsize::new(1),
            state: Mutex::new(state),
            late: Mutex::new(attempt.late.take()),
            ending: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        });
        hold.schedule();
        hold
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.lock().valid_until
    }

    /// One more guard, unless the hold is lost or the last guard is already on its way out.
    pub(crate) fn enter(&self) -> bool {
        let one_more = |guards: usize| (guards > 0).then_some(guards + 1);
        !self.lost.is_cancelled()
            && self
                .guards
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
                .is_ok()
    }

    /// One guard less; true for the last one, which has to release.
    pub(crate) fn leave(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// When the holder is to be told that the lock is as good as lost.
    fn warn_at(state: &State) -> Moment {
        state
            .valid_until
            .minus((state.ttl / WARN_BEFORE).min(LONGEST_WARNING))
    }

    /// Puts the hold on the keeper's agenda again.
    fn schedule(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.ended || self.lost.is_cancelled() {
            return;
        }
        let warn_at = Self::warn_at(&state);
        let at = match self.spec.renew {
            true => state.renew_at.min(warn_at),
            false => warn_at,
        };
        if let Some(slot) = state.slot.take() {
            self.client.keeper.forget(slot);
        }
        state.slot = Some(self.client.keeper.watch(self, at));
    }

    /// The keeper's call: renews what is due, and tells the holder in time when that does not work.
    pub(crate) async fn attend(self: Arc<Self>) {
        let (warn_at, renew_at) = {
            let state = self.lock();
            (Self::warn_at(&state), state.renew_at)
        };
        if self.spec.renew && renew_at <= Moment::now() {
            let ttl = self.lock().ttl;
            // The warning must not wait for a renewal that hangs.
            let _ = tokio::time::timeout(warn_at.remaining(), self.renew(ttl)).await;
        }
        if Self::warn_at(&self.lock()) <= Moment::now() {
            self.lost.cancel();
        }
        self.schedule();
    }

    /// Renews out of turn, because a node was restarted.
    pub(crate) async fn renew_now(&self) {
        let (ttl, ended) = {
            let state = self.lock();
            (state.ttl, state.ended)
        };
        if !ended && self.spec.renew {
            let _ = self.renew(ttl).await;
        }
    }

    /// Enters once more: the lease gets what is asked for now, and never less than before.
    pub(crate) async fn enter_for(self: &Arc<Self>, ttl: Duration) -> Result<Moment, Error> {
        let ttl = ttl.max(self.lock().ttl);
        self.extend(ttl).await
    }

    /// Extends on behalf of a guard, and lets the keeper know.
    pub(crate) async fn extend(self: &Arc<Self>, ttl: Duration) -> Result<Moment, Error> {
        let extended = self.renew(ttl).await;
        self.schedule();
        extended
    }

    /// Extends by the ttl in force.
    pub(crate) async fn extend_again(self: &Arc<Self>) -> Result<Moment, Error> {
        let ttl = self.lock().ttl;
        self.extend(ttl).await
    }

    /// Extends to another ttl, if that is long enough for the nodes' timeouts.
    pub(crate) async fn extend_checked(self: &Arc<Self>, ttl: Duration) -> Result<Moment, Error> {
        let wanted = Spec {
            ttl,
            max_hold: None,
            ..Spec::clone(&self.spec)
        };
        wanted.check(
            self.client.fleet.nodes.len(),
            self.client.fleet.node_timeout,
        )?;
        self.extend(ttl).await
    }

    /// Ends the hold, once: nothing is renewed from here on.
    fn end(&self) -> bool {
        let mut state = self.lock();
        let first = !std::mem::replace(&mut state.ended, true);
        if let Some(slot) = state.slot.take() {
            self.client.keeper.forget(slot);
        }
        drop(state);
        self.ending.notify_one();
        first
    }

    /// Ends the hold here and leaves it to whoever gets the token; only the last guard can.
    pub(crate) fn give_up_token(&self) -> Option<Token> {
        self.guards
            .compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire)
            .ok()?;
        self.end();
        Some(self.token)
    }

    /// Waits for a renewal under way, so that nothing it asks for comes after the release.
    async fn last_words(&self) -> GiveBack {
        let _turn = self.turn.lock().await;
        let state = self.lock();
        let mut from = NodeSet::default();
        for (place, seat) in state.seats.iter().enumerate() {
            if seat.asked {
                from.insert(place);
            }
        }
        let until = Moment::now() + state.ttl;
        let release = Arc::new(command::release(&self.spec, self.token));
        GiveBack::new(Arc::clone(&self.client), from, release, until)
    }

    /// Releases on all nodes that may hold something, and says what they thought of it.
    pub(crate) async fn release(self: &Arc<Self>) -> Released {
        if !self.end() {
            return Released::Unknown;
        }
        // Taken before anybody is asked: whoever is told that it was held can rely on it until here.
        let valid = self.valid_until() > Moment::now();
        let leaving = Leaving(Some(Arc::clone(self)));
        let give_back = self.last_words().await;
        leaving.done();
        let replies = give_back.run().await;
        let majority = self.client.fleet.majority();
        let count =
            |wanted: fn(&Reply) -> bool| replies.iter().filter(|(_, reply)| wanted(reply)).count();
        let held = count(|reply| matches!(reply, Reply::Yes(_)));
        let gone = count(|reply| matches!(reply, Reply::No));
        let nodes = self.client.fleet.nodes.len();
        match (valid, held >= majority, gone > nodes - majority) {
            (true, true, _) => Released::WasHeld,
            (false, _, _) | (_, _, true) => Released::WasLost,
            _ => Released::Unknown,
        }
    }

    /// Releases in the background: for guards that are dropped.
    pub(crate) fn release_in_background(self: &Arc<Self>) {
        if self.end() {
            drop(Leaving(Some(Arc::clone(self))));
        }
    }

    /// An error that says that the hold is gone.
    pub(crate) fn lost_error(&self) -> Error {
        Error::Lost {
            lock: self.spec.name(),
            nodes: self.client.fleet.reports(|place| {
                let node = &self.client.fleet.nodes[place];
                node.why_down().unwrap_or(Verdict::NotHeld)
            }),
        }
    }
}

/// A hold that is over but not yet released. Dropping it releases in the background.
struct Leaving(Option<Arc<Hold>>);

impl Leaving {
    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            let runtime = hold.client.runtime.clone();
            runtime.spawn(async move { hold.last_words().await.run().await });
        }
    }
}
