//! Renewal: asks the nodes again and applies their answers to the hold. The keeper calls it.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::FutureExt;
use tracing::Instrument;

use super::{Hold, State};
use crate::command::{self, Request, SHORTEST, Spec, Token, Wait, check_ttl};
use crate::error::{Error, Loss, NodeReport, Reports, Verdict};
use crate::host::{Background, Moment, locked};
use crate::keeper::Kept;
use crate::quorum::{NodeSet, is_shortage, lease_end, lease_for};
use crate::reply::{Reply, left_of_hold};
use crate::round::{Question, Round, answered};

/// Renewal starts when this part of the ttl has passed.
const RENEW_AFTER: u32 = 3;
/// A renewal that failed is repeated after this part of the ttl. A renewal that missed some nodes
/// is, too, and then after twice the time each, up to the usual time between renewals.
const RETRY_AFTER: u32 = 12;
/// After this many renewals that missed the same nodes, these are not asked earlier than the
/// others.
const SOON_AGAIN: u32 = 2;

/// The holder is notified of the loss this part of the ttl before validity ends, …
const WARN_BEFORE: u32 = 10;
/// … but at most this long before.
const LONGEST_WARNING: Duration = Duration::from_secs(1);

/// When to renew a hold for the first time, if this much of its ttl is left. After a wait, only
/// half of it may be left, and a renewal that fails must leave time for two more.
pub(super) fn first_renewal(ttl: Duration, left: Duration) -> Duration {
    (ttl / RENEW_AFTER).min(left * 2 / 5)
}

/// One round of renewal.
struct Renewal<'a> {
    hold: &'a Hold,
    /// The lease to ask for at nodes that have no grant.
    lease: Duration,
    acquire: Arc<Request>,
    /// The lease to ask for at each node that has granted.
    extend: Vec<(Duration, Arc<Request>)>,
    round: Round,
    verdicts: Vec<Verdict>,
    confirmed: usize,
}

impl State {
    /// A renewal has failed: plans the next one. One that is planned for an earlier time stays:
    /// requests that fail again and again must not put it off.
    fn renew_soon(&mut self) {
        let now = Moment::now();
        let retry = now + self.ttl / RETRY_AFTER;
        let planned = self.renew_at.filter(|at| *at > now);
        self.renew_at = Some(planned.map_or(retry, |at| at.min(retry)));
    }
}

impl Hold {
    /// Renews, as planned or earlier, by the current ttl. If the lease is not renewed, it asks only
    /// for what is left of it, to find out whether the nodes still have it.
    pub(crate) async fn renew_now(self: &Arc<Self>) -> Result<Moment, Error> {
        let (ttl, until) = {
            let state = self.lock();
            (state.ttl, state.valid_until)
        };
        let lease = if self.spec.renew {
            ttl
        } else {
            lease_for(until.remaining())
        };
        self.renew(lease, ttl).await
    }

    /// Re-enters: the lease gets the ttl of the new request, and never less than before.
    pub(crate) async fn enter_for(self: &Arc<Self>, ttl: Duration) -> Result<Moment, Error> {
        let ttl = ttl.max(self.lock().ttl);
        self.renew(ttl, ttl).await
    }

    /// Extends by the current ttl, or to another one if that is long enough for the node timeout.
    pub(crate) async fn extend(self: &Arc<Self>, to: Option<Duration>) -> Result<Moment, Error> {
        let ttl = to.unwrap_or(self.lock().ttl);
        if to.is_some() {
            check_ttl(ttl, self.client.fleet.node_timeout)?;
        }
        self.renew(ttl, ttl).await
    }

    /// Asks every node: those that granted to extend, the others to grant. For each node that
    /// agrees, validity counts from when the request was sent.
    async fn renew(self: &Arc<Self>, lease: Duration, ttl: Duration) -> Result<Moment, Error> {
        let span = tracing::debug_span!("renew", lock = %self.spec.name(), fence = self.fence);
        let asking = async {
            match self.ask_all(lease, ttl).await {
                // The nodes have said how much they allow.
                Err(error) if error.nodes().iter().any(is_limited) => {
                    self.ask_all(lease, ttl).await
                }
                renewed => renewed,
            }
        };
        let renewed = asking.instrument(span).await;
        self.schedule();
        renewed
    }

    async fn ask_all(self: &Arc<Self>, lease: Duration, ttl: Duration) -> Result<Moment, Error> {
        let fleet = &self.client.fleet;
        let turn = tokio::time::timeout(fleet.node_timeout * 2, self.turn.lock()).await;
        let lock = || self.spec.name();
        let Ok(_turn) = turn else {
            // Another renewal takes long, and may not cover what this one is for. Wait by the
            // current ttl: a longer one that was requested may never apply.
            self.lock().renew_soon();
            let nodes = fleet.reports(|_| Verdict::TimedOut(fleet.node_timeout * 2));
            return Err(Error::NoQuorum {
                lock: lock(),
                nodes,
            });
        };
        if self.ending.is_set() || self.lock().over {
            return Err(self.lost_error());
        }
        let timeout = fleet.node_timeout;
        let longest = self.lock().ends.longest(lease, Moment::now(), timeout);
        if longest < SHORTEST {
            // The hold has to end: its leases expire.
            self.lock().renew_at = None;
            return Ok(self.valid_until());
        }
        self.read_late_answers();
        let longest = self.lock().longest.max(lease);
        self.lock().longest = longest;
        let generation = fleet.nodes[0].standing().generation;
        let mut renewal = Renewal::send(self, lease);
        loop {
            tokio::select! {
                biased;
                answer = renewal.round.next() => match answer {
                    Some((question, reply)) => if renewal.is_lost(question, reply) {
                        break;
                    },
                    None => break,
                },
                // The guard is being released: everything that was requested so far is released
                // with the rest.
                () = self.leaving.notified() => return Err(self.lost_error()),
            }
        }
        let renewed = renewal.conclude(ttl);
        if renewed.is_ok() {
            self.bind(generation);
        }
        renewed
    }

    /// Nodes whose grants arrived after the majority was complete hold the lock, too.
    fn read_late_answers(&self) {
        let mut late = locked(&self.late);
        while let Some((question, reply)) = answered(&mut late).now_or_never() {
            let mut state = self.lock();
            let unknown = state.leases.of(question.place).is_none();
            if let (Reply::Yes(fence), None, true) = (reply, question.exactly, unknown) {
                let end = lease_end(question.sent, self.spec.ttl);
                state.leases.grant(question.place, fence, end);
            }
        }
        late.clear();
    }
}

impl Hold {
    /// When to notify the holder that the lock is practically lost.
    fn warn_at(state: &State) -> Moment {
        state
            .valid_until
            .minus((state.ttl / WARN_BEFORE).min(LONGEST_WARNING))
    }

    /// When code that waits for the end checks by itself; `None` if it is over. The keeper is
    /// earlier, unless the runtime of the client does not run.
    fn overdue_at(&self) -> Option<Moment> {
        let state = self.lock();
        if state.over || self.ending.is_set() {
            return None;
        }
        let warn_at = Self::warn_at(&state);
        Some(warn_at + state.valid_until.since(warn_at) / 2)
    }

    /// Returns the reason when the hold is over. It does not keep the hold alive, and needs no
    /// other task if there is a timer.
    pub(crate) fn lost(self: &Arc<Self>) -> impl Future<Output = Loss> + Send + use<> {
        let (ending, hold) = (Arc::clone(&self.ending), Arc::downgrade(self));
        async move {
            let overdue_at = || hold.upgrade()?.overdue_at();
            while let (Some(at), true) = (overdue_at(), Background::current().is_some()) {
                let told = tokio::time::timeout(at.remaining(), ending.wait()).await;
                if let Ok(loss) = told {
                    return loss;
                }
                let is_due = |hold: &Arc<Self>| hold.overdue_at() <= Some(Moment::now());
                if let Some(hold) = hold.upgrade().filter(is_due) {
                    let nodes = hold.reports(Verdict::NotAsked);
                    hold.lose(Loss::Expired { nodes });
                }
            }
            ending.wait().await
        }
    }

    /// Puts the hold on the keeper's agenda again.
    pub(crate) fn schedule(self: &Arc<Self>) {
        let (mut state, keeper) = (self.lock(), &self.client.keeper);
        let from = state.slot.take();
        if state.over || self.ending.is_set() {
            from.into_iter().for_each(|slot| keeper.forget(slot));
            return;
        }
        let warn_at = Self::warn_at(&state);
        let at = state.renew_at.map_or(warn_at, |at| at.min(warn_at));
        let this: Weak<Self> = Arc::downgrade(self);
        state.slot = Some(keeper.move_to(at, this, from));
    }

    /// Renews a hold that is due, and notifies the holder in time if that fails.
    async fn look_after(self: Arc<Self>) {
        let (warn_at, renew_at) = {
            let state = self.lock();
            (Self::warn_at(&state), state.renew_at)
        };
        if renew_at.is_some_and(|at| at <= Moment::now()) {
            // The warning must not wait for a renewal that hangs.
            let _ = tokio::time::timeout(warn_at.remaining(), self.renew_now()).await;
        }
        let late = {
            let mut state = self.lock();
            let late = Self::warn_at(&state) <= Moment::now();
            late.then(|| state.reports.take())
        };
        if let Some(reports) = late {
            let nodes = reports.unwrap_or_else(|| self.reports(Verdict::NotAsked));
            self.lose(Loss::Expired { nodes });
        }
        self.schedule();
    }
}

impl Kept for Hold {
    fn attend(self: Arc<Self>) {
        let background = self.client.background.clone();
        background.spawn(async move {
            let looked = AssertUnwindSafe(Arc::clone(&self).look_after());
            if looked.catch_unwind().await.is_err() {
                // A `tracing` subscriber has panicked: nothing renews the hold any more.
                let nodes = self.reports(Verdict::NotAsked);
                self.lose(Loss::Expired { nodes });
            }
        });
    }

    fn ask_again(self: Arc<Self>) {
        let background = self.client.background.clone();
        background.spawn(async move { self.renew_now().await });
    }

    fn is_ephemeral(&self) -> bool {
        self.spec.ephemeral
    }

    fn connection_ended(&self, generation: u64) {
        self.end_with_connection(generation);
    }
}

/// Whether the node allows a shorter extension.
fn is_limited(node: &NodeReport) -> bool {
    left_of_hold(&node.verdict).is_some()
}

/// The requests to extend by these leases. Nodes with the same lease share a request.
fn extensions(
    spec: &Spec,
    token: Token,
    leases: impl Iterator<Item = Duration>,
) -> Vec<(Duration, Arc<Request>)> {
    let mut requests: Vec<(Duration, Arc<Request>)> = Vec::with_capacity(leases.size_hint().0);
    for lease in leases {
        let same = requests.iter().find(|(other, _)| *other == lease);
        let request = match same {
            Some((_, request)) => Arc::clone(request),
            None => Arc::new(command::extend(&spec.keys, token, lease, None)),
        };
        requests.push((lease, request));
    }
    requests
}

impl<'a> Renewal<'a> {
    fn send(hold: &'a Hold, lease: Duration) -> Self {
        let fleet = &hold.client.fleet;
        let (spec, lease, extend) = {
            let (state, now) = (hold.lock(), Moment::now());
            let (ends, timeout) = (&state.ends, fleet.node_timeout);
            let places = 0..fleet.nodes.len();
            let leases = places.map(|place| ends.lease_at(place, lease, now, timeout));
            let spec = Spec {
                ttl: ends.lease_of_new_grant(lease, now, timeout),
                ..Spec::clone(&state.spec)
            };
            (
                spec.clone(),
                spec.ttl,
                extensions(&spec, hold.token, leases),
            )
        };
        let fence = (fleet.nodes.len() > 1).then_some(hold.fence);
        let mut renewal = Self {
            hold,
            lease,
            round: fleet.round(),
            extend,
            acquire: Arc::new(command::acquire(&spec, hold.token, fence, Wait::Not)),
            verdicts: vec![Verdict::NotAsked; fleet.nodes.len()],
            confirmed: 0,
        };
        let connected = fleet.askable(fleet.everybody(), hold.unsettled);
        let leases = {
            let mut state = hold.lock();
            connected.iter().for_each(|place| state.asked.insert(place));
            state.leases.clone()
        };
        for place in 0..fleet.nodes.len() {
            if connected.contains(place) {
                renewal.ask(place, leases.of(place).map(|lease| lease.fence));
            } else {
                let why = fleet.nodes[place].why_down();
                renewal.verdicts[place] = why.unwrap_or(Verdict::NotAsked);
            }
        }
        renewal
    }

    /// Asks the node to extend the grant with this fence, or to grant if there is none.
    fn ask(&mut self, place: usize, exactly: Option<u64>) {
        let question = Question::new(place, Moment::now()).about(exactly);
        let request = match exactly {
            Some(_) => &self.extend[place].1,
            None => &self.acquire,
        };
        let node = &self.hold.client.fleet.nodes[place];
        self.round.ask(node, question, request);
    }

    /// Notes the answer of a node. Returns true if the hold is lost.
    fn is_lost(&mut self, question: Question, reply: Reply) -> bool {
        let place = question.place;
        let no = match question.exactly {
            Some(_) => Verdict::NotHeld,
            None => Verdict::held_by_somebody(),
        };
        self.verdicts[place] = reply.clone().verdict(no);
        let mut state = self.hold.lock();
        let left = left_of_hold(&self.verdicts[place]).filter(|_| question.exactly.is_some());
        if let Some(left) = left {
            state.ends.tell(place, question.sent + left);
        }
        match (reply, question.exactly) {
            (Reply::Yes(fence), _) => {
                let lease = match question.exactly {
                    Some(_) => self.extend[place].0,
                    None => self.lease,
                };
                let end = lease_end(question.sent, lease);
                state.leases.grant(place, fence, end);
                self.confirmed += 1;
                false
            }
            // A key with another type of value is not a lock any more.
            (Reply::No | Reply::Part | Reply::Trouble(Verdict::WrongType), Some(_)) => {
                state.leases.forget(place);
                state.ends.forget(place);
                let now = Moment::now();
                let claim = state.leases.claim(now);
                let lost = claim.is_none();
                // Apply this at once: the rest of the round may be cancelled.
                state.valid_until = state.valid_until.min(claim.unwrap_or(now));
                drop(state);
                if !lost {
                    // The node has no record of the hold, and may grant it again.
                    self.ask(place, None);
                }
                lost
            }
            _ => false,
        }
    }

    /// The result of the round.
    fn conclude(self, ttl: Duration) -> Result<Moment, Error> {
        let (hold, now) = (self.hold, Moment::now());
        let nodes = self.verdicts.len();
        let mut state = hold.lock();
        if state.over || hold.ending.is_set() {
            // The holder was notified before the last reply arrived, and that stays true.
            drop(state);
            return Err(hold.lost_error());
        }
        let claim = state.leases.confirm(now);
        state.valid_until = claim.unwrap_or(now);
        if let (Some(until), false) = (claim, is_shortage(self.confirmed, nodes)) {
            state.ttl = ttl;
            state.reports = None;
            state.missed = self.missed(state.missed);
            let next = match state.missed {
                (missed, _) if missed.is_empty() => None,
                (_, times) if times > SOON_AGAIN => None,
                (_, times) => Some(now + ttl / RETRY_AFTER * (1 << (times - 1))),
            };
            let usual = hold.spec.renew.then(|| now + ttl / RENEW_AFTER);
            state.renew_at = next.or(usual);
            return Ok(until);
        }
        let reports = self.reports();
        let lock = hold.spec.name();
        if claim.is_some() {
            state.renew_soon();
            state.reports = Some(reports.clone());
            let nodes = reports;
            return Err(if self.is_refused() {
                Error::Refused { lock, nodes }
            } else {
                Error::NoQuorum { lock, nodes }
            });
        }
        drop(state);
        let mut verdicts = self.verdicts.iter();
        let nodes = reports.clone();
        let is_gone = |verdict: &Verdict| matches!(verdict, Verdict::NotHeld | Verdict::WrongType);
        hold.lose(if verdicts.any(is_gone) {
            Loss::Gone { nodes }
        } else {
            Loss::Expired { nodes }
        });
        Err(Error::Lost {
            lock,
            nodes: reports,
        })
    }

    /// Whether no retry can help: enough nodes refuse even a shorter extension.
    fn is_refused(&self) -> bool {
        let is_refusal = |verdict: &&Verdict| verdict.is_final() && left_of_hold(verdict).is_none();
        let refused = self.verdicts.iter().filter(is_refusal).count();
        let nodes = self.verdicts.len();
        is_shortage(nodes - refused, nodes)
    }

    /// The nodes that have not confirmed, and for how many renewals in a row.
    fn missed(&self, before: (NodeSet, u32)) -> (NodeSet, u32) {
        let verdicts = self.verdicts.iter().enumerate();
        let missed = verdicts.filter(|(_, verdict)| !matches!(verdict, Verdict::Granted { .. }));
        let missed: NodeSet = missed.map(|(place, _)| place).collect();
        if missed.iter().all(|place| before.0.contains(place)) {
            (missed, before.1.saturating_add(1))
        } else {
            (missed, 1)
        }
    }

    fn reports(&self) -> Reports {
        let fleet = &self.hold.client.fleet;
        fleet.reports(|place| self.verdicts[place].clone())
    }
}

#[cfg(test)]
mod tests;
