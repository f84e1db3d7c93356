//! A request for a lock: its options, checked before anything is sent, and what its owner holds
//! already.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::acquire;
use crate::clock::Moment;
use crate::error::{Error, Verdict};
use crate::guard::{Guard, Held};
use crate::hold::Hold;
use crate::owner::Owner;
use crate::redlock::{Client, Event};
use crate::release::Released;

/// How long a lease lasts unless asked otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// How long one node may take to answer unless asked otherwise: small against the default ttl.
pub const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a connection may take to open unless asked otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// No node lets a lease be longer, whatever its settings.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(7 * 86_400);
/// A ttl must be longer than this many node timeouts: one round, one write-back, and time to use
/// the lock.
pub(crate) const TTL_IN_NODE_TIMEOUTS: u32 = 3;
/// Longest owner label, as the server has it.
pub(crate) const MAX_LABEL: usize = 256;

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

    /// Waits after the grant until n replicas of each node of a majority have it, and releases
    /// the lock if they do not confirm in time: within a quarter of the ttl, and within what
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
        if self.spec.ephemeral && fleet.nodes.iter().any(|node| node.is_cluster()) {
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
            // Other tasks of the owner may enter what it holds meanwhile.
            turns.retain(|turn| !guard.has(&turn.key));
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

/// Everything about a request but its token and its fence.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) ttl: Duration,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) ephemeral: bool,
    pub(crate) label: Option<String>,
    pub(crate) replicas: Option<u32>,
    pub(crate) renew: bool,
}

impl Spec {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Self {
        Self {
            keys,
            ttl: DEFAULT_TTL,
            shared: false,
            limit: None,
            max_hold: None,
            ephemeral: false,
            label: None,
            replicas: None,
            renew: true,
        }
    }

    /// The lock's name for messages: any bytes, made readable.
    pub(crate) fn name(&self) -> String {
        let names: Vec<String> = self
            .keys
            .iter()
            .map(|key| key.escape_ascii().to_string())
            .collect();
        format!("lock {}", names.join(", "))
    }

    /// What is wrong with this request, for a client of `nodes` nodes that gives each
    /// `node_timeout`.
    pub(crate) fn check(&self, nodes: usize, node_timeout: Duration) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        if self.keys.is_empty() {
            return invalid("no lock is named: give at least one".to_owned());
        }
        for (place, key) in self.keys.iter().enumerate() {
            if self.keys[..place].contains(key) {
                return invalid(format!("lock {} is named twice", key.escape_ascii()));
            }
        }
        self.check_ttl(node_timeout)?;
        self.check_options(nodes)
    }

    /// What is wrong with how long it is to be held.
    fn check_ttl(&self, node_timeout: Duration) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        let shortest = node_timeout.saturating_mul(TTL_IN_NODE_TIMEOUTS);
        if self.ttl <= shortest {
            return invalid(format!(
                "a ttl of {:?} is too short for a node timeout of {node_timeout:?}: it must be \
                 longer than {shortest:?}",
                self.ttl,
            ));
        }
        if self.ttl < Duration::from_millis(1) {
            return invalid(
                "a ttl below a millisecond is too short: leases are whole milliseconds".to_owned(),
            );
        }
        if self.ttl > LONGEST_TTL {
            return invalid(format!(
                "a ttl of {:?} is longer than any node allows: ask for {LONGEST_TTL:?} at most, \
                 and let it be renewed",
                self.ttl,
            ));
        }
        if self.max_hold.is_some_and(|cap| cap < self.ttl) {
            return invalid(
                "max_hold is shorter than the ttl: raise it or ask for a shorter lease".to_owned(),
            );
        }
        Ok(())
    }

    /// What of it makes no sense, or does not go together.
    fn check_options(&self, nodes: usize) -> Result<(), Error> {
        let invalid = |problem: String| Err(Error::Invalid(problem));
        if self.limit.is_some() && !self.shared {
            return invalid("limit needs shared: a semaphore is a shared lock".to_owned());
        }
        if self.limit == Some(0) {
            return invalid("limit must be 1 or more".to_owned());
        }
        if nodes > 1 && self.limit.is_some() {
            return invalid(format!(
                "limit needs a single node, this client has {nodes}: permits have no quorum"
            ));
        }
        if nodes > 1 && self.ephemeral {
            return invalid(format!(
                "ephemeral needs a single node, this client has {nodes}"
            ));
        }
        if self
            .label
            .as_ref()
            .is_some_and(|label| label.len() > MAX_LABEL)
        {
            return invalid(format!(
                "the owner's label is longer than {MAX_LABEL} bytes"
            ));
        }
        if self.replicas == Some(0) {
            return invalid(
                "replicas must be 1 or more: omit it to wait for no replica".to_owned(),
            );
        }
        if self.replicas.is_some() && self.ephemeral {
            return invalid(
                "replicas and ephemeral exclude each other: an ephemeral hold ends \
                            with its connection"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
