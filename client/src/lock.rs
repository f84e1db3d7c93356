//! A request for a lock, and its owner, which may re-enter locks that it holds already. An owner is
//! a handle that the program passes around, not a thread or a task. Each lock is counted
//! separately.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tracing::Instrument;

use crate::acquire::{acquire, enter_again};
use crate::client::{Client, Event};
use crate::command::Spec;
use crate::error::{Error, Verdict};
use crate::guard::{Guard, Held};
use crate::hold::Hold;
use crate::host::{Moment, locked};
use crate::release::Released;

/// A request for a lock: options, then [`acquire`](Lock::acquire),
/// [`try_acquire`](Lock::try_acquire) or [`run`](Lock::run). It can be cloned and used again.
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Lock {
    client: Arc<Client>,
    spec: Spec,
    wait: Option<Duration>,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, keys: Vec<Vec<u8>>) -> Self {
        Self {
            client,
            spec: Spec::new(keys),
            wait: None,
            owner: None,
        }
    }

    /// How long the lease lasts unless renewed; 10 s if not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.spec.ttl = ttl;
        self
    }

    /// How long [`acquire`](Lock::acquire) waits at most; without it, until the lock is free.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Any number of shared holders at once, or one exclusive holder.
    pub fn shared(mut self) -> Self {
        self.spec.shared = true;
        self
    }

    /// At most this many shared holders: a semaphore, on a single node.
    pub fn limit(mut self, holders: u32) -> Self {
        self.spec.limit = Some(holders);
        self
    }

    /// Acquires on behalf of this owner: re-enters locks that it holds already, and shows its label
    /// to others.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.spec.label = owner.label().map(str::to_owned);
        self.owner = Some(owner.clone());
        self
    }

    /// The lock is held for at most this time after the grant, even if it is renewed.
    pub fn max_hold(mut self, cap: Duration) -> Self {
        self.spec.max_hold = Some(cap);
        self
    }

    /// The hold ends when the connection to its (single) node closes. A cluster refuses it
    /// ([`Error::Invalid`]): connections to its masters are replaced without notice.
    pub fn ephemeral(mut self) -> Self {
        self.spec.ephemeral = true;
        self
    }

    /// Whether the lease is renewed in the background while the guard lives; it is, if not set.
    pub fn renew(mut self, renew: bool) -> Self {
        self.spec.renew = renew;
        self
    }

    /// Waits after the grant until n replicas of each node of a majority have it. If they do not
    /// confirm in time, the lock is released. The limit is a quarter of the ttl, or what is left of
    /// [`wait`](Lock::wait) if that is shorter.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.spec.replicas = Some(replicas);
        self
    }

    /// Acquires the lock, waiting for it in the order of arrival. Dropping the future at any point
    /// leaves nothing held.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let deadline = self.wait.map(|wait| Moment::now() + wait);
        self.enter(true, deadline).await
    }

    /// Acquires the lock if it is free right now.
    pub async fn try_acquire(&self) -> Result<Guard, Error> {
        self.enter(false, None).await
    }

    /// Runs `work` under the lock and releases it afterwards. If the lock is lost meanwhile, `work`
    /// is dropped at its current await point, and the result is an error.
    pub async fn run<T, F, W>(&self, work: F) -> Result<T, Error>
    where
        F: FnOnce(Held) -> W,
        W: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let held = guard.held();
        let done = tokio::select! {
            biased;
            _ = guard.lost() => return Err(held.lost_error()),
            done = work(guard.held()) => done,
        };
        match guard.release().await {
            Released::WasLost => Err(held.lost_error()),
            _ => Ok(done),
        }
    }

    async fn enter(&self, may_wait: bool, deadline: Option<Moment>) -> Result<Guard, Error> {
        let fleet = &self.client.fleet;
        self.spec.check(fleet.nodes.len(), fleet.node_timeout)?;
        if self.spec.ephemeral && fleet.nodes.iter().any(|node| node.link.is_cluster()) {
            let problem = "ephemeral needs a single server, this client has a cluster: the end of \
                           a connection does not show there";
            return Err(Error::Invalid(problem.to_owned()));
        }
        let started = Moment::now();
        let entering = async {
            match &self.owner {
                Some(owner) => Box::pin(self.enter_as(owner, may_wait, deadline)).await,
                None => {
                    let spec = Arc::new(self.spec.clone());
                    let hold = acquire(&self.client, spec, may_wait, deadline).await?;
                    Ok(Guard::of(hold, None))
                }
            }
        };
        let span = tracing::debug_span!("acquire", lock = %self.spec.name(), wait = may_wait);
        let entered = entering.instrument(span).await;
        let waited = Moment::now().since(started);
        let event = match &entered {
            Ok(_) => Event::Acquired { waited },
            Err(error) => Event::Failed { waited, error },
        };
        self.client.record(&self.spec, event);
        entered
    }

    /// Re-enters the locks that the owner holds already, one by one, and acquires the rest.
    async fn enter_as(
        &self,
        owner: &Owner,
        may_wait: bool,
        deadline: Option<Moment>,
    ) -> Result<Guard, Error> {
        let client = Arc::as_ptr(&self.client) as usize;
        let Some(mut turns) = owner
            .turns(client, &self.spec.keys, may_wait, deadline)
            .await
        else {
            // Another task of this owner is about to acquire it.
            let nodes = self.client.fleet.reports(|_| Verdict::NotAsked);
            let lock = self.spec.name();
            return Err(Error::Busy { lock, nodes });
        };
        let mut guard = Guard::empty();
        for turn in &turns {
            if let Some(hold) = turn.hold().filter(|_| !guard.has(&turn.key)) {
                self.re_enter(&mut guard, hold, may_wait, deadline).await?;
            }
        }
        let mut missing = self.spec.clone();
        missing.keys.retain(|key| !guard.has(key));
        if !missing.keys.is_empty() {
            // Meanwhile, other tasks of the owner may re-enter the locks that it holds.
            turns.retain(|turn| !guard.has(&turn.key));
            let hold = acquire(&self.client, Arc::new(missing), may_wait, deadline).await?;
            let new = turns.iter_mut();
            new.filter(|turn| hold.spec.keys.contains(&turn.key))
                .for_each(|turn| turn.set(&hold));
            guard.add(hold, None);
        }
        Ok(guard)
    }

    /// Adds a guard to a hold, unless the hold is lost.
    async fn re_enter(
        &self,
        guard: &mut Guard,
        hold: Arc<Hold>,
        may_wait: bool,
        deadline: Option<Moment>,
    ) -> Result<(), Error> {
        let part = hold.enter(&self.spec.keys);
        if part.is_none() {
            return Ok(());
        }
        let entered = Guard::of(Arc::clone(&hold), part);
        if hold.spec.shared && !self.spec.shared {
            return Err(Error::Invalid(format!(
                "this owner holds {} shared: release it before requesting it exclusively",
                hold.spec.name()
            )));
        }
        match enter_again(&hold, &self.spec, may_wait, deadline).await {
            Ok(()) => guard.join(entered),
            Err(Error::Lost { .. }) => {}
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("Lock");
        shown
            .field("spec", &self.spec)
            .field("wait", &self.wait)
            .field("owner", &self.owner);
        shown.finish_non_exhaustive()
    }
}

/// The current hold of one lock, protected by a turn: of two tasks with the same owner, the second
/// one re-enters what the first one acquires.
type Entry = Arc<tokio::sync::Mutex<Weak<Hold>>>;
/// Up to this many entries are kept without a check whether they are still needed.
const LEAST_ROOM: usize = 16;

/// An owner of locks. The same handle (or a clone of it) re-enters a lock that it holds: each entry
/// has its own guard, and the last guard releases the lock. Locks are counted separately, so an
/// owner of `x` and `y` may ask for `y` alone, or for both in another order.
#[derive(Clone, Default)]
pub struct Owner {
    label: Option<String>,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    by_lock: HashMap<(usize, Vec<u8>), Entry>,
    /// When there are this many entries, those that nobody holds or waits for are removed.
    room: usize,
}

impl Known {
    fn of(&mut self, client: usize, key: &[u8]) -> Entry {
        if self.by_lock.len() >= self.room {
            self.by_lock.retain(|_, entry| {
                Arc::strong_count(entry) > 1
                    || entry.try_lock().is_ok_and(|hold| hold.strong_count() > 0)
            });
            // Twice the current number, so that removing entries costs each call little.
            self.room = LEAST_ROOM.max(2 * self.by_lock.len());
        }
        let entry = self.by_lock.entry((client, key.to_vec()));
        Arc::clone(entry.or_default())
    }
}

/// The right to acquire one lock for the owner.
pub(crate) struct Turn {
    pub(crate) key: Vec<u8>,
    hold: OwnedMutexGuard<Weak<Hold>>,
}

impl Turn {
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.upgrade()
    }

    pub(crate) fn set(&mut self, hold: &Arc<Hold>) {
        *self.hold = Arc::downgrade(hold);
    }
}

impl Owner {
    /// An owner without a label.
    pub fn new() -> Self {
        Self::default()
    }

    /// An owner with a label, up to 256 bytes, that LOCK.INFO and the errors of others show.
    pub fn named(label: impl Into<String>) -> Self {
        Self {
            label: Some(label.into()),
            ..Self::default()
        }
    }

    /// The label.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Waits for the turns of this owner at these locks, in the order of their names, so that no
    /// two tasks wait for each other. `None` after the deadline.
    pub(crate) async fn turns(
        &self,
        client: usize,
        keys: &[Vec<u8>],
        may_wait: bool,
        deadline: Option<Moment>,
    ) -> Option<Vec<Turn>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        let waiting = async {
            let mut turns = Vec::with_capacity(keys.len());
            for key in keys {
                let entry = self.entry(client, &key);
                let hold = if may_wait {
                    entry.lock_owned().await
                } else {
                    entry.try_lock_owned().ok()?
                };
                turns.push(Turn { key, hold });
            }
            Some(turns)
        };
        match deadline {
            Some(deadline) => tokio::time::timeout(deadline.remaining(), waiting)
                .await
                .unwrap_or(None),
            None => waiting.await,
        }
    }

    fn entry(&self, client: usize, key: &[u8]) -> Entry {
        locked(&self.known).of(client, key)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Owner")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_nobody_needs_do_not_pile_up() {
        let owner = Owner::new();
        for number in 0..1_000 {
            drop(owner.entry(0, format!("x{number}").as_bytes()));
        }
        let known = owner.known.lock().unwrap();
        assert!(known.by_lock.len() <= LEAST_ROOM);
    }
}
