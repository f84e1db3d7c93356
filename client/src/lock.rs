//! A request for a lock, and how it is carried out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;

use crate::attempt::{Attempt, Outcome};
use crate::client::Client;
use crate::clock::Moment;
use crate::command::{self, millis};
use crate::error::{Error, Reports, Verdict};
use crate::guard::{Guard, Held};
use crate::hold::{Hold, Released};
use crate::options::Spec;
use crate::owner::Owner;
use crate::reply::Reply;

/// Who lost against others that started at the same moment waits up to this long, so that they do not meet again.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Replicas are waited for during this part of the ttl, at most.
const REPLICAS_WITHIN: u32 = 4;

/// A request for a lock: options, then [`acquire`](Lock::acquire), [`try_acquire`](Lock::try_acquire) or
/// [`run`](Lock::run). It can be cloned and used again.
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

    /// Waits after the grant until so many replicas of each node of a majority have it, and gives the lock back if they
    /// do not confirm in time.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.spec.replicas = Some(replicas);
        self
    }

    /// Acquires the lock, waiting for it in the order of arrival. Dropping the future at any point leaves nothing held.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        let deadline = self.wait.map(|wait| Moment::now() + wait);
        self.enter(true, deadline).await
    }

    /// Acquires the lock if it is free right now.
    pub async fn try_acquire(&self) -> Result<Guard, Error> {
        self.enter(false, None).await
    }

    /// Runs `work` under the lock and releases it afterwards. When the lock is lost on the way, `work` is dropped where
    /// it stands and the error says so.
    pub async fn run<T, F, W>(&self, work: F) -> Result<T, Error>
    where
        F: FnOnce(Held) -> W,
        W: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let held = guard.held();
        let done = tokio::select! {
            biased;
            () = guard.lost() => return Err(held.0.lost_error()),
            done = work(guard.held()) => done,
        };
        match guard.release().await {
            Released::WasLost => Err(held.0.lost_error()),
            _ => Ok(done),
        }
    }

    async fn enter(&self, may_wait: bool, deadline: Option<Moment>) -> Result<Guard, Error> {
        let fleet = &self.client.fleet;
        self.spec.check(fleet.nodes.len(), fleet.node_timeout)?;
        let spec = Arc::new(self.spec.clone());
        let Some(owner) = &self.owner else {
            return self.take(spec, may_wait, deadline).await.map(Guard::of);
        };
        let seat = owner.seat(Arc::as_ptr(&self.client) as usize, &spec.keys);
        let turn = async {
            match may_wait {
                true => Some(seat.lock().await),
                false => seat.try_lock().ok(),
            }
        };
        let turn = match deadline {
            Some(deadline) => tokio::time::timeout(deadline.remaining(), turn)
                .await
                .unwrap_or(None),
            None => turn.await,
        };
        let Some(mut seated) = turn else {
            let nodes = fleet.reports(|_| Verdict::NotAsked);
            return Err(Error::Busy {
                lock: spec.name(),
                nodes,
            });
        };
        if let Some(hold) = seated.upgrade()
            && hold.enter()
        {
            let guard = Guard::of(hold);
            if guard.held().0.spec.shared && !spec.shared {
                return Err(Error::Invalid(format!(
                    "{} is held shared by this owner: release that before asking for it alone",
                    spec.name()
                )));
            }
            match guard.held().0.enter_for(spec.ttl).await {
                Ok(_) => return Ok(guard),
                Err(Error::Lost { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        let hold = self.take(spec, may_wait, deadline).await?;
        *seated = Arc::downgrade(&hold);
        Ok(Guard::of(hold))
    }

    /// Attempt after attempt, each with a token of its own.
    async fn take(
        &self,
        spec: Arc<Spec>,
        may_wait: bool,
        deadline: Option<Moment>,
    ) -> Result<Arc<Hold>, Error> {
        self.client.fleet.first_answers(deadline).await;
        loop {
            let started = Moment::now();
            let mut attempt = Attempt::new(Arc::clone(&self.client), Arc::clone(&spec));
            // Who has no time to stand in a queue asks once.
            let can_queue = may_wait && deadline.is_none_or(|end| millis(end.remaining()) > 0);
            let outcome = match can_queue && self.client.seems_busy(&spec) {
                true => attempt.queue(deadline).await,
                false => attempt.dash(may_wait).await,
            };
            if !matches!(outcome, Outcome::Won { .. }) {
                tracing::debug!(lock = %spec.name(), ?outcome, nodes = %attempt.reports(), "attempt failed");
            }
            let over = !may_wait || deadline.is_some_and(|deadline| deadline <= Moment::now());
            match outcome {
                Outcome::Won { fence, valid_until } => {
                    if let Some(replicas) = spec.replicas {
                        self.replicated(&mut attempt, replicas, valid_until).await?;
                    }
                    return Ok(Hold::begin(&mut attempt, started, fence, valid_until));
                }
                Outcome::Refused => {
                    let (lock, nodes) = (spec.name(), attempt.describe_all().await);
                    return Err(Error::Refused { lock, nodes });
                }
                Outcome::Busy => {
                    self.client.was_busy(&spec);
                    if over {
                        let (lock, nodes) = (spec.name(), attempt.describe().await);
                        return Err(Error::Busy { lock, nodes });
                    }
                }
                Outcome::NoQuorum => {
                    if over {
                        let (lock, nodes) = (spec.name(), attempt.describe_all().await);
                        return Err(Error::NoQuorum { lock, nodes });
                    }
                    drop(attempt);
                    let pause = LONGEST_PAUSE.mul_f64(rand::random_range(0.1..1.0));
                    let left = deadline.map_or(pause, |deadline| deadline.remaining());
                    self.client.fleet.change(pause.min(left)).await;
                }
            }
        }
    }

    /// Waits until the replicas of a majority have the grant. The attempt still gives back if that fails.
    async fn replicated(
        &self,
        attempt: &mut Attempt,
        replicas: u32,
        valid_until: Moment,
    ) -> Result<(), Error> {
        let fleet = &self.client.fleet;
        let patience = (attempt.spec.ttl / REPLICAS_WITHIN).min(valid_until.remaining());
        let deadline = Moment::now() + patience;
        let granted = attempt.ballot.granted();
        let mut asked = FuturesUnordered::new();
        for place in granted.iter() {
            let node = Arc::clone(&fleet.nodes[place]);
            let extend = command::extend(&attempt.spec, attempt.token, attempt.spec.ttl, None);
            let spec = Arc::clone(&attempt.spec);
            attempt.verdicts[place] = Verdict::TimedOut(patience);
            let confirm = async move {
                let (generation, mut connection) = node.own_line().await?;
                // WAIT speaks of what this connection has done, so it does something: an extension comes after the grant.
                match Reply::read(connection.send(&extend).await) {
                    Reply::Yes(_) => {}
                    other => return Err(other.verdict(Verdict::NotHeld)),
                }
                let wait = command::wait(&spec, replicas, deadline.remaining());
                match connection.send(&wait).await {
                    Ok(Value::Int(count)) => {
                        node.park(generation, connection);
                        Ok(u64::try_from(count).unwrap_or(0))
                    }
                    Ok(_) => Err(Verdict::Garbage("WAIT without a number".to_owned())),
                    Err(error) => Err(crate::reply::trouble(&error)),
                }
            };
            asked.push(async move { (place, confirm.await) });
        }
        let mut confirmed = 0;
        let collect = async {
            while let Some((place, answer)) = asked.next().await {
                if answer
                    .as_ref()
                    .is_ok_and(|count| *count >= u64::from(replicas))
                {
                    confirmed += 1;
                }
                attempt.verdicts[place] = match answer {
                    Ok(replicas) => Verdict::NotReplicated { replicas },
                    Err(verdict) => verdict,
                };
                if confirmed >= fleet.majority() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(patience + fleet.node_timeout, collect).await;
        if confirmed >= fleet.majority() && valid_until > Moment::now() {
            return Ok(());
        }
        let (lock, nodes): (String, Reports) = (attempt.spec.name(), attempt.reports());
        Err(Error::NotReplicated { lock, nodes })
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
