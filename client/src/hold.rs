//! A lock that is held: by which nodes, until when, by how many guards of its owner.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, Late};
use crate::client::Client;
use crate::clock::Moment;
use crate::command;
use crate::error::{Error, Reports, Verdict};
use crate::giveback::GiveBack;
use crate::keeper::Slot;
use crate::options::Spec;
use crate::quorum::{NodeSet, held_until, lease_end};
use crate::reply::Reply;
use crate::token::Token;

/// Renewal starts when this part of the ttl has passed …
const RENEW_AFTER: u32 = 3;
/// … and, where it failed, is tried again after this part.
const RETRY_AFTER: u32 = 12;
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

/// One round of renewal.
struct Round {
    /// The end of every lease that it confirms.
    end: Moment,
    regranted: NodeSet,
    confirmed: usize,
}

/// What follows from one answer.
enum Next {
    Fine,
    /// The node has forgotten the hold; it may grant it again.
    AskAgain,
    Lost,
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

    /// No extension may end later than MAXHOLD after the grant: the last ones are shorter.
    fn capped(&self, ttl: Duration) -> Duration {
        match self.spec.max_hold {
            Some(cap) => ttl.min((self.since + cap).remaining()),
            None => ttl,
        }
    }

    /// Asks every node: those that granted to extend, the others to grant. Validity then counts from the sending, for
    /// each node that agreed.
    pub(crate) async fn renew(&self, ttl: Duration) -> Result<Moment, Error> {
        let _turn = self.turn.lock().await;
        let lease = self.capped(ttl);
        if command::millis(lease) == 0 {
            // MAXHOLD is reached: what there is runs out.
            self.lock().renew_at = Moment::now() + ttl;
            return Ok(self.valid_until());
        }
        let fleet = Arc::clone(&self.client.fleet);
        let sent = Moment::now();
        let extend = Arc::new(command::extend(&self.spec, self.token, lease, None));
        let regrant = Spec {
            ttl: lease,
            ..Spec::clone(&self.spec)
        };
        let fence = (fleet.nodes.len() > 1).then_some(self.fence);
        let acquire = Arc::new(command::acquire(&regrant, self.token, fence, None));
        let mut verdicts = vec![Verdict::NotAsked; fleet.nodes.len()];
        let mut asked = FuturesUnordered::new();
        let ask = |place: usize, expected: Option<u64>| {
            let request = match expected {
                Some(_) => &extend,
                None => &acquire,
            };
            let answer = fleet.nodes[place].ask(Arc::clone(request));
            async move { (place, expected, answer.await) }
        };
        self.read_late_answers();
        let seats = self.lock().seats.clone();
        for (place, seat) in seats.iter().enumerate() {
            asked.push(ask(place, seat.fence));
            self.lock().seats[place].asked = true;
        }
        let mut round = Round {
            end: lease_end(sent, lease),
            regranted: NodeSet::default(),
            confirmed: 0,
        };
        let timer = tokio::time::sleep(fleet.node_timeout);
        tokio::pin!(timer);
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((place, expected, reply)) => {
                        let next = self.seated(&mut round, place, expected, &reply);
                        verdicts[place] = reply.verdict(match expected {
                            Some(_) => Verdict::NotHeld,
                            None => Verdict::Held { owner: None, remaining: None, waiters: 0 },
                        });
                        match next {
                            Next::Fine => {}
                            Next::AskAgain => asked.push(ask(place, None)),
                            Next::Lost => {
                                self.lost.cancel();
                                break;
                            }
                        }
                    }
                    None => break,
                },
                () = &mut timer => {
                    for (place, verdict) in verdicts.iter_mut().enumerate() {
                        if *verdict == Verdict::NotAsked {
                            *verdict = Verdict::TimedOut(fleet.node_timeout);
                            fleet.nodes[place].suspect(verdict.clone());
                        }
                    }
                    break;
                }
            }
        }
        let nodes = fleet.reports(|place| verdicts[place].clone());
        self.conclude(sent, ttl, round.confirmed, nodes)
    }

    /// Nodes whose grants came after the majority was complete hold the lock like the others.
    fn read_late_answers(&self) {
        let late = self
            .late
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut late) = late else {
            return;
        };
        while let Some(Some((question, reply))) = late.next().now_or_never() {
            let mut state = self.lock();
            let seat = &mut state.seats[question.place];
            if let (Reply::Yes(fence), None) = (reply, seat.fence) {
                seat.fence = Some(fence);
                seat.end = Some(lease_end(question.sent, self.spec.ttl));
            }
        }
    }

    /// Notes what a node said, and what follows. A hold goes on only as long as a majority has kept it all the time: what
    /// was granted anew in the same round does not make up for what was forgotten, as somebody else may have held the
    /// lock in between.
    fn seated(
        &self,
        round: &mut Round,
        place: usize,
        expected: Option<u64>,
        reply: &Reply,
    ) -> Next {
        let mut state = self.lock();
        let seat = &mut state.seats[place];
        match reply {
            // An extension that shows another fence is of another hold: nothing that we know of.
            Reply::Yes(fence) if expected.is_none_or(|expected| expected == *fence) => {
                seat.fence = Some(*fence);
                seat.end = seat.end.max(Some(round.end));
                round.confirmed += 1;
                if expected.is_none() {
                    round.regranted.insert(place);
                }
                return Next::Fine;
            }
            Reply::Trouble(_) => return Next::Fine,
            Reply::Yes(_) | Reply::No if expected.is_none() => return Next::Fine,
            Reply::Yes(_) | Reply::No => {
                seat.fence = None;
                seat.end = None;
            }
        }
        let now = Moment::now();
        let kept = state.seats.iter().enumerate().filter(|(place, seat)| {
            seat.end.is_some_and(|end| end > now) && !round.regranted.contains(*place)
        });
        match kept.count() < self.client.fleet.majority() {
            true => Next::Lost,
            false => Next::AskAgain,
        }
    }

    /// What follows from a round of renewal.
    fn conclude(
        &self,
        sent: Moment,
        ttl: Duration,
        confirmed: usize,
        nodes: Reports,
    ) -> Result<Moment, Error> {
        let majority = self.client.fleet.majority();
        let mut state = self.lock();
        let ends = state.seats.iter().filter_map(|seat| seat.end);
        let until = held_until(ends, majority);
        let now = Moment::now();
        state.valid_until = until.unwrap_or(now);
        let lock = self.spec.name();
        if self.lost.is_cancelled() || state.valid_until <= now {
            drop(state);
            self.lost.cancel();
            return Err(Error::Lost { lock, nodes });
        }
        if confirmed >= majority {
            state.ttl = ttl;
            state.renew_at = sent + ttl / RENEW_AFTER;
            return Ok(state.valid_until);
        }
        state.renew_at = now + ttl / RETRY_AFTER;
        Err(Error::NoQuorum { lock, nodes })
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

    /// Ends the hold, once, and prepares its release everywhere.
    fn end(&self) -> Option<GiveBack> {
        let mut state = self.lock();
        if std::mem::replace(&mut state.ended, true) {
            return None;
        }
        if let Some(slot) = state.slot.take() {
            self.client.keeper.forget(slot);
        }
        let mut from = NodeSet::default();
        for (place, seat) in state.seats.iter().enumerate() {
            if seat.asked {
                from.insert(place);
            }
        }
        let until = Moment::now() + state.ttl;
        let release = Arc::new(command::release(&self.spec, self.token));
        Some(GiveBack::new(
            Arc::clone(&self.client),
            from,
            release,
            until,
        ))
    }

    /// Releases on all nodes that may hold something, and says what they thought of it.
    pub(crate) async fn release(&self) -> Released {
        let Some(give_back) = self.end() else {
            return Released::Unknown;
        };
        // Taken before anybody is asked: whoever is told that it was held can rely on it until here.
        let valid = self.valid_until() > Moment::now();
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
    pub(crate) fn release_in_background(&self) {
        if let Some(give_back) = self.end() {
            self.client.runtime.spawn(give_back.run());
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
