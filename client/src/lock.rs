//! A request for a lock, and what its owner holds already.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::acquire;
use crate::client::Client;
use crate::clock::Moment;
use crate::error::{Error, Verdict};
use crate::guard::{Guard, Held};
use crate::hold::Hold;
use crate::metrics::Event;
use crate::options::Spec;
use crate::owner::Owner;
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

    /// At most so many shared holders: a semaphore, on a single node.
    pub fn limit(mut self, holders: u32) -> Self {
        self.spec.limit = Some(holders);
        self
    }

    /// On behalf of this owner: re-enters what it holds already, and shows its label to others.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.spec.label = owner.label().map(str::to_owned);
        self.owner = Some(owner.clone());
        self
    }

    /// No renewal keeps the lock for longer than this after the grant.
    pub fn max_hold(mut self, cap: Duration) -> Self {
        self.spec.max_hold = Some(cap);
        self
    }

    /// The hold ends when the connection to its (single) node closes.
    pub fn ephemeral(mut self) -> Self {
        self.spec.ephemeral = true;
        self
    }

    /// Whether the lease is renewed in the background while the guard lives; it is, if not set.
    pub fn renew(mut self, renew: bool) -> Self {
        self.spec.renew = renew;
        self
    }

    /// Waits after the grant until so many replicas of each node of a majority have it, and gives
    /// the lock back if they do not confirm in time: within a quarter of the ttl, and within what
    /// is left of [`wait`](Lock::wait).
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

    /// Runs `work` under the lock and releases it afterwards. When the lock is lost on the way,
    /// `work` is dropped where it stands and the error says so.
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

    /// Enters what the owner holds already, lock by lock, and acquires the rest.
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
                self.re_enter(&mut guard, hold).await?;
            }
        }
        let mut missing = self.spec.clone();
        missing.keys.retain(|key| !guard.has(key));
        if !missing.keys.is_empty() {
            let hold = acquire(&self.client, Arc::new(missing), may_wait, deadline).await?;
            let new = turns.iter_mut();
            new.filter(|turn| hold.spec.keys.contains(&turn.key))
                .for_each(|turn| turn.set(&hold));
            guard.add(hold, None);
        }
        Ok(guard)
    }

    /// One more guard of a hold, unless that is lost.
    async fn re_enter(&self, guard: &mut Guard, hold: Arc<Hold>) -> Result<(), Error> {
        let part = hold.enter(&self.spec.keys);
        if part.is_none() {
            return Ok(());
        }
        let entered = Guard::of(Arc::clone(&hold), part);
        if hold.spec.shared && !self.spec.shared {
            return Err(Error::Invalid(format!(
                "{} is held shared by this owner: release that before asking for it alone",
                hold.spec.name()
            )));
        }
        match hold.enter_for(self.spec.ttl).await {
            Ok(_) => guard.join(entered),
            Err(Error::Lost { .. }) => {}
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = out.debug_struct("Lock");
        shown
            .field("spec", &self.spec)
            .field("wait", &self.wait)
            .field("owner", &self.owner);
        shown.finish_non_exhaustive()
    }
}
