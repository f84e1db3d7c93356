//! Guards and views: what the holder of a lock uses.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::select_all;
use redis::{Cmd, FromRedisValue, Value};
use tokio_util::sync::CancellationToken;

use crate::command;
use crate::error::{Error, Loss, Verdict};
use crate::hold::{Hold, Joint, Left, Part};
use crate::host::Moment;
use crate::release::Released;

/// A view of a hold, for code that works under the lock and must not release it.
pub struct Held {
    /// One hold; several if an owner has re-entered locks that it acquired one by one.
    holds: Vec<Arc<Hold>>,
    /// The cancellation token for the end of any of several holds.
    joint: OnceLock<Arc<Joint>>,
}

impl Held {
    /// The number that a resource compares: the later of two holders has the higher fence.
    pub fn fence(&self) -> u64 {
        self.holds.iter().map(|hold| hold.fence).max().unwrap_or(0)
    }

    /// Until when the lock is certainly held, unless it is renewed. Call this each time: renewal
    /// moves the end.
    pub fn valid_until(&self) -> Moment {
        let ends = self.holds.iter().map(|hold| hold.valid_until());
        ends.min().unwrap_or_else(Moment::now)
    }

    /// Whether the lock is certainly held at this moment; false once it is released or lost. A
    /// pause right after the call may make the result outdated: an action that must not happen
    /// twice needs the fence.
    pub fn is_valid(&self) -> bool {
        !self.holds.is_empty() && self.holds.iter().all(|hold| hold.is_valid())
    }

    /// Completes when the hold is over, with the reason: before its validity ends if it cannot be
    /// renewed, at once when the nodes report that it is gone, and when it is released.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let ends: Vec<_> = self
            .holds
            .iter()
            .map(|hold| Box::pin(hold.lost()))
            .collect();
        async move { select_all(ends).await.0 }
    }

    /// The same as a cancellation token, for whatever must stop. The runtime that the client was
    /// connected in cancels it, while [`Self::lost`] needs no other task.
    pub fn lost_token(&self) -> CancellationToken {
        match self.holds.as_slice() {
            [hold] => hold.ending.token.child_token(),
            _ => self.joint().0.child_token(),
        }
    }

    fn joint(&self) -> &Arc<Joint> {
        self.joint.get_or_init(|| {
            let joint = Arc::default();
            let holds = self.holds.iter();
            holds.for_each(|hold| hold.ending.also(&joint));
            joint
        })
    }

    /// The error for a lost lock.
    pub(crate) fn lost_error(&self) -> Error {
        let over = self.holds.iter().find(|hold| hold.ending.is_set());
        match over.or(self.holds.first()) {
            Some(hold) => hold.lost_error(),
            None => Error::Invalid("no lock is held".to_owned()),
        }
    }

    /// Runs a command under `LOCK.GUARD`.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Value, Error> {
        match self.holds.as_slice() {
            [hold] => hold.command(command).await,
            _ => {
                let problem = "LOCK.GUARD needs a guard of one hold";
                Err(Error::Invalid(problem.to_owned()))
            }
        }
    }

    /// Extends every hold, by its own ttl or to another one.
    pub(crate) async fn extend(&self, ttl: Option<Duration>) -> Result<Moment, Error> {
        for hold in &self.holds {
            hold.extend(ttl).await?;
        }
        Ok(self.valid_until())
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        if self.holds.len() > 1 {
            // A guard and its views share one token.
            self.joint();
        }
        Self {
            holds: self.holds.clone(),
            joint: self.joint.clone(),
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.holds.iter().map(|hold| hold.spec.name()).collect();
        out.debug_struct("Held")
            .field("lock", &names.join(", "))
            .field("fence", &self.fence())
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}

/// A lock that is held. It dereferences to its view ([`Held`]). Dropping the last guard of a hold
/// releases the lock in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    held: Held,
    /// Which locks of each hold this guard holds.
    parts: Vec<Part>,
}

impl Guard {
    /// A guard for one entry that the hold has already counted.
    pub(crate) fn of(hold: Arc<Hold>, part: Part) -> Self {
        let mut guard = Self::empty();
        guard.add(hold, part);
        guard
    }

    /// A guard without a hold.
    pub(crate) fn empty() -> Self {
        let (holds, joint) = (Vec::with_capacity(1), OnceLock::new());
        Self {
            held: Held { holds, joint },
            parts: Vec::with_capacity(1),
        }
    }

    pub(crate) fn add(&mut self, hold: Arc<Hold>, part: Part) {
        self.held.holds.push(hold);
        self.parts.push(part);
    }

    /// Takes over the holds of the other guard.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.held.holds.append(&mut other.held.holds);
        self.parts.append(&mut other.parts);
    }

    /// Whether it holds this lock.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let mut entries = self.held.holds.iter().zip(&self.parts);
        entries.any(|(hold, part)| match part {
            None => hold.spec.keys.iter().any(|known| known == key),
            Some(locks) => locks.iter().any(|lock| hold.spec.keys[*lock] == key),
        })
    }

    /// A view for code that works under this lock.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// The owner's secret, for `LOCK.GUARD` in your own pipeline or script. Anyone who knows it can
    /// release the lock: keep it out of logs. `None` if this guard has several holds, each of which
    /// has its own.
    pub fn token(&self) -> Option<&[u8]> {
        match self.held.holds.as_slice() {
            [hold] => Some(hold.token.as_bytes()),
            _ => None,
        }
    }

    /// Runs a command if and only if the lock is held at that moment, in one atomic step on its
    /// single node (`LOCK.GUARD`). If the lock is not held any more, the command has no effect and
    /// the error is [`Error::Lost`]. [`Error::Command`] is an error of the command itself.
    /// [`Error::NoQuorum`] means that no answer arrived, because the connection broke or the lock
    /// was lost before: the command may have run, or may still run until the lease ends on the
    /// node, but not later. The command is sent once.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        let value = self.held.command(command).await?;
        redis::from_redis_value(value).map_err(|error| Error::Command(error.into()))
    }

    /// Asks the nodes to extend the lease by its ttl from now, and returns the new end of validity.
    pub async fn extend(&self) -> Result<Moment, Error> {
        self.held.extend(None).await
    }

    /// Asks the nodes to extend the lease to another ttl, which renewal then keeps up.
    pub async fn extend_to(&self, ttl: Duration) -> Result<Moment, Error> {
        self.held.extend(Some(ttl)).await
    }

    /// Ends the hold without releasing the lock, and returns its token, if this is the last guard.
    #[cfg(feature = "observe")]
    pub(crate) fn leave_held(mut self) -> Result<crate::command::Token, Self> {
        let token = match (self.held.holds.as_slice(), self.parts.as_slice()) {
            ([hold], [part]) => hold.give_up_token(part),
            _ => None,
        };
        let Some(token) = token else {
            return Err(self);
        };
        self.held.holds.clear();
        self.parts.clear();
        Ok(token)
    }

    /// Releases the lock on every node. Returns whether it was held until now. A lock for which the
    /// same owner has another guard stays held.
    pub async fn release(mut self) -> Released {
        let mut released = Released::StillHeld;
        while let (Some(hold), Some(part)) = (self.held.holds.pop(), self.parts.pop()) {
            released = released.and(match hold.leave(&part) {
                Left::All => hold.release().await,
                Left::Locks(locks) => hold.release_some(locks).await,
                Left::Some(locks) => match hold.release_some(locks).await {
                    Released::WasHeld => Released::StillHeld,
                    released => released,
                },
                Left::Nothing if hold.is_valid() => Released::StillHeld,
                Left::Nothing => Released::WasLost,
            });
        }
        released
    }
}

impl Deref for Guard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        for (hold, part) in self.held.holds.drain(..).zip(self.parts.drain(..)) {
            match hold.leave(&part) {
                Left::All => hold.release_in_background(),
                Left::Locks(locks) | Left::Some(locks) => {
                    let background = hold.client.background.clone();
                    background.spawn(hold.leave_locks(locks));
                }
                Left::Nothing => {}
            }
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Guard").field(&self.held).finish()
    }
}

impl Hold {
    /// Runs a command under `LOCK.GUARD`, while the hold is valid.
    async fn command(&self, cmd: &Cmd) -> Result<Value, Error> {
        let fleet = &self.client.fleet;
        let ([node], [key]) = (&*fleet.nodes, self.spec.keys.as_slice()) else {
            let problem = "LOCK.GUARD needs one lock on a single node";
            return Err(Error::Invalid(problem.to_owned()));
        };
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        let no_answer = |verdict: Verdict| Error::NoQuorum {
            lock: self.spec.name(),
            nodes: fleet.reports(|_| verdict.clone()),
        };
        let request = command::guard(key, self.token, cmd);
        let sent = Moment::now();
        let result = tokio::select! {
            biased;
            result = node.ask_once(&request) => result.map_err(no_answer)?,
            // The server does not run the command after the end of the hold. Whether it has run it
            // before is unknown.
            () = self.is_over() => {
                return Err(no_answer(Verdict::TimedOut(Moment::now().since(sent))));
            }
        };
        let error = match result {
            Ok(Value::ServerError(error)) => error.into(),
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if error.code() == Some("NOTHELD") {
            let nodes = fleet.reports(|_| Verdict::NotHeld);
            self.lose(Loss::Gone { nodes });
            return Err(self.lost_error());
        }
        Err(Error::Command(error))
    }

    /// Returns when the hold is not valid any more. It needs no other task.
    async fn is_over(&self) {
        while self.is_valid() {
            let left = self.valid_until().remaining();
            let _ = tokio::time::timeout(left, self.ending.token.cancelled()).await;
        }
    }
}
