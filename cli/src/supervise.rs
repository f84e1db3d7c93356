//! Looking after the command while it runs: signals, stops, the terminal, and the end of the lock.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg, raise};
use nix::unistd::getpgrp;
use redislock_client::{Held, Moment};

use crate::child::{Change, Group};
use crate::exit::by_signal;
use crate::signals::Signals;
use crate::terminal::{self, Terminal};

/// Timers stop while the host is suspended; looking at the clock this often, we notice soon after.
const LONGEST_NAP: Duration = Duration::from_millis(250);
/// SIGKILL is sent this part of the grace before the lease ends, …
const KILL_IN_GRACE: u32 = 4;
/// … but no earlier than this.
const EARLIEST_KILL: Duration = Duration::from_millis(500);
/// How often one looks whether the last of the group is gone.
const LAST_LOOKS: Duration = Duration::from_millis(10);

/// How it came to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The command ended, and this is its exit code.
    ByItself { code: u8 },
    /// The lock was lost, and the command was stopped.
    Stopped,
}

/// How far the end of the lock has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// SIGTERM was sent. SIGKILL follows, even if the nodes answer again: the command has been told to end.
    Asked {
        kill_at: Moment,
    },
    /// SIGKILL was sent. Until then one waits for those who are left.
    Killed {
        until: Moment,
    },
}

/// See the module's text.
pub struct Supervisor<'a> {
    group: Group,
    held: Held,
    grace: Duration,
    signals: &'a mut Signals,
    terminal: Option<Terminal>,
    /// The command gets the terminal whenever we are in the foreground.
    entitled: bool,
    phase: Phase,
    /// How the leader ended, once it has.
    code: Option<u8>,
    /// The next SIGTSTP is our own.
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
            entitled: terminal::is_all_there_is(),
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
                && let Some(change) = self.group.look()
            {
                self.changed(change);
            }
            match (self.phase, self.code) {
                (Phase::Held, Some(code)) => return Ending::ByItself { code },
                (_, Some(_)) if !self.group.is_alive() => return Ending::Stopped,
                // Whoever is left has been killed, and only waits for somebody to take notice.
                (Phase::Killed { until }, Some(_)) if until <= Moment::now() => {
                    return Ending::Stopped;
                }
                _ => {}
            }
            let nap = self.guard_the_end();
            let held = self.held.clone();
            tokio::select! {
                signal = self.signals.next() => self.caught(signal),
                () = held.lost(), if self.phase == Phase::Held => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    /// How long the lock is valid, by a clock that runs on while the host sleeps or we are stopped.
    fn left(&self) -> Duration {
        self.held.valid_until().remaining()
    }

    /// The time between SIGKILL and the end of the lease.
    fn margin(&self) -> Duration {
        (self.grace / KILL_IN_GRACE).min(EARLIEST_KILL)
    }

    /// Ends the command when the lock is about to end, and says when to look again.
    fn guard_the_end(&mut self) -> Duration {
        let (left, margin) = (self.left(), self.margin());
        let lost = !self.held.is_valid();
        if self.phase == Phase::Held && (lost || left <= self.grace) {
            let kill_at = Moment::now() + left.saturating_sub(margin);
            self.phase = Phase::Asked { kill_at };
            self.group.signal(Signal::SIGTERM);
            if left > margin {
                // A stopped command could not follow.
                self.group.signal(Signal::SIGCONT);
            }
        }
        if let Phase::Asked { kill_at } = self.phase
            && (left <= margin || kill_at <= Moment::now())
        {
            let until = Moment::now() + margin;
            self.phase = Phase::Killed { until };
            self.group.signal(Signal::SIGKILL);
        }
        let next = match self.phase {
            Phase::Held => left.saturating_sub(self.grace),
            Phase::Asked { kill_at } if self.code.is_none() => kill_at.remaining(),
            Phase::Asked { .. } | Phase::Killed { .. } => LAST_LOOKS,
        };
        next.min(LONGEST_NAP)
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
        // From a terminal, ctrl-C would have reached those who share our group, too: the script that started us, say.
        if let (true, Some(signal @ (Signal::SIGINT | Signal::SIGQUIT))) = (had_it, by) {
            let _ = killpg(getpgrp(), signal);
        }
    }

    fn take_terminal_back(&self) -> bool {
        let terminal = self.terminal.as_ref();
        terminal.is_some_and(|terminal| terminal.take_back(self.group.leader))
    }

    /// The command was stopped: by ctrl-Z, or because it wants the terminal.
    fn stopped(&mut self, signal: Signal) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_terminal && (terminal.is_ours() || terminal.is_with(self.group.leader)) {
            self.entitled = true;
            self.go_on();
            return;
        }
        let had_it = terminal.take_back(self.group.leader);
        if signal == Signal::SIGSTOP && !had_it {
            // Somebody paused the command alone. The lock is kept up meanwhile.
            return;
        }
        if !terminal::somebody_would_continue_us() {
            // Nobody would continue us either: as the kernel does in that case, nothing is stopped.
            if !wants_terminal {
                self.go_on();
            }
            return;
        }
        if had_it {
            self.stopping = true;
            let _ = killpg(getpgrp(), Signal::SIGTSTP);
        }
        let _ = raise(Signal::SIGSTOP);
        // Here somebody has continued us.
        self.go_on();
    }

    /// Lets the command continue, unless its lock ended meanwhile: then it is not given another moment.
    fn go_on(&mut self) {
        self.guard_the_end();
        if self.phase != Phase::Held {
            return;
        }
        self.give_terminal();
        self.group.signal(Signal::SIGCONT);
    }

    fn give_terminal(&self) {
        if let (true, Some(terminal)) = (self.entitled, &self.terminal) {
            terminal.give(self.group.leader);
        }
    }

    fn caught(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGCONT => self.go_on(),
            Signal::SIGTSTP if self.stopping => self.stopping = false,
            // Meant for one process, and what it has started would not expect it.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.group.signal_leader(signal),
            signal => self.group.signal(signal),
        }
    }
}
