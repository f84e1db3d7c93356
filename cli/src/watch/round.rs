//! One round after another: the nodes, then the locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redislock_client::{Answer, LockStatus, Moment, Statuses, Verdict};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::budget::{HOLDERS, LOOKS_PER_SECOND, QUEUES, share};
use super::node::{self, Node, Report, Sweep};
use super::queue::{self, Queue, Waiter};
use super::{Seen, Watch};
use crate::args::Where;
use crate::nodes::problem;
use crate::summary::LockSummary;
use crate::view::View;

/// How often the masters of a cluster are looked up.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);

/// One node, and the question that it has not replied to yet.
struct Member {
    view: Arc<View>,
    asked: Option<JoinHandle<Option<Report>>>,
    sweep: Sweep,
}

/// The rounds of a watch.
pub struct Rounds {
    place: Where,
    interval: Duration,
    is_cluster: bool,
    watch: Watch,
    finished: watch::Sender<u64>,
    members: Vec<Member>,
    names: Vec<String>,
    looked_up: Option<Moment>,
}

/// The locks to look at: number, name, and the node that listed it last.
type Looks = Vec<(u64, Arc<[u8]>, usize)>;

impl Rounds {
    pub fn new(
        place: Where,
        interval: Duration,
        is_cluster: bool,
        watch: Watch,
        finished: watch::Sender<u64>,
    ) -> Self {
        Self {
            place,
            interval,
            is_cluster,
            watch,
            finished,
            members: Vec::new(),
            names: Vec::new(),
            looked_up: None,
        }
    }

    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(self.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.find_nodes().await;
            self.ask_nodes().await;
            self.look_at_locks().await;
            self.ask_for_queues().await;
            let mut seen = self.watch.seen();
            seen.locks.tidy();
            seen.rounds += 1;
            seen.updated = Moment::now();
            // It fails if no view listens, which is not an error.
            self.finished.send_replace(seen.rounds);
        }
    }

    /// The masters of a cluster change: they are looked up from time to time. If nobody replies,
    /// the last ones known are asked.
    async fn find_nodes(&mut self) {
        let due = match self.looked_up {
            None => true,
            Some(at) => self.is_cluster && Moment::now().since(at) >= LOOK_UP_EVERY,
        };
        if !due {
            return;
        }
        let found = self.place.view().await;
        let parts = found.and_then(|view| {
            let names = view.names();
            Ok((view.split()?, names))
        });
        let mut seen = self.watch.seen();
        let (views, names) = match parts {
            Ok(parts) => parts,
            Err(failure) => {
                seen.problem = Some(failure.text);
                return;
            }
        };
        seen.problem = None;
        self.looked_up = Some(Moment::now());
        if names == self.names && !self.members.is_empty() {
            return;
        }
        let member = |view: View| Member {
            view: Arc::new(view),
            asked: None,
            sweep: Sweep::default(),
        };
        self.members = views.into_iter().map(member).collect();
        seen.nodes = names.iter().cloned().map(Node::new).collect();
        seen.quorum = if self.is_cluster {
            names.len()
        } else {
            names.len() / 2 + 1
        };
        self.names = names;
    }

    /// Queries every node. It does not wait for a node that did not reply last time.
    async fn ask_nodes(&mut self) {
        let mut waited_for = Vec::new();
        {
            let seen = self.watch.seen();
            for (place, member) in self.members.iter_mut().enumerate() {
                let known = &seen.nodes[place];
                if member.asked.is_none() {
                    let sweep = member.sweep.next();
                    let asked = node::ask(
                        Arc::clone(&member.view),
                        sweep,
                        known.counters_due(),
                        self.interval,
                    );
                    member.asked = Some(tokio::spawn(asked));
                }
                let is_new = matches!(known.verdict, Some(Verdict::NotAsked));
                if known.is_up() || is_new {
                    waited_for.push(place);
                }
            }
        }
        // One that is down and refuses at once is noticed in this round, too.
        tokio::task::yield_now().await;
        for place in 0..self.members.len() {
            let member = &mut self.members[place];
            let finished = member.asked.as_ref().is_some_and(JoinHandle::is_finished);
            if !finished && !waited_for.contains(&place) {
                continue;
            }
            let Some(asked) = member.asked.take() else {
                continue;
            };
            // A task that was ended with the program has no result.
            if let Ok(Some(report)) = asked.await {
                member.sweep = report.sweep.next();
                let mut seen = self.watch.seen();
                let names = seen.nodes[place].learn(report);
                names
                    .into_iter()
                    .for_each(|name| seen.locks.found(name, place));
            }
        }
        self.judge_nodes();
    }

    /// Which nodes can grant locks.
    fn judge_nodes(&self) {
        let mut seen = self.watch.seen();
        let answers: Vec<_> = seen
            .nodes
            .iter()
            .map(|node| {
                let failed = || node.verdict.clone().unwrap_or(Verdict::NotAsked);
                Answer::new(node.name.clone(), node.status.clone().ok_or_else(failed))
            })
            .collect();
        for (place, node) in seen.nodes.iter_mut().enumerate() {
            node.problem = problem(&answers, place);
        }
    }

    /// Asks the nodes that reply about some of the locks.
    async fn look_at_locks(&mut self) {
        let looks = self.choose();
        if looks.is_empty() {
            return;
        }
        let mut asked = Vec::new();
        for (place, member) in self.members.iter().enumerate() {
            let names = self.names_for(place, &looks);
            let is_up = self.watch.seen().nodes[place].is_up();
            if is_up && !names.is_empty() {
                let view = Arc::clone(&member.view);
                let ask = async move { view.observer.statuses(names, HOLDERS).await.pop() };
                asked.push((place, tokio::spawn(ask)));
            }
        }
        let mut replies: BTreeMap<usize, Statuses> = BTreeMap::new();
        for (place, asked) in asked {
            let Ok(Some(answer)) = asked.await else {
                continue;
            };
            match answer.result {
                Ok(statuses) => drop(replies.insert(place, statuses)),
                Err(verdict) => self.watch.seen().nodes[place].set_verdict(Some(verdict)),
            }
        }
        self.judge_nodes();
        self.combine(&looks, replies);
    }

    /// Queries the queues of the locks that have a view of their own.
    async fn ask_for_queues(&self) {
        let wanted = {
            let mut seen = self.watch.seen();
            let ids = seen.locks.queue_turn(QUEUES);
            named(&seen, ids)
        };
        let mut asked = Vec::new();
        for (place, member) in self.members.iter().enumerate() {
            let here = |look: &&(u64, Arc<[u8]>, usize)| !self.is_cluster || look.2 == place;
            let ids: Vec<u64> = wanted.iter().filter(here).map(|look| look.0).collect();
            let names = self.names_for(place, &wanted);
            if self.watch.seen().nodes[place].is_up() && !names.is_empty() {
                let ask = queue::ask(Arc::clone(&member.view), names);
                asked.push((ids, tokio::spawn(ask)));
            }
        }
        let mut queues: BTreeMap<u64, Vec<Option<Vec<Waiter>>>> = BTreeMap::new();
        for (ids, asked) in asked {
            for (id, queue) in ids.into_iter().zip(asked.await.unwrap_or_default()) {
                queues.entry(id).or_default().push(queue);
            }
        }
        let mut seen = self.watch.seen();
        for (id, replies) in queues {
            let waiters = queue::longest(replies.into_iter());
            let queue = Queue {
                seen: Moment::now(),
                waiters,
            };
            seen.locks.set_queue(id, queue);
        }
    }

    fn choose(&self) -> Looks {
        let mut seen = self.watch.seen();
        let chosen = seen.locks.turn(share(LOOKS_PER_SECOND, self.interval));
        named(&seen, chosen)
    }

    /// In a cluster, a lock is on one node only.
    fn names_for(&self, place: usize, looks: &Looks) -> Vec<Arc<[u8]>> {
        let here = |look: &&(u64, Arc<[u8]>, usize)| !self.is_cluster || look.2 == place;
        let names = looks.iter().filter(here);
        names.map(|(_, name, _)| Arc::clone(name)).collect()
    }

    /// Combines the replies of the nodes about each lock.
    fn combine(&self, looks: &Looks, replies: BTreeMap<usize, Statuses>) {
        let mut seen = self.watch.seen();
        let now = seen.now();
        let mut replies: BTreeMap<usize, _> = replies
            .into_iter()
            .map(|(place, statuses)| (place, statuses.into_iter()))
            .collect();
        for (id, _, listed_by) in looks {
            let mut answers = Vec::new();
            for place in 0..self.members.len() {
                if self.is_cluster && place != *listed_by {
                    continue;
                }
                let status = replies.get_mut(&place).and_then(Iterator::next);
                let node = &seen.nodes[place];
                let silent = || Err(node.verdict.clone().unwrap_or(Verdict::NotAsked));
                let result: Result<Option<LockStatus>, Verdict> = status.unwrap_or_else(silent);
                answers.push(Answer::new(node.name.clone(), result));
            }
            let nobody = answers.iter().all(|answer| answer.result.is_err());
            match (nobody, self.is_cluster) {
                (false, _) => seen.locks.learn(*id, LockSummary::of(&answers), now),
                // Nothing new is known: the entry keeps its old data, which is shown with its age.
                (true, false) => {}
                (true, true) if answers.iter().any(has_moved) => seen.locks.forget(*id),
                (true, true) => {}
            }
        }
    }
}

fn named(seen: &Seen, ids: Vec<u64>) -> Looks {
    let known = ids.into_iter().filter_map(|id| {
        let lock = seen.locks.get(id)?;
        Some((id, Arc::clone(&lock.key), lock.place))
    });
    known.collect()
}

fn has_moved(answer: &Answer<Option<LockStatus>>) -> bool {
    match &answer.result {
        Err(Verdict::Refused(error)) => error.code() == Some("MOVED"),
        _ => false,
    }
}
