//! Attempt after attempt, each with a token of its own, until one succeeds or the time is over.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tracing::Instrument;

use crate::attempt::{Attempt, Outcome};
use crate::client::{Client, Event};
use crate::command::{self, SHORTEST};
use crate::error::{Error, Verdict};
use crate::hold::Hold;
use crate::host::{Moment, pauses};
use crate::link::Own;
use crate::node::Node;
use crate::quorum::is_shortage;
use crate::reply::{Reply, value_of};
use crate::round::{Question, Round};
use crate::spec::Spec;

/// The pause after the first attempt that failed because of the nodes …
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// … and the longest one: at most two requests a second reach a node that cannot serve.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A node that says when to ask again is believed up to this long.
const LONGEST_HINT: Duration = Duration::from_secs(5);
/// Replicas are waited for during this part of the ttl, at most.
const REPLICAS_WITHIN: u32 = 4;

/// Acquires, waiting until `deadline` if that is allowed.
pub(crate) async fn acquire(
    client: &Arc<Client>,
    spec: Arc<Spec>,
    may_wait: bool,
    deadline: Option<Moment>,
) -> Result<Arc<Hold>, Error> {
    client.fleet.first_answers(deadline).await;
    let mut pauses = pauses(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let mut attempt = Attempt::new(Arc::clone(client), Arc::clone(&spec));
        let outcome = try_or_wait(&mut attempt, may_wait, deadline).await;
        let over = !may_wait || deadline.is_some_and(|deadline| deadline <= Moment::now());
        match outcome {
            Outcome::Won { fence, valid_until } => {
                if let Some(replicas) = spec.replicas {
                    replicate(&mut attempt, replicas, valid_until, deadline).await?;
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
                let pause = pauses.next().unwrap_or(LONGEST_PAUSE).max(hint);
                let until = Moment::now() + pause;
                let until = deadline.map_or(until, |deadline| deadline.min(until));
                // A node that comes back ends the pause, but one that comes and goes must not make
                // it too short.
                tokio::time::sleep(until.remaining() / 2).await;
                client.fleet.change(until.remaining()).await;
            }
        }
    }
}

/// The error of an attempt that was the last one.
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
    let outcome = match can_queue && client.seems_busy(&spec) {
        true => {
            // Boxed, so that the future of an acquire that does not wait stays small.
            let waiting = Box::pin(attempt.queue(deadline));
            waiting.instrument(tracing::debug_span!("wait")).await
        }
        false => attempt.try_all(may_wait).await,
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

/// How long to wait before enough nodes that say so can grant again.
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

/// Waits until the replicas of a majority have the grant. The attempt still releases if that fails.
async fn replicate(
    attempt: &mut Attempt,
    replicas: u32,
    valid_until: Moment,
    deadline: Option<Moment>,
) -> Result<(), Error> {
    let fleet = Arc::clone(&attempt.client.fleet);
    let patience = (attempt.spec.ttl / REPLICAS_WITHIN).min(valid_until.remaining());
    let patience = deadline.map_or(patience, |deadline| patience.min(deadline.remaining()));
    let deadline = Moment::now() + patience;
    let mut round = Round::within(&fleet.nodes, patience + fleet.node_timeout);
    for place in attempt.ballot.granted().iter() {
        let node = Arc::clone(&fleet.nodes[place]);
        let (spec, token) = (Arc::clone(&attempt.spec), attempt.token);
        let question = Question::new(place, Moment::now());
        round.push(question, async move {
            // WAIT speaks of what this connection has done, so it does something: an extension
            // comes after the grant.
            let extend = command::extend(&spec.keys, token, spec.ttl, None);
            let wait = command::wait(&spec, replicas, deadline.remaining());
            confirm(&node, &extend, &wait, replicas).await
        });
    }
    let mut confirmed = 0;
    while let Some((question, reply)) = round.next().await {
        confirmed += usize::from(matches!(reply, Reply::Yes(_)));
        attempt.verdicts[question.place] = reply.verdict(Verdict::NotHeld);
        if !is_shortage(confirmed, fleet.nodes.len()) {
            break;
        }
    }
    if !is_shortage(confirmed, fleet.nodes.len()) && valid_until > Moment::now() {
        return Ok(());
    }
    let (lock, nodes) = (attempt.spec.name(), attempt.reports());
    Err(Error::NotReplicated { lock, nodes })
}

/// Yes, if so many replicas of the node have confirmed.
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
            match count >= u64::from(replicas) {
                true => extended,
                false => Reply::Trouble(Verdict::NotReplicated { replicas: count }),
            }
        }
        Ok(_) => Reply::Trouble(Verdict::Garbage("WAIT without a number".to_owned())),
        Err(verdict) => Reply::Trouble(verdict),
    }
}

/// Extends on a connection that nobody else uses meanwhile.
async fn extend_on_own(node: &Node, extend: &command::Request) -> (Option<Own>, Reply) {
    match node.own_connection().await {
        Ok(mut own) => {
            let extended = Reply::read(own.connection.send(extend).await);
            (Some(own), extended)
        }
        Err(verdict) => (None, Reply::Trouble(verdict)),
    }
}
