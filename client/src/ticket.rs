//! A hold that outlives the process that acquired it: its token leaves the client, and is shown again later.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::ToRedisArgs;

use crate::clock::Moment;
use crate::command::{Request, millis};
use crate::error::{Error, Verdict};
use crate::giveback::GiveBack;
use crate::guard::Guard;
use crate::hold::Released;
use crate::quorum::{NodeSet, lease_end};
use crate::redlock::Redlock;
use crate::reply::Reply;

/// How long the release of a ticket is owed to a node that cannot be reached.
const OWED_FOR: Duration = Duration::from_secs(60);
/// How often [`Redlock::close`] looks whether all is delivered.
const CLOSING_LOOK: Duration = Duration::from_millis(1);

/// What proves the ownership of a hold that nobody renews: whoever has it can extend and release.
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

    /// Until when the lock is surely held, unless it is extended.
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
    /// Leaves the lock held, for as long as its lease runs, and hands out what proves its ownership. Nothing renews it from
    /// here on. The guard comes back if another guard of the same owner shares the hold.
    pub fn detach(self) -> Result<Ticket, Self> {
        let valid_until = self.valid_until();
        let fence = self.fence();
        self.leave_held().map(|token| Ticket {
            token: token.to_redis_args().concat(),
            fence,
            valid_until,
        })
    }
}

impl Redlock {
    /// Releases what this token holds, on every node, and says whether it was held until now.
    pub async fn release_ticket(
        &self,
        name: impl AsRef<[u8]>,
        token: impl AsRef<[u8]>,
    ) -> Released {
        let fleet = &self.client.fleet;
        let mut cmd = redis::cmd("LOCK.RELEASE");
        cmd.arg(name.as_ref()).arg(token.as_ref()).arg("ALL");
        let release = Arc::new(Request::new(cmd, Some(&name.as_ref().to_vec())));
        let mut everywhere = NodeSet::default();
        (0..fleet.nodes.len()).for_each(|place| everywhere.insert(place));
        let until = Moment::now() + OWED_FOR;
        let give_back = GiveBack::new(Arc::clone(&self.client), everywhere, release, until);
        let replies = give_back.run().await;
        let count =
            |wanted: fn(&Reply) -> bool| replies.iter().filter(|(_, reply)| wanted(reply)).count();
        let majority = fleet.majority();
        if count(|reply| matches!(reply, Reply::Yes(_))) >= majority {
            return Released::WasHeld;
        }
        match count(|reply| matches!(reply, Reply::No)) > fleet.nodes.len() - majority {
            true => Released::WasLost,
            false => Released::Unknown,
        }
    }

    /// Extends what this token holds with this fence, and returns the new end of validity. Nodes that show another fence do
    /// not count: they granted later, when somebody else may have been in between.
    pub async fn extend_ticket(
        &self,
        name: impl AsRef<[u8]>,
        token: impl AsRef<[u8]>,
        fence: u64,
        ttl: Duration,
    ) -> Result<Moment, Error> {
        let fleet = &self.client.fleet;
        let name = name.as_ref().to_vec();
        let mut cmd = redis::cmd("LOCK.EXTEND");
        cmd.arg(&name).arg(token.as_ref()).arg(millis(ttl));
        let extend = Arc::new(Request::new(cmd, Some(&name)));
        let sent = Moment::now();
        let mut verdicts = vec![Verdict::TimedOut(fleet.node_timeout); fleet.nodes.len()];
        let mut asked: FuturesUnordered<_> = fleet
            .nodes
            .iter()
            .enumerate()
            .map(|(place, node)| {
                let answer = node.ask(Arc::clone(&extend));
                async move { (place, answer.await) }
            })
            .collect();
        let collect = async {
            while let Some((place, reply)) = asked.next().await {
                verdicts[place] = match reply {
                    Reply::Yes(other) if other != fence => Verdict::NotHeld,
                    reply => reply.verdict(Verdict::NotHeld),
                };
            }
        };
        let _ = tokio::time::timeout(fleet.node_timeout, collect).await;
        let count = |wanted: fn(&Verdict) -> bool| {
            verdicts.iter().filter(|verdict| wanted(verdict)).count()
        };
        let extended = count(|verdict| matches!(verdict, Verdict::Granted { .. }));
        let gone = count(|verdict| matches!(verdict, Verdict::NotHeld));
        let refused = count(Verdict::is_final);
        let end = lease_end(sent, ttl);
        let majority = fleet.majority();
        if extended >= majority && end > Moment::now() {
            return Ok(end);
        }
        let lock = format!("lock {}", name.escape_ascii());
        let nodes = fleet.reports(|place| verdicts[place].clone());
        let minority = fleet.nodes.len() - majority;
        match (gone > minority, refused > minority) {
            (true, _) => Err(Error::Lost { lock, nodes }),
            (_, true) => Err(Error::Refused { lock, nodes }),
            _ => Err(Error::NoQuorum { lock, nodes }),
        }
    }

    /// Waits until what is given back in the background is delivered, but no longer than this. For programs that end right
    /// after a request failed, was cancelled, or a guard was dropped: a node that was asked in vain is left with nothing.
    /// Guards that still exist keep the client open, so drop them before.
    pub async fn close(self, patience: Duration) {
        // Whoever still gives something back holds on to the client.
        let client = Arc::downgrade(&self.client);
        drop(self);
        let closed = async {
            while Weak::strong_count(&client) > 0 {
                tokio::time::sleep(CLOSING_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(patience, closed).await;
    }
}
