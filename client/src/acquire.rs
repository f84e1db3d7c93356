//! Acquiring: attempts are repeated, each with its own token, until one succeeds or the time is
//! over.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tracing::Instrument;

use crate::attempt::{Attempt, Outcome};
use crate::client::{Client, Event};
use crate::command::{self, SHORTEST, Spec, Token};
use crate::error::{Error, Verdict};
use crate::fleet::Fleet;
use crate::hold::Hold;
use crate::host::{Moment, pauses};
use crate::link::Own;
use crate::node::Node;
use crate::quorum::is_shortage;
use crate::reply::{Reply, value_of};
use crate::round::{Question, Round};

/// The pause after the first attempt that failed because of the nodes …
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// … and the longest one: at most two requests a second reach a node that cannot serve.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// If a node says when to try again, the pause is at most this long.
const LONGEST_HINT: Duration = Duration::from_secs(5);
/// The client waits for replicas during at most this part of the ttl.
const REPLICAS_WITHIN: u32 = 4;

/// Acquires, waiting until `deadline` if that is allowed.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    spec: Arc<Spec>,
    may_wait: bool,
    deadline: Option<Moment>,
) -> Result<Arc<Hold>, Error> {
    client.fleet.first_answers(deadline).await;
    let mut pauses = retry_pauses();
    loop {
        let mut attempt = Attempt::new(Arc::clone(client), Arc::clone(&spec));
        let outcome = try_or_wait(&mut attempt, may_wait, deadline).await;
        let over = !may_wait || is_over(deadline);
        match outcome {
            Outcome::Won { fence, valid_until } => {
                if let Some(replicas) = spec.replicas {
                    let grant = Grant {
                        spec: Arc::clone(&spec),
                        token: attempt.token,
                        leases: vec![spec.ttl; attempt.verdicts.len()],
                        verdicts: attempt.verdicts.clone(),
                        valid_until,
                    };
                    // The attempt still releases if that fails.
                    replicate(&client.fleet, grant, replicas, deadline).await?;
                }
                return Ok(Hold::begin(&mut attempt, fence));
            }
            Outcome::Refused => return Err(failed(attempt, outcome).await),
            _ if over => return Err(failed(attempt, outcome).await),
            Outcome::Busy => {}
            Outcome::NoQuorum => {
                let hint = retry_in(&attempt.verdicts);
                drop(attempt);
                client.record(&spec, Event::Retried);
                let length = pauses.next().unwrap_or(LONGEST_PAUSE).max(hint);
                pause(&client.fleet, length, deadline).await;
            }
        }
    }
}

/// Re-enters, repeating the renewal if too few nodes answer and the caller can wait.
pub(crate) async fn enter_again(
    hold: &Arc<Hold>,
    spec: &Spec,
    may_wait: bool,
    deadline: Option<Moment>,
) -> Result<(), Error> {
    let client = &hold.client;
    let mut pauses = retry_pauses();
    loop {
        // Like any request, it tries once if no time is left to wait.
        let patience = deadline.map_or(Duration::MAX, Moment::remaining);
        let patience = patience.max(client.fleet.node_timeout);
        let entering = async {
            hold.enter_for(spec.ttl).await?;
            match spec.replicas {
                Some(replicas) => replicate_again(hold, replicas, deadline).await,
                None => Ok(()),
            }
        };
        let timed_out = |_| Error::NoQuorum {
            lock: hold.spec.name(),
            nodes: client.fleet.reports(|_| Verdict::TimedOut(patience)),
        };
        let entered = tokio::time::timeout(patience, entering).await;
        match entered.map_err(timed_out).flatten() {
            Err(Error::NoQuorum { nodes, .. }) if may_wait && !is_over(deadline) => {
                let verdicts = nodes.iter().map(|node| node.verdict.clone());
                let hint = retry_in(&verdicts.collect::<Vec<_>>());
                client.record(spec, Event::Retried);
                let length = pauses.next().unwrap_or(LONGEST_PAUSE).max(hint);
                pause(&client.fleet, length, deadline).await;
            }
            entered => return entered,
        }
    }
}

fn is_over(deadline: Option<Moment>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Moment::now())
}

/// The pauses between attempts that fail because of the nodes.
fn retry_pauses() -> impl Iterator<Item = Duration> + Send {
    pauses(FIRST_PAUSE, LONGEST_PAUSE)
}

/// Pauses for this time, at most until `deadline`. A node that reconnects ends the pause, but one
/// that reconnects again and again must not make it too short.
async fn pause(fleet: &Fleet, length: Duration, deadline: Option<Moment>) {
    let until = Moment::now() + length;
    let until = deadline.map_or(until, |deadline| deadline.min(until));
    tokio::time::sleep(until.remaining() / 2).await;
    fleet.change(until.remaining()).await;
}

/// The error of the last attempt.
async fn failed(mut attempt: Attempt, outcome: Outcome) -> Error {
    let lock = attempt.spec.name();
    let nodes = match outcome {
        Outcome::Busy => attempt.describe().await,
        _ => attempt.describe_all().await,
    };
    match outcome {
        Outcome::Busy => Error::Busy { lock, nodes },
        Outcome::Refused => Error::Refused { lock, nodes },
        _ => Error::NoQuorum { lock, nodes },
    }
}

/// One attempt: in the queue if the lock was busy a moment ago, otherwise at all nodes at once.
async fn try_or_wait(attempt: &mut Attempt, may_wait: bool, deadline: Option<Moment>) -> Outcome {
    let (client, spec) = (Arc::clone(&attempt.client), Arc::clone(&attempt.spec));
    // With no time left to wait, it tries once.
    let can_queue = may_wait && deadline.is_none_or(|end| end.remaining() >= SHORTEST);
    let outcome = if can_queue && client.seems_busy(&spec) {
        // Boxed, so that the future of an acquire that does not wait stays small.
        let waiting = Box::pin(attempt.queue(deadline));
        waiting.instrument(tracing::debug_span!("wait")).await
    } else {
        attempt.try_all(may_wait).await
    };
    if !matches!(outcome, Outcome::Won { .. }) {
        let nodes = || attempt.reports();
        tracing::debug!(lock = %spec.name(), ?outcome, nodes = %nodes(), "attempt failed");
    }
    if outcome == Outcome::Busy {
        client.was_busy(&spec);
    }
    outcome
}

/// How long to wait until enough nodes can grant again, by what they reported.
fn retry_in(verdicts: &[Verdict]) -> Duration {
    let retry = verdicts.iter().map(|verdict| match verdict {
        Verdict::Quarantined { retry_in } => retry_in.unwrap_or_default(),
        _ => Duration::ZERO,
    });
    let mut waits: Vec<Duration> = retry.collect();
    waits.sort_unstable();
    let wait = waits.get(verdicts.len() / 2).copied();
    wait.unwrap_or_default().min(LONGEST_HINT)
}

/// Grants that must reach replicas.
struct Grant {
    spec: Arc<Spec>,
    token: Token,
    /// The lease to ask each node for.
    leases: Vec<Duration>,
    /// The verdict of each node. The nodes that granted are asked about their replicas.
    verdicts: Vec<Verdict>,
    valid_until: Moment,
}

/// Waits until this many replicas of each node of a majority have the grants of this hold, for a
/// guard that re-enters it.
async fn replicate_again(
    hold: &Hold,
    replicas: u32,
    deadline: Option<Moment>,
) -> Result<(), Error> {
    let (fleet, now) = (&hold.client.fleet, Moment::now());
    let (places, timeout) = (0..fleet.nodes.len(), fleet.node_timeout);
    let grant = {
        let state = hold.lock();
        let granted = |place| match state.leases.of(place) {
            Some(lease) => Verdict::Granted { fence: lease.fence },
            None => Verdict::NotAsked,
        };
        Grant {
            leases: places
                .clone()
                .map(|place| state.ends.lease_at(place, state.ttl, now, timeout))
                .collect(),
            spec: Arc::clone(&state.spec),
            token: hold.token,
            verdicts: places.map(granted).collect(),
            valid_until: state.leases.claim(now).unwrap_or(now),
        }
    };
    replicate(fleet, grant, replicas, deadline).await
}

/// Waits until the replicas of a majority have the grant.
async fn replicate(
    fleet: &Fleet,
    mut grant: Grant,
    replicas: u32,
    deadline: Option<Moment>,
) -> Result<(), Error> {
    let Grant { spec, token, .. } = &grant;
    let longest = grant.leases.iter().max().copied().unwrap_or_default();
    let patience = (longest / REPLICAS_WITHIN).min(grant.valid_until.remaining());
    let patience = deadline.map_or(patience, |deadline| patience.min(deadline.remaining()));
    let deadline = Moment::now() + patience;
    // On separate connections: if one of them fails, that says nothing about the node.
    let mut round = Round::unlimited(fleet.nodes.len());
    round.end_in(patience + fleet.node_timeout);
    for (place, node) in fleet.nodes.iter().enumerate() {
        if !matches!(grant.verdicts[place], Verdict::Granted { .. }) {
            continue;
        }
        let (node, spec, token) = (Arc::clone(node), Arc::clone(spec), *token);
        let lease = grant.leases[place];
        round.push(Question::new(place, Moment::now()), async move {
            // WAIT covers only writes of its own connection, so this connection writes first: it
            // extends the lease, which comes after the grant. It extends by half of the lease,
            // because the whole lease could end after MAXHOLD.
            let extend = command::extend(&spec.keys, token, lease / 2, None);
            let wait = command::wait(&spec, replicas, deadline.remaining());
            confirm(&node, &extend, &wait, replicas).await
        });
    }
    let mut confirmed = 0;
    while let Some((question, reply)) = round.next().await {
        confirmed += usize::from(matches!(reply, Reply::Yes(_)));
        grant.verdicts[question.place] = reply.verdict(Verdict::NotHeld);
        if !is_shortage(confirmed, fleet.nodes.len()) && grant.valid_until > Moment::now() {
            return Ok(());
        }
    }
    let lock = grant.spec.name();
    let nodes = fleet.reports(|place| grant.verdicts[place].clone());
    Err(Error::NotReplicated { lock, nodes })
}

/// `Yes` if this many replicas of the node have confirmed.
async fn confirm(
    node: &Node,
    extend: &command::Request,
    wait: &command::Request,
    replicas: u32,
) -> Reply {
    // A server may have closed the connections that were kept for the next caller.
    let (own, extended) = match extend_on_own(node, extend).await {
        (_, Reply::Trouble(Verdict::Unreachable(_))) => {
            node.close_idle();
            extend_on_own(node, extend).await
        }
        first => first,
    };
    let (Some(mut own), Reply::Yes(_)) = (own, &extended) else {
        return extended;
    };
    match value_of(own.connection.send(wait).await) {
        Ok(Value::Int(count)) => {
            node.keep_idle(own);
            let count = u64::try_from(count).unwrap_or(0);
            if count >= u64::from(replicas) {
                extended
            } else {
                Reply::Trouble(Verdict::NotReplicated { replicas: count })
            }
        }
        Ok(_) => Reply::Trouble(Verdict::Garbage(
            "WAIT did not reply with a number".to_owned(),
        )),
        Err(verdict) => Reply::Trouble(verdict),
    }
}

/// Extends on a connection that nobody else uses.
async fn extend_on_own(node: &Node, extend: &command::Request) -> (Option<Own>, Reply) {
    match node.own_connection(Duration::MAX).await {
        Ok(mut own) => {
            let extended = Reply::read(own.connection.send(extend).await, extend.keys);
            (Some(own), extended)
        }
        Err(verdict) => (None, Reply::Trouble(verdict)),
    }
}

#[cfg(test)]
mod tests {
    use redislock_testkit::Server;

    use super::*;
    use crate::attempt::tests::patient;

    /// The wait for replicas may last longer than the lease.
    #[tokio::test]
    async fn replicas_that_confirm_after_the_end_of_validity_are_too_late() {
        let server = Server::start();
        let redlock = patient([server.url()]).await;
        let spec = Arc::new(Spec {
            ttl: Duration::from_secs(600),
            ..Spec::new(vec![b"x".to_vec()])
        });
        let mut attempt = Attempt::new(Arc::clone(&redlock.client), Arc::clone(&spec));
        let outcome = attempt.try_all(false).await;
        let Outcome::Won { valid_until, .. } = outcome else {
            panic!("{outcome:?}");
        };
        for (valid_until, in_time) in [(valid_until, true), (Moment::now(), false)] {
            let grant = Grant {
                spec: Arc::clone(&spec),
                token: attempt.token,
                leases: vec![spec.ttl],
                verdicts: attempt.verdicts.clone(),
                valid_until,
            };
            // The server has no replicas, and confirms that at once.
            let replicated = replicate(&redlock.client.fleet, grant, 0, None).await;
            assert_eq!(replicated.is_ok(), in_time, "{replicated:?}");
        }
    }
}
