//! The scripted faults, the reports of workers and masters, and the counts.

use std::time::{Duration, Instant};

use redislock_client::{Answer, LockStatus, NodeStatus};
use redislock_testkit::Server;
use rustix::process::Signal;

use crate::frame::{Frame, Style};
use crate::resource::{Message, Report, Resource};
use crate::worker::Worker;
use crate::{Outcome, TTL};

/// What happens to the masters and workers, and when.
const SCRIPT: [(Duration, Step); 8] = [
    (Duration::from_millis(6_500), Step::Kill(1)),
    (Duration::from_millis(8_500), Step::Kill(3)),
    (Duration::from_millis(12_000), Step::Restart(1)),
    (Duration::from_millis(13_500), Step::Restart(3)),
    (Duration::from_millis(17_000), Step::PauseHolder),
    (Duration::from_millis(19_000), Step::Kill(0)),
    (Duration::from_millis(27_000), Step::Restart(0)),
    (Duration::from_millis(32_000), Step::End),
];
/// A pause ends after this many ttls, when another worker has written meanwhile.
const PAUSE_IN_TTLS: u32 = 2;
/// On a very slow machine the demonstration ends here, complete or not.
const TIME_LIMIT: Duration = Duration::from_secs(50);
/// Workers get this long to release their lock and end.
const STOP_WITHIN: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Kill(usize),
    Restart(usize),
    PauseHolder,
    End,
}

/// What the masters replied last.
#[derive(Default)]
pub struct Observed {
    pub nodes: Vec<Answer<NodeStatus>>,
    pub lock: Vec<Answer<Option<LockStatus>>>,
}

/// What a worker does, by its own reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    Starting,
    Waiting,
    Holding { fence: u64 },
    Resting,
}

/// A line of the log.
pub struct Event {
    pub at: Duration,
    pub style: Style,
    pub text: String,
}

/// The pause of a holder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    No,
    /// The next worker that reads the resource will be stopped.
    Wanted,
    Lasts {
        worker: usize,
        since: Instant,
        writes_before: u64,
    },
}

/// The demonstration while it runs.
pub struct Scenario {
    start: Instant,
    next: usize,
    pub masters: Vec<Server>,
    /// Whether each master is meant to run.
    pub wanted: Vec<bool>,
    pub workers: Vec<Worker>,
    pub activity: Vec<Activity>,
    pub resource: Resource,
    pub observed: Observed,
    pub events: Vec<Event>,
    pause: Pause,
    grants: u64,
    fences_grow: bool,
    kills: u64,
    pauses: u64,
    /// The screen at the first refusal.
    pub highlight: Option<Frame>,
    over: bool,
}

impl Scenario {
    pub fn new(masters: Vec<Server>, workers: Vec<Worker>) -> Self {
        let mut scenario = Self {
            start: Instant::now(),
            next: 0,
            wanted: vec![true; masters.len()],
            activity: vec![Activity::Starting; workers.len()],
            masters,
            workers,
            resource: Resource::default(),
            observed: Observed::default(),
            events: Vec::new(),
            pause: Pause::No,
            grants: 0,
            fences_grow: true,
            kills: 0,
            pauses: 0,
            highlight: None,
            over: false,
        };
        let text = format!(
            "{} masters were started; they are quarantined at first and grant nothing yet",
            scenario.masters.len()
        );
        scenario.note(Style::Faint, text);
        scenario
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn note(&mut self, style: Style, text: String) {
        let at = self.now();
        self.events.push(Event { at, style, text });
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether this worker is stopped.
    pub fn is_paused(&self, worker: usize) -> bool {
        matches!(self.pause, Pause::Lasts { worker: paused, .. } if paused == worker)
    }

    /// Does what the script says for this moment.
    pub fn advance(&mut self) -> Outcome<()> {
        while let Some((when, step)) = SCRIPT.get(self.next)
            && *when <= self.now()
        {
            if *step == Step::End {
                let complete = self.resource.refused > 0 && self.pause == Pause::No;
                if !self.over && (complete || self.now() > TIME_LIMIT) {
                    self.over = true;
                    self.note(Style::Faint, "the script is over".to_owned());
                }
                break;
            }
            self.next += 1;
            match *step {
                Step::Kill(place) => {
                    self.masters[place].kill();
                    self.wanted[place] = false;
                    self.kills += 1;
                    self.note(
                        Style::Bad,
                        format!("master {} is killed (SIGKILL)", place + 1),
                    );
                }
                Step::Restart(place) => {
                    self.wanted[place] = true;
                    let text = format!(
                        "master {} is started again, empty: it is quarantined, because it may \
                         have lost a lease",
                        place + 1
                    );
                    self.note(Style::Warning, text);
                }
                Step::PauseHolder => self.pause = Pause::Wanted,
                Step::End => {}
            }
        }
        for place in 0..self.masters.len() {
            if self.wanted[place] && !self.masters[place].is_alive() {
                self.masters[place].spawn_again()?;
            }
        }
        self.wake_in_time();
        Ok(())
    }

    /// Continues the paused worker when its lease is over and another worker has written.
    fn wake_in_time(&mut self) {
        let Pause::Lasts {
            worker,
            since,
            writes_before,
        } = self.pause
        else {
            return;
        };
        let long_enough = since.elapsed() > TTL * PAUSE_IN_TTLS;
        if long_enough && self.resource.writes > writes_before {
            self.pause = Pause::No;
            self.workers[worker].signal(Signal::CONT);
            let name = self.workers[worker].name;
            self.note(
                Style::Warning,
                format!("{name} continues (SIGCONT) as if nothing had happened"),
            );
        }
    }

    /// Handles a report of a worker.
    pub fn handle(&mut self, message: Message) {
        let known = |worker: &Worker| worker.name == message.name;
        let Some(worker) = self.workers.iter().position(known) else {
            return;
        };
        let name = self.workers[worker].name;
        let answer = match message.report {
            Report::Waits => {
                self.activity[worker] = Activity::Waiting;
                Some(0)
            }
            Report::Holds { fence } => {
                self.activity[worker] = Activity::Holding { fence };
                self.grants += 1;
                self.note(Style::Good, format!("{name} holds the lock, fence {fence}"));
                Some(0)
            }
            Report::Reads { fence } => {
                let before = self.resource.highest;
                let value = self.resource.read(fence);
                match value {
                    None => self.refuse(worker, "reading", fence),
                    Some(_) => self.fences_grow &= fence > before,
                }
                if value.is_some() && self.pause == Pause::Wanted {
                    self.pause_worker(worker, fence);
                }
                value
            }
            Report::Writes { fence, value } => {
                let written = self.resource.write(fence, value);
                if written {
                    self.note(Style::Plain, format!("{name} has written {value}"));
                } else {
                    self.refuse(worker, &format!("writing {value}"), fence);
                }
                written.then_some(value)
            }
            Report::Lost { fence } => {
                self.activity[worker] = Activity::Resting;
                let text = format!("{name} is told that its lock, fence {fence}, was lost");
                self.note(Style::Warning, text);
                Some(0)
            }
            Report::Released => {
                self.activity[worker] = Activity::Resting;
                Some(0)
            }
        };
        // The worker may have ended meanwhile.
        let _ = message.answer.send(answer);
    }

    fn refuse(&mut self, worker: usize, what: &str, fence: u64) {
        let name = self.workers[worker].name;
        let highest = self.resource.highest;
        let text = format!("REFUSED: {name} {what} with fence {fence}, because {highest} was seen");
        self.note(Style::Alarm, text);
        if self.highlight.is_none() {
            self.highlight = Some(Frame::of(self));
        }
    }

    fn pause_worker(&mut self, worker: usize, fence: u64) {
        self.workers[worker].signal(Signal::STOP);
        self.pauses += 1;
        self.pause = Pause::Lasts {
            worker,
            since: Instant::now(),
            writes_before: self.resource.writes,
        };
        let name = self.workers[worker].name;
        let text = format!(
            "{name} is paused (SIGSTOP) after reading, with fence {fence}; its lease keeps running"
        );
        self.note(Style::Bad, text);
    }

    /// Stops the workers, which release their lock, then the masters.
    pub async fn stop_all(&mut self) {
        for worker in &self.workers {
            worker.signal(Signal::TERM);
        }
        let start = Instant::now();
        while start.elapsed() < STOP_WITHIN && !self.workers.iter_mut().all(Worker::has_ended) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.workers.clear();
        for master in self
            .masters
            .iter_mut()
            .filter_map(|one| one.is_alive().then_some(one))
        {
            master.kill();
        }
        self.note(
            Style::Faint,
            "all workers and masters are stopped".to_owned(),
        );
    }

    /// Every write added one, fences increased from holder to holder, and the late write was
    /// refused.
    pub fn succeeded(&self) -> bool {
        self.resource.value == self.resource.writes && self.fences_grow && self.resource.refused > 0
    }

    /// What has happened, in a few sentences.
    pub fn summary(&self) -> Vec<String> {
        let grow = if self.fences_grow {
            "each fence higher than the one before"
        } else {
            "AND A FENCE DECREASED"
        };
        let kept = if self.resource.value == self.resource.writes {
            "no update was lost"
        } else {
            "AN UPDATE WAS LOST"
        };
        vec![
            format!(
                "In {} seconds, {} masters were killed and started again, and {} holder was \
                 paused beyond its lease.",
                self.now().as_secs(),
                self.kills,
                self.pauses
            ),
            format!("The lock was granted {} times, {grow}.", self.grants),
            format!(
                "The resource accepted {} writes and refused {}; its value is {}: {kept}.",
                self.resource.writes, self.resource.refused, self.resource.value
            ),
        ]
    }
}
