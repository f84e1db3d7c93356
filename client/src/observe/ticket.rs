//! A hold that outlives the process that acquired it: the client hands out its token, which is used
//! again later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::command;
use crate::error::{Error, Verdict};
use crate::guard::Guard;
use crate::host::Moment;
use crate::quorum::{is_shortage, lease_end};
use crate::redlock::Redlock;
use crate::release::{Release, Released};
use crate::round::Question;

/// How long the release of a ticket is repeated for a node that cannot be reached.
const OWED_FOR: Duration = Duration::from_secs(60);

/// Proves the ownership of a hold that nobody renews. A program that has the ticket can extend and
/// release the hold.
#[derive(Clone)]
pub struct Ticket {
    token: Vec<u8>,
    fence: u64,
    valid_until: Moment,
}

impl Ticket {
    /// The owner's secret. Keep it out of command lines and logs.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    /// The number that a resource compares.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// Until when the lock is certainly held, unless it is extended.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ticket")
            .field("fence", &self.fence)
            .field("valid_until", &self.valid_until)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Leaves the lock held until its lease ends, and returns a ticket that proves its ownership.
    /// Nothing renews it from here on. If another guard of the same owner shares the hold, the
    /// guard is returned as an error.
    pub fn detach(self) -> Result<Ticket, Self> {
        let valid_until = self.valid_until();
        let fence = self.fence();
        self.leave_held().map(|token| Ticket {
            token: token.as_bytes().to_vec(),
            fence,
            valid_until,
        })
    }
}

impl Redlock {
    /// Releases what this token holds, on every node. Returns whether it was held until now.
    pub async fn release_ticket(
        &self,
        name: impl AsRef<[u8]>,
        token: impl AsRef<[u8]>,
    ) -> Released {
        self.client.fleet.first_answers(None).await;
        let request = command::release(&[name.as_ref().to_vec()], token.as_ref());
        let everywhere = self.client.fleet.everybody();
        Release::new(&self.client, everywhere, request, OWED_FOR)
            .run()
            .await
    }

    /// Extends what this token holds with this fence, and returns the new end of validity. Nodes
    /// that show another fence do not count: they granted later, and somebody else may have held
    /// the lock in between.
    pub async fn extend_ticket(
        &self,
        name: impl AsRef<[u8]>,
        token: impl AsRef<[u8]>,
        fence: u64,
        ttl: Duration,
    ) -> Result<Moment, Error> {
        let fleet = &self.client.fleet;
        fleet.first_answers(None).await;
        let extend = Arc::new(command::extend(
            &[name.as_ref().to_vec()],
            token.as_ref(),
            ttl,
            None,
        ));
        let (all, sent) = (fleet.nodes.len(), Moment::now());
        let end = lease_end(sent, ttl);
        let mut verdicts = vec![Verdict::NotAsked; all];
        let mut round = fleet.round();
        for place in 0..all {
            let question = Question::new(place, sent).about(Some(fence));
            round.ask(&fleet.nodes[place], question, &extend);
        }
        while let Some((question, reply)) = round.next().await {
            verdicts[question.place] = reply.verdict(Verdict::NotHeld);
            let extended = count(&verdicts, |verdict| {
                matches!(verdict, Verdict::Granted { .. })
            });
            // The other nodes have been asked, but their replies are not needed.
            if !is_shortage(extended, all) && end > Moment::now() {
                return Ok(end);
            }
        }
        let gone = count(&verdicts, |verdict| matches!(verdict, Verdict::NotHeld));
        let refused = count(&verdicts, Verdict::is_final);
        let lock = format!("lock {}", name.as_ref().escape_ascii());
        let nodes = fleet.reports(|place| verdicts[place].clone());
        match (
            is_shortage(all - gone, all),
            is_shortage(all - refused, all),
        ) {
            (true, _) => Err(Error::Lost { lock, nodes }),
            (_, true) => Err(Error::Refused { lock, nodes }),
            _ => Err(Error::NoQuorum { lock, nodes }),
        }
    }
}

fn count(verdicts: &[Verdict], wanted: fn(&Verdict) -> bool) -> usize {
    verdicts.iter().filter(|verdict| wanted(verdict)).count()
}

#[cfg(test)]
mod tests {
    use redislock_testkit::{Flow, Proxy, Server};

    use super::*;
    use crate::attempt::tests::{patient, until};

    /// The replies arrive late.
    #[tokio::test]
    async fn an_extended_ticket_counts_from_the_sending() {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        let redlock = patient([proxy.url()]).await;
        let fence = server.run(&["LOCK.ACQUIRE", "x", "token", "600000"]);
        let (before, ttl) = (Moment::now(), Duration::from_secs(600));
        proxy.replies(Flow::Hold);
        let extending = redlock.extend_ticket("x", "token", fence, ttl);
        let executed = async {
            until("it is executed", || server.calls("lock.extend") == 1).await;
            let executed = Moment::now();
            proxy.replies(Flow::Pass);
            executed
        };
        let (extended, executed) = tokio::join!(extending, executed);
        let allowed = lease_end(before, ttl)..=lease_end(executed, ttl);
        assert!(allowed.contains(&extended.unwrap()));
    }
}
