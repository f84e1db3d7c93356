//! Watches the command while it runs: signals, stops, the terminal, and the end of the lock.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::getpgrp;
use redislock_client::{Held, Moment};

use crate::exit::by_signal;
use crate::process_group::{Change, Group};
use crate::signals::Signals;
use crate::terminal::{self, Terminal};

/// Timers stop while the host is suspended: checking the clock this often, the tool notices soon.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);
/// SIGKILL is sent this part of the grace before the lease ends, …
const KILL_IN_GRACE: u32 = 4;
/// … but not earlier than this.
const EARLIEST_KILL: Duration = Duration::from_millis(500);
/// How often to check whether the last process of the group has ended.
const CHECK_GROUP_EVERY: Duration = Duration::from_millis(10);

/// How the command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The command ended, and this is its exit code.
    ByItself { code: u8 },
    /// The lock was lost, and the command was stopped.
    Stopped,
}

/// How far the end of the lock has progressed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// SIGTERM was sent. SIGKILL follows, even if the nodes reply again: the command was asked to
    /// end.
    Terminating {
        kill_at: Moment,
    },
    /// SIGKILL was sent. The rest of the group is waited for until then.
    Killed {
        until: Moment,
    },
}

/// Watches one command.
pub struct Supervisor<'a> {
    group: Group,
    held: Held,
    grace: Duration,
    signals: &'a mut Signals,
    terminal: Option<Terminal>,
    /// The command gets the terminal whenever this process is in the foreground.
    may_use_terminal: bool,
    phase: Phase,
    /// How the leader ended, once it has.
    code: Option<u8>,
    /// The next SIGTSTP is from this process itself.
    stopping: bool,
}

impl<'a> Supervisor<'a> {
    pub fn new(group: Group, held: Held, grace: Duration, signals: &'a mut Signals) -> Self {
        let supervisor = Self {
            group,
            held,
            grace,
            signals,
            terminal: Terminal::open(),
            may_use_terminal: terminal::is_input_and_output(),
            phase: Phase::Held,
            code: None,
            stopping: false,
        };
        supervisor.give_terminal();
        supervisor
    }

    /// Returns when the command has ended; after a loss, when its whole group has, or was killed.
    pub async fn watch(mut self) -> Ending {
        loop {
            while self.code.is_none()
                && let Some(change) = self.group.poll()
            {
                self.changed(change);
            }
            match (self.phase, self.code) {
                (Phase::Held, Some(code)) => return Ending::ByItself { code },
                (_, Some(_)) if !self.group.is_alive() => return Ending::Stopped,
                // The rest was killed, and only waits for its parent to notice.
                (Phase::Killed { until }, Some(_)) if until <= Moment::now() => {
                    return Ending::Stopped;
                }
                _ => {}
            }
            let sleep = self.end_in_time();
            let held = self.held.clone();
            tokio::select! {
                signal = self.signals.next() => self.caught(signal),
                _ = held.lost(), if self.phase == Phase::Held => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// How long the lock is valid, by a clock that also runs while the host or this process is
    /// suspended.
    fn left(&self) -> Duration {
        self.held.valid_until().remaining()
    }

    /// The time between SIGKILL and the end of the lease.
    fn margin(&self) -> Duration {
        (self.grace / KILL_IN_GRACE).min(EARLIEST_KILL)
    }

    /// Ends the command when the lock is about to end. Returns when to check again.
    fn end_in_time(&mut self) -> Duration {
        let (left, margin) = (self.left(), self.margin());
        let lost = !self.held.is_valid();
        if self.phase == Phase::Held && (lost || left <= self.grace) {
            let kill_at = Moment::now() + left.saturating_sub(margin);
            self.phase = Phase::Terminating { kill_at };
            self.group.signal(Signal::SIGTERM);
            if left > margin {
                // A stopped command could not react.
                self.group.signal(Signal::SIGCONT);
            }
        }
        if let Phase::Terminating { kill_at } = self.phase
            && (left <= margin || kill_at <= Moment::now())
        {
            let until = Moment::now() + margin;
            self.phase = Phase::Killed { until };
            self.group.signal(Signal::SIGKILL);
        }
        let next = match self.phase {
            Phase::Held => left.saturating_sub(self.grace),
            Phase::Terminating { kill_at } if self.code.is_none() => kill_at.remaining(),
            Phase::Terminating { .. } | Phase::Killed { .. } => CHECK_GROUP_EVERY,
        };
        next.min(LONGEST_SLEEP)
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Exited(code) => self.ended(u8::try_from(code).unwrap_or(u8::MAX), None),
            Change::Killed(signal) => {
                self.ended(by_signal(signal), Signal::try_from(signal).ok());
            }
            Change::Stopped(signal) => self.stopped(signal),
        }
    }

    fn ended(&mut self, code: u8, by: Option<Signal>) {
        self.code = Some(code);
        let had_it = self.take_terminal_back();
        // From a terminal, ctrl-C would also reach the group of this process, such as the script
        // that started it.
        if let (true, Some(signal @ (Signal::SIGINT | Signal::SIGQUIT))) = (had_it, by) {
            let _ = killpg(getpgrp(), signal);
        }
    }

    fn take_terminal_back(&self) -> bool {
        let terminal = self.terminal.as_ref();
        terminal.is_some_and(|terminal| terminal.take_back(self.group.leader))
    }

    /// The command was stopped: by ctrl-Z, or because it reads from the terminal.
    fn stopped(&mut self, signal: Signal) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_terminal && (terminal.is_ours() || terminal.is_with(self.group.leader)) {
            self.may_use_terminal = true;
            self.resume();
            return;
        }
        let had_it = terminal.take_back(self.group.leader);
        if signal == Signal::SIGSTOP && !had_it {
            // Only the command was paused. Its lock is still renewed.
            return;
        }
        if !terminal::has_job_control() {
            // No shell would continue this process: as the kernel does then, nothing is stopped.
            if !wants_terminal {
                self.resume();
            }
            return;
        }
        if had_it {
            self.stopping = true;
            let _ = killpg(getpgrp(), Signal::SIGTSTP);
        }
        let _ = raise(Signal::SIGSTOP);
        // Continued by the shell.
        self.resume();
    }

    /// Lets the command continue, unless its lock has ended in the meantime.
    fn resume(&mut self) {
        self.end_in_time();
        if self.phase != Phase::Held {
            return;
        }
        self.give_terminal();
        self.group.signal(Signal::SIGCONT);
    }

    fn give_terminal(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.may_use_terminal) {
            terminal.give(self.group.leader);
        }
    }

    fn caught(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGCONT => self.resume(),
            Signal::SIGTSTP if self.stopping => self.stopping = false,
            // Meant for one process: its children may not expect it.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.group.signal_leader(signal),
            signal => self.group.signal(signal),
        }
    }
}
