//! A lock that is held: the nodes that granted it, its validity, the guards of its owner, and its
//! end.

mod ends;
mod entries;
mod renewal;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::attempt::Attempt;
use crate::client::{Client, Event};
use crate::command::{self, Spec, Token};
use crate::error::{Error, Loss, Reports, Verdict};
use crate::host::{Moment, locked};
use crate::keeper::{Kept, Slot};
use crate::link::Connection;
use crate::quorum::{Leases, NodeSet};
use crate::release::{Release, Released};
use crate::round::Late;

use ends::Ends;
use entries::Entries;
pub(crate) use entries::{Left, Part};
use renewal::first_renewal;

/// The end of a hold, which others can wait for.
#[derive(Default)]
pub(crate) struct Ending {
    loss: OnceLock<Loss>,
    pub(crate) token: CancellationToken,
    joint: Mutex<Vec<Weak<Joint>>>,
}

/// The cancellation token of a guard of several holds, and of its views. It is cancelled when the
/// first of the holds ends, and when no guard or view is left.
#[derive(Default)]
pub(crate) struct Joint(pub(crate) CancellationToken);

impl Drop for Joint {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Ending {
    /// Stores the reason. Only the first one counts. Nobody is notified yet.
    fn set(&self, loss: Loss) -> bool {
        self.loss.set(loss).is_ok()
    }

    fn notify(&self) {
        self.token.cancel();
        let joint = std::mem::take(&mut *locked(&self.joint));
        let joint = joint.iter().filter_map(Weak::upgrade);
        joint.for_each(|joint| joint.0.cancel());
    }

    /// Also cancels this token at the end.
    pub(crate) fn also(&self, token: &Arc<Joint>) {
        let mut joint = locked(&self.joint);
        joint.retain(|other| other.strong_count() > 0);
        if self.is_set() {
            token.0.cancel();
        } else {
            joint.push(Arc::downgrade(token));
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.loss.get().is_some()
    }

    async fn wait(&self) -> Loss {
        self.token.cancelled().await;
        self.loss.get().cloned().unwrap_or(Loss::Released)
    }
}

/// See the documentation of this module.
pub(crate) struct Hold {
    pub(crate) client: Arc<Client>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) token: Token,
    pub(crate) fence: u64,
    /// Nothing was granted before this moment.
    pub(crate) since: Moment,
    /// Nodes at which a release of this token may still arrive. They are not asked.
    pub(crate) unsettled: NodeSet,
    pub(crate) ending: Arc<Ending>,
    state: Mutex<State>,
    /// Answers to the acquisition that have not been read yet.
    pub(crate) late: Mutex<Late>,
    /// Stops a renewal in progress.
    pub(crate) leaving: Notify,
    /// Allows one renewal at a time: the answers of two would mix.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

pub(crate) struct State {
    /// The request, without the locks that are released already.
    pub(crate) spec: Arc<Spec>,
    entries: Entries,
    pub(crate) leases: Leases,
    /// Nodes that may hold a grant of this token.
    pub(crate) asked: NodeSet,
    pub(crate) ttl: Duration,
    /// The longest lease that was ever asked for. A node may have granted it, whatever it replied.
    pub(crate) longest: Duration,
    /// The end of validity, computed when the leases last changed.
    pub(crate) valid_until: Moment,
    /// `None` if the hold is not renewed.
    pub(crate) renew_at: Option<Moment>,
    /// The latest ends of its leases.
    pub(crate) ends: Ends,
    /// The verdicts of the last renewal, if it failed.
    pub(crate) reports: Option<Reports>,
    /// Nodes that did not confirm the last renewal, and for how many renewals in a row.
    pub(crate) missed: (NodeSet, u32),
    pub(crate) bound: Option<Bound>,
    pub(crate) slot: Option<Slot>,
    /// Released or detached.
    pub(crate) over: bool,
}

/// The connection of an ephemeral hold, which ends with it. It stays open as long as the hold.
pub(crate) struct Bound {
    pub(crate) generation: u64,
    /// Kept open, if it has not ended yet.
    pub(crate) _connection: Option<Connection>,
    pub(crate) _dependent: Arc<()>,
}

impl Hold {
    /// Makes a hold of a successful attempt.
    pub(crate) fn begin(attempt: &mut Attempt, fence: u64) -> Arc<Self> {
        let asked = attempt.hand_over();
        let nodes = attempt.verdicts.len();
        let mut leases = Leases::new(nodes, fence);
        for place in 0..nodes {
            if let Some((fence, end)) = attempt.ballot.grant_of(place) {
                leases.grant(place, fence, end);
            }
        }
        let now = Moment::now();
        let spec = Arc::clone(&attempt.spec);
        let valid_until = leases.claim(now).unwrap_or(now);
        let renew_in = first_renewal(spec.ttl, valid_until.since(now));
        let state = State {
            valid_until,
            entries: Entries::new(spec.keys.len()),
            spec: Arc::clone(&spec),
            leases,
            asked,
            ttl: spec.ttl,
            longest: spec.ttl,
            renew_at: spec.renew.then(|| now + renew_in),
            ends: Ends::new(nodes, spec.max_hold.map(|cap| attempt.since + cap)),
            reports: None,
            missed: (NodeSet::default(), 0),
            bound: None,
            slot: None,
            over: false,
        };
        let hold = Arc::new(Self {
            client: Arc::clone(&attempt.client),
            token: attempt.token,
            fence,
            since: attempt.since,
            unsettled: attempt.unsettled,
            ending: Arc::default(),
            state: Mutex::new(state),
            late: Mutex::new(std::mem::take(&mut attempt.late)),
            leaving: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            spec,
        });
        hold.schedule();
        // From here on, the keeper notifies the hold. It must check itself what happened before.
        hold.bind(attempt.generation);
        if hold.client.fleet.restarts() != attempt.restarts {
            Arc::clone(&hold).ask_again();
        }
        hold
    }

    /// Ties an ephemeral hold to the shared connection, which had this generation before the hold
    /// was granted or extended on it.
    pub(crate) fn bind(self: &Arc<Self>, generation: u64) {
        if !self.spec.ephemeral {
            return;
        }
        let node = &self.client.fleet.nodes[0];
        let mut state = self.lock();
        state.bound = Some(Bound {
            generation,
            _connection: node.shared().ok().map(|shared| shared.connection),
            _dependent: node.depend(),
        });
        drop(state);
        if node.standing().generation != generation {
            // It is unknown on which connection the request was sent, so ask again on the new one.
            Arc::clone(self).ask_again();
        }
        // It may have ended before this hold could be notified.
        self.end_with_connection(node.standing().closed);
    }

    /// The shared connection of this generation and all earlier ones have ended.
    fn end_with_connection(&self, generation: u64) {
        let bound = self.lock().bound.as_ref().map(|bound| bound.generation);
        if bound.is_some_and(|bound| bound <= generation) {
            self.lose(Loss::Disconnected);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.lock().valid_until
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid_by(&self.lock())
    }

    fn is_valid_by(&self, state: &State) -> bool {
        let now = Moment::now();
        let closed = self.client.fleet.nodes[0].standing().closed;
        let mut bound = state.bound.iter();
        !state.over
            && !self.ending.is_set()
            && bound.all(|bound| bound.generation > closed)
            && state.valid_until > now
            && state.leases.claim(now).is_some()
    }

    /// The hold is over without a release. If a release has begun, its result counts instead.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        // A hold that expires stays valid for a moment, so that its holder can finish.
        if !matches!(loss, Loss::Expired { .. }) {
            state.valid_until = state.valid_until.min(Moment::now());
        }
        // This comes before a release can check whether the hold is valid.
        let first = self.ending.set(loss);
        drop(state);
        self.notify_if(first);
    }

    fn end_with(&self, loss: Loss) {
        self.notify_if(self.ending.set(loss));
    }

    /// Notifies the metrics hook and all tasks that wait for the end, if this is the first reason.
    fn notify_if(&self, first: bool) {
        let Some(loss) = self.ending.loss.get().filter(|_| first) else {
            return;
        };
        self.ending.notify();
        let held = Moment::now().since(self.since);
        let event = match loss {
            Loss::Released | Loss::Detached => Event::Released { held },
            loss => Event::Lost { held, loss },
        };
        self.client.record(&self.spec, event);
    }

    /// Adds a guard for those of these locks that the hold has. `None` if it has none of them, or
    /// is lost.
    pub(crate) fn enter(&self, keys: &[Vec<u8>]) -> Part {
        let mut state = self.lock();
        if self.ending.is_set() {
            return None;
        }
        let known = self.spec.keys.iter().enumerate();
        let wanted = known.filter(|(_, key)| keys.contains(key));
        state.entries.enter(wanted.map(|(lock, _)| lock))
    }

    /// Removes a guard. Returns what it must release: the locks for which it was the last one.
    pub(crate) fn leave(&self, part: &Part) -> Left {
        self.lock().entries.leave(part)
    }

    /// Ends the hold, once: nothing is renewed from here on. Returns whether it was valid until
    /// now.
    fn end(&self) -> Option<bool> {
        let mut state = self.lock();
        let valid = self.is_valid_by(&state);
        if std::mem::replace(&mut state.over, true) {
            return None;
        }
        state.valid_until = state.valid_until.min(Moment::now());
        if let Some(slot) = state.slot.take() {
            self.client.keeper.forget(slot);
        }
        drop(state);
        self.leaving.notify_one();
        Some(valid)
    }

    /// Ends the hold in this client without a release: from here on, the holder of the token owns
    /// it. Only the last guard can do this.
    #[cfg(feature = "observe")]
    pub(crate) fn give_up_token(&self, part: &Part) -> Option<Token> {
        if !self.lock().entries.leave_as_last(part) {
            return None;
        }
        self.end();
        self.end_with(Loss::Detached);
        Some(self.token)
    }

    /// Waits for a renewal in progress, so that none of its requests comes after the release.
    async fn final_release(&self) -> Release {
        let _turn = self.turn.lock().await;
        let state = self.lock();
        let request = command::release(&state.spec.keys, self.token);
        Release::new(&self.client, state.asked, request, state.longest)
    }

    /// Releases on all nodes that may hold something, and returns the result.
    pub(crate) async fn release(self: &Arc<Self>) -> Released {
        let Some(valid) = self.end() else {
            return Released::Unknown;
        };
        let mut leaving = Leaving {
            hold: Arc::clone(self),
            sent: false,
        };
        // A renewal whose task does not run must not delay this. After the timeout, the release is
        // sent in the background.
        let patience = self.client.fleet.node_timeout;
        let released = match tokio::time::timeout(patience, self.final_release()).await {
            Ok(release) => {
                leaving.sent = true;
                let name = || self.spec.name();
                let span = tracing::debug_span!("release", lock = %name(), fence = self.fence);
                release.run().instrument(span).await
            }
            Err(_) => Released::Unknown,
        };
        // A caller that was notified of a loss must not be notified now that there was none.
        match (valid, released) {
            (true, released) if released != Released::WasLost => released,
            (valid, _) => {
                let nodes = self.reports(Verdict::NotHeld);
                let loss = if valid {
                    Loss::Gone { nodes }
                } else {
                    Loss::Expired { nodes }
                };
                self.end_with(loss);
                Released::WasLost
            }
        }
    }

    /// Releases in the background: for guards that are dropped.
    pub(crate) fn release_in_background(self: &Arc<Self>) {
        if self.end().is_some() {
            drop(Leaving {
                hold: Arc::clone(self),
                sent: false,
            });
        }
    }

    /// Releases some of its locks, in a task of its own, because the caller may be cancelled.
    pub(crate) async fn release_some(self: &Arc<Self>, locks: Vec<usize>) -> Released {
        let was_lost = self.is_lost();
        let (hold, patience) = (Arc::clone(self), self.client.fleet.node_timeout * 3);
        let (sender, released) = tokio::sync::oneshot::channel();
        self.client.background.spawn(async move {
            // The caller may have been cancelled.
            let _ = sender.send(hold.leave_locks(locks).await);
        });
        let released = tokio::time::timeout(patience, released).await;
        // A caller that was notified of a loss must not be notified now that there was none.
        if was_lost || self.is_lost() {
            return Released::WasLost;
        }
        released.map_or(Released::Unknown, |released| {
            released.unwrap_or(Released::Unknown)
        })
    }

    /// Whether it has ended without a release.
    fn is_lost(&self) -> bool {
        let is_released = matches!(
            self.ending.loss.get(),
            Some(Loss::Released | Loss::Detached)
        );
        !is_released && !self.lock().over && !self.is_valid()
    }

    /// Removes the locks from the hold and releases them. A renewal in progress still asks for all
    /// of them, so this waits for its end.
    pub(crate) async fn leave_locks(self: Arc<Self>, locks: Vec<usize>) -> Released {
        let release = {
            let _turn = self.turn.lock().await;
            let mut state = self.lock();
            if state.over {
                // Released with the rest.
                return Released::StillHeld;
            }
            let left = |key: &Vec<u8>| locks.iter().any(|lock| self.spec.keys[*lock] == *key);
            let mut rest = Spec::clone(&state.spec);
            let gone: Vec<Vec<u8>> = rest.keys.extract_if(.., |key| left(key)).collect();
            state.spec = Arc::new(rest);
            let request = command::release(&gone, self.token);
            Release::new(&self.client, state.asked, request, state.longest)
        };
        release.run().await
    }

    pub(crate) fn reports(&self, verdict: Verdict) -> Reports {
        let fleet = &self.client.fleet;
        fleet.reports(|place| fleet.nodes[place].why_down().unwrap_or(verdict.clone()))
    }

    /// The error for a hold that is over.
    pub(crate) fn lost_error(&self) -> Error {
        let nodes = match self.ending.loss.get() {
            Some(Loss::Expired { nodes } | Loss::Gone { nodes }) => nodes.clone(),
            _ => self.reports(Verdict::NotHeld),
        };
        let lock = self.spec.name();
        Error::Lost { lock, nodes }
    }
}

/// A hold that is ending. Whatever happens, its release is sent and its end is reported.
struct Leaving {
    hold: Arc<Hold>,
    sent: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.sent {
            let hold = Arc::clone(&self.hold);
            let background = hold.client.background.clone();
            background.spawn(async move { hold.final_release().await.run().await });
        }
        self.hold.end_with(Loss::Released);
    }
}

#[cfg(test)]
mod tests;
