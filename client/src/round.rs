//! One round: a question to each of several nodes at once; for each of them the answer, or that it
//! timed out. What the answers mean is for others to count.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Sleep;

use crate::clock::Moment;
use crate::command::Request;
use crate::error::Verdict;
use crate::fleet::Fleet;
use crate::reply::Reply;

/// A question on its way: to which node, since when, and what would be the right answer to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) place: usize,
    pub(crate) sent: Moment,
    /// An extension must come back with exactly this fence: any other one is another hold.
    pub(crate) exactly: Option<u64>,
}

impl Question {
    pub(crate) fn new(place: usize, sent: Moment) -> Self {
        Self {
            place,
            sent,
            exactly: None,
        }
    }
}

type Asked<A> = Pin<Box<dyn Future<Output = (Question, A)> + Send>>;

/// Answers that were not waited for: the outcome was decided without them.
pub(crate) type Late<A = Reply> = FuturesUnordered<Asked<A>>;

/// See the module's text. The timer is the caller's own: no other task has to run for it.
pub(crate) struct Round<A = Reply> {
    fleet: Arc<Fleet>,
    patience: Duration,
    asked: Late<A>,
    open: Vec<Question>,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl<A: From<Verdict> + Send + 'static> Round<A> {
    /// Every node has the node timeout to answer.
    pub(crate) fn new(fleet: &Arc<Fleet>) -> Self {
        Self::within(fleet, fleet.node_timeout)
    }

    pub(crate) fn within(fleet: &Arc<Fleet>, patience: Duration) -> Self {
        Self {
            fleet: Arc::clone(fleet),
            patience,
            asked: FuturesUnordered::new(),
            open: Vec::with_capacity(fleet.nodes.len()),
            timer: None,
            over: false,
        }
    }

    /// Goes on with answers that an earlier round did not wait for.
    pub(crate) fn resume(fleet: &Arc<Fleet>, late: Late<A>, open: Vec<Question>) -> Self {
        let mut round = Self::new(fleet);
        (round.asked, round.open) = (late, open);
        round
    }

    /// Any question whose answer can be awaited.
    pub(crate) fn push(
        &mut self,
        question: Question,
        answer: impl Future<Output = A> + Send + 'static,
    ) {
        self.open.push(question);
        self.asked
            .push(Box::pin(async move { (question, answer.await) }));
    }

    /// What was asked now has the whole time to be answered.
    pub(crate) fn start_again(&mut self) {
        self.timer = None;
    }

    /// The next answer; `None` when every question has one.
    pub(crate) async fn next(&mut self) -> Option<(Question, A)> {
        if self.open.is_empty() {
            return None;
        }
        if !self.over {
            let patience = self.patience;
            tokio::select! {
                biased;
                Some((question, answer)) = self.asked.next() => {
                    self.open.retain(|open| open.place != question.place);
                    return Some((question, answer));
                }
                // Registered only if the answer is not there yet.
                () = async {
                    let start = || Box::pin(tokio::time::sleep(patience));
                    self.timer.get_or_insert_with(start).await;
                } => self.over = true,
            }
        }
        let question = self.open.pop()?;
        let verdict = Verdict::TimedOut(self.patience);
        self.fleet.nodes[question.place].suspect(verdict.clone());
        Some((question, A::from(verdict)))
    }

    /// Leaves the rest: what of it is still on the way, and for which questions.
    pub(crate) fn leave(self) -> (Late<A>, Vec<Question>) {
        (self.asked, self.open)
    }
}

impl Round {
    /// Asks a node on the shared connection.
    pub(crate) fn ask(&mut self, question: Question, request: &Arc<Request>) {
        let answer = self.fleet.nodes[question.place].ask(Arc::clone(request));
        self.push(question, answer);
    }
}
