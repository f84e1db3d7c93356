//! Releasing: every attempt and every hold ends here. A release is repeated until the node has
//! accepted it or the lease is over.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::command::Request;
use crate::error::Verdict;
use crate::host::{Moment, pauses};
use crate::quorum::{NodeSet, majority};
use crate::reply::Reply;
use crate::round::Question;
#[cfg(feature = "simulation")]
use crate::simulation::{Flaw, has};

/// The first pause before a release is repeated at a node that refused or did not answer …
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// … and the longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Released {
    /// A majority of the nodes held it until now.
    WasHeld,
    /// It was lost before: another holder may have worked at the same time.
    WasLost,
    /// Another guard of the same owner keeps it.
    StillHeld,
    /// It is unknown whether it was held. Too few nodes answered, or a connection was opened
    /// meanwhile, so that the release may have been sent twice and the second one found nothing.
    /// The release is repeated in the background until it is delivered; at the latest, the hold
    /// ends with its lease.
    Unknown,
}

impl Released {
    /// What the answers of `nodes` nodes mean.
    fn count(replies: &[(Question, Reply)], nodes: usize) -> Self {
        let count = |wanted: fn(&Reply) -> bool| {
            let replies = replies.iter();
            replies.filter(|(_, reply)| wanted(reply)).count()
        };
        let majority = majority(nodes);
        if count(|reply| matches!(reply, Reply::Yes(_))) >= majority {
            return Self::WasHeld;
        }
        if count(|reply| matches!(reply, Reply::No | Reply::Part)) > nodes - majority {
            Self::WasLost
        } else {
            Self::Unknown
        }
    }

    /// The combined result for two holds of one guard.
    pub(crate) fn and(self, other: Self) -> Self {
        let rank = |released| match released {
            Self::StillHeld => 0,
            Self::WasHeld => 1,
            Self::Unknown => 2,
            Self::WasLost => 3,
        };
        std::cmp::max_by_key(self, other, |released| rank(*released))
    }
}

/// A release that is not delivered to all nodes yet. Dropping it delivers the rest in the
/// background.
pub(crate) struct Release {
    client: Arc<Client>,
    left: NodeSet,
    request: Arc<Request>,
    /// When the leases expire.
    until: Moment,
}

impl Release {
    pub(crate) fn new(
        client: &Arc<Client>,
        from: NodeSet,
        request: Request,
        ttl: Duration,
    ) -> Self {
        #[cfg(feature = "simulation")]
        let from = if has(Flaw::NoRelease) {
            NodeSet::default()
        } else {
            from
        };
        Self {
            client: Arc::clone(client),
            left: from,
            request: Arc::new(request),
            until: Moment::now() + ttl,
        }
    }

    /// Sends the release at once to all nodes that seem up (to all nodes, if those are not a
    /// majority), and returns the result. For nodes that do not answer within the node timeout, it
    /// continues in the background.
    pub(crate) async fn run(mut self) -> Released {
        let mut replies = self.ask_all().await;
        let nodes = &self.client.fleet.nodes;
        // A node that has executed the first of two releases answers no to the second one.
        let was_sent_twice =
            |question: &Question| nodes[question.place].may_have_repeated(question.route);
        replies.retain(|(question, reply)| *reply != Reply::No || !was_sent_twice(question));
        Released::count(&replies, nodes.len())
    }

    /// The same for a release that is followed by other requests of the token. Returns the nodes at
    /// which it may still arrive later. If the connection was replaced meanwhile, the release may
    /// have been sent on both: the reply to the second one says nothing about the first.
    pub(crate) async fn settle(mut self) -> NodeSet {
        let replies = self.ask_all().await;
        let mut unsettled = self.left;
        for (Question { place, route, .. }, _) in replies {
            if self.client.fleet.nodes[place].may_have_repeated(route) {
                unsettled.insert(place);
            }
        }
        unsettled
    }

    async fn ask_all(&mut self) -> Vec<(Question, Reply)> {
        let fleet = Arc::clone(&self.client.fleet);
        let to_ask = fleet.nodes_to_ask();
        let mut round = fleet.round();
        let sent = Moment::now();
        // The node where others queue comes last: the next waiter then finds the other nodes free.
        let places: Vec<usize> = self.left.iter().collect();
        for place in places.into_iter().rev() {
            if to_ask.contains(place) {
                round.ask(
                    &fleet.nodes[place],
                    Question::new(place, sent),
                    &self.request,
                );
            }
        }
        let mut replies = Vec::with_capacity(fleet.nodes.len());
        while let Some((question, reply)) = round.next().await {
            if is_delivered(&reply) {
                self.left.remove(question.place);
            }
            replies.push((question, reply));
        }
        replies
    }

    /// Tries once more at one node.
    pub(crate) fn ask(&self, place: usize) -> impl Future<Output = Reply> + Send + use<> {
        self.client.fleet.nodes[place].ask(Arc::clone(&self.request))
    }

    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Nothing is held, so nothing has to be delivered.
    pub(crate) fn forget(mut self) {
        self.left = NodeSet::default();
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        for place in self.left.iter() {
            let (client, request) = (Arc::clone(&self.client), Arc::clone(&self.request));
            let delivery = deliver(client, place, request, self.until);
            self.client.background.spawn(delivery);
        }
    }
}

/// Whether the node needs no further release: it has executed it, or the key is not a lock any
/// more.
fn is_delivered(reply: &Reply) -> bool {
    match reply {
        Reply::Yes(_) | Reply::No | Reply::Part => true,
        Reply::Trouble(verdict) => matches!(verdict, Verdict::WrongType),
    }
}

async fn deliver(client: Arc<Client>, place: usize, request: Arc<Request>, until: Moment) {
    let node = &client.fleet.nodes[place];
    let Some(_owed) = node.owe() else {
        let once = node.ask(request);
        let _ = tokio::time::timeout(client.fleet.node_timeout, once).await;
        return;
    };
    let mut pauses = pauses(FIRST_PAUSE, LONGEST_PAUSE);
    let trying = async {
        loop {
            let generation = node.standing().generation;
            tokio::select! {
                biased;
                reply = node.ask(Arc::clone(&request)) => {
                    if is_delivered(&reply) {
                        return;
                    }
                    tokio::time::sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
                }
                // What was sent on the old connection may never arrive.
                () = node.reconnected(generation) => {}
            }
            node.came_up().await;
        }
    };
    let _ = tokio::time::timeout(until.remaining(), trying).await;
}
