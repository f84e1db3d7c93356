//! Giving back: every way out of an attempt or a hold ends here, with a clean-up budget of its own.

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::client::Client;
use crate::clock::Moment;
use crate::command::Request;
use crate::error::Verdict;
use crate::quorum::NodeSet;
use crate::reply::Reply;

/// Releases that are still to be delivered. Dropping it delivers the rest in the background.
pub(crate) struct GiveBack {
    client: Arc<Client>,
    left: NodeSet,
    release: Arc<Request>,
    /// When the leases are over by themselves, so that nothing is owed any more.
    until: Moment,
}

impl GiveBack {
    pub(crate) fn new(
        client: Arc<Client>,
        from: NodeSet,
        release: Arc<Request>,
        until: Moment,
    ) -> Self {
        Self {
            client,
            left: from,
            release,
            until,
        }
    }

    /// Asks all nodes at once that are believed up (or all there are, if those are no majority), and returns what they said.
    /// Who does not answer within the node timeout is left to the background.
    pub(crate) async fn run(mut self) -> Vec<(usize, Reply)> {
        let fleet = Arc::clone(&self.client.fleet);
        let mut asked = FuturesUnordered::new();
        let electorate = fleet.electorate();
        // The turnstile comes last: whoever it lets in next then finds the other nodes free.
        let places: Vec<usize> = self.left.iter().collect();
        for place in places.into_iter().rev() {
            if electorate.contains(place) {
                let answer = fleet.nodes[place].ask(Arc::clone(&self.release));
                asked.push(async move { (place, answer.await) });
            }
        }
        let mut replies = Vec::with_capacity(asked.len());
        let round = fleet.ticker.start();
        let deadline = Moment::now() + fleet.node_timeout;
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((place, reply)) => {
                        if !undelivered(&reply) {
                            self.left.remove(place);
                        }
                        replies.push((place, reply));
                    }
                    None => break,
                },
                () = round.over(deadline) => {
                    let answered = |place: usize| replies.iter().any(|(known, _)| *known == place);
                    for place in self.left.iter().filter(|place| !answered(*place)) {
                        fleet.nodes[place].suspect(Verdict::TimedOut(fleet.node_timeout));
                    }
                    break;
                }
            }
        }
        replies
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        for place in self.left.iter() {
            let delivery = deliver(
                Arc::clone(&self.client),
                place,
                Arc::clone(&self.release),
                self.until,
            );
            self.client.runtime.spawn(delivery);
        }
    }
}

/// Whether the node may not have seen the release.
fn undelivered(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Trouble(Verdict::Unreachable(_) | Verdict::TimedOut(_))
    )
}

/// Sends a release now, behind whatever is on the way to the node; if that fails, when the node is reached again.
pub(crate) async fn deliver(
    client: Arc<Client>,
    place: usize,
    release: Arc<Request>,
    until: Moment,
) {
    let node = &client.fleet.nodes[place];
    let asked = tokio::time::timeout(until.remaining(), node.ask(Arc::clone(&release))).await;
    if asked.is_ok_and(|reply| undelivered(&reply)) {
        node.owe(release, until);
    }
}
