//! Renewal: the same question to the nodes again, and what their answers mean for the hold.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Hold, RENEW_AFTER, State};
use crate::clock::Moment;
use crate::command;
use crate::error::{Error, Reports, Verdict};
use crate::options::Spec;
use crate::quorum::{NodeSet, held_until, is_kept, lease_end};
use crate::reply::Reply;

/// A renewal that failed is tried again after this part of the ttl.
const RETRY_AFTER: u32 = 12;

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
        if self.lost.is_cancelled() || self.lock().ended {
            return Err(self.lost_error());
        }
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
                // The guard is on its way out: what was asked so far is released with the rest.
                () = self.ending.notified() => return Err(self.lost_error()),
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
        self.conclude(sent, ttl, &round, nodes)
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

    /// Notes what a node said, and what follows.
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
        match self.is_kept(&state, round) {
            true => Next::AskAgain,
            false => Next::Lost,
        }
    }

    fn is_kept(&self, state: &State, round: &Round) -> bool {
        let seats = state.seats.iter().enumerate();
        let leases = seats.filter_map(|(place, seat)| Some((place, seat.end?)));
        let majority = self.client.fleet.majority();
        is_kept(leases, round.regranted, Moment::now(), majority)
    }

    /// What follows from a round of renewal.
    fn conclude(
        &self,
        sent: Moment,
        ttl: Duration,
        round: &Round,
        nodes: Reports,
    ) -> Result<Moment, Error> {
        let majority = self.client.fleet.majority();
        let mut state = self.lock();
        let ends = state.seats.iter().filter_map(|seat| seat.end);
        let until = held_until(ends, majority);
        let now = Moment::now();
        state.valid_until = until.unwrap_or(now);
        let lock = self.spec.name();
        if self.lost.is_cancelled() || state.valid_until <= now || !self.is_kept(&state, round) {
            drop(state);
            self.lost.cancel();
            return Err(Error::Lost { lock, nodes });
        }
        if round.confirmed >= majority {
            state.ttl = ttl;
            state.renew_at = sent + ttl / RENEW_AFTER;
            return Ok(state.valid_until);
        }
        state.renew_at = now + ttl / RETRY_AFTER;
        Err(Error::NoQuorum { lock, nodes })
    }
}
