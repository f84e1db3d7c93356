//! What goes on: the script of faults, what the workers and the masters say, and what was counted.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redislock_client::{Answer, LockStatus, NodeStatus};
use serde_json::{Value, json};

use super::TTL;
use super::frame::{Frame, Style};
use super::master::Master;
use super::resource::{Heard, Resource, Word};
use super::worker::Worker;
use crate::exit::Failure;
use crate::merged::millis;

/// What is done to the masters and workers, and when. What comes of it nobody has written down.
const SCRIPT: [(Duration, Act); 8] = [
    (Duration::from_millis(6_500), Act::Kill(1)),
    (Duration::from_millis(8_500), Act::Kill(3)),
    (Duration::from_millis(12_000), Act::Restart(1)),
    (Duration::from_millis(13_500), Act::Restart(3)),
    (Duration::from_millis(17_000), Act::PauseHolder),
    (Duration::from_millis(19_000), Act::Kill(0)),
    (Duration::from_millis(27_000), Act::Restart(0)),
    (Duration::from_millis(32_000), Act::End),
];
/// A pause ends when it has lasted for so many ttls and somebody else has written meanwhile.
const PAUSE_IN_TTLS: u32 = 2;
/// On a machine that is very slow the show ends here, complete or not.
const LAST_MOMENT: Duration = Duration::from_secs(50);
/// Workers get this long to release and leave.
const GOODBYE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Kill(usize),
    Restart(usize),
    PauseHolder,
    End,
}

/// What the masters said when they were last asked.
#[derive(Default)]
pub struct Seen {
    pub nodes: Vec<Answer<NodeStatus>>,
    pub lock: Vec<Answer<Option<LockStatus>>>,
}

/// What a worker does, by its own words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    Starting,
    Waiting,
    Holding { fence: u64 },
    Resting,
}

/// A line of the record.
pub struct Event {
    pub at: Duration,
    pub style: Style,
    pub text: String,
}

/// The pause of a holder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    No,
    /// The next one who has read will be stopped.
    Wanted,
    Lasts {
        worker: usize,
        since: Instant,
        writes_before: u64,
    },
}

/// See the module's text.
pub struct Stage {
    start: Instant,
    next: usize,
    pub masters: Vec<Master>,
    /// Whether each master is meant to run.
    pub wanted: Vec<bool>,
    pub workers: Vec<Worker>,
    pub doing: Vec<Doing>,
    pub resource: Resource,
    pub seen: Seen,
    pub events: Vec<Event>,
    pause: Pause,
    grants: u64,
    fences_grow: bool,
    kills: u64,
    pauses: u64,
    /// The moment of the first refusal.
    pub highlight: Option<Frame>,
    over: bool,
}

impl Stage {
    pub fn new(masters: Vec<Master>, workers: Vec<Worker>) -> Self {
        let mut stage = Self {
            start: Instant::now(),
            next: 0,
            wanted: vec![true; masters.len()],
            doing: vec![Doing::Starting; workers.len()],
            masters,
            workers,
            resource: Resource::default(),
            seen: Seen::default(),
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
            "{} masters are started; they have just begun, so they are quarantined and grant nothing yet",
            stage.masters.len()
        );
        stage.note(Style::Faint, text);
        stage
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
    pub fn act(&mut self) -> Result<(), Failure> {
        while let Some((when, act)) = SCRIPT.get(self.next)
            && *when <= self.now()
        {
            if *act == Act::End {
                let complete = self.resource.refused > 0 && self.pause == Pause::No;
                self.over = complete || self.now() > LAST_MOMENT;
                break;
            }
            self.next += 1;
            match *act {
                Act::Kill(place) => {
                    self.masters[place].kill();
                    self.wanted[place] = false;
                    self.kills += 1;
                    self.note(
                        Style::Bad,
                        format!("master {} is killed (SIGKILL)", place + 1),
                    );
                }
                Act::Restart(place) => {
                    self.wanted[place] = true;
                    let text = format!(
                        "master {} is started again, empty: it is quarantined, as it may have forgotten a lease",
                        place + 1
                    );
                    self.note(Style::Doubtful, text);
                }
                Act::PauseHolder => self.pause = Pause::Wanted,
                Act::End => {}
            }
        }
        for place in 0..self.masters.len() {
            if self.wanted[place] && !self.masters[place].is_running() {
                self.masters[place].spawn()?;
            }
        }
        self.wake_in_time();
        Ok(())
    }

    /// Continues the paused worker when its lease is long over and somebody else has written.
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
            self.workers[worker].signal(Signal::SIGCONT);
            let name = self.workers[worker].name;
            self.note(
                Style::Doubtful,
                format!("{name} wakes up (SIGCONT) and goes on as if nothing had happened"),
            );
        }
    }

    /// A worker says something.
    pub fn hear(&mut self, heard: Heard) {
        let known = |worker: &Worker| worker.name == heard.name;
        let Some(worker) = self.workers.iter().position(known) else {
            return;
        };
        let name = self.workers[worker].name;
        let answer = match heard.word {
            Word::Waits => {
                self.doing[worker] = Doing::Waiting;
                Some(0)
            }
            Word::Holds { fence } => {
                self.doing[worker] = Doing::Holding { fence };
                self.grants += 1;
                self.note(Style::Good, format!("{name} holds the lock, fence {fence}"));
                Some(0)
            }
            Word::Reads { fence } => {
                let before = self.resource.highest;
                let value = self.resource.read(fence);
                match value {
                    None => self.refuse(worker, "reading", fence),
                    Some(_) => self.fences_grow &= fence > before,
                }
                if value.is_some() && self.pause == Pause::Wanted {
                    self.put_to_sleep(worker, fence);
                }
                value
            }
            Word::Writes { fence, value } => match self.resource.write(fence, value) {
                true => {
                    self.note(Style::Plain, format!("{name} has written {value}"));
                    Some(value)
                }
                false => {
                    self.refuse(worker, &format!("writing {value}"), fence);
                    None
                }
            },
            Word::Lost { fence } => {
                self.doing[worker] = Doing::Resting;
                let text = format!("{name} learns that its lock, fence {fence}, was lost");
                self.note(Style::Doubtful, text);
                Some(0)
            }
            Word::Released => {
                self.doing[worker] = Doing::Resting;
                Some(0)
            }
        };
        // The worker may have ended meanwhile.
        let _ = heard.answer.send(answer);
    }

    fn refuse(&mut self, worker: usize, what: &str, fence: u64) {
        let name = self.workers[worker].name;
        let highest = self.resource.highest;
        let text = format!("REFUSED: {name} {what} with fence {fence}, as {highest} was seen");
        self.note(Style::Alarm, text);
        if self.highlight.is_none() {
            self.highlight = Some(Frame::of(self));
        }
    }

    fn put_to_sleep(&mut self, worker: usize, fence: u64) {
        self.workers[worker].signal(Signal::SIGSTOP);
        self.pauses += 1;
        self.pause = Pause::Lasts {
            worker,
            since: Instant::now(),
            writes_before: self.resource.writes,
        };
        let name = self.workers[worker].name;
        let text = format!(
            "{name} is paused (SIGSTOP) after it has read, holding fence {fence}; its lease runs on"
        );
        self.note(Style::Bad, text);
    }

    /// The workers release and leave, then the masters are stopped.
    pub async fn say_goodbye(&mut self) {
        for worker in &self.workers {
            worker.signal(Signal::SIGTERM);
        }
        let start = Instant::now();
        while start.elapsed() < GOODBYE && !self.workers.iter_mut().all(Worker::has_ended) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.workers.clear();
        self.masters.iter_mut().for_each(Master::kill);
        self.note(
            Style::Faint,
            "all workers and masters are stopped".to_owned(),
        );
    }

    /// Every write counted one up, fences grew from holder to holder, and the late write was refused.
    pub fn all_is_well(&self) -> bool {
        self.resource.value == self.resource.writes && self.fences_grow && self.resource.refused > 0
    }

    pub fn figures(&self) -> Value {
        json!({
            "event": "summary",
            "at_ms": millis(self.now()),
            "masters_killed": self.kills,
            "holders_paused": self.pauses,
            "grants": self.grants,
            "fences_grow": self.fences_grow,
            "writes": self.resource.writes,
            "refused": self.resource.refused,
            "value": self.resource.value,
        })
    }

    /// The figures, for people.
    pub fn summary(&self) -> Vec<String> {
        let grow = match self.fences_grow {
            true => "each fence higher than the one before",
            false => "AND A FENCE WENT BACK",
        };
        let kept = match self.resource.value == self.resource.writes {
            true => "no update was lost",
            false => "AN UPDATE WAS LOST",
        };
        vec![
            format!(
                "In {} seconds {} masters were killed and started again, {} holder was paused beyond its lease.",
                self.now().as_secs(),
                self.kills,
                self.pauses
            ),
            format!("The lock was granted {} times, {grow}.", self.grants),
            format!(
                "The resource took {} writes and refused {}; it stands at {}: {kept}.",
                self.resource.writes, self.resource.refused, self.resource.value
            ),
        ]
    }
}
