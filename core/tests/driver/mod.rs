//! Drives the core, a replica of it and the model through the same life, and compares them after
//! every step.

pub mod bug;
mod compare;
pub mod step;
mod translate;

use redislock_core::queue::WaiterId;
use redislock_core::table::{Extended, Verdict};
use redislock_core::time::{Micros, MonoTime, Wait, WallTime};

use crate::node::{Node, Value};
use crate::reference::{Answer, Key, Limits, Model, Reply, Request, Token, Waiter};
use bug::{Bug, Suspect};
use step::{Step, Wish};
use translate::{answer, bytes, cap, core_limits, error, given, key, terms};

/// A step of the model; says whether the core's reply to it was right.
type Action = Box<dyn Fn(&mut Model) -> bool>;

pub struct Driver {
    suspect: Suspect,
    replica: Node,
    /// One, or several that differ in nothing that could be seen so far.
    models: Vec<Model>,
    /// Granted requests whose clients have not been seen to receive the answer.
    undelivered: Vec<u64>,
    /// When the timer last ran: what has ended since may still be there.
    timer_ran: u64,
    highest_fence: u64,
    /// The server's names for the three connections; one that has closed comes again under another.
    connections: [u64; 3],
    /// What the replies of this step mean for the events that are told.
    expected: Told,
}

/// How often what is told of the keys, as far as replies and answers say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    acquired: usize,
    extended: usize,
    forced: usize,
}

/// What a step may have been: the model after all actions and all answers, in every order in which
/// each was right and after which it fits, the actions in their order, the answers in theirs.
struct Explanations<'a> {
    fits: &'a dyn Fn(&Model) -> Result<(), String>,
    found: Vec<Model>,
    wrong: String,
}

impl Explanations<'_> {
    fn search(&mut self, model: &Model, actions: &[Action], answers: &[(u64, Answer)]) {
        if actions.is_empty() && answers.is_empty() {
            match (self.fits)(model) {
                _ if !model.owes_nothing() => self.wrong = "somebody was not answered".into(),
                Err(wrong) => self.wrong = wrong,
                // What can be seen is the same in all that fit.
                Ok(()) if self.found.iter().any(|found| found.is_like(model)) => {}
                Ok(()) => self.found.push(model.clone()),
            }
        }
        if let Some(((id, answer), rest)) = answers.split_first() {
            let mut next = model.clone();
            if next.accepts(*id, answer) {
                self.search(&next, actions, rest);
            } else if actions.is_empty() {
                self.wrong = format!("{id} should not have been told {answer:?}");
            }
        }
        if let Some((action, rest)) = actions.split_first()
            && model.owes_nothing()
        {
            let mut next = model.clone();
            if action(&mut next) {
                self.search(&next, rest, answers);
            } else {
                self.wrong = "a reply is wrong".into();
            }
        }
    }
}

fn always(action: impl Fn(&mut Model) + 'static) -> Vec<Action> {
    vec![Box::new(move |model| {
        action(model);
        true
    })]
}

impl Driver {
    pub fn new(bug: Option<Bug>) -> Self {
        let limits = Limits {
            max_hold: 0,
            max_waiters: 20,
            max_holders: 4,
        };
        let node = Node::new(core_limits(limits));
        let model = Model::new(limits, node.now.mono.0, node.now.wall.0);
        Self {
            timer_ran: model.now,
            replica: Node::new(core_limits(limits)),
            suspect: Suspect::new(node, bug),
            models: vec![model],
            undelivered: Vec::new(),
            highest_fence: 0,
            connections: [1, 2, 3],
            expected: Told::default(),
        }
    }

    /// One step of everybody.
    ///
    /// # Errors
    /// What the core did that the contract does not allow.
    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        self.expected = Told::default();
        let actions = self.act(step);
        // What one decision leaves for the next ones.
        let node = &mut self.suspect.node;
        if node.table.has_more_to_serve(node.now) {
            node.serve();
        }
        let (changes, answers) = self.suspect.take();
        let mut answers: Vec<_> = answers
            .iter()
            .map(|(id, told)| (id.0, answer(told)))
            .collect();
        if let Step::Release { keys, .. } = step {
            self.sort_by_keys(keys, &mut answers);
        }
        self.replica.now = self.suspect.node.now;
        for change in &changes {
            // Every effect has the counter in front.
            let fence = self.suspect.node.table.fence();
            self.replica.table.raise_fence(fence);
            self.replica.replay(change);
        }
        let fits = |model: &Model| self.compare(model);
        let mut explanations = Explanations {
            fits: &fits,
            found: Vec::new(),
            wrong: String::new(),
        };
        for model in &self.models {
            explanations.search(model, &actions, &answers);
        }
        let Explanations { found, wrong, .. } = explanations;
        if found.is_empty() {
            let before = self.model();
            return Err(format!("{wrong}\nanswers: {answers:?}\nbefore: {before:?}"));
        }
        self.models = found;
        self.note_grants(&answers)?;
        self.compare_events(&changes, &answers)
    }

    /// A release of several keys ends the waits of its token at each of them. The replies go to
    /// different connections, so that their order does not matter: here they get that of the keys.
    fn sort_by_keys(&self, keys: &[Key], answers: &mut [(u64, Answer)]) {
        let place = |id: u64| {
            let mut queue = self.model().queue.iter();
            let waiter = queue.find(|waiter| waiter.id == id)?;
            let is_waited_for = |key| waiter.request.keys.contains(key);
            keys.iter().position(is_waited_for)
        };
        let is_end = |answer: &(u64, Answer)| answer.1 == Answer::Nothing;
        let mut ends: Vec<_> = answers.iter().filter(|end| is_end(end)).cloned().collect();
        ends.sort_by_key(|(id, _)| place(*id));
        let places = answers.iter_mut().filter(|answer| is_end(answer));
        places.zip(ends).for_each(|(place, end)| *place = end);
    }

    /// Does the step to the core; returns what it is for the model, with the core's replies.
    fn act(&mut self, step: &Step) -> Vec<Action> {
        match step.clone() {
            Step::Acquire {
                mut request,
                wish,
                block,
            } => {
                request.fence = self.wished(wish);
                request.connection = self.connections[request.connection as usize];
                // What the module answers by itself, WRONGTYPE, does not reach the core.
                if request
                    .keys
                    .iter()
                    .any(|key| self.model().others.contains(key))
                {
                    return Vec::new();
                }
                vec![self.acquire(request, block)]
            }
            Step::Release { keys, token, all } => {
                let token = self.owner(keys[0], token);
                let names: Vec<_> = keys.iter().map(|at| key(*at)).collect();
                let replies = self.suspect.release_each(&names, &bytes(token), all);
                let release = move |(at, reply): (Key, u32)| -> Action {
                    Box::new(move |model| model.release(at, token, all) == reply)
                };
                keys.into_iter().zip(replies).map(release).collect()
            }
            Step::Extend {
                key: at,
                token,
                ttl,
                wish,
                connection,
            } => {
                let (wish, token) = (self.wished(wish), self.owner(at, token));
                let connection = self.connections[connection as usize];
                let reply = match self.suspect.extend(
                    &key(at),
                    &bytes(token),
                    Micros(ttl),
                    given(wish),
                    given(connection),
                ) {
                    Extended::To(fence) => {
                        self.expected.extended = 1;
                        Ok(Some(fence))
                    }
                    Extended::NotHeld => Ok(None),
                    Extended::Denied(denial) => Err(error(denial)),
                };
                vec![Box::new(move |model| {
                    model.extend(at, token, ttl, wish, connection) == reply
                })]
            }
            Step::Guard { key: at, token } => {
                let token = self.owner(at, token);
                let reply = self
                    .suspect
                    .node
                    .guards(&key(at), &bytes(token))
                    .map_err(error);
                vec![Box::new(move |model| model.guard(at, token) == reply)]
            }
            Step::Force { key: at } => {
                let holders = self.suspect.node.force(&key(at)) as usize;
                self.expected.forced = usize::from(holders > 0);
                vec![Box::new(move |model| model.force(at) == holders)]
            }
            Step::Advance { ticks, timer } => self.advance(ticks * step::TICK, timer),
            Step::MoveWallClock(by) => {
                let wall = self.suspect.node.now.wall.0.saturating_add_signed(by);
                self.suspect.node.now.wall = WallTime(wall);
                always(move |model| model.wall = wall)
            }
            Step::Abandon(_) | Step::Deliver(_) | Step::Undeliverable(_) | Step::HangUp { .. } => {
                self.connection(step)
            }
            Step::HoldBack(_) | Step::Quarantine(_) | Step::Unblock(_) | Step::Limit { .. } => {
                self.administer(step)
            }
            _ => self.outside(step),
        }
    }

    pub(super) fn model(&self) -> &Model {
        &self.models[0]
    }

    /// The owner that a step means.
    fn owner(&self, at: Key, token: Token) -> Token {
        let held = self.model().live(at);
        let holders: Vec<_> = held
            .into_iter()
            .flat_map(|lock| lock.holds.into_keys())
            .collect();
        match token.checked_sub(step::OWNERS) {
            Some(nth) if !holders.is_empty() => holders[usize::from(nth) % holders.len()],
            _ => token % step::OWNERS,
        }
    }

    fn wished(&self, wish: Wish) -> u64 {
        match wish {
            Wish::None => 0,
            Wish::AboveLast(by) => self.model().fence + by,
            Wish::AboveWall(by) => self.model().wall + by,
        }
    }

    fn acquire(&mut self, request: Request, block: Option<Option<u64>>) -> Action {
        let keys: Vec<_> = request.keys.iter().map(|at| key(*at)).collect();
        let block = block.map(|until| until.map(|ticks| self.model().now + ticks));
        let wait = match block {
            None => Wait::No,
            Some(None) => Wait::Forever,
            Some(Some(until)) => Wait::Until(MonoTime(until)),
        };
        let verdict = self.suspect.acquire(&keys, &terms(&request), wait);
        let (reply, id) = match verdict {
            Verdict::Granted(granted) => {
                self.expected.acquired = granted.len();
                (Reply::Fences(granted.to_vec()), None)
            }
            Verdict::Busy => (Reply::Busy, None),
            Verdict::Waits(id) => (Reply::Waits, Some(id.0)),
            Verdict::Denied(denial) => (Reply::Error(error(denial)), None),
        };
        Box::new(move |model| model.acquire(&request, block, id) == reply)
    }

    fn advance(&mut self, micros: u64, timer: bool) -> Vec<Action> {
        self.suspect.node.advance(Micros(micros));
        if timer {
            self.suspect.node.tick();
            self.timer_ran = self.suspect.node.now.mono.0;
        }
        let mut actions = always(move |model| model.now += micros);
        if timer {
            // A waiter whose time is up at the moment at which it could be granted gets the one
            // or the other.
            actions.extend(always(|model| {
                model.sweep();
                model.time_out();
            }));
        }
        actions
    }

    fn connection(&mut self, step: &Step) -> Vec<Action> {
        match *step {
            Step::HangUp { connection, grace } => {
                let next = self.connections[connection as usize] + 3;
                let connection =
                    std::mem::replace(&mut self.connections[connection as usize], next);
                // Its requests leave the queue in the same step of the server.
                let by_it = |waiter: &&Waiter| waiter.request.connection == connection;
                let gone: Vec<_> = self.model().queue.iter().filter(by_it).collect();
                let gone: Vec<_> = gone.iter().map(|waiter| waiter.id).collect();
                self.suspect.node.hang_up(connection, Micros(grace));
                self.suspect.abandon_all(gone.iter().copied().map(WaiterId));
                // What ends by that is taken off when the timer runs next.
                self.timer_ran = 0;
                always(move |model| {
                    model.hang_up(connection, grace);
                    gone.iter().for_each(|id| model.abandon(*id));
                })
            }
            Step::Abandon(nth) if !self.model().queue.is_empty() => {
                let id = self.model().queue[nth % self.model().queue.len()].id;
                self.suspect.abandon(WaiterId(id));
                always(move |model| model.abandon(id))
            }
            Step::Deliver(nth) if !self.undelivered.is_empty() => {
                let id = self.undelivered.swap_remove(nth % self.undelivered.len());
                self.suspect.delivered(WaiterId(id));
                always(move |model| model.delivered(id))
            }
            Step::Undeliverable(nth) if !self.undelivered.is_empty() => {
                let id = self.undelivered.swap_remove(nth % self.undelivered.len());
                self.suspect.undeliverable(WaiterId(id));
                always(move |model| model.undeliverable(id))
            }
            _ => Vec::new(),
        }
    }

    fn administer(&mut self, step: &Step) -> Vec<Action> {
        let table = &mut self.suspect.node.table;
        let actions = match *step {
            Step::HoldBack(holds_back) => {
                table.holds_back = holds_back;
                always(move |model| model.holds_back = holds_back)
            }
            Step::Quarantine(ms) => {
                table.quarantine.configure(cap(ms));
                table.quarantine.enter(
                    redislock_core::quarantine::Reason::Promotion,
                    self.suspect.node.now.mono,
                );
                always(move |model| model.quarantine(u64::from(ms) * 1000))
            }
            Step::Unblock(at) => {
                match at {
                    Some(at) => table.unblock_queue(&key(at)),
                    None => table.unblock_all(),
                }
                always(move |model| model.unblock(at))
            }
            Step::Limit {
                max_hold,
                max_waiters,
                max_holders,
            } => {
                let limits = Limits {
                    max_hold,
                    max_waiters,
                    max_holders,
                };
                table.limits = core_limits(limits);
                always(move |model| model.limits = limits)
            }
            _ => Vec::new(),
        };
        self.suspect.node.serve();
        actions
    }

    /// What others do to the keys; a replica sees it too.
    fn outside(&mut self, step: &Step) -> Vec<Action> {
        // Where a hold went between its grant and the news that nobody received it is not followed.
        for id in std::mem::take(&mut self.undelivered) {
            self.suspect.delivered(WaiterId(id));
            self.models.iter_mut().for_each(|model| model.delivered(id));
        }
        let held = |at| self.models[0].live(at).is_some();
        let node = &mut self.suspect.node;
        let actions = match *step {
            Step::Reload { loading } => {
                self.suspect.reload(loading);
                self.replica.sync(&self.suspect.node);
                always(move |model| model.reload(loading))
            }
            Step::Flush(db) => {
                let left = self.suspect.flush(db);
                self.replica.flush(db);
                let spans = self.model().quarantine_until > 0;
                let node = &mut self.suspect.node;
                node.table.quarantine.enter_for(
                    redislock_core::quarantine::Reason::Flush,
                    Micros(left),
                    node.now.mono,
                );
                let flush: Action = Box::new(move |model| {
                    let last = model.flush(db);
                    if spans {
                        model.quarantine(left);
                    }
                    // A lease that was released early may still count.
                    last <= left
                });
                vec![flush]
            }
            Step::Free => {
                node.free();
                Vec::new()
            }
            Step::Delete { key: at, lazily } => {
                if lazily {
                    node.remove_lazily(&key(at));
                }
                node.remove(&key(at));
                self.replica.remove(&key(at));
                always(move |model| model.delete(at))
            }
            Step::Overwrite(at) => {
                for node in [node, &mut self.replica] {
                    node.remove(&key(at));
                    node.keys.0.insert(key(at), Value::Other);
                }
                always(move |model| model.overwrite(at))
            }
            Step::SetString(at) if !node.keys.0.contains_key(&key(at)) => {
                node.set_string(&key(at), None);
                self.replica.remove(&key(at));
                self.replica.set_string(&key(at), None);
                always(move |model| model.set_string(at))
            }
            Step::Rename(from, to) if from != to && node.keys.0.contains_key(&key(from)) => {
                node.rename(&key(from), &key(to));
                self.replica.rename(&key(from), &key(to));
                always(move |model| model.rename(from, to))
            }
            Step::Restore(from, to) if from != to && held(from) => {
                let dump = node.dump(&key(from)).unwrap_or_default();
                node.restore(&key(to), &dump);
                self.replica.restore(&key(to), &dump);
                always(move |model| model.restore(from, to))
            }
            Step::Swap => {
                node.swap(0, 1);
                self.replica.swap(0, 1);
                always(|model| model.swap(0, 1))
            }
            _ => Vec::new(),
        };
        self.suspect.node.serve();
        actions
    }
}
