//! One round: a request to each of several nodes at once, and for each of them the answer or a
//! timeout. The callers decide what the answers mean.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Sleep;

use crate::command::Request;
use crate::error::Verdict;
use crate::host::Moment;
use crate::node::{Node, Route};
use crate::reply::Reply;

/// The nodes of a client, in the fixed order of the configuration.
pub(crate) type Nodes = Arc<[Arc<Node>]>;

/// A pending request: its node, when it was sent, and which answer counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) place: usize,
    pub(crate) sent: Moment,
    /// An extension must return exactly this fence: any other fence belongs to another hold.
    pub(crate) exactly: Option<u64>,
    /// The connections that it was sent on.
    pub(crate) route: Route,
}

impl Question {
    pub(crate) fn new(place: usize, sent: Moment) -> Self {
        Self {
            place,
            sent,
            exactly: None,
            route: Route::default(),
        }
    }

    /// The same request, but only for the grant with this fence.
    pub(crate) fn about(self, exactly: Option<u64>) -> Self {
        Self { exactly, ..self }
    }

    /// The meaning of the reply for this request.
    fn judge(self, reply: Reply) -> Reply {
        match (reply, self.exactly) {
            (Reply::Yes(fence), Some(exactly)) if fence != exactly => Reply::Part,
            (reply, _) => reply,
        }
    }
}

/// A request whose answer is pending.
pub(crate) struct Asked<A> {
    question: Question,
    answer: Pin<Box<dyn Future<Output = A> + Send>>,
}

/// Answers that are still pending after the outcome was decided.
pub(crate) type Late<A = Reply> = Vec<Asked<A>>;

/// The next answer, in any order. There are few, so all are polled; a list of the ready ones would
/// cost more.
pub(crate) async fn answered<A>(asked: &mut Late<A>) -> (Question, A) {
    poll_fn(|context| {
        for position in 0..asked.len() {
            if let Poll::Ready(answer) = asked[position].answer.as_mut().poll(context) {
                return Poll::Ready((asked.swap_remove(position).question, answer));
            }
        }
        Poll::Pending
    })
    .await
}

/// See the documentation of this module. The timer belongs to the caller's task: no other task has
/// to run for it.
pub(crate) struct Round<A = Reply> {
    /// The nodes, which count as down if they do not answer in time; none if the requests do not
    /// use the shared connections.
    nodes: Option<Nodes>,
    /// `None` if every request has its own limit.
    patience: Option<Duration>,
    asked: Late<A>,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl<A: From<Verdict> + Send + 'static> Round<A> {
    /// Requests on the shared connections of these nodes, with this time limit for all answers.
    pub(crate) fn within(nodes: &Nodes, patience: Duration) -> Self {
        Self {
            nodes: Some(Arc::clone(nodes)),
            patience: Some(patience),
            ..Self::unlimited(nodes.len())
        }
    }

    /// Requests on separate connections, each with its own limit.
    pub(crate) fn unlimited(nodes: usize) -> Self {
        Self {
            nodes: None,
            patience: None,
            asked: Vec::with_capacity(nodes),
            timer: None,
            over: false,
        }
    }

    /// Goes on with answers that an earlier round did not wait for.
    pub(crate) fn resume(mut self, late: Late<A>) -> Self {
        self.asked.extend(late);
        self
    }

    /// Adds any request whose answer can be awaited.
    pub(crate) fn push(
        &mut self,
        question: Question,
        answer: impl Future<Output = A> + Send + 'static,
    ) {
        let answer = Box::pin(answer);
        self.asked.push(Asked { question, answer });
    }

    /// Starts the time limit again for the requests that were just sent.
    pub(crate) fn start_again(&mut self) {
        (self.timer, self.over) = (None, false);
    }

    /// Waits for the remaining answers no longer than this.
    pub(crate) fn end_in(&mut self, patience: Duration) {
        self.patience = Some(patience);
        self.timer = None;
    }

    /// The next answer; `None` when all have arrived.
    pub(crate) async fn next(&mut self) -> Option<(Question, A)> {
        if self.asked.is_empty() {
            return None;
        }
        if !self.over {
            tokio::select! {
                biased;
                answered = answered(&mut self.asked) => return Some(answered),
                // The timer is registered only if the answer is not there yet.
                () = time_out(&mut self.timer, self.patience) => self.over = true,
            }
        }
        let question = self.asked.pop()?.question;
        let verdict = Verdict::TimedOut(self.patience.unwrap_or(Duration::MAX));
        if let Some(nodes) = &self.nodes {
            nodes[question.place].suspect(verdict.clone());
        }
        Some((question, A::from(verdict)))
    }

    /// Returns the requests that are still pending.
    pub(crate) fn leave(self) -> Late<A> {
        self.asked
    }
}

impl Round {
    /// Asks this node on the shared connection.
    pub(crate) fn ask(&mut self, node: &Arc<Node>, question: Question, request: &Arc<Request>) {
        let route = node.route();
        let question = Question { route, ..question };
        let reply = node.ask(Arc::clone(request));
        self.push(question, async move { question.judge(reply.await) });
    }
}

/// Starts the timer if it does not run yet, and returns when it is over.
async fn time_out(timer: &mut Option<Pin<Box<Sleep>>>, patience: Option<Duration>) {
    match patience {
        Some(patience) => {
            let start = || Box::pin(tokio::time::sleep(patience));
            timer.get_or_insert_with(start).await;
        }
        None => std::future::pending().await,
    }
}

/// An answer that may fail, for example with a timeout.
impl<T> From<Verdict> for Result<T, Verdict> {
    fn from(verdict: Verdict) -> Self {
        Err(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_that_is_asked_late_has_the_whole_time() {
        let ask = || Question::new(0, Moment::now());
        let mut round: Round<Result<u8, Verdict>> = Round::unlimited(2);
        round.end_in(Duration::from_millis(50));
        round.push(ask(), std::future::pending());
        let late = round.next().await.unwrap().1;
        assert!(matches!(late, Err(Verdict::TimedOut(_))), "{late:?}");
        round.end_in(Duration::from_secs(60));
        round.push(ask(), async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(7)
        });
        round.start_again();
        assert_eq!(round.next().await.unwrap().1, Ok(7));
        assert!(round.next().await.is_none());
    }
}
